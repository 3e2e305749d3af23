// Ranks of one model: what they share, and that they never read each other's bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ashlar/base/log.h"
#include "support/scratch_folder.h"
#include "support/volume_objects.h"
#include "tiers/rank_scenario.h"
#include "tiers/volume/directory_volume.h"
#include "tiers/volume/file_volume.h"
#include "tiers/volume/volume_object.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;

class RanksTest : public ::testing::Test {
 protected:
  VolumeDescriptor directory() const {
    const std::string path = scratch_.file("directory");
    std::filesystem::create_directories(path);
    return {.name = "v", .kind = "directory", .location = path, .options = {{"sync", "false"}}};
  }
  VolumeDescriptor file() const {
    const std::string path = scratch_.file("file");
    std::ofstream(path).close();
    std::filesystem::resize_file(path, 4 << 20);
    provision_file_volume(path, {.slot_bytes = 16384}).value();
    return {.name = "v", .kind = "file", .location = path, .options = {{"sync", "false"}}};
  }
  static KvOptions with_scales(KvOptions options) {
    options.scales = two_kinds_of_scales();
    return options;
  }
  KvOptions on_disk(const layout::Shard& shard, const std::string& name) const {
    KvOptions options = KvWorkload::options(scratch_.file(name));
    options.g3->faults.clear();
    options.g3->survive_power_loss = false;
    options.shard = shard;
    return options;
  }

  ScratchFolder scratch_;
};

TEST_F(RanksTest, ShareADirectory) {
  expect_ranks_read_their_own_bytes(VolumeTier::options({directory()}));
}

TEST_F(RanksTest, ShareAFileVolume) {
  expect_ranks_read_their_own_bytes(VolumeTier::options({file()}));
}

TEST_F(RanksTest, ShareVolumesWithScalesToo) {
  expect_ranks_read_their_own_bytes(with_scales(VolumeTier::options({directory()})));
  expect_ranks_read_their_own_bytes(with_scales(VolumeTier::options({file()})));
}

// Whoever copies objects from one place to another does not make them another rank's.
TEST_F(RanksTest, AnObjectUnderTheKeyOfAnotherRankIsNotRead) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  std::uint64_t number = 0;
  for (const TwoRanks& ranks : ways_to_divide()) {
    SCOPED_TRACE(ranks.divided_by);
    KvOptions options = VolumeTier::options({directory()});
    options.shard = ranks.first;
    const VolumeTier::Hashes hashes = VolumeTier::sequence(++number, 1);
    VolumeObject object;
    {
      VolumeTier first(options);
      first.request(hashes);
      first.push_out();
      object = VolumeObject::describe(*first.kv().g1_blocks(), options.keys, options.scheme_fingerprint,
                                      tokens::PrefixKey::of_namespace(options.keys).fingerprint());
    }
    object.hash = hashes[0];
    {
      const auto volume = DirectoryVolume::attach(directory()).value();
      const Bytes bytes =
          get_one(*volume, object.key(), VolumeObject::kHeaderBytes + object.payload_bytes).value();
      object.shard = ranks.second;
      ASSERT_TRUE(put_one(*volume, object.key(), bytes));
    }
    options.shard = ranks.second;
    VolumeTier second(options);
    EXPECT_EQ(second.onboard(hashes), 0u);
    EXPECT_EQ(second.kv().status().g4->damaged, 1u);
  }
}

TEST_F(RanksTest, AreRefusedTheFilesOfEachOther) {
  for (const bool scales : {false, true}) {
    for (const TwoRanks& ranks : ways_to_divide()) {
      SCOPED_TRACE(ranks.divided_by);
      const std::string name = std::string(scales ? "scales" : "plain") + ranks.divided_by;
      const auto hashes = VolumeTier::sequence(1, 5);
      const auto as = [&](const layout::Shard& shard) {
        return scales ? with_scales(on_disk(shard, name)) : on_disk(shard, name);
      };
      int wrong = 0;
      {
        const auto first = KvBlockManager::create(as(ranks.first)).value();
        ASSERT_TRUE(KvWorkload(*first).request(hashes, &wrong));
        ASSERT_TRUE(first->drain());
      }
      const auto second = KvBlockManager::create(as(ranks.second));
      ASSERT_FALSE(second);
      EXPECT_EQ(second.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(second.error().message(),
                  HasSubstr("belongs to " + ranks.first.to_string() + ", and this is " +
                            ranks.second.to_string() + "; give every rank a file of its own"));
      const auto first = KvBlockManager::create(as(ranks.first)).value();
      const auto table = first->onboard(hashes);
      EXPECT_EQ(table.size(), 5u);
      EXPECT_TRUE(KvWorkload(*first).right(table, hashes));
    }
  }
}

TEST_F(RanksTest, CountTheirOwnLayers) {
  const TwoRanks stages = ways_to_divide()[1];
  const auto hashes = VolumeTier::sequence(1, 4);
  int wrong = 0;
  {
    const auto last = KvBlockManager::create(on_disk(stages.second, "g3")).value();
    ASSERT_TRUE(KvWorkload(*last).request(hashes, &wrong));
    ASSERT_TRUE(last->drain());
  }
  const auto last = KvBlockManager::create(on_disk(stages.second, "g3")).value();
  const OnboardHandle handle = last->onboard_async(hashes, {.by_layer = true}).value();
  for (const std::uint32_t layer : {0u, 1u}) {
    const auto ids = handle.wait_layer(layer);
    ASSERT_TRUE(ids) << ids.error();
    EXPECT_TRUE(KvWorkload(*last).layer_right(*ids, hashes, layer));
  }
  const auto table = handle.wait().value();
  EXPECT_EQ(table.size(), 4u);
  EXPECT_TRUE(KvWorkload(*last).right(table, hashes));
}

TEST_F(RanksTest, SayWhatTheyHold) {
  const auto refused = [](const KvOptions& options, const char* says) {
    const auto made = KvBlockManager::create(options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().message(), HasSubstr(says));
  };
  refused(on_disk({{0, 2}, {0, 2}, 2, 2}, "g3"), "rank 2 of 2; ranks are counted from 0");
  refused(on_disk({.rank = 1, .ranks = 2}, "g3"),
          "shard is rank 1 of 2 (no layers, no heads), and model has 2 layers and 2 heads; both say what "
          "this rank holds");
  refused(on_disk({{0, 4}, {0, 2}, 0, 1}, "g3"), "(layers 0 to 3, heads 0 to 1), and model has 2 layers");
  KvOptions odd = with_scales(on_disk({}, "g3"));
  odd.scales[0].num_layers = 3;
  refused(odd, "scales have the tokens and layers of model");
}

// A part of a model of 32 layers and 8 heads.
KvOptions part_of(std::uint32_t layers, std::uint32_t heads, const ModelRank& rank) {
  KvOptions options;
  options.model = {
      .num_layers = layers, .outer_dim = 2, .block_size = 16, .num_heads = heads, .head_dim = 64};
  options.g4.emplace();
  const Result<void> fits = rank.describe("model", options);
  EXPECT_TRUE(fits) << fits.error().message();
  return options;
}

TEST(ModelRankTest, NamesTheWholeModelForEveryPart) {
  const KvOptions whole = part_of(32, 8, {});
  EXPECT_EQ(whole.shard, layout::Shard::whole(whole.model));
  const KvOptions half = part_of(32, 4, {.rank = 1, .ranks = 2});
  EXPECT_EQ(half.shard, (layout::Shard{{0, 32}, {4, 4}, 1, 2}));
  const KvOptions stage = part_of(8, 4, {.rank = 1, .ranks = 2, .first_layer = 24, .model_layers = 32});
  EXPECT_EQ(stage.shard, (layout::Shard{{24, 8}, {4, 4}, 1, 2}));
  const KvOptions replica = part_of(32, 1, {.rank = 5, .ranks = 16, .model_heads = 8});
  EXPECT_EQ(replica.shard, (layout::Shard{{0, 32}, {2, 1}, 5, 16}));
  for (const KvOptions* const part : {&half, &stage, &replica}) EXPECT_EQ(part->keys, whole.keys);
  EXPECT_NE(part_of(32, 4, {}).keys, whole.keys) << "another model";
  EXPECT_NE(part_of(8, 8, {}).keys, whole.keys);
}

TEST(ModelRankTest, AsksForTheShardsOfOtherDegreesWithoutItsOwn) {
  const KvOptions half = part_of(32, 4, {.rank = 1, .ranks = 2, .other_ranks = {1, 2, 4}});
  const std::vector<layout::Shard>& others = half.g4->other_shards;
  ASSERT_EQ(others.size(), 6u) << "1, the other of 2, and 4";
  EXPECT_EQ(others[0], (layout::Shard{{0, 32}, {0, 8}, 0, 1}));
  EXPECT_EQ(others[1], (layout::Shard{{0, 32}, {0, 4}, 0, 2}));
  EXPECT_EQ(others[5], (layout::Shard{{0, 32}, {6, 2}, 3, 4}));
  EXPECT_EQ(std::ranges::count(others, half.shard), 0);
}

}  // namespace
}  // namespace ashlar::tiers
