// How blocks come up: states and reasons, calls that share a copy, layers, costs, prefetch, cancel.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/base/random.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "support/watched_executor.h"
#include "tiers/disk/g3_places.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using events::G2;
using events::G3;
using tokens::SequenceHash;

class OnboardingTest : public ::testing::Test {
 protected:
  OnboardingTest() {
    executor_ = std::make_shared<transfer::WatchedExecutor>([this](const transfer::TransferPlan& plan) {
      std::function<void(const transfer::TransferPlan&)> watch;
      {
        const MutexLock lock(mu_);
        watch = watch_;
      }
      if (watch) watch(plan);
      return std::nullopt;
    });
    options_ = KvWorkload::options(folder_.file("g3"), faults_);
    options_.executor = executor_;
    options_.clock = &clock_;
    open();
  }
  ~OnboardingTest() override { watch(nullptr); }
  void open() {
    kv_.reset();
    kv_ = KvBlockManager::create(options_).value();
  }
  void watch(std::function<void(const transfer::TransferPlan&)> what) {
    const MutexLock lock(mu_);
    watch_ = std::move(what);
  }
  static bool into_g1(const transfer::TransferPlan& plan, const KvBlockManager& kv) {
    return &plan.to() == kv.g1_blocks().get();
  }
  // A sequence that is in every tier, and in use nowhere.
  std::vector<SequenceHash> computed(std::uint64_t number, std::size_t blocks,
                                     const RegisterOptions& how = {}) {
    auto hashes = KvWorkload::sequence(number, blocks);
    int wrong = 0;
    {
      const auto table = KvWorkload(*kv_).request(hashes, &wrong, how);
      EXPECT_TRUE(table);
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(kv_->drain());
    return hashes;
  }
  void evict_above_disk() {
    kv_->reset(kG1).value();
    kv_->reset(kG2).value();
  }
  static std::vector<Miss> misses(const OnboardHandle& handle) {
    std::vector<Miss> out;
    for (const BlockOutcome& block : handle.blocks()) out.push_back(block.miss);
    return out;
  }
  void expect_counts_exact() {
    kv_->drain();
    EXPECT_EQ(kv_->g1().available_blocks(), 8u);
    EXPECT_EQ(kv_->g2()->available_blocks(), 12u);
    EXPECT_EQ(kv_->g3()->available_blocks(), 40u);
    kv_->check_invariants();
  }
  // Changes a byte of a block on the disk.
  void damage(const SequenceHash& hash) {
    const auto hold = kv_->g3()->hold(hash).value();
    const std::string bytes = "damaged";
    const int file = ::open(folder_.file("g3").c_str(), O_WRONLY | O_CLOEXEC);
    const std::uint64_t stride = kv_->g1_blocks()->block_bytes();
    EXPECT_EQ(pwrite(file, bytes.data(), bytes.size(),
                     static_cast<off_t>(g3_blocks_at(40) + hold.block_id().value() * stride + 64)),
              static_cast<ssize_t>(bytes.size()));
    close(file);
  }

  ScratchFolder folder_;
  ManualClock clock_;
  std::atomic<int> error_{0};
  std::shared_ptr<ScriptedFaults> faults_ =
      std::make_shared<ScriptedFaults>([this](storage::IoDirection, std::uint64_t, std::uint64_t) {
        return storage::IoVerdict{.error = error_.load()};
      });
  Mutex mu_;
  std::function<void(const transfer::TransferPlan&)> watch_ ASHLAR_GUARDED_BY(mu_);
  std::shared_ptr<transfer::Executor> executor_;
  KvOptions options_;
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_F(OnboardingTest, BlocksArePendingUntilTheyAreHits) {
  const auto hashes = computed(1, 4);
  evict_above_disk();
  Gate gate;
  watch([&](const transfer::TransferPlan&) { gate.pass(); });
  std::vector<SequenceHash> asked = hashes;
  for (const SequenceHash& unknown : KvWorkload::sequence(77, 2)) asked.push_back(unknown);
  const OnboardHandle handle = kv_->onboard_async(asked).value();
  gate.wait_for_somebody();
  const std::vector<BlockOutcome> before = handle.blocks();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(before[i], (BlockOutcome{OnboardState::kPending, Miss::kNone, kG3}));
  EXPECT_EQ(before[4], (BlockOutcome{OnboardState::kMiss, Miss::kUnknown, {}}));
  EXPECT_EQ(before[5], (BlockOutcome{OnboardState::kMiss, Miss::kBehind, {}}));
  EXPECT_FALSE(handle.done());
  EXPECT_EQ(handle.wait_until(clock_.now()).error().code(), ErrorCode::kTimeout);
  gate.open();
  const OnboardTable table = handle.wait().value();
  EXPECT_EQ(table.size(), 4u);
  EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(handle.blocks()[i].state, OnboardState::kHit);
  EXPECT_TRUE(handle.wait()->empty()) << "handed over once";
}

TEST_F(OnboardingTest, CallsForTheSameBlocksShareOneCopy) {
  const auto hashes = computed(1, 4);
  evict_above_disk();
  Gate gate;
  std::atomic<std::uint64_t> blocks{0};
  watch([&](const transfer::TransferPlan& plan) {
    blocks += plan.bytes() / plan.to().block_bytes();
    gate.pass();
  });
  const OnboardHandle one = kv_->onboard_async(hashes).value();
  gate.wait_for_somebody();
  const OnboardHandle two = kv_->onboard_async(std::span(hashes).first(2)).value();
  gate.open();
  const OnboardTable first = one.wait().value();
  const OnboardTable second = two.wait().value();
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(second.size(), 2u);
  EXPECT_EQ(blocks, 8u) << "each to G2 and to G1 once";
  EXPECT_EQ(first[1].block_id(), second[1].block_id());
}

// The first copy begins, and the last one ends, with few blocks; those between are larger.
TEST_F(OnboardingTest, WhatIsInG2ComesInBatchesThatGrowAndShrink) {
  const std::uint64_t bytes = std::uint64_t{256} << 10;
  options_.model.num_layers *= static_cast<std::uint32_t>(bytes / kv_->g1_blocks()->block_bytes());
  options_.g1.block_count = 100;
  options_.g2->block_count = 256;
  options_.g3.reset();
  open();
  ASSERT_EQ(kv_->g1_blocks()->block_bytes(), bytes);
  const auto hashes = KvWorkload::sequence(1, 100);
  {
    auto fresh = kv_->get_mutable_blocks(hashes.size()).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    const auto registered = kv_->register_blocks(std::move(complete)).value();
    ASSERT_TRUE(kv_->drain());
  }
  kv_->reset(kG1).value();
  Mutex mu;
  std::vector<std::uint64_t> batches;
  watch([&](const transfer::TransferPlan& plan) {
    if (!into_g1(plan, *kv_)) return;
    const MutexLock lock(mu);
    batches.push_back(plan.bytes() / bytes);
  });
  EXPECT_EQ(kv_->onboard(hashes).size(), hashes.size());
  watch(nullptr);
  const MutexLock lock(mu);
  EXPECT_EQ(batches, (std::vector<std::uint64_t>{16, 16, 32, 18, 16, 2}));
}

TEST_F(OnboardingTest, CancelGivesBackWhatWasReserved) {
  const auto hashes = computed(1, 4);
  for (const events::TierId below : {kG3, kG2}) {
    evict_above_disk();
    if (below == kG2) {
      EXPECT_TRUE(kv_->prefetch(hashes).value().wait());
    }
    Gate gate;
    watch([&](const transfer::TransferPlan&) { gate.pass(); });
    const OnboardHandle handle = kv_->onboard_async(hashes).value();
    gate.wait_for_somebody();
    EXPECT_LT(below == kG2 ? kv_->g1().available_blocks() : kv_->g2()->available_blocks(),
              below == kG2 ? 8u : 12u);
    handle.cancel();
    gate.open();
    EXPECT_EQ(handle.wait().error().code(), ErrorCode::kCancelled);
    for (const BlockOutcome& block : handle.blocks()) EXPECT_EQ(block.miss, Miss::kCancelled);
    watch(nullptr);
    expect_counts_exact();
    EXPECT_EQ(kv_->onboard(hashes).size(), 4u) << "nothing was lost";
  }
}

TEST_F(OnboardingTest, ACallThatWaitsForAnotherCanBeCancelled) {
  const auto hashes = computed(1, 3);
  evict_above_disk();
  Gate gate;
  watch([&](const transfer::TransferPlan&) { gate.pass(); });
  const OnboardHandle one = kv_->onboard_async(hashes).value();
  gate.wait_for_somebody();
  const OnboardHandle two = kv_->onboard_async(hashes).value();
  two.cancel();
  while (!two.done()) clock_.advance(std::chrono::milliseconds(20));
  EXPECT_EQ(two.wait().error().code(), ErrorCode::kCancelled);
  gate.open();
  EXPECT_EQ(one.wait()->size(), 3u);
  expect_counts_exact();
}

TEST_F(OnboardingTest, ACancelledCallDropsWhatHadArrived) {
  const auto hashes = computed(1, 3);
  const OnboardHandle handle = kv_->onboard_async(hashes).value();
  while (!handle.done()) std::this_thread::yield();
  EXPECT_EQ(kv_->g1().status().active, 3u);
  handle.cancel();
  EXPECT_EQ(kv_->g1().status().active, 0u);
}

TEST_F(OnboardingTest, ADeadlineEndsTheBringing) {
  const auto hashes = computed(1, 3);
  evict_above_disk();
  watch([&](const transfer::TransferPlan&) { clock_.advance(std::chrono::seconds(5)); });
  const OnboardHandle handle =
      kv_->onboard_async(hashes, {.deadline = clock_.now() + std::chrono::seconds(1)}).value();
  EXPECT_TRUE(handle.wait()->empty());
  EXPECT_EQ(misses(handle)[0], Miss::kLate);
  watch(nullptr);
  expect_counts_exact();
}

TEST_F(OnboardingTest, EveryMissHasAReason) {
  const auto hashes = computed(1, 4);
  const auto ask = [&] {
    const OnboardHandle handle = kv_->onboard_async(hashes).value();
    const OnboardTable table = handle.wait().value();
    EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
    return misses(handle);
  };
  evict_above_disk();
  error_ = EIO;
  EXPECT_EQ(ask(), (std::vector{Miss::kFailed, Miss::kBehind, Miss::kBehind, Miss::kBehind}));
  error_ = 0;
  {
    const auto all = kv_->g1().allocate_blocks(7).value();
    EXPECT_EQ(ask(), (std::vector{Miss::kNone, Miss::kNoRoom, Miss::kBehind, Miss::kBehind}));
  }
  evict_above_disk();
  {
    const auto all = kv_->g2()->allocate_blocks(12).value();
    EXPECT_EQ(ask(), (std::vector{Miss::kNoRoom, Miss::kBehind, Miss::kBehind, Miss::kBehind}));
  }
  {
    const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
    damage(hashes[2]);
    EXPECT_EQ(ask(), (std::vector{Miss::kNone, Miss::kNone, Miss::kDamaged, Miss::kBehind}));
  }
  evict_above_disk();
  EXPECT_EQ(ask(), (std::vector{Miss::kNone, Miss::kNone, Miss::kUnknown, Miss::kBehind}));
  const KvStatus status = kv_->status();
  EXPECT_EQ(status.misses[static_cast<std::size_t>(Miss::kDamaged)], 1u);
  EXPECT_EQ(status.misses[static_cast<std::size_t>(Miss::kFailed)], 1u);
  EXPECT_EQ(status.misses[static_cast<std::size_t>(Miss::kNoRoom)], 2u);
  EXPECT_EQ(status.g3->damaged, 1u);
  expect_counts_exact();
}

TEST_F(OnboardingTest, AHitThatIsSlowerThanComputingIsDeclined) {
  const auto hashes = computed(1, 4);
  for (int i = 0; i < 8; ++i) {  // the disk takes a second for each block
    evict_above_disk();
    watch([&](const transfer::TransferPlan& plan) {
      if (plan.from().kind() == StorageKind::kDisk)
        clock_.advance(std::chrono::seconds(plan.bytes() / plan.from().block_bytes()));
    });
    EXPECT_EQ(kv_->onboard(std::span(hashes).first(1 + static_cast<std::size_t>(i) % 4)).size(), 1u + i % 4);
  }
  evict_above_disk();
  const std::vector<TierRun> runs = kv_->find(hashes);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_NEAR(runs[0].seconds, 4, 0.5);
  // Blocks have 4 tokens.
  const OnboardHandle fast = kv_->onboard_async(hashes, {.compute_tokens_per_second = 8}).value();
  EXPECT_TRUE(fast.wait()->empty());
  for (const BlockOutcome& block : fast.blocks()) EXPECT_EQ(block.miss, Miss::kDeclined);
  const OnboardHandle slow = kv_->onboard_async(hashes, {.compute_tokens_per_second = 2}).value();
  EXPECT_EQ(slow.wait()->size(), 4u);
  // What is in memory is not declined with what is on disk.
  kv_->reset(kG1).value();
  const auto longer = KvWorkload::sequence(1, 6);
  kv_->reset(kG2).value();
  EXPECT_TRUE(kv_->prefetch(std::span(hashes).first(2)).value().wait());
  const OnboardHandle mixed = kv_->onboard_async(longer, {.compute_tokens_per_second = 8}).value();
  EXPECT_EQ(mixed.wait()->size(), 2u);
  EXPECT_EQ(misses(mixed), (std::vector{Miss::kNone, Miss::kNone, Miss::kDeclined, Miss::kDeclined,
                                        Miss::kUnknown, Miss::kBehind}));
}

TEST_F(OnboardingTest, LayersCanBeUsedBeforeTheRestIsThere) {
  const auto hashes = computed(1, 4);
  kv_->reset(kG1).value();
  {
    const auto first = kv_->onboard(std::span(hashes).first(1));  // one is in G1 already
  }
  Gate second_layer;
  watch([&](const transfer::TransferPlan& plan) {
    ASSERT_EQ(plan.selection().layers->count, 1u);
    if (plan.selection().layers->first == 1) second_layer.pass();
  });
  const OnboardHandle handle = kv_->onboard_async(hashes, {.by_layer = true}).value();
  const std::vector<block::BlockId> ids = handle.wait_layer(0).value();
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_TRUE(KvWorkload(*kv_).layer_right(ids, hashes, 0));
  EXPECT_FALSE(KvWorkload(*kv_).layer_right(ids, hashes, 1));
  EXPECT_FALSE(handle.done());
  EXPECT_EQ(handle.wait_layer(1, clock_.now()).error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG1, 0, 1}, {kG2, 1, 3}}))
      << "nobody else finds them yet";
  second_layer.open();
  EXPECT_EQ(handle.wait_layer(1).value(), ids);
  EXPECT_TRUE(KvWorkload(*kv_).layer_right(ids, hashes, 1));
  const OnboardTable table = handle.wait().value();
  ASSERT_EQ(table.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(table[i].block_id(), ids[i]);
}

TEST_F(OnboardingTest, AStopRequestCancelsACallThatWaits) {
  const auto hashes = computed(1, 4);
  kv_->reset(kG1).value();
  std::stop_source stop;
  watch([&](const transfer::TransferPlan&) { stop.request_stop(); });
  EXPECT_TRUE(kv_->onboard(hashes, {.stop = stop.get_token()}).empty());
  EXPECT_EQ(kv_->g1().status().active, 0u);
  watch([](const transfer::TransferPlan&) {});
  EXPECT_EQ(kv_->onboard(hashes).size(), 4u);
}

TEST_F(OnboardingTest, LayersAreThoseOfAllBlocks) {
  const auto hashes = computed(1, 8);  // more than G2 brings up at once
  kv_->reset(kG1).value();
  const OnboardHandle handle = kv_->onboard_async(hashes, {.by_layer = true}).value();
  const std::vector<block::BlockId> ids = handle.wait_layer(0).value();
  ASSERT_EQ(ids.size(), 8u);
  EXPECT_TRUE(KvWorkload(*kv_).layer_right(ids, hashes, 0));
  EXPECT_EQ(handle.wait_layer(1).value(), ids);
  EXPECT_TRUE(KvWorkload(*kv_).layer_right(ids, hashes, 1));
  EXPECT_EQ(handle.wait()->size(), 8u);
}

TEST_F(OnboardingTest, ALayerThatWasNotAskedForIsRefused) {
  const auto hashes = computed(1, 3);
  kv_->reset(kG1).value();
  const auto refused = [](const auto& waited, const char* says) {
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(waited.error().message().find(says), std::string::npos) << waited.error();
  };
  const OnboardHandle whole = kv_->onboard_async(hashes).value();
  refused(whole.wait_layer(0), "set OnboardOptions::by_layer");
  EXPECT_EQ(whole.wait()->size(), 3u);
  const OnboardHandle by_layer = kv_->onboard_async(hashes, {.by_layer = true}).value();
  refused(by_layer.wait_layer(2), "layer 2 of blocks with 2 layers");
  EXPECT_EQ(by_layer.wait_layer(1)->size(), 3u);
}

TEST_F(OnboardingTest, ALayerThatDoesNotComeIsAnError) {
  const auto hashes = computed(1, 3);
  kv_->reset(kG1).value();
  Gate gate;
  std::optional<OnboardHandle> handle;
  watch([&](const transfer::TransferPlan& plan) {
    if (plan.selection().layers->first == 1) gate.pass();
  });
  handle = kv_->onboard_async(hashes, {.by_layer = true}).value();
  EXPECT_EQ(handle->wait_layer(0)->size(), 3u);
  gate.wait_for_somebody();
  handle->cancel();
  gate.open();
  EXPECT_EQ(handle->wait_layer(1).error().code(), ErrorCode::kCancelled);
  while (!handle->done()) std::this_thread::yield();
  watch(nullptr);
  expect_counts_exact();
}

TEST_F(OnboardingTest, APrefetchBringsBlocksIntoHostMemory) {
  const auto hashes = computed(1, 4);
  evict_above_disk();
  const OnboardHandle handle = kv_->prefetch(hashes).value();
  EXPECT_TRUE(handle.wait()->empty());
  for (const BlockOutcome& block : handle.blocks()) EXPECT_EQ(block.state, OnboardState::kHit);
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG2, 0, 4}}));
  EXPECT_EQ(kv_->g1().status().reset, 8u);
  expect_counts_exact();
}

TEST_F(OnboardingTest, ABlockWithAnotherSaltIsAMiss) {
  const tokens::SaltFingerprint mine = tokens::salt_fingerprint(tokens::Salt("", "me"));
  const tokens::SaltFingerprint yours = tokens::salt_fingerprint(tokens::Salt("", "you"));
  EXPECT_NE(mine, yours);
  EXPECT_NE(tokens::salt_fingerprint(tokens::Salt("a", "b")),
            tokens::salt_fingerprint(tokens::Salt("b", "a")));
  const auto hashes = computed(1, 3, {.salt = mine});
  const auto ask = [&](const tokens::SaltFingerprint& salt) {
    const OnboardHandle handle = kv_->onboard_async(hashes, {.salt = salt}).value();
    const std::size_t found = handle.wait()->size();
    EXPECT_EQ(misses(handle)[0], found == 3 ? Miss::kNone : Miss::kSaltMismatch);
    return found;
  };
  for (int where = 0; where < 3; ++where) {  // G1, G2, G3
    if (where == 1) kv_->reset(kG1).value();
    if (where == 2) evict_above_disk();
    EXPECT_EQ(ask(yours), 0u);
  }
  open();  // a restart
  EXPECT_EQ(ask(yours), 0u);
  EXPECT_EQ(ask(mine), 3u);
  EXPECT_EQ(ask({}), 3u) << "not compared";
}

TEST_F(OnboardingTest, ABlockThatIsHotAboveIsNotTheNextVictimBelow) {
  const auto hot = computed(1, 1);
  for (std::uint64_t i = 2; i <= 5; ++i) computed(i, 1);
  const auto next = [](const auto& manager) { return manager.eviction_candidates(1).at(0); };
  EXPECT_EQ(next(kv_->g1()), hot[0]);
  EXPECT_EQ(next(*kv_->g2()), hot[0]);
  EXPECT_EQ(next(*kv_->g3()), hot[0]);
  {
    const auto used = kv_->onboard(hot);  // G1 has it; nothing moves
    EXPECT_EQ(used.size(), 1u);
  }
  EXPECT_NE(next(kv_->g1()), hot[0]);
  EXPECT_NE(next(*kv_->g2()), hot[0]);
  EXPECT_NE(next(*kv_->g3()), hot[0]);
}

TEST_F(OnboardingTest, StoppingCancelsWhatIsOnItsWay) {
  const auto hashes = computed(1, 4);
  evict_above_disk();
  Gate gate;
  watch([&](const transfer::TransferPlan&) { gate.pass(); });
  const OnboardHandle running = kv_->onboard_async(hashes).value();
  gate.wait_for_somebody();
  std::vector<OnboardHandle> queued;
  for (int i = 0; i < 4; ++i) queued.push_back(kv_->onboard_async(hashes).value());
  std::thread stopper([&] { EXPECT_TRUE(kv_->shutdown()); });
  while (kv_->onboard_async(hashes)) std::this_thread::yield();  // until it is refused
  gate.open();
  stopper.join();
  EXPECT_EQ(running.wait().error().code(), ErrorCode::kCancelled);
  for (const OnboardHandle& handle : queued) EXPECT_EQ(handle.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(kv_->offload(hashes).error().code(), ErrorCode::kCancelled);
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
