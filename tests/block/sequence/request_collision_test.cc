// Prompts with equal names and different tokens: a hit is of the same tokens from the first on, in every
// group. And what a match over several groups costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/sequence_manager.h"
#include "block/sequence/request_fixture.h"
#include "support/colliding_tokens.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)

struct Shape {
  std::string name;
  std::vector<CacheGroup> groups;
  DuplicatePolicy duplicates;
};

std::vector<Shape> all_shapes() {
  const CacheGroup full = CacheGroup::full_attention();
  const CacheGroup window = CacheGroup::sliding_window(5);
  std::vector<Shape> shapes;
  for (const auto& [policy, text] : {std::pair(DuplicatePolicy::kAllow, std::string("Allow")),
                                     std::pair(DuplicatePolicy::kReject, std::string("Reject"))}) {
    shapes.push_back({"Full" + text, {full}, policy});
    shapes.push_back({"Window" + text, {window}, policy});
    shapes.push_back({"FullAndWindow" + text, {full, window}, policy});
    shapes.push_back({"TwoWindows" + text, {window, CacheGroup::sliding_window(9)}, policy});
  }
  return shapes;
}

// Prompts of four blocks and a token that differ in their first block alone, and have one name at each place.
class CollidingPromptsTest : public RequestTest, public ::testing::WithParamInterface<Shape> {
 protected:
  CollidingPromptsTest() : RequestTest(64, GetParam().duplicates, GetParam().groups) {}

  static std::vector<Token> prompt(std::uint32_t variant) {
    std::vector<Token> tokens = testing::colliding_block(kBlockSize, 0, variant);
    for (const Token token : tokens_from(0, 3 * kBlockSize + 1)) tokens.push_back(token);
    return tokens;
  }
};

TEST_P(CollidingPromptsTest, HaveOneName) {
  const auto a = request_of(prompt(0));
  const auto b = request_of(prompt(1));
  EXPECT_TRUE(std::ranges::equal(a.sequence_hashes(), b.sequence_hashes()));
  EXPECT_NE(tokens_of(a), tokens_of(b));
}

TEST_P(CollidingPromptsTest, DoNotHitEachOther) {
  cache(prompt(0));
  EXPECT_EQ(cached_tokens_of(prompt(0)), 4 * kBlockSize);
  EXPECT_EQ(cached_tokens_of(prompt(1)), 0u);
  Request other = request_of(prompt(1));
  prefill_all(other, 1);  // keeps its blocks to itself
  EXPECT_EQ(manager_.counters().collisions, 1u);
  EXPECT_EQ(cached_tokens_of(prompt(0)), 4 * kBlockSize);
}

TEST_P(CollidingPromptsTest, DoNotContinueEachOther) {
  // The first blocks of one prompt are evicted, its others stay.
  std::vector<Pin> pins;
  {
    Request first = request_of(prompt(0));
    prefill_all(first, 1);
    for (std::uint32_t g = 0; g < first.group_count(); ++g) {
      for (std::size_t i = 1; i < 4; ++i) {
        auto pin = manager_.pin(first.sequence_hashes()[i].in_group(g), std::chrono::hours(1));
        pins.push_back(value_of(std::move(pin)));
      }
    }
  }
  overwrite_available_blocks();
  const std::size_t left = registered().size();
  ASSERT_EQ(left, 3 * GetParam().groups.size());

  Request second = request_of(prompt(1));
  EXPECT_EQ(value_of(second.match_prefix()), 0u);
  EXPECT_EQ(prefill_all(second, 1).registered, GetParam().groups.size()) << "the first block of each group";
  EXPECT_EQ(engine_.check(second), "");
  EXPECT_EQ(cached_tokens_of(prompt(1)), kBlockSize);
  // Windows do not need the block that is gone.
  const auto& groups = GetParam().groups;
  const auto has_window = [](const CacheGroup& group) { return group.window.has_value(); };
  const bool windows_only = std::ranges::all_of(groups, has_window);
  EXPECT_EQ(cached_tokens_of(prompt(0)), windows_only ? 4 * kBlockSize : 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CollidingPromptsTest, ::testing::ValuesIn(all_shapes()),
                         [](const auto& shape) { return shape.param.name; });

// ---- the small interface

TEST(SequenceCollisionTest, CollidingPromptsDoNotContinueEachOther) {
  const auto prompt = [](std::uint32_t variant) {
    std::vector<Token> tokens = testing::colliding_block(kBlockSize, 0, variant);
    for (const Token token : tokens_from(0, 2 * kBlockSize + 1)) tokens.push_back(token);
    return tokens;
  };
  for (const RegisterBlocks when : {RegisterBlocks::kWhenComputed, RegisterBlocks::kAtOnce}) {
    Manager manager = manager_of(16);
    const SequenceManager<G1> sequences(manager, {.register_blocks = when});
    std::vector<Pin> pins;
    {
      auto first = value_of(sequences.make_sequence(prompt(0)));
      value_of(sequences.allocate(first));
      value_of(sequences.computed(first, first.size()));
      const auto names = value_of(TokenSequence::create(first.tokens(), kBlockSize)).sequence_hashes();
      for (std::size_t i = 1; i < 3; ++i)
        pins.push_back(value_of(manager.pin(names[i], std::chrono::hours(1))));
    }
    ASSERT_EQ(manager.reset_inactive_pool(), 1u);
    for (int turn = 0; turn < 2; ++turn) {
      auto second = value_of(sequences.make_sequence(prompt(1)));
      EXPECT_EQ(value_of(sequences.allocate(second)), turn * kBlockSize);
      EXPECT_EQ(value_of(sequences.computed(second, second.size())),
                turn == 0 && when == RegisterBlocks::kWhenComputed ? 1u : 0u);
    }
  }
}

// ---- items

TEST(PlaceholderTest, TheSameItemIsAHitWhateverItsPlaceholders) {
  Manager manager = manager_of(32);
  const auto request = [&](std::uint32_t placeholder, std::uint64_t item) {
    std::vector<Token> tokens;
    for (std::uint32_t i = 0; i < 13; ++i) tokens.emplace_back(i >= 2 && i < 8 ? placeholder : i);
    RequestOptions options;
    options.runs = {{item, 2, 6}};
    return value_of(Request::create(manager, std::move(tokens), std::move(options)));
  };
  Request first = request(151'655, 0xAA);
  value_of(first.schedule_prefill(13));
  EXPECT_EQ(value_of(first.apply_prefill(Token(7))).registered, 3u);
  Request same = request(151'655, 0xAA);
  EXPECT_EQ(value_of(same.match_prefix()), 12u);
  Request renumbered = request(999'999, 0xAA);
  EXPECT_EQ(value_of(renumbered.match_prefix()), 12u);
  Request other = request(151'655, 0xAB);
  EXPECT_EQ(value_of(other.match_prefix()), 0u);
  value_of(other.schedule_prefill(13));
  EXPECT_EQ(value_of(other.apply_prefill(Token(7))).registered, 3u);
  EXPECT_EQ(manager.counters().collisions, 0u);
}

// ---- several groups

class GroupCollisionTest : public RequestTest {
 protected:
  GroupCollisionTest()
      : RequestTest(64, DuplicatePolicy::kAllow,
                    {CacheGroup::full_attention(), CacheGroup::full_attention()}) {}
};

TEST_F(GroupCollisionTest, ACollisionInOneGroupEndsAllGroupsThereAndNotBefore) {
  for (const std::uint32_t group : {0u, 1u}) {
    const std::uint32_t from = 1000 * (group + 1);
    Request request = request_of(from, 4 * kBlockSize + 1);
    // Somebody has the name of block 2 in one group.
    const BlockIdentity taken{.hash = request.sequence_hashes()[2].in_group(group),
                              .parent = std::nullopt,
                              .root = std::nullopt,
                              .prefix = tokens::PrefixDigest::known(1, 2)};
    const Immutable other = value_of(manager_.register_block(take_one(manager_).stage(taken, kReady)));
    const std::uint64_t before = manager_.counters().collisions;
    // In group 0 blocks 2 and 3 are not tried any more in group 1; the other way round group 0 is done
    // already.
    EXPECT_EQ(prefill_all(request, 1).registered, group == 0 ? 4u : 6u);
    EXPECT_EQ(manager_.counters().collisions - before, 1u);
    EXPECT_EQ(cached_tokens_of(tokens_from(from, 4 * kBlockSize + 1)), 2 * kBlockSize);
    for (std::uint32_t next = 2; next < 9; ++next) EXPECT_EQ(decode(request, next).registered, 0u);
  }
}

// ---- what a match over several groups costs

class GroupMatchCostTest : public ::testing::Test {
 protected:
  // One match of a prompt of n blocks, of which group `group_of(i)` alone has block i. Returns the looks at
  // the index.
  template <class GroupOf>
  static std::uint64_t probes(std::size_t n, const std::vector<CacheGroup>& groups, GroupOf group_of,
                              std::size_t expected_blocks) {
    Manager manager = manager_of(static_cast<std::uint32_t>(2 * n + 8));
    const TokenSequence sequence = sequence_of(n + 1);
    for (std::uint32_t i = 0; i < n; ++i) {
      (void)store_name(manager, sequence.sequence_hashes()[i].in_group(group_of(i)));
    }
    RequestOptions options;
    options.groups = groups;
    Request request =
        value_of(Request::create(manager, tokens_from(0, n * kBlockSize + 1), std::move(options)));
    EXPECT_EQ(value_of(request.match_prefix()), expected_blocks * kBlockSize);
    return manager.counters().match_probes;
  }
};

TEST_F(GroupMatchCostTest, LooksAtEachBlockOfEachGroupAtMostOnce) {
  const std::vector<CacheGroup> windows = {CacheGroup::sliding_window(5), CacheGroup::sliding_window(5)};
  const std::vector<CacheGroup> mixed = {CacheGroup::full_attention(), CacheGroup::sliding_window(9)};
  for (const std::size_t n : {10u, 100u, 2000u}) {
    const auto alternating = [](std::uint32_t i) { return i % 2; };
    const auto halves = [n](std::uint32_t i) { return i < n / 2 ? 0u : 1u; };
    EXPECT_LE(probes(n, windows, alternating, 0), 2 * n);
    EXPECT_LE(probes(n, windows, halves, 0), 2 * n);
    EXPECT_LE(probes(n, mixed, alternating, 0), 2 * n);
    EXPECT_LE(probes(n, mixed, halves, 0), 2 * n);
  }
}

TEST_F(GroupMatchCostTest, AHitOfWindowsLooksAtTheirLastBlocksOnly) {
  Manager manager = manager_of(1000);
  const TokenSequence sequence = sequence_of(200);
  for (const std::uint32_t group : {0u, 1u}) {
    for (const SequenceHash& name : sequence.sequence_hashes())
      (void)store_name(manager, name.in_group(group));
  }
  RequestOptions options;
  options.groups = {CacheGroup::sliding_window(9), CacheGroup::sliding_window(13)};
  Request request =
      value_of(Request::create(manager, tokens_from(0, 200 * kBlockSize + 1), std::move(options)));
  EXPECT_EQ(value_of(request.match_prefix()), 200 * kBlockSize);
  EXPECT_EQ(manager.counters().match_probes, 2u + 3u);
}

TEST_F(GroupMatchCostTest, NamesOfOtherTokensCostNoMore) {
  constexpr std::size_t kBlocks = 500;
  Manager manager = manager_of(3 * kBlocks);
  RequestOptions options;
  options.groups = {CacheGroup::sliding_window(5), CacheGroup::sliding_window(5)};
  Request first = value_of(Request::create(manager, tokens_from(0, kBlocks * kBlockSize + 1), options));
  value_of(first.schedule_prefill(kBlocks * kBlockSize + 1));
  value_of(first.apply_prefill(Token(1)));
  const std::vector<SequenceHash> names(first.sequence_hashes().begin(), first.sequence_hashes().end());
  Request forged =
      value_of(Request::create(manager, tokens_from(7, kBlocks * kBlockSize + 1), names, options));
  EXPECT_EQ(value_of(forged.match_prefix()), 0u);
  EXPECT_LE(manager.counters().match_probes, 2 * kBlocks);
  EXPECT_EQ(manager.counters().match_hashes_requested, 0u) << "no reference was taken and dropped";
}

}  // namespace
}  // namespace ashlar::block
