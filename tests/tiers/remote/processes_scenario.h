// Nodes in processes of their own that read from each other, are killed, stopped and started again, over a
// network that breaks. A program that includes this defines node_transport() (node_process.h), and has
// play_scenarios() as its main().
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/transfer/transfer_plan.h"
#include "support/rounds.h"
#include "support/tcp_relay.h"
#include "tiers/remote/node_process.h"

namespace ashlar::tiers {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::rounds;
using testing::TcpRelay;

inline const ShardedModel kFleetModel = {};

// How much of a loop `make test` runs, and how much `make test-long` does.
inline std::uint64_t much(std::uint64_t usual, std::uint64_t all) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets it
  const bool is_long = std::getenv("ASHLAR_TEST_SECONDS") != nullptr;
  return is_long && !testing::kSanitized ? all : rounds(usual);
}

inline FleetRank reader_of(std::vector<std::string> peers, std::uint32_t ranks = 1, std::uint32_t rank = 0) {
  KvOptions options = node_options(48);
  options.remote->peers = std::move(peers);
  return FleetRank(kFleetModel, options, kFleetModel.fleet(ranks)[rank]);
}

// Ends a loop that gets nowhere: two minutes without a step.
class Progress {
 public:
  bool stuck(std::uint64_t steps) {
    const auto now = std::chrono::steady_clock::now();
    if (steps != last_) since_ = now;
    last_ = steps;
    return now - since_ > std::chrono::minutes(2);
  }

 private:
  std::uint64_t last_ = 0;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// ---- the proof of bytes

inline bool every_peer_gave(FleetRank& reader, std::size_t peers) {
  const RemoteStatus status = reader.kv().remote()->status();
  return status.peers.size() == peers &&
         std::ranges::all_of(status.peers, [](const RemotePeerStatus& peer) { return peer.got > 0; });
}

// Owners write and evict all the time; the reader compares every byte of what it gets.
inline void expect_no_byte_is_wrong(const std::vector<NodeWords>& words, std::uint32_t ranks,
                                    std::uint32_t rank, std::uint64_t blocks, std::uint64_t seed) {
  std::vector<std::unique_ptr<NodeProcess>> owners;
  std::vector<std::string> peers;
  for (NodeWords one : words) {
    one.seed = 10 * seed + owners.size() + 1;
    owners.push_back(std::make_unique<NodeProcess>(one));
    peers.push_back(owners.back()->address());
    owners.back()->ask("write");
  }
  FleetRank reader = reader_of(peers, ranks, rank);
  Random random(1000 + seed);
  std::uint64_t read = 0;
  for (Progress progress; read < blocks || !every_peer_gave(reader, words.size());) {
    read += read_and_forget(reader, random_sequence(random));
    ASSERT_FALSE(progress.stuck(read)) << read;
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_EQ(reader.misses(Miss::kDamaged), 0u);
  reader.expect_counts_exact();
  for (const auto& owner : owners) owner->expect_right();
}

class RemoteBytesTest : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RemoteBytesTest, NoneIsWrongFromTwoOwners) {
  expect_no_byte_is_wrong({{}, {}}, 1, 0, much(1'250, 125'000), GetParam());
}
// One has all heads, the others a half each.
TEST_P(RemoteBytesTest, NoneIsWrongFromThreeOwnersOfDifferentShapes) {
  const std::vector<NodeWords> three = {{}, {.ranks = 2, .rank = 0}, {.ranks = 2, .rank = 1}};
  expect_no_byte_is_wrong(three, 1, 0, much(1'000, 100'000), GetParam());
}
// The reader has a quarter of the heads.
TEST_P(RemoteBytesTest, NoneIsWrongInAPartOfTheHeads) {
  expect_no_byte_is_wrong({{}, {.ranks = 2, .rank = 1}}, 4, 2, much(250, 25'000), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Seeds, RemoteBytesTest, ::testing::Range<std::uint64_t>(0, 4));

// ---- death

TEST(RemoteProcessesTest, AnOwnerThatIsKilledComesBackAsAnotherIncarnation) {
  auto owner = std::make_unique<NodeProcess>();
  const std::string address = owner->address();
  FleetRank reader = reader_of({address});
  std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint64_t> calls{0};
  BusyThread busy;
  busy.start([&, random = Random(5)]() mutable {
    read += read_and_forget(reader, random_sequence(random));
    ++calls;
  });
  Random random(6);
  std::set<transfer::AgentIdentity> incarnations;
  for (std::uint64_t round = 0, all = much(20, 1'000); round < all; ++round) {
    SCOPED_TRACE(round);
    owner->ask("store 1 4");
    owner->ask("write");
    const std::uint64_t before = read;
    loop_until([&] { return read > before; });
    const auto peer = reader.kv().remote()->connect(address);
    ASSERT_TRUE(peer) << peer.error();
    EXPECT_TRUE(incarnations.insert((*peer)->identity()).second) << "a new one each time";
    std::optional<RemoteBlocks> views;
    if (auto some = reader.kv().remote()->get_remote_blocks((*peer)->identity(), KvWorkload::sequence(1, 4)))
      views = *std::move(some);
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(5'000)));
    owner->kill();
    // What is known of the dead one is of no use.
    loop_until([&] { return !(*peer)->alive(); });
    EXPECT_EQ((*peer)->failure()->code(), ErrorCode::kUnavailable);
    const auto late =
        reader.kv().remote()->get_remote_blocks((*peer)->identity(), KvWorkload::sequence(1, 4));
    ASSERT_FALSE(late);
    EXPECT_THAT(late.error().code(), AnyOf(ErrorCode::kUnavailable, ErrorCode::kNotFound));
    if (views) {
      EXPECT_FALSE(views->active());
      auto target = reader.kv().get_mutable_blocks(1);
      if (target) {
        const std::uint32_t to = (*target)[0].block_id().value();
        const std::uint32_t from = views->blocks()[0].slot;
        auto plan = transfer::plan(views->set().blocks(), std::span(&from, 1), reader.kv().g1_blocks(),
                                   std::span(&to, 1));
        ASSERT_TRUE(plan) << plan.error();
        loop_until([&] { return (*peer)->path()->failure().has_value(); });
        const auto moved = reader.kv().remote()->agent().executor().submit({.plan = *std::move(plan)});
        EXPECT_EQ(moved.error().code(), ErrorCode::kUnavailable);
      }
    }
    // Requests go on, and find nothing.
    const std::uint64_t asked = calls;
    loop_until([&] { return calls >= asked + 2; });
    owner = std::make_unique<NodeProcess>(NodeWords{.listen = address, .seed = round + 2});
    ASSERT_EQ(owner->address(), address);
    if (::testing::Test::HasFailure()) break;
  }
  owner->ask("write");
  const std::uint64_t before = read;
  loop_until([&] { return read > before; });
  busy.stop();
  reader.expect_counts_exact();
  owner->expect_right();
}

TEST(RemoteProcessesTest, WhatAKilledReaderHadReturns) {
  FleetRank owner = reader_of({});
  const std::string address = owner.kv().remote()->agent().address();
  const auto status = [&] { return owner.kv().remote()->status(); };
  Random random(7);
  for (std::uint64_t round = 0, all = much(20, 1'000); round < all; ++round) {
    SCOPED_TRACE(round);
    store_in_g2(owner, KvWorkload::sequence(1, 4));
    NodeProcess reader({.seed = round + 1});
    NodeProcess writer({.seed = round + 1});
    for (NodeProcess* const one : {&reader, &writer}) one->ask("connect " + address);
    reader.ask("hold 1 4");
    EXPECT_GE(status().leases, 1u);
    reader.ask("read");
    writer.ask("push");
    const std::uint64_t granted = status().granted + 1 + random.below(8);
    const std::uint64_t pushed = status().pushed + 1 + random.below(8);
    loop_until([&] {
      store_in_g2(owner, random_sequence(random, 1 + random.below(kLength)));
      return status().granted >= granted && status().pushed >= pushed;
    });
    reader.kill();
    writer.kill();
    loop_until([&] { return status().leases == 0 && status().reserved_blocks == 0; });
    // What was pushed has its bytes.
    for (std::uint64_t number = 0; number < kSequences; ++number)
      owner.onboard(KvWorkload::sequence(100 + number, kLength));
    ASSERT_TRUE(owner.kv().reset(kDeviceTier));
    if (::testing::Test::HasFailure()) break;
  }
  owner.expect_counts_exact();
}

TEST(RemoteProcessesTest, ASetOfAnEarlierIncarnationIsRefusedWithASentence) {
  auto owner = std::make_unique<NodeProcess>();
  const std::vector<std::byte> old = owner->ask_bytes("export");
  const std::string address = owner->address();
  FleetRank reader = reader_of({});
  RemoteNode& remote = *reader.kv().remote();
  owner->kill();
  EXPECT_EQ(remote.import_remote_blockset(old).error().code(), ErrorCode::kUnavailable) << "nobody is there";
  owner = std::make_unique<NodeProcess>(NodeWords{.listen = address});
  ASSERT_EQ(owner->address(), address);
  for (const bool connected : {false, true}) {
    SCOPED_TRACE(connected);
    if (connected) {
      ASSERT_TRUE(remote.connect(address));
    }
    const auto refused = remote.import_remote_blockset(old);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(refused.error().message(), HasSubstr("incarnation"));
    EXPECT_THAT(refused.error().message(), HasSubstr("xchange"));
  }
  owner->ask("store 1 4");
  EXPECT_EQ(reader.onboard(KvWorkload::sequence(1, 4)), 4u);
}

// ---- hanging

TEST(RemoteProcessesTest, AnOwnerThatHangsIsAMissByTheDeadline) {
  NodeProcess owner;
  FleetRank reader = reader_of({owner.address()});
  owner.ask("write");
  std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint64_t> empty{0};
  BusyThread busy;
  busy.start([&, random = Random(8)]() mutable {
    const NodeHashes hashes = random_sequence(random);
    {
      const OnboardTable table =
          reader.kv().onboard(hashes, {.deadline = Clock::real().now() + milliseconds(100)});
      for (std::size_t i = 0; i < table.size(); ++i)
        EXPECT_TRUE(reader.has_bytes(table[i].block_id(), hashes[i]));
      ++(table.size() == 0 ? empty : read);
    }
    // Where bytes of the last call may still arrive, others lie now.
    static_cast<void>(reader.kv().reset(kHostTier));
    const NodeHashes own = KvWorkload::sequence(500 + random.below(3), 16);
    store_in_g2(reader, own);
    EXPECT_EQ(reader.onboard(own), 16u);
    static_cast<void>(reader.kv().reset(kDeviceTier));
    static_cast<void>(reader.kv().reset(kHostTier));
  });
  Random random(9);
  for (std::uint64_t round = 0, all = much(20, 1'000); round < all; ++round) {
    const std::uint64_t before = read;
    loop_until([&] { return read > before; });
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(3'000)));
    owner.process().stop();
    const std::uint64_t missed = empty;
    loop_until([&] { return empty >= missed + 2; });
    owner.process().signal(SIGCONT);
    if (::testing::Test::HasFailure()) break;
  }
  const std::uint64_t before = read;
  loop_until([&] { return read > before; });
  busy.stop();
  owner.expect_right();
  reader.expect_counts_exact();
}

// ---- leases

// Reads views again and again while their lease ends and the owner puts other bytes in their place.
TEST(RemoteProcessesTest, WhatIsReadAfterTheLeaseIsNeverTaken) {
  for (std::uint64_t round = 0, all = rounds(8); round < all; ++round) {
    constexpr milliseconds kLease{50};
    NodeProcess owner({.blocks = 8, .lease_ms = kLease.count(), .seed = round + 1});
    FleetRank reader = reader_of({});
    const NodeHashes hashes = KvWorkload::sequence(1, 4);
    owner.ask("store 1 4");
    const auto peer = reader.kv().remote()->connect(owner.address()).value();
    const RemoteBlocks views = reader.kv().remote()->get_remote_blocks(peer->identity(), hashes).value();
    auto fresh = reader.kv().get_mutable_blocks(4).value();
    std::vector<std::uint32_t> from;
    std::vector<std::uint32_t> to;
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(views.blocks()[i].miss, Miss::kNone);
      from.push_back(views.blocks()[i].slot);
      to.push_back(fresh[i].block_id().value());
    }
    owner.ask("evict");  // leased blocks stay, until the lease is over
    bool other_bytes = false;
    loop_until([&] {
      auto plan = transfer::plan(views.set().blocks(), from, reader.kv().g1_blocks(), to);
      const auto moved = reader.kv().remote()->agent().executor().submit({.plan = *std::move(plan)});
      if (!moved || !moved->wait()) return true;
      const bool active = views.active();
      for (std::size_t i = 0; i < 4; ++i) {
        const bool right = reader.has_bytes(fresh[i].block_id(), hashes[i]);
        EXPECT_TRUE(right || !active) << "the owner keeps what it leases";
        const layout::Shard& shard = reader.kv().g1_blocks()->planes()[0].shard;
        const auto found = transfer::checksum_part(
            *reader.kv().g1_blocks(), to[i], {hashes[i], reader.options().keys}, shard.layers, shard.heads);
        EXPECT_EQ(*found == views.blocks()[i].checksum, right) << "the checksum tells";
        other_bytes |= !right;
      }
      // It was read while it was leased: an owner that stands still renews nothing, and when it goes on,
      // refuses what was asked of it in time, but is too late by its own clock.
      if (active) {
        owner.process().stop();
        loop_until([&] { return !views.active(); });
        std::this_thread::sleep_for(2 * kLease);
        owner.process().signal(SIGCONT);
      }
      return other_bytes || ::testing::Test::HasFailure();
    });
    EXPECT_TRUE(other_bytes);
    EXPECT_FALSE(views.active());
    owner.expect_right();
  }
}

// The owner grants less than is asked for; a renewal is no longer than that.
TEST(RemoteProcessesTest, ARenewedLeaseIsAsLongAsTheOwnerSays) {
  NodeProcess owner({.lease_ms = 10'000});
  ManualClock clock;
  KvOptions options = node_options(48);
  options.clock = &clock;
  FleetRank reader(kFleetModel, options, kFleetModel.fleet(1)[0]);
  owner.ask("store 1 4");
  const auto peer = reader.kv().remote()->connect(owner.address()).value();
  const RemoteBlocks views =
      reader.kv().remote()->get_remote_blocks(peer->identity(), KvWorkload::sequence(1, 4)).value();
  EXPECT_TRUE(views.active());
  // It is due after 5 s; the answer may take its time, in which the lease must not end.
  milliseconds passed{0};
  loop_until([&] {
    if (clock.waiters() > 0 && passed < milliseconds(7'000)) {
      clock.advance(milliseconds(500));
      passed += milliseconds(500);
    }
    return owner.status().second > 0;
  });
  clock.advance(milliseconds(10'500) - passed);  // more than was granted at first
  loop_until([&] { return views.active(); });
  owner.process().stop();
  clock.advance(std::chrono::seconds(11));
  EXPECT_FALSE(views.active());
  owner.process().signal(SIGCONT);
}

// ---- the network

TEST(RemoteProcessesTest, ASlowSilentOrBrokenNetworkIsNoMoreThanAMiss) {
  TcpRelay relay;
  NodeProcess owner({.listen = relay.target(), .advertise = relay.address(), .lease_ms = 2'000});
  ASSERT_EQ(owner.address(), relay.address());
  FleetRank reader = reader_of({relay.address()});
  owner.ask("write");
  std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint64_t> empty{0};
  BusyThread busy;
  busy.start([&, random = Random(10)]() mutable {
    const NodeHashes hashes = random_sequence(random);
    {
      const OnboardTable table =
          reader.kv().onboard(hashes, {.deadline = Clock::real().now() + milliseconds(200)});
      for (std::size_t i = 0; i < table.size(); ++i)
        EXPECT_TRUE(reader.has_bytes(table[i].block_id(), hashes[i]));
      ++(table.size() == 0 ? empty : read);
    }
    static_cast<void>(reader.kv().reset(kDeviceTier));
    static_cast<void>(reader.kv().reset(kHostTier));
  });
  Random random(11);
  for (std::uint64_t round = 0, all = std::max<std::uint64_t>(3, much(12, 300)); round < all; ++round) {
    SCOPED_TRACE(round);
    relay.set(TcpRelay::Mode::kPass);
    const std::uint64_t before = read;
    loop_until([&] { return read > before; });
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(3'000)));
    const std::uint64_t missed = empty;
    switch (round % 3) {
      case 0:
        relay.set(TcpRelay::Mode::kCut);
        loop_until([&] { return empty >= missed + 2; });
        break;
      case 1:
        relay.set(TcpRelay::Mode::kSilent);
        loop_until([&] { return empty >= missed + 2; });
        break;
      default: {
        relay.set(TcpRelay::Mode::kSlow);
        const std::uint64_t slow = read + empty;
        loop_until([&] { return read + empty >= slow + 4; });
        break;
      }
    }
    if (::testing::Test::HasFailure()) break;
  }
  relay.set(TcpRelay::Mode::kPass);
  const std::uint64_t before = read;
  loop_until([&] { return read > before; });
  EXPECT_GT(relay.passed(), 0u);
  busy.stop();
  owner.expect_right();
  reader.expect_counts_exact();
}

// The same incarnation on another connection: leases of the first end with it, those of the second with it.
TEST(RemoteProcessesTest, ConnectionsOfOneIncarnationEndOneByOne) {
  TcpRelay relay;
  NodeProcess reader;
  KvOptions options = node_options(48);
  options.remote->own_agent->listen = relay.target();
  options.remote->own_agent->advertise = relay.address();
  FleetRank owner(kFleetModel, options, kFleetModel.fleet(1)[0]);
  const auto leases = [&] { return owner.kv().remote()->status().leases; };
  store_in_g2(owner, KvWorkload::sequence(1, 4));
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    relay.set(TcpRelay::Mode::kPass);
    reader.ask("connect " + relay.address());
    reader.ask("hold 1 4");
    EXPECT_EQ(leases(), 1u);
    relay.set(TcpRelay::Mode::kCut);
    loop_until([&] { return leases() == 0; });
  }
  owner.expect_counts_exact();
}

TEST(RemoteProcessesTest, APeerIsToldOfRemovedBlocksOnEveryConnection) {
  TcpRelay relay;
  KvOptions options = node_options(48);
  options.remote->own_agent->listen = relay.target();
  options.remote->own_agent->advertise = relay.address();
  FleetRank owner(kFleetModel, options, kFleetModel.fleet(1)[0]);
  FleetRank reader = reader_of({relay.address()});
  const NodeHashes hashes = KvWorkload::sequence(1, 4);
  const auto known = [&](std::size_t i) { return reader.kv().presence(hashes)[i].in(kRemoteTier); };
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    store_in_g2(owner, hashes);
    loop_until([&] { return reader.kv().find(hashes).size() == 1 && known(3); });
    relay.set(TcpRelay::Mode::kCut);
    loop_until([&] { return !known(0) && !known(3); });
    relay.set(TcpRelay::Mode::kPass);
    loop_until([&] { return reader.kv().find(hashes).size() == 1 && known(3); });
    ASSERT_TRUE(owner.kv().reset_blocks(std::span(hashes).last(1)));
    loop_until([&] { return !known(3); });
    EXPECT_TRUE(known(0));
  }
}

// ---- a network of its own

// Turns the loopback device of this process's network on or off.
inline bool set_link(bool on) {
  const OwnedFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq link{};
  link.ifr_name[0] = 'l';
  link.ifr_name[1] = 'o';
  if (ioctl(socket.get(), SIOCGIFFLAGS, &link) != 0) return false;
  link.ifr_flags = static_cast<short>(on ? link.ifr_flags | IFF_UP : link.ifr_flags & ~IFF_UP);
  return ioctl(socket.get(), SIOCSIFFLAGS, &link) == 0;
}

// Changes the network of this process by rules of nftables.
inline bool add_rules(const std::string& rules) {
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): one thread forks, and no words of others
  return std::system(("PATH=$PATH:/usr/sbin:/sbin; nft '" + rules + "' 2>/dev/null").c_str()) == 0;
}

// Loses a tenth of the packets of this process's network: by nftables, or by netem where the kernel has it.
inline bool lose_packets() {
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): one thread, and no words of others
  return std::system(
             "PATH=$PATH:/usr/sbin:/sbin; (nft 'add table inet loss;"
             " add chain inet loss input { type filter hook input priority 0; };"
             " add rule inet loss input iif lo numgen random mod 10 == 0 drop'"
             " || tc qdisc add dev lo root netem loss 10%) 2>/dev/null") == 0;
}

// Reads from an owner until some came, or until none does.
inline void read_until(FleetRank& reader, Random& random, bool some) {
  loop_until([&, empty = 0]() mutable {
    const std::size_t read = read_and_forget(reader, random_sequence(random));
    empty = read == 0 ? empty + 1 : 0;
    return some ? read > 0 : empty >= 2;
  });
}

// Reads through a relay that stands in every connection of this network, those that a transport makes for
// itself included: there is no address to be told to UCX, whose ports follow from nothing that a peer says.
inline void read_through(TcpRelay& relay, FleetRank& reader, Random& random) {
  const std::uint64_t before = relay.passed();
  relay.set(TcpRelay::Mode::kSlow);
  read_until(reader, random, true);
  relay.set(TcpRelay::Mode::kSilent);
  read_until(reader, random, false);
  relay.set(TcpRelay::Mode::kPass);
  read_until(reader, random, true);
  // Over shared memory only words pass.
  const bool bytes_pass = reader.kv().remote()->agent().executor().name() == "ucx";
  const std::uint64_t block = reader.options().model.block_bytes();
  EXPECT_GE(relay.passed() - before, bytes_pass ? 2 * block : 1);
}

// The role of a child that has a network for itself and its own children. Says what came of it.
inline int play_network(const testing::TestChannel& channel, const std::vector<std::string>& words) {
  const auto say = [&](const std::string& text) {
    channel.send(std::as_bytes(std::span(text.data(), text.size())));
    return 0;
  };
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    return say("no network namespaces here");
  if (!set_link(true)) return say("the link of a network namespace cannot be changed here");
  const bool loses = words.at(0) == "loses";
  if (loses && !lose_packets()) return say("neither nft nor tc makes a network lose packets here");
  std::optional<TcpRelay> relay;
  if (words.at(0) == "delays") {
    relay.emplace(TcpRelay::Place::kBetween);
    if (!add_rules(relay->redirect())) return say("nft does not redirect connections here");
  }
  NodeProcess owner;
  KvOptions options = node_options(48);
  options.remote->peers = {owner.address()};
  // Where packets are only lost, calls wait for them to be sent again: each connection that is made anew over
  // UCX 1.13 may meet what descriptor_gate.h tells of.
  options.remote->call_limit = milliseconds(loses ? 30'000 : 300);
  if (relay) options.remote->copy_limit = milliseconds(500);
  FleetRank reader(kFleetModel, options, kFleetModel.fleet(1)[0]);
  Random random(12);
  owner.ask("write");
  for (std::uint64_t round = 0, all = relay ? much(1, 20) : much(2, 50); round < all; ++round) {
    if (relay) read_through(*relay, reader, random);
    if (relay) continue;
    read_until(reader, random, true);
    if (loses) continue;
    EXPECT_TRUE(set_link(false));
    read_until(reader, random, false);
    EXPECT_TRUE(set_link(true));
  }
  read_until(reader, random, true);
  owner.expect_right();
  reader.expect_counts_exact();
  const bool failed = ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  return say(failed ? "wrong" : "right");
}

inline void expect_network_is_survived(const std::string& what) {
  const testing::ChildProcess child("network", {what});
  const auto said = child.channel().receive();
  ASSERT_TRUE(said);
  const std::string text(reinterpret_cast<const char*>(said->data()), said->size());
  if (text != "right" && text != "wrong") GTEST_SKIP() << text;
  EXPECT_EQ(text, "right");
}
TEST(RemoteProcessesTest, ALinkThatGoesDownIsNoMoreThanAMiss) {
  expect_network_is_survived("goes down");
}
TEST(RemoteProcessesTest, AConnectionThatIsSlowOrSilentOnItsWayIsNoMoreThanAMiss) {
  expect_network_is_survived("delays");
}
TEST(RemoteProcessesTest, ANetworkThatLosesPacketsIsNoMoreThanSlow) {
  expect_network_is_survived("loses");
}

inline int play_scenarios(int argc, char** argv) {
  return testing::run_tests(argc, argv, {{"node", play_node}, {"network", play_network}});
}

}  // namespace ashlar::tiers
