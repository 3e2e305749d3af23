// Finding peers, without a server.
#include "tiers/remote/peer_finder.h"

#include <gtest/gtest.h>

#include "tiers/finding_scenario.h"

namespace ashlar::tiers {
namespace {

class PeerFinderTest : public ::testing::Test {
 protected:
  // One for all: its clients are in one process.
  std::function<finding::Place()> place() {
    return [all = place_] { return all; };
  }
  const finding::Place place_ = std::make_shared<testing::LocalRendezvous>();
};

TEST_F(PeerFinderTest, ThePlaceOfTheseTestsIsARendezvous) {
  testing::expect_records_come_and_go(*place_, *place_);
  testing::expect_requests_are_answered(*place_, *place_);
  testing::expect_bad_names_are_refused(*place_);
}

TEST_F(PeerFinderTest, NodesFindEachOther) {
  finding::expect_nodes_find_each_other(place());
}
TEST_F(PeerFinderTest, WrongSecretsAreRefused) {
  finding::expect_wrong_secrets_are_refused(place());
}
TEST_F(PeerFinderTest, TheDeadHarmNothing) {
  finding::expect_the_dead_harm_nothing(place());
}

TEST_F(PeerFinderTest, TheGroupIsListedAtMostOnceInAWhile) {
  ManualClock clock;
  KvOptions options = finding::options(place_);
  options.clock = &clock;
  options.remote->look_again = std::chrono::seconds(2);
  finding::Node reader(options);
  const finding::Hashes hashes = KvWorkload::sequence(5, 3);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.status().looked, 1u);
  finding::Node owner(finding::options(place_));
  owner.compute_all(hashes);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.status().looked, 1u);
  clock.advance(std::chrono::seconds(2));
  EXPECT_EQ(reader.onboard(hashes), 3u);
  EXPECT_EQ(reader.status().looked, 2u);
  clock.advance(std::chrono::seconds(2));
  EXPECT_EQ(reader.onboard(hashes), 3u);
  EXPECT_EQ(reader.status().looked, 2u) << "nothing was missing";
}

TEST_F(PeerFinderTest, ARecordThatLedNowhereRestsUntilItChanges) {
  ManualClock clock;
  KvOptions options = finding::options(place_);
  options.clock = &clock;
  options.remote->rest = std::chrono::seconds(5);
  finding::Node reader(options);
  const finding::Hashes hashes = KvWorkload::sequence(6, 1);
  const RendezvousOffer rubbish = place_->publish("fleet.one.a", testing::record_of("rubbish")).value();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.status().records_refused, 1u);
  const RendezvousOffer other = place_->publish("fleet.one.a", testing::record_of("other rubbish")).value();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.status().records_refused, 2u);
  clock.advance(std::chrono::seconds(5));
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.status().records_refused, 3u);
}

TEST_F(PeerFinderTest, OptionsAreChecked) {
  KvOptions options = finding::options(place_);
  options.remote->group = "no group";
  EXPECT_THAT(KvBlockManager::create(options).error().message(), ::testing::HasSubstr("remote.group"));
  options.remote->group = "";
  EXPECT_FALSE(KvBlockManager::create(options));
  options.remote->group = "fleet";
  options.remote->rendezvous = nullptr;
  EXPECT_THAT(KvBlockManager::create(options).error().message(), ::testing::HasSubstr("rendezvous"));
}

// Every byte of a sealed record counts.
TEST_F(PeerFinderTest, SealedBytesAreBoundToAuthorLabelAndChallenge) {
  const auto agent = [](std::string secret) {
    transfer::AgentOptions options;
    options.secret = std::move(secret);
    return transfer::RemoteAgent::create(std::move(options)).value();
  };
  const auto author = agent("secret");
  const auto reader = agent("secret");
  const std::vector<std::byte> text = testing::record_of("bytes");
  const std::vector<std::byte> nonce = transfer::RemoteAgent::draw_challenge().value();
  EXPECT_NE(nonce, transfer::RemoteAgent::draw_challenge().value());
  const std::vector<std::byte> sealed = author->seal("label", text, nonce);
  const transfer::SealedBytes opened = reader->unseal("label", sealed, nonce).value();
  EXPECT_EQ(opened.author, author->identity());
  EXPECT_EQ(opened.bytes, text);
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::vector<std::byte> changed = sealed;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(reader->unseal("label", changed, nonce)) << "byte " << i;
    EXPECT_FALSE(reader->unseal("label", std::span(sealed).first(i), nonce)) << i << " bytes";
  }
  EXPECT_FALSE(reader->unseal("labe", sealed, nonce));
  EXPECT_FALSE(reader->unseal("label", sealed, std::span(nonce).first(31)));
  EXPECT_FALSE(reader->unseal("label", sealed));
  EXPECT_FALSE(agent("other")->unseal("label", sealed, nonce));
  EXPECT_FALSE(agent("")->unseal("label", sealed, nonce));
  EXPECT_FALSE(reader->unseal("label", agent("")->seal("label", text, nonce), nonce));
  const auto open = agent("");
  EXPECT_EQ(open->unseal("label", agent("")->seal("label", text)).value().bytes, text);
}

}  // namespace
}  // namespace ashlar::tiers
