#include "ashlar/transfer/copy_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::transfer {
namespace {

using layout::AxisOrder;
using layout::Dtype;
using layout::Layout;
using layout::LayoutConfig;
using layout::Place;
using layout::Position;
using layout::Range;
using layout::Regions;
using layout::Shard;
namespace order = layout::order;

LayoutConfig shape(std::uint32_t blocks, std::uint32_t layers, std::uint32_t heads) {
  return {.block_count = blocks,
          .num_layers = layers,
          .outer_dim = 2,
          .block_size = 3,
          .num_heads = heads,
          .head_dim = 2,
          .inner_dim = heads * 2,
          .dtype = Dtype::kF16};
}

// A layout with memory of its own, every byte of it known.
struct Memory {
  Memory(const Layout& its_layout, const Shard& its_shard, std::uint8_t fill)
      : layout(its_layout),
        shard(its_shard),
        regions(layout.region_count(), std::vector<std::uint8_t>(layout.region_bytes(), fill)) {}

  std::uint8_t* at(const Place& place) { return regions[place.region].data() + place.offset; }

  // Bytes that say which element of the model they belong to.
  void number() {
    for_each([&](const Position& p, std::uint8_t* bytes) {
      Random random(((p.block * 64ull + p.layer + shard.layers.first) * 2 + p.outer) * 4096 + p.token * 64 +
                    p.head + shard.heads.first);
      for (std::uint64_t i = 0; i < layout.config().head_bytes(); ++i)
        bytes[i] = static_cast<std::uint8_t>(random.next());
    });
  }
  template <class F>
  void for_each(F&& fn) {
    const LayoutConfig& c = layout.config();
    for (std::uint32_t b = 0; b < c.block_count; ++b)
      for (std::uint32_t l = 0; l < c.num_layers; ++l)
        for (std::uint32_t o = 0; o < c.outer_dim; ++o)
          for (std::uint32_t t = 0; t < c.block_size; ++t)
            for (std::uint32_t h = 0; h < c.num_heads; ++h) {
              const Position p{b, l, o, t, h};
              fn(p, at(layout.place(p)));
            }
  }

  Layout layout;
  Shard shard;
  std::vector<std::vector<std::uint8_t>> regions;
};

// Runs the plan in strips of a random size, by a random number of cursors, row by row or piece by piece.
void run(const CopyPlan& plan, Memory& from, Memory& to) {
  Random random(plan.bytes());
  const std::uint64_t strip = 1 + random.below(64);
  const std::uint64_t units = CopyCursor::units(plan, strip);
  std::uint64_t bytes = 0;
  const auto copy = [&](const Place& source, const Place& target, std::uint64_t count) {
    ASSERT_LE(source.offset + count, from.layout.region_bytes());
    ASSERT_LE(target.offset + count, to.layout.region_bytes());
    std::memcpy(to.at(target), from.at(source), count);
    bytes += count;
  };
  for (std::uint64_t first = 0; first < units;) {
    const std::uint64_t end = std::min(units, first + 1 + random.below(units));
    CopyCursor cursor(plan, strip, first, end);
    if (random.below(2) == 0) {
      CopyPiece piece;
      while (cursor.next(&piece)) copy(piece.from, piece.to, piece.bytes);
    } else {
      CopyRow row;
      while (cursor.next_row(&row))
        for (std::uint64_t i = 0; i < row.count; ++i) {
          copy(row.from, row.to, row.bytes);
          row.from.offset += row.from_stride;
          row.to.offset += row.to_stride;
        }
    }
    first = end;
  }
  EXPECT_EQ(bytes, plan.bytes());
}

// Element by element: the model of plan().
void copy_bytewise(Memory& from, const std::vector<std::uint32_t>& from_blocks, Memory& to,
                   const std::vector<std::uint32_t>& to_blocks, Range layers, Range heads) {
  for (std::size_t i = 0; i < from_blocks.size(); ++i)
    for (std::uint32_t l = layers.first; l < layers.end(); ++l)
      for (std::uint32_t o = 0; o < from.layout.config().outer_dim; ++o)
        for (std::uint32_t t = 0; t < from.layout.config().block_size; ++t)
          for (std::uint32_t h = heads.first; h < heads.end(); ++h)
            std::memcpy(to.at(to.layout.place(
                            {to_blocks[i], l - to.shard.layers.first, o, t, h - to.shard.heads.first})),
                        from.at(from.layout.place(
                            {from_blocks[i], l - from.shard.layers.first, o, t, h - from.shard.heads.first})),
                        from.layout.config().head_bytes());
}

void expect_like_the_model(const Layout& from_layout, const Shard& from_shard, const Layout& to_layout,
                           const Shard& to_shard, const PlanSelection& selection, Range layers, Range heads) {
  const std::vector<std::uint32_t> from_blocks = {4, 0, 3};
  const std::vector<std::uint32_t> to_blocks = {1, 2, 5};
  Memory from(from_layout, from_shard, 0x11);
  Memory to(to_layout, to_shard, 0xEE);
  from.number();
  Memory expected = to;
  copy_bytewise(from, from_blocks, expected, to_blocks, layers, heads);
  const Result<CopyPlan> made =
      plan({from_layout, from_shard, from_blocks}, {to_layout, to_shard, to_blocks}, selection);
  ASSERT_TRUE(made) << made.error();
  run(*made, from, to);
  // Blocks that were not named, padding and other layers stay as they were.
  EXPECT_EQ(to.regions, expected.regions);
  EXPECT_EQ(made->bytes(), 3u * layers.count * heads.count * 2 * 3 * 4);
}

std::vector<Layout> all_layouts(const LayoutConfig& plain) {
  std::vector<Layout> layouts;
  LayoutConfig padded = plain;
  padded.alignment = 64;
  padded.layer_alignment = 16;
  for (const order::NamedOrder& named : order::kAll) {
    layouts.push_back(Layout::create(plain, named.order).value());
    layouts.push_back(Layout::create(padded, named.order).value());
    if (named.order[0] == layout::Axis::kLayer)
      layouts.push_back(Layout::create(padded, named.order, Regions::kPerLayer).value());
  }
  return layouts;
}

TEST(CopyPlanTest, MovesBlocksBetweenAnyTwoLayouts) {
  const LayoutConfig config = shape(6, 3, 4);
  const Shard whole = Shard::whole(config);
  for (const Layout& from : all_layouts(config))
    for (const Layout& to : all_layouts(config))
      expect_like_the_model(from, whole, to, whole, {}, {0, 3}, {0, 4});
}

TEST(CopyPlanTest, MovesLayersAndHeadsAlone) {
  const LayoutConfig config = shape(6, 4, 4);
  const Shard whole = Shard::whole(config);
  const Layout from = Layout::create(config, order::kLbhnc).value();
  for (const Layout& to : all_layouts(config))
    for (const Range layers : {Range{0, 1}, Range{1, 2}, Range{3, 1}})
      for (const Range heads : {Range{0, 4}, Range{2, 1}, Range{1, 3}})
        expect_like_the_model(from, whole, to, whole, {layers, heads}, layers, heads);
}

// Source and destination divide 8 heads and 6 layers differently; each plan moves what both have.
TEST(CopyPlanTest, MovesBetweenTensorAndPipelineShards) {
  Random random(5);
  const std::vector<Range> stages_a = {{0, 6}};
  const std::vector<Range> stages_b = {{0, 1}, {1, 3}, {4, 2}};
  for (const std::uint32_t from_ranks : {1u, 2u, 4u, 8u, 16u})
    for (const std::uint32_t to_ranks : {1u, 2u, 4u, 8u, 16u})
      for (const bool pipelined : {false, true}) {
        const auto shards_of = [&](std::uint32_t ranks, const std::vector<Range>& stages) {
          std::vector<Shard> shards;
          for (const Range& layers : stages)
            for (std::uint32_t rank = 0; rank < ranks; ++rank)
              shards.push_back(Shard::tensor_rank(rank, ranks, 8, layers).value());
          return shards;
        };
        const std::vector<Shard> sources = shards_of(from_ranks, pipelined ? stages_b : stages_a);
        for (const Shard& wanted : shards_of(to_ranks, pipelined ? stages_a : stages_b)) {
          const auto parts = cover(wanted, sources);
          ASSERT_TRUE(parts) << parts.error();
          const auto layout_of = [&](const Shard& shard) {
            const AxisOrder& any = order::kAll[random.below(order::kAll.size())].order;
            return Layout::create(shape(6, shard.layers.count, shard.heads.count), any).value();
          };
          Memory to(layout_of(wanted), wanted, 0xEE);
          std::vector<std::uint32_t> blocks(6);
          std::iota(blocks.begin(), blocks.end(), 0u);
          std::uint64_t bytes = 0;
          for (const ShardSource& part : *parts) {
            Memory from(layout_of(sources[part.source]), sources[part.source], 0x11);
            from.number();
            const Result<CopyPlan> made = plan({from.layout, from.shard, blocks},
                                               {to.layout, to.shard, blocks}, {part.layers, part.heads});
            ASSERT_TRUE(made) << made.error();
            run(*made, from, to);
            bytes += made->bytes();
          }
          Memory expected(to.layout, wanted, 0xEE);
          expected.number();
          EXPECT_EQ(to.regions, expected.regions);
          EXPECT_EQ(bytes, to.layout.config().block_bytes() * 6);
        }
      }
}

TEST(CopyPlanTest, JoinsWhatLiesSideBySide) {
  const LayoutConfig config = shape(6, 3, 4);
  const Shard whole = Shard::whole(config);
  const std::vector<std::uint32_t> blocks = {0, 1};
  const auto pieces = [&](const AxisOrder& from, const AxisOrder& to) {
    const Layout a = Layout::create(config, from).value();
    const Layout b = Layout::create(config, to).value();
    return plan({a, whole, blocks}, {b, whole, blocks})->pieces() / blocks.size();
  };
  EXPECT_EQ(pieces(order::kFullyContiguousNhd, order::kFullyContiguousNhd), 1u);
  EXPECT_EQ(pieces(order::kFullyContiguousNhd, order::kBlockFirstNhd), 3u);   // one per layer
  EXPECT_EQ(pieces(order::kFullyContiguousNhd, order::kBlockSecondNhd), 6u);  // per layer, K and V
  EXPECT_EQ(pieces(order::kLbhnc, order::kBlhnc), 3u);
  EXPECT_EQ(pieces(order::kFullyContiguousHnd, order::kUniversalTp),
            3u * 2 * 4);  // a head's tokens stay together
  EXPECT_EQ(pieces(order::kFullyContiguousNhd, order::kFullyContiguousHnd), 3u * 2 * 3 * 4);
  // Half of the heads of HND blocks: one run per layer and K or V.
  const Layout a = Layout::create(config, order::kFullyContiguousHnd).value();
  EXPECT_EQ(plan({a, whole, blocks}, {a, whole, blocks}, {{}, Range{2, 2}})->pieces() / blocks.size(), 6u);
}

TEST(CopyCursorTest, NeighbouringBlocksMoveAsOne) {
  const LayoutConfig config = shape(8, 3, 4);
  const Shard whole = Shard::whole(config);
  const std::vector<std::uint32_t> from = {5, 1, 2, 3, 7};
  const std::vector<std::uint32_t> to = {0, 4, 5, 6, 7};
  const auto pieces = [&](const AxisOrder& order, std::uint64_t strip) {
    const Layout layout = Layout::create(config, order).value();
    const CopyPlan made = plan({layout, whole, from}, {layout, whole, to}).value();
    CopyCursor cursor(made, strip, 0, CopyCursor::units(made, strip));
    std::vector<std::uint64_t> sizes;
    CopyPiece piece;
    while (cursor.next(&piece)) sizes.push_back(piece.bytes);
    return sizes;
  };
  const std::uint64_t block = config.block_bytes();
  EXPECT_EQ(pieces(order::kFullyContiguousNhd, 1 << 20),
            (std::vector<std::uint64_t>{block, 3 * block, block}));
  EXPECT_EQ(pieces(order::kFullyContiguousNhd, 2 * block),
            (std::vector<std::uint64_t>{block, 2 * block, block, block}));
  EXPECT_EQ(pieces(order::kBlockSecondNhd, 1 << 20).size(),
            3u * 2 * 3);  // per layer, K and V, and run of blocks
  EXPECT_EQ(pieces(order::kUniversalTp, 1 << 20).size(), 3u);
}

TEST(CopyPlanTest, GathersWhatLiesTogetherOnOneSide) {
  const LayoutConfig config = shape(6, 3, 4);
  const Shard whole = Shard::whole(config);
  const std::vector<std::uint32_t> blocks = {0, 1};
  const Layout nhd = Layout::create(config, order::kFullyContiguousNhd).value();
  const Layout hnd = Layout::create(config, order::kFullyContiguousHnd).value();
  const CopyPlan made = plan({nhd, whole, blocks}, {hnd, whole, blocks}).value();
  for (const Side side : {Side::kFrom, Side::kTo}) {
    const GatheredPlan gathered = made.gather(side, 1 << 20);
    EXPECT_EQ(gathered.runs.pieces(), 2u);
    EXPECT_EQ(gathered.runs.piece_bytes(), config.block_bytes());
    EXPECT_EQ(gathered.piece_bytes, config.head_bytes());
    EXPECT_EQ(gathered.runs.bytes(), made.bytes());
  }
  EXPECT_EQ(made.gather(Side::kTo, config.head_bytes()).runs.pieces(), made.pieces());
  EXPECT_LE(made.gather(Side::kTo, 100).runs.piece_bytes(), 100u);
  // An axis that does not fit is cut into equal parts.
  LayoutConfig long_pages = shape(2, 1, 2);
  long_pages.block_size = 1 << 14;
  const Layout tokens = Layout::create(long_pages, order::kFullyContiguousNhd).value();
  const Layout heads = Layout::create(long_pages, order::kFullyContiguousHnd).value();
  const CopyPlan large =
      plan({tokens, Shard::whole(long_pages), blocks}, {heads, Shard::whole(long_pages), blocks}).value();
  const GatheredPlan parts = large.gather(Side::kTo, 10000);
  EXPECT_EQ(parts.runs.piece_bytes(), 8192u);
  EXPECT_EQ(parts.runs.bytes(), large.bytes());
}

TEST(CopyPlanTest, NoBlocksMeanNoBytes) {
  const LayoutConfig config = shape(6, 3, 4);
  const Layout any = Layout::create(config, order::kLbhnc).value();
  const Result<CopyPlan> made = plan({any, Shard::whole(config), {}}, {any, Shard::whole(config), {}});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->bytes(), 0u);
}

TEST(CopyPlanTest, WhatCannotBeDoneIsRefusedWithTheReason) {
  const LayoutConfig config = shape(6, 3, 4);
  const Layout good = Layout::create(config, order::kFullyContiguousNhd).value();
  const Shard whole = Shard::whole(config);
  const std::vector<std::uint32_t> two = {0, 1};
  const auto refused = [&](const PlanSide& from, const PlanSide& to, const PlanSelection& selection,
                           ErrorCode code, const char* says) {
    const Result<CopyPlan> made = plan(from, to, selection);
    ASSERT_FALSE(made) << says;
    EXPECT_EQ(made.error().code(), code);
    EXPECT_NE(made.error().message().find(says), std::string::npos) << made.error().message();
  };
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  const std::vector<std::uint32_t> one = {0};
  const std::vector<std::uint32_t> beyond = {0, 6};
  const std::vector<std::uint32_t> twice = {3, 3};
  refused({good, whole, two}, {good, whole, one}, {}, kBad, "2 source blocks for 1");
  refused({good, whole, beyond}, {good, whole, two}, {}, kBad, "block 6 at place 1 of the source");
  refused({good, whole, two}, {good, whole, beyond}, {}, kBad, "block 6 at place 1 of the destination");
  refused({good, whole, two}, {good, whole, twice}, {}, kBad, "block 3 of the destination is named twice");
  refused({good, {{0, 2}, {0, 4}}, two}, {good, whole, two}, {}, kBad,
          "the shard of the source has 2 layers");
  refused({good, {{9, 3}, {0, 4}}, two}, {good, whole, two}, {}, kBad, "no layers in common");
  refused({good, {{0, 3}, {4, 4}}, two}, {good, whole, two}, {}, kBad, "no heads in common");
  refused({good, whole, two}, {good, whole, two}, {Range{2, 2}, {}}, kBad, "2 layers from 2 on are wanted");
  refused({good, whole, two}, {good, whole, two}, {{}, Range{0, 0}}, kBad, "0 heads from 0 on are wanted");
  for (const auto& [spoil, says] :
       {std::pair<void (*)(LayoutConfig&), const char*>{[](LayoutConfig& c) { c.block_size = 4; },
                                                        "tokens per block"},
        {[](LayoutConfig& c) { c.head_dim = 4, c.inner_dim = 16; }, "elements per head"},
        {[](LayoutConfig& c) { c.outer_dim = 1; }, "outer dimensions"},
        {[](LayoutConfig& c) { c.dtype = Dtype::kBF16; }, "types of elements"},
        {[](LayoutConfig& c) { c.opaque = true; }, "opaque flags"}}) {
    LayoutConfig other = config;
    spoil(other);
    const Layout bad = Layout::create(other, order::kFullyContiguousNhd).value();
    refused({good, whole, two}, {bad, whole, two}, {}, kBad, says);
  }
}

TEST(CopyPlanTest, OpaqueContentMovesWholeOrNotAtAll) {
  LayoutConfig config = shape(6, 3, 4);
  config.opaque = true;
  const Shard whole = Shard::whole(config);
  const std::vector<std::uint32_t> two = {0, 1};
  const Layout lbhnc = Layout::create(config, order::kLbhnc).value();
  const Layout blhnc = Layout::create(config, order::kBlhnc).value();
  const Layout lbnhc = Layout::create(config, order::kLbnhc).value();
  EXPECT_TRUE(plan({lbhnc, whole, two}, {blhnc, whole, two}));
  EXPECT_TRUE(plan({lbhnc, whole, two}, {blhnc, whole, two}, {Range{1, 1}, {}}));
  const auto code = [&](const Result<CopyPlan>& made) {
    return made ? ErrorCode::kInternal : made.error().code();
  };
  EXPECT_EQ(code(plan({lbhnc, whole, two}, {blhnc, whole, two}, {{}, Range{0, 2}})), ErrorCode::kUnsupported);
  EXPECT_EQ(code(plan({lbhnc, whole, two}, {lbnhc, whole, two})), ErrorCode::kUnsupported);
}

TEST(CoverTest, SaysWhatNobodyHas) {
  const std::vector<Shard> sources = {{{0, 2}, {0, 4}}, {{2, 2}, {0, 3}}};
  const auto parts = cover({{0, 4}, {0, 4}}, sources);
  ASSERT_FALSE(parts);
  EXPECT_EQ(parts.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(parts.error().message().find("layer 2, head 3"), std::string::npos) << parts.error();
}

TEST(CoverTest, OfReplicasTheFirstIsTaken) {
  std::vector<Shard> sources;
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    sources.push_back(Shard::tensor_rank(rank, 8, 1, {0, 2}).value());
  const auto parts = cover({{0, 2}, {0, 1}}, sources);
  ASSERT_TRUE(parts);
  EXPECT_EQ(*parts, (std::vector<ShardSource>{{0, {0, 2}, {0, 1}}}));
}

TEST(ShardTest, RanksShareHeadsEvenlyOrNotAtAll) {
  EXPECT_EQ(Shard::tensor_rank(3, 4, 8, {0, 1})->heads, (Range{6, 2}));
  EXPECT_EQ(Shard::tensor_rank(5, 16, 8, {0, 1})->heads, (Range{2, 1}));
  EXPECT_EQ(Shard::tensor_rank(5, 16, 8, {0, 2}).value(), (Shard{{0, 2}, {2, 1}, 5, 16}));
  EXPECT_EQ(Shard::tensor_rank(3, 4, 8, {0, 2})->to_string(), "rank 3 of 4 (layers 0 to 1, heads 6 to 7)");
  EXPECT_EQ(Shard{}.to_string(), "rank 0 of 1 (no layers, no heads)");
  EXPECT_FALSE(Shard::tensor_rank(0, 3, 8, {0, 1}));
  EXPECT_FALSE(Shard::tensor_rank(0, 12, 8, {0, 1}));
  EXPECT_FALSE(Shard::tensor_rank(4, 4, 8, {0, 1}));
  EXPECT_FALSE(Shard::tensor_rank(0, 4, 0, {0, 1}));
}

}  // namespace
}  // namespace ashlar::transfer
