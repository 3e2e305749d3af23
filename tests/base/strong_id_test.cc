#include "ashlar/base/strong_id.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <type_traits>
#include <unordered_set>

namespace ashlar {
namespace {

using Apple = StrongId<struct AppleTag, std::uint32_t>;
using Pear = StrongId<struct PearTag, std::uint32_t>;

static_assert(!std::is_convertible_v<Apple, Pear> && !std::is_constructible_v<Pear, Apple>);
static_assert(!std::is_convertible_v<std::uint32_t, Apple>, "an id is made by name");
static_assert(!std::is_convertible_v<Apple, std::uint32_t>, "a number is taken by name");
static_assert(std::is_trivially_copyable_v<Apple> && sizeof(Apple) == sizeof(std::uint32_t));
static_assert(Apple(3).value() == 3 && Apple().value() == 0);

template <class A, class B>
concept Comparable = requires(A a, B b) { a == b; };
static_assert(Comparable<Apple, Apple> && !Comparable<Apple, Pear>);

TEST(StrongIdTest, ComparesByValue) {
  EXPECT_EQ(Apple(1), Apple(1));
  EXPECT_NE(Apple(1), Apple(2));
  EXPECT_LT(Apple(1), Apple(2));
}

TEST(StrongIdTest, HashesAndPrintsAsItsValue) {
  const std::unordered_set<Apple> apples = {Apple(1), Apple(2), Apple(1)};
  EXPECT_EQ(apples.size(), 2U);
  std::ostringstream out;
  out << Apple(17);
  EXPECT_EQ(out.str(), "17");
}

TEST(StrongIdTest, OneByteIdPrintsAsANumber) {
  std::ostringstream out;
  out << StrongId<struct ByteTag, std::uint8_t>(65);
  EXPECT_EQ(out.str(), "65");
}

}  // namespace
}  // namespace ashlar
