// OtherShards against a model: which sets of shards make a block, and which bytes it then has.
#include "tiers/volume/other_shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/testing/time_box.h"
#include "ashlar/transfer/block_checksum.h"
#include "support/block_images.h"
#include "support/volume_objects.h"
#include "tokens/xxhash_inline.h"
#include "transfer/copy/canonical_runs.h"

namespace ashlar::tiers {
namespace {

using layout::Range;
using layout::Shard;
using transfer::BlockSet;

const tokens::NamespaceFingerprint kModelKeys = tokens::NamespaceFingerprint::from_bits(5, 6);
const tokens::SequenceHash kBlock = tokens::SequenceHash::root(77);

// A model of some layers and heads, with values per head and, if `for_all`, one for all heads.
struct Model {
  std::uint32_t layers = 1;
  std::uint32_t heads = 1;
  bool scales = false;
  bool for_all = false;

  std::shared_ptr<const BlockSet> blocks(const Shard& shard, const layout::AxisOrder& order) const {
    std::vector<transfer::PlaneShape> planes;
    const auto add = [&](std::uint32_t plane_heads, std::uint32_t head_dim) {
      layout::LayoutConfig config = transfer::small_shape(1, shard.layers.count, plane_heads);
      config.head_dim = head_dim;
      config.inner_dim = plane_heads * head_dim;
      planes.push_back({layout::Layout::create(config, order).value(), shard});
      planes.back().shard.heads.count = plane_heads;
    };
    add(shard.heads.count, 3);
    if (scales) add(shard.heads.count, 1);
    if (for_all) add(1, 1);
    storage::SystemAllocator memory;
    return BlockSet::allocate(planes, memory).value();
  }
  // Each element says where in the model it belongs.
  std::shared_ptr<const BlockSet> filled(const Shard& shard, const layout::AxisOrder& order) const {
    auto set = blocks(shard, order);
    for (std::size_t p = 0; p < set->planes().size(); ++p) {
      const layout::Layout& layout = set->planes()[p].layout;
      const bool shared = for_all && p + 1 == set->planes().size();
      transfer::BlockImage::for_each_position(layout.config(), [&](const layout::Position& at) {
        const std::uint64_t head = shared ? 0 : at.head + shard.heads.first;
        Random random(((((p * 64 + at.layer + shard.layers.first) * 2 + at.outer) * 64 + at.token) * 64) +
                      head);
        for (std::uint64_t b = 0; b < layout.config().head_bytes(); ++b)
          set->address(p, layout.place(at))[b] = static_cast<std::byte>(random.next());
      });
    }
    return set;
  }
};

Bytes canonical(const BlockSet& set) {
  Bytes bytes;
  for (std::size_t plane = 0; plane < set.planes().size(); ++plane)
    transfer::for_each_run(set, plane, 0, [&](const std::byte* run, std::uint64_t count) {
      bytes.insert(bytes.end(), run, run + count);
    });
  return bytes;
}

VolumeObject described(const BlockSet& set) {
  return VolumeObject::describe(set, kModelKeys, 1, 2);
}

Bytes object_of(const BlockSet& set) {
  VolumeObject object = described(set);
  object.hash = kBlock;
  object.checksum = transfer::checksum_block(set, 0, {kBlock, kModelKeys}).value();
  const auto header = object.encode();
  Bytes bytes(header.begin(), header.end());
  const Bytes payload = canonical(set);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

Range some_range(Random& random, std::uint32_t of) {
  const auto first = static_cast<std::uint32_t>(random.below(of));
  return {first, static_cast<std::uint32_t>(1 + random.below(of - first))};
}

TEST(OtherShardsTest, MakeWhatTheModelSaysFromWhateverIsPresent) {
  std::uint64_t seed = 0;
  std::size_t made = 0;
  std::size_t gathered = 0;
  std::size_t incomplete = 0;
  std::size_t shared_refused = 0;
  const ashlar::testing::TimeBox box(1.0);
  while (!box.over() || made < 100 || gathered < 50 || incomplete < 50 || shared_refused < 5) {
    SCOPED_TRACE(++seed);
    ASSERT_LT(seed, 1'000'000u) << "never saw what it is for";
    Random random(seed);
    const Model model{.layers = static_cast<std::uint32_t>(1 + random.below(3)),
                      .heads = static_cast<std::uint32_t>(1 + random.below(6)),
                      .scales = random.below(2) == 0,
                      .for_all = random.below(3) == 0};
    const auto order = [&] { return layout::order::kAll[random.below(layout::order::kAll.size())].order; };
    const Shard mine{some_range(random, model.layers), some_range(random, model.heads), 0, 7};
    const auto own = model.blocks(mine, layout::order::kFullyContiguousNhd);
    std::vector<Shard> named;
    const std::uint64_t count = 1 + random.below(5);
    named.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i)
      named.push_back({some_range(random, model.layers), some_range(random, model.heads), i, 6});
    const auto others = OtherShards::create(*own, described(*own), named).value();
    if (others == nullptr) {
      for (const Shard& shard : named)
        EXPECT_TRUE(intersect(shard.layers, mine.layers).count == 0 ||
                    intersect(shard.heads, mine.heads).count == 0);
      continue;
    }
    std::vector<bool> present;
    present.reserve(others->size());
    for (std::size_t i = 0; i < others->size(); ++i) present.push_back(random.below(4) != 0);
    // The oracle: every head of every layer has a present source.
    bool covered = true;
    for (std::uint32_t l = mine.layers.first; l < mine.layers.end(); ++l)
      for (std::uint32_t h = mine.heads.first; h < mine.heads.end(); ++h) {
        bool has = false;
        for (std::size_t i = 0; i < others->size(); ++i)
          has |= present[i] && intersect(others->shard(i).layers, {l, 1}).count == 1 &&
                 intersect(others->shard(i).heads, {h, 1}).count == 1;
        covered &= has;
      }
    const auto recipe = others->recipe(present);
    if (!recipe) {
      if (recipe.error().code() == ErrorCode::kUnsupported) {
        EXPECT_TRUE(covered && model.for_all) << recipe.error();
        ++shared_refused;
      } else {
        EXPECT_EQ(recipe.error().code(), ErrorCode::kNotFound);
        EXPECT_FALSE(covered);
        ++incomplete;
      }
      continue;
    }
    ASSERT_TRUE(covered);
    Bytes block(described(*own).payload_bytes, std::byte{0xee});
    for (const OtherShards::Part& part : (*recipe)->parts) {
      ASSERT_TRUE(present[part.source]);
      const auto source = model.filled(others->shard(part.source), order());
      Bytes object = object_of(*source);
      EXPECT_EQ(others->key(part.source, kBlock),
                VolumeObject::decode(std::span(object).first(VolumeObject::kHeaderBytes)).value().key());
      const auto sizes = others->payload_bytes(part.source);
      EXPECT_NE(std::ranges::find(sizes, object.size() - VolumeObject::kHeaderBytes), sizes.end());
      // A flipped bit anywhere is noticed before anything is copied.
      const std::size_t at = random.below(object.size());
      object[at] ^= std::byte{8};
      const Bytes before = block;
      EXPECT_FALSE(others->take(part, kBlock, object, block)) << at;
      EXPECT_TRUE(block == before);
      object[at] ^= std::byte{8};
      EXPECT_EQ(code_of(others->take(part, tokens::SequenceHash::root(78), object, block)),
                ErrorCode::kCorruption);
      const auto taken = others->take(part, kBlock, object, block);
      ASSERT_TRUE(taken) << taken.error();
    }
    EXPECT_TRUE(block == canonical(*model.filled(mine, layout::order::kFullyContiguousNhd)));
    ++made;
    if ((*recipe)->parts.size() > 1) ++gathered;
  }
}

TEST(OtherShardsTest, OneObjectWithAllHeadsIsTakenBeforeMany) {
  const Model model{.layers = 2, .heads = 8};
  const Shard mine{{0, 2}, {0, 4}, 0, 2};
  const auto own = model.blocks(mine, layout::order::kFullyContiguousNhd);
  std::vector<Shard> named = Shard::tensor_ranks(8, 8, {0, 2}).value();
  named.push_back({{0, 2}, {0, 8}, 0, 1});
  const auto others = OtherShards::create(*own, described(*own), named).value();
  ASSERT_EQ(others->size(), 5u);
  EXPECT_EQ(others->recipe({true, true, true, true, true}).value()->parts.size(), 1u);
  EXPECT_EQ(others->recipe({false, true, true, true, true}).value()->parts.size(), 4u);
  EXPECT_EQ(others->recipe({false, true, true, true, true}).value(),
            others->recipe({false, true, true, true, true}).value())
      << "computed once";
}

// Each plane that may be per head or for all doubles the shapes of an object.
TEST(OtherShardsTest, RefuseMorePlanesThanTheyCanTellApart) {
  const Shard whole{.layers = {0, 1}, .heads = {0, 2}};
  const auto made = [&](std::size_t planes, std::uint32_t heads) {
    const Shard mine{.layers = {0, 1}, .heads = {0, heads}, .rank = 0, .ranks = 2};
    std::vector<transfer::PlaneShape> shapes;
    for (std::size_t i = 0; i < planes; ++i) {
      layout::LayoutConfig config = transfer::small_shape(1, 1, i == 0 ? heads : 1);
      config.head_dim = 1;
      config.inner_dim = config.num_heads;
      Shard of_plane = mine;
      of_plane.heads.count = config.num_heads;
      shapes.push_back(
          {layout::Layout::create(config, layout::order::kFullyContiguousNhd).value(), of_plane});
    }
    storage::SystemAllocator memory;
    const auto own = BlockSet::allocate(shapes, memory).value();
    return OtherShards::create(*own, described(*own), std::span(&whole, 1));
  };
  EXPECT_TRUE(made(9, 1));
  const auto refused = made(10, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(made(10, 2)) << "with two heads of its own, a rank knows which planes have one for all";
}

TEST(OtherShardsTest, AnObjectOfANewerVersionIsNotDamaged) {
  const Model model{.layers = 1, .heads = 2};
  const auto own = model.blocks({{0, 1}, {0, 1}, 0, 2}, layout::order::kFullyContiguousNhd);
  const Shard whole{{0, 1}, {0, 2}, 0, 1};
  const auto others = OtherShards::create(*own, described(*own), std::span(&whole, 1)).value();
  const auto recipe = others->recipe({true}).value();
  Bytes object = object_of(*model.filled(whole, layout::order::kFullyContiguousNhd));
  Bytes block(described(*own).payload_bytes);
  object[8] = std::byte{VolumeObject::kVersion + 1};
  const std::size_t covered = VolumeObject::kHeaderBytes - sizeof(std::uint64_t);
  const std::uint64_t checksum = XXH3_64bits(object.data(), covered);
  std::memcpy(object.data() + covered, &checksum, sizeof checksum);
  EXPECT_EQ(code_of(others->take(recipe->parts[0], kBlock, object, block)), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace ashlar::tiers
