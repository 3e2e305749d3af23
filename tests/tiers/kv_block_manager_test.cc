#include "ashlar/tiers/kv_block_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/event_sinks.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "support/until_seen.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using events::G2;
using events::G3;
using tokens::SequenceHash;

class KvBlockManagerTest : public ::testing::Test {
 protected:
  KvOptions options() const { return KvWorkload::options(folder_.file("g3"), faults_); }
  void open() { kv_ = KvBlockManager::create(options()).value(); }

  static std::vector<SequenceHash> sequence(std::uint64_t number, std::size_t blocks) {
    return KvWorkload::sequence(number, blocks);
  }
  std::optional<KvWorkload::Table> request(const std::vector<SequenceHash>& hashes) {
    int wrong = 0;
    auto table = KvWorkload(*kv_).request(hashes, &wrong);
    EXPECT_EQ(wrong, 0);
    return table;
  }
  void expect_right(const KvWorkload::Table& table, const std::vector<SequenceHash>& hashes) {
    EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
  }
  void expect_counts_exact() {
    kv_->drain();
    EXPECT_EQ(kv_->g1().available_blocks(), 8u);
    EXPECT_EQ(kv_->g2()->available_blocks(), 12u);
    const block::PoolStatus g3 = kv_->g3()->status();
    EXPECT_EQ(g3.available() + g3.owned, 40u);  // blocks whose headers could not be cleared are set aside
    kv_->check_invariants();
  }

  ScratchFolder folder_;
  ManualClock clock_;
  Gate gate_;
  std::atomic<int> error_{0};
  std::shared_ptr<ScriptedFaults> faults_ =
      std::make_shared<ScriptedFaults>([this](storage::IoDirection, std::uint64_t, std::uint64_t) {
        return storage::IoVerdict{.error = error_.load()};
      });
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_F(KvBlockManagerTest, BlocksGoDownByThemselvesAndComeUpWhenTheyAreNeeded) {
  open();
  const auto hashes = sequence(1, 5);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG1, 0, 5}}));
  EXPECT_EQ(kv_->reset(kG1).value(), 5u);
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG2, 0, 5}}));
  EXPECT_EQ(kv_->reset(kG2).value(), 5u);
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG3, 0, 5}}));
  {
    const auto table = kv_->onboard(hashes);
    ASSERT_EQ(table.size(), 5u);
    expect_right(table, hashes);
  }
  const KvStatus status = kv_->status();
  EXPECT_EQ(status.g3->hits, 5u);
  EXPECT_EQ(status.g3->onboarded, 5u);
  EXPECT_EQ(status.missed(), 5u);
  expect_counts_exact();
}

TEST_F(KvBlockManagerTest, RunsThatAlternateBetweenTiersComeUpWhole) {
  open();
  const auto hashes = sequence(1, 6);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  // 0 in G1, 1 and 2 in G3, 3 in G2, 4 in G3, 5 nowhere.
  kv_->reset(kG1).value();
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).subspan(5, 1)));
  for (const std::size_t i : {0, 1, 2, 4}) {
    auto found = kv_->g2()->scan_matches(std::span(hashes).subspan(i, 1), false);
    if (!found.empty()) found.begin()->second.set_reset_on_release(true);
  }
  {
    const auto first = kv_->onboard(std::span(hashes).first(1));
  }
  {
    auto again = kv_->g2()->scan_matches(std::span(hashes).first(1), false);
    if (!again.empty()) again.begin()->second.set_reset_on_release(true);
  }
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG1, 0, 1}, {kG3, 1, 2}, {kG2, 3, 1}, {kG3, 4, 1}}));
  const auto table = kv_->onboard(hashes);
  ASSERT_EQ(table.size(), 5u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, ALongPrefixComesUpAsFarAsThereIsRoom) {
  open();
  std::vector<SequenceHash> hashes = sequence(1, 16);
  for (std::size_t n = 4; n <= 16; n += 4)  // G1 has 8 blocks
    if (n <= 8) {
      const auto table = request({hashes.begin(), hashes.begin() + static_cast<std::ptrdiff_t>(n)});
    }
  kv_->drain();
  kv_->reset(kG1).value();
  auto other = kv_->g1().allocate_blocks(3).value();
  const auto table = kv_->onboard(std::span(hashes).first(8));
  EXPECT_GE(table.size(), 4u);
  EXPECT_LE(table.size(), 5u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, AWarmRestartFindsWhatWasOnDisk) {
  open();
  const auto hashes = sequence(3, 6);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).last(1)));
  kv_.reset();
  open();
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG3, 0, 5}}));
  const auto table = kv_->onboard(hashes);
  ASSERT_EQ(table.size(), 5u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, ResetForgetsATierForGood) {
  open();
  const auto hashes = sequence(3, 4);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  EXPECT_EQ(kv_->reset(kG3).value(), 4u);
  kv_.reset();
  open();
  EXPECT_TRUE(kv_->find(hashes).empty());
  const auto no_g4 = kv_->reset(events::kTierId<events::G4>);
  EXPECT_EQ(no_g4.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(no_g4.error().message(), "there is no G4 to reset; set KvOptions::g4 to have it");
}

TEST_F(KvBlockManagerTest, ADiskThatFailsIsAMissAndNothingWorse) {
  open();
  const auto hashes = sequence(1, 4);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  kv_->reset(kG1).value();
  kv_->reset(kG2).value();
  error_ = EIO;
  EXPECT_TRUE(kv_->onboard(hashes).empty());
  {
    const auto other = request(sequence(2, 3));
  }
  kv_->drain();
  EXPECT_GE(kv_->status().to_g3->failed, 3u);
  error_ = 0;
  const auto table = kv_->onboard(hashes);
  EXPECT_EQ(table.size(), 4u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, OptionsAreChecked) {
  const auto refused = [](const KvOptions& options, const char* says) {
    const auto made = KvBlockManager::create(options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().message(), ::testing::HasSubstr(says));
  };
  KvOptions bad = options();
  bad.g1.block_count = 0;
  refused(bad, "g1.block_count is 0");
  bad = options();
  bad.g2.reset();
  refused(bad, "g3 and g4 need g2");
  bad = options();
  bad.keys = {};
  refused(bad, "keys is not set");
  bad = options();
  bad.block_size = 16;
  refused(bad, ("differ: " + std::to_string(bad.model.block_size) + " and 16").c_str());
  bad = options();
  bad.g3->paths.clear();
  refused(bad, "g3 needs blocks and a path; it has block_count 40 and 0 paths");
  bad = options();
  bad.g3->faults.clear();
  bad.g3->paths = {"/a", "/b", "/a"};
  refused(bad, "g3.paths names /a twice");
  bad.g3->block_count = 2;
  refused(bad, "3 paths, block_count 2");
  bad = options();
  bad.g3->faults.resize(3);
  refused(bad, "it has 3 for 1 paths");
  bad = options();
  bad.scales = {bad.model};
  bad.scales[0].num_layers = 7;
  refused(bad, "scales[0] has 4 and 7, model 4 and ");
  bad = options();
  bad.to_g3.trigger = Trigger::kNearEviction;
  bad.to_g3.look_ahead = 0;
  refused(bad, "to_g3.look_ahead is 0");
  bad = options();
  bad.to_g2.worker.policy = nullptr;
  refused(bad, "policy is empty");
}

TEST_F(KvBlockManagerTest, RunningOutOfMemoryNamesTheBlockCounts) {
  struct NoMemory final : storage::Allocator {
    StorageKind kind() const noexcept override { return StorageKind::kSystem; }
    Result<std::shared_ptr<storage::Storage>> allocate(std::uint64_t, std::uint64_t) override {
      throw std::bad_alloc();
    }
  };
  KvOptions huge = options();
  huge.g2->allocator = std::make_shared<NoMemory>();
  const auto made = KvBlockManager::create(huge);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(made.error().message(), ::testing::HasSubstr("g1 8, g2 12, g3 40, g4 0; lower them"));
}

TEST_F(KvBlockManagerTest, OneTierAloneWorks) {
  KvOptions alone = options();
  alone.g2.reset();
  alone.g3.reset();
  kv_ = KvBlockManager::create(alone).value();
  const auto hashes = sequence(1, 3);
  {
    const auto table = request(hashes);
  }
  EXPECT_EQ(kv_->onboard(hashes).size(), 3u);
  EXPECT_EQ(kv_->offload(hashes).error().code(), ErrorCode::kUnsupported);
  const auto to_g3 = kv_->offload_to(kG3, hashes);
  EXPECT_EQ(to_g3.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(to_g3.error().message(), "there is no G3 to offload to; set KvOptions::g3 to have it");
  EXPECT_EQ(kv_->reset(kG2).error().code(), ErrorCode::kUnsupported);
}

TEST_F(KvBlockManagerTest, WriteBackTakesDownWhatIsNearEviction) {
  KvOptions lazy = options();
  lazy.to_g2 = {.trigger = Trigger::kNearEviction, .look_ahead = 3};
  lazy.to_g3 = {.trigger = Trigger::kNearEviction, .look_ahead = 2};
  kv_ = KvBlockManager::create(lazy).value();
  const auto first = sequence(1, 4);
  {
    const auto table = request(first);
  }
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u) << "G1 has 4 empty blocks";
  const auto second = sequence(2, 3);
  {
    const auto table = request(second);
  }
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 2u) << "1 empty block and 2 victims are the next 3";
  EXPECT_EQ(kv_->find(first).size(), 1u);
  for (std::uint64_t i = 3; i < 8; ++i) {
    const auto table = request(sequence(i, 2));
    kv_->drain();
  }
  EXPECT_EQ(kv_->status().g1.evictions, 4 + 3 + 5 * 2 - 8u);
  for (std::uint64_t i = 1; i < 8; ++i) {
    const auto hashes = sequence(i, i == 1 ? 4 : i == 2 ? 3 : 2);
    std::size_t found = 0;
    for (const TierRun& run : kv_->find(hashes)) found += run.count;
    EXPECT_EQ(found, hashes.size()) << "written back before it was evicted: " << i;
  }
  EXPECT_GT(kv_->status().to_g3->arrived, 0u);
  expect_counts_exact();
}

TEST_F(KvBlockManagerTest, OnCallMeansOnCall) {
  KvOptions quiet = options();
  quiet.to_g2.trigger = Trigger::kOnCall;
  quiet.to_g3.trigger = Trigger::kOnCall;
  kv_ = KvBlockManager::create(quiet).value();
  const auto hashes = sequence(1, 3);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
  EXPECT_EQ(kv_->offload(std::span(hashes).first(2)).value().wait()->arrived, 2u);
  EXPECT_EQ(kv_->offload_to(kG3, hashes).value().wait()->arrived, 2u);
  EXPECT_EQ(kv_->offload_to(events::kTierId<events::G4>, hashes).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(kv_->offload(hashes, {.after = {block::Fence::passed_already(), block::Fence::passed_already()}})
                .error()
                .code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(KvBlockManagerTest, BlocksWaitForWhatComputesThem) {
  open();
  auto [written, signal] = block::Fence::create();
  int wrong = 0;
  const auto table = KvWorkload(*kv_).request(sequence(1, 3), &wrong, {.after = {written}});
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
  EXPECT_EQ(kv_->status().to_g2->blocked, 3u);
  std::move(signal).signal();
  while (kv_->status().to_g3->arrived < 3) std::this_thread::yield();
  EXPECT_EQ(kv_->status().to_g2->blocked, 0u);
}

TEST_F(KvBlockManagerTest, ShutdownTakesDownWhatWaits) {
  open();
  const auto hashes = sequence(1, 6);
  {
    const auto table = request(hashes);
  }
  EXPECT_TRUE(kv_->shutdown());
  EXPECT_EQ(kv_->onboard_async(hashes).error().code(), ErrorCode::kCancelled);
  {
    const auto late = request(sequence(2, 1));
  }
  kv_->drain();
  kv_.reset();
  open();
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG3, 0, 6}}));
  EXPECT_TRUE(kv_->find(sequence(2, 1)).empty()) << "it came after the shutdown";
}

TEST_F(KvBlockManagerTest, AShutdownThatIsLateSaysWhatItGaveUp) {
  ManualClock& clock = clock_;
  KvOptions stuck = options();
  Gate& gate = gate_;
  stuck.clock = &clock;
  stuck.g3->faults = {std::make_shared<ScriptedFaults>(
      [&](storage::IoDirection direction, std::uint64_t offset, std::uint64_t) {
        if (direction == storage::IoDirection::kWrite && offset != 0) gate.pass();
        return storage::IoVerdict{};
      })};
  kv_ = KvBlockManager::create(stuck).value();
  {
    const auto table = request(sequence(1, 6));
  }
  const Clock::TimePoint until = clock.now() + std::chrono::seconds(1);
  std::thread ticking([&] {
    gate.wait_for_somebody();
    clock.advance(std::chrono::seconds(2));
  });
  const Result<void> done = kv_->shutdown(until);
  ticking.join();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kTimeout);
  EXPECT_THAT(done.error().message(), ::testing::HasSubstr("dropped"));
  gate.open();
  kv_.reset();
  open();
  const auto table = kv_->onboard(sequence(1, 6));
  expect_right(table, sequence(1, 6));
}

// The header of a block that is being written while it is removed must not outlive the removal.
TEST_F(KvBlockManagerTest, RemovingABlockWaitsForItsCopies) {
  KvOptions slow = options();
  Gate& gate = gate_;
  std::atomic<bool> gated{false};
  slow.g3->faults = {
      std::make_shared<ScriptedFaults>([&](storage::IoDirection direction, std::uint64_t, std::uint64_t) {
        if (gated && direction == storage::IoDirection::kWrite) gate.pass();
        return storage::IoVerdict{};
      })};
  kv_ = KvBlockManager::create(slow).value();
  gated = true;
  const auto hashes = sequence(1, 4);
  {
    const auto table = request(hashes);
  }
  gate.wait_for_somebody();
  std::thread remover([&] { EXPECT_TRUE(kv_->reset_blocks(hashes)); });
  std::thread opener([&] { gate.open(); });
  remover.join();
  opener.join();
  EXPECT_TRUE(kv_->find(hashes).empty());
  kv_->drain();
  EXPECT_TRUE(kv_->find(hashes).empty()) << "nothing came after";
  expect_counts_exact();
  kv_.reset();
  gated = false;
  open();
  EXPECT_TRUE(kv_->find(hashes).empty()) << "nor with a restart";
}

TEST_F(KvBlockManagerTest, PreconditionsHoldForWhoeverOffersTheBlock) {
  for (const Trigger trigger : {Trigger::kOnCall, Trigger::kNearEviction, Trigger::kOnArrival}) {
    KvOptions lazy = options();
    lazy.to_g2 = {.trigger = trigger, .look_ahead = 8};
    kv_ = KvBlockManager::create(lazy).value();
    auto [written, signal] = block::Fence::create();
    int wrong = 0;
    const auto hashes = sequence(1, 3);
    {
      const auto table = KvWorkload(*kv_).request(hashes, &wrong, {.after = {written}});
    }
    kv_->look_ahead();
    const OffloadHandle handle = kv_->offload(hashes).value();
    kv_->drain();
    EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
    EXPECT_FALSE(handle.done());
    std::move(signal).signal();
    EXPECT_EQ(handle.wait()->arrived, 3u);
    kv_->drain();
    kv_.reset();
    std::filesystem::remove(folder_.file("g3"));
  }
}

TEST_F(KvBlockManagerTest, AnOffloadEndsWithItsCancelOrItsDeadlineWhateverItWaitsFor) {
  KvOptions lazy = options();
  lazy.to_g2.trigger = Trigger::kOnCall;
  kv_ = KvBlockManager::create(lazy).value();
  auto [written, written_signal] = block::Fence::create();
  const auto [mine, my_signal] = block::Fence::create();
  int wrong = 0;
  const auto hashes = sequence(1, 3);
  {
    const auto table = KvWorkload(*kv_).request(hashes, &wrong, {.after = {written}});
  }
  const OffloadHandle cancelled = kv_->offload(hashes, {.after = {mine}}).value();
  cancelled.cancel();
  EXPECT_EQ(cancelled.wait()->cancelled, 3u);
  const OffloadHandle late = kv_->offload(hashes, {.after = {mine}, .deadline = Clock::real().now()}).value();
  EXPECT_EQ(late.wait().error().code(), ErrorCode::kTimeout);
  EXPECT_EQ(late.progress().late, 3u);
  EXPECT_EQ(kv_->status().to_g2->blocked, 0u) << "nobody waits any more";
  std::move(written_signal).signal();
}

TEST_F(KvBlockManagerTest, DeadlinesAreByTheClockOfTheManager) {
  ManualClock clock;
  KvOptions lazy = options();
  lazy.to_g2.trigger = Trigger::kOnCall;
  lazy.to_g2.worker.max_wait = {};
  lazy.clock = &clock;
  kv_ = KvBlockManager::create(lazy).value();
  int wrong = 0;
  const auto hashes = sequence(1, 3);
  {
    const auto table = KvWorkload(*kv_).request(hashes, &wrong);
  }
  const OffloadHandle handle =
      kv_->offload(hashes, {.deadline = clock.now() + std::chrono::seconds(1)}).value();
  const Result<OffloadProgress> done = handle.wait();
  ASSERT_TRUE(done) << done.error();
  EXPECT_EQ(done->arrived, 3u);
  kv_.reset();  // before its clock
}

TEST_F(KvBlockManagerTest, AShutdownGivesUpWhatWaitsForAPrecondition) {
  open();
  auto [written, signal] = block::Fence::create();
  int wrong = 0;
  {
    const auto table = KvWorkload(*kv_).request(sequence(1, 3), &wrong, {.after = {written}});
  }
  const OffloadHandle handle = kv_->offload(sequence(1, 3)).value();
  const Result<void> done = kv_->shutdown();
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), ::testing::HasSubstr("3 blocks"));
  EXPECT_EQ(handle.wait()->cancelled, 3u);
  std::move(signal).signal();
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
}

TEST_F(KvBlockManagerTest, MetricsHaveNames) {
  open();
  MetricRegistry metrics;
  {
    const auto registered = kv_->add_metrics(metrics, {{"model", "small"}});
    ASSERT_TRUE(registered);
    for (std::uint64_t i = 0; i < 3; ++i) {
      {
        const auto table = request(sequence(i, 4));
      }
      kv_->drain();
    }
    kv_->reset(kG1).value();
    {
      const auto table = kv_->onboard(sequence(0, 4));
    }
    const std::string page = metrics.prometheus_text();
    for (const char* const line :
         {R"(ashlar_tier_hits_total{model="small",tier="g2"} 4)",
          R"(ashlar_tier_onboarded_total{model="small",tier="g2"} 4)",
          R"(ashlar_tier_misses_total{model="small",reason="unknown",tier="none"} 3)",
          R"(ashlar_tier_misses_total{model="small",reason="behind",tier="none"} 9)",
          R"(ashlar_tier_evictions_total{model="small",tier="g1"} 4)",
          R"(ashlar_tier_capacity_blocks{model="small",tier="g3"} 40)",
          R"(ashlar_tier_blocks{model="small",tier="g3"} 12)",
          R"(ashlar_tier_age_at_hit_seconds_count{model="small",tier="g2"} 4)",
          R"(ashlar_tier_age_at_eviction_seconds_count{model="small",tier="g1"} 4)"})
      EXPECT_TRUE(page.find(line) != std::string::npos) << line;
  }
  EXPECT_EQ(metrics.prometheus_text().find("ashlar_tier"), std::string::npos)
      << "they went with the registrations";
}

TEST_F(KvBlockManagerTest, AgesAreThoseOfTheBlocks) {
  ManualClock& clock = clock_;
  KvOptions timed = options();
  timed.clock = &clock;
  kv_ = KvBlockManager::create(timed).value();
  MetricRegistry metrics;
  const auto registered = kv_->add_metrics(metrics).value();
  {
    const auto table = request(sequence(1, 1));
  }
  kv_->drain();
  clock.advance(std::chrono::seconds(7));
  {
    const auto table = kv_->onboard(sequence(1, 1));
  }
  clock.advance(std::chrono::seconds(3));
  {
    const auto table = request(sequence(2, 8));
  }
  const std::string page = metrics.prometheus_text();
  for (const char* const line : {R"(ashlar_tier_age_at_hit_seconds_sum{tier="g1"} 7)",
                                 R"(ashlar_tier_age_at_eviction_seconds_sum{tier="g1"} 10)"})
    EXPECT_TRUE(page.find(line) != std::string::npos) << line;
}

TEST_F(KvBlockManagerTest, EveryTierTellsWhatItStoresAndRemoves) {
  KvOptions telling = options();
  telling.event_capacity = 1024;
  kv_ = KvBlockManager::create(telling).value();
  const auto hashes = sequence(1, 3);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).first(1)));
  ashlar::testing::EventRecorder sink;
  EXPECT_EQ(kv_->drain_events(sink), 12u);
  std::map<events::TierId, std::pair<int, int>> told;
  for (const events::KvEvent& event : sink.events())
    ++(event.kind == events::KvEventKind::kStored ? told[event.tier].first : told[event.tier].second);
  for (const events::TierId tier : {kG1, kG2, kG3}) EXPECT_EQ(told[tier], std::pair(3, 1));
}

// Random requests over a set of sequences that no tier but G3 holds: every hit has the bytes that were
// computed.
TEST_F(KvBlockManagerTest, RandomRequestsAlwaysSeeTheirBytes) {
  open();
  Random random(23);
  const ashlar::testing::UntilSeen box(0.5);
  const auto seen = [&] { return kv_->status().g2->hits > 0 && kv_->status().g3->hits > 0; };
  for (int step = 0; step < 300 || !box.over(seen); ++step) {
    const auto hashes = sequence(random.below(12), 1 + random.below(6));
    error_ = random.below(10) == 0 ? EIO : 0;
    const auto table = request(hashes);
    ASSERT_FALSE(HasFailure());
    error_ = 0;
    switch (random.below(8)) {
      case 0:
        kv_->reset(kG1).value();
        break;
      case 1:
        kv_->reset(kG2).value();
        break;
      case 2:
        ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).last(1)));
        break;
      case 3:
        kv_->drain();
        kv_->check_invariants();
        break;
      default:
        break;
    }
  }
  expect_counts_exact();
  const KvStatus status = kv_->status();
  EXPECT_GT(status.g2->hits, 0u);
  EXPECT_GT(status.g3->hits, 0u);
  EXPECT_EQ(status.g3->damaged, 0u);
}

TEST_F(KvBlockManagerTest, ManyThreadsAskForTheSamePrefixes) {
  open();
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto table = request(sequence(i, 4));
  }
  kv_->drain();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 60; ++i) {
        const auto hashes = sequence(random.below(4), 2);
        const auto table = kv_->onboard(hashes);
        if (!KvWorkload(*kv_).right(table, hashes)) ++wrong;
        if (random.below(4) == 0) kv_->reset(kG1).value();
        if (random.below(8) == 0) kv_->reset(kG2).value();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
