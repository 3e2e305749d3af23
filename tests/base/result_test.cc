#include "ashlar/base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace ashlar {
namespace {

Error full() {
  return Error(ErrorCode::kCapacity, "no room");
}

static_assert(!std::is_convertible_v<Result<int>, bool>, "a Result is asked, not converted");
static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(std::is_same_v<Result<int>::value_type, int> && std::is_same_v<Result<int>::error_type, Error>);
static_assert(std::is_same_v<Result<void>::value_type, void> &&
              std::is_same_v<Result<void>::error_type, Error>);

TEST(ResultTest, HoldsItsValue) {
  const Result<int> result = 7;
  EXPECT_TRUE(result.has_value());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(result.value(), 7);
  EXPECT_EQ(*result, 7);
}

TEST(ResultTest, HoldsItsError) {
  const Result<int> result = full();
  EXPECT_FALSE(result.has_value());
  EXPECT_FALSE(static_cast<bool>(result));
  EXPECT_EQ(result.error(), full());
}

TEST(ResultTest, ValueCanBeChangedInPlace) {
  Result<std::string> result = std::string("ab");
  result.value() += 'c';
  *result += 'd';
  result->push_back('e');
  EXPECT_EQ(std::as_const(result)->size(), 5U);
  EXPECT_EQ(*result, "abcde");
}

TEST(ResultTest, ErrorCanBeChangedInPlace) {
  Result<int> result = full();
  result.error() = Error(ErrorCode::kIo, "disk");
  EXPECT_EQ(std::as_const(result).error().code(), ErrorCode::kIo);
}

TEST(ResultTest, MoveOnlyValueMovesOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> by_star = *std::move(result);
  EXPECT_EQ(*by_star, 3);
  Result<std::unique_ptr<int>> other = std::make_unique<int>(4);
  const std::unique_ptr<int> by_name = std::move(other).value();
  EXPECT_EQ(*by_name, 4);
}

TEST(ResultTest, ErrorMovesOut) {
  Result<int, std::unique_ptr<int>> result = Unexpected(std::make_unique<int>(5));
  const std::unique_ptr<int> error = std::move(result).error();
  EXPECT_EQ(*error, 5);
}

TEST(ResultTest, ResultItselfMoves) {
  Result<std::unique_ptr<int>> from = std::make_unique<int>(6);
  Result<std::unique_ptr<int>> to = std::move(from);
  EXPECT_EQ(**to, 6);
  to = full();
  EXPECT_EQ(to.error(), full());
}

// In every pair of states, by copy and by move; what was held before is let go, and nothing twice.
TEST(ResultTest, AssignmentReplacesWhatWasHeld) {
  using Shared = Result<std::shared_ptr<int>>;
  for (const bool target_has : {false, true}) {
    for (const bool source_has : {false, true}) {
      const auto old = std::make_shared<int>(1);
      const auto fresh = std::make_shared<int>(2);
      Shared target = target_has ? Shared(old) : Shared(full());
      Shared source = source_has ? Shared(fresh) : Shared(Error(ErrorCode::kIo, "broken"));
      target = source;
      EXPECT_EQ(old.use_count(), 1);
      EXPECT_EQ(fresh.use_count(), source_has ? 3 : 1);
      EXPECT_EQ(target.has_value(), source_has);
      EXPECT_EQ(source.has_value(), source_has) << "a copy leaves its source";
      target = full();
      target = std::move(source);
      EXPECT_EQ(target.has_value(), source_has);
      if (source_has) {
        EXPECT_EQ(*target, fresh);
        EXPECT_EQ(fresh.use_count(), 2);
      } else {
        EXPECT_EQ(target.error().message(), "broken");
      }
      Shared& same = target;
      target = same;
      EXPECT_EQ(target.has_value(), source_has);
      EXPECT_EQ(fresh.use_count(), source_has ? 2 : 1);
    }
  }
}

TEST(ResultTest, UnexpectedTellsErrorFromValueOfTheSameType) {
  const Result<int, int> value = 1;
  const Result<int, int> error = Unexpected(1);
  EXPECT_TRUE(value.has_value());
  EXPECT_FALSE(error.has_value());
  EXPECT_EQ(error.error(), 1);
}

TEST(ResultTest, UnexpectedConvertsItsError) {
  const Result<int, std::string> result = Unexpected("text");
  EXPECT_EQ(result.error(), "text");
}

TEST(ResultTest, ValueOrFallsBackOnlyOnError) {
  const Result<std::string> value = std::string("here");
  const Result<std::string> error = full();
  EXPECT_EQ(value.value_or("there"), "here");
  EXPECT_EQ(error.value_or("there"), "there");
  EXPECT_EQ(*Result<std::unique_ptr<int>>(std::make_unique<int>(1)).value_or(nullptr), 1);
  EXPECT_EQ(Result<std::unique_ptr<int>>(full()).value_or(nullptr), nullptr);
}

TEST(ResultTest, AndThenRunsOnAValueAndPassesAnErrorThrough) {
  int calls = 0;
  const auto half = [&](int n) -> Result<int> {
    ++calls;
    if (n % 2 != 0) return Error(ErrorCode::kInvalidArgument, "odd");
    return n / 2;
  };
  EXPECT_EQ(*Result<int>(8).and_then(half).and_then(half), 2);
  EXPECT_EQ(Result<int>(6).and_then(half).and_then(half).error().message(), "odd");
  calls = 0;
  EXPECT_EQ(Result<int>(full()).and_then(half).error(), full());
  EXPECT_EQ(calls, 0);
}

TEST(ResultTest, AndThenMovesTheValue) {
  auto result = Result<std::unique_ptr<int>>(std::make_unique<int>(9)).and_then([](std::unique_ptr<int> p) {
    return Result<int>(*p);
  });
  EXPECT_EQ(*result, 9);
}

TEST(ResultTest, TransformChangesAValueAndPassesAnErrorThrough) {
  const auto length = [](const std::string& text) { return text.size(); };
  EXPECT_EQ(*Result<std::string>(std::string("four")).transform(length), 4U);
  EXPECT_EQ(Result<std::string>(full()).transform(length).error(), full());
}

TEST(ResultTest, OrElseRunsOnAnErrorAndPassesAValueThrough) {
  const auto recover = [](const Error& error) -> Result<int> {
    if (error.code() == ErrorCode::kCapacity) return 0;
    return error;
  };
  EXPECT_EQ(*Result<int>(5).or_else(recover), 5);
  EXPECT_EQ(*Result<int>(full()).or_else(recover), 0);
  EXPECT_EQ(Result<int>(Error(ErrorCode::kIo, "x")).or_else(recover).error().code(), ErrorCode::kIo);
}

TEST(ResultTest, TransformErrorChangesAnErrorAndPassesAValueThrough) {
  const auto code = [](const Error& error) { return error.code(); };
  EXPECT_EQ(*Result<int>(5).transform_error(code), 5);
  EXPECT_EQ(Result<int>(full()).transform_error(code).error(), ErrorCode::kCapacity);
}

TEST(ResultOfVoidTest, SucceedsByDefault) {
  const Result<void> result;
  EXPECT_TRUE(result.has_value());
  EXPECT_TRUE(static_cast<bool>(result));
  result.value();
}

TEST(ResultOfVoidTest, HoldsItsError) {
  Result<void> result = full();
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(std::as_const(result).error(), full());
  result.error() = Error(ErrorCode::kIo, "disk");
  EXPECT_EQ(std::move(result).error().message(), "disk");
  const Result<void, std::string> text = Unexpected("why");
  EXPECT_EQ(text.error(), "why");
}

TEST(ResultOfVoidTest, AndThenRunsOnSuccessAndPassesAnErrorThrough) {
  const auto seven = [] { return Result<int>(7); };
  EXPECT_EQ(*Result<void>().and_then(seven), 7);
  EXPECT_EQ(Result<void>(full()).and_then(seven).error(), full());
}

TEST(ResultTest, RejectedCarriesTheGuardBack) {
  using Guard = std::unique_ptr<int>;
  const auto refuse = [](Guard guard) -> Result<int, Rejected<Guard>> {
    return Rejected<Guard>{full(), std::move(guard)};
  };
  auto result = refuse(std::make_unique<int>(11));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().error, full());
  EXPECT_EQ(*result.error().guard, 11);
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorStops) {
  Result<int> result = full();
  EXPECT_DEATH((void)result.value(), "value\\(\\) of an error at .*result_test.cc:[0-9]+: capacity: no room");
  EXPECT_DEATH((void)*std::as_const(result), "of an error: capacity: no room; call value\\(\\) to see where");
  EXPECT_DEATH(Result<void>(full()).value(), "result_test.cc:[0-9]+: capacity: no room");
}

TEST(ResultDeathTest, ErrorsOfEveryTypeSayWhatTheyKnow) {
  using Refused = Result<int, Rejected<std::string>>;
  EXPECT_DEATH((void)Refused(Rejected<std::string>{full(), "guard"}).value(), "capacity: no room");
  const Result<int, char> mute = Unexpected('x');
  EXPECT_DEATH((void)mute.value(), "an error without a text");
}

Result<int> half(int n) {
  if (n % 2 != 0) return make_error(ErrorCode::kInvalidArgument, "%d is odd", n);
  return n / 2;
}
Result<void> even(int n) {
  ASHLAR_RETURN_IF_ERROR(half(n));
  return {};
}
Result<std::string> quarter(int n, int& reached) {
  ASHLAR_TRY(const int first, half(n));
  reached = 1;
  ASHLAR_TRY(int second, half(first));
  reached = 2;
  ASHLAR_RETURN_IF_ERROR(even(second));
  reached = 3;
  return std::to_string(second);
}

TEST(ResultTest, TryDeclaresTheValueOrReturnsTheError) {
  int reached = 0;
  EXPECT_EQ(*quarter(8, reached), "2");
  EXPECT_EQ(reached, 3);
  for (const auto& [n, error, steps] :
       {std::tuple{7, "7 is odd", 0}, std::tuple{14, "7 is odd", 1}, std::tuple{12, "3 is odd", 2}}) {
    reached = 0;
    EXPECT_EQ(quarter(n, reached).error().message(), error);
    EXPECT_EQ(reached, steps);
  }
}

TEST(ResultTest, TryMovesTheValueOut) {
  const auto take = [](Result<std::unique_ptr<int>> given) -> Result<int> {
    ASHLAR_TRY(const std::unique_ptr<int> owned, std::move(given));
    return *owned;
  };
  EXPECT_EQ(*take(std::make_unique<int>(5)), 5);
  EXPECT_EQ(take(full()).error(), full());
}

TEST(ResultDeathTest, ReadingTheErrorOfAValueStops) {
  Result<int> result = 1;
  EXPECT_DEATH((void)result.error(), "error\\(\\) called on a Result that holds a value");
  EXPECT_DEATH((void)Result<void>().error(), "holds a value");
}

}  // namespace
}  // namespace ashlar
