// IndexFeeder over indexes that tell what they hold, in lockstep with one over a sink that does not: after
// every batch of a random stream both indexes hold the same, in every structure. Where the producer names
// parents, only the first one hears the names.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/make_index.h"
#include "ashlar/testing/index_oracle.h"

namespace ashlar::feed {
namespace {

using events::KvEvent;
using events::KvEventKind;
using testing::IndexOracle;
using tokens::SequenceHash;

constexpr events::WorkerId kModelled{3};

// Forwards the writing calls only.
class SilentSink final : public events::IndexSink {
 public:
  events::StoreVerdict store(const events::BlocksStored& event) override { return oracle.store(event); }
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) override {
    return oracle.remove(worker, tier, names);
  }
  void clear(const events::Worker& worker) override { oracle.clear(worker); }
  void remove_worker(events::WorkerId worker) override { oracle.remove_worker(worker); }

  IndexOracle oracle;
};

struct FeedCase {
  std::string kind;
  std::size_t threads = 0;
};

class IndexFeederModel : public ::testing::TestWithParam<FeedCase> {
 protected:
  // A forest of blocks; each has the events of its lifetime made from it.
  struct Block {
    SequenceHash hash;
    std::optional<SequenceHash> parent;
    std::vector<std::uint64_t> names;  // empty: it is called by its chain hash
    std::uint64_t local = 0;
  };
  struct Style {
    bool own_names = false;
    bool several_names = true;  // some blocks have two
    std::vector<std::uint16_t> groups = {0};
    std::size_t groups_at_first = 1;  // the others come later
    double without_local = 0;
    double out_of_order = 0;
    int names_parents_from = INT_MAX;  // step
  };
  using Held =
      std::set<std::tuple<std::uint32_t, std::uint16_t, std::uint64_t, std::uint8_t>>;  // rank, group

  // Events as a producer makes them that names parents: those that it holds in the event's group.
  static void name_parents(std::vector<KvEvent>& batch, std::uint32_t rank, std::span<const Block> blocks,
                           Held& held, bool names_parents) {
    for (KvEvent& event : batch) {
      if (event.kind == KvEventKind::kResync || event.kind == KvEventKind::kCleared) {
        std::erase_if(held, [&](const auto& one) {
          const bool all = event.kind == KvEventKind::kResync || event.tier == events::kAllTiers;
          return std::get<0>(one) == rank && (all || std::get<3>(one) == event.tier.value());
        });
        continue;
      }
      if (event.tier.value() >= events::kStorageTiers) continue;
      const auto name_of = [](const Block& block, std::size_t i) {
        return block.names.empty() ? block.hash.chain() : block.names[i];
      };
      const auto of_event = std::ranges::find_if(
          blocks, [&](const Block& block) { return block.hash.in_group(event.group) == event.hash; });
      const std::uint64_t name = event.has_name ? event.name_bits : of_event->hash.chain();
      if (event.kind == KvEventKind::kRemoved) {
        held.erase({rank, event.group, name, event.tier.value()});
        continue;
      }
      held.emplace(rank, event.group, name, event.tier.value());
      if (!names_parents) continue;
      if (!of_event->parent) {
        event.set_parent_name(std::nullopt);
        continue;
      }
      const Block& parent = *std::ranges::find(blocks, *of_event->parent, &Block::hash);
      for (std::size_t i = 0; i < std::max<std::size_t>(parent.names.size(), 1); ++i) {
        const auto first = held.lower_bound({rank, event.group, name_of(parent, i), 0});
        if (first == held.end() || std::get<0>(*first) != rank || std::get<1>(*first) != event.group ||
            std::get<2>(*first) != name_of(parent, i))
          continue;
        event.set_parent_name(events::BlockName(name_of(parent, i)));
        break;
      }
    }
  }

  static std::vector<Block> forest(Random& random, const Style& style) {
    std::vector<Block> blocks;
    for (std::uint64_t i = 0; i < 60; ++i) {
      Block block;
      block.local = 1000 + i;
      if (i < 4 || random.below(8) == 0) {
        block.hash = SequenceHash::root(random.next());
      } else {
        const SequenceHash parent = blocks[random.below(blocks.size())].hash;
        block.hash = parent.child(random.next()).value();
        block.parent = parent;
      }
      if (style.own_names) block.names.push_back(100 + i);
      if (style.own_names && style.several_names && random.below(4) == 0) block.names.push_back(300 + i);
      blocks.push_back(block);
    }
    return blocks;
  }
  static KvEvent event_of(Random& random, const Style& style, const Block& block, KvEventKind kind,
                          std::size_t groups) {
    KvEvent event;
    event.kind = kind;
    event.tier = events::TierId(static_cast<std::uint8_t>(random.below(events::kStorageTiers + 1)));
    event.group = style.groups[random.below(groups)];
    event.hash = block.hash.in_group(event.group);
    event.set_parent(block.parent ? std::optional(block.parent->in_group(event.group)) : std::nullopt);
    if (!block.names.empty())
      event.set_name(events::BlockName(block.names[random.below(block.names.size())]));
    const bool without = event.tier.value() != 0 && random.chance(style.without_local);
    if (!without) event.set_local(tokens::LocalHash(block.local));
    return event;
  }

  static std::string differences(const index::AnyIndex& index, const IndexOracle& expected) {
    IndexOracle held;
    index.dump(held);
    return difference(held, expected);
  }

  // What the index holds and the oracle does not, in words; counts what it lacks, in (name, tier)s.
  std::string excess(const index::AnyIndex& index, const IndexOracle& expected) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      std::vector<events::BlockPresence> held;
      std::vector<events::BlockPresence> there;
      EXPECT_TRUE(index.list({kModelled, rank}, held) && expected.list({kModelled, rank}, there));
      for (const events::BlockPresence& one : held) {
        const auto at = std::ranges::find(there, one.name, &events::BlockPresence::name);
        if (at == there.end() || at->local != one.local || at->position != one.position ||
            (one.tiers & ~at->tiers) != 0)
          return "name " + std::to_string(one.name.value()) + " of rank " + std::to_string(rank);
        held_ += static_cast<std::size_t>(std::popcount(one.tiers));
        missing_ -= static_cast<std::size_t>(std::popcount(one.tiers));
      }
      for (const events::BlockPresence& one : there)
        missing_ += static_cast<std::size_t>(std::popcount(one.tiers));
    }
    return "";
  }

  // Returns how many blocks waited at most.
  std::size_t run(std::uint64_t seed, const Style& style) {
    Random random(seed);
    const auto made = index::make_index({.kind = GetParam().kind, .threads = GetParam().threads}).value();
    SilentSink silent;
    IndexFeeder feeder(*made, kModelled);
    IndexFeeder naive(silent, kModelled);
    const std::vector<Block> blocks = forest(random, style);
    std::size_t most_kept = 0;
    Held held;
    std::size_t frontier = 1;  // blocks stored so far come from before it, mostly
    for (int step = 0; step < 120; ++step) {
      const std::size_t groups = step < 40 ? style.groups_at_first : style.groups.size();
      std::vector<KvEvent> batch;
      for (std::size_t i = random.below(12) + 1; i > 0; --i) {
        const std::uint64_t dice = random.below(1000);
        KvEvent event;
        if (dice < 6) {
          event.kind = dice < 3 ? KvEventKind::kResync : KvEventKind::kCleared;
          event.tier = events::kAllTiers;
        } else if (dice < 16) {
          event.kind = KvEventKind::kCleared;
          event.tier = events::TierId(static_cast<std::uint8_t>(random.below(events::kStorageTiers)));
        } else if (dice < 700) {
          const bool anywhere = random.chance(style.out_of_order);
          const std::size_t at = random.below(anywhere ? blocks.size() : frontier);
          frontier = std::min(blocks.size(), std::max(frontier, at + 2));
          event = event_of(random, style, blocks[at], KvEventKind::kStored, groups);
          // Mostly all groups store a block together.
          for (std::size_t group = 0; group < groups && groups > 1 && random.chance(0.9); ++group) {
            KvEvent other = event;
            other.group = style.groups[group];
            other.hash = blocks[at].hash.in_group(other.group);
            if (blocks[at].parent) other.set_parent(blocks[at].parent->in_group(other.group));
            batch.push_back(other);
          }
        } else {
          event = event_of(random, style, blocks[random.below(blocks.size())], KvEventKind::kRemoved, groups);
        }
        batch.push_back(event);
      }
      const auto rank = static_cast<std::uint32_t>(random.below(2));
      name_parents(batch, rank, blocks, held, step >= style.names_parents_from);
      feeder.apply(rank, batch);
      for (KvEvent& event : batch) event.drop_parent_name();
      naive.apply(rank, batch);
      feeder.check_invariants();
      naive.check_invariants();
      const bool may_lack = style.several_names && style.names_parents_from != INT_MAX;
      const std::string problem = may_lack ? excess(*made, silent.oracle) : differences(*made, silent.oracle);
      EXPECT_EQ(problem, "") << "seed " << seed << ", step " << step;
      if (!problem.empty()) return most_kept;
      EXPECT_LE(feeder.kept(), naive.kept());
      most_kept = std::max(most_kept, feeder.kept());
    }
    EXPECT_EQ(feeder.counters().missing_removals, 0u) << "seed " << seed;
    stored_ += feeder.counters().stored_blocks;
    return most_kept;
  }
  void TearDown() override { EXPECT_GT(stored_, 1000u); }

  std::uint64_t stored_ = 0;  // blocks, in all runs
  std::size_t held_ = 0;      // by excess()
  std::size_t missing_ = 0;
};

TEST_P(IndexFeederModel, OneGroupInOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) run(seed, {});
}

TEST_P(IndexFeederModel, OwnNamesOutOfOrder) {
  std::size_t kept = 0;
  for (std::uint64_t seed = 100; seed < 120; ++seed)
    kept = std::max(kept, run(seed, {.own_names = true, .without_local = 0.3, .out_of_order = 0.3}));
  EXPECT_GT(kept, 0u) << "some blocks wait";
}

TEST_P(IndexFeederModel, GroupsThatComeTogetherOrLater) {
  for (std::uint64_t seed = 200; seed < 220; ++seed)
    run(seed, {.own_names = seed % 2 == 0,
               .groups = {0, 4, 9},
               .groups_at_first = seed % 3 + 1,
               .without_local = 0.1,
               .out_of_order = 0.1});
}

TEST_P(IndexFeederModel, AProducerThatNamesParents) {
  std::size_t kept = 0;
  for (std::uint64_t seed = 300; seed < 330; ++seed)
    kept = std::max(kept, run(seed, {.own_names = seed % 4 != 0,
                                     .several_names = false,
                                     .groups = {0, 4},
                                     .groups_at_first = seed % 3 == 0 ? 1u : 2u,
                                     .without_local = 0.1,
                                     .out_of_order = 0.2,
                                     .names_parents_from = seed % 5 == 0 ? 50 : 0}));
  EXPECT_GT(kept, 0u) << "some blocks wait";
}

// A child waits for the parent under the name that was told, even where the index has it under another one.
TEST_P(IndexFeederModel, AProducerThatNamesParentsWithSeveralNames) {
  for (std::uint64_t seed = 400; seed < 430; ++seed)
    run(seed, {.own_names = true,
               .groups = {0, 4},
               .groups_at_first = seed % 2 + 1,
               .without_local = seed % 3 == 0 ? 0.1 : 0.0,
               .out_of_order = 0.1,
               .names_parents_from = seed % 5 == 0 ? 50 : 0});
  EXPECT_LT(missing_, held_ / 20) << "little is missing";
}

// Nothing is kept twice: what the index has, the feeder does not.
TEST_P(IndexFeederModel, ATidyStreamLeavesNothingBehind) {
  const auto made = index::make_index({.kind = GetParam().kind, .threads = GetParam().threads}).value();
  IndexFeeder feeder(*made, kModelled);
  std::vector<KvEvent> batch;
  SequenceHash last = SequenceHash::root(1);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    KvEvent event;
    event.hash = i == 0 ? last : last.child(i + 1).value();
    if (i != 0) event.set_parent(last);
    event.set_local(tokens::LocalHash(i));
    last = event.hash;
    batch.push_back(event);
    event.tier = events::TierId(1);
    batch.push_back(event);
  }
  feeder.apply(0, batch);
  EXPECT_EQ(feeder.kept(), 0u);
  EXPECT_EQ(made->sizes().blocks, 6000u);
  stored_ = feeder.counters().stored_blocks;
  // The same once more: nothing is stored again.
  const std::uint64_t stores = feeder.counters().stores;
  feeder.apply(0, batch);
  EXPECT_EQ(feeder.counters().stores, stores);
  for (KvEvent& event : batch) event.kind = KvEventKind::kRemoved;
  // Another feeder continues where this one ended.
  IndexFeeder next(*made, kModelled);
  next.apply(0, batch);
  EXPECT_EQ(next.counters().removed_blocks, 6000u);
  EXPECT_EQ(next.kept(), 0u);
  EXPECT_EQ(made->sizes().blocks, 0u);
}

INSTANTIATE_TEST_SUITE_P(Structures, IndexFeederModel,
                         ::testing::Values(FeedCase{"flash"}, FeedCase{"flash", 2}, FeedCase{"radix_tree"},
                                           FeedCase{"radix_tree", 2}, FeedCase{"concurrent_radix_tree"},
                                           FeedCase{"concurrent_radix_tree", 2}, FeedCase{"positional"},
                                           FeedCase{"positional", 2}),
                         [](const auto& one) {
                           return one.param.kind + (one.param.threads == 0 ? "" : "_in_threads");
                         });

}  // namespace
}  // namespace ashlar::feed
