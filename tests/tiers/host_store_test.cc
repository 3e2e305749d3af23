// HostStore: an engine that keeps G1 elsewhere. The test plays its scheduler and its worker: it writes the
// slots of stores and reads those of loads, and knows what every block should be.
#include "ashlar/tiers/host_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "tiers/volume/directory_volume.h"

namespace ashlar::tiers {
namespace {

using events::G2;
using events::G3;
using events::G4;
using events::kTierId;
using ::testing::Each;
using ::testing::ElementsAre;
using tokens::PrefixDigest;
using tokens::SequenceHash;

constexpr std::uint32_t kSlotBytes = 4096;

HostBlock host_block(std::uint64_t content) {
  return {SequenceHash::make_keyed(0, spread_bits(content), spread_bits(content + 1000)).value(),
          PrefixDigest::known(spread_bits(content + 2000), spread_bits(content + 3000))};
}

std::vector<HostBlock> host_blocks(std::uint64_t first, std::size_t count) {
  std::vector<HostBlock> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(host_block(first + i));
  return out;
}

class HostStoreTest : public ::testing::Test {
 protected:
  struct Setting {
    std::uint32_t slots = 32;
    bool disk = true;
    bool volume = false;
    std::shared_ptr<VolumeScript> script = {};
    HostStoreOptions store = {};
  };

  void open(const Setting& setting) {
    memory_.assign(std::size_t{setting.slots} * kSlotBytes, std::byte{0});
    KvOptions options;
    options.model = {.num_layers = 1,
                     .outer_dim = 1,
                     .block_size = 1,
                     .num_heads = 1,
                     .head_dim = kSlotBytes,
                     .inner_dim = kSlotBytes,
                     .dtype = layout::Dtype::kU8};
    options.block_size = 1;
    options.keys = tokens::NamespaceFingerprint::from_bits(5, 6);
    options.g1.block_count = 1;
    options.g2 = TierShape{.block_count = setting.slots};
    options.g2->memory.push_back({.regions = {{.address = memory_.data(), .bytes = memory_.size()}}});
    if (setting.disk) {
      options.g3 = DiskShape{.block_count = 64, .paths = {folder_.file("g3")}};
      options.g3->survive_power_loss = false;
    }
    if (setting.volume) {
      std::filesystem::create_directories(folder_.file("volume"));
      options.g4 = VolumeShape{.block_count = 64};
      const auto script = setting.script != nullptr ? setting.script : std::make_shared<VolumeScript>();
      options.g4->kinds.add("scripted", [script](const VolumeDescriptor& descriptor) {
        return Result<std::unique_ptr<Volume>>(
            std::make_unique<ScriptedVolume>(DirectoryVolume::attach(descriptor).value(), script));
      });
      options.g4->volumes = {
          {.name = "v", .kind = "scripted", .location = folder_.file("volume"), .options = {}}};
    }
    kv_ = KvBlockManager::create(std::move(options)).value();
    store_ = HostStore::create(*kv_, setting.store).value();
  }
  void close() {
    store_.reset();
    if (kv_ != nullptr) kv_->drain();
    kv_.reset();
  }
  void TearDown() override { close(); }

  std::byte* slot(block::BlockId id) { return memory_.data() + std::size_t{id.value()} * kSlotBytes; }
  // The bytes of a block, and of what was stored under its name by somebody else.
  void write(block::BlockId id, const HostBlock& block, std::uint64_t variant = 0) {
    for (std::size_t at = 0; at < kSlotBytes; at += 8) {
      const std::uint64_t word = spread_bits(block.hash.lo() + variant) + at;
      std::memcpy(slot(id) + at, &word, sizeof word);
    }
  }
  bool holds(block::BlockId id, const HostBlock& block, std::uint64_t variant = 0) {
    for (std::size_t at = 0; at < kSlotBytes; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, slot(id) + at, sizeof word);
      if (word != spread_bits(block.hash.lo() + variant) + at) return false;
    }
    return true;
  }
  std::size_t store(const std::vector<HostBlock>& blocks, std::uint64_t variant = 0) {
    const HostStore::Job job = store_->begin_store(blocks).value();
    for (std::size_t i = 0; i < job.slots.size(); ++i) write(job.slots[i], blocks[job.chosen[i]], variant);
    if (!job.slots.empty()) {
      EXPECT_TRUE(store_->end_job(job.job, true));
    }
    return job.slots.size();
  }
  // Asks until no block is on its way.
  std::vector<HostAnswer> settled(HostStore::RequestId request, const std::vector<HostBlock>& blocks) {
    std::vector<HostAnswer> answers;
    const auto on_its_way = [](HostAnswer answer) {
      return answer == HostAnswer::kPending || answer == HostAnswer::kUnknown;
    };
    do {
      answers.clear();
      for (const HostBlock& block : blocks) answers.push_back(store_->lookup(request, block));
      store_->fetch_asked();
      std::this_thread::yield();
    } while (std::ranges::any_of(answers, on_its_way));
    return answers;
  }
  void expect_loads(HostStore::RequestId request, const std::vector<HostBlock>& blocks) {
    const HostStore::Job job = store_->begin_load(request, blocks).value();
    ASSERT_EQ(job.slots.size(), blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(holds(job.slots[i], blocks[i]));
    EXPECT_TRUE(store_->end_job(job.job, true));
  }

  ScratchFolder folder_;
  std::vector<std::byte> memory_;
  std::unique_ptr<KvBlockManager> kv_;
  std::unique_ptr<HostStore> store_;
};

TEST_F(HostStoreTest, ABlockIsFoundWhenItsWorkerHasEnded) {
  open({});
  const auto blocks = host_blocks(1, 3);
  const auto request = store_->begin_request();
  EXPECT_EQ(store_->lookup(request, blocks[0]), HostAnswer::kMiss);
  const HostStore::Job job = store_->begin_store(blocks).value();
  EXPECT_THAT(job.chosen, ElementsAre(0u, 1u, 2u));
  const auto other = store_->begin_request();
  EXPECT_EQ(store_->lookup(other, blocks[0]), HostAnswer::kPending);
  EXPECT_TRUE(store_->begin_store(blocks).value().slots.empty()) << "stored twice";
  for (std::size_t i = 0; i < 3; ++i) write(job.slots[i], blocks[i]);
  ASSERT_TRUE(store_->end_job(job.job, true));
  EXPECT_THAT(settled(other, blocks), Each(HostAnswer::kHit));
  EXPECT_EQ(store_->source(other, blocks[0].hash), kTierId<G2>);
  expect_loads(other, blocks);
  EXPECT_EQ(store_->end_job(job.job, true).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(store_->counters().stored, 3u);
  EXPECT_EQ(store_->counters().loaded, 3u);
}

TEST_F(HostStoreTest, AStoreThatFailedLeavesNothing) {
  open({});
  const auto blocks = host_blocks(1, 3);
  const HostStore::Job job = store_->begin_store(blocks).value();
  ASSERT_TRUE(store_->end_job(job.job, false));
  EXPECT_THAT(settled(store_->begin_request(), blocks), Each(HostAnswer::kMiss));
  EXPECT_EQ(kv_->g2()->status().reset, 32u);
}

TEST_F(HostStoreTest, AHitStaysUntilItsRequestEnds) {
  open({.slots = 16, .disk = false});
  const auto kept = host_blocks(1, 8);
  store(kept);
  const auto request = store_->begin_request();
  ASSERT_THAT(settled(request, kept), Each(HostAnswer::kHit));
  for (std::uint64_t i = 0; i < 10; ++i) store(host_blocks(100 * (i + 1), 8));
  EXPECT_THAT(settled(request, kept), Each(HostAnswer::kHit));
  store_->end_request(request);
  for (std::uint64_t i = 10; i < 20; ++i) store(host_blocks(100 * (i + 1), 8));
  EXPECT_THAT(settled(store_->begin_request(), kept), Each(HostAnswer::kMiss));
}

TEST_F(HostStoreTest, AJobKeepsItsSlotsWhenItsRequestEnds) {
  open({.slots = 16, .disk = false});
  const auto kept = host_blocks(1, 4);
  store(kept);
  const auto request = store_->begin_request();
  ASSERT_THAT(settled(request, kept), Each(HostAnswer::kHit));
  const HostStore::Job job = store_->begin_load(request, kept).value();
  store_->end_request(request);
  for (std::uint64_t i = 0; i < 10; ++i) store(host_blocks(100 * (i + 1), 8));
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(holds(job.slots[i], kept[i]));
  ASSERT_TRUE(store_->end_job(job.job, true));
}

TEST_F(HostStoreTest, WhereRoomIsShortTheFirstBlocksAreStored) {
  open({.slots = 16, .disk = false});
  const HostStore::Job held = store_->begin_store(host_blocks(1, 12)).value();
  ASSERT_EQ(held.slots.size(), 12u);
  const HostStore::Job some = store_->begin_store(host_blocks(100, 8)).value();
  EXPECT_THAT(some.chosen, ElementsAre(0u, 1u, 2u, 3u));
  const HostStore::Job none = store_->begin_store(host_blocks(200, 8)).value();
  EXPECT_TRUE(none.slots.empty());
  EXPECT_EQ(store_->counters().not_stored, 12u);
  ASSERT_TRUE(store_->end_job(held.job, true));
  ASSERT_TRUE(store_->end_job(some.job, true));
}

TEST_F(HostStoreTest, AnotherDigestIsAnotherBlock) {
  open({});
  HostBlock ours = host_block(1);
  HostBlock theirs = ours;
  theirs.prefix = PrefixDigest::known(7, 7);
  store({theirs}, 1);
  EXPECT_THAT(settled(store_->begin_request(), {theirs, ours}),
              ElementsAre(HostAnswer::kHit, HostAnswer::kMiss))
      << "in one request";
  EXPECT_THAT(settled(store_->begin_request(), {ours}), ElementsAre(HostAnswer::kMiss));
  EXPECT_EQ(store({ours}), 0u) << "its name is taken";
  EXPECT_THAT(settled(store_->begin_request(), {theirs}), ElementsAre(HostAnswer::kHit));
  kv_->drain();
  ASSERT_TRUE(kv_->reset(kTierId<G2>));
  EXPECT_THAT(settled(store_->begin_request(), {ours}), ElementsAre(HostAnswer::kMiss)) << "from the file";
}

TEST_F(HostStoreTest, BlocksComeUpFromFilesAndVolumesAfterARestart) {
  for (const bool volume : {false, true}) {
    SCOPED_TRACE(volume);
    const auto blocks = host_blocks(volume ? 100 : 1, 6);
    open({.disk = !volume, .volume = volume});
    store(blocks);
    close();
    open({.disk = !volume, .volume = volume});
    const auto request = store_->begin_request();
    auto asked = blocks;
    asked.push_back(host_block(999));
    std::vector<HostAnswer> answers = settled(request, asked);
    EXPECT_EQ(answers.back(), HostAnswer::kMiss);
    answers.pop_back();
    EXPECT_THAT(answers, Each(HostAnswer::kHit));
    EXPECT_EQ(store_->source(request, blocks[0].hash), volume ? kTierId<G4> : kTierId<G3>);
    expect_loads(request, blocks);
    EXPECT_EQ(volume ? store_->counters().hits_volume : store_->counters().hits_disk, 6u);
    close();
  }
}

TEST_F(HostStoreTest, BlocksFromTheEndBackwardsAreFoundBehindAMiss) {
  open({});
  auto blocks = host_blocks(1, 6);
  store({blocks[0], blocks[1], blocks[3], blocks[4]});
  kv_->drain();
  ASSERT_TRUE(kv_->reset(kTierId<G2>));
  std::ranges::reverse(blocks);
  using enum HostAnswer;
  EXPECT_THAT(settled(store_->begin_request(), blocks), ElementsAre(kMiss, kHit, kHit, kMiss, kHit, kHit));
}

// No limit interrupts the volume: the request goes on without it.
TEST_F(HostStoreTest, AVolumeThatHangsEndsInAMiss) {
  const auto gate = std::make_shared<Gate>();
  const auto script = std::make_shared<VolumeScript>();
  script->on_call = [gate](VolumeCall) { gate->pass(); };
  open({.disk = false,
        .volume = true,
        .script = script,
        .store = {.fetch_limit = std::chrono::milliseconds(1)}});
  EXPECT_THAT(settled(store_->begin_request(), host_blocks(1, 3)), Each(HostAnswer::kMiss));
  EXPECT_EQ(store_->counters().late, 3u);
  EXPECT_EQ(store(host_blocks(1, 3)), 3u);
  EXPECT_THAT(settled(store_->begin_request(), host_blocks(1, 3)), Each(HostAnswer::kHit));
  gate->open();
}

TEST_F(HostStoreTest, ForgottenBlocksAreFoundNowhere) {
  open({.volume = true});
  const auto blocks = host_blocks(1, 4);
  store(blocks);
  kv_->drain();
  const auto request = store_->begin_request();
  ASSERT_THAT(settled(request, blocks), Each(HostAnswer::kHit));
  const HostStore::Job load = store_->begin_load(request, blocks).value();
  const auto late = host_blocks(50, 2);
  const HostStore::Job storing = store_->begin_store(late).value();
  ASSERT_TRUE(store_->forget_all());
  EXPECT_THAT(settled(store_->begin_request(), blocks), Each(HostAnswer::kMiss));
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(holds(load.slots[i], blocks[i]));
  ASSERT_TRUE(store_->end_job(load.job, true));
  ASSERT_TRUE(store_->end_job(storing.job, true));
  EXPECT_THAT(settled(store_->begin_request(), blocks), Each(HostAnswer::kMiss));
  EXPECT_THAT(settled(store_->begin_request(), late), Each(HostAnswer::kMiss));
  EXPECT_EQ(store_->counters().abandoned, 6u);
  // New bytes of the same names are found, and only they.
  EXPECT_EQ(store(blocks), 4u);
  const auto again = store_->begin_request();
  EXPECT_THAT(settled(again, blocks), Each(HostAnswer::kHit));
}

// A worker that has kept the marks of what it stored tells a slot's own block from another of the same job.
TEST_F(HostStoreTest, ABlockHasTheMarkOfItsJobAndSlot) {
  open({});
  const auto blocks = host_blocks(1, 3);
  const HostStore::Job stored = store_->begin_store(blocks).value();
  ASSERT_TRUE(store_->end_job(stored.job, true));
  const auto request = store_->begin_request();
  ASSERT_THAT(settled(request, blocks), Each(HostAnswer::kHit));
  const HostStore::Job load = store_->begin_load(request, blocks).value();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const block::BlockId slot : stored.slots)
      EXPECT_EQ(load.writers[i] == HostStore::mark(stored.job, slot), slot == stored.slots[i]);
    EXPECT_NE(load.writers[i], HostStore::mark(load.job, stored.slots[i]));
  }
  ASSERT_TRUE(store_->end_job(load.job, true));
}

// While another request pins the block it stays in G2, but nobody finds it any more.
TEST_F(HostStoreTest, DamagedBlocksAreNotFoundAgain) {
  open({.disk = false});
  const auto blocks = host_blocks(1, 2);
  store(blocks);
  const auto reader = store_->begin_request();
  const auto other = store_->begin_request();
  ASSERT_THAT(settled(reader, blocks), Each(HostAnswer::kHit));
  ASSERT_THAT(settled(other, blocks), Each(HostAnswer::kHit));
  const HostStore::Job load = store_->begin_load(reader, blocks).value();
  ASSERT_TRUE(store_->end_job(load.job, false));
  EXPECT_EQ(store_->counters().damaged, 2u);
  EXPECT_THAT(settled(reader, blocks), Each(HostAnswer::kMiss));
  EXPECT_THAT(settled(store_->begin_request(), blocks), Each(HostAnswer::kMiss));
  store_->end_request(other);
  EXPECT_EQ(store(blocks), 2u);
  EXPECT_THAT(settled(store_->begin_request(), blocks), Each(HostAnswer::kHit));
}

TEST_F(HostStoreTest, ASoundCopyBelowReplacesADamagedBlock) {
  open({});
  const auto blocks = host_blocks(1, 2);
  store(blocks);
  kv_->drain();
  const auto request = store_->begin_request();
  ASSERT_THAT(settled(request, blocks), Each(HostAnswer::kHit));
  const HostStore::Job load = store_->begin_load(request, blocks).value();
  ASSERT_TRUE(store_->end_job(load.job, false));
  const auto again = store_->begin_request();
  EXPECT_THAT(settled(again, blocks), Each(HostAnswer::kHit));
  EXPECT_EQ(store_->source(again, blocks[0].hash), kTierId<G3>);
  expect_loads(again, blocks);
}

TEST_F(HostStoreTest, CallsThatMakeNoSenseAreErrors) {
  open({.disk = false, .store = {.max_jobs = 1}});
  const HostStore::RequestId nobody(77);
  EXPECT_EQ(store_->lookup(nobody, host_block(1)), HostAnswer::kMiss);
  store_->end_request(nobody);
  EXPECT_EQ(store_->begin_load(nobody, host_blocks(1, 1)).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(store_->begin_load(store_->begin_request(), host_blocks(1, 1)).error().code(),
            ErrorCode::kNotFound);
  const HostStore::Job job = store_->begin_store(host_blocks(1, 1)).value();
  EXPECT_EQ(store_->begin_store(host_blocks(2, 1)).error().code(), ErrorCode::kCapacity);
  ASSERT_TRUE(store_->end_job(job.job, true));
  EXPECT_FALSE(HostStore::create(*kv_, {.fetch_limit = Clock::Duration::zero()}));
  EXPECT_FALSE(HostStore::create(*kv_, {.max_jobs = 0}));
}

// Random engines on several threads: every load has the bytes of its block in its epoch, and no slot is in
// two jobs.
TEST_F(HostStoreTest, LoadsHaveTheBytesThatWereStored) {
  open({.slots = 48});
  std::atomic<std::uint64_t> loaded = 0;
  std::atomic<int> wrong = 0;
  const auto engine = [&](std::uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < static_cast<int>(ashlar::testing::rounds(300)) || loaded.load() < 100;
         ++round) {
      if (round > 100000) break;
      const auto blocks = host_blocks(random.below(40), 1 + random.below(6));
      const auto request = store_->begin_request();
      std::vector<HostBlock> hits;
      for (int ask = 0; ask < 4; ++ask) {
        hits.clear();
        for (const HostBlock& block : blocks)
          if (store_->lookup(request, block) == HostAnswer::kHit) hits.push_back(block);
        store_->fetch_asked();
      }
      if (!hits.empty()) {
        const auto job = store_->begin_load(request, hits);
        if (!job) {
          ++wrong;
        } else {
          for (std::size_t i = 0; i < hits.size(); ++i)
            if (!holds(job->slots[i], hits[i])) ++wrong;
          loaded += hits.size();
          if (!store_->end_job(job->job, true)) ++wrong;
        }
      }
      const auto job = store_->begin_store(blocks);
      if (job && !job->slots.empty()) {
        for (std::size_t i = 0; i < job->slots.size(); ++i) write(job->slots[i], blocks[job->chosen[i]]);
        if (!store_->end_job(job->job, random.below(8) != 0)) ++wrong;
      }
      store_->end_request(request);
    }
  };
  {
    std::vector<std::jthread> engines;
    for (std::uint64_t i = 0; i < 3; ++i) engines.emplace_back(engine, 11 + i);
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GE(loaded.load(), 100u);
  EXPECT_EQ(store_->jobs(), 0u);
  kv_->drain();
  kv_->check_invariants();
}

}  // namespace
}  // namespace ashlar::tiers
