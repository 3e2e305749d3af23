#include "tiers/remote/answer_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ashlar::tiers {
namespace {

using std::chrono::seconds;

class AnswerWatchTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  AnswerWatch watch_{seconds(2), clock_};
  const transfer::AgentIdentity peer_ = {1, 2};
};

TEST_F(AnswerWatchTest, APeerOwesFromTheFirstQuestionThatIsLeftUntilItAnswersOne) {
  EXPECT_FALSE(watch_.owes(peer_));
  const auto first = watch_.ask(peer_);
  EXPECT_FALSE(watch_.owes(peer_)) << "its caller waits";
  EXPECT_FALSE(watch_.left(first));
  EXPECT_TRUE(watch_.owes(peer_));
  EXPECT_FALSE(watch_.owes({1, 3})) << "another incarnation";
  watch_.ask(peer_).answered();
  EXPECT_FALSE(watch_.owes(peer_));
}

TEST_F(AnswerWatchTest, ShortQuestionsAddUpToTheLimit) {
  for (int i = 0; i < 20; ++i) {
    const auto question = watch_.ask(peer_);
    clock_.advance(std::chrono::milliseconds(100));
    EXPECT_EQ(watch_.left(question), i == 19) << i;
  }
  const auto again = watch_.ask(peer_);
  clock_.advance(seconds(1));
  EXPECT_FALSE(watch_.left(again)) << "another limit has begun";
  clock_.advance(seconds(1));
  EXPECT_TRUE(watch_.left(watch_.ask(peer_)));
}

TEST_F(AnswerWatchTest, OneQuestionOfTheWholeLimitIsEnough) {
  const auto question = watch_.ask(peer_);
  clock_.advance(seconds(2));
  EXPECT_TRUE(watch_.left(question));
}

TEST_F(AnswerWatchTest, ALateAnswerEndsTheDebtAndIsPassedOn) {
  const auto question = watch_.ask(peer_);
  std::size_t heard = 0;
  const transfer::LateAnswer late =
      question.late([&](std::span<const std::byte> bytes) { heard = bytes.size(); });
  EXPECT_FALSE(watch_.left(question));
  clock_.advance(seconds(1));
  late(std::vector<std::byte>(3));
  EXPECT_EQ(heard, 3u);
  EXPECT_FALSE(watch_.owes(peer_));
  const auto next = watch_.ask(peer_);
  clock_.advance(seconds(1));
  EXPECT_FALSE(watch_.left(next)) << "it is silent for a second";
}

TEST_F(AnswerWatchTest, AnAnswerBetweenTheEndOfACallAndItsCallerIsHeard) {
  const auto question = watch_.ask(peer_);
  question.late()({});
  clock_.advance(seconds(5));
  EXPECT_FALSE(watch_.left(question));
  EXPECT_FALSE(watch_.owes(peer_));
}

TEST_F(AnswerWatchTest, PeersThatAreGoneOweNothingAndThoseThatOweAreBounded) {
  EXPECT_FALSE(watch_.left(watch_.ask(peer_)));
  watch_.forget(peer_);
  EXPECT_FALSE(watch_.owes(peer_));
  for (std::uint64_t i = 1; i <= 2 * AnswerWatch::kMostPeers; ++i)
    EXPECT_FALSE(watch_.left(watch_.ask({i, 1})));
  std::size_t owing = 0;
  for (std::uint64_t i = 1; i <= 2 * AnswerWatch::kMostPeers; ++i) owing += watch_.owes({i, 1}) ? 1u : 0u;
  EXPECT_EQ(owing, AnswerWatch::kMostPeers);
}

// The question, and the answer that comes late, may outlive who asked.
TEST(AnswerWatchLifetimeTest, AQuestionOutlivesTheWatch) {
  transfer::LateAnswer late;
  {
    AnswerWatch watch{seconds(1)};
    const auto question = watch.ask({1, 2});
    EXPECT_FALSE(watch.left(question));
    late = question.late();
  }
  late({});
}

}  // namespace
}  // namespace ashlar::tiers
