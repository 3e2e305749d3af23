// What a KvBlockManager does with a volume behind a server, from the first block to a server that dies and
// comes back.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {

inline void expect_blocks_go_to_the_server_and_back(VolumeTier& tier) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 6);
  tier.request(hashes);
  tier.push_out();
  EXPECT_THAT(tier.tiers_of(hashes),
              ::testing::AllOf(::testing::SizeIs(6), ::testing::Each(VolumeTier::kG4)));
  EXPECT_EQ(tier.onboard(hashes), 6u);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 6u) << "found by asking";
  ASSERT_TRUE(tier.kv().reset_blocks(std::span(hashes).last(2)));
  EXPECT_EQ(tier.onboard(hashes), 4u);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 4u) << "gone for good";
  tier.push_out();
  EXPECT_EQ(tier.kv().reset(VolumeTier::kG4).value(), 4u);
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 0u);
  tier.expect_counts_exact();
}

// Two texts under the same names, as a client might craft them: only the one that was stored comes back.
inline void expect_a_forged_name_is_a_miss(VolumeTier& tier) {
  using Request = block::RequestSequence<events::G1>;
  std::vector<tokens::Token> stored;
  std::vector<tokens::Token> forged;
  for (std::uint32_t i = 0; i < 17; ++i) {
    stored.emplace_back(i);
    forged.emplace_back(1000 + i);
  }
  VolumeTier::Hashes names;
  {
    KvWorkload work(tier.kv());
    Request first = Request::create(tier.kv().g1(), stored).value();
    ASSERT_TRUE(first.schedule_prefill(stored.size()));
    names.assign(first.sequence_hashes().begin(), first.sequence_hashes().end());
    for (std::size_t i = 0; i < names.size(); ++i) work.compute(first.block_table()[i], names[i]);
    ASSERT_TRUE(first.apply_prefill(tokens::Token(1)));
  }
  for (const bool restarted : {false, true}) {
    tier.push_out();
    if (restarted) tier.restart();
    KvWorkload work(tier.kv());
    {
      Request forger = Request::create(tier.kv().g1(), forged, names, {}).value();
      EXPECT_EQ(forger.match_prefix().value(), 0u);
      EXPECT_EQ(tier.kv().status().misses[static_cast<std::size_t>(Miss::kOtherTokens)], 1u);
    }
    Request again = Request::create(tier.kv().g1(), stored).value();
    EXPECT_EQ(again.match_prefix().value(), 16u);
    for (std::size_t i = 0; i < names.size(); ++i)
      EXPECT_TRUE(work.has_bytes(again.block_table()[i], names[i]));
  }
  // Who shares the volume and not the key finds nothing, and takes nothing away.
  tier.push_out();
  tier.options().prefix_key = tokens::PrefixKey(tokens::PrefixKey::Bytes{1, 2, 3});
  tier.restart();
  EXPECT_EQ(tier.onboard(names), 0u);
  tier.options().prefix_key.reset();
  tier.restart();
  EXPECT_EQ(tier.onboard(names), 4u);
  tier.expect_counts_exact();
}

// The server comes back empty.
inline void expect_a_dead_server_is_a_miss(VolumeTier& tier, const std::function<void()>& die,
                                           const std::function<void()>& come_back) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 5);
  tier.request(hashes);
  tier.push_out();
  die();
  EXPECT_EQ(tier.onboard(hashes), 0u);
  EXPECT_EQ(tier.kv().status().misses[static_cast<std::size_t>(Miss::kFailed)], 1u);
  EXPECT_EQ(tier.onboard(VolumeTier::sequence(2, 2)), 0u) << "nobody can be asked";
  EXPECT_EQ(tier.request(hashes), 0u) << "computed again";
  tier.expect_counts_exact();
  tier.request(VolumeTier::sequence(3, 3));
  EXPECT_TRUE(tier.kv().drain());
  EXPECT_EQ(tier.kv().status().to_g4->failed, 3u);
  EXPECT_EQ(tier.onboard(VolumeTier::sequence(3, 3)), 3u) << "they never left";
  EXPECT_EQ(tier.kv().reset_blocks(hashes).error().code(), ErrorCode::kUnavailable);
  tier.expect_counts_exact();
  come_back();
  tier.push_out();
  for (const tokens::SequenceHash& hash : hashes) EXPECT_EQ(tier.onboard({hash}), 0u) << "gone";
  EXPECT_EQ(tier.kv().g4()->status().reset, 60u) << "and forgotten";
  tier.request(hashes);
  tier.push_out();
  EXPECT_EQ(tier.onboard(hashes), 5u);
  tier.expect_counts_exact();
}

// The server dies somewhere in the middle of this.
inline void expect_nothing_wrong_when_the_server_dies(VolumeTier& tier) {
  for (std::uint64_t round = 0; round < 3; ++round)
    for (std::uint64_t number = 0; number < 3; ++number) {
      tier.request(VolumeTier::sequence(number, 6));
      tier.push_out();
      tier.onboard(VolumeTier::sequence(number, 6));
      tier.expect_counts_exact();
    }
}

}  // namespace ashlar::tiers
