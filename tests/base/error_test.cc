#include "ashlar/base/result.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

namespace ashlar {
namespace {

TEST(ErrorTest, KeepsItsCodeAndMessage) {
  const Error error(ErrorCode::kTimeout, "waited 5 s");
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_EQ(error.message(), "waited 5 s");
}

TEST(ErrorTest, PrintsItsCodeThenItsMessage) {
  const Error error(ErrorCode::kNotFound, "no block 7");
  EXPECT_EQ(error.to_string(), "not_found: no block 7");
  std::ostringstream out;
  out << error;
  EXPECT_EQ(out.str(), "not_found: no block 7");
}

TEST(ErrorTest, EqualsAnErrorWithTheSameCodeAndMessage) {
  EXPECT_EQ(Error(ErrorCode::kIo, "a"), Error(ErrorCode::kIo, "a"));
  EXPECT_NE(Error(ErrorCode::kIo, "a"), Error(ErrorCode::kIo, "b"));
  EXPECT_NE(Error(ErrorCode::kIo, "a"), Error(ErrorCode::kTimeout, "a"));
}

TEST(ErrorTest, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    const std::string_view name = to_string(static_cast<ErrorCode>(code));
    EXPECT_NE(name, "unknown");
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(to_string(static_cast<ErrorCode>(255)), "unknown");
}

TEST(ErrorTest, MakeErrorFormatsAsPrintfDoes) {
  const Error error = make_error(ErrorCode::kCapacity, "%d of %s", 3, "four");
  EXPECT_EQ(error, Error(ErrorCode::kCapacity, "3 of four"));
}

TEST(ErrorTest, MakeErrorTakesMessagesOfAnyLength) {
  const std::string text(5000, 'x');
  EXPECT_EQ(make_error(ErrorCode::kIo, "%s!", text.c_str()).message(), text + "!");
  EXPECT_EQ(make_error(ErrorCode::kIo, "%s", "").message(), "");
}

}  // namespace
}  // namespace ashlar
