// Calls of more names than are offered at a time, and the priority of each.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "tiers/offload/offload_worker_fixture.h"

namespace ashlar::tiers {
namespace {

class OffloadPiecesTest : public OffloadWorkerTest {
 protected:
  static constexpr std::uint32_t kBlocks = 256;
  static constexpr std::uint64_t kPiece = 64;

  OffloadPiecesTest() {
    storage::SystemAllocator memory;
    above_ = std::make_unique<MemoryPool<G1>>(
        above_manager_,
        BlockSet::allocate(layout_of(kBlocks, layout::order::kBlockSecondNhd), memory).value(),
        events::StorageTier::kDevice);
  }
  // Copies nothing, and notes what it was to copy.
  std::unique_ptr<OffloadWorker> noting(OffloadWorkerOptions options) {
    return OffloadWorker::create(
               *above_, *g2_,
               [this](std::vector<block::Hold> holds, const MoveOptions&) -> OffloadWorker::Finish {
                 const MutexLock lock(mu_);
                 for (const block::Hold& hold : holds) copied_.push_back(hold.sequence_hash());
                 begun_.notify_all();
                 return [n = holds.size()] {
                   return MoveReport{.blocks = std::vector<Moved>(n, Moved::kArrived), .error = {}};
                 };
               },
               std::move(options))
        .value();
  }
  // One that begins with drain().
  static OffloadWorkerOptions patient(OffloadPolicy policy = every_block()) {
    return {.queue = {.on_deck = kBlocks},
            .batch_blocks = kBlocks,
            .full_batch = kBlocks,
            .max_wait = Clock::Duration::max(),
            .policy = std::move(policy)};
  }
  static std::vector<SequenceHash> names_to(std::uint64_t n) {
    std::vector<SequenceHash> out;
    for (std::uint64_t i = 0; i < n; ++i) out.push_back(name(i));
    return out;
  }
  void cache(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i < last; ++i)
      ASSERT_TRUE(above_manager_.register_block(above_manager_.allocate_blocks(1).value().take_back().stage(
          name(i), KvReady::asserted_by_caller())));
  }
  std::vector<SequenceHash> copied() {
    const MutexLock lock(mu_);
    return copied_;
  }
  std::vector<SequenceHash> copied_sorted() {
    std::vector<SequenceHash> out = copied();
    std::ranges::sort(out);
    return out;
  }

  Mutex mu_;
  CondVar begun_;
  std::vector<SequenceHash> copied_ ASHLAR_GUARDED_BY(mu_);
  block::BlockManager<G1> above_manager_ = ashlar::testing::make_manager<G1>(options<G1>(kBlocks));
  std::unique_ptr<MemoryPool<G1>> above_;
};

TEST_F(OffloadPiecesTest, EveryNameEndsOnceWhereverItStands) {
  cache(0, 200);
  const auto refused = [](const SequenceHash& hash) {
    return hash == name(100) || hash == name(63) || hash == name(64);
  };
  const auto worker = noting(patient([&](const OffloadCandidate& block) { return !refused(block.hash); }));
  std::vector<SequenceHash> hashes = names_to(210);  // ten are not cached
  std::vector<SequenceHash> expected(hashes.begin(), hashes.begin() + 200);
  std::erase_if(expected, refused);
  for (const std::uint64_t again : {0, 63, 64, 100, 199})  // named in other pieces, or twice in one
    hashes.insert(hashes.begin() + 130, name(again));
  hashes.insert(hashes.begin(), name(209));
  const OffloadHandle handle = worker->offload(hashes, OffloadOptions{});
  worker->check_invariants();
  worker->drain();
  EXPECT_EQ(*handle.wait(), (OffloadProgress{.total = 216, .arrived = 199, .filtered = 6, .gone = 11}));
  std::ranges::sort(expected);
  EXPECT_EQ(copied_sorted(), expected);
}

TEST_F(OffloadPiecesTest, TheFirstAreCopiedBeforeThePolicySawTheLast) {
  cache(0, 200);
  std::uint64_t seen = 0;
  const auto worker = noting({.full_batch = 1, .policy = [&](const OffloadCandidate&) {
                                if (++seen == 2 * kPiece) {
                                  const MutexLock lock(mu_);
                                  while (copied_.empty()) begun_.wait(mu_);
                                }
                                return true;
                              }});
  EXPECT_EQ(worker->offload(names_to(200), OffloadOptions{}).wait()->arrived, 200u);
  EXPECT_EQ(seen, 200u);
}

TEST_F(OffloadPiecesTest, EveryBlockWaitsForItsOwnFence) {
  cache(0, 200);
  const auto worker = noting({.queue = {.on_deck = kBlocks}, .batch_blocks = kBlocks, .full_batch = 1});
  std::vector<block::Fence> after;
  std::vector<block::FenceSignal> signals;
  for (std::uint64_t i = 0; i < 200; ++i) {
    auto [fence, signal] = block::Fence::create();
    after.push_back(fence);
    signals.push_back(std::move(signal));
  }
  std::vector<SequenceHash> hashes = names_to(200);
  hashes[150] = name(10);  // a name that was given keeps its first fence
  const OffloadHandle handle = worker->offload(hashes, {.after = after});
  std::vector<SequenceHash> expected;
  for (const std::uint64_t i : {199, 128, 64, 10, 63}) {
    std::move(signals[i]).signal();
    worker->drain();
    expected.push_back(name(i));
    EXPECT_EQ(copied(), expected);
  }
  std::move(signals[70]).fail();
  signals.clear();  // the rest is abandoned
  EXPECT_EQ(handle.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(handle.progress(), (OffloadProgress{.total = 200, .arrived = 6, .failed = 194}));
}

TEST_F(OffloadPiecesTest, ADeadlineThatHasPassedEndsEveryPiece) {
  cache(0, 200);
  ManualClock clock;
  OffloadWorkerOptions options = patient();
  options.clock = &clock;
  const auto worker = noting(options);
  const OffloadHandle late = worker->offload(names_to(200), {.deadline = clock.now()});
  EXPECT_EQ(late.progress(), (OffloadProgress{.total = 200, .late = 200}));
  EXPECT_EQ(late.wait().error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(worker->counters().queue.on_deck, 0u);
  worker->check_invariants();
  const OffloadHandle again = worker->offload(names_to(200), OffloadOptions{});
  worker->drain();
  EXPECT_EQ(again.wait()->arrived, 200u);
}

TEST_F(OffloadPiecesTest, WhatIsWithdrawnBetweenTwoPiecesStaysAway) {
  cache(0, 200);
  OffloadWorker* that = nullptr;
  std::uint64_t seen = 0;
  const auto worker = noting(patient([&](const OffloadCandidate&) {
    if (++seen == kPiece + 1) that->withdraw(names({0, 63, 64, 150}));  // two are offered, two are not yet
    return true;
  }));
  that = worker.get();
  const OffloadHandle handle = worker->offload(names_to(200), OffloadOptions{});
  worker->check_invariants();
  worker->drain();
  EXPECT_EQ(*handle.wait(), (OffloadProgress{.total = 200, .arrived = 198, .cancelled = 2}));
  EXPECT_EQ(std::ranges::count(copied(), name(0)) + std::ranges::count(copied(), name(63)), 0);
}

TEST_F(OffloadPiecesTest, NothingIsAcceptedAfterAShutdownBetweenTwoPieces) {
  cache(0, 200);
  OffloadWorker* that = nullptr;
  std::uint64_t seen = 0;
  const auto worker = noting(patient([&](const OffloadCandidate&) {
    if (++seen == 2 * kPiece + 1) {
      EXPECT_EQ(that->shut_down(), 2 * kPiece);
    }
    return true;
  }));
  that = worker.get();
  const OffloadHandle handle = worker->offload(names_to(200), OffloadOptions{});
  EXPECT_EQ(*handle.wait(), (OffloadProgress{.total = 200, .cancelled = 200}));
  worker->suggest(names_to(200), 90);
  worker->check_invariants();
  worker->drain();
  EXPECT_TRUE(copied().empty());
  EXPECT_EQ(worker->counters().queue.on_deck + worker->counters().queue.waiting, 0u);
}

TEST_F(OffloadPiecesTest, EachBlockHasThePriorityOfItsRetentionUnlessTheCallHasOne) {
  cache(0, 4);
  ASSERT_TRUE(above_manager_.set_retention(name(1), {.priority = 90}));
  ASSERT_TRUE(above_manager_.set_retention(name(2), {.priority = 10}));
  ASSERT_TRUE(above_manager_.set_retention(name(3), {.priority = 95}));
  std::vector<std::uint8_t> asked;
  const auto worker = noting(patient([&](const OffloadCandidate& block) {
    asked.push_back(block.priority);
    return true;
  }));
  EXPECT_TRUE(worker->offload(names({2, 0, 1, 3}), OffloadOptions{}).progress().ended() == 0);
  EXPECT_EQ(asked, (std::vector<std::uint8_t>{10, 35, 90, 95}));
  worker->drain();
  EXPECT_EQ(copied(), names({3, 1, 0, 2}));
  static_cast<void>(worker->offload(names({2, 0, 1, 3, 4}), {.priority = 50}));
  worker->drain();
  EXPECT_EQ(std::vector(asked.end() - 5, asked.end()), std::vector<std::uint8_t>(5, 50));
  const std::vector<SequenceHash> all = copied();
  EXPECT_EQ(std::vector(all.end() - 4, all.end()), names({2, 0, 1, 3}));
}

}  // namespace
}  // namespace ashlar::tiers
