#include "ashlar/tokens/sequence_hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::tokens {
namespace {

struct ModeCase {
  std::uint32_t position;
  unsigned mode;
  unsigned position_bits;
};

class SequenceHashModes : public ::testing::TestWithParam<ModeCase> {};

TEST_P(SequenceHashModes, EachFieldStandsWhereTheLayoutSays) {
  const auto [position, mode, position_bits] = GetParam();
  const std::uint64_t chain = 0x8123456789abcdefu;
  const std::uint64_t parent = 0xfedcba9876543211u;
  const SequenceHash hash = SequenceHash::make(position, chain, parent).value();

  // The same fields, put together bit by bit from the most significant one.
  const unsigned fragment_bits = 62 - position_bits;
  std::vector<bool> bits;
  const auto push = [&bits](std::uint64_t value, unsigned width) {
    for (unsigned i = width; i-- > 0;) bits.push_back((value >> i) & 1);
  };
  push(mode, 2);
  push(position, position_bits);
  push(chain, 64);
  push(position == 0 ? 0 : parent, fragment_bits);
  ASSERT_EQ(bits.size(), 128u);
  std::array<std::uint8_t, 16> bytes{};
  for (std::size_t i = 0; i < 128; ++i) bytes[i / 8] = static_cast<std::uint8_t>(bytes[i / 8] << 1 | bits[i]);

  EXPECT_EQ(hash.to_bytes(), bytes);
  EXPECT_EQ(SequenceHash::from_bytes(bytes), hash);
  EXPECT_EQ(hash.mode(), mode);
  EXPECT_EQ(hash.position(), position);
  EXPECT_EQ(hash.chain(), chain);
  const std::uint64_t mask = (std::uint64_t{1} << fragment_bits) - 1;
  EXPECT_EQ(hash.parent_fragment(), position == 0 ? 0 : parent & mask);
  EXPECT_FALSE(hash.is_keyed());
}

TEST_P(SequenceHashModes, TextRoundTrips) {
  const SequenceHash hash = SequenceHash::make(GetParam().position, 0x0000000089abcdefu, 0x11u).value();
  EXPECT_EQ(SequenceHash::parse(hash.to_string()).value(), hash) << hash;
  const SequenceHash keyed = SequenceHash::make_keyed(GetParam().position, ~std::uint64_t{0}, 5).value();
  EXPECT_EQ(SequenceHash::parse(keyed.to_string()).value(), keyed) << keyed;
}

TEST_P(SequenceHashModes, KeyedNamesKeepPositionAndDigest) {
  const std::uint32_t position = GetParam().position;
  const SequenceHash hash =
      SequenceHash::make_keyed(position, ~std::uint64_t{0}, 0x0123456789abcdefu).value();
  EXPECT_TRUE(hash.is_keyed());
  EXPECT_EQ(hash.position(), position);
  EXPECT_EQ(hash.hi(), std::uint64_t{3} << 62 | std::uint64_t{position} << 38 | 0x3fffffffffu);
  EXPECT_EQ(hash.chain(), 0x0123456789abcdefu);
  EXPECT_EQ(hash.parent_fragment(), 0u);
  EXPECT_FALSE(hash.fragment_for_child().has_value());
}

INSTANTIATE_TEST_SUITE_P(Positions, SequenceHashModes,
                         ::testing::Values(ModeCase{0, 0, 8}, ModeCase{1, 0, 8}, ModeCase{255, 0, 8},
                                           ModeCase{256, 1, 16}, ModeCase{65535, 1, 16},
                                           ModeCase{65536, 2, 24}, ModeCase{(1u << 24) - 1, 2, 24}));

TEST(SequenceHashTest, PositionsPastTheLastAreRefused) {
  for (const std::uint64_t position : {std::uint64_t{1} << 24, ~std::uint64_t{0}}) {
    EXPECT_EQ(SequenceHash::make(position, 1, 2).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(SequenceHash::make_keyed(position, 1, 2).error().code(), ErrorCode::kInvalidArgument);
  }
  const SequenceHash last = SequenceHash::make(SequenceHash::kMaxPosition, 1, 2).value();
  const auto past = last.child(3);
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(past.error().message().find("16777216"), std::string::npos) << past.error();
  EXPECT_FALSE(last.fragment_for_child().has_value());
}

TEST(SequenceHashTest, ChildCarriesTheFragmentOfItsParent) {
  for (const std::uint32_t position : {0u, 1u, 254u, 255u, 256u, 65534u, 65535u, 65536u}) {
    const SequenceHash parent = SequenceHash::make(position, 0xfedcba9876543211u, 7).value();
    const SequenceHash child = parent.child(99).value();
    EXPECT_EQ(child.position(), position + 1);
    EXPECT_EQ(child.chain(), 99u);
    EXPECT_EQ(child.parent_fragment(), parent.fragment_for_child());
    EXPECT_EQ(child, SequenceHash::make(position + 1, 99, parent.chain()).value());
  }
}

TEST(SequenceHashTest, KeyedNamesHaveNoChainedChild) {
  const SequenceHash keyed = SequenceHash::make_keyed(3, 1, 2).value();
  EXPECT_EQ(keyed.child(1).error().code(), ErrorCode::kInvalidArgument);
}

TEST(SequenceHashTest, TextIsPositionChainAndFragment) {
  EXPECT_EQ(SequenceHash::root(0xabcu).to_string(), "0:0000000000000abc");
  EXPECT_EQ(SequenceHash::make(7, 0xabcu, 0x12u).value().to_string(), "7:0000000000000abc:00000000000012");
  EXPECT_EQ(SequenceHash::make(256, 0xabcu, 0x12u).value().to_string(), "256:0000000000000abc:000000000012");
  EXPECT_EQ(SequenceHash::make(65536, 0xabcu, 0x12u).value().to_string(),
            "65536:0000000000000abc:0000000012");
  EXPECT_EQ(SequenceHash::make_keyed(7, 0x1fu, 0xabcu).value().to_string(), "7:000000001f0000000000000abc");
  std::ostringstream out;
  out << SequenceHash::root(1);
  EXPECT_EQ(out.str(), "0:0000000000000001");
}

TEST(SequenceHashTest, OtherTextIsRefused) {
  for (const char* text :
       {"", ":", "0", "0:", "0:abc", "0:0000000000000abc:", "0:0000000000000abc:00000000000012",
        "7:0000000000000abc", "7:0000000000000abc:000000000012", "7:0000000000000ABC:00000000000012",
        "7:0000000000000abc:ff000000000012", "-1:0000000000000abc:00000000000012",
        "07:0000000000000abc:00000000000012", " 7:0000000000000abc:00000000000012",
        "7:0000000000000abc:00000000000012 ", "16777216:0000000000000abc:0000000012",
        "99999999999999999999:00", "7:ff000000000000000000000abc"}) {
    const auto parsed = SequenceHash::parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(SequenceHashTest, OrderIsPositionThenChainThenBits) {
  const auto make = [](std::uint64_t position, std::uint64_t chain, std::uint64_t parent) {
    return SequenceHash::make(position, chain, parent).value();
  };
  const std::vector<SequenceHash> ascending = {make(0, 9, 0),     make(1, 3, 9),    make(1, 4, 1),
                                               make(1, 4, 2),     make(255, 1, 1),  make(256, 0, 0),
                                               make(65535, 1, 1), make(65536, 0, 0)};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    for (std::size_t j = 0; j < ascending.size(); ++j) {
      EXPECT_EQ(ascending[i] <=> ascending[j], i <=> j) << ascending[i] << " and " << ascending[j];
    }
  }
}

TEST(SequenceHashTest, StandardHashSpreadsNames) {
  Random random(3);
  std::unordered_set<std::size_t> low_bits;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const SequenceHash name = SequenceHash::make(i, random.next(), random.next()).value();
    low_bits.insert(std::hash<SequenceHash>()(name) & 0xffff);
  }
  EXPECT_GT(low_bits.size(), 950u);
}

}  // namespace
}  // namespace ashlar::tokens
