// Peers that do not answer, callers that have left, sets that are dropped, and what is told of peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/events/event_manager.h"
#include "support/local_rendezvous.h"
#include "tiers/remote/peer_reacher.h"
#include "tiers/remote/peer_totals.h"
#include "tiers/remote/remote_fixture.h"

namespace ashlar::tiers::remote {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using tokens::SequenceHash;

transfer::AgentIdentity identity(FleetRank& rank) {
  return rank.kv().remote()->agent().identity();
}

// A reader that would wait for an hour for a peer that does not answer: what these tests see has not waited.
KvOptions patient(std::vector<std::string> peers) {
  KvOptions options = node(std::move(peers));
  options.remote->call_limit = hours(1);
  return options;
}

// ---- peers that do not answer

TEST(RemotePeersTest, ASilentPeerDoesNotDelayTheAnswerOfALivingOne) {
  SilentPlace silent;
  silent.listen();
  FleetRank owner = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(1, 6);
  store(owner, hashes);
  for (const bool first : {true, false}) {
    const std::string living = address(owner);
    FleetRank reader(kModel,
                     patient(first ? std::vector<std::string>{silent.address(), living}
                                   : std::vector<std::string>{living, silent.address()}),
                     undivided());
    EXPECT_EQ(reader.onboard(hashes), 6u);
    silent.accept();  // it was tried, and is held open still
    EXPECT_EQ(reader.onboard(hashes), 6u);
  }
}

// The living one comes last, and may itself be slow: then it takes part in longer attempts.
TEST(RemotePeersTest, ManySilentPeersDelayNobody) {
  std::vector<SilentPlace> silent(3 * PeerReacher::kAtOnce + 5);
  std::vector<std::string> peers;
  for (SilentPlace& one : silent) {
    one.listen();
    peers.push_back(one.address());
  }
  FleetRank owner = rank_of(kModel, undivided());
  peers.push_back(address(owner));
  FleetRank reader(kModel, patient(peers), undivided());
  const Hashes hashes = KvWorkload::sequence(2, 4);
  store(owner, hashes);
  EXPECT_EQ(reader.onboard(hashes), 4u) << "one of them would take an hour";
}

// As above, with the threads in attempts of an earlier look-up.
TEST(RemotePeersTest, SilentPeersOfAnEarlierLookUpDelayNobody) {
  std::vector<SilentPlace> silent(2 * PeerReacher::kAtOnce);
  const auto agent = transfer::RemoteAgent::create({.silence = std::chrono::minutes(2)}).value();
  PeerReacher reacher(agent, {.call_limit = hours(1), .rest = hours(1), .clock = &Clock::real()});
  const auto ignore = [](const PeerReacher::Outcome&) {};
  for (SilentPlace& one : silent) {
    one.listen();
    EXPECT_EQ(reacher.reach(one.address(), ignore), PeerReacher::Start::kTrying);
  }
  for (SilentPlace& one : silent) one.accept();
  for (SilentPlace& one : silent) one.accept();  // each is tried again, by the other threads
  const auto living = transfer::RemoteAgent::create({.silence = std::chrono::minutes(2)}).value();
  const auto reached = std::make_shared<std::latch>(1);
  EXPECT_EQ(reacher.reach(living->address(),
                          [reached](const PeerReacher::Outcome& outcome) {
                            EXPECT_TRUE(outcome) << outcome.error();
                            reached->count_down();
                          }),
            PeerReacher::Start::kTrying);
  reached->wait();
  for (const SilentPlace& one : silent)
    EXPECT_NE(reacher.reach(one.address(), ignore), PeerReacher::Start::kKnown);
}

// What the living ones have is all there is; who failed before is not waited for.
TEST(RemotePeersTest, APeerThatFailedBeforeDoesNotDelayAPartOfTheAnswer) {
  SilentPlace silent;
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader(kModel, patient({silent.address(), address(owner)}), undivided());
  const Hashes hashes = KvWorkload::sequence(3, 8);
  store(owner, {hashes.begin(), hashes.begin() + 5});
  EXPECT_EQ(reader.onboard(hashes), 5u);  // connections to the other are refused
  EXPECT_EQ(reader.misses(Miss::kUnreachable), 1u);
  silent.listen();
  std::uint64_t looks = 1;
  do {  // until it is tried anew, and does not answer: an attempt of before may still be on its way
    EXPECT_EQ(reader.onboard(hashes), 5u);
    ++looks;
  } while (silent.waiting() == 0);
  EXPECT_EQ(reader.onboard(hashes), 5u);
  EXPECT_EQ(reader.misses(Miss::kUnreachable), looks + 1);
}

// With nobody else to ask it is waited for: it may be back.
TEST(RemotePeersTest, APeerThatFailedBeforeIsFoundWhenItIsBack) {
  const SilentPlace place;  // keeps the address from others
  FleetRank reader = rank_of(kModel, undivided(), {place.address()});
  const Hashes hashes = KvWorkload::sequence(4, 3);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  KvOptions options = node();
  options.remote->own_agent->listen = place.address();
  FleetRank back(kModel, options, undivided());
  store(back, hashes);
  EXPECT_EQ(reader.onboard(hashes), 3u);
}

TEST(RemotePeersTest, APeerThatCannotBeReachedOrRestsIsUnreachable) {
  const SilentPlace nobody;
  KvOptions options = node({nobody.address()});
  options.remote->rest = hours(1);
  FleetRank reader(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(5, 2);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.misses(Miss::kUnreachable), 1u);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.misses(Miss::kUnreachable), 2u);
  EXPECT_EQ(reader.misses(Miss::kUnknown), 0u);
  // A fleet that is given one list to all: the own address is not a peer that fails.
  FleetRank alone = rank_of(kModel, undivided());
  options = node();
  options.remote->own_agent.reset();
  options.remote->agent = transfer::RemoteAgent::create({}).value();
  options.remote->peers = {options.remote->agent->address()};
  FleetRank itself(kModel, options, undivided());
  EXPECT_EQ(itself.onboard(hashes), 0u);
  EXPECT_EQ(itself.misses(Miss::kUnreachable), 0u);
}

// The record of a node whose address does not answer, beside that of one that does.
TEST(RemotePeersTest, ARecordThatLeadsToASilentPlaceDelaysNobody) {
  const auto place = std::make_shared<testing::LocalRendezvous>();
  const auto found_at = [&](KvOptions options) {
    options.remote->rendezvous = place;
    options.remote->group = "fleet";
    options.remote->look_again = Clock::Duration(0);
    return options;
  };
  SilentPlace silent;
  silent.listen();
  KvOptions options = found_at(node());
  options.remote->own_agent->advertise = silent.address();
  const FleetRank hidden(kModel, options, undivided());
  FleetRank owner(kModel, found_at(node()), undivided());
  FleetRank reader(kModel, found_at(patient({})), undivided());
  const Hashes hashes = KvWorkload::sequence(6, 4);
  store(owner, hashes);
  EXPECT_EQ(reader.onboard(hashes), 4u);
  EXPECT_EQ(reader.kv().remote()->status().met, 1u);
  silent.accept();
  EXPECT_EQ(reader.kv().remote()->status().records_refused, 0u) << "it is still being tried";
}

TEST(RemotePeersTest, AttemptsAreShared) {
  SilentPlace silent;
  silent.listen();
  const auto agent = transfer::RemoteAgent::create({}).value();
  PeerReacher reacher(agent, {.call_limit = hours(1), .rest = hours(1), .clock = &Clock::real()});
  const auto ended = std::make_shared<std::atomic<int>>(0);
  const auto count = [ended](const PeerReacher::Outcome& outcome) {
    EXPECT_FALSE(outcome);
    ++*ended;
  };
  EXPECT_EQ(reacher.reach(silent.address(), count), PeerReacher::Start::kTrying);
  silent.accept();
  for (int i = 0; i < 40; ++i) EXPECT_NE(reacher.reach(silent.address(), count), PeerReacher::Start::kKnown);
  EXPECT_EQ(*ended, 0);
  reacher.stop();
  EXPECT_EQ(*ended, 41);
}

// ---- callers that have left

// An owner with one thread for requests, which a test can hold.
class SlowOwner {
  static constexpr std::uint16_t kGate = 99;
  ManualClock clock_;  // it does not move: nothing expires
  std::latch inside_{1};
  std::latch open_{1};
  std::shared_ptr<transfer::RemoteAgent> agent_;
  transfer::RemoteOffer gate_;

 public:
  SlowOwner() : agent_(transfer::RemoteAgent::create({.handler_threads = 1}).value()) {
    KvOptions options = node();
    options.clock = &clock_;
    options.remote->own_agent.reset();
    options.remote->agent = agent_;
    rank = std::make_unique<FleetRank>(kModel, options, undivided());
    gate_ = agent_
                ->serve(kGate,
                        [this](const auto&, auto) -> Result<std::vector<std::byte>> {
                          inside_.count_down();
                          open_.wait();
                          return std::vector<std::byte>();
                        })
                .value();
  }
  // Requests wait from now on.
  void hold(const std::shared_ptr<transfer::RemotePeer>& peer) {
    ASSERT_TRUE(peer->notify(kGate, {}));
    inside_.wait();
  }
  void go_on() { open_.count_down(); }
  RemoteStatus status() const { return rank->kv().remote()->status(); }

  std::unique_ptr<FleetRank> rank;
};

// Long enough that its request is sent, on a busy machine too.
constexpr milliseconds kUntilItLeaves(400);

TEST(RemotePeersTest, ALeaseGrantedToACallerThatLeftIsGivenBack) {
  SlowOwner owner;
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(7, 4);
  store(*owner.rank, hashes);
  const auto peer = reader.kv().remote()->connect(address(*owner.rank)).value();
  owner.hold(peer);
  const auto late =
      reader.kv().remote()->get_remote_blocks(peer->identity(), hashes, Clock::real().now() + kUntilItLeaves);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kTimeout);
  owner.go_on();
  eventually([&] { return owner.status().granted == 1 && owner.status().leases == 0; });
  EXPECT_EQ(owner.status().expired, 0u);
  owner.rank->expect_counts_exact();
}

TEST(RemotePeersTest, AReservationMadeForACallerThatLeftIsGivenBack) {
  SlowOwner owner;
  FleetRank writer = rank_of(kModel, undivided());
  const auto peer = writer.kv().remote()->connect(address(*owner.rank)).value();
  owner.hold(peer);
  const auto late = writer.kv().remote()->get_remote_blocks_mutable(peer->identity(), 8,
                                                                    Clock::real().now() + kUntilItLeaves);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kTimeout);
  owner.go_on();
  eventually([&] { return owner.status().reservations == 1 && owner.status().reserved_blocks == 0; });
  EXPECT_EQ(owner.status().reservations_expired, 0u);
  EXPECT_TRUE(writer.kv().remote()->get_remote_blocks_mutable(peer->identity(), 16));
}

TEST(RemotePeersTest, AReservationWhoseCommitIsNotSentIsGivenBack) {
  FleetRank owner = rank_of(kModel, undivided());
  KvOptions options = node();
  options.remote->lease = hours(1);
  FleetRank writer(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(31, 2);
  store(writer, hashes);
  const auto peer = writer.kv().remote()->connect(address(owner)).value();
  auto reserved = writer.kv().remote()->get_remote_blocks_mutable(peer->identity(), 2);
  ASSERT_TRUE(reserved) << reserved.error();
  EXPECT_EQ(owner.kv().remote()->status().reserved_blocks, 2u);
  const auto late = std::move(*reserved).commit(hashes, {.deadline = Clock::real().now() - milliseconds(1)});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kTimeout) << late.error();
  eventually([&] { return owner.kv().remote()->status().reserved_blocks == 0; });
  EXPECT_EQ(owner.kv().remote()->status().reservations_expired, 0u);
}

// ---- peers that hang

// Until it reads so many; each time with more time, because the machine may be busy.
void reads_in_time(FleetRank& reader, const Hashes& hashes, std::size_t blocks) {
  std::size_t read = 0;
  for (milliseconds limit(200); read != blocks && limit < std::chrono::minutes(3); limit *= 2)
    read = reader.kv().onboard(hashes, {.deadline = Clock::real().now() + limit}).size();
  EXPECT_EQ(read, blocks);
}

TEST(RemotePeersTest, APeerThatHangsIsPassedOverWhereAnotherHasTheBlocks) {
  SlowOwner hung;
  FleetRank owner = rank_of(kModel, undivided());
  KvOptions options = patient({address(*hung.rank), address(owner)});
  options.remote->patience = milliseconds(1);
  FleetRank reader(kModel, options, undivided());
  const Hashes first = KvWorkload::sequence(40, 4);
  const Hashes second = KvWorkload::sequence(41, 4);
  store(owner, first);
  store(owner, second);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  hung.hold(reader.kv().remote()->connect(address(*hung.rank)).value());
  EXPECT_EQ(reader.onboard(first), 4u) << "which would take an hour";
  EXPECT_EQ(reader.kv().onboard(second, {.deadline = Clock::real().now() + hours(1)}).size(), 4u);
  // One whose sets are not known yet.
  FleetRank other(kModel, options, undivided());
  EXPECT_EQ(other.onboard(first), 4u);
  hung.go_on();
}

// Half of the time is for reading what is known by then.
TEST(RemotePeersTest, APeerThatHangsLeavesTimeToReadAPartFromOthers) {
  SlowOwner hung;
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader(kModel, patient({address(*hung.rank), address(owner)}), undivided());
  const Hashes hashes = KvWorkload::sequence(42, 6);
  store(owner, {hashes.begin(), hashes.begin() + 3});
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  hung.hold(reader.kv().remote()->connect(address(*hung.rank)).value());
  reads_in_time(reader, hashes, 3);
  // It owes an answer now, and nobody waits for it who has another.
  ASSERT_TRUE(reader.kv().reset(events::kTierId<events::G1>));
  ASSERT_TRUE(reader.kv().reset(kHost));
  EXPECT_EQ(reader.onboard(hashes), 3u);
  hung.go_on();
}

TEST(RemotePeersTest, BlocksOfAPeerThatHangsAreReadFromAnotherThatHasThem) {
  SlowOwner hung;
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader(kModel, patient({address(*hung.rank), address(owner)}), undivided());
  const Hashes hashes = KvWorkload::sequence(43, 4);
  store(*hung.rank, hashes);
  store(owner, hashes);
  const auto peer = reader.kv().remote()->connect(address(*hung.rank)).value();  // the first: it is preferred
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  hung.hold(peer);
  reads_in_time(reader, hashes, 4);
  hung.go_on();
}

TEST(RemotePeersTest, APeerThatHangsRestsHoweverShortTheDeadlinesAre) {
  SlowOwner hung;
  KvOptions options = node({address(*hung.rank)});
  options.remote->call_limit = milliseconds(500);
  options.remote->rest = hours(1);
  FleetRank reader(kModel, options, undivided());
  hung.hold(reader.kv().remote()->connect(address(*hung.rank)).value());
  // One that rests is unreachable at once; until then these are late.
  const Hashes hashes = KvWorkload::sequence(44, 2);
  eventually([&] {
    EXPECT_EQ(reader.kv().onboard(hashes, {.deadline = Clock::real().now() + milliseconds(50)}).size(), 0u);
    return reader.misses(Miss::kUnreachable) > 0;
  });
  hung.go_on();
}

// More than there are threads for them at first.
TEST(RemotePeersTest, ManyPeersThatHangDelayNobody) {
  constexpr std::size_t kHung = 20;
  constexpr std::uint16_t kGate = 99;
  std::latch inside(kHung);
  std::latch open(1);
  std::vector<std::shared_ptr<transfer::RemoteAgent>> agents;
  std::vector<transfer::RemoteOffer> gates;
  std::vector<std::string> peers;
  for (std::size_t i = 0; i < kHung; ++i) {
    agents.push_back(
        transfer::RemoteAgent::create({.silence = std::chrono::minutes(2), .handler_threads = 1}).value());
    gates.push_back(agents.back()
                        ->serve(kGate,
                                [&](const auto&, auto) -> Result<std::vector<std::byte>> {
                                  inside.count_down();
                                  open.wait();
                                  return std::vector<std::byte>();
                                })
                        .value());
    peers.push_back(agents.back()->address());
  }
  FleetRank owner = rank_of(kModel, undivided());
  peers.push_back(address(owner));
  KvOptions options = patient(peers);
  options.remote->patience = milliseconds(1);
  FleetRank reader(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(45, 4);
  store(owner, hashes);
  for (const auto& agent : agents)
    ASSERT_TRUE(reader.kv().remote()->agent().connect(agent->address()).value()->notify(kGate, {}));
  inside.wait();
  EXPECT_EQ(reader.onboard(hashes), 4u);
  open.count_down();
}

// ---- peers that rest

TEST(RemotePeersTest, APeerThatDidNotAnswerIsNotReadFromUntilItHasRested) {
  SlowOwner owner;
  ManualClock clock;
  KvOptions options = node({address(*owner.rank)});
  options.clock = &clock;
  options.remote->call_limit = milliseconds(50);
  options.remote->rest = hours(1);
  FleetRank reader(kModel, options, undivided());
  const Hashes some = KvWorkload::sequence(32, 2);
  const Hashes others = KvWorkload::sequence(33, 2);
  store(*owner.rank, some);
  store(*owner.rank, others);
  // A busy machine may take longer than the limit: rests end with the clock.
  const auto knows_all = [&] {
    clock.advance(hours(2));
    return reader.kv().find(some).size() == 1 && reader.kv().find(others).size() == 1;
  };
  eventually(knows_all);
  const auto peer = reader.kv().remote()->agent().peers().at(0);
  owner.hold(peer);
  EXPECT_EQ(reader.onboard(some), 0u);
  owner.go_on();
  EXPECT_EQ(reader.onboard(others), 0u) << "it rests, though it would answer";
  EXPECT_GT(reader.misses(Miss::kUnreachable), 0u);
  eventually([&] {
    clock.advance(hours(2));
    return reader.onboard(others) == 2;
  });
}

TEST(RemotePeersTest, APeerThatDoesNotSayWhatItSharesRestsToo) {
  SlowOwner owner;
  const Hashes hashes = KvWorkload::sequence(34, 2);
  store(*owner.rank, hashes);
  FleetRank other = rank_of(kModel, undivided());
  owner.hold(other.kv().remote()->connect(address(*owner.rank)).value());
  KvOptions options = node({address(*owner.rank)});
  options.remote->call_limit = milliseconds(50);
  options.remote->rest = hours(1);
  FleetRank reader(kModel, options, undivided());
  ASSERT_TRUE(reader.kv().remote()->agent().connect(address(*owner.rank)));  // which is no exchange
  EXPECT_EQ(reader.onboard(hashes), 0u);
  owner.go_on();
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.misses(Miss::kUnreachable), 2u);
  EXPECT_EQ(reader.misses(Miss::kUnknown), 0u);
}

// ---- managers that come and go over one agent

TEST(RemotePeersTest, BlocksOfAManagerThatIsGoneAreAMissAndThoseOfItsSuccessorAreFound) {
  for (const bool asked_between : {false, true}) {
    KvOptions options = node();
    options.remote->own_agent.reset();
    options.remote->agent = transfer::RemoteAgent::create({}).value();
    const std::string where = options.remote->agent->address();
    FleetRank reader = rank_of(kModel, undivided(), {where});
    const Hashes hashes = KvWorkload::sequence(35, 3);
    {
      FleetRank owner(kModel, options, undivided());
      store(owner, hashes);
      EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
    }
    if (asked_between) {
      eventually([&] { return !reader.kv().remote()->connect(where); });
      EXPECT_EQ(reader.onboard(hashes), 0u);
    }
    FleetRank owner(kModel, options, undivided());
    const Hashes fresh = KvWorkload::sequence(36, 3);
    store(owner, hashes);
    store(owner, fresh);
    eventually([&] { return reader.onboard(hashes) == 3; });
    EXPECT_EQ(reader.onboard(fresh), 3u);
  }
}

TEST(RemotePeersTest, AnAgentServesOneManagerAtATime) {
  KvOptions options = node();
  options.remote->own_agent.reset();
  options.remote->agent = transfer::RemoteAgent::create({}).value();
  {
    const FleetRank first(kModel, options, undivided());
    const auto second = KvBlockManager::create(options);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(second.error().message(), HasSubstr("give each manager an agent"));
  }
  EXPECT_TRUE(KvBlockManager::create(options));
}

// ---- sets that are dropped

TEST(RemotePeersTest, ADroppedSetStaysDroppedUntilItIsTakenBack) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
  const Hashes hashes = KvWorkload::sequence(8, 3);
  store(owner, hashes);
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  EXPECT_TRUE(reader.kv().remote()->drop_remote_blockset(identity(owner)));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reader.kv().find(hashes).size(), 0u);
    EXPECT_EQ(reader.onboard(hashes), 0u);
    EXPECT_FALSE(reader.kv().presence(hashes)[0].in(kRemote));
    EXPECT_FALSE(reader.kv().remote()->drop_remote_blockset(identity(owner)));
  }
  ASSERT_THAT(reader.kv().remote()->status().peers, SizeIs(1));
  EXPECT_THAT(reader.kv().remote()->status().peers[0].refusal, HasSubstr("were dropped here"));
  EXPECT_EQ(reader.kv().onboard(hashes, {.sources = {address(owner)}}).size(), 0u);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  EXPECT_EQ(reader.onboard(hashes), 3u);

  EXPECT_TRUE(reader.kv().remote()->drop_remote_blockset(identity(owner)));
  ASSERT_TRUE(reader.kv().reset(events::kTierId<events::G1>));
  ASSERT_TRUE(reader.kv().reset(kHost));
  EXPECT_EQ(reader.onboard(hashes), 0u);
  const std::vector<std::byte> bytes = owner.kv().remote()->export_blockset().value();
  ASSERT_TRUE(reader.kv().remote()->import_remote_blockset(bytes));
  EXPECT_EQ(reader.onboard(hashes), 3u);
}

TEST(RemotePeersTest, ANewSetOfTheSameAgentIsNotTheOneThatWasDropped) {
  KvOptions options = node();
  options.remote->own_agent.reset();
  options.remote->agent = transfer::RemoteAgent::create({}).value();
  const std::string where = options.remote->agent->address();
  FleetRank reader = rank_of(kModel, undivided(), {where});
  const Hashes hashes = KvWorkload::sequence(9, 3);
  {
    FleetRank owner(kModel, options, undivided());
    store(owner, hashes);
    EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
    EXPECT_TRUE(reader.kv().remote()->drop_remote_blockset(identity(owner)));
    EXPECT_EQ(reader.onboard(hashes), 0u);
  }
  FleetRank owner(kModel, options, undivided());
  store(owner, hashes);
  eventually([&] { return reader.onboard(hashes) == 3; });
}

// ---- what is asked for twice, and by number

TEST(RemotePeersTest, ABlockThatIsNamedAgainAndAgainIsHeldOnce) {
  KvOptions options = node();
  FleetRank probe(kModel, options, undivided());
  const std::uint64_t block = probe.options().model.block_bytes();
  options.remote->limits.leased_bytes_per_peer = 2 * block;
  FleetRank owner(kModel, options, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(10, 2);
  store(owner, hashes);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  Hashes many(1000, hashes[0]);
  many.push_back(hashes[1]);
  const RemoteBlocks views = reader.kv().remote()->get_remote_blocks(identity(owner), many).value();
  EXPECT_EQ(owner.kv().remote()->status().leased_bytes, 2 * block);
  EXPECT_EQ(owner.kv().remote()->status().refused, 0u);
  ASSERT_THAT(views.blocks(), SizeIs(1001));
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(views.blocks()[i].miss, Miss::kNone);
    EXPECT_EQ(views.blocks()[i].slot, views.blocks()[0].slot);
    EXPECT_EQ(views.blocks()[i].checksum, views.blocks()[0].checksum);
  }
  EXPECT_NE(views.blocks()[1000].slot, views.blocks()[0].slot);
}

TEST(RemotePeersTest, BlocksAreFoundByNumberAlone) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(11, 3);
  store(owner, hashes);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  std::map<std::uint32_t, RemoteBlock> known;
  std::vector<std::uint32_t> all;
  {
    const RemoteBlocks views = reader.kv().remote()->get_remote_blocks(identity(owner), hashes).value();
    for (const RemoteBlock& block : views.blocks()) known[block.slot] = block;
    for (std::uint32_t slot = 0; slot < views.set().blocks()->block_count(); ++slot) all.push_back(slot);
  }
  all.insert(all.end(), {all[0], 64, UINT32_MAX});  // one again, and two that are not there
  eventually([&] { return owner.kv().remote()->status().leases == 0; });
  const RemoteBlocks views = reader.kv().remote()->get_remote_blocks(identity(owner), all).value();
  EXPECT_TRUE(views.active());
  EXPECT_EQ(owner.kv().remote()->status().leased_bytes, 3 * owner.options().model.block_bytes());
  ASSERT_EQ(views.blocks().size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const RemoteBlock& block = views.blocks()[i];
    EXPECT_EQ(block.slot, all[i]);
    const auto found = known.find(all[i]);
    EXPECT_EQ(block.miss, found == known.end() ? Miss::kUnknown : Miss::kNone) << all[i];
    if (found == known.end()) continue;
    EXPECT_EQ(block.hash, found->second.hash);
    EXPECT_EQ(block.checksum, found->second.checksum);
  }
}

// ---- what is told of peers

TEST(RemotePeersTest, SetsOfPeersAreListed) {
  FleetRank owner = rank_of(kModel, undivided());
  KvOptions options = node();
  options.keys = tokens::NamespaceFingerprint::from_bits(1, 2);
  FleetRank stranger(kModel, options, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner), address(stranger)});
  EXPECT_THAT(reader.kv().remote()->remote_blocksets(), SizeIs(0));
  EXPECT_EQ(reader.onboard(KvWorkload::sequence(12, 1)), 0u);  // meets them
  const auto sets = reader.kv().remote()->remote_blocksets();
  ASSERT_THAT(sets, SizeIs(2));  // G2 and landing of the one that fits
  for (const auto& set : sets) EXPECT_EQ(set->peer()->identity(), identity(owner));
  EXPECT_TRUE(reader.kv().remote()->drop_remote_blockset(identity(owner)));
  EXPECT_THAT(reader.kv().remote()->remote_blocksets(), SizeIs(0));
}

TEST(RemotePeersTest, PeersThatAreMetLateHaveANameInEvents) {
  KvOptions options = node();
  options.remote->own_agent->name = "prefill-7";
  FleetRank owner(kModel, options, undivided());
  options = node({address(owner)});
  options.event_capacity = 1024;
  FleetRank reader(kModel, options, undivided());
  const auto events =
      events::EventManager::create({.stream = {events::Worker{events::WorkerId(4), 0}, 1}}).value();
  ASSERT_TRUE(reader.kv().attach_events(*events));
  const Hashes hashes = KvWorkload::sequence(13, 3);
  store(owner, hashes);
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  const events::OwnedBatch all = events->snapshot();
  std::map<std::uint16_t, std::string> names;
  for (const events::LocationName& name : all.locations) names[name.number] = name.name;
  std::size_t at_the_peer = 0;
  for (const events::KvEvent& event : all.events)
    if (event.tier == kRemote && names[event.location] == "prefill-7") ++at_the_peer;
  EXPECT_EQ(at_the_peer, 3u);
  reader.kv().detach_events();
}

TEST(RemotePeersTest, MetricsTellWhatEachPeerGaveAndTook) {
  KvOptions options = node();
  options.remote->own_agent->name = "owner";
  FleetRank owner(kModel, options, undivided());
  options = node({address(owner)});
  options.remote->own_agent->name = "reader";
  FleetRank reader(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(14, 3);
  store(owner, hashes);
  MetricRegistry pulls;
  MetricRegistry serves;
  const auto pulling = reader.kv().add_metrics(pulls).value();
  const auto serving = owner.kv().add_metrics(serves).value();
  EXPECT_EQ(reader.onboard(hashes), 3u);
  const std::string bytes = std::to_string(3 * owner.options().model.block_bytes());
  EXPECT_THAT(pulls.prometheus_text(),
              HasSubstr(R"(ashlar_remote_peer_pulled_bytes_total{peer="owner"} )" + bytes));
  EXPECT_THAT(pulls.prometheus_text(),
              HasSubstr(R"(ashlar_remote_peer_failed_blocks_total{peer="owner"} 0)"));
  EXPECT_THAT(serves.prometheus_text(), HasSubstr(R"(ashlar_remote_peer_leases_total{peer="reader"} 1)"));
  EXPECT_THAT(serves.prometheus_text(),
              HasSubstr(R"(ashlar_remote_peer_served_bytes_total{peer="reader"} )" + bytes));
}

TEST(RemotePeersTest, TheNamesOfMetricsAreBounded) {
  PeerTotals totals;
  for (std::size_t i = 0; i < 1000; ++i)
    totals.add("peer " + std::to_string(i), PeerTotals::What::kLeases, i < PeerTotals::kMostPeers ? 1 : 2);
  totals.add("peer 0", PeerTotals::What::kLeases, 10);
  const std::map<std::string, std::uint64_t> values = totals.values(PeerTotals::What::kLeases);
  ASSERT_THAT(values, SizeIs(PeerTotals::kMostPeers + 1));
  EXPECT_EQ(values.at("peer 0"), 11u);
  EXPECT_EQ(values.at(PeerTotals::kOthers), 2 * (1000 - PeerTotals::kMostPeers));
  EXPECT_EQ(totals.values(PeerTotals::What::kServedBytes).at("peer 1"), 0u);
}

}  // namespace
}  // namespace ashlar::tiers::remote
