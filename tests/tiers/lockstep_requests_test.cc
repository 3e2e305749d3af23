// Requests, batches and sequences over four tiers, in lock-step with a naive model: a set of names per tier.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/block/sequence_manager.h"
#include "support/rounds.h"
#include "tiers/requests_fixture.h"

namespace ashlar::tiers {
namespace {

using block::CacheGroup;

// The names that each tier has. Every tier has room for all of them: nothing leaves but by call.
class TierNames {
 public:
  using Names = std::set<tokens::SequenceHash>;
  static constexpr std::size_t kTiers = 4;

  // The routes to G2, G3 and G4.
  std::array<Trigger, 3> triggers = {};

  bool in(std::size_t tier, const tokens::SequenceHash& name) const { return tiers_[tier].contains(name); }
  bool anywhere(const tokens::SequenceHash& name) const {
    return std::ranges::any_of(tiers_, [&](const Names& names) { return names.contains(name); });
  }
  // Every name there ever was.
  const Names& all() const { return all_; }
  // Blocks that came up.
  std::size_t brought() const { return brought_; }

  // Computed, and registered in G1.
  void registered(const tokens::SequenceHash& name) {
    all_.insert(name);
    tiers_[0].insert(name);
    if (triggers[0] == Trigger::kOnArrival) offloaded(name);
  }
  // From G1 to G2.
  void offloaded(const tokens::SequenceHash& name) {
    if (!in(0, name) || !tiers_[1].insert(name).second) return;
    for (const std::size_t below : {2u, 3u})
      if (triggers[below - 1] == Trigger::kOnArrival) tiers_[below].insert(name);
  }
  // From G2 to a tier below it.
  void offloaded_to(std::size_t tier, const tokens::SequenceHash& name) {
    if (in(1, name)) tiers_[tier].insert(name);
  }
  // To G2 as a prefetch does, and from there to G1.
  void fetched(const tokens::SequenceHash& name) { tiers_[1].insert(name); }
  void onboarded(const tokens::SequenceHash& name) {
    fetched(name);
    tiers_[0].insert(name);
    ++brought_;
  }
  // The victims of G1 and G2 are written back: all blocks but those in use.
  void written_back(const Names& in_use) {
    if (triggers[0] == Trigger::kNearEviction)
      for (const tokens::SequenceHash& name : Names(tiers_[0]))
        if (!in_use.contains(name)) offloaded(name);
    for (const std::size_t below : {2u, 3u})
      if (triggers[below - 1] == Trigger::kNearEviction)
        tiers_[below].insert(tiers_[1].begin(), tiers_[1].end());
  }
  void reset(std::size_t tier, const Names& in_use) {
    std::erase_if(tiers_[tier], [&](const auto& name) { return tier != 0 || !in_use.contains(name); });
  }
  void removed(const tokens::SequenceHash& name) {
    for (Names& names : tiers_) names.erase(name);
  }

  // A match of up to `limit` blocks that brings up at most `most`: its blocks.
  std::size_t match(const std::vector<tokens::SequenceHash>& names, const std::vector<CacheGroup>& groups,
                    std::size_t limit, std::size_t most, std::uint32_t block_size) {
    if (groups.size() == 1 && !groups[0].window) return match_one(names, limit, most);
    for (std::size_t blocks = limit; blocks > 0; --blocks) {
      std::vector<tokens::SequenceHash> missing;
      bool valid = true;
      for (std::uint32_t g = 0; g < groups.size(); ++g)
        for (std::size_t i = blocks - groups[g].blocks_needed(blocks, block_size); i < blocks; ++i) {
          const tokens::SequenceHash name = names[i].in_group(g);
          valid &= anywhere(name);
          if (!in(0, name)) missing.push_back(name);
        }
      if (!valid || missing.size() > most) continue;
      for (const tokens::SequenceHash& name : missing) onboarded(name);
      return blocks;
    }
    return 0;
  }

 private:
  // The budget counts the blocks behind the prefix that G1 has, whichever tier has them.
  std::size_t match_one(const std::vector<tokens::SequenceHash>& names, std::size_t limit, std::size_t most) {
    std::size_t blocks = 0;
    while (blocks < limit && in(0, names[blocks])) ++blocks;
    const std::size_t end = blocks + std::min(most, limit - blocks);
    if (blocks == end || !anywhere(names[blocks])) return blocks;
    for (std::size_t i = blocks; i < end && anywhere(names[i]); ++i)
      if (!in(0, names[i])) onboarded(names[i]);
    while (blocks < limit && in(0, names[blocks])) ++blocks;
    return blocks;
  }

  Names all_;
  std::array<Names, kTiers> tiers_;
  std::size_t brought_ = 0;
};

// Parameter: the trigger of the route to G2.
class LockstepRequestsTest : public RequestsTest, public ::testing::WithParamInterface<Trigger> {
 protected:
  static constexpr std::uint32_t kBlocks = 1024;  // of each tier
  using Names = TierNames::Names;
  struct LiveRequest {
    Request request;
    RequestOptions options;
  };
  struct LiveSequence {
    block::Sequence<G1> sequence;
    std::size_t salt;
  };

  void open_tiers(std::uint64_t seed, Random& random) {
    const auto one_of = [&](Trigger a, Trigger b, Trigger c) { return std::array{a, b, c}[random.below(3)]; };
    KvOptions options = KvWorkload::options_in(folder_.file(std::to_string(seed)));
    options.g1.block_count = options.g2->block_count = options.g3->block_count = options.g4->block_count =
        kBlocks;
    const std::vector<std::string> names = block::eviction_names();
    options.g1.eviction = names[random.below(names.size())];
    options.g2->eviction = names[random.below(names.size())];
    options.g3->survive_power_loss = false;
    options.registry.frequency = block::TinyLfuOptions{.capacity = 1024};
    if (random.below(2) == 0) options.g1.pool.duplicates = block::DuplicatePolicy::kAllow;
    options.g4->probe = random.below(2) == 0;
    options.to_g2.trigger = GetParam();
    for (OffloadRoute* const route : {&options.to_g3, &options.to_g4})
      route->trigger = one_of(Trigger::kOnArrival, Trigger::kNearEviction, Trigger::kOnCall);
    for (OffloadRoute* const route : {&options.to_g2, &options.to_g3, &options.to_g4})
      route->look_ahead = kBlocks;
    model_ = {};
    model_.triggers = {options.to_g2.trigger, options.to_g3.trigger, options.to_g4.trigger};
    open(std::move(options));
    managers_.clear();
    for (const tokens::SequenceHasher& hasher : hashers())
      managers_.emplace_back(kv_->g1(), block::SequenceManagerOptions{.hasher = hasher});
  }
  static std::array<tokens::SequenceHasher, 2> hashers() {
    return {tokens::SequenceHasher(), tokens::SequenceHasher(tokens::Salt("lora", "tenant"))};
  }
  static std::vector<CacheGroup> groups_of(const RequestOptions& options) {
    return options.groups.empty() ? std::vector{CacheGroup::full_attention()} : options.groups;
  }
  static RequestOptions random_options(Random& random) {
    const CacheGroup all = CacheGroup::full_attention();
    const CacheGroup window = CacheGroup::sliding_window(static_cast<std::uint32_t>(3 + random.below(6)));
    const std::vector<CacheGroup> kinds[] = {{}, {}, {window}, {all, all}, {all, window}};
    RequestOptions options{.hasher = hashers()[random.below(4) / 3], .groups = kinds[random.below(5)]};
    options.reuse_last_token = random.below(4) == 0;
    if (random.below(2) == 0) options.max_tokens = 64;
    if (random.below(3) == 0)
      options.retention.prompt = {{.begin = 0, .end = 6, .priority = std::uint8_t(random.below(101))}};
    const std::size_t budgets[] = {0, 1, 2, 5};
    if (random.below(3) == 0) options.onboard.max_blocks = budgets[random.below(4)];
    options.onboard.by_layer = random.below(2) == 0;
    return options;
  }
  static std::vector<SequenceHash> names_of(const auto& one) {
    return {one.sequence_hashes().begin(), one.sequence_hashes().end()};
  }

  void step(Random& random) {
    const auto any = [&](auto& some) -> auto& { return some[random.below(some.size())]; };
    const auto prompt = [&] { return text(std::uint32_t(random.below(3)), 5 + random.below(14)); };
    const std::uint64_t kind = random.below(20);
    if (kind < 5) {
      if (requests_.size() > 3)  // alone: what it leaves is offered before a match may use it again
        return static_cast<void>(requests_.erase(requests_.begin() + std::ptrdiff_t(random.below(4))));
      const RequestOptions options = random_options(random);
      requests_.push_back({request(prompt(), options), options});
      return match(random, requests_.back());
    }
    if (kind == 5 && sequences_.size() < 2) return start_sequence(random, prompt());
    if (kind < 8) return reset(random);
    if (kind == 8) return by_name(random);
    if (kind == 9 && !sequences_.empty()) return go_on(random, random.below(sequences_.size()));
    if (requests_.empty()) return;
    if (kind == 10) return decode_batch(random);
    LiveRequest& one = any(requests_);
    if (kind == 11) {
      requests_.erase(requests_.begin() + (&one - requests_.data()));
    } else if (one.request.state() == RequestState::kPreempted) {
      match(random, one);
    } else if (kind < 14) {
      // What a preempted request leaves goes down by itself.
      for_registered(one.request, [&](const SequenceHash& name) { model_.offloaded(name); });
      ASSERT_TRUE(one.request.preempt());
    } else if (kind == 14 && requests_.size() < 5) {
      requests_.push_back({one.request.fork().value(), one.options});
    } else {
      advance(random, one);
    }
  }
  // From a new or preempted request to one with its cached prefix.
  void match(Random& random, LiveRequest& one) {
    Request& request = one.request;
    const bool whole = one.options.reuse_last_token && request.size() == request.prompt_size();
    const std::size_t limit = (whole ? request.size() : request.size() - 1) / kBlockSize;
    const std::vector<SequenceHash> names = names_of(request);
    const std::size_t expected = kBlockSize * model_.match(names, groups_of(one.options), limit,
                                                           one.options.onboard.max_blocks, kBlockSize);
    if (random.below(2) == 0) {
      const bool preempted = request.state() == RequestState::kPreempted;
      EXPECT_EQ((preempted ? request.resume() : request.match_prefix()).value(), expected);
    } else {
      std::atomic<bool> ready{false};
      const block::MatchStart start = request.begin_match([&] { ready = true; }).value();
      if (!start.pending) {
        EXPECT_EQ(start.cached, expected);
      } else {
        if (one.options.onboard.by_layer && groups_of(one.options) == std::vector{CacheGroup{}}) {
          const auto arriving = request.wait_layer(1).value();
          const auto first = names.begin() + std::ptrdiff_t(start.cached / kBlockSize);
          EXPECT_TRUE(work_->layer_right(arriving, {first, names.end()}, 1));
        }
        while (!ready) std::this_thread::yield();
        EXPECT_EQ(request.finish_match().value(), expected);
      }
    }
    EXPECT_EQ(request.cached_tokens(), expected);
    EXPECT_TRUE(right(request));
  }
  void advance(Random& random, LiveRequest& one) {
    Request& request = one.request;
    const std::size_t left = request.tokens_to_compute();
    const auto drawn = [&] { return Token(std::uint32_t(random.below(2))); };
    if (left == 0 || request.tokens_left().value_or(9) < 4) return;
    const std::size_t before = request.computed_tokens();
    if (left > 1) {
      const std::size_t tokens = 1 + random.below(left);
      ASSERT_TRUE(request.schedule_prefill(tokens));
      if (random.below(6) == 0) return static_cast<void>(request.revert());
      compute(request, tokens);
      ASSERT_TRUE(request.apply_prefill(tokens == left ? std::optional(drawn()) : std::nullopt));
    } else if (random.below(2) == 0) {
      ASSERT_TRUE(request.schedule_speculative(2));
      std::vector<Token> accepted;
      for (std::size_t i = 0; i < 1 + random.below(3); ++i) accepted.push_back(drawn());
      // The drafts are accepted or not; only what is accepted has its names.
      std::vector<Token> all(request.tokens().begin(), request.tokens().end());
      all.insert(all.end(), accepted.begin(), accepted.end());
      const Request named = RequestsTest::request(all, {.hasher = one.options.hasher});
      for (std::uint32_t g = 0; g < request.group_count(); ++g)
        for (std::size_t i = before / kBlockSize; i < (before + accepted.size()) / kBlockSize; ++i)
          work_->compute(request.block_table(g)[i], name(named, i, g));
      ASSERT_TRUE(request.apply_speculative(accepted));
    } else {
      ASSERT_TRUE(request.schedule_decode());
      compute(request, 1);
      ASSERT_TRUE(request.apply_decode(drawn()));
    }
    note_computed(request, before);
  }
  // The blocks that a step has filled.
  void note_computed(const Request& request, std::size_t before) {
    for (std::uint32_t g = 0; g < request.group_count(); ++g)
      for (std::size_t i = before / kBlockSize; i < request.computed_tokens() / kBlockSize; ++i)
        model_.registered(name(request, i, g));
  }
  void decode_batch(Random& random) {
    block::SequenceBatch<G1> batch;
    std::vector<std::pair<Request*, std::size_t>> members;  // and the tokens they had computed
    for (LiveRequest& one : requests_) {
      if (one.request.state() != RequestState::kIdle || one.request.tokens_to_compute() != 1) continue;
      if (one.request.tokens_left() == 0) continue;
      batch.add(one.request);
      members.emplace_back(&one.request, one.request.computed_tokens());
    }
    if (members.empty()) return;
    ASSERT_TRUE(batch.schedule_decode());
    std::vector<Token> next;
    for (const auto& [request, before] : members) {
      compute(*request, 1);
      next.emplace_back(std::uint32_t(random.below(2)));
    }
    ASSERT_TRUE(batch.apply_decode(next));
    for (const auto& [request, before] : members) note_computed(*request, before);
  }

  void start_sequence(Random& random, std::vector<Token> prompt) {
    const std::size_t salt = random.below(4) / 3;
    const std::size_t size = prompt.size();
    auto sequence = managers_[salt].make_sequence(std::move(prompt)).value();
    const std::vector<SequenceHash> names = names_of(sequence);
    const std::size_t expected =
        kBlockSize * model_.match(names, {CacheGroup::full_attention()}, (size - 1) / kBlockSize,
                                  std::numeric_limits<std::size_t>::max(), kBlockSize);
    if (random.below(2) == 0) {
      EXPECT_EQ(managers_[salt].allocate(sequence).value(), expected);
    } else if (const auto start = managers_[salt].begin_allocate(sequence, [] {}).value(); start.pending) {
      EXPECT_EQ(managers_[salt].finish_allocate(sequence).value(), expected);
    } else {
      EXPECT_EQ(start.cached, expected);
    }
    for (std::size_t i = 0; i < expected / kBlockSize; ++i)
      EXPECT_TRUE(work_->has_bytes(sequence.block_table()[i], names[i]));
    sequences_.push_back({std::move(sequence), salt});
    computed(sequences_.back());
  }
  void computed(LiveSequence& one) {
    const std::vector<SequenceHash> names = names_of(one.sequence);
    for (std::size_t i = one.sequence.computed_tokens() / kBlockSize; i < names.size(); ++i) {
      work_->compute(one.sequence.block_table()[i], names[i]);
      model_.registered(names[i]);
    }
    ASSERT_TRUE(managers_[one.salt].computed(one.sequence, one.sequence.size()));
  }
  void go_on(Random& random, std::size_t which) {
    LiveSequence& one = sequences_[which];
    if (random.below(3) == 0) {
      if (random.below(2) == 0) {
        ASSERT_TRUE(managers_[one.salt].deallocate(one.sequence));
      }
      sequences_.erase(sequences_.begin() + std::ptrdiff_t(which));
      return;
    }
    for (int i = 0; i < 3; ++i) {
      one.sequence.append(Token(std::uint32_t(random.below(2))));
      ASSERT_TRUE(managers_[one.salt].may_append(one.sequence));
      computed(one);
    }
  }

  void reset(Random& random) {
    const std::size_t tier = random.below(2) * random.below(TierNames::kTiers);  // mostly G1
    ASSERT_TRUE(kv_->reset(std::array{kG1, kG2, kG3, kG4}[tier]));
    model_.reset(tier, in_use());
  }
  // Calls with some names, whoever computed their blocks.
  void by_name(Random& random) {
    std::vector<SequenceHash> names;
    for (const SequenceHash& name : model_.all())
      if (random.below(3) == 0) names.push_back(name);
    switch (random.below(4)) {
      case 0:
        for (const SequenceHash& name : names) model_.offloaded(name);
        ASSERT_TRUE(kv_->offload(names, {.priority = std::uint8_t(random.below(101))}).value().wait());
        return;
      case 1: {
        const std::size_t tier = 2 + random.below(2);
        for (const SequenceHash& name : names) model_.offloaded_to(tier, name);
        ASSERT_TRUE(kv_->offload_to(tier == 2 ? kG3 : kG4, names).value().wait());
        return;
      }
      case 2: {
        for (const SequenceHash& name : names) {
          if (!model_.anywhere(name)) break;
          if (!model_.in(0, name)) model_.fetched(name);
        }
        ASSERT_TRUE(kv_->prefetch(names).value().wait());
        return;
      }
      default: {
        const Names used = in_use();
        std::erase_if(names,
                      [&](const SequenceHash& name) { return used.contains(name) || random.below(3) != 0; });
        ASSERT_TRUE(kv_->reset_blocks(names));
        for (const SequenceHash& name : names) model_.removed(name);
      }
    }
  }

  template <class Visit>
  void for_registered(const Request& request, Visit&& visit) const {
    for (std::uint32_t g = 0; g < request.group_count(); ++g) {
      const std::span<const block::BlockId> table = request.block_table(g);
      for (std::size_t i = 0; i < std::min(table.size(), request.computed_tokens() / kBlockSize); ++i)
        if (table[i] != block::kNoBlock) visit(name(request, i, g));
    }
  }
  Names in_use() const {
    Names used;
    for (const LiveRequest& one : requests_)
      for_registered(one.request, [&](const SequenceHash& name) { used.insert(name); });
    for (const LiveSequence& one : sequences_) {
      const auto names = one.sequence.sequence_hashes();
      used.insert(names.begin(), names.begin() + std::ptrdiff_t(one.sequence.computed_tokens() / kBlockSize));
    }
    return used;
  }
  // Lets everything arrive, and compares every tier with the model.
  void settle_and_compare() {
    {
      const auto taken = kv_->get_mutable_blocks(1).value();
    }  // looks ahead in G1
    kv_->drain();
    kv_->look_ahead();  // what arrived in G2 last
    kv_->drain();
    model_.written_back(in_use());
    const std::vector<SequenceHash> names(model_.all().begin(), model_.all().end());
    const std::vector<TierPresence> present = kv_->presence(names);
    for (std::size_t i = 0; i < names.size(); ++i)
      for (std::size_t tier = 0; tier < TierNames::kTiers; ++tier)
        ASSERT_EQ(present[i].in(events::TierId(std::uint8_t(tier))), model_.in(tier, names[i]))
            << "G" << tier + 1 << ", position " << names[i].position();
  }

  TierNames model_;
  std::vector<block::SequenceManager<G1>> managers_;  // one per hasher
  std::vector<LiveRequest> requests_;
  std::vector<LiveSequence> sequences_;
};

TEST_P(LockstepRequestsTest, EveryTierHasWhatTheModelHas) {
  const auto first = static_cast<std::uint64_t>(GetParam());
  const std::uint64_t seeds = ashlar::testing::rounds(16);
  std::size_t brought = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    open_tiers(seed, random);
    for (int i = 0; i < 200; ++i) {
      SCOPED_TRACE(i);
      ASSERT_NO_FATAL_FAILURE(step(random));
      ASSERT_NO_FATAL_FAILURE(settle_and_compare());
      if (HasFailure()) return;
    }
    EXPECT_EQ(kv_->status().g1.evictions, 0u) << "G1 has room for all";
    brought += model_.brought();
    requests_.clear();
    sequences_.clear();
    EXPECT_EQ(kv_->g1().available_blocks(), kBlocks);
    kv_->check_invariants();
    work_.reset();
    kv_.reset();
  }
  EXPECT_GT(brought, 0u) << "blocks that came up";
}

std::string name_of(const ::testing::TestParamInfo<Trigger>& trigger) {
  const std::array names = {"OnArrival", "NearEviction", "OnCall"};
  return names[static_cast<std::size_t>(trigger.param)];
}

INSTANTIATE_TEST_SUITE_P(Triggers, LockstepRequestsTest,
                         ::testing::Values(Trigger::kOnArrival, Trigger::kNearEviction, Trigger::kOnCall),
                         name_of);

}  // namespace
}  // namespace ashlar::tiers
