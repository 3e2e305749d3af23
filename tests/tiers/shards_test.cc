// Shards across degrees: what a rank makes from objects of ranks that divide the model in another way, on
// the volumes of the library and on one of the user's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "support/until_seen.h"
#include "tiers/shard_scenario.h"
#include "tiers/volume/directory_volume.h"

namespace ashlar::tiers {
namespace {

using layout::Shard;
using ::testing::HasSubstr;
using Hashes = FleetRank::Hashes;

// A volume as a user may write one: a map that outlives the managers.
class MapVolume final : public Volume {
 public:
  struct Map {
    Mutex mu;
    std::map<std::string, Bytes, std::less<>> objects ASHLAR_GUARDED_BY(mu);
  };
  explicit MapVolume(std::shared_ptr<Map> map) : map_(std::move(map)) {}

  std::string describe() const override { return "a map"; }
  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits&) override {
    std::vector<Result<void>> results(objects.size());
    const MutexLock lock(map_->mu);
    for (const ObjectWrite& object : objects) {
      Bytes bytes;
      for (const auto& part : object.parts) bytes.insert(bytes.end(), part.begin(), part.end());
      map_->objects.insert_or_assign(std::string(object.key), std::move(bytes));
    }
    return results;
  }
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits&) override {
    std::vector<Result<void>> results(objects.size());
    const MutexLock lock(map_->mu);
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const auto found = map_->objects.find(objects[i].key);
      if (found == map_->objects.end()) {
        results[i] = make_error(ErrorCode::kNotFound, "no such object");
      } else if (found->second.size() != objects[i].size()) {
        results[i] = make_error(ErrorCode::kCorruption, "another size");
      } else {
        auto from = found->second.begin();
        for (const auto& part : objects[i].parts) {
          std::copy_n(from, part.size(), part.begin());
          from += static_cast<std::ptrdiff_t>(part.size());
        }
      }
    }
    return results;
  }
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys, const CallLimits&) override {
    std::vector<Result<bool>> results;
    const MutexLock lock(map_->mu);
    for (const std::string_view key : keys) results.emplace_back(map_->objects.contains(key));
    return results;
  }
  std::vector<Result<void>> remove(std::span<const std::string_view> keys, const CallLimits&) override {
    const MutexLock lock(map_->mu);
    for (const std::string_view key : keys)
      if (const auto found = map_->objects.find(key); found != map_->objects.end())
        map_->objects.erase(found);
    return std::vector<Result<void>>(keys.size());
  }

 private:
  const std::shared_ptr<Map> map_;
};

class ShardsTest : public ::testing::Test {
 protected:
  VolumeDescriptor directory(const std::string& name = "directory") const {
    const std::string path = scratch_.file(name);
    std::filesystem::create_directories(path);
    return {.name = name, .kind = "directory", .location = path, .options = {{"sync", "false"}}};
  }
  VolumeDescriptor file(const std::string& name = "file") const {
    const std::string path = scratch_.file(name);
    if (!std::filesystem::exists(path)) {
      std::ofstream(path).close();
      std::filesystem::resize_file(path, 16 << 20);
      provision_file_volume(path, {.slot_bytes = 8192}).value();
    }
    return {.name = name, .kind = "file", .location = path, .options = {{"sync", "false"}}};
  }
  KvOptions in_directory() const { return VolumeTier::options({directory()}); }

  ScratchFolder scratch_;
};

TEST_F(ShardsTest, AreReadFromADirectory) {
  expect_shards_across_degrees(in_directory(), many_degrees());
}

TEST_F(ShardsTest, AreReadFromAFileVolume) {
  expect_shards_across_degrees(VolumeTier::options({file()}), many_degrees());
}

TEST_F(ShardsTest, AreReadFromAVolumeOfTheUsers) {
  const auto map = std::make_shared<MapVolume::Map>();
  VolumeRegistry kinds;
  kinds.add("map", [map](const VolumeDescriptor&) -> Result<std::unique_ptr<Volume>> {
    return std::unique_ptr<Volume>(std::make_unique<MapVolume>(map));
  });
  expect_shards_across_degrees(VolumeTier::options({{.name = "v", .kind = "map", .location = ""}}, kinds),
                               many_degrees());
}

TEST_F(ShardsTest, CarryTheirScales) {
  ShardedModel model{.head_scales = true, .token_scales = true};
  // Where one object has all heads of a reader, its scale for all of them holds for the slice too; a reader
  // with one head cannot know how many scales the object has.
  expect_fleets_read_each_other(in_directory(), model, {{4, 1, 2}, {4, 2, 4}, {4, 1, 4}, {4, 4, 8}});
  model.head_scales = false;
  expect_fleets_read_each_other(in_directory(), model, {{4, 1, 2}, {4, 2, 4}, {4, 8, 4}}, 50);
}

// Each rank of the fleet has a volume of its own, as processes with file volumes must.
TEST_F(ShardsTest, AreGatheredFromSeveralVolumes) {
  const ShardedModel model;
  const Hashes hashes = VolumeTier::sequence(1, 5);
  const std::vector<Shard> writers = model.fleet(4);
  std::vector<VolumeDescriptor> files;
  for (const Shard& shard : writers) {
    files.push_back(file("rank" + std::to_string(shard.rank)));
    FleetRank(model, VolumeTier::options({files.back()}), shard).store(hashes);
  }
  FleetRank reader(model, VolumeTier::options(files), model.fleet(2)[1], writers);
  EXPECT_EQ(reader.onboard(hashes), 5u);
  EXPECT_EQ(reader.kv().status().volumes[0].block_count, 0u);
  EXPECT_EQ(reader.kv().status().volumes[2].block_count, 5u);
  EXPECT_EQ(reader.kv().status().volumes[3].block_count, 5u);
  reader.push_out();
  EXPECT_EQ(reader.kv().unregister_volume("rank0").value(), 0u);
  EXPECT_EQ(reader.onboard(hashes), 5u);
  reader.push_out();
  EXPECT_EQ(reader.kv().unregister_volume("rank3").value(), 5u);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.misses(Miss::kOtherShards), 1u) << "half of it is still there";
  ASSERT_TRUE(reader.kv().register_volume(files[3], {.write = false}));
  EXPECT_EQ(reader.onboard(hashes), 5u);
  reader.push_out();
  reader.expect_counts_exact();
}

// Two fleets have each a part of a sequence; of a third, one rank is behind.
TEST_F(ShardsTest, ComeFromWhicheverFleetHasThem) {
  const ShardedModel model{.heads = 8};
  const KvOptions base = in_directory();
  const Hashes hashes = VolumeTier::sequence(1, 6);
  const std::span<const tokens::SequenceHash> all = hashes;
  for (const Shard& shard : model.fleet(2)) FleetRank(model, base, shard).store(all.first(2));
  for (const Shard& shard : model.fleet(8)) FleetRank(model, base, shard).store(all.subspan(2, 2));
  // Of the last two, two ranks of eight and one of two have all heads together.
  FleetRank(model, base, model.fleet(8)[0]).store(all.subspan(4));
  FleetRank(model, base, model.fleet(8)[1]).store(all.subspan(4));
  FleetRank(model, base, model.fleet(2)[1]).store(all.subspan(4));
  std::vector<Shard> others = model.fleet(8);
  for (const Shard& shard : model.fleet(2)) others.push_back(shard);
  for (const Shard& shard : model.fleet(4)) {
    FleetRank reader(model, base, shard, others);
    EXPECT_EQ(reader.onboard(hashes), shard.rank == 1 ? 4u : 6u) << shard.rank;
    EXPECT_EQ(reader.misses(Miss::kUnknown), shard.rank == 1 ? 1u : 0u);
  }
}

// Layers divided too: four ranks, two stages of two.
TEST_F(ShardsTest, AreCutAndGatheredByLayersToo) {
  const ShardedModel model{.layers = 4, .head_scales = true};
  const KvOptions base = in_directory();
  const Hashes hashes = VolumeTier::sequence(1, 3);
  const std::vector<Shard> grid = {
      {{0, 1}, {0, 2}, 0, 4}, {{0, 1}, {2, 2}, 1, 4}, {{1, 3}, {0, 2}, 2, 4}, {{1, 3}, {2, 2}, 3, 4}};
  for (const Shard& shard : grid) FleetRank(model, base, shard).store(hashes);
  for (const Shard& shard : {Shard{{0, 4}, {0, 4}, 0, 1}, Shard{{0, 4}, {2, 2}, 1, 2},
                             Shard{{2, 2}, {0, 4}, 1, 2}, Shard{{0, 2}, {1, 2}, 0, 9}}) {
    FleetRank reader(model, base, shard, grid);
    EXPECT_EQ(reader.onboard(hashes), 3u) << shard.to_string() << ": " << reader.kv().status().shard_refusal;
  }
}

TEST_F(ShardsTest, ArriveInEveryWayOfOnboarding) {
  const ShardedModel model;
  const KvOptions base = in_directory();
  const Hashes hashes = VolumeTier::sequence(1, 4);
  for (const Shard& shard : model.fleet(4)) FleetRank(model, base, shard).store(hashes);
  FleetRank reader(model, base, model.fleet(2)[1], model.fleet(4));
  ASSERT_TRUE(reader.kv().prefetch(hashes).value().wait());
  EXPECT_EQ(reader.kv().find(hashes), (std::vector<TierRun>{{VolumeTier::kG2, 0, 4}}));
  reader.push_out();
  const OnboardHandle handle = reader.kv().onboard_async(hashes, {.by_layer = true}).value();
  ASSERT_TRUE(handle.wait_layer(0));
  const auto ids = handle.wait_layer(1);
  ASSERT_TRUE(ids) << ids.error();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(reader.has_bytes((*ids)[i], hashes[i]));
  EXPECT_EQ(handle.wait().value().size(), 4u);
}

// ---- what the plan does not allow

class RefusedShardsTest : public ShardsTest {
 protected:
  // Writes with one model and reads with another: a miss for `why`, whose text says `says`.
  void expect_refused(const ShardedModel& writes, const ShardedModel& reads, const Shard& reader,
                      const std::vector<Shard>& writers, Miss why, const std::string& says) {
    const KvOptions base = in_directory();
    const Hashes hashes = VolumeTier::sequence(++number_, 2);
    for (const Shard& shard : writers) FleetRank(writes, base, shard).store(hashes);
    FleetRank rank(reads, base, reader, writers);
    const OnboardHandle call = rank.kv().onboard_async(hashes).value();
    EXPECT_EQ(call.wait().value().size(), 0u);
    EXPECT_EQ(call.blocks()[0].state, OnboardState::kMiss);
    EXPECT_EQ(call.blocks()[0].miss, why) << to_string(call.blocks()[0].miss);
    EXPECT_EQ(call.blocks()[1].miss, Miss::kBehind);
    EXPECT_THAT(rank.kv().status().shard_refusal, HasSubstr(says));
    rank.store(hashes);
    EXPECT_EQ(rank.onboard(hashes), 2u) << "its own";
    rank.push_out();
    rank.expect_counts_exact();
  }

  std::uint64_t number_ = 0;
};

TEST_F(RefusedShardsTest, OpaqueContentIsNotCut) {
  const ShardedModel opaque{.opaque = true};
  expect_refused(opaque, opaque, opaque.fleet(4)[2], opaque.fleet(2), Miss::kOtherShards,
                 "rank 2 of 4 (layers 0 to 1, heads 2 to 2) cannot be made from the objects of rank 1 of 2 "
                 "(layers 0 to 1, heads 2 to 3): opaque content cannot be cut");
  expect_refused(opaque, opaque, opaque.fleet(2)[0], opaque.fleet(4), Miss::kOtherShards,
                 "opaque content cannot be cut");
  // The same heads on more ranks are not cut.
  expect_fleets_read_each_other(in_directory(), opaque, {{4, 4, 8}, {1, 2, 4}}, 50);
}

TEST_F(RefusedShardsTest, OneScaleForAllHeadsIsNotPutTogetherFromTwo) {
  const ShardedModel model{.token_scales = true};
  expect_refused(model, model, model.fleet(2)[0], model.fleet(4), Miss::kOtherShards,
                 "plane 1 has one value for all heads");
}

TEST_F(RefusedShardsTest, LayersThatNobodyHas) {
  const ShardedModel model{.layers = 2};
  const ShardedModel deeper{.layers = 3};
  expect_refused(model, deeper, deeper.fleet(4)[0], model.fleet(2), Miss::kOtherShards,
                 "no source has layer 2, head 0");
  expect_refused(model, model, model.fleet(2)[0], {model.fleet(4)[0]}, Miss::kOtherShards,
                 "no source has layer 0, head 1");
}

// A fleet that was given the keys of another model.
TEST_F(RefusedShardsTest, OtherShapesUnderTheSameKeys) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  const ShardedModel model;
  const ShardedModel other_type{.dtype = layout::Dtype::kBF16};
  expect_refused(other_type, model, model.fleet(4)[0], model.fleet(2), Miss::kOtherShards,
                 "has another shape: 4 tokens, 1 planes, bf16, ");
  const ShardedModel other_page{.block_size = 8};
  expect_refused(other_page, model, model.fleet(4)[0], model.fleet(2), Miss::kDamaged, "");
  const ShardedModel more_planes{.head_scales = true};
  expect_refused(more_planes, model, model.fleet(2)[0], model.fleet(4), Miss::kDamaged, "");
}

TEST_F(RefusedShardsTest, AnObjectUnderTheKeyOfAnotherRank) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  const ShardedModel model;
  const KvOptions base = in_directory();
  const Hashes hashes = VolumeTier::sequence(1, 1);
  std::vector<std::string> keys;
  std::size_t bytes = 0;
  for (const Shard& shard : model.fleet(2)) {
    FleetRank writer(model, base, shard);
    writer.store(hashes);
    keys.push_back(writer.key(hashes[0]));
    bytes = writer.object_bytes();
  }
  with_volume(base, [&](Volume& volume) {
    ASSERT_TRUE(put_one(volume, keys[0], get_one(volume, keys[1], bytes).value()));
  });
  FleetRank reader(model, base, model.fleet(4)[0], model.fleet(2));
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.misses(Miss::kDamaged), 1u);
}

TEST_F(RefusedShardsTest, OptionsThatNameNothing) {
  const ShardedModel model;
  KvOptions options = model.options(in_directory(), model.fleet(2)[0]);
  options.g4->other_shards = {Shard{.layers = {0, 2}, .rank = 1, .ranks = 4}};
  EXPECT_THAT(KvBlockManager::create(options).error().message(),
              HasSubstr("g4.other_shards has rank 1 of 4 (layers 0 to 1, no heads)"));
  options.g4->other_shards = {Shard{{0, 2}, {0, 2}, 4, 4}};
  EXPECT_EQ(KvBlockManager::create(options).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Shard::tensor_ranks(3, 4, {0, 2}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Shard::tensor_ranks(0, 4, {0, 2}).error().code(), ErrorCode::kInvalidArgument);
}

// ---- whose objects they are

TEST_F(ShardsTest, AreLostWhileTheyAreKnown) {
  const ShardedModel model;
  const KvOptions base = in_directory();
  const Hashes hashes = VolumeTier::sequence(1, 3);
  for (const Shard& shard : model.fleet(4)) FleetRank(model, base, shard).store(hashes);
  FleetRank reader(model, base, model.fleet(2)[0], model.fleet(4));
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  const FleetRank owner(model, base, model.fleet(4)[1]);
  with_volume(base, [&](Volume& volume) {
    const std::string key = owner.key(hashes[1]);
    const std::string_view gone = key;
    ASSERT_TRUE(volume.remove(std::span(&gone, 1))[0]);
  });
  EXPECT_EQ(reader.onboard(hashes), 1u);
  EXPECT_EQ(reader.misses(Miss::kGone), 1u);
  EXPECT_EQ(reader.onboard(hashes), 1u);
  EXPECT_EQ(reader.misses(Miss::kOtherShards), 1u) << "now it was asked for again";
  reader.push_out();
  reader.expect_counts_exact();
}

// One of the volumes with the parts of a block never answers a read.
TEST_F(ShardsTest, AreGivenUpWhereAVolumeIsSilent) {
  const ShardedModel model;
  const Hashes hashes = VolumeTier::sequence(1, 2);
  for (const Shard& shard : model.fleet(2))
    FleetRank(model, VolumeTier::options({directory(shard.rank == 0 ? "a" : "b")}), shard).store(hashes);
  const auto gate = std::make_shared<Gate>();
  const auto script = std::make_shared<VolumeScript>();
  script->on_call = [gate](VolumeCall call) {
    if (call == VolumeCall::kGet) gate->pass();
  };
  VolumeDescriptor silent = directory("b");
  silent.kind = "scripted";
  VolumeRegistry kinds = VolumeRegistry::with_builtin();
  kinds.add("scripted", [script](const VolumeDescriptor& descriptor) {
    return DirectoryVolume::attach(descriptor).transform([&](std::unique_ptr<Volume>&& made) {
      return std::unique_ptr<Volume>(std::make_unique<ScriptedVolume>(std::move(made), script));
    });
  });
  for (const char* const leaves : {"a", "b"}) {
    FleetRank reader(model, VolumeTier::options({directory("a"), silent}, kinds), model.fleet(1)[0],
                     model.fleet(2));
    const auto soon = [] { return Clock::real().now() + std::chrono::milliseconds(20); };
    const OnboardHandle late = reader.kv().onboard_async(hashes, {.deadline = soon()}).value();
    EXPECT_TRUE(late.wait().value().empty());
    EXPECT_EQ(late.blocks()[0].miss, Miss::kLate);
    const OnboardHandle cancelled = reader.kv().onboard_async(hashes).value();
    gate->wait_for_somebody();
    cancelled.cancel();
    EXPECT_EQ(code_of(cancelled.wait()), ErrorCode::kCancelled);
    const OnboardHandle left = reader.kv().onboard_async(hashes).value();
    EXPECT_EQ(reader.kv().unregister_volume(leaves, soon()).value(), 2u);
    EXPECT_TRUE(left.wait().value().empty());
    EXPECT_NE(left.blocks()[0].miss, Miss::kCancelled) << "nobody cancelled it";
    EXPECT_TRUE(reader.kv().shutdown());
    reader.expect_counts_exact();
  }
  gate->open();
}

TEST_F(ShardsTest, StayWhenTheirReaderEvictsThem) {
  const ShardedModel model;
  KvOptions base = in_directory();
  base.g4->block_count = 16;
  const Shard writer = model.fleet(1)[0];
  for (std::uint64_t number = 0; number < 6; ++number)
    FleetRank(model, base, writer).store(VolumeTier::sequence(number, 4));
  base.g4->remove_evicted = true;
  FleetRank reader(model, base, model.fleet(2)[0], {writer});
  for (int round = 0; round < 2; ++round)
    for (std::uint64_t number = 0; number < 6; ++number) {
      EXPECT_EQ(reader.onboard(VolumeTier::sequence(number, 4)), 4u) << round;
      reader.push_out();
    }
  EXPECT_GT(reader.kv().status().g4->evictions, 0u);
  reader.expect_counts_exact();
}

TEST_F(ShardsTest, AreRemovedForGoodByTheirReader) {
  const ShardedModel model;
  const KvOptions base = in_directory();
  const Hashes hashes = VolumeTier::sequence(1, 3);
  const std::vector<Shard> writers = model.fleet(4);
  for (const Shard& shard : writers) FleetRank(model, base, shard).store(hashes);
  {
    FleetRank reader(model, base, model.fleet(2)[0], writers);
    EXPECT_EQ(reader.onboard(hashes), 3u);
    ASSERT_TRUE(reader.kv().reset_blocks(std::span(hashes).last(1)));
    EXPECT_EQ(reader.onboard(hashes), 2u);
    reader.push_out();
    EXPECT_EQ(reader.kv().reset(VolumeTier::kG4).value(), 2u);
    EXPECT_EQ(reader.onboard(hashes), 0u);
    reader.expect_counts_exact();
  }
  EXPECT_EQ(FleetRank(model, base, writers[0]).onboard(hashes), 0u);
  EXPECT_EQ(FleetRank(model, base, writers[1]).onboard(hashes), 0u);
  EXPECT_EQ(FleetRank(model, base, writers[2]).onboard(hashes), 3u) << "the other reader's";
  // A reader that may not write says so.
  KvOptions read_only = base;
  read_only.g4->volumes.clear();
  FleetRank reader(model, read_only, model.fleet(2)[1], writers);
  ASSERT_TRUE(reader.kv().register_volume(base.g4->volumes[0], {.write = false}));
  EXPECT_EQ(reader.onboard(hashes), 3u);
  EXPECT_EQ(reader.kv().reset_blocks(hashes).error().code(), ErrorCode::kUnsupported);
}

// Four ranks write while two read, and everybody removes now and then.
TEST_F(ShardsTest, AreReadWhileTheyAreWritten) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  const ShardedModel model;
  const KvOptions base = in_directory();
  constexpr std::uint64_t kTexts = 4;
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> made{0};      // blocks that readers put together
  std::atomic<std::size_t> refused{0};   // of which a part was missing
  std::atomic<std::size_t> removals{0};  // by readers
  std::vector<std::thread> threads;
  for (const Shard& shard : model.fleet(4))
    threads.emplace_back([&, shard] {
      FleetRank writer(model, base, shard);
      for (std::uint64_t round = shard.rank; !stop; ++round) {
        const Hashes hashes = VolumeTier::sequence(round % kTexts, 3);
        const std::size_t found = writer.onboard(hashes);
        writer.push_out();
        if (found < 3) writer.store(std::span(hashes).subspan(found));
      }
      writer.expect_counts_exact();
    });
  for (const Shard& shard : model.fleet(2))
    threads.emplace_back([&, shard] {
      FleetRank reader(model, base, shard, model.fleet(4));
      for (std::uint64_t round = 0; !stop; ++round) {
        const Hashes hashes = VolumeTier::sequence(round % kTexts, 3);
        made += reader.onboard(hashes);
        reader.push_out();
        if (round % 7 == 6) {
          static_cast<void>(reader.kv().reset_blocks(hashes));
          ++removals;
        }
        refused = refused + (reader.misses(Miss::kOtherShards) > 0 ? 1 : 0);
      }
      EXPECT_EQ(reader.misses(Miss::kDamaged), 0u);
      reader.expect_counts_exact();
    });
  const ashlar::testing::UntilSeen time(1.0);
  while (!time.over([&] { return made > 50 && refused > 0 && removals > 5; })) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(made, 50u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(removals, 5u);
}

}  // namespace
}  // namespace ashlar::tiers
