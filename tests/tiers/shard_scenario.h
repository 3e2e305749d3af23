// Fleets that divide one model in different ways share a volume: each rank reads its heads from objects that
// ranks of another fleet wrote, and nothing wrong is ever served.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "support/rounds.h"
#include "support/volume_objects.h"
#include "tiers/volume/volume_object.h"
#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {

struct ShardedModel {
  std::uint32_t heads = 4;
  std::uint32_t layers = 2;
  std::uint32_t block_size = 4;
  layout::Dtype dtype = layout::Dtype::kF16;
  bool opaque = false;
  bool head_scales = false;   // a plane with one value per head
  bool token_scales = false;  // a plane with one value for all heads
  bool moved_axes = false;    // other orders in G1 and G2
  std::uint32_t head_dim = 8;
  std::uint32_t alignment = 64;

  layout::Range all_layers() const { return {0, layers}; }
  std::vector<layout::Shard> fleet(std::uint32_t ranks) const {
    return layout::Shard::tensor_ranks(ranks, heads, all_layers()).value();
  }
  // The options of a rank; `base` has the volumes.
  KvOptions options(KvOptions base, const layout::Shard& shard) const {
    const auto plane = [&](std::uint32_t plane_heads, std::uint32_t head_dim, layout::Dtype type) {
      layout::LayoutConfig config = base.model;
      config.num_layers = shard.layers.count;
      config.num_heads = plane_heads;
      config.head_dim = head_dim;
      config.inner_dim = plane_heads * head_dim;
      config.block_size = block_size;
      config.dtype = type;
      config.opaque = opaque;
      config.alignment = alignment;
      return config;
    };
    base.scales.clear();
    if (head_scales) base.scales.push_back(plane(shard.heads.count, 1, layout::Dtype::kF32));
    if (token_scales) base.scales.push_back(plane(1, 1, layout::Dtype::kF32));
    base.model = plane(shard.heads.count, head_dim, dtype);
    base.block_size = block_size;
    base.shard = shard;
    if (opaque) base.g1.order = base.g2->order = layout::order::kFullyContiguousHnd;
    if (moved_axes) {
      base.g1.order = layout::order::kFullyContiguousHnd;
      base.g2->order = layout::order::kBlockSecondNhd;
    }
    return base;
  }
};

// A rank whose bytes follow from names and places in the whole model: whoever holds a head has the same.
class FleetRank {
 public:
  using Hashes = VolumeTier::Hashes;

  FleetRank(const ShardedModel& model, const KvOptions& base, const layout::Shard& shard,
            std::vector<layout::Shard> others = {})
      : model_(model), options_(model.options(base, shard)) {
    if (options_.g4) options_.g4->other_shards = std::move(others);
    kv_ = KvBlockManager::create(options_).value();
  }

  KvBlockManager& kv() { return *kv_; }
  const KvOptions& options() const { return options_; }
  std::uint64_t misses(Miss why) const { return kv_->status().misses[static_cast<std::size_t>(why)]; }

  void compute(block::BlockId id, const tokens::SequenceHash& hash) {
    each_byte(id.value(), hash, [](std::byte& byte, std::byte right) { byte = right; });
  }
  bool has_bytes(block::BlockId id, const tokens::SequenceHash& hash) {
    bool good = true;
    each_byte(id.value(), hash, [&](const std::byte& byte, std::byte right) { good &= byte == right; });
    return good;
  }
  // Computes blocks and registers them; they go to the volume.
  void store(std::span<const tokens::SequenceHash> hashes) {
    compute_and_register(hashes);
    push_out();
  }
  // The same, and leaves them in G2 only.
  void store_in_g2(std::span<const tokens::SequenceHash> hashes) {
    compute_and_register(hashes);
    EXPECT_TRUE(kv_->drain());
    EXPECT_TRUE(kv_->reset(VolumeTier::kG1));
  }
  void compute_and_register(std::span<const tokens::SequenceHash> hashes) {
    auto fresh = kv_->get_mutable_blocks(hashes.size()).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      compute(fresh[i].block_id(), hashes[i]);
      complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    }
    ASSERT_TRUE(kv_->register_blocks(std::move(complete)));
  }
  // Leaves blocks on volumes only.
  void push_out() {
    EXPECT_TRUE(kv_->drain());
    EXPECT_TRUE(kv_->reset(VolumeTier::kG1));
    EXPECT_TRUE(kv_->reset(VolumeTier::kG2));
  }
  // How many come up, all with their bytes.
  std::size_t onboard(const Hashes& hashes) {
    const OnboardTable table = kv_->onboard(hashes);
    for (std::size_t i = 0; i < table.size(); ++i)
      EXPECT_TRUE(has_bytes(table[i].block_id(), hashes[i])) << options_.shard.to_string() << ", block " << i;
    return table.size();
  }
  // The key of this rank's object.
  std::string key(const tokens::SequenceHash& hash) const { return object(hash).key(); }
  std::size_t object_bytes() const { return VolumeObject::kHeaderBytes + object({}).payload_bytes; }
  void expect_counts_exact() {
    kv_->drain();
    // Peers give their leases back a moment after they have read, and blocks are free a moment after that.
    const auto given_back = [this] {
      return kv_->remote() == nullptr || (kv_->remote()->status().leases == 0 &&
                                          kv_->g2()->available_blocks() == kv_->g2()->total_blocks());
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!given_back() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(kv_->g1().available_blocks(), kv_->g1().total_blocks());
    EXPECT_EQ(kv_->g2()->available_blocks(), kv_->g2()->total_blocks());
    if (kv_->g4() != nullptr) {
      EXPECT_EQ(kv_->g4()->available_blocks(), kv_->g4()->total_blocks());
    }
    kv_->check_invariants();
  }

 private:
  VolumeObject object(const tokens::SequenceHash& hash) const {
    VolumeObject object =
        VolumeObject::describe(*kv_->g1_blocks(), options_.keys, options_.scheme_fingerprint,
                               tokens::PrefixKey::of_namespace(options_.keys).fingerprint());
    object.hash = hash;
    return object;
  }
  template <class F>
  void each_byte(std::uint32_t slot, const tokens::SequenceHash& hash, F&& fn) {
    const transfer::BlockSet& set = *kv_->g1_blocks();
    const layout::Shard& shard = set.planes()[0].shard;
    for (std::size_t p = 0; p < set.planes().size(); ++p) {
      const layout::Layout& layout = set.planes()[p].layout;
      const layout::LayoutConfig& c = layout.config();
      const std::uint64_t head_bytes = c.head_bytes();
      const bool for_all_heads = model_.token_scales && p + 1 == set.planes().size();
      for (std::uint32_t l = 0; l < c.num_layers; ++l)
        for (std::uint32_t o = 0; o < c.outer_dim; ++o)
          for (std::uint32_t t = 0; t < c.block_size; ++t)
            for (std::uint32_t h = 0; h < c.num_heads; ++h) {
              constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15ull;
              std::uint64_t value = hash.chain() + p;
              const std::uint64_t head = for_all_heads ? 99 : std::uint64_t{h} + shard.heads.first;
              for (const std::uint64_t part :
                   {std::uint64_t{l} + shard.layers.first, std::uint64_t{o}, std::uint64_t{t}, head})
                value = (value + part + 1) * kMix;
              std::byte* const bytes = set.address(p, layout.place({slot, l, o, t, h}));
              for (std::uint64_t b = 0; b < head_bytes; ++b)
                fn(bytes[b], static_cast<std::byte>((value + b + 1) * kMix >> 40));
            }
    }
  }

  ShardedModel model_;
  KvOptions options_;
  std::unique_ptr<KvBlockManager> kv_;
};

// Looks at the first volume of the options while no manager has it.
template <class F>
void with_volume(const KvOptions& base, F&& fn) {
  const std::unique_ptr<Volume> volume = base.g4->kinds.attach(base.g4->volumes[0]).value();
  fn(*volume);
}

// One fleet writes, another reads.
struct Degrees {
  std::uint32_t heads;
  std::uint32_t writers;
  std::uint32_t readers;
};
inline const std::vector<Degrees> kFewDegrees = {{4, 2, 4}, {4, 4, 2}, {4, 1, 4}, {4, 4, 1}};
// Both directions at whole ratios, then degrees of which neither divides the other, then more ranks than
// heads. Under a sanitizer one pair of each kind.
inline std::vector<Degrees> many_degrees() {
  if (!ashlar::testing::all_rounds()) return {{4, 2, 4}, {4, 4, 2}, {12, 4, 6}, {4, 8, 4}, {4, 2, 8}};
  return {{4, 2, 4},   {4, 4, 2},   {12, 1, 12}, {12, 12, 1}, {12, 2, 6}, {12, 6, 2},
          {12, 3, 12}, {12, 12, 3}, {12, 1, 2},  {12, 2, 1},  {12, 4, 6}, {12, 6, 4},
          {4, 4, 8},   {4, 8, 4},   {4, 2, 8},   {4, 8, 2},   {1, 2, 3},  {1, 3, 2}};
}

inline void expect_fleets_read_each_other(const KvOptions& base, ShardedModel model,
                                          const std::vector<Degrees>& degrees, std::uint64_t number = 0) {
  for (const Degrees& some : degrees) {
    SCOPED_TRACE(::testing::Message()
                 << some.writers << " ranks write, " << some.readers << " read; " << some.heads << " heads");
    model.heads = some.heads;
    const FleetRank::Hashes hashes = VolumeTier::sequence(++number, 3);
    const std::vector<layout::Shard> writers = model.fleet(some.writers);
    model.moved_axes = false;
    for (const layout::Shard& shard : writers) FleetRank(model, base, shard).store(hashes);
    model.moved_axes = !model.opaque;
    for (const layout::Shard& shard : model.fleet(some.readers)) {
      EXPECT_EQ(FleetRank(model, base, shard).onboard(hashes), 0u) << "not without the option";
      FleetRank reader(model, base, shard, writers);
      EXPECT_EQ(reader.kv().find(hashes), (std::vector<TierRun>{{VolumeTier::kG4, 0, 3}}));
      EXPECT_EQ(reader.onboard(hashes), 3u) << reader.kv().status().shard_refusal;
      reader.push_out();
      EXPECT_EQ(reader.onboard(hashes), 3u) << "again, from the same place";
      EXPECT_EQ(reader.kv().status().volumes[0].put, 0u) << "nothing is stored twice";
      EXPECT_EQ(reader.kv().status().g4->damaged, 0u);
      EXPECT_EQ(reader.kv().status().shard_refusal, "");
      reader.expect_counts_exact();
    }
  }
}

// Four ranks write, two read; and the other way.
struct FleetPair {
  std::uint32_t writers;
  std::uint32_t readers;
  std::uint32_t partner;  // a writer whose heads the first reader needs; damage hits heads it does not need
};
inline const std::vector<FleetPair> kBothWays = {{2, 4, 0}, {4, 2, 1}};

// A bit flips in the second block of one writer: in a slice, in the half that is not taken.
inline void expect_a_damaged_shard_is_a_miss(const KvOptions& base, std::uint64_t number = 500) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  for (const bool in_header : {false, true}) {
    for (const FleetPair& pair : kBothWays) {
      SCOPED_TRACE(::testing::Message() << pair.writers << " ranks write, header " << in_header);
      const ShardedModel model;
      const FleetRank::Hashes hashes = VolumeTier::sequence(++number, 3);
      const std::vector<layout::Shard> writers = model.fleet(pair.writers);
      std::string key;
      std::size_t bytes = 0;
      for (const layout::Shard& shard : writers) {
        FleetRank writer(model, base, shard);
        writer.store(hashes);
        if (shard.rank == pair.partner) key = writer.key(hashes[1]);
        bytes = writer.object_bytes();
      }
      Bytes damaged;
      with_volume(base, [&](Volume& volume) {
        damaged = get_one(volume, key, bytes).value();
        damaged[in_header ? 50 : bytes - 1] ^= std::byte{16};
        const std::string_view old = key;
        ASSERT_TRUE(volume.remove(std::span(&old, 1))[0]);  // some volumes keep the old one
        ASSERT_TRUE(put_one(volume, key, damaged));
      });
      {
        FleetRank reader(model, base, model.fleet(pair.readers)[0], writers);
        EXPECT_EQ(reader.onboard(hashes), 1u);
        EXPECT_EQ(reader.misses(Miss::kDamaged), 1u);
        EXPECT_EQ(reader.misses(Miss::kBehind), 1u);
        EXPECT_EQ(reader.kv().status().g4->damaged, 1u);
        reader.expect_counts_exact();
      }
      with_volume(base, [&](Volume& volume) {
        EXPECT_EQ(get_one(volume, key, bytes).value(), damaged) << "it is another rank's: it stays";
      });
      FleetRank reader(model, base, model.fleet(pair.readers)[0], writers);
      EXPECT_EQ(reader.onboard(hashes), 1u);
      reader.push_out();
      reader.store(std::span(hashes).subspan(1, 1));
      EXPECT_EQ(reader.onboard(hashes), 3u) << "its own between two of others";
      reader.expect_counts_exact();
    }
  }
}

inline void expect_a_missing_shard_is_a_miss(const KvOptions& base, std::uint64_t number = 600) {
  const ShardedModel model;
  const FleetRank::Hashes hashes = VolumeTier::sequence(number, 3);
  const std::vector<layout::Shard> writers = model.fleet(4);
  std::string key;
  for (const layout::Shard& shard : writers) {
    FleetRank writer(model, base, shard);
    writer.store(hashes);
    if (shard.rank == 1) key = writer.key(hashes[1]);
  }
  with_volume(base, [&](Volume& volume) {
    const std::string_view gone = key;
    ASSERT_TRUE(volume.remove(std::span(&gone, 1))[0]);
  });
  FleetRank first(model, base, model.fleet(2)[0], writers);
  const OnboardHandle call = first.kv().onboard_async(hashes).value();
  EXPECT_EQ(call.wait().value().size(), 1u);
  EXPECT_EQ(call.blocks()[1].miss, Miss::kOtherShards);
  EXPECT_EQ(call.blocks()[2].miss, Miss::kBehind);
  EXPECT_EQ(first.kv().status().shard_refusal,
            "block " + hashes[1].to_string() +
                ": rank 0 of 2 (layers 0 to 1, heads 0 to 1) cannot be made from the objects of rank 0 of 4 "
                "(layers 0 to 1, heads 0 to 0): no source has layer 0, head 1");
  EXPECT_EQ(first.onboard(hashes), 1u);
  EXPECT_EQ(first.misses(Miss::kOtherShards), 2u);
  first.push_out();
  first.expect_counts_exact();
}

// Texts under the same names, as a client might craft them.
inline void expect_shards_keep_their_identity(const KvOptions& base) {
  using Request = block::RequestSequence<events::G1>;
  const ShardedModel model;
  const auto text = [](std::uint32_t first) {
    std::vector<tokens::Token> out;
    for (std::uint32_t i = 0; i < 17; ++i) out.emplace_back(first + i);
    return out;
  };
  FleetRank::Hashes names;
  const auto store = [&](const layout::Shard& shard, std::uint32_t first) {
    FleetRank rank(model, base, shard);
    Request one = names.empty() ? Request::create(rank.kv().g1(), text(first)).value()
                                : Request::create(rank.kv().g1(), text(first), names, {}).value();
    ASSERT_TRUE(one.schedule_prefill(17));
    names.assign(one.sequence_hashes().begin(), one.sequence_hashes().end());
    for (std::size_t i = 0; i < names.size(); ++i) rank.compute(one.block_table()[i], names[i]);
    ASSERT_TRUE(one.apply_prefill(tokens::Token(1)));
    one.release();
    EXPECT_TRUE(rank.kv().drain());
  };
  const auto matched = [&](FleetRank& rank, std::uint32_t first) {
    return Request::create(rank.kv().g1(), text(first), names, {}).value().match_prefix().value();
  };
  // One object is cut: whoever asks for another text does not get it.
  for (const layout::Shard& shard : model.fleet(2)) store(shard, 3000);
  for (const layout::Shard& shard : model.fleet(4)) {
    FleetRank rank(model, base, shard, model.fleet(2));
    EXPECT_EQ(matched(rank, 4000), 0u);
    EXPECT_EQ(rank.misses(Miss::kOtherTokens), 1u);
    EXPECT_EQ(matched(rank, 3000), 16u);
    rank.expect_counts_exact();
  }
  // Two objects of different texts make no block.
  names.clear();
  for (const layout::Shard& shard : model.fleet(4)) store(shard, shard.rank == 1 ? 6000 : 5000);
  {
    FleetRank mixed(model, base, model.fleet(2)[0], model.fleet(4));
    for (const std::uint32_t first : {5000u, 6000u}) {
      EXPECT_EQ(matched(mixed, first), 0u);
      EXPECT_THAT(mixed.kv().status().shard_refusal, ::testing::HasSubstr("hold different texts"));
    }
    EXPECT_EQ(mixed.misses(Miss::kOtherShards), 2u);
    EXPECT_EQ(mixed.onboard(names), 0u) << "also for those who trust names";
    mixed.expect_counts_exact();
  }
  {
    FleetRank same(model, base, model.fleet(2)[1], model.fleet(4));
    EXPECT_EQ(matched(same, 5000), 16u);
    EXPECT_EQ(matched(same, 6000), 0u);
  }
  // An object that was stored by name alone goes with any, and does not bring two texts together.
  names.clear();
  const std::vector<layout::Shard> four = model.fleet(4);
  store(four[0], 7000);
  store(four[2], 8000);
  for (const std::size_t rank : {1u, 3u}) FleetRank(model, base, four[rank]).store(names);
  for (const std::uint32_t half : {0u, 1u}) {
    FleetRank one(model, base, model.fleet(2)[half], four);
    EXPECT_EQ(matched(one, half == 0 ? 7000 : 8000), 16u) << one.kv().status().shard_refusal;
    EXPECT_EQ(matched(one, half == 0 ? 8000 : 7000), 0u);
    one.expect_counts_exact();
  }
  FleetRank all(model, base, model.fleet(1)[0], four);
  EXPECT_EQ(matched(all, 7000), 0u);
  EXPECT_THAT(all.kv().status().shard_refusal, ::testing::HasSubstr("hold different texts"));
  all.expect_counts_exact();
}

// All of it, as each kind of volume should do it. `number`: of names that nobody has used on this volume.
inline void expect_shards_across_degrees(const KvOptions& base, const std::vector<Degrees>& degrees) {
  ShardedModel model;
  expect_fleets_read_each_other(base, model, degrees, 0);
  model.head_scales = true;
  expect_fleets_read_each_other(base, model, kFewDegrees, 100);
  expect_a_damaged_shard_is_a_miss(base);
  expect_a_missing_shard_is_a_miss(base);
  expect_shards_keep_their_identity(base);
}

}  // namespace ashlar::tiers
