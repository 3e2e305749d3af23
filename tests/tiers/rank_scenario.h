// Two ranks of one model with the same keys on one volume: each reads its own bytes and no other's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {

struct TwoRanks {
  const char* divided_by;
  layout::Shard first;
  layout::Shard second;
};

// Each with the 2 layers and 2 heads of KvWorkload::model().
inline std::vector<TwoRanks> ways_to_divide() {
  using layout::Shard;
  const auto tensor = [](std::uint32_t rank) { return Shard::tensor_rank(rank, 2, 4, {0, 2}).value(); };
  return {{"heads", tensor(0), tensor(1)},
          {"layers", {{0, 2}, {0, 2}, 0, 2}, {{2, 2}, {0, 2}, 1, 2}},
          {"nothing: both hold the same heads", {{0, 2}, {0, 2}, 0, 2}, {{0, 2}, {0, 2}, 1, 2}}};
}

// One scale per token and head, and one for all heads.
inline std::vector<layout::LayoutConfig> two_kinds_of_scales() {
  layout::LayoutConfig per_head = KvWorkload::model();
  per_head.head_dim = 1;
  per_head.inner_dim = per_head.num_heads;
  per_head.dtype = layout::Dtype::kF32;
  layout::LayoutConfig for_all = per_head;
  for_all.num_heads = for_all.inner_dim = 1;
  return {per_head, for_all};
}

inline void expect_ranks_read_their_own_bytes(KvOptions options) {
  std::uint64_t number = 100;
  for (const TwoRanks& ranks : ways_to_divide()) {
    SCOPED_TRACE(::testing::Message() << "divided by " << ranks.divided_by);
    const VolumeTier::Hashes hashes = VolumeTier::sequence(++number, 6);
    // One at a time: some volumes have one user.
    const auto as = [&](const layout::Shard& shard) {
      options.shard = shard;
      return VolumeTier(options);
    };
    {
      VolumeTier first = as(ranks.first);
      EXPECT_EQ(first.request(hashes), 0u);
      first.push_out();
      EXPECT_EQ(first.onboard(hashes), 6u);
    }
    {
      VolumeTier second = as(ranks.second);
      EXPECT_EQ(second.onboard(hashes), 0u) << "they are the other rank's";
      EXPECT_EQ(second.request(hashes), 0u);
      second.push_out();
      EXPECT_EQ(second.onboard(hashes), 6u);
      EXPECT_EQ(second.kv().status().g4->damaged, 0u);
    }
    {
      VolumeTier first = as(ranks.first);
      EXPECT_EQ(first.onboard(hashes), 6u) << "nobody has written over them";
      EXPECT_EQ(first.kv().status().g4->damaged, 0u);
    }
    {
      VolumeTier second = as(ranks.second);
      EXPECT_TRUE(second.kv().reset_blocks(hashes));
      EXPECT_EQ(second.onboard(hashes), 0u);
    }
    VolumeTier first = as(ranks.first);
    EXPECT_EQ(first.onboard(hashes), 6u) << "a rank removes its own";
    first.expect_counts_exact();
  }
}

}  // namespace ashlar::tiers
