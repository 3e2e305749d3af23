// A KvBlockManager with G4, from computing to coming back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/event_sinks.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "support/until_seen.h"
#include "tiers/tier_ids.h"
#include "tiers/volume/directory_volume.h"
#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;
using Hashes = VolumeTier::Hashes;

class VolumeTierTest : public ::testing::Test {
 protected:
  VolumeDescriptor folder(const std::string& name) const {
    std::filesystem::create_directories(scratch_.file(name));
    return {
        .name = name, .kind = "directory", .location = scratch_.file(name), .options = {{"sync", "false"}}};
  }
  // A folder that goes as the script says.
  VolumeDescriptor scripted(const std::string& name) const {
    VolumeDescriptor descriptor = folder(name);
    descriptor.kind = "scripted";
    return descriptor;
  }
  KvOptions options(std::vector<VolumeDescriptor> volumes) const {
    VolumeRegistry kinds = VolumeRegistry::with_builtin();
    kinds.add("scripted", [script = script_](const VolumeDescriptor& descriptor) {
      return DirectoryVolume::attach(descriptor).transform([&](std::unique_ptr<Volume>&& made) {
        return std::unique_ptr<Volume>(std::make_unique<ScriptedVolume>(std::move(made), script));
      });
    });
    return VolumeTier::options(std::move(volumes), std::move(kinds));
  }
  KvOptions with_disk(KvOptions options) const {
    options.g3 = DiskShape{.block_count = 40, .paths = {scratch_.file("g3")}, .faults = {faults_}};
    return options;
  }
  std::size_t files(const std::string& volume) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch_.file(volume)))
      count += entry.is_regular_file();
    return count;
  }
  // One bit of every object.
  void damage(const std::string& volume) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch_.file(volume)))
      if (entry.is_regular_file()) {
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(1000);
        const auto byte = static_cast<char>(file.get() ^ 16);
        file.seekp(1000);
        file.put(byte);
      }
  }
  static Hashes sequence(std::uint64_t number, std::size_t blocks) {
    return VolumeTier::sequence(number, blocks);
  }

  ScratchFolder scratch_;
  std::shared_ptr<VolumeScript> script_ = std::make_shared<VolumeScript>();
  std::atomic<int> read_error_{0};
  std::shared_ptr<ScriptedFaults> faults_ =
      std::make_shared<ScriptedFaults>([this](storage::IoDirection direction, std::uint64_t, std::uint64_t) {
        return storage::IoVerdict{.error = direction == storage::IoDirection::kRead ? read_error_.load() : 0};
      });
};

TEST_F(VolumeTierTest, BlocksGoToVolumesAndComeBack) {
  VolumeTier tier(options({folder("a")}));
  const Hashes hashes = sequence(1, 6);
  tier.request(hashes);
  tier.push_out();
  EXPECT_THAT(tier.tiers_of(hashes), AllOf(SizeIs(6), Each(kG4)));
  EXPECT_EQ(files("a"), 6u);
  EXPECT_EQ(tier.onboard(hashes), 6u);
  const KvStatus status = tier.kv().status();
  EXPECT_EQ(status.g4->hits, 6u);
  EXPECT_EQ(status.g4->onboarded, 6u);
  EXPECT_EQ(status.to_g4->arrived, 6u);
  ASSERT_EQ(status.volumes.size(), 1u);
  EXPECT_EQ(status.volumes[0].block_count, 6u);
  EXPECT_EQ(status.volumes[0].got, 6u);
  tier.expect_counts_exact();
}

TEST_F(VolumeTierTest, WhatTheDiskCannotGiveTheVolumeMay) {
  VolumeTier tier(with_disk(options({folder("a"), folder("b")})));
  const Hashes hashes = sequence(1, 6);
  tier.request(hashes);
  tier.push_out();
  EXPECT_THAT(tier.tiers_of(hashes), AllOf(SizeIs(6), Each(kG3))) << "the faster one";
  EXPECT_EQ(tier.onboard(hashes), 6u);
  tier.push_out();
  read_error_ = EIO;
  EXPECT_EQ(tier.onboard(hashes), 6u) << "from G4";
  EXPECT_EQ(tier.kv().status().g3->failed, 6u);
  EXPECT_EQ(tier.kv().status().g4->onboarded, 6u);
  read_error_ = 0;
  tier.push_out();
  EXPECT_EQ(tier.kv().reset(kG3).value(), 6u);
  EXPECT_THAT(tier.tiers_of(hashes), AllOf(SizeIs(6), Each(kG4)));
  EXPECT_EQ(tier.onboard(hashes), 6u);
  tier.push_out();
  EXPECT_EQ(tier.kv().reset(kG4).value(), 6u);
  EXPECT_EQ(tier.onboard(hashes), 0u);
  tier.expect_counts_exact();
}

TEST_F(VolumeTierTest, ARestartFindsBlocksByAsking) {
  const Hashes hashes = sequence(1, 7);
  VolumeTier tier(options({folder("a"), folder("b")}));
  tier.request(hashes);
  tier.push_out();
  tier.restart();
  EXPECT_EQ(tier.kv().status().volumes[0].block_count, 0u);
  EXPECT_THAT(tier.tiers_of(sequence(1, 9)), AllOf(SizeIs(7), Each(kG4)));
  EXPECT_EQ(tier.onboard(hashes), 7u);
  tier.expect_counts_exact();
  // Another process, that does not ask.
  tier.options().g4->probe = false;
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 0u);
  // Another model has other keys.
  tier.options().g4->probe = true;
  tier.options().keys = tokens::NamespaceFingerprint::from_bits(70, 80);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 0u);
  EXPECT_EQ(files("a") + files("b"), 7u);
}

TEST_F(VolumeTierTest, WhatIsResetIsGoneForGood) {
  const Hashes hashes = sequence(1, 6);
  VolumeTier tier(options({folder("a"), folder("b")}));
  tier.request(hashes);
  ASSERT_TRUE(tier.kv().drain());
  ASSERT_TRUE(tier.kv().reset_blocks(std::span(hashes).last(2)));
  EXPECT_EQ(files("a") + files("b"), 4u);
  EXPECT_EQ(tier.onboard(hashes), 4u);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 4u);
  // Nobody knows of them after a restart; they go all the same.
  tier.restart();
  ASSERT_TRUE(tier.kv().reset_blocks(std::span(hashes).subspan(2, 1)));
  EXPECT_EQ(files("a") + files("b"), 3u);
  EXPECT_EQ(tier.onboard(hashes), 2u);
  tier.push_out();
  EXPECT_EQ(tier.kv().reset(kG4).value(), 2u) << "those that are known";
  EXPECT_EQ(tier.onboard(hashes), 0u);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 0u);
  tier.expect_counts_exact();
}

TEST_F(VolumeTierTest, WhatCannotBeRemovedBecauseTheVolumeIsAwayIsSaid) {
  const Hashes hashes = sequence(1, 4);
  VolumeTier tier(options({folder("a")}));
  tier.request(hashes);
  tier.push_out();
  std::filesystem::rename(scratch_.file("a"), scratch_.file("away"));
  EXPECT_EQ(tier.kv().reset_blocks(hashes).error().code(), ErrorCode::kIo);
  EXPECT_FALSE(tier.kv().reset(kG4));
  std::filesystem::rename(scratch_.file("away"), scratch_.file("a"));
  ASSERT_TRUE(tier.kv().reset_blocks(hashes));
  EXPECT_EQ(files("a"), 0u);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 0u);
}

TEST_F(VolumeTierTest, VolumesThatCannotBeHadAreRefused) {
  VolumeTier tier(options({folder("a")}));
  const auto code = [&](const VolumeDescriptor& descriptor) {
    return tier.kv().register_volume(descriptor).error().code();
  };
  EXPECT_EQ(code({.name = "b", .kind = "tape", .location = "shelf"}), ErrorCode::kNotFound);
  EXPECT_EQ(code({.name = "b", .kind = "directory", .location = scratch_.file("nowhere")}),
            ErrorCode::kNotFound);
  EXPECT_EQ(
      code(
          {.name = "b", .kind = "directory", .location = scratch_.file("a"), .options = {{"speed", "high"}}}),
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder("a")), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code({.name = "", .kind = "directory", .location = scratch_.file("a")}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tier.kv().unregister_volume("b").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(tier.kv().status().volumes.size(), 1u);
  EXPECT_EQ(
      KvBlockManager::create(options({{.name = "b", .kind = "tape", .location = "shelf"}})).error().code(),
      ErrorCode::kNotFound);
  EXPECT_EQ(KvBlockManager::create(options({folder("a"), folder("a")})).error().code(),
            ErrorCode::kAlreadyExists);
  KvOptions none = options({});
  none.g4.reset();
  const auto without = KvBlockManager::create(none).value();
  EXPECT_EQ(without->register_volume(folder("a")).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(without->unregister_volume("a").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(without->offload_to(kG4, sequence(1, 1)).error().code(), ErrorCode::kUnsupported);
}

TEST_F(VolumeTierTest, AVolumeMayGoWhileBlocksGoDownToIt) {
  KvOptions two = options({scripted("a"), folder("b")});
  two.event_capacity = 1000;
  VolumeTier tier(std::move(two));
  const auto gate = std::make_shared<Gate>();
  script_->put_gate = gate;
  const Hashes hashes = sequence(1, 8);
  tier.request(hashes);
  gate->wait_for_somebody();
  std::thread goes([&] { EXPECT_TRUE(tier.kv().unregister_volume("a")); });
  gate->open();
  goes.join();
  tier.push_out();
  EXPECT_EQ(tier.kv().status().volumes.size(), 1u);
  const std::size_t left = tier.kv().status().volumes[0].block_count;
  EXPECT_EQ(tier.kv().g4()->status().reset, 60 - left);
  ashlar::testing::EventRecorder events;
  tier.kv().drain_events(events);
  std::ptrdiff_t known = 0;
  for (const events::KvEvent& event : events.events())
    if (event.tier == kG4) known += event.kind == events::KvEventKind::kStored ? 1 : -1;
  EXPECT_EQ(known, static_cast<std::ptrdiff_t>(left));
  // With the volume back, what it had comes up.
  const std::size_t objects = files("a") + files("b");
  ASSERT_TRUE(tier.kv().register_volume(scripted("a")));
  EXPECT_EQ(tier.onboard(hashes), tier.tiers_of(hashes).size());
  EXPECT_EQ(objects, files("a") + files("b"));
  tier.expect_counts_exact();
}

TEST_F(VolumeTierTest, DamageIsAMissAndIsComputedAgain) {
  const Hashes hashes = sequence(1, 5);
  VolumeTier tier(options({folder("a")}));
  tier.request(hashes);
  tier.push_out();
  damage("a");
  EXPECT_EQ(tier.request(hashes), 0u);
  const KvStatus status = tier.kv().status();
  EXPECT_GT(status.g4->damaged, 0u);
  EXPECT_EQ(status.misses[static_cast<std::size_t>(Miss::kDamaged)], 1u);
  tier.push_out();
  const std::size_t whole = tier.request(hashes);  // those of the first batch
  EXPECT_EQ(tier.kv().status().g4->damaged, 5u);
  EXPECT_EQ(whole, status.g4->damaged);
  tier.push_out();
  EXPECT_EQ(tier.onboard(hashes), 5u) << "they went down again, whole";
  tier.expect_counts_exact();
}

TEST_F(VolumeTierTest, AVolumeThatCannotBeReachedIsAMiss) {
  const Hashes hashes = sequence(1, 5);
  VolumeTier tier(options({scripted("a")}));
  tier.request(hashes);
  tier.push_out();
  script_->fail_all(ErrorCode::kUnavailable);
  EXPECT_EQ(tier.onboard(hashes), 0u);
  EXPECT_EQ(tier.kv().status().misses[static_cast<std::size_t>(Miss::kFailed)], 1u);
  EXPECT_EQ(tier.kv().reset(kG4).error().code(), ErrorCode::kUnavailable);
  tier.request(sequence(2, 4));
  EXPECT_TRUE(tier.kv().drain());
  EXPECT_EQ(tier.kv().status().to_g4->failed, 4u);
  EXPECT_EQ(tier.onboard(sequence(2, 4)), 4u) << "they never left";
  tier.expect_counts_exact();
  script_->verdict = {};
  tier.push_out();
  EXPECT_EQ(tier.onboard(hashes), 5u) << "it never forgot";
  EXPECT_EQ(tier.onboard(sequence(2, 4)), 0u);
  tier.expect_counts_exact();
}

TEST_F(VolumeTierTest, BlocksOfAnotherTenantAreForeign) {
  VolumeTier tier(options({folder("a")}));
  const Hashes hashes = sequence(1, 3);
  const tokens::SaltFingerprint mine = tokens::SaltFingerprint::from_bits(1, 1);
  {
    auto fresh = tier.kv().get_mutable_blocks(3).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < 3; ++i)
      complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    ASSERT_TRUE(tier.kv().register_blocks(std::move(complete), {.salt = mine}));
  }
  tier.push_out();
  for (int restarts = 0; restarts < 2; ++restarts) {
    const tokens::SaltFingerprint theirs = tokens::SaltFingerprint::from_bits(2, 2);
    EXPECT_TRUE(tier.kv().onboard(hashes, {.salt = theirs}).empty());
    EXPECT_EQ(tier.kv().onboard(hashes, {.salt = mine}).size(), 3u);
    tier.push_out();
    tier.restart();
  }
}

TEST_F(VolumeTierTest, VolumesComeAndGoUnderLoad) {
  KvOptions all = with_disk(options({folder("a"), folder("b")}));
  all.g3->block_count = 10;
  all.g4->block_count = 24;
  VolumeTier tier(std::move(all));
  const testing::UntilSeen box(1.5);
  const auto seen = [&] { return tier.kv().status().to_g4->arrived > 0; };
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      int mine = 0;
      while (!box.over(seen)) {
        const auto table =
            KvWorkload(tier.kv()).request(sequence(random.next() % 12, 1 + random.next() % 3), &mine);
        if (table && random.next() % 8 == 0) tier.kv().find(sequence(random.next() % 12, 3));
      }
      wrong += mine;
    });
  threads.emplace_back([&] {
    Random random(99);
    while (!box.over(seen)) {
      if (!tier.kv().unregister_volume("b")) ++wrong;
      if (!tier.kv().register_volume(folder("b"))) ++wrong;
      if (random.next() % 3 == 0) (void)tier.kv().reset_blocks(sequence(random.next() % 12, 3));
      if (random.next() % 16 == 0) (void)tier.kv().reset(kG4);
      (void)tier.kv().reset(kG2);
      tier.kv().status();
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const KvStatus status = tier.kv().status();
  EXPECT_EQ(status.g4->damaged, 0u);
  EXPECT_GT(status.to_g4->arrived, 0u);
  tier.expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
