// StorageAdvisor: an index of what is alive, and what follows from it.
#include "ashlar/feed/storage_advisor.h"

#include <gtest/gtest.h>

#include <map>

#include "ashlar/base/random.h"
#include "events/event_samples.h"

namespace ashlar::feed {
namespace {

using events::chain;
using events::EventBatch;
using events::G3;
using events::G4;
using events::kTierId;
using events::KvEvent;
using events::KvEventKind;
using events::LocationName;
using events::removed;
using events::StreamId;
using events::WorkerId;
using tokens::SequenceHash;

constexpr std::int64_t kSecond = 1'000'000'000;

class StorageAdvisorTest : public ::testing::Test {
 protected:
  static StorageAdvisor::Options options() {
    return {.order = {"fast", "slow"}, .half_life_seconds = 100, .hot_heat = 3, .cold_seconds = 1000};
  }
  void say(std::vector<KvEvent> events, std::int64_t at_second, std::uint64_t worker = 1) {
    EventBatch batch;
    batch.stream = {{WorkerId(worker), 0}, 1};
    batch.published_ns = at_second * kSecond;
    batch.events = events;
    batch.locations = names_;
    advisor_->on_events(batch);
  }
  static std::vector<KvEvent> on(std::uint16_t location, std::vector<KvEvent> events,
                                 std::uint32_t bytes = 4 << 20) {
    for (KvEvent& event : events) {
      event.location = location;
      event.bytes = bytes;
    }
    return events;
  }
  static KvEvent hits(const SequenceHash& hash, std::uint32_t count) {
    KvEvent event;
    event.kind = KvEventKind::kAccess;
    event.hash = hash;
    event.block = count;
    return event;
  }
  std::vector<Advice> advise(std::int64_t at_second) const { return advisor_->advise(at_second * kSecond); }

  const std::vector<LocationName> names_ = {{1, "fast"}, {2, "slow"}};
  std::unique_ptr<StorageAdvisor> advisor_ = StorageAdvisor::create(options()).value();
};

TEST_F(StorageAdvisorTest, AHotPrefixOnASlowVolumeIsPromoted) {
  say(on(2, chain(1, 4, kTierId<G4>)), 0);
  say(on(2, chain(2, 4, kTierId<G4>)), 0);
  say(on(1, chain(3, 1, kTierId<G4>)), 0);
  EXPECT_TRUE(advise(1).empty());
  for (const KvEvent& block : chain(1, 4)) say({hits(block.hash, 8)}, 10);
  const auto advice = advise(11);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].action, Advice::Action::kPromote);
  EXPECT_EQ(advice[0].basis, Advice::Basis::kAccesses);
  EXPECT_EQ(advice[0].from, "slow");
  EXPECT_EQ(advice[0].to, "fast");
  EXPECT_EQ(advice[0].group, chain(1, 1)[0].hash);
  EXPECT_EQ(advice[0].blocks.size(), 4u);
  EXPECT_EQ(advice[0].bytes, 16u << 20);
  EXPECT_TRUE(advise(500).empty()) << "heat fades";
}

TEST_F(StorageAdvisorTest, WithoutAccessEventsReturningBlocksAreHot) {
  say(on(1, chain(9, 1, kTierId<G4>)), 0);
  for (int i = 0; i < 5; ++i) {
    say(on(2, chain(1, 1, kTierId<G4>)), i);
    if (i < 4) say({removed(chain(1, 1)[0].hash, kTierId<G4>)}, i);
  }
  const auto advice = advise(5);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].action, Advice::Action::kPromote);
  EXPECT_EQ(advice[0].basis, Advice::Basis::kRestores);
  EXPECT_NE(advice[0].to_json().find("\"basis\":\"restores and age\""), std::string::npos);
}

TEST_F(StorageAdvisorTest, GoingDownTheTiersIsNoUse) {
  say(on(1, chain(9, 1, kTierId<G4>)), 0);
  for (const auto tier : {kTierId<events::G1>, kTierId<events::G2>, kTierId<G3>}) say(chain(1, 4, tier), 0);
  say(on(2, chain(1, 4, kTierId<G4>)), 0);
  for (std::uint64_t worker = 2; worker < 9; ++worker) say(on(2, chain(1, 4, kTierId<G4>)), 1, worker);
  EXPECT_TRUE(advise(2).empty());
}

TEST_F(StorageAdvisorTest, ASnapshotBringsNeitherHeatNorYouth) {
  say(on(1, chain(1, 2, kTierId<G4>)), 0);
  say(on(2, chain(3, 1, kTierId<G4>)), 990);
  for (int i = 1; i < 10; ++i) {
    advisor_->on_reset(StreamId{{WorkerId(1), 0}, 1});
    say(on(1, chain(1, 2, kTierId<G4>)), 100 * i);
    say(on(2, chain(3, 1, kTierId<G4>)), 100 * i);
  }
  const auto advice = advise(1000);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].action, Advice::Action::kDemote);
  EXPECT_EQ(advice[0].heat, 0.0);
  EXPECT_DOUBLE_EQ(advice[0].idle_seconds, 1000.0);
}

TEST_F(StorageAdvisorTest, WhatIsThereAlreadyIsNotMoved) {
  say(on(1, chain(1, 2, kTierId<G4>)), 0);
  say(on(2, chain(1, 4, kTierId<G4>)), 0, 2);
  for (const KvEvent& block : chain(1, 4)) say({hits(block.hash, 8)}, 1);
  const auto advice = advise(1);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].blocks.size(), 2u);
  EXPECT_EQ(advice[0].blocks[0].position(), 2u);
  EXPECT_EQ(advice[0].bytes, 8u << 20);
}

TEST_F(StorageAdvisorTest, PlacesThatAreEquallyFastAreNoPlaceToGo) {
  advisor_ = StorageAdvisor::create({.cold_seconds = 10}).value();
  say(on(1, chain(1, 2, kTierId<G4>)), 0);
  say(on(2, chain(2, 2, kTierId<G4>)), 0);
  EXPECT_TRUE(advise(100).empty());
  say(chain(3, 1, kTierId<G3>), 100);
  for (const KvEvent& block : chain(1, 2)) say({hits(block.hash, 50)}, 100);
  const auto advice = advise(100);
  ASSERT_EQ(advice.size(), 1u) << "a faster tier is one";
  EXPECT_EQ(advice[0].to, "g3");
}

TEST_F(StorageAdvisorTest, WhatNobodyUsesIsDemoted) {
  say(on(1, chain(1, 2, kTierId<G4>)), 0);
  say(on(1, chain(2, 2, kTierId<G4>)), 900);
  say(on(2, chain(3, 1, kTierId<G4>)), 0);
  const auto advice = advise(1000);
  ASSERT_EQ(advice.size(), 1u) << "the slowest place has no slower one";
  EXPECT_EQ(advice[0].action, Advice::Action::kDemote);
  EXPECT_EQ(advice[0].from, "fast");
  EXPECT_EQ(advice[0].to, "slow");
  EXPECT_EQ(advice[0].group, chain(1, 1)[0].hash);
}

TEST_F(StorageAdvisorTest, SmallObjectsOfOnePrefixAreCoalesced) {
  say(on(1, chain(1, 8, kTierId<G4>), 64 << 10), 0);
  say(on(1, chain(2, 7, kTierId<G4>), 64 << 10), 0);
  say(on(1, chain(3, 8, kTierId<G4>), 4 << 20), 0);
  const auto advice = advise(1);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].action, Advice::Action::kCoalesce);
  EXPECT_EQ(advice[0].blocks.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(advice[0].blocks[i].position(), i) << "in the order of the prefix";
}

TEST_F(StorageAdvisorTest, AScatteredPlaceIsCompactedOnce) {
  for (std::uint64_t i = 0; i < 40; ++i) say(on(1, chain(i, 1, kTierId<G4>)), 0);
  for (std::uint64_t i = 0; i < 30; ++i) say({removed(chain(i, 1)[0].hash, kTierId<G4>)}, 1);
  const auto advice = advise(2);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].action, Advice::Action::kCompact);
  EXPECT_FALSE(advice[0].group);
  struct Hook final : AdviceHook {
    std::vector<std::string> seen;
    Result<void> on_advice(const Advice& one) override {
      seen.push_back(one.from);
      return {};
    }
  } hook;
  EXPECT_EQ(advisor_->act(advice, hook), 1u);
  EXPECT_EQ(hook.seen, std::vector<std::string>{"fast"});
  EXPECT_TRUE(advise(3).empty());
}

TEST_F(StorageAdvisorTest, AHookThatFailsIsCountedAndTheRestGoesOn) {
  say(on(1, chain(1, 2, kTierId<G4>)), 0);
  say(on(1, chain(2, 2, kTierId<G4>)), 0);
  say(on(2, chain(3, 1, kTierId<G4>)), 0);
  struct Hook final : AdviceHook {
    int calls = 0;
    Result<void> on_advice(const Advice&) override {
      if (++calls == 1) return make_error(ErrorCode::kIo, "the mover is away");
      return {};
    }
  } hook;
  const auto advice = advise(2000);
  EXPECT_EQ(advisor_->act(advice, hook), 1u);
  EXPECT_EQ(hook.calls, 2);
  EXPECT_EQ(advisor_->counters().hook_failures, 1u);
  EXPECT_NE(advisor_->last_hook_error().find("away"), std::string::npos);
}

TEST_F(StorageAdvisorTest, GroupsAreLearnedWhereEventsDoNotNameThem) {
  auto first = on(1, chain(1, 6, kTierId<G4>));
  for (KvEvent& event : first)
    if (event.hash.position() != 0) event.has_root = false, event.root_bits = {};
  say(first, 0);
  EXPECT_EQ(advisor_->places()[0].groups, 1u);
}

TEST_F(StorageAdvisorTest, MemoryTiersAreSeenButNotAdvisedOn) {
  say(chain(1, 20), 0);
  EXPECT_TRUE(advise(100'000).empty());
  EXPECT_EQ(advisor_->places()[0].blocks, 20u);
  EXPECT_NE(advisor_->table().find("g1"), std::string::npos);
}

TEST_F(StorageAdvisorTest, AWorkerThatBeginsAnewIsForgotten) {
  say(on(1, chain(1, 3, kTierId<G4>)), 0, 1);
  say(on(1, chain(1, 3, kTierId<G4>)), 0, 2);
  advisor_->on_reset(StreamId{{WorkerId(1), 0}, 2});
  EXPECT_EQ(advisor_->places()[0].blocks, 3u);
  advisor_->on_reset(StreamId{{WorkerId(2), 0}, 2});
  EXPECT_EQ(advisor_->places()[0].blocks, 0u);
}

TEST_F(StorageAdvisorTest, APlaceGoesWithItsLastBlock) {
  const auto names = [&] {
    std::vector<std::string> out;
    for (const auto& place : advisor_->places()) out.push_back(place.name);
    return out;
  };
  say(on(5, chain(1, 2, kTierId<G4>)), 0);
  say(on(2, chain(2, 1, kTierId<G4>)), 0);
  say({removed(chain(1, 2)[0].hash, kTierId<G4>)}, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"slow", "g4/5"}));
  say({removed(chain(1, 2)[1].hash, kTierId<G4>)}, 1);
  EXPECT_EQ(names(), std::vector<std::string>{"slow"});
  EXPECT_TRUE(advise(10'000).empty()) << "nothing is moved to a place that left";
  // A volume that is renamed all the time: its blocks come under each name in turn.
  for (std::uint16_t i = 0; i < 3000; ++i)
    say(on(static_cast<std::uint16_t>(100 + i), chain(3, 2, kTierId<G4>)), 2);
  EXPECT_EQ(names(), (std::vector<std::string>{"slow", "g4/3099"}));
  KvEvent cleared;
  cleared.kind = KvEventKind::kCleared;
  cleared.tier = events::kAllTiers;
  say({cleared}, 3);
  EXPECT_EQ(names(), std::vector<std::string>{"slow"}) << "the operator named it";
  EXPECT_TRUE(advise(10'000).empty());
}

TEST_F(StorageAdvisorTest, APlaceThatComesBackHasItsHistory) {
  for (std::uint64_t i = 0; i < 40; ++i) say(on(5, chain(i, 1, kTierId<G4>)), 0);
  for (std::uint64_t i = 0; i < 30; ++i) say({removed(chain(i, 1)[0].hash, kTierId<G4>)}, 1);
  say(on(5, chain(0, 1, kTierId<G4>)), 1);
  advisor_->on_reset(StreamId{{WorkerId(1), 0}, 1});
  EXPECT_TRUE(advisor_->places().empty());
  say(on(5, chain(0, 1, kTierId<G4>)), 1);
  for (std::uint64_t i = 30; i < 40; ++i) say(on(5, chain(i, 1, kTierId<G4>)), 1);
  ASSERT_EQ(advisor_->places().size(), 1u);
  EXPECT_EQ(advisor_->places()[0].restored, 1u);
  EXPECT_EQ(advisor_->places()[0].removed_bytes, 30u * (4 << 20));
  EXPECT_EQ(advise(2).size(), 1u) << "it is still scattered";
}

TEST_F(StorageAdvisorTest, AClearTakesWhatItNames) {
  for (std::uint64_t worker = 1; worker <= 2; ++worker) {
    say(on(1, chain(1, 3, kTierId<G3>)), 0, worker);
    say(on(2, chain(1, 5, kTierId<G4>)), 0, worker);
  }
  KvEvent cleared;
  cleared.kind = KvEventKind::kCleared;
  cleared.tier = kTierId<G3>;
  say({cleared}, 1, 1);
  EXPECT_EQ(advisor_->counters().removed, 3u);
  cleared.tier = events::kAllTiers;
  say({cleared}, 1, 1);
  EXPECT_EQ(advisor_->counters().removed, 8u);
  ASSERT_EQ(advisor_->places().size(), 2u) << "the other worker's";
  EXPECT_EQ(advisor_->places()[0].blocks + advisor_->places()[1].blocks, 8u);
  say({cleared}, 1, 2);
  EXPECT_EQ(advisor_->counters().removed, 16u);
  EXPECT_EQ(advisor_->places()[0].blocks + advisor_->places()[1].blocks, 0u);
}

class RemovalNotes final : public RemovalHook {
 public:
  Result<void> on_removed(const BlockRemoval& removal) override {
    heard.emplace_back(removal.holding.hash, removal.left.size());
    return {};
  }
  std::vector<std::pair<SequenceHash, std::size_t>> heard;
};

using Heard = std::vector<std::pair<SequenceHash, std::size_t>>;

TEST_F(StorageAdvisorTest, TheHookHearsWhatIsGoneAfterABatch) {
  RemovalNotes hook;
  advisor_->set_removal_hook(&hook);
  const auto blocks = on(1, chain(1, 3, kTierId<G4>));
  say(blocks, 0, 1);
  say(blocks, 0, 2);
  say({removed(blocks[1].hash, kTierId<G4>), blocks[1]}, 1, 1);
  EXPECT_TRUE(hook.heard.empty()) << "it is back";
  say({removed(blocks[2].hash, kTierId<G4>), removed(blocks[1].hash, kTierId<G4>)}, 1, 1);
  EXPECT_EQ(hook.heard, (Heard{{blocks[1].hash, 1}, {blocks[2].hash, 1}})) << "the other worker has them";
  hook.heard.clear();
  KvEvent cleared;
  cleared.kind = KvEventKind::kCleared;
  cleared.tier = kTierId<G4>;
  say({cleared}, 1, 2);
  EXPECT_EQ(hook.heard, (Heard{{blocks[0].hash, 1}, {blocks[1].hash, 0}, {blocks[2].hash, 0}}));
}

TEST_F(StorageAdvisorTest, ASnapshotRemovesWhatItNoLongerLists) {
  RemovalNotes hook;
  advisor_->set_removal_hook(&hook);
  const auto blocks = on(1, chain(1, 4, kTierId<G4>));
  say(blocks, 0);
  const auto snapshot = [&](std::vector<KvEvent> events, std::uint32_t part, std::uint32_t parts) {
    EventBatch batch;
    batch.stream = {{WorkerId(1), 0}, 1};
    batch.kind = events::BatchKind::kSnapshot;
    batch.part = part;
    batch.parts = parts;
    batch.events = events;
    batch.locations = names_;
    advisor_->on_events(batch);
  };
  advisor_->on_reset({{WorkerId(1), 0}, 1});
  snapshot({blocks[0]}, 0, 2);
  EXPECT_TRUE(hook.heard.empty()) << "the rest may follow";
  snapshot({blocks[2]}, 1, 2);
  EXPECT_EQ(hook.heard, (Heard{{blocks[1].hash, 0}, {blocks[3].hash, 0}}));
  hook.heard.clear();
  // A gap that nothing closes, and the snapshot that comes later.
  advisor_->on_reset({{WorkerId(1), 0}, 1});
  say({blocks[3]}, 1);
  advisor_->on_reset({{WorkerId(1), 0}, 1});
  snapshot({}, 0, 1);
  EXPECT_EQ(hook.heard, (Heard{{blocks[0].hash, 0}, {blocks[2].hash, 0}, {blocks[3].hash, 0}}));
  hook.heard.clear();
  // What a worker had before it was started again may still lie there.
  say(blocks, 2);
  advisor_->on_reset({{WorkerId(1), 0}, 2});
  EventBatch next;
  next.stream = {{WorkerId(1), 0}, 2};
  next.kind = events::BatchKind::kSnapshot;
  next.parts = 1;
  advisor_->on_events(next);
  EXPECT_TRUE(hook.heard.empty());
  advisor_->check_invariants();
}

TEST_F(StorageAdvisorTest, MemoryOfAnotherNodeIsFasterThanADiskAndNotAdvisedOn) {
  const auto blocks = on(0, chain(1, 20, kTierId<events::Remote>), 16);
  say(blocks, 0);
  say(on(0, chain(1, 20, kTierId<G3>)), 0);
  say(chain(1, 20, kTierId<events::G2>), 0);
  std::vector<std::string> places;
  for (const BlockHolding& holding : advisor_->find(blocks[3].hash)) places.push_back(holding.place);
  EXPECT_EQ(places, (std::vector<std::string>{"g2", "remote", "g3"}));
  for (const Advice& advice : advise(100'000)) EXPECT_EQ(advice.from, "g3");
}

// A look at every block for each would be 10^10 of them.
TEST_F(StorageAdvisorTest, ClearsAndResetsCostWhatTheyRemove) {
  constexpr std::size_t kBlocks = 100'000;
  constexpr std::uint64_t kRounds = 50'000;
  say(on(1, chain(1, kBlocks, kTierId<G4>)), 0, 1);
  const auto few = on(5, chain(2, 2, kTierId<G4>));
  KvEvent cleared;
  cleared.kind = KvEventKind::kCleared;
  cleared.tier = kTierId<G4>;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    say(few, 1, 2);
    say({cleared}, 1, 2);
    say(few, 1, 3);
    advisor_->on_reset(StreamId{{WorkerId(3), 0}, 1});
  }
  EXPECT_EQ(advisor_->counters().removed, 2 * kRounds);
  ASSERT_EQ(advisor_->places().size(), 1u);
  EXPECT_EQ(advisor_->places()[0].blocks, kBlocks);
}

TEST_F(StorageAdvisorTest, ItsIndexIsWhatTheEventsAddUpTo) {
  Random random(2);
  std::map<std::tuple<std::uint64_t, std::uint8_t, SequenceHash>, std::uint16_t> model;
  for (int step = 0; step < 5000; ++step) {
    const std::uint64_t worker = 1 + random.below(3);
    const events::TierId tier = random.below(2) == 0 ? kTierId<G3> : kTierId<G4>;
    const KvEvent block = chain(random.below(8), 6, tier)[random.below(6)];
    const auto key = std::tuple(worker, tier.value(), block.hash);
    if (model.contains(key)) {
      say({removed(block.hash, tier)}, step, worker);
      model.erase(key);
    } else {
      const auto location = static_cast<std::uint16_t>(1 + random.below(2));
      say(on(location, {block}), step, worker);
      model[key] = location;
    }
    if (random.below(10) == 0) say({hits(block.hash, 2)}, step, worker);
    if (random.below(50) == 0) {
      const bool all = random.below(2) == 0;
      KvEvent cleared;
      cleared.kind = KvEventKind::kCleared;
      cleared.tier = all ? events::kAllTiers : tier;
      if (all && random.below(2) == 0) {
        advisor_->on_reset(StreamId{{WorkerId(worker), 0}, 1});
      } else {
        say({cleared}, step, worker);
      }
      std::erase_if(model, [&](const auto& one) {
        return std::get<0>(one.first) == worker && (all || std::get<1>(one.first) == tier.value());
      });
    }
    if (step % 100 != 0) continue;
    advisor_->check_invariants();
    std::map<std::pair<std::string, std::uint8_t>, std::set<SequenceHash>> want;
    for (const auto& [held, location] : model)
      want[{location == 1 ? "fast" : "slow", std::get<1>(held)}].insert(std::get<2>(held));
    ASSERT_EQ(advisor_->places().size(), want.size()) << step;
    for (const auto& place : advisor_->places())
      ASSERT_EQ(place.blocks, (want[{place.name, place.tier.value()}].size())) << step;
    static_cast<void>(advise(step));
  }
}

TEST_F(StorageAdvisorTest, AnAdviceIsOneLineOfJson) {
  Advice advice{.from = "a \"quoted\"\nname", .reason = "because"};
  const std::string json = advice.to_json();
  EXPECT_EQ(json.find('\n'), std::string::npos);
  EXPECT_NE(json.find("a \\\"quoted\\\"\\u000aname"), std::string::npos);
}

TEST_F(StorageAdvisorTest, BadOptionsAreNamed) {
  auto wrong = options();
  wrong.scattered = 0;
  EXPECT_EQ(StorageAdvisor::create(wrong).error().code(), ErrorCode::kInvalidArgument);
  wrong = options();
  wrong.half_life_seconds = 0;
  EXPECT_FALSE(StorageAdvisor::create(wrong));
}

}  // namespace
}  // namespace ashlar::feed
