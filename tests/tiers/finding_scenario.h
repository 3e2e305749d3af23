// Nodes that find each other at a rendezvous, and what strangers and the dead leave there.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "support/local_rendezvous.h"
#include "support/rendezvous_conformance.h"
#include "tiers/kv_workload.h"
#include "tiers/shard_scenario.h"

namespace ashlar::tiers::finding {

using Hashes = std::vector<tokens::SequenceHash>;
using Place = std::shared_ptr<Rendezvous>;

inline KvOptions options(const Place& place, const std::string& secret = "a secret of tests",
                         std::optional<std::uint64_t> id = {}) {
  transfer::AgentOptions agent;
  agent.secret = secret;
  agent.id = id;
  KvOptions made{.model = KvWorkload::model(),
                 .block_size = 4,
                 .keys = tokens::NamespaceFingerprint::from_bits(7, 8),
                 .g1 = {.block_count = 16, .order = layout::order::kBlockSecondNhd},
                 .g2 = TierShape{.block_count = 16, .order = layout::order::kUniversalTp},
                 .remote = RemoteShape{.own_agent = std::move(agent), .block_count = 64}};
  made.remote->rendezvous = place;
  made.remote->group = "fleet.one";
  made.remote->look_again = Clock::Duration(0);
  made.remote->call_limit = std::chrono::seconds(60);  // a busy machine is slow, not dead
  made.remote->rest = Clock::Duration(0);
  return made;
}

struct Node : FleetRank {
  Node(const KvOptions& options, std::uint32_t rank = 0, std::uint32_t ranks = 1)
      : FleetRank(ShardedModel{}, options, ShardedModel{}.fleet(ranks)[rank]) {}
  // Computes blocks; they stay in G2 only.
  void compute_all(const Hashes& hashes) {
    auto fresh = kv().get_mutable_blocks(hashes.size()).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      compute(fresh[i].block_id(), hashes[i]);
      complete.push_back(std::move(fresh[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    }
    ASSERT_TRUE(kv().register_blocks(std::move(complete)));
    ASSERT_TRUE(kv().drain());
    ASSERT_TRUE(kv().reset(events::kTierId<events::G1>));
  }
  RemoteStatus status() { return kv().remote()->status(); }
};

// A new client of the place for each node.
inline void expect_nodes_find_each_other(const std::function<Place()>& place) {
  Node first(options(place()), 0, 2);
  Node second(options(place()), 1, 2);
  const Hashes hashes = KvWorkload::sequence(1, 6);
  first.compute_all(hashes);
  second.compute_all(hashes);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    Node reader(options(place()), rank, 4);
    EXPECT_EQ(reader.onboard(hashes), 6u);
    // The blocks may all be with one of them; the other is met soon.
    while (reader.status().met != 2) std::this_thread::yield();
    EXPECT_EQ(reader.status().records_refused, 0u) << reader.status().record_refusal;
  }
  // One that comes later is found too, in both directions.
  Node late(options(place()));
  EXPECT_EQ(late.onboard(hashes), 6u);
  const Hashes others = KvWorkload::sequence(2, 3);
  late.compute_all(others);
  EXPECT_EQ(first.onboard(others), 3u);
  while (first.status().leases + late.status().leases != 0) std::this_thread::yield();  // given back soon
  first.expect_counts_exact();
  late.expect_counts_exact();
}

inline void expect_wrong_secrets_are_refused(const std::function<Place()>& place) {
  for (const auto& [owners, readers] :
       {std::pair("one", "another"), std::pair("one", ""), std::pair("", "one")}) {
    SCOPED_TRACE(std::string("owner '") + owners + "', reader '" + readers + "'");
    Node owner(options(place(), owners));
    const Hashes hashes = KvWorkload::sequence(3, 3);
    owner.compute_all(hashes);
    Node reader(options(place(), readers));
    EXPECT_EQ(reader.onboard(hashes), 0u);
    EXPECT_GE(reader.status().records_refused, 1u);
    EXPECT_THAT(reader.status().record_refusal, ::testing::HasSubstr("give all agents the same"));
    EXPECT_TRUE(reader.kv().remote()->agent().peers().empty());
    EXPECT_TRUE(owner.kv().remote()->agent().peers().empty());
    // Those who know the right one are not disturbed.
    Node right(options(place(), owners));
    EXPECT_EQ(right.onboard(hashes), 3u);
    while (right.status().records_refused == 0) std::this_thread::yield();
  }
}

inline const std::string kNameOf77 = "fleet.one.000000000000004d";

inline void expect_the_dead_harm_nothing(const std::function<Place()>& place) {
  const Place here = place();
  const Hashes hashes = KvWorkload::sequence(4, 3);
  std::vector<std::byte> left;
  {
    Node owner(options(place(), "secret", 77));
    left = here->find(kNameOf77, testing::soon()).value();
  }
  EXPECT_EQ(here->find(kNameOf77, testing::soon()).error().code(), ErrorCode::kNotFound)
      << "it said good-bye";
  {
    const RendezvousOffer stale = here->publish(kNameOf77, left).value();
    const RendezvousOffer moved = here->publish("fleet.one.00000000000000ff", left).value();
    const RendezvousOffer rubbish = here->publish("fleet.one.rubbish", testing::record_of("???")).value();
    Node reader(options(place(), "secret"));
    EXPECT_EQ(reader.onboard(hashes), 0u);
    EXPECT_GE(reader.status().records_refused, 3u);
    EXPECT_EQ(reader.status().met, 0u);
  }
  // The node comes back, and somebody leaves its old record there: whoever finds it asks for the new one.
  Node again(options(place(), "secret", 77));
  again.compute_all(hashes);
  const RendezvousOffer stale = here->publish(kNameOf77, left).value();
  const auto watched = std::make_shared<testing::ReplayingRendezvous>(place());
  {
    Node reader(options(watched, "secret"));
    EXPECT_EQ(reader.onboard(hashes), 3u) << reader.status().record_refusal;
    EXPECT_EQ(reader.status().met, 1u);
  }
  // A reply that another node got is none.
  ASSERT_TRUE(watched->has_reply());
  watched->replay();
  Node reader(options(watched, "secret"));
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_THAT(reader.status().record_refusal, ::testing::HasSubstr("an old message"));
}

}  // namespace ashlar::tiers::finding
