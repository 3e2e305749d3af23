// What reading from each peer takes, and what follows from it: estimates, the choice among peers, and between
// them and a volume.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "support/gates.h"
#include "tiers/remote/peer_cost.h"
#include "tiers/remote/timed_scenario.h"

namespace ashlar::tiers::remote {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

// ---- one peer

TEST(PeerCostTest, IsWhatReadsTookAndGoesStaleOnlyWhereItIsSlow) {
  ManualClock clock;
  PeerCost cost;
  EXPECT_EQ(cost.seconds(1000), 0);
  EXPECT_EQ(cost.slowness(1000, 1), 1) << "not measured";
  EXPECT_TRUE(cost.is_due(1000, 1, clock.now()));
  cost.observe(1000, seconds(4), clock.now());
  EXPECT_NEAR(cost.seconds(1000), 4, 1e-9);
  EXPECT_NEAR(cost.seconds(2000), 8, 1e-9);
  EXPECT_EQ(cost.slowness(1000, 0), 1) << "no other is measured";
  EXPECT_EQ(cost.slowness(1000, 2), 1) << "not much slower";
  EXPECT_NEAR(cost.slowness(1000, 1), 4, 1e-9);
  // A fast one is used as it is; a slow one is tried again, the later the slower it is.
  clock.advance(4 * PeerCost::kTryAgain - seconds(1));
  EXPECT_FALSE(cost.is_due(1000, 2, clock.now()));
  EXPECT_FALSE(cost.is_due(1000, 1, clock.now()));
  clock.advance(seconds(1));
  EXPECT_FALSE(cost.is_due(1000, 2, clock.now()));
  EXPECT_TRUE(cost.is_due(1000, 1, clock.now()));
  clock.advance(2000 * PeerCost::kTryAgain);
  EXPECT_TRUE(cost.is_due(1000, 1e-6, clock.now())) << "no peer is left alone for ever";
  const PeerCost copy(cost);
  EXPECT_NEAR(copy.seconds(1000), 4, 1e-9);
  EXPECT_TRUE(copy.is_due(1000, 1, clock.now()));
}

TEST(PeerCostTest, AnAttemptThatFailedMeasuresNothingAndIsNotRepeatedAtOnce) {
  ManualClock clock;
  PeerCost cost;
  cost.observe(0, seconds(4), clock.now());
  EXPECT_EQ(cost.seconds(1000), 0);
  EXPECT_FALSE(cost.is_due(1000, 1, clock.now()));
  clock.advance(PeerCost::kTryAgain);
  EXPECT_TRUE(cost.is_due(1000, 1, clock.now()));
}

// ---- one call

TEST(ReadTimesTest, TimeCountsOnceHoweverMuchIsOnItsWay) {
  ManualClock clock;
  const auto times = std::make_shared<ReadTimes>(clock);
  {
    const auto first = times->begin(1);
    clock.advance(seconds(2));
    const auto second = times->begin(1);
    const auto other = times->begin(2);
    clock.advance(seconds(3));
    first->done();
    first->done();  // nothing
    clock.advance(seconds(5));
  }
  clock.advance(seconds(7));  // nothing is on its way
  const auto third = times->begin(1);
  clock.advance(seconds(11));
  third->done();
  times->arrived(1, 100);
  times->arrived(1, 20);
  times->arrived(2, 8);
  times->arrived(3, 9);
  times->failed(3);
  const auto totals = times->totals();
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(totals.at(1).bytes, 120u);
  EXPECT_EQ(totals.at(1).duration, seconds(2 + 3 + 5 + 11));
  EXPECT_EQ(totals.at(2).bytes, 8u);
  EXPECT_EQ(totals.at(2).duration, seconds(3 + 5));
  EXPECT_EQ(totals.at(3).bytes, 0u) << "not all of it came";
}

TEST(ReadTimesTest, ACopyThatEndsAfterTheCallTouchesNothing) {
  std::shared_ptr<ReadTimes::Span> late;
  {
    ManualClock clock;
    const auto times = std::make_shared<ReadTimes>(clock);
    late = times->begin(1);
    late->done();
  }
  late->done();  // the clock is gone
}

// ---- several peers

class RemoteCostsTest : public RemoteOrVolumeTest {
 protected:
  static constexpr milliseconds kSlow{1000};
  static constexpr milliseconds kFast{10};

  // The owner of the fixture is the slow one, which is met first.
  void meet() {
    reader({});
    connect();
  }
  void connect() {
    for (FleetRank* const owner : {&owner_, &fast_})
      ASSERT_TRUE(reader_->kv().remote()->connect(address(*owner)));
    transport_->set_delay(owner_, kSlow);
    transport_->set_delay(fast_, kFast);
  }
  Hashes fresh(const std::vector<FleetRank*>& owners, std::size_t blocks = kBlocks) {
    const Hashes hashes = KvWorkload::sequence(++measured_, blocks);
    for (FleetRank* const owner : owners) store(*owner, hashes);
    return hashes;
  }
  void read(const Hashes& hashes) {
    ASSERT_EQ(reader_->onboard(hashes), hashes.size());
    forget();
  }
  void measure_both() {
    for (FleetRank* const owner : {&owner_, &fast_}) read(fresh({owner}));
  }
  RemotePeerStatus status(FleetRank& owner) {
    for (const RemotePeerStatus& peer : reader_->kv().remote()->status().peers)
      if (peer.address == address(owner)) return peer;
    ADD_FAILURE() << "no such peer";
    return {};
  }
  // Leases are given back a moment after a read; until then they count as load.
  void wait_for_leases(std::uint64_t of_fast = 0) {
    eventually([&] {
      return owner_.kv().remote()->status().leases == 0 && fast_.kv().remote()->status().leases == of_fast;
    });
  }
  // How many blocks of a request come from the slow one.
  std::uint64_t from_slow(const Hashes& hashes) {
    const std::uint64_t before = status(owner_).got;
    read(hashes);
    return status(owner_).got - before;
  }
  double find_seconds(const Hashes& hashes) {
    const std::vector<TierRun> runs = reader_->kv().find(hashes);
    EXPECT_EQ(runs, (std::vector<TierRun>{{kRemote, 0, hashes.size()}}));
    return runs[0].seconds;
  }

  FleetRank fast_{kModel, node(), undivided()};
};

TEST_F(RemoteCostsTest, ASlowPeerDoesNotSpoilTheEstimateOfAFastOne) {
  meet();
  EXPECT_EQ(find_seconds(fresh({&owner_})), 0) << "nothing was measured";
  read(fresh({&fast_}));
  for (int i = 0; i < 20; ++i) read(fresh({&owner_}));
  EXPECT_NEAR(status(owner_).block_seconds, 1.0 / kBlocks, 1e-6);
  EXPECT_NEAR(status(fast_).block_seconds, 0.01 / kBlocks, 1e-6);
  const Hashes of_slow = fresh({&owner_});
  const Hashes of_fast = fresh({&fast_});
  const Hashes of_both = fresh({&owner_, &fast_});
  EXPECT_NEAR(find_seconds(of_slow), 1, 0.01);
  EXPECT_NEAR(find_seconds(of_fast), 0.01, 0.001);
  EXPECT_NEAR(find_seconds(of_both), 0.01, 0.001);
  // A tenth of a second to compute a block of 4 tokens.
  const OnboardOptions how{.compute_tokens_per_second = 40};
  EXPECT_EQ(reader_->kv().onboard(of_slow, how).size(), 0u);
  EXPECT_EQ(reader_->kv().onboard(of_fast, how).size(), kBlocks);
  EXPECT_EQ(reader_->kv().onboard(of_both, how).size(), kBlocks);
}

TEST_F(RemoteCostsTest, BlocksThatSeveralHaveAreReadFromTheFastest) {
  meet();
  measure_both();
  EXPECT_EQ(from_slow(fresh({&owner_, &fast_})), 0u);
  // Also where the slow one has more of them.
  const Hashes more = fresh({&owner_}, 8);
  store(fast_, {more.begin(), more.begin() + 5});
  EXPECT_EQ(from_slow(more), 3u);
}

// Load counts as time: who is three times slower has as much to do with a third of the bytes.
TEST_F(RemoteCostsTest, AFastPeerWithMuchOnLoanLeavesBlocksToASlowOne) {
  meet();
  transport_->set_delay(owner_, 3 * kFast);
  measure_both();
  FleetRank other = rank_of(kModel, undivided());
  ASSERT_TRUE(other.kv().remote()->connect(address(fast_)));
  const Hashes large = KvWorkload::sequence(990, 40);
  store(fast_, large);
  const transfer::AgentIdentity fast = fast_.kv().remote()->agent().identity();
  wait_for_leases();
  EXPECT_EQ(from_slow(fresh({&owner_, &fast_})), 0u);
  {
    // A chunk is of 16 blocks: 30 and it are less than three times as much, 40 and it are more.
    const RemoteBlocks some =
        other.kv().remote()->get_remote_blocks(fast, std::span(large).first(30)).value();
    wait_for_leases(1);
    EXPECT_EQ(from_slow(fresh({&owner_, &fast_})), 0u);
    const RemoteBlocks rest = other.kv().remote()->get_remote_blocks(fast, std::span(large).last(10)).value();
    wait_for_leases(2);
    EXPECT_EQ(from_slow(fresh({&owner_, &fast_})), kBlocks);
  }
}

TEST_F(RemoteCostsTest, PeersThatAreAboutAsFastAreChosenByLoadAlone) {
  meet();
  transport_->set_delay(owner_, 2 * kFast - milliseconds(1));
  measure_both();
  wait_for_leases();
  EXPECT_EQ(from_slow(fresh({&owner_, &fast_})), kBlocks) << "it was met first";
}

TEST_F(RemoteCostsTest, APeerThatWasNotTriedIsTried) {
  meet();
  read(fresh({&owner_}));
  EXPECT_EQ(from_slow(fresh({&owner_, &fast_})), 0u) << "although it was met first and is measured";
  EXPECT_GT(status(fast_).block_seconds, 0);
}

TEST_F(RemoteCostsTest, APeerThatWasSlowIsTriedAgainWithOneChunkAndUsedWhereItIsFast) {
  meet();
  measure_both();
  // G2 has room for 8 blocks at a time, one chunk after the other.
  const auto many = [&] { return fresh({&owner_, &fast_}, 20); };
  EXPECT_EQ(from_slow(many()), 0u);
  clock_.advance(1000 * PeerCost::kTryAgain);  // more is not waited for
  EXPECT_EQ(from_slow(many()), 8u);
  EXPECT_EQ(from_slow(many()), 0u) << "it is as slow as it was";
  transport_->set_delay(owner_, milliseconds(1));
  for (int i = 0; i < 100; ++i) {
    clock_.advance(1000 * PeerCost::kTryAgain);
    read(many());
  }
  EXPECT_LT(status(owner_).block_seconds, status(fast_).block_seconds);
  EXPECT_EQ(from_slow(many()), 20u);
}

TEST_F(RemoteCostsTest, WhatIsKnownOfAPeerGoesWithIt) {
  meet();
  measure_both();
  const auto connected = [&] { return reader_->kv().remote()->status().peers.size(); };
  reader_->kv().remote()->agent().peers().at(0)->close(Error(ErrorCode::kUnavailable, "a test"));
  eventually([&] { return connected() == 1; });
  reader_->kv().remote()->agent().peers().at(0)->close(Error(ErrorCode::kUnavailable, "a test"));
  eventually([&] { return connected() == 0; });
  for (FleetRank* const owner : {&owner_, &fast_}) {
    eventually([&] { return reader_->kv().remote()->connect(address(*owner)).has_value(); });
    EXPECT_EQ(status(*owner).block_seconds, 0);
  }
  EXPECT_EQ(find_seconds(fresh({&owner_})), 0);
}

// The volume is slower than one peer and faster than the other.
TEST_F(RemoteCostsTest, AVolumeIsComparedWithThePeerThatHasTheBlock) {
  meet();
  measure_both();
  volume_delay_ = milliseconds(100);
  const Hashes on_volume = KvWorkload::sequence(++measured_, kBlocks);
  reader_->store(on_volume);
  read(on_volume);
  const Hashes hashes = fresh({}, kBlocks);
  store(fast_, {hashes.begin(), hashes.begin() + 2});
  store(owner_, {hashes.begin() + 2, hashes.end()});
  ASSERT_EQ(reader_->kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, kBlocks}}));  // now both are known
  reader_->store(hashes);
  forget();
  EXPECT_EQ(reader_->kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, 2}, {kVolumes, 2, 2}}));
  const std::uint64_t slow_before = status(owner_).got;
  EXPECT_EQ(from_peer(hashes), 2u);
  EXPECT_EQ(status(owner_).got, slow_before);
  // What the volume cannot give after all comes from the slow one.
  forget();
  script_->on_call = [&](VolumeCall call) {
    if (call == VolumeCall::kGet) std::filesystem::remove_all(scratch_.file("volume"));
  };
  EXPECT_EQ(reader_->onboard(hashes), kBlocks);
  EXPECT_EQ(status(owner_).got, slow_before + 2);
}

// So is a disk. Each operation of it takes longer than the fast peer and less than the slow one.
TEST_F(RemoteCostsTest, ADiskIsComparedWithThePeerThatHasTheBlock) {
  const auto faults = std::make_shared<ScriptedFaults>([&](storage::IoDirection direction, auto, auto) {
    if (direction == storage::IoDirection::kRead) clock_.advance(2 * kFast);
    return storage::IoVerdict();
  });
  reader({}, [&](KvOptions& options) {
    options.g4.reset();
    options.g3 = DiskShape{.block_count = 40, .paths = {scratch_.file("g3")}, .faults = {faults}};
  });
  connect();
  measure_both();
  const Hashes on_disk = KvWorkload::sequence(++measured_, kBlocks);
  reader_->store(on_disk);
  read(on_disk);
  const Hashes hashes = fresh({});
  store(fast_, {hashes.begin(), hashes.begin() + 2});
  store(owner_, {hashes.begin() + 2, hashes.end()});
  ASSERT_EQ(reader_->kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, kBlocks}}));
  reader_->store(hashes);
  EXPECT_EQ(reader_->kv().find(hashes),
            (std::vector<TierRun>{{kRemote, 0, 2}, {events::kTierId<events::G3>, 2, 2}}));
  EXPECT_EQ(from_peer(hashes), 2u);
  forget();
  // Without the fast one all of it comes from the disk, and without the disk from the slow one.
  ASSERT_TRUE(fast_.kv().reset(kHost));
  eventually([&] { return !reader_->kv().presence(hashes)[0].in(kRemote); });
  EXPECT_EQ(from_peer(hashes), 0u);
  ASSERT_TRUE(reader_->kv().reset(events::kTierId<events::G3>));
  forget();
  EXPECT_EQ(reader_->kv().find(Hashes(hashes.begin() + 2, hashes.end())),
            (std::vector<TierRun>{{kRemote, 0, 2}}));
}

}  // namespace
}  // namespace ashlar::tiers::remote
