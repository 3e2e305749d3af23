#include "tiers/remote/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/managers.h"
#include "tiers/tier_fixture.h"

namespace ashlar::tiers {
namespace {

using Peer = transfer::AgentIdentity;
using std::chrono::seconds;
using ::testing::HasSubstr;

class LeaseTableTest : public TierTest {
 protected:
  LeaseTableTest() {
    for (std::uint64_t i = 0; i < kG1Blocks; ++i) compute(i);
  }
  std::vector<block::Hold> holds(std::initializer_list<std::uint64_t> contents) {
    std::vector<block::Hold> out;
    for (const std::uint64_t content : contents) out.push_back(*g1_->hold(name(content)));
    return out;
  }

  ManualClock clock_;
  const Peer one_{1, 1};
  const Peer two_{2, 1};
};

TEST_F(LeaseTableTest, LeasesEndByReleaseTimeAndDeath) {
  LeaseTable table({}, 100, 4, clock_);
  const std::uint64_t a = table.grant(one_, holds({0, 1}), seconds(10)).value();
  const std::uint64_t b = table.grant(one_, holds({2}), seconds(10)).value();
  const std::uint64_t c = table.grant(two_, holds({3}), seconds(10)).value();
  EXPECT_EQ(table.leased_bytes(), 400u);
  table.release(two_, a);  // another peer's
  EXPECT_EQ(table.leased_bytes(), 400u);
  table.release(one_, a);
  EXPECT_EQ(table.leased_bytes(), 200u);
  clock_.advance(seconds(9));
  EXPECT_TRUE(table.renew(one_, b, seconds(10)));
  EXPECT_FALSE(table.renew(one_, c, seconds(10)));
  EXPECT_FALSE(table.renew(one_, a, seconds(10)));
  clock_.advance(seconds(1));
  EXPECT_FALSE(table.renew(two_, c, seconds(10)));  // over, though nobody looked
  EXPECT_EQ(table.expire(), clock_.now() + seconds(9));
  EXPECT_EQ(table.leased_bytes(), 100u);
  table.end_peer(one_);
  EXPECT_EQ(table.leased_bytes(), 0u);
  EXPECT_FALSE(table.expire());
  table.check_invariants();
  RemoteStatus status;
  table.add_to(status);
  EXPECT_EQ(status.granted, 3u);
  EXPECT_EQ(status.expired, 1u);
  EXPECT_EQ(status.renewed, 1u);
}

TEST_F(LeaseTableTest, LimitsHoldForOneAndForAll) {
  RemoteLimits limits;
  limits.leases_per_peer = 2;
  limits.leases = 3;
  limits.leased_bytes_per_peer = 300;
  limits.leased_bytes = 450;
  LeaseTable table(limits, 100, 0, clock_);
  std::string refusal;
  EXPECT_EQ(table.room(one_, 5, &refusal), 3u);
  EXPECT_THAT(refusal, HasSubstr("one peer"));
  EXPECT_TRUE(table.grant(one_, holds({0, 1}), seconds(1)));
  EXPECT_EQ(table.room(one_, 5, nullptr), 1u);
  EXPECT_TRUE(table.grant(two_, holds({2}), seconds(1)));
  EXPECT_EQ(table.room(two_, 5, &refusal), 1u);
  EXPECT_THAT(refusal, HasSubstr("all peers"));
  EXPECT_EQ(table.grant(two_, holds({3, 4}), seconds(1)).error().code(), ErrorCode::kCapacity);
  EXPECT_TRUE(table.grant(one_, holds({5}), seconds(1)));
  EXPECT_EQ(table.room(two_, 1, &refusal), 0u);  // three leases
  table.check_invariants();
  EXPECT_EQ(table.end_blocks(std::vector<SequenceHash>{name(1), name(5)}), 2u);
  EXPECT_EQ(table.leased_bytes(), 100u);
}

TEST_F(LeaseTableTest, SlotsAreReservedOnceAndComeBack) {
  RemoteLimits limits;
  limits.reserved_blocks_per_peer = 3;
  LeaseTable table(limits, 100, 4, clock_);
  EXPECT_EQ(table.reserve(one_, 4, seconds(1)).error().code(), ErrorCode::kCapacity);
  EXPECT_EQ(table.reserve(one_, 0, seconds(1)).error().code(), ErrorCode::kCapacity);
  const LeaseTable::Reserved a = table.reserve(one_, 3, seconds(5)).value();
  const LeaseTable::Reserved b = table.reserve(two_, 1, seconds(1)).value();
  EXPECT_EQ(table.reserve(two_, 1, seconds(1)).error().code(), ErrorCode::kCapacity);
  EXPECT_EQ(table.take(two_, a.id).error().code(), ErrorCode::kNotReady);
  clock_.advance(seconds(1));
  EXPECT_EQ(table.take(two_, b.id).error().code(), ErrorCode::kNotReady);
  table.expire();
  const std::vector<std::uint32_t> slots = table.take(one_, a.id).value();
  EXPECT_EQ(slots, a.slots);
  EXPECT_FALSE(table.take(one_, a.id));
  table.give_back(slots);
  table.check_invariants();
  EXPECT_TRUE(table.reserve(one_, 3, seconds(1)));
  table.end_peer(one_);
  EXPECT_TRUE(table.reserve(two_, 3, seconds(1)));
  table.check_invariants();
  RemoteStatus status;
  table.add_to(status);
  EXPECT_EQ(status.reservations, 4u);
  EXPECT_EQ(status.reservations_expired, 1u);
  EXPECT_EQ(status.expired, 0u) << "no lease was granted";
}

// Beside a model that adds everything up anew.
TEST_F(LeaseTableTest, RandomCallsAgreeWithAModel) {
  RemoteLimits limits;
  limits.leases_per_peer = 3;
  limits.leases = 5;
  limits.leased_bytes_per_peer = 400;
  limits.leased_bytes = 700;
  LeaseTable table(limits, 100, 0, clock_);
  struct Lease {
    Peer peer;
    std::size_t blocks;
    Clock::TimePoint end;
  };
  std::map<std::uint64_t, Lease> model;
  Random random(7);
  std::size_t granted = 0;
  std::size_t refused = 0;
  for (int step = 0; step < 3000 || granted < 100 || refused < 100; ++step) {
    const Peer peer = random.below(2) == 0 ? one_ : two_;
    const auto some = [&] {
      auto at = model.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random.below(model.size())));
      return at;
    };
    switch (random.below(6)) {
      case 0:
      case 1: {
        std::vector<block::Hold> held;
        const std::size_t count = 1 + random.below(3);
        for (std::size_t i = 0; i < count; ++i) held.push_back(*g1_->hold(name(random.below(kG1Blocks))));
        std::size_t leases = 0;
        std::size_t blocks = 0;
        std::size_t all = 0;
        for (const auto& [id, lease] : model) {
          all += lease.blocks;
          if (lease.peer != peer) continue;
          ++leases;
          blocks += lease.blocks;
        }
        const bool fits = model.size() < 5 && leases < 3 && blocks + count <= 4 && all + count <= 7;
        const Clock::Duration duration = seconds(1 + random.below(10));
        const auto made = table.grant(peer, std::move(held), duration);
        ASSERT_EQ(made.has_value(), fits);
        if (made) model[*made] = {peer, count, clock_.now() + duration};
        (made ? granted : refused) += 1;
        break;
      }
      case 2:
        if (!model.empty()) {
          const auto at = some();
          table.release(peer, at->first);
          if (at->second.peer == peer) model.erase(at);
        }
        break;
      case 3:
        if (!model.empty()) {
          const auto at = some();
          const bool good = at->second.peer == peer && at->second.end > clock_.now();
          ASSERT_EQ(table.renew(peer, at->first, seconds(3)), good);
          if (good) at->second.end = std::max(at->second.end, clock_.now() + seconds(3));
        }
        break;
      case 4:
        clock_.advance(seconds(random.below(3)));
        table.expire();
        std::erase_if(model, [&](const auto& one) { return one.second.end <= clock_.now(); });
        break;
      default:
        if (random.below(20) != 0) break;
        table.end_peer(peer);
        std::erase_if(model, [&](const auto& one) { return one.second.peer == peer; });
    }
    table.check_invariants();
    std::size_t blocks = 0;
    for (const auto& [id, lease] : model) blocks += lease.blocks;
    ASSERT_EQ(table.leased_bytes(), blocks * 100);
  }
  table.end_all();
  EXPECT_EQ(g1_manager_->available_blocks(), kG1Blocks);
}

}  // namespace
}  // namespace ashlar::tiers
