#include "ashlar/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace ashlar::layout {
namespace {

LayoutConfig small() {
  return {.block_count = 3,
          .num_layers = 2,
          .outer_dim = 2,
          .block_size = 4,
          .num_heads = 3,
          .head_dim = 5,
          .inner_dim = 15,
          .dtype = Dtype::kBF16};
}

template <class F>
void for_each_position(const LayoutConfig& config, F&& fn) {
  for (std::uint32_t b = 0; b < config.block_count; ++b)
    for (std::uint32_t l = 0; l < config.num_layers; ++l)
      for (std::uint32_t o = 0; o < config.outer_dim; ++o)
        for (std::uint32_t t = 0; t < config.block_size; ++t)
          for (std::uint32_t h = 0; h < config.num_heads; ++h) fn(Position{b, l, o, t, h});
}

// Every byte of every element belongs to one position, and lies inside the region.
void expect_disjoint(const Layout& layout) {
  std::vector<std::vector<bool>> taken(layout.region_count(), std::vector<bool>(layout.region_bytes()));
  for_each_position(layout.config(), [&](const Position& position) {
    const Place place = layout.place(position);
    ASSERT_LT(place.region, layout.region_count());
    ASSERT_LE(place.offset + layout.config().head_bytes(), layout.region_bytes());
    for (std::uint64_t i = 0; i < layout.config().head_bytes(); ++i) {
      ASSERT_FALSE(taken[place.region][place.offset + i]);
      taken[place.region][place.offset + i] = true;
    }
  });
}

// --- Config. ---

struct BadConfig {
  const char* what;
  void (*spoil)(LayoutConfig&);
  const char* says;
};

class LayoutConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(LayoutConfigTest, IsRefusedWithTheReason) {
  LayoutConfig config = small();
  ASSERT_TRUE(config.validate());
  GetParam().spoil(config);
  const Result<void> result = config.validate();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(result.error().message().find(GetParam().says), std::string::npos) << result.error().message();
  EXPECT_FALSE(Layout::create(config, order::kFullyContiguousNhd));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, LayoutConfigTest,
    ::testing::Values(
        BadConfig{"NoBlocks", [](LayoutConfig& c) { c.block_count = 0; }, "block_count is 0"},
        BadConfig{"NoLayers", [](LayoutConfig& c) { c.num_layers = 0; }, "num_layers is 0"},
        BadConfig{"NoTokens", [](LayoutConfig& c) { c.block_size = 0; }, "block_size is 0"},
        BadConfig{"NoHeads", [](LayoutConfig& c) { c.num_heads = 0; }, "num_heads is 0"},
        BadConfig{"NoHeadDim", [](LayoutConfig& c) { c.head_dim = 0; }, "head_dim is 0"},
        BadConfig{"NoOuter", [](LayoutConfig& c) { c.outer_dim = 0; }, "outer_dim is 0"},
        BadConfig{"ThreeOuters", [](LayoutConfig& c) { c.outer_dim = 3; }, "outer_dim is 3"},
        BadConfig{"InnerDim", [](LayoutConfig& c) { c.inner_dim = 16; }, "inner_dim is 16; it must be"},
        BadConfig{"Dtype", [](LayoutConfig& c) { c.dtype = static_cast<Dtype>(77); }, "dtype 77"},
        BadConfig{"Alignment", [](LayoutConfig& c) { c.alignment = 3; }, "alignment is 3"},
        BadConfig{"NoAlignment", [](LayoutConfig& c) { c.alignment = 0; }, "alignment is 0"},
        BadConfig{"LayerAlignment", [](LayoutConfig& c) { c.layer_alignment = 12; }, "layer_alignment is 12"},
        BadConfig{"TooLarge",
                  [](LayoutConfig& c) { c.block_count = c.num_layers = c.block_size = 0xFFFF'FFFFu; },
                  "more than 2^56"}),
    [](const auto& test) { return std::string(test.param.what); });

TEST(LayoutBytesTest, FollowFromTheShape) {
  LayoutConfig config = small();
  EXPECT_EQ(config.head_bytes(), 10u);
  EXPECT_EQ(config.outer_bytes(), 10u * 3 * 4);
  EXPECT_EQ(config.block_bytes(), 10u * 3 * 4 * 2 * 2);
  config.dtype = Dtype::kF8E4M3;
  EXPECT_EQ(config.block_bytes(), 5u * 3 * 4 * 2 * 2);
}

// --- Orders. ---

class LayoutOrderTest : public ::testing::TestWithParam<order::NamedOrder> {};

TEST_P(LayoutOrderTest, PutsEveryElementIntoAPlaceOfItsOwn) {
  for (const std::uint64_t alignment : {1u, 64u, 512u})
    for (const std::uint64_t layer_alignment : {1u, 16u, 256u}) {
      LayoutConfig config = small();
      config.alignment = alignment;
      config.layer_alignment = layer_alignment;
      const Result<Layout> layout = Layout::create(config, GetParam().order);
      ASSERT_TRUE(layout) << layout.error();
      expect_disjoint(*layout);
      EXPECT_EQ(layout->strides().block % alignment, 0u);
      EXPECT_EQ(layout->strides().layer % layer_alignment, 0u);
    }
}

// Without alignment an order has no gaps, and neighbours along its innermost axis touch.
TEST_P(LayoutOrderTest, LeavesNoGapsWithoutAlignment) {
  const LayoutConfig config = small();
  const Layout layout = Layout::create(config, GetParam().order).value();
  EXPECT_EQ(layout.region_bytes(), config.block_bytes() * config.block_count);
  EXPECT_EQ(layout.strides().of(GetParam().order[kAxes - 1]), config.head_bytes());
  // Row-major in the order of the axes.
  std::vector<std::uint64_t> offsets;
  for_each_position(config, [&](const Position& p) {
    const std::array<std::uint32_t, kAxes> indices = {p.block, p.layer, p.outer, p.token, p.head};
    std::uint64_t expected = 0;
    for (const Axis axis : GetParam().order)
      expected = expected * layout.extent(axis) + indices[static_cast<std::size_t>(axis)];
    EXPECT_EQ(layout.place(p), (Place{0, expected * config.head_bytes()}));
  });
}

TEST_P(LayoutOrderTest, SaysWhatIsContiguous) {
  const Layout layout = Layout::create(small(), GetParam().order).value();
  const auto axis_is_before = [&](Axis left, Axis right) {
    return std::ranges::find(GetParam().order, left) < std::ranges::find(GetParam().order, right);
  };
  const bool block_outermost = GetParam().order[0] == Axis::kBlock;
  EXPECT_EQ(layout.block_is_contiguous(), block_outermost);
  // A layer of a block is one piece when everything but blocks and layers lies inside both.
  bool layer_whole = true;
  for (const Axis inner : {Axis::kOuter, Axis::kToken, Axis::kHead})
    layer_whole &= axis_is_before(Axis::kBlock, inner) && axis_is_before(Axis::kLayer, inner);
  EXPECT_EQ(layout.layer_is_contiguous(), layer_whole);
}

TEST_P(LayoutOrderTest, ARegionPerLayerNeedsTheLayerOutermost) {
  const Result<Layout> layout = Layout::create(small(), GetParam().order, Regions::kPerLayer);
  ASSERT_EQ(layout.has_value(), GetParam().order[0] == Axis::kLayer);
  if (!layout) return;
  EXPECT_EQ(layout->region_count(), 2u);
  EXPECT_EQ(layout->region_bytes(), small().block_bytes() / 2 * 3);
  expect_disjoint(*layout);
}

// The same strides, handed over by somebody else, are the same layout.
TEST_P(LayoutOrderTest, IsAChoiceOfStrides) {
  LayoutConfig config = small();
  config.alignment = 64;
  const Layout layout = Layout::create(config, GetParam().order).value();
  const Result<Layout> again = Layout::create(config, layout.strides());
  ASSERT_TRUE(again) << again.error();
  EXPECT_EQ(*again, layout);
}

INSTANTIATE_TEST_SUITE_P(Orders, LayoutOrderTest, ::testing::ValuesIn(order::kAll),
                         [](const auto& test) { return std::string(test.param.name); });

// --- Strides of others. ---

TEST(LayoutTest, StridesMayLeaveGaps) {
  Strides strides = Layout::create(small(), order::kFullyContiguousNhd)->strides();
  strides.block += 1'000;
  const Result<Layout> layout = Layout::create(small(), strides);
  ASSERT_TRUE(layout) << layout.error();
  expect_disjoint(*layout);
  EXPECT_TRUE(layout->block_is_contiguous());
}

TEST(LayoutTest, StridesThatOverlapAreRefused) {
  const Strides good = Layout::create(small(), order::kLbhnc)->strides();
  for (const Axis axis : {Axis::kBlock, Axis::kLayer, Axis::kOuter, Axis::kToken, Axis::kHead}) {
    Strides bad = good;
    bad.of(axis) -= 1;
    EXPECT_FALSE(Layout::create(small(), bad)) << to_string(axis);
    bad.of(axis) = 0;
    EXPECT_FALSE(Layout::create(small(), bad)) << to_string(axis);
    bad.of(axis) = ~std::uint64_t{0};
    EXPECT_FALSE(Layout::create(small(), bad)) << to_string(axis);
  }
}

TEST(LayoutTest, AnAxisOfOneNeedsNoStride) {
  LayoutConfig config = small();
  config.block_count = config.outer_dim = 1;
  Strides strides = Layout::create(config, order::kFullyContiguousNhd)->strides();
  strides.outer = strides.block = 0;
  const Result<Layout> layout = Layout::create(config, strides);
  ASSERT_TRUE(layout) << layout.error();
  EXPECT_EQ(layout->region_bytes(), config.block_bytes());
}

TEST(LayoutTest, BlocksAreMultiplesOfTheAlignmentApart) {
  LayoutConfig config = small();
  config.alignment = std::uint64_t{2} << 20;
  const Layout layout = Layout::create(config, order::kFullyContiguousNhd).value();
  EXPECT_EQ(layout.strides().block, std::uint64_t{2} << 20);
  EXPECT_EQ(layout.region_bytes(), std::uint64_t{6} << 20);
  Strides odd = layout.strides();
  odd.block += 4096;
  const Result<Layout> refused = Layout::create(config, odd);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("alignment"), std::string::npos);
}

TEST(LayoutTest, AlignmentThatDoesNotFitIsRefused) {
  LayoutConfig config = small();
  config.block_count = 1u << 20;
  config.alignment = std::uint64_t{1} << 40;
  EXPECT_FALSE(Layout::create(config, order::kFullyContiguousNhd));
}

TEST(LayoutTest, AnOrderNamesEachAxisOnce) {
  const AxisOrder twice = {Axis::kBlock, Axis::kBlock, Axis::kOuter, Axis::kToken, Axis::kHead};
  const Result<Layout> layout = Layout::create(small(), twice);
  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message().find("block is there 2 times"), std::string::npos) << layout.error();
}

TEST(LayoutDeathTest, PlacesOutsideStopTheProcess) {
  const Layout layout = Layout::create(small(), order::kFullyContiguousNhd).value();
  EXPECT_DEATH((void)layout.place({.block = 3}), "block 3 of 3");
  EXPECT_DEATH((void)layout.place({.layer = 2}), "layer 2 of 2");
  EXPECT_DEATH((void)layout.place({.head = 4'000'000'000}), "head 4000000000 of 3");
}

}  // namespace
}  // namespace ashlar::layout
