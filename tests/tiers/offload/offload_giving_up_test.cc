// Calls that give up, by a cancel or a deadline, wherever their blocks are.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/random.h"
#include "tiers/offload/offload_worker_fixture.h"

namespace ashlar::tiers {
namespace {

// Copies that wait for a test: each batch says that it has begun, and ends as the test says.
class StandingCopies {
 public:
  OffloadWorker::Begin begin() {
    return [this](std::vector<block::Hold> holds, const MoveOptions& move) -> OffloadWorker::Finish {
      const MutexLock lock(mu_);
      ++begun_;
      deadline_ = move.deadline;
      changed_.notify_all();
      return [this, control = move.control,
              held = std::make_shared<std::vector<block::Hold>>(std::move(holds))] {
        const MutexLock its_lock(mu_);
        while (!end_) changed_.wait(mu_);
        const Error error = *std::exchange(end_, std::nullopt);
        EXPECT_EQ(control->cancelled(), error.code() == ErrorCode::kCancelled);
        const Moved how = error.code() == ErrorCode::kIo ? Moved::kFailed : Moved::kStopped;
        return MoveReport{.blocks = std::vector<Moved>(held->size(), how), .error = error};
      };
    };
  }
  void wait_for_batch(int n) {
    const MutexLock lock(mu_);
    while (begun_ < n) changed_.wait(mu_);
  }
  int begun() {
    const MutexLock lock(mu_);
    return begun_;
  }
  std::optional<Clock::TimePoint> deadline() {
    const MutexLock lock(mu_);
    return deadline_;
  }
  void end(ErrorCode code) {
    const MutexLock lock(mu_);
    end_ = make_error(code, "as the test says");
    changed_.notify_all();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int begun_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::optional<Clock::TimePoint> deadline_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Error> end_ ASHLAR_GUARDED_BY(mu_);
};

class GivingUpTest : public OffloadWorkerTest {
 protected:
  // Blocks 0 and 1, and a worker whose copies stand.
  std::unique_ptr<OffloadWorker> standing(StandingCopies& copies,
                                          OffloadWorkerOptions options = {.full_batch = 2}) {
    compute(0);
    compute(1);
    return OffloadWorker::create(*g1_, *g2_, copies.begin(), std::move(options)).value();
  }
};

TEST_F(GivingUpTest, ACopyIsStoppedWhenNobodyWantsAnyOfIt) {
  StandingCopies copies;
  const auto to_host = standing(copies);
  const OffloadHandle first = to_host->offload(names({0, 1}), 35);
  copies.wait_for_batch(1);
  const OffloadHandle second = to_host->offload(names({1}), 35);
  first.cancel();
  EXPECT_EQ(*first.wait(), (OffloadProgress{.total = 2, .cancelled = 2})) << "at once, the copy goes on";
  to_host->offload(names({0}), 35).cancel();  // who joins and leaves again changes nothing
  second.cancel();
  EXPECT_EQ(*second.wait(), (OffloadProgress{.total = 1, .cancelled = 1}));
  copies.end(ErrorCode::kCancelled);  // which says that the control was told
  to_host->drain();
  EXPECT_EQ(to_host->counters().stopped, 2u);
  EXPECT_EQ(to_host->counters().failed, 0u);
  expect_counts_exact();
}

TEST_F(GivingUpTest, WhoJoinsACopyThatIsBeingStoppedGetsAnother) {
  StandingCopies copies;
  const auto to_host = standing(copies);
  const OffloadHandle first = to_host->offload(names({0, 1}), 35);
  copies.wait_for_batch(1);
  first.cancel();
  const OffloadHandle second = to_host->offload(names({0}), 35);
  to_host->suggest(names({1}), 35);
  copies.end(ErrorCode::kCancelled);
  copies.wait_for_batch(2);
  EXPECT_FALSE(second.done());
  while (to_host->counters().failed < 2) {  // they may have gone in two batches
    copies.end(ErrorCode::kIo);
    std::this_thread::yield();
  }
  EXPECT_EQ(second.wait().error().code(), ErrorCode::kIo);
  to_host->drain();
  expect_counts_exact();
}

TEST_F(GivingUpTest, WhatIsWithdrawnStaysAwayThoughItsCopyWasStoppedAndWantedAgain) {
  StandingCopies copies;
  const auto to_host = standing(copies, {.full_batch = 2, .max_wait = Clock::Duration::max()});
  const OffloadHandle first = to_host->offload(names({0, 1}), 35);
  copies.wait_for_batch(1);
  first.cancel();
  const OffloadHandle second = to_host->offload(names({0}), 35);
  std::thread withdraws([&] {
    to_host->withdraw(names({0, 1}));
    EXPECT_EQ(to_host->counters().queue.on_deck, 0u);
    EXPECT_EQ(to_host->counters().queue.in_flight, 0u);
  });
  copies.end(ErrorCode::kCancelled);
  withdraws.join();
  EXPECT_EQ(*second.wait(), (OffloadProgress{.total = 1, .cancelled = 1}));
  to_host->drain();
  expect_counts_exact();
}

// A block that is in the queue for one and waits for the precondition of another.
TEST_F(GivingUpTest, WhoGivesUpTakesItsPreconditionAlong) {
  compute(0);
  const auto to_host = worker(*g1_, *g2_, {.full_batch = 2, .max_wait = Clock::Duration::max()});
  const auto [fence, signal] = block::Fence::create();
  const OffloadHandle queued = to_host->offload(names({0}), 35);
  const OffloadHandle blocked = to_host->offload(names({0}), {.after = {fence}});
  blocked.cancel();
  while (to_host->counters().blocked != 0) std::this_thread::yield();  // nobody has a precondition any more
  queued.cancel();
  while (to_host->counters().queue.on_deck != 0) std::this_thread::yield();
  const OffloadHandle waits = to_host->offload(names({0}), {.after = {fence}});
  const OffloadHandle joins = to_host->offload(names({0}), 35);  // and waits with it
  waits.cancel();
  while (!joins.done()) {
    to_host->drain();
    std::this_thread::yield();
  }
  EXPECT_EQ(joins.wait()->arrived, 1u);
  expect_counts_exact();
}

TEST_F(GivingUpTest, ASuggestionWaitsForThePreconditionOfACallThatGaveUp) {
  compute(0);
  const auto to_host = worker(*g1_, *g2_);
  auto [fence, signal] = block::Fence::create();
  const OffloadHandle handle = to_host->offload(names({0}), {.after = {fence}});
  for (int i = 0; i < 100; ++i) to_host->suggest(names({0}), 35);
  handle.cancel();
  EXPECT_EQ(handle.progress().cancelled, 1u);
  to_host->drain();
  EXPECT_FALSE(g2_->has(name(0))) << "it may not be written yet";
  EXPECT_EQ(to_host->counters().blocked, 1u);
  std::move(signal).signal();
  to_host->drain();
  EXPECT_TRUE(g2_->has(name(0))) << "who drains waits for what may go";
}

TEST_F(GivingUpTest, ASuggestionWithAPreconditionWaitsForItOnce) {
  compute(0);
  compute(1);
  const auto to_host = worker(*g1_, *g2_);
  auto [fence, signal] = block::Fence::create();
  auto never = std::make_optional(block::Fence::create());
  for (int i = 0; i < 100; ++i) to_host->suggest(names({0, 1}), 35, std::array{fence, never->first});
  to_host->drain();
  EXPECT_EQ(to_host->counters().blocked, 2u);
  std::move(signal).signal();
  to_host->drain();
  EXPECT_TRUE(g2_->has(name(0)));
  never.reset();
  while (to_host->counters().blocked != 0) std::this_thread::yield();
  to_host->drain();
  EXPECT_FALSE(g2_->has(name(1))) << "nobody will write it";
  expect_counts_exact();
}

TEST_F(GivingUpTest, AnAbandonedPreconditionTakesTheBlockOutForAll) {
  compute(0);
  const auto to_host = worker(*g1_, *g2_, {.full_batch = 2, .max_wait = Clock::Duration::max()});
  auto never = std::make_optional(block::Fence::create());
  const OffloadHandle queued = to_host->offload(names({0}), 35);
  const OffloadHandle blocked = to_host->offload(names({0}), {.after = {never->first}});
  never.reset();
  EXPECT_EQ(blocked.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(queued.wait().error().code(), ErrorCode::kCancelled);
  to_host->drain();
  EXPECT_FALSE(g2_->has(name(0)));
  expect_counts_exact();
}

TEST_F(GivingUpTest, ACopyGoesOnForWhatWasSuggestedMeanwhile) {
  StandingCopies copies;
  const auto to_host = standing(copies);
  const OffloadHandle handle = to_host->offload(names({0, 1}), 35);
  copies.wait_for_batch(1);
  to_host->suggest(names({0}), 35);
  handle.cancel();
  copies.end(ErrorCode::kIo);  // which says that the control was not told
  to_host->drain();
  EXPECT_EQ(to_host->counters().failed, 2u);
  expect_counts_exact();
}

TEST_F(GivingUpTest, WhatIsOfferedForGoodOutlivesACallThatIsCancelled) {
  ManualClock clock;
  compute(0);
  const auto to_host =
      worker(*g1_, *g2_, {.full_batch = 4, .max_wait = std::chrono::seconds(1), .clock = &clock});
  to_host->suggest(names({0}), 35);
  const OffloadHandle handle = to_host->offload(names({0}), 35);
  handle.cancel();
  EXPECT_EQ(*handle.wait(), (OffloadProgress{.total = 1, .cancelled = 1}));
  to_host->drain();
  EXPECT_TRUE(g2_->has(name(0)));
}

TEST_F(GivingUpTest, TheDeadlineEndsWhatWaits) {
  ManualClock clock;
  compute(0);
  compute(1);
  compute(2);
  const auto to_host =
      worker(*g1_, *g2_, {.full_batch = 4, .max_wait = std::chrono::seconds(9), .clock = &clock});
  const auto [fence, signal] = block::Fence::create();
  const Clock::TimePoint deadline = clock.now() + std::chrono::seconds(2);
  const OffloadHandle queued = to_host->offload(names({0, 1}), {.deadline = deadline});
  const OffloadHandle blocked = to_host->offload(names({2}), {.after = {fence}, .deadline = deadline});
  const OffloadHandle joined = to_host->offload(names({1}), 35);
  clock.advance(std::chrono::seconds(1));
  EXPECT_FALSE(queued.done());
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(queued.wait().error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(queued.progress(), (OffloadProgress{.total = 2, .late = 2}));
  EXPECT_EQ(blocked.wait().error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(blocked.progress(), (OffloadProgress{.total = 1, .late = 1}));
  EXPECT_FALSE(joined.done()) << "it has no deadline";
  to_host->drain();
  EXPECT_EQ(*joined.wait(), (OffloadProgress{.total = 1, .arrived = 1}));
  EXPECT_FALSE(g2_->has(name(0)) || g2_->has(name(2)));
  expect_counts_exact();
}

TEST_F(GivingUpTest, TheDeadlineEndsACopyUnlessSomebodyHasMoreTime) {
  ManualClock clock;
  StandingCopies copies;
  const auto to_host = standing(copies, {.full_batch = 2, .clock = &clock});
  const Clock::TimePoint soon = clock.now() + std::chrono::seconds(1);
  const Clock::TimePoint later = clock.now() + std::chrono::seconds(2);
  const OffloadHandle first = to_host->offload(names({0}), {.deadline = soon});
  const OffloadHandle second = to_host->offload(names({1}), {.deadline = later});
  copies.wait_for_batch(1);
  EXPECT_EQ(copies.deadline(), later);
  const OffloadHandle third = to_host->offload(names({1}), 35);  // after it began
  clock.advance(std::chrono::seconds(1));
  EXPECT_TRUE(first.done()) << "the worker is busy: who asks sees to it";
  EXPECT_EQ(first.progress(), (OffloadProgress{.total = 1, .late = 1}));
  EXPECT_FALSE(second.done());
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(second.wait().error().code(), ErrorCode::kTimeout);
  copies.end(ErrorCode::kTimeout);
  EXPECT_FALSE(third.done());
  while (copies.begun() < 2) {
    clock.advance(std::chrono::seconds(1));  // the tail of a batch goes by time
    std::this_thread::yield();
  }
  EXPECT_EQ(copies.deadline(), std::nullopt);
  copies.end(ErrorCode::kIo);
  EXPECT_EQ(third.wait().error().code(), ErrorCode::kIo);
  expect_counts_exact();
}

TEST_F(GivingUpTest, ADeadlineThatHasPassedEndsTheCallAtOnce) {
  ManualClock clock;
  compute(0);
  const auto to_host =
      worker(*g1_, *g2_, {.full_batch = 4, .max_wait = std::chrono::seconds(9), .clock = &clock});
  const OffloadHandle handle = to_host->offload(names({0}), {.deadline = clock.now()});
  EXPECT_EQ(handle.progress(), (OffloadProgress{.total = 1, .late = 1}));
  EXPECT_EQ(to_host->counters().queue.on_deck, 0u);
  to_host->drain();
  EXPECT_FALSE(g2_->has(name(0)));
  expect_counts_exact();
}

TEST_F(GivingUpTest, CancelTakesOutWhatHasNotStarted) {
  for (std::uint64_t i = 0; i < 5; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2, 3, 4});
  const auto to_disk = worker(*g2_, *g3_, {.queue = {.on_deck = 2}, .batch_blocks = 1, .full_batch = 1});
  gate_ = std::make_shared<Gate>();
  const OffloadHandle first = to_disk->offload(names({0, 1, 2, 3}), 35);
  const OffloadHandle other = to_disk->offload(names({3}), 35);
  gate_->wait_for_somebody();
  const Result<OffloadProgress> late = first.wait_until(Clock::real().now());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kTimeout);
  first.cancel();
  EXPECT_EQ(*first.wait(), (OffloadProgress{.total = 4, .cancelled = 4}));
  gate_->open();
  EXPECT_EQ(other.wait()->arrived, 1u) << "somebody else still wanted it";
  EXPECT_FALSE(g3_->has(name(2)));
  to_disk->drain();
  expect_counts_exact();
}

// Whoever joins a block while another cancels it hears of its end.
TEST_F(GivingUpTest, NoCallIsLostBesideCancels) {
  for (std::uint64_t i = 0; i < 6; ++i) compute(i);
  const auto to_host = worker(*g1_, *g2_, {.queue = {.on_deck = 1}, .batch_blocks = 1, .full_batch = 1});
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 400; ++i) {
        OffloadOptions options;
        if (random.below(3) == 0)
          options.deadline = Clock::real().now() + std::chrono::microseconds(random.below(200));
        const OffloadHandle handle = to_host->offload(names({random.below(6), random.below(6)}), options);
        if (random.below(2) == 0) handle.cancel();
        const Result<OffloadProgress> done = handle.wait();
        ASSERT_TRUE(done || options.deadline);
        ASSERT_EQ(handle.progress().ended(), 2u);
        ASSERT_EQ(handle.progress().failed, 0u);
        if (random.below(16) == 0) to_host->check_invariants();
        if (random.below(4) == 0) static_cast<void>(g2_->remove(name(random.below(6))));
      }
    });
  for (std::thread& thread : threads) thread.join();
  to_host->drain();
  to_host->check_invariants();
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
