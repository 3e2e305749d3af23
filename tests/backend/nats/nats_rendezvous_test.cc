// Processes that find each other through a real server.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/backend/nats/nats_rendezvous.h"
#include "backend/nats/nats_fixture.h"
#include "support/child_process.h"
#include "tiers/finding_scenario.h"

namespace ashlar::backend::nats {
namespace {

using ashlar::testing::record_of;
using ashlar::testing::soon;
using ::testing::HasSubstr;

NatsRendezvousOptions options_at(const std::string& url) {
  NatsRendezvousOptions options;
  options.connection = {.urls = {url},
                        .connect_timeout = seconds(60),
                        .write_timeout = seconds(60),
                        .reconnect_min = milliseconds(5),
                        .reconnect_max = milliseconds(20)};
  options.timeout = seconds(30);
  return options;
}

std::shared_ptr<NatsRendezvous> place_of(const NatsRendezvousOptions& options) {
  Result<std::shared_ptr<NatsRendezvous>> made = NatsRendezvous::create(options);
  EXPECT_TRUE(made) << made.error();
  return made ? *std::move(made) : nullptr;
}

// Loops until it holds; the test's own time limit ends what never does.
template <class F>
void wait_for(F&& holds) {
  while (!holds()) std::this_thread::sleep_for(milliseconds(5));
}

ErrorCode code_of(const Result<std::vector<std::byte>>& found) {
  return found ? ErrorCode::kAlreadyExists : found.error().code();
}

class NatsRendezvousTest : public NatsTest {
 protected:
  std::function<tiers::finding::Place()> places() {
    return [this] { return place_of(options_at(server_.url())); };
  }
  NatsServer server_;
};

TEST_F(NatsRendezvousTest, IsARendezvous) {
  const auto here = place_of(options_at(server_.url()));
  const auto there = place_of(options_at(server_.url()));
  ashlar::testing::expect_records_come_and_go(*here, *there);
  ashlar::testing::expect_requests_are_answered(*here, *there);
  ashlar::testing::expect_bad_names_are_refused(*here);
}

TEST_F(NatsRendezvousTest, ARecordLastsWhileItIsRenewedAndNoLonger) {
  NatsRendezvousOptions options = options_at(server_.url());
  options.lease = seconds(1);
  auto here = place_of(options);
  const auto there = place_of(options);
  EXPECT_EQ(there->lease(), Clock::Duration(seconds(1)));
  std::optional<RendezvousOffer> offer = here->publish("fleet.a", record_of("kept")).value();
  wait_for([&] { return here->counters().renewed >= 9; });  // three leases
  // Renewed or, where this machine stood still for a while, written anew.
  const auto is_kept = [&] {
    const auto found = there->find("fleet.a", soon());
    return found && *found == record_of("kept");
  };
  wait_for(is_kept);
  EXPECT_EQ(here->counters().lost, 0u);
  here.reset();  // the offer keeps what it needs
  wait_for(is_kept);
  offer.reset();
  EXPECT_EQ(code_of(there->find("fleet.a", soon())), ErrorCode::kNotFound);
}

TEST_F(NatsRendezvousTest, WhoeverWroteLastHasTheName) {
  NatsRendezvousOptions options = options_at(server_.url());
  options.lease = seconds(6);
  const auto here = place_of(options);
  const auto there = place_of(options);
  const RendezvousOffer first = here->publish("fleet.a", record_of("first")).value();
  const RendezvousOffer second = there->publish("fleet.a", record_of("second")).value();
  wait_for([&] { return here->counters().lost == 1; });
  EXPECT_EQ(here->find("fleet.a", soon()).value(), record_of("second"));
}

TEST_F(NatsRendezvousTest, RecordsComeBackAfterAServerThatForgotThem) {
  NatsRendezvousOptions options = options_at(server_.url());
  options.lease = milliseconds(600);
  const auto here = place_of(options);
  const RendezvousOffer offer = here->publish("fleet.a", record_of("kept")).value();
  const RendezvousOffer serving =
      here->answer("fleet.a", [](std::span<const std::byte>) { return Result(record_of("reply")); }).value();
  server_.kill();
  wait_for([&] { return code_of(here->find("fleet.a", soon())) == ErrorCode::kUnavailable; });
  EXPECT_EQ(here->publish("fleet.b", {}).error().code(), ErrorCode::kUnavailable);
  server_.start();  // its bucket was in memory
  const auto there = place_of(options);
  wait_for([&] {
    const auto found = there->find("fleet.a", soon());
    return found && *found == record_of("kept");
  });
  wait_for([&] {
    const auto said = there->ask("fleet.a", {}, soon());
    return said && *said == record_of("reply");
  });
}

TEST_F(NatsRendezvousTest, BadOptionsAndForeignBucketsAreRefused) {
  NatsRendezvousOptions options = options_at(server_.url());
  options.lease = milliseconds(99);
  EXPECT_THAT(NatsRendezvous::create(options).error().message(), HasSubstr("lease"));
  options = options_at(server_.url());
  options.bucket = "no bucket";
  EXPECT_EQ(NatsRendezvous::create(options).error().code(), ErrorCode::kInvalidArgument);
  options = options_at(server_.url());
  options.prefix = "a.>";
  EXPECT_THAT(NatsRendezvous::create(options).error().message(), HasSubstr("prefix"));
  // A bucket of snapshots keeps what it has.
  const auto sink = sink_of({.connection = server_.options(), .mode = NatsMode::kJetStream});
  ASSERT_TRUE(sink->put_snapshot(snapshot_of(3, 2).view()));
  options = options_at(server_.url());
  options.bucket = NatsSinkOptions().bucket;
  EXPECT_THAT(NatsRendezvous::create(options).error().message(), HasSubstr("forever"));
  const auto place = place_of(options_at(server_.url()));
  EXPECT_EQ(place->publish("fleet.a", std::vector<std::byte>(std::size_t{2} << 20)).error().code(),
            ErrorCode::kCapacity);
  EXPECT_EQ(place->find("fleet.a", Clock::real().now()).error().code(), ErrorCode::kTimeout);
}

TEST_F(NatsRendezvousTest, WithoutJetStreamItSaysSo) {
  const NatsServer plain("", false);
  EXPECT_EQ(NatsRendezvous::create(options_at(plain.url())).error().code(), ErrorCode::kUnsupported);
}

TEST_F(NatsRendezvousTest, NodesFindEachOther) {
  tiers::finding::expect_nodes_find_each_other(places());
}
TEST_F(NatsRendezvousTest, WrongSecretsAreRefused) {
  tiers::finding::expect_wrong_secrets_are_refused(places());
}
TEST_F(NatsRendezvousTest, TheDeadHarmNothing) {
  tiers::finding::expect_the_dead_harm_nothing(places());
}

constexpr milliseconds kShortLease(5000);

// Another process: a node with blocks, until it is killed.
int play_node(const ashlar::testing::TestChannel& channel, const std::vector<std::string>& words) {
  NatsRendezvousOptions options = options_at(words.at(0));
  options.lease = kShortLease;
  tiers::finding::Node owner(tiers::finding::options(place_of(options), "secret", 77));
  owner.compute_all(tiers::KvWorkload::sequence(9, 4));
  channel.send(record_of("ready"));
  static_cast<void>(channel.receive());
  return 0;
}

TEST_F(NatsRendezvousTest, ANodeThatIsKilledIsForgottenAfterItsLease) {
  NatsRendezvousOptions options = options_at(server_.url());
  options.lease = kShortLease;
  const auto place = place_of(options);
  tiers::finding::Node reader(tiers::finding::options(place, "secret"));
  const tiers::finding::Hashes hashes = tiers::KvWorkload::sequence(9, 4);
  for (int life = 0; life < 2; ++life) {
    ashlar::testing::ChildProcess child("node", {server_.url()});
    ASSERT_EQ(child.channel().receive(), record_of("ready"));
    EXPECT_EQ(reader.onboard(hashes), 4u) << reader.status().record_refusal;
    ASSERT_TRUE(reader.kv().reset(events::kTierId<events::G1>));
    ASSERT_TRUE(reader.kv().reset(events::kTierId<events::G2>));
    child.kill();
    wait_for([&] { return reader.kv().remote()->agent().peers().empty(); });
    EXPECT_EQ(reader.onboard(hashes), 0u);
  }
  wait_for([&] { return code_of(place->find(tiers::finding::kNameOf77, soon())) == ErrorCode::kNotFound; });
  wait_for([&] { return place->list("fleet.one", soon()).value().size() == 1; });  // its own
}

}  // namespace
}  // namespace ashlar::backend::nats

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"node", ashlar::backend::nats::play_node}});
}
