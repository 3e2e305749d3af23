// What broke when somebody tried to break the tiers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "ashlar/testing/event_sinks.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_fixture.h"

namespace ashlar::tiers {
namespace {

using events::kTierId;

class TierBreaksTest : public ::testing::Test {
 protected:
  KvOptions options() const { return KvWorkload::options(folder_.file("g3"), faults_); }
  void open(const KvOptions& options) {
    kv_.reset();
    kv_ = KvBlockManager::create(options).value();
  }
  static std::vector<SequenceHash> sequence(std::uint64_t number, std::size_t blocks) {
    return KvWorkload::sequence(number, blocks);
  }
  void request(const std::vector<SequenceHash>& hashes) {
    int wrong = 0;
    EXPECT_TRUE(KvWorkload(*kv_).request(hashes, &wrong));
    EXPECT_EQ(wrong, 0);
  }

  // After a restart.
  void expect_in_order(const KvOptions& options, const std::vector<SequenceHash>& hashes) {
    open(options);
    testing::EventRecorder recorder;
    kv_->drain_events(recorder);
    std::vector<SequenceHash> stored;
    for (const events::KvEvent& event : recorder.events()) stored.push_back(event.hash);
    EXPECT_EQ(stored, hashes);
  }

  ScratchFolder folder_;
  std::shared_ptr<Gate> gate_;  // holds operations on the file
  std::shared_ptr<ScriptedFaults> faults_ =
      std::make_shared<ScriptedFaults>([this](storage::IoDirection, std::uint64_t, std::uint64_t) {
        if (gate_ != nullptr) gate_->pass();
        return storage::IoVerdict{};
      });
  std::unique_ptr<KvBlockManager> kv_;
};

// ---- who has the file

TEST_F(TierBreaksTest, AFileOfBlocksHasOneManager) {
  open(options());
  EXPECT_EQ(KvBlockManager::create(options()).error().code(), ErrorCode::kNotReady);
  kv_.reset();
  KvOptions twice = options();
  twice.g3->paths = {folder_.file("g3x"), folder_.path() + "/./g3x"};
  twice.g3->faults.clear();
  EXPECT_EQ(KvBlockManager::create(twice).error().code(), ErrorCode::kNotReady);
  open(options());
}

TEST_F(TierBreaksTest, OneOfThoseWhoMakeTheSameFileGetsIt) {
  for (int round = 0; round < 10; ++round) {
    KvOptions same = KvWorkload::options(folder_.file("made" + std::to_string(round)));
    same.g3->faults.clear();
    std::atomic<int> tried{0};
    std::atomic<int> got{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        const auto made = KvBlockManager::create(same);
        if (made) {
          ++got;
        } else {
          EXPECT_EQ(made.error().code(), ErrorCode::kNotReady) << made.error();
        }
        for (++tried; tried < 3;) std::this_thread::yield();
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(got, 1);
    EXPECT_TRUE(KvBlockManager::create(same));
    EXPECT_FALSE(std::filesystem::exists(same.g3->paths[0] + ".new"));
  }
}

// ---- handles, and what is asked for

TEST_F(TierBreaksTest, AHandleWithBlocksMayOutliveTheManager) {
  open(options());
  const auto hashes = sequence(1, 4);
  request(hashes);
  const OnboardHandle handle = kv_->onboard_async(hashes).value();
  while (!handle.done()) std::this_thread::yield();
  kv_.reset();
  EXPECT_EQ(handle.wait().error().code(), ErrorCode::kCancelled);
}

TEST_F(TierBreaksTest, PreconditionsThatFitNoBlocksAreRefused) {
  open(options());
  auto fresh = kv_->get_mutable_blocks(3).value();
  block::BlockList<block::CompleteBlock<G1>> complete;
  for (std::size_t i = 0; i < 3; ++i)
    complete.push_back(std::move(fresh[i]).stage(sequence(1, 3)[i], KvReady::asserted_by_caller()));
  const block::Fence passed = block::Fence::passed_already();
  auto registered = kv_->register_blocks(std::move(complete), {.after = {passed, passed}});
  ASSERT_FALSE(registered);
  EXPECT_EQ(registered.error().error.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(kv_->find(sequence(1, 3)).empty());
}

// Nobody can know any more whether its bytes are whole.
TEST_F(TierBreaksTest, ABlockWhosePreconditionIsAbandonedGoesDownForNobody) {
  KvOptions slow = options();
  slow.g1.block_count = slow.g2->block_count = 64;
  slow.to_g2.trigger = Trigger::kOnCall;
  slow.to_g2.worker.max_wait = Clock::Duration::max();
  open(slow);
  const auto hashes = sequence(1, 4);
  request(hashes);
  auto [never, signal] = block::Fence::create();
  const OffloadHandle hopeless = kv_->offload(hashes, {.after = {never}}).value();
  const OffloadHandle plain = kv_->offload(hashes).value();
  {
    const block::FenceSignal dropped = std::move(signal);
  }
  EXPECT_FALSE(plain.wait());
  EXPECT_FALSE(hopeless.wait());
  EXPECT_EQ(plain.progress().failed, 4u);
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
  const OffloadHandle anew = kv_->offload(hashes).value();
  EXPECT_TRUE(kv_->drain());
  EXPECT_EQ(anew.wait().value().arrived, 4u) << "offered anew, without it";
}

// The fence belongs to the block that was registered with it, not to its name.
TEST_F(TierBreaksTest, ABlockThatIsNeverWrittenIsGoneAndItsSuccessorIsNot) {
  KvOptions on_call = options();
  on_call.to_g2.trigger = Trigger::kOnCall;
  on_call.g3->survive_power_loss = false;
  open(on_call);
  const auto hashes = sequence(1, 3);
  for (int i = 0; i < 2; ++i) {
    auto [never, signal] = block::Fence::create();
    int wrong = 0;
    EXPECT_TRUE(KvWorkload(*kv_).request(hashes, &wrong, {.after = {never}}));
    const OffloadHandle waits = kv_->offload(hashes).value();
    std::move(signal).fail();
    EXPECT_EQ(waits.wait().error().code(), ErrorCode::kCancelled) << "its writer died";
    EXPECT_EQ(waits.progress().failed, 3u);
    EXPECT_EQ(kv_->offload(hashes).value().wait().value().gone, 3u);
    EXPECT_TRUE(kv_->find(hashes).empty());
    request(hashes);  // computed again, without a precondition
    EXPECT_EQ(kv_->offload(hashes).value().wait().value().arrived, 3u);
    ASSERT_TRUE(kv_->reset_blocks(hashes));
  }
}

TEST_F(TierBreaksTest, ADuplicateChangesNoPrecondition) {
  KvOptions on_call = options();
  on_call.to_g2.trigger = Trigger::kOnCall;
  on_call.g3->survive_power_loss = false;
  open(on_call);
  const auto hashes = sequence(1, 1);
  const auto compute = [&](const RegisterOptions& how) {
    auto fresh = kv_->get_mutable_blocks(1).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    complete.push_back(std::move(fresh[0]).stage(hashes[0], KvReady::asserted_by_caller()));
    ASSERT_TRUE(kv_->register_blocks(std::move(complete), how));
  };
  auto [written, signal] = block::Fence::create();
  compute({.after = {written}});
  compute({});  // a duplicate, whose block goes back
  const OffloadHandle waits = kv_->offload(hashes).value();
  kv_->drain();
  EXPECT_FALSE(waits.done()) << "the block that is found is still being written";
  std::move(signal).signal();
  EXPECT_EQ(waits.wait()->arrived, 1u);
  ASSERT_TRUE(kv_->reset_blocks(hashes));
  compute({});
  auto [never, its_signal] = block::Fence::create();
  compute({.after = {never}});
  EXPECT_EQ(kv_->offload(hashes).value().wait()->arrived, 1u) << "the block that is found was whole before";
  std::move(its_signal).fail();
}

TEST_F(TierBreaksTest, ACancelledBlockWaitsForItsPreconditionNoMore) {
  KvOptions on_call = options();
  on_call.to_g2.trigger = Trigger::kOnCall;
  open(on_call);
  request(sequence(1, 4));
  auto [never, signal] = block::Fence::create();
  const OffloadHandle handle = kv_->offload(sequence(1, 4), {.after = {never}}).value();
  EXPECT_EQ(kv_->status().to_g2->blocked, 4u);
  handle.cancel();
  EXPECT_EQ(handle.wait().value().cancelled, 4u);
  while (kv_->status().to_g2->blocked != 0) std::this_thread::yield();
}

TEST_F(TierBreaksTest, DrainEndsWhenTheRestIsCancelled) {
  KvOptions slow = options();
  slow.to_g2.trigger = Trigger::kOnCall;
  slow.to_g2.worker.bytes_per_second = 1;
  open(slow);
  const auto hashes = sequence(1, 6);
  request(hashes);
  ASSERT_TRUE(kv_->offload(std::span(hashes).first(1)).value().wait());
  const OffloadHandle rest = kv_->offload(std::span(hashes).last(5)).value();
  std::thread drains([&] { EXPECT_TRUE(kv_->drain()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  rest.cancel();
  drains.join();
}

TEST_F(TierBreaksTest, AWorkerMayWaitForAFullBatchForEver) {
  KvOptions patient = options();
  patient.g1.block_count = patient.g2->block_count = 64;
  patient.to_g2.worker.max_wait = Clock::Duration::max();
  open(patient);
  request(sequence(1, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
  EXPECT_TRUE(kv_->drain(Clock::TimePoint::max()));
  EXPECT_EQ(kv_->status().to_g2->arrived, 3u);
}

TEST_F(TierBreaksTest, WhatLooksAheadAgainAndAgainKeepsNothing) {
  KvOptions lazy = options();
  lazy.g1.block_count = lazy.g2->block_count = 128;
  lazy.to_g2.trigger = Trigger::kNearEviction;
  lazy.to_g2.look_ahead = 128;
  lazy.to_g2.worker.max_wait = Clock::Duration::max();
  open(lazy);
  request(sequence(1, 4));
  for (int i = 0; i < 100; ++i) kv_->look_ahead();
  EXPECT_EQ(kv_->status().to_g2->queue.on_deck, 4u);
  // The only call that wants to know of them ends at once; they go all the same, each once.
  const OffloadHandle handle = kv_->offload(sequence(1, 4)).value();
  handle.cancel();
  EXPECT_EQ(handle.progress().cancelled, 4u);
  EXPECT_EQ(kv_->status().to_g2->queue.on_deck, 4u);
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 4u);
}

TEST_F(TierBreaksTest, ANameThatHasABlockOfAnotherSaltIsRefused) {
  open(options());
  const auto hashes = sequence(1, 2);
  const auto compute = [&](std::uint64_t salt) {
    auto fresh = kv_->get_mutable_blocks(2).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < 2; ++i)
      complete.push_back(std::move(fresh[i]).stage(hashes[i], KvReady::asserted_by_caller()));
    return kv_->register_blocks(std::move(complete),
                                {.salt = tokens::SaltFingerprint::from_bits(salt, salt)});
  };
  EXPECT_TRUE(compute(1));
  EXPECT_TRUE(compute(1));
  EXPECT_EQ(compute(2).error().error.code(), ErrorCode::kCorruption);
  EXPECT_TRUE(compute(0)) << "not known";
}

TEST_F(TierBreaksTest, ALayerThatWasToldIsNotTakenBackInSilence) {
  KvOptions wide = options();
  wide.g1.block_count = wide.g2->block_count = 16;
  open(wide);
  const auto hashes = sequence(1, 8);
  request(hashes);
  kv_->drain();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(kv_->reset(kTierId<G1>));
    const auto deadline = Clock::real().now() + std::chrono::microseconds(i);
    const OnboardHandle handle = kv_->onboard_async(hashes, {.deadline = deadline, .by_layer = true}).value();
    const auto first = handle.wait_layer(0);
    static_cast<void>(handle.wait());
    const auto second = handle.wait_layer(1);
    if (!first || !second) continue;
    EXPECT_LE(first->size(), second->size());
  }
}

// ---- for good

TEST_F(TierBreaksTest, WhatIsOnItsWayDownIsRemovedToo) {
  gate_ = std::make_shared<Gate>();
  gate_->open();
  open(options());
  const auto hashes = sequence(1, 4);
  gate_ = std::make_shared<Gate>();
  request(hashes);
  gate_->wait_for_somebody();  // one is being written to the file
  std::atomic<bool> removed{false};
  std::thread resets([&] {
    EXPECT_TRUE(kv_->reset_blocks(hashes));
    removed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(removed);
  gate_->open();
  resets.join();
  EXPECT_TRUE(kv_->drain());
  EXPECT_TRUE(kv_->find(hashes).empty());
  open(options());
  for (const SequenceHash& hash : hashes) EXPECT_TRUE(kv_->find(std::span(&hash, 1)).empty());
}

TEST_F(TierBreaksTest, NothingIsRemovedFromUnderThoseWhoBringItUp) {
  open(options());
  const auto hashes = sequence(1, 4);
  for (int round = 0; round < 20; ++round) {
    request(hashes);
    kv_->drain();
    ASSERT_TRUE(kv_->reset(kTierId<G1>));
    ASSERT_TRUE(kv_->reset(kTierId<G2>));
    const OnboardHandle handle = kv_->onboard_async(hashes).value();
    ASSERT_TRUE(kv_->reset_blocks(hashes));
    {
      const auto table = handle.wait().value();
      EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
    }
    ASSERT_TRUE(kv_->reset(kTierId<G1>));
    EXPECT_TRUE(kv_->find(hashes).empty());
  }
}

TEST_F(TierBreaksTest, AVolumeThatIsOnlyReadIsAskedBeforeAResetSaysThatAllIsGone) {
  KvOptions with_volumes = options();
  with_volumes.g3.reset();
  with_volumes.g4 = VolumeShape{.block_count = 16};
  const VolumeDescriptor folder{.name = "v", .kind = "directory", .location = folder_.file("volume")};
  std::filesystem::create_directory(folder.location);
  const auto hashes = sequence(1, 4);
  open(with_volumes);
  ASSERT_TRUE(kv_->register_volume(folder));
  request(hashes);
  ASSERT_TRUE(kv_->drain());
  open(with_volumes);
  ASSERT_TRUE(kv_->register_volume(folder, {.write = false}));
  EXPECT_EQ(kv_->reset_blocks(hashes).error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(kv_->reset_blocks(sequence(2, 4)));
}

TEST_F(TierBreaksTest, AParentIsStoredFirstByARestartWithSeveralFiles) {
  KvOptions striped = options();
  striped.g3->paths = {folder_.file("a"), folder_.file("b"), folder_.file("c")};
  striped.g3->faults.clear();
  striped.g3->survive_power_loss = false;
  striped.event_capacity = 4096;
  open(striped);
  const std::vector<SequenceHash> other = sequence(2, 1);
  for (int i = 0; i < 20; ++i) {  // always in the first file
    request(other);
    kv_->drain();
    ASSERT_TRUE(kv_->reset_blocks(other));
  }
  const std::vector<SequenceHash> hashes = sequence(1, 6);
  request(hashes);
  kv_->drain();
  expect_in_order(striped, hashes);
  // One in the middle is stored again, after its children.
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).subspan(2, 1)));
  request(hashes);
  kv_->drain();
  expect_in_order(striped, hashes);
}

// ---- room

TEST_F(TierBreaksTest, APrefixComesUpAsFarAsThereIsRoomHoweverSmallTheTiers) {
  struct Case {
    std::uint32_t g1, in_use, g2, blocks;
  };
  for (const Case& one : {Case{8, 0, 1, 6}, Case{8, 0, 2, 6}, Case{8, 3, 16, 8}, Case{6, 1, 12, 12},
                          Case{7, 0, 8, 12}, Case{1, 0, 1, 3}}) {
    KvOptions wide = options();
    wide.g1.block_count = wide.g2->block_count = 16;
    open(wide);
    const auto hashes = sequence(1, one.blocks);
    request(hashes);
    kv_->drain();
    KvOptions small = options();
    small.g1.block_count = one.g1;
    small.g2->block_count = one.g2;
    open(small);
    const auto used = kv_->get_mutable_blocks(one.in_use).value();
    const auto table = kv_->onboard(hashes);
    EXPECT_EQ(table.size(), std::min(one.blocks, one.g1 - one.in_use))
        << one.g1 << " blocks in G1, " << one.g2 << " in G2";
    EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
  }
}

using KeptArrivalsTest = TierTest;

TEST_F(KeptArrivalsTest, WhatHasArrivedIsInUseUntilTheMoveGoes) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  std::vector<block::Hold> holds;
  for (std::uint64_t i = 0; i < 3; ++i) holds.push_back(g1_->hold(name(i)).value());
  auto running = mover_->begin(*g1_, *g2_, std::move(holds), {.keep = true});
  EXPECT_EQ(running->finish().count(Moved::kArrived), 3u);
  EXPECT_EQ(g2_manager_->reset_inactive_pool(), 0u);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(right(*g2_, i));
  running.reset();
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
