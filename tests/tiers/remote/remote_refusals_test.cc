// What a node refuses, and how long it waits: blocks that are named otherwise, hints whose sources are dead,
// leases that are shorter than what was asked for, reservations whose manager is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiers/remote/remote_fixture.h"

namespace ashlar::tiers::remote {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// ---- blocks that are named otherwise

TEST(RemoteRefusalsTest, BlocksOfAnotherModelHashSchemeOrPrefixKeyAreRefusedWithWhatDiffers) {
  const Hashes hashes = KvWorkload::sequence(50, 2);
  const auto meets = [&](const KvOptions& options, const char* what) {
    FleetRank owner(kModel, options, undivided());
    FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
    store(owner, hashes);
    EXPECT_EQ(reader.onboard(hashes), 0u) << what;
    const auto peers = reader.kv().remote()->status().peers;
    ASSERT_THAT(peers, SizeIs(1));
    EXPECT_THAT(peers[0].refusal, HasSubstr(std::string("of another ") + what));
    const auto connected = reader.kv().remote()->connect(address(owner));
    ASSERT_FALSE(connected) << what;
    EXPECT_EQ(connected.error().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(connected.error().message(), HasSubstr(what));
    EXPECT_THAT(reader.kv().remote()->remote_blocksets(), SizeIs(0));
  };
  KvOptions options = node();
  options.keys = tokens::NamespaceFingerprint::from_bits(7, 9);
  meets(options, "model (namespace fingerprint)");
  options = node();
  options.scheme_fingerprint = node().scheme_fingerprint + 1;
  meets(options, "hash scheme");
  options = node();
  options.prefix_key = tokens::PrefixKey(tokens::PrefixKey::Bytes{5});
  meets(options, "prefix key");
}

// ---- options

TEST(RemoteOptionsTest, ThereIsNoRemoteTierUnlessItIsAskedFor) {
  KvOptions options = node();
  options.remote.reset();
  FleetRank alone(kModel, options, undivided());
  EXPECT_EQ(alone.kv().remote(), nullptr);
  EXPECT_FALSE(alone.kv().status().remote);
  const Hashes hashes = KvWorkload::sequence(49, 3);
  store(alone, hashes);
  EXPECT_EQ(alone.onboard(hashes), 3u);
  // A source that is named is nobody's.
  const OnboardTable none = alone.kv().onboard(KvWorkload::sequence(48, 1), {.sources = {"127.0.0.1:1"}});
  EXPECT_EQ(none.size(), 0u);
}

TEST(RemoteOptionsTest, OptionsThatMakeNoSenseAreRefusedByName) {
  const auto refused = [](const char* what, auto&& change) {
    KvOptions options = kModel.options(node(), undivided());
    change(*options.remote);
    const auto made = KvBlockManager::create(options);
    ASSERT_FALSE(made) << what;
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument) << made.error();
    EXPECT_THAT(made.error().message(), HasSubstr(what));
  };
  const auto agent = transfer::RemoteAgent::create({}).value();
  refused("own_agent and agent", [&](RemoteShape& shape) { shape.agent = agent; });
  refused("own_agent and agent", [](RemoteShape& shape) { shape.own_agent.reset(); });
  refused("group", [](RemoteShape& shape) { shape.group = "fleet"; });
  refused("block_count", [](RemoteShape& shape) { shape.block_count = 0; });
  refused("renew", [](RemoteShape& shape) { shape.renew = shape.lease; });
  refused("lease", [](RemoteShape& shape) { shape.lease = Clock::Duration(0); });
  refused("call_limit", [](RemoteShape& shape) { shape.call_limit = Clock::Duration(0); });
  refused("copy_limit", [](RemoteShape& shape) { shape.copy_limit = Clock::Duration(0); });
  refused("rest", [](RemoteShape& shape) { shape.rest = -seconds(1); });
  refused("patience", [](RemoteShape& shape) { shape.patience = -seconds(1); });
  refused("landing_blocks", [](RemoteShape& shape) { shape.serve = false; });
  refused("limit of 0", [](RemoteShape& shape) { shape.limits.leases = 0; });
  refused("more than all",
          [](RemoteShape& shape) { shape.limits.leases_per_peer = shape.limits.leases + 1; });
}

// ---- hints

std::string fetch_from(const std::vector<std::string>& sources, const std::string& names) {
  std::string actions;
  for (std::size_t i = 0; i < sources.size(); ++i)
    actions += std::string(i == 0 ? "" : ",") + R"({"action_id":")" + std::to_string(i) +
               R"(","action_type":"kv.fetch","action_version":"1.0","payload":{"source_control_endpoint":")" +
               sources[i] + R"(","block_hashes":[)" + names + R"(],"mode":"copy"}})";
  return R"({"protocol_version":"1.0","message_id":"m","actions":[)" + actions + "]}";
}

TEST(RemoteRefusalsTest, ASourceOfHintsThatDoesNotAnswerIsAskedOnce) {
  SilentPlace silent;
  silent.listen();
  FleetRank owner = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(51, 2);
  store(owner, hashes);
  KvOptions options = node();
  options.remote->call_limit = seconds(1);
  options.remote->copy_limit = hours(1);
  FleetRank reader(kModel, options, undivided());
  ASSERT_TRUE(reader.kv().remote()->agent().connect(address(owner)));
  std::vector<std::string> sources(200, silent.address());
  sources.push_back(address(owner));
  const std::string names = std::to_string(hashes[0].chain()) + "," + std::to_string(hashes[1].chain());
  const auto outcomes = reader.kv().remote()->execute_hints(fetch_from(sources, names)).value();
  ASSERT_THAT(outcomes, SizeIs(201));
  for (std::size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(outcomes[i].kind, HintOutcome::Kind::kRejected);
    EXPECT_EQ(outcomes[i].reason, outcomes[0].reason);
  }
  EXPECT_EQ(outcomes[200].fetched, 2u) << outcomes[200].reason;
  EXPECT_LE(silent.waiting(), 3u) << "attempts of 0.2, 0.8 and 1 second";
}

TEST(RemoteRefusalsTest, AnEnvelopeOfManyDeadSourcesEnds) {
  std::vector<SilentPlace> silent(20);
  std::vector<std::string> sources;
  for (SilentPlace& one : silent) {
    one.listen();
    sources.push_back(one.address());
  }
  KvOptions options = node();
  options.remote->call_limit = milliseconds(50);
  options.remote->copy_limit = milliseconds(100);
  FleetRank reader(kModel, options, undivided());
  const auto outcomes = reader.kv().remote()->execute_hints(fetch_from(sources, "1")).value();
  ASSERT_THAT(outcomes, SizeIs(20));
  for (const HintOutcome& outcome : outcomes) EXPECT_EQ(outcome.kind, HintOutcome::Kind::kRejected);
  EXPECT_THAT(outcomes[0].reason, HasSubstr("did not answer in time"));
  EXPECT_THAT(outcomes[19].reason, HasSubstr("time for this envelope"));
}

// ---- leases

// The owner grants three seconds, and the reader would ask again after five.
TEST(RemoteRefusalsTest, ALeaseThatIsShorterThanWantedIsRenewedInTime) {
  ManualClock clock;
  KvOptions options = node();
  options.clock = &clock;
  options.remote->lease = seconds(3);
  options.remote->renew = seconds(1);
  FleetRank owner(kModel, options, undivided());
  options = node();
  options.clock = &clock;
  FleetRank reader(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(52, 2);
  store(owner, hashes);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  const RemoteBlocks views =
      reader.kv().remote()->get_remote_blocks(owner.kv().remote()->agent().identity(), hashes).value();
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t before = owner.kv().remote()->status().renewed;
    // No more than two of its seconds: the call may take its time.
    int steps = 0;
    eventually([&] {
      if (owner.kv().remote()->status().renewed == before && clock.waiters() >= 2 && steps < 20) {
        clock.advance(milliseconds(100));
        ++steps;
      }
      return owner.kv().remote()->status().renewed != before;
    });
    ASSERT_EQ(owner.kv().remote()->status().expired, 0u);
  }
  eventually([&] { return views.active(); });
}

// ---- reservations

TEST(RemoteRefusalsTest, AReservationWhoseManagerIsGoneCannotBeCommitted) {
  FleetRank owner = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(53, 2);
  auto writer = std::make_unique<FleetRank>(kModel, node(), undivided());
  store(*writer, hashes);
  const auto peer = writer->kv().remote()->connect(address(owner)).value();
  RemoteBlocksMutable reserved =
      writer->kv().remote()->get_remote_blocks_mutable(peer->identity(), 2).value();
  writer.reset();
  const auto committed = std::move(reserved).commit(hashes);
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code(), ErrorCode::kNotReady);
}

}  // namespace
}  // namespace ashlar::tiers::remote
