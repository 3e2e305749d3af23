// A follow-up turn waits for the events of the reply that it continues, and not in vain.
#include <gtest/gtest.h>

#include "service/gateway/fake_workers.h"
#include "service/gateway/fleet.h"
#include "service/gateway/recent_ends.h"
#include "service/request/prompt_blocks.h"

namespace ashlar::service {
namespace {

using namespace std::chrono_literals;

constexpr events::Worker kOnly{.id = events::WorkerId(kFirstOwnId)};
constexpr HeaderView kHead[] = {{.name = "Content-Type", .value = "application/json"}};

TEST(RecentEnds, WaitsThatBringNothingBecomeRare) {
  RecentEnds ends(1h);
  for (std::uint32_t i = 0; i < RecentEnds::kVain; ++i) {
    EXPECT_TRUE(ends.is_worth_waiting("m"));
    ends.judge("m", false);
  }
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 1; i < RecentEnds::kProbe; ++i) EXPECT_FALSE(ends.is_worth_waiting("m"));
    EXPECT_TRUE(ends.is_worth_waiting("m"));
    ends.judge("m", false);
  }
  EXPECT_TRUE(ends.is_worth_waiting("other"));
  ends.judge("m", true);
  EXPECT_TRUE(ends.is_worth_waiting("m"));
}

// One worker whose events are complete. Its blocks are stored by the test.
class OwedReplies : public ::testing::Test {
 protected:
  void start(Clock::Duration patience) {
    ServeOptions options = ServiceUnderTest::options_of(1);
    options.event_patience = patience;
    service_ = std::make_unique<ServiceUnderTest>(options);
    (*service_)->router().set_state(kOnly, WorkerState::kExact);
  }
  void TearDown() override { service_.reset(); }

  // The first blocks of tokens_body().
  void store(std::size_t blocks) {
    std::vector<tokens::Token> prompt;
    for (std::uint32_t i = 0; i < blocks * kGuessedBlockSize; ++i) prompt.emplace_back(1000 + i);
    const auto locals = hash_prompt(prompt, {}, {}, kGuessedBlockSize);
    std::vector<events::StoredBlock> stored;
    for (std::size_t i = 0; i < blocks; ++i) stored.push_back({locals[i], events::BlockName(i + 1)});
    events::BlocksStored event;
    event.worker = kOnly;
    event.blocks = stored;
    EXPECT_EQ((*service_)->router().sink().store(event), events::StoreVerdict::kApplied);
  }
  // Of 40 tokens, whose reply fills the third and the fourth block.
  void first_turn() {
    const auto open = service_->begin("/v1/completions", tokens_body(40));
    ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
    store(2);
    open->passage->head(200, kHead);
    open->passage->bytes(R"({"usage":{"prompt_tokens":40,"completion_tokens":30}})");
    open->passage->ended(PassageEnd::kComplete);
  }
  std::unique_ptr<ServiceUnderTest::Open> next_turn() {
    return service_->begin("/v1/completions", tokens_body(80));
  }

  std::unique_ptr<ServiceUnderTest> service_;
};

TEST_F(OwedReplies, AreWaitedForAndEndWithTheirTime) {
  start(1h);
  first_turn();
  const Clock::TimePoint ended = Clock::real().now();
  const auto open = next_turn();
  ASSERT_TRUE(std::holds_alternative<Wait>(open->step));
  EXPECT_LE(std::get<Wait>(open->step).until, ended + 1h) << "longer than anything is owed";
  EXPECT_TRUE(std::holds_alternative<Wait>(open->passage->resumed()));
  store(4);
  EXPECT_TRUE(std::holds_alternative<Forward>(open->passage->resumed()));
}

TEST_F(OwedReplies, OnlyThePrefixPolicyWaits) {
  start(1h);
  first_turn();
  ASSERT_TRUE(std::holds_alternative<Wait>(next_turn()->step));
  for (const char* policy : {"round_robin", "random", "least_loaded"}) {
    const auto open = (*service_).begin("/v1/completions", tokens_body(80), {{"x-ashlar-policy", policy}});
    EXPECT_TRUE(std::holds_alternative<Forward>(open->step)) << policy;
  }
}

TEST_F(OwedReplies, NobodyWaitsForAWorkerThatCannotTellThem) {
  start(1h);
  first_turn();
  ASSERT_TRUE(std::holds_alternative<Wait>(next_turn()->step));
  (*service_)->router().set_state(kOnly, WorkerState::kDegraded);
  EXPECT_TRUE(std::holds_alternative<Forward>(next_turn()->step));
  (*service_)->router().set_state(kOnly, WorkerState::kExact);
  (*service_)->router().sink().clear(kOnly);
  EXPECT_TRUE(std::holds_alternative<Forward>(next_turn()->step));
}

// The reply is never part of the next prompt: the blocks that are waited for do not exist.
TEST_F(OwedReplies, AModelWhoseRepliesNeverComeIsNotWaitedFor) {
  start(10ms);
  const auto hesitated = [&] { return service_->metric("ashlar_serve_hesitated_total"); };
  const auto turn = [&] {
    (*service_)->router().sink().clear(kOnly);
    first_turn();
    auto open = next_turn();
    while (std::holds_alternative<Wait>(open->step)) open->step = open->passage->resumed();
    EXPECT_TRUE(std::holds_alternative<Forward>(open->step));
  };
  while (hesitated() < RecentEnds::kVain) turn();
  for (std::uint32_t i = 1; i < RecentEnds::kProbe; ++i) turn();
  EXPECT_EQ(hesitated(), RecentEnds::kVain);
  EXPECT_EQ(service_->metric("ashlar_serve_hesitation_seconds_count"), RecentEnds::kVain);
  EXPECT_GT(service_->metric("ashlar_serve_hesitation_seconds_sum"), 0);
}

}  // namespace
}  // namespace ashlar::service
