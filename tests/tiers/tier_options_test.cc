// What each tier may be told about its blocks: eviction by name or by a backend of the user's, duplicates,
// watermarks, pins, tokens, reset allocators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/block/block_orders.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/tokens/token_sequence.h"
#include "examples/lower_tier_first.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using block::BlockId;
using events::G1;
using ::testing::HasSubstr;
using tokens::SequenceHash;

class TierOptionsTest : public ::testing::Test {
 protected:
  // 8 blocks in G1, 12 in G2, 10 in G3, 6 in G4; blocks go down by call only.
  KvOptions options() {
    KvOptions made = KvWorkload::options_in(folder_.file("tiers" + std::to_string(opened_)));
    made.g3->block_count = 10;
    made.g3->survive_power_loss = false;
    made.g4->block_count = 6;
    made.g4->probe = false;
    made.to_g2.trigger = made.to_g3.trigger = made.to_g4.trigger = Trigger::kOnCall;
    return made;
  }
  void open(KvOptions options) {
    kv_.reset();
    ++opened_;
    auto made = KvBlockManager::create(std::move(options));
    ASSERT_TRUE(made) << made.error();
    kv_ = *std::move(made);
  }
  static std::vector<SequenceHash> names(std::uint64_t first, std::size_t count) {
    std::vector<SequenceHash> hashes;
    hashes.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) hashes.push_back(SequenceHash::root(1000 + first + i));
    return hashes;
  }
  void compute(const std::vector<SequenceHash>& hashes, const RegisterOptions& how = {}) {
    for (const SequenceHash& hash : hashes) {
      auto fresh = kv_->get_mutable_blocks(1).value();
      KvWorkload(*kv_).compute(fresh[0].block_id(), hash);
      block::BlockList<block::CompleteBlock<G1>> complete;
      complete.push_back(std::move(fresh[0]).stage(hash, block::KvReady::asserted_by_caller()));
      const auto stored = kv_->register_blocks(std::move(complete), how).value();
    }
  }
  void offload(events::TierId to, const std::vector<SequenceHash>& hashes) {
    for (const SequenceHash& hash : hashes)  // one by one: they arrive in this order
      ASSERT_TRUE(kv_->offload_to(to, std::span(&hash, 1)).value().wait());
  }
  // In each tier, of these.
  std::vector<SequenceHash> in(events::TierId tier, const std::vector<SequenceHash>& hashes) {
    std::vector<SequenceHash> found;
    const std::array<events::TierId, 1> id = {tier};
    const auto present = kv_->registry().check_presence_any(hashes, id);
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (present[i]) found.push_back(hashes[i]);
    return found;
  }
  static void expect_refused(const KvOptions& options, const std::string& says) {
    const auto made = KvBlockManager::create(options);
    ASSERT_FALSE(made) << says;
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument) << made.error();
    EXPECT_THAT(made.error().message(), HasSubstr(says));
  }

  ScratchFolder folder_;
  int opened_ = 0;
  std::unique_ptr<KvBlockManager> kv_;
};

// Evicts what was released last: no backend of the library does.
class NewestFirst {
 public:
  NewestFirst(const block::EvictionContext& context, std::atomic<int>* evicted)
      : order_(context.block_count), evicted_(evicted) {}
  void insert(BlockId id, const SequenceHash&) { order_.push_back(id); }
  void remove(BlockId id) { order_.remove(id); }
  void touch(BlockId id) {
    order_.remove(id);
    order_.push_back(id);
  }
  std::optional<BlockId> pop() {
    std::vector<BlockId> all(order_.size());
    if (all.empty()) return std::nullopt;
    order_.peek(all);
    order_.remove(all.back());
    ++*evicted_;
    return all.back();
  }
  std::size_t peek(std::span<BlockId> out) const {
    std::vector<BlockId> all(order_.size());
    order_.peek(all);
    const std::size_t count = std::min(out.size(), all.size());
    std::copy_n(all.rbegin(), count, out.begin());
    return count;
  }
  std::size_t size() const { return order_.size(); }

 private:
  block::IntrusiveOrder order_;
  std::atomic<int>* evicted_;
};
static_assert(block::EvictionBackend<NewestFirst>);

TEST_F(TierOptionsTest, EveryTierEvictsByABackendOfTheUser) {
  std::array<std::atomic<int>, 4> evicted = {};
  KvOptions made = options();
  made.g1.eviction = block::eviction_of<NewestFirst>(&evicted[0]);
  made.g2->eviction = block::eviction_of<NewestFirst>(&evicted[1]);
  made.g3->eviction = block::eviction_of<NewestFirst>(&evicted[2]);
  made.g4->eviction = block::eviction_of<NewestFirst>(&evicted[3]);
  open(made);
  const auto hashes = names(0, 14);
  for (const SequenceHash& hash : hashes) {
    compute({hash});
    offload(kG2, {hash});
    offload(kG3, {hash});
    offload(kG4, {hash});
  }
  // The first ones stay, and the last one took the place of the one before it.
  const auto first_and_last = [&](std::size_t capacity) {
    std::vector<SequenceHash> kept(hashes.begin(),
                                   hashes.begin() + static_cast<std::ptrdiff_t>(capacity) - 1);
    kept.push_back(hashes.back());
    return kept;
  };
  EXPECT_EQ(in(kG1, hashes), first_and_last(8));
  EXPECT_EQ(in(kG2, hashes), first_and_last(12));
  EXPECT_EQ(in(kG3, hashes), first_and_last(10));
  EXPECT_EQ(in(kG4, hashes), first_and_last(6));
  EXPECT_EQ(evicted[0], 6);
  EXPECT_EQ(evicted[1], 2);
  EXPECT_EQ(evicted[2], 4);
  EXPECT_EQ(evicted[3], 8);
}

TEST_F(TierOptionsTest, WhatALowerTierHasGoesFirst) {
  using Backend = block::HashMapBackend<examples::LowerTierFirst>;
  KvOptions made = options();
  made.g1.eviction = block::eviction_of<Backend>();
  made.g2->eviction = block::eviction_of<Backend>(kG3);
  open(made);
  const auto hashes = names(0, 8);
  compute(hashes);
  offload(kG2, {hashes[3], hashes[5]});
  compute(names(100, 2));
  EXPECT_EQ(in(kG1, hashes), (std::vector{hashes[0], hashes[1], hashes[2], hashes[4], hashes[6], hashes[7]}));
  compute(names(102, 1));
  EXPECT_EQ(in(kG1, hashes).front(), hashes[1]) << "without a copy below, the oldest goes";

  open(made);
  const auto more = names(200, 12);
  for (std::size_t i = 0; i < 12; i += 4) {
    const std::vector<SequenceHash> some(more.begin() + static_cast<std::ptrdiff_t>(i),
                                         more.begin() + static_cast<std::ptrdiff_t>(i) + 4);
    compute(some);
    offload(kG2, some);
  }
  offload(kG3, {more[7], more[9]});
  compute(names(300, 2));
  offload(kG2, names(300, 2));
  EXPECT_EQ(in(kG2, {more[7], more[9]}), std::vector<SequenceHash>());
  EXPECT_EQ(in(kG2, more).size(), 10u);
}

TEST_F(TierOptionsTest, MultiLruByNameCountsUses) {
  KvOptions made = options();
  made.g2->eviction = "multi_lru";
  open(made);
  ASSERT_NE(kv_->registry().frequency_tracker(), nullptr);
  const auto kept = names(0, 2);
  compute(kept);
  offload(kG2, kept);
  for (int use = 0; use < 20; ++use)
    for (const SequenceHash& hash : kept) kv_->registry().touch(hash);
  for (const SequenceHash& hash : names(10, 20)) {
    compute({hash});
    offload(kG2, {hash});
  }
  EXPECT_EQ(in(kG2, kept), kept) << "used more often";
  made.g2->eviction = "lru";
  open(made);
  EXPECT_EQ(kv_->registry().frequency_tracker(), nullptr);
  made.registry.frequency = block::TinyLfuOptions{.capacity = 1024};
  open(made);
  EXPECT_NE(kv_->registry().frequency_tracker(), nullptr);
}

TEST_F(TierOptionsTest, BackendsTakeTheirOptions) {
  KvOptions made = options();
  // In G2, priority 60 is kept, and lasts: it has no time.
  made.g2->eviction = block::retention_eviction({.default_priority = 30, .retained_share = 1.0});
  // In G1, a hash that was used twice is warm.
  made.g1.eviction = block::multi_lru_eviction({.warm = 2, .hot = 4, .very_hot = 8});
  expect_refused(made, "g1: the multi-LRU backend needs a registry that counts uses");
  made.registry.frequency = block::TinyLfuOptions{.capacity = 1024};
  open(made);
  const auto kept = names(0, 2);
  compute(kept, {.retention = {.priority = 60}});
  offload(kG2, kept);
  for (int use = 0; use < 3; ++use)
    for (const SequenceHash& hash : kept) kv_->registry().touch(hash);
  const auto others = names(10, 20);
  for (const SequenceHash& hash : others) {
    compute({hash});
    offload(kG2, {hash});
  }
  EXPECT_EQ(in(kG1, kept), kept) << "used more often";
  EXPECT_EQ(in(kG2, kept), kept) << "worth more";
  EXPECT_EQ(in(kG2, others).size(), 10u);
  made.g1.eviction = block::multi_lru_eviction({.warm = 5, .hot = 4});
  expect_refused(made, "g1: the thresholds of the multi-LRU tiers are 5, 4 and 15");
}

TEST_F(TierOptionsTest, DuplicatesKeepTheirBlocksWhereTheyMay) {
  for (const bool allow : {false, true}) {
    SCOPED_TRACE(allow);
    KvOptions made = options();
    made.to_g2.trigger = Trigger::kOnArrival;
    if (allow) made.g1.pool.duplicates = made.g2->pool.duplicates = block::DuplicatePolicy::kAllow;
    open(made);
    const SequenceHash hash = names(0, 1)[0];
    const auto store = [&] {
      auto fresh = kv_->get_mutable_blocks(1).value();
      KvWorkload(*kv_).compute(fresh[0].block_id(), hash);
      block::BlockList<block::CompleteBlock<G1>> complete;
      complete.push_back(std::move(fresh[0]).stage(hash, block::KvReady::asserted_by_caller()));
      return kv_->register_blocks(std::move(complete)).value();
    };
    {
      const auto first = store();
      const auto second = store();
      EXPECT_EQ(first[0].block_id() != second[0].block_id(), allow);
      EXPECT_TRUE(KvWorkload(*kv_).right(second, {hash}));
    }
    kv_->drain();
    EXPECT_EQ(kv_->status().to_g2->arrived, 1u) << "one copy, whichever block it is of";
    EXPECT_EQ(kv_->g1().status().inactive, 1u);
    kv_->reset(kG1).value();
    const auto table = kv_->onboard(std::span(&hash, 1));
    EXPECT_TRUE(KvWorkload(*kv_).right(table, {hash}));
    EXPECT_EQ(table.size(), 1u);
  }
}

TEST_F(TierOptionsTest, PinsAreLimitedPerTier) {
  KvOptions made = options();
  made.g1.pool.max_pins = 1;
  made.g2->pool.max_pins = 3;
  open(made);
  const auto hashes = names(0, 4);
  compute(hashes);
  offload(kG2, hashes);
  std::vector<block::Pin> pins;
  const auto pin_all = [&](auto& manager) {
    std::size_t pinned = 0;
    for (const SequenceHash& hash : hashes) {
      auto found = manager.scan_matches(std::span(&hash, 1), false);
      auto pin = found.begin()->second.pin(std::chrono::hours(1));
      if (!pin) continue;
      pins.push_back(*std::move(pin));
      ++pinned;
    }
    return pinned;
  };
  EXPECT_EQ(pin_all(kv_->g1()), 1u);
  EXPECT_EQ(pin_all(*kv_->g2()), 3u);
}

TEST_F(TierOptionsTest, ResetAllocatorsOrderEmptyBlocks) {
  const auto last_in = [](std::uint32_t blocks) -> std::unique_ptr<block::ResetAllocator> {
    return std::make_unique<block::LifoResetAllocator>(blocks);
  };
  KvOptions made = options();
  made.g1.pool.reset_allocator = made.g2->pool.reset_allocator = made.g3->pool.reset_allocator =
      made.g4->pool.reset_allocator = last_in;
  open(made);
  const auto first_block = [](auto& manager) {
    return manager.allocate_blocks(1).value()[0].block_id().value();
  };
  EXPECT_EQ(first_block(kv_->g1()), 7u);
  EXPECT_EQ(first_block(*kv_->g2()), 11u);
  EXPECT_EQ(first_block(*kv_->g4()), 5u);
  // G3 took all its blocks to restore what its files have, and gave them back.
  const auto hashes = names(0, 6);
  compute(hashes);
  offload(kG2, hashes);
  offload(kG3, hashes);
  kv_->reset(kG1).value();
  kv_->reset(kG2).value();
  const auto table = kv_->onboard(hashes);
  EXPECT_EQ(table.size(), 6u);
  EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
  EXPECT_EQ(kv_->status().g3->onboarded, 6u);
}

TEST_F(TierOptionsTest, G1KeepsTokensAndReleasesAsItIsTold) {
  KvOptions made = options();
  made.g1.pool.keep_tokens = true;
  made.g1.pool.default_reset_on_release = true;
  made.to_g2.trigger = Trigger::kOnArrival;
  open(made);
  std::vector<tokens::Token> prompt;
  prompt.reserve(8);
  for (std::uint32_t i = 0; i < 8; ++i) prompt.emplace_back(i + 1);
  auto sequence = tokens::TokenSequence::create(4, kv_->hasher()).value();
  ASSERT_TRUE(sequence.extend(prompt));
  std::vector<SequenceHash> hashes;
  {
    auto fresh = kv_->get_mutable_blocks(2).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < 2; ++i) {
      hashes.push_back(sequence.blocks()[i].sequence_hash());
      complete.push_back(
          std::move(fresh[i]).complete(sequence.blocks()[i], block::KvReady::asserted_by_caller()).value());
    }
    const auto stored = kv_->register_blocks(std::move(complete)).value();
    EXPECT_EQ(kv_->g1().tokens_of(hashes[1]).value(), std::vector(prompt.begin() + 4, prompt.end()));
    kv_->drain();
  }
  EXPECT_EQ(kv_->g1().status().reset, 8u) << "nothing stays in G1";
  EXPECT_EQ(in(kG2, hashes), hashes);
  EXPECT_EQ(kv_->onboard(hashes).size(), 2u);
}

TEST_F(TierOptionsTest, WatermarksOfEveryTierReportPressure) {
  struct Heard {
    std::atomic<int> low{0};
    std::atomic<int> normal{0};
  };
  std::array<Heard, 4> heard;
  std::atomic<KvBlockManager*> kv{nullptr};
  const auto listen = [&](std::size_t tier) -> block::PressureCallback {
    return [&, tier](block::Pressure pressure, std::size_t) {
      // Callbacks may use the manager, also where it removes blocks of the tier.
      if (tier != 0 && kv != nullptr) {
        const SequenceHash unknown = SequenceHash::root(1);
        EXPECT_TRUE(kv.load()->reset_blocks(std::span(&unknown, 1)));
        EXPECT_GT(kv.load()->status().g1.pool.total, 0u);
      }
      ++(pressure == block::Pressure::kLow ? heard[tier].low : heard[tier].normal);
    };
  };
  KvOptions made = options();
  const std::array<PoolOptions*, 4> pools = {&made.g1.pool, &made.g2->pool, &made.g3->pool, &made.g4->pool};
  // Pinned blocks are not available.
  const std::array<std::size_t, 4> high = {8, 12, 10, 6};
  for (std::size_t i = 0; i < 4; ++i) {
    pools[i]->watermarks = {.low = high[i], .high = high[i]};
    pools[i]->on_pressure = listen(i);
  }
  open(made);
  kv = kv_.get();
  const auto hash = names(0, 1);
  compute(hash);
  EXPECT_EQ(heard[0].low, 1);
  EXPECT_EQ(heard[0].normal, 1);
  offload(kG2, hash);
  offload(kG3, hash);
  offload(kG4, hash);
  for (const Heard& tier : heard)
    while (tier.low == 0 || tier.normal == 0) std::this_thread::yield();
  // One that lasts.
  const int before = heard[2].low;
  {
    const auto taken = kv_->g3()->allocate_blocks(1).value();
    while (heard[2].low == before) std::this_thread::yield();
    EXPECT_EQ(kv_->g3()->pressure(), block::Pressure::kLow);
  }
  while (heard[2].normal <= before) std::this_thread::yield();
  kv_.reset();
}

// G3 takes all its blocks for a moment to restore what its files have.
TEST_F(TierOptionsTest, PressureWhileAManagerIsMadeIsNotReported) {
  std::atomic<int> low{0};
  std::atomic<int> normal{0};
  KvOptions made = options();
  made.g3->pool.watermarks = {.low = 5, .high = 5};
  made.g3->pool.on_pressure = [&](block::Pressure pressure, std::size_t) {
    ++(pressure == block::Pressure::kLow ? low : normal);
  };
  open(made);
  auto taken = kv_->g3()->allocate_blocks(6).value();
  while (low == 0) std::this_thread::yield();
  EXPECT_EQ(low, 1);
  EXPECT_EQ(normal, 0) << "that of create() is not reported";
  taken.clear();
  while (normal == 0) std::this_thread::yield();
  EXPECT_EQ(low, 1);
}

TEST_F(TierOptionsTest, TheDestructorWaitsForACallback) {
  std::atomic<bool> entered{false};
  std::atomic<bool> left{false};
  KvBlockManager* kv = nullptr;
  KvOptions made = options();
  made.g2->pool.watermarks = {.low = 12, .high = 12};
  made.g2->pool.on_pressure = [&](block::Pressure pressure, std::size_t) {
    if (pressure != block::Pressure::kLow || entered.exchange(true)) return;
    for (int i = 0; i < 2000; ++i) EXPECT_EQ(kv->status().g2->pool.total, 12u);
    left = true;
  };
  open(made);
  kv = kv_.get();
  compute(names(0, 1));
  offload(kG2, names(0, 1));
  while (!entered) std::this_thread::yield();
  kv_.reset();
  EXPECT_TRUE(left);
}

TEST_F(TierOptionsTest, OptionsThatCannotWorkAreRefused) {
  const auto with = [&](auto&& change) {
    KvOptions made = options();
    change(made);
    return made;
  };
  expect_refused(with([](KvOptions& o) { o.g2->eviction = "lur"; }), "g2.eviction: ");
  expect_refused(with([](KvOptions& o) { o.g4->eviction = "lur"; }), "lineage");  // names those that exist
  expect_refused(with([](KvOptions& o) { o.g3->eviction = block::EvictionFactory(); }),
                 "g3.eviction is an empty factory");
  expect_refused(with([](KvOptions& o) { o.g3->pool.duplicates = block::DuplicatePolicy::kAllow; }),
                 "g3.pool.duplicates is kAllow; a hash has one block in G3");
  expect_refused(with([](KvOptions& o) { o.g4->pool.duplicates = block::DuplicatePolicy::kAllow; }),
                 "one block in G4");
  expect_refused(with([](KvOptions& o) { o.g2->pool.keep_tokens = true; }), "g2.pool.keep_tokens is set");
  expect_refused(with([](KvOptions& o) { o.g3->pool.default_reset_on_release = true; }),
                 "g3.pool.default_reset_on_release is set; G3 would keep no block, leave g3 out");
  expect_refused(with([](KvOptions& o) { o.g1.pool.on_pressure = [](block::Pressure, std::size_t) {}; }),
                 "g1.pool.on_pressure would never be called; set g1.pool.watermarks");
  expect_refused(with([](KvOptions& o) { o.g2->pool.watermarks = {.low = 5, .high = 13}; }),
                 "g2: high watermark 13 is above the 12 blocks of the pool");
}

}  // namespace
}  // namespace ashlar::tiers
