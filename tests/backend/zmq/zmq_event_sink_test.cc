#include "ashlar/backend/zmq/zmq_event_sink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "backend/zmq/raw_socket.h"
#include "feed/engine_medium.h"

namespace ashlar::backend::zmq {
namespace {

using events::BlockName;
using events::EngineEvent;
using events::EngineEventKind;
using events::KvEvent;
using events::KvEventKind;
using tokens::SequenceHash;
using tokens::Token;

// A sink, and the batches that went out of it, read from its replay socket.
class ZmqEventSinkTest : public ::testing::Test {
 protected:
  ZmqEventSinkTest()
      : publisher_(
            make_publisher({.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = "tcp://127.0.0.1:*"})) {}

  std::unique_ptr<ZmqEventSink> make_sink(ZmqEventSink::Options options = {}) {
    return std::make_unique<ZmqEventSink>(publisher_, std::move(options));
  }
  void publish(ZmqEventSink& sink, const std::vector<KvEvent>& events,
               events::BatchKind kind = events::BatchKind::kEvents, std::uint32_t part = 0) {
    events::EventBatch batch;
    batch.stream.worker.rank = 3;
    batch.keys.block_size = 2;
    batch.kind = kind;
    batch.part = part;
    batch.published_ns = 1'500'000'000;
    batch.events = events;
    const Result<void> sent = sink.publish(batch);
    EXPECT_TRUE(sent.has_value()) << sent.error();
  }
  // The payloads since the last call.
  std::vector<std::string> sent() {
    std::vector<std::string> out;
    for (const Frames& reply : ask_replay(publisher_->replay_endpoint(), {"", number_frame(seen_)}))
      if (reply != kEndMarker) out.push_back(reply[3]);
    seen_ += out.size();
    return out;
  }
  // The one batch since the last call; its views are into last_.
  events::EngineBatch sent_batch() {
    const std::vector<std::string> payloads = sent();
    EXPECT_EQ(payloads.size(), 1U);
    events::EngineBatch batch;
    if (payloads.empty()) return batch;
    last_ = payloads.back();
    const Result<void> decoded = events::decode_engine_batch(bytes_of(last_), batch);
    EXPECT_TRUE(decoded.has_value()) << decoded.error();
    return batch;
  }

  std::shared_ptr<EnginePublisher> publisher_;
  std::uint64_t seen_ = 0;
  std::string last_;
};

std::vector<KvEvent> chain(std::uint64_t first, std::size_t length, events::TierId tier = {}) {
  std::vector<KvEvent> out;
  for (std::size_t i = 0; i < length; ++i) {
    KvEvent event;
    event.tier = tier;
    event.hash = i == 0 ? SequenceHash::root(first) : out.back().hash.child(first + i).value();
    if (i > 0) {
      event.has_parent = true;
      event.parent_bits = out.back().hash;
    }
    out.push_back(event);
  }
  return out;
}

KvEvent removal(const KvEvent& stored) {
  KvEvent event;
  event.kind = KvEventKind::kRemoved;
  event.hash = stored.hash;
  event.tier = stored.tier;
  event.has_name = stored.has_name;
  event.name_bits = stored.name_bits;
  return event;
}

KvEvent cleared(events::TierId tier) {
  KvEvent event;
  event.kind = KvEventKind::kCleared;
  event.tier = tier;
  return event;
}

std::vector<std::uint64_t> names_of(const events::EngineBatch& batch, const EngineEvent& event) {
  std::vector<std::uint64_t> out;
  for (const BlockName name : batch.names_of(event)) out.push_back(name.value());
  return out;
}

TEST_F(ZmqEventSinkTest, WritesTheBytesOfTheEngines) {
  auto sink = make_sink();
  publish(*sink, {cleared(events::kTierId<events::G1>)});
  const std::string clear =
      std::string("\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x81\xa4type\xb0", 18) + "AllBlocksCleared" + "\x03";
  EXPECT_EQ(sent(), std::vector<std::string>{clear});
}

TEST(MediumTest, EveryTierIsReadAsItIsWritten) {
  for (const events::StorageTier tier : events::kAllStorageTiers) {
    const events::TierId id(static_cast<std::uint8_t>(tier));
    EXPECT_EQ(feed::tier_of_medium(medium_of(id)), id) << medium_of(id);
  }
}

TEST_F(ZmqEventSinkTest, AChainIsOneStoreWithItsTokens) {
  auto sink = make_sink({.tokens_of = [](const SequenceHash& hash) -> std::optional<std::vector<Token>> {
    return std::vector<Token>{Token(static_cast<std::uint32_t>(hash.chain())), Token(9)};
  }});
  const std::vector<KvEvent> stored = chain(100, 4);
  publish(*sink, stored);
  const events::EngineBatch batch = sent_batch();
  EXPECT_EQ(batch.timestamp, 1.5);
  EXPECT_EQ(batch.rank, 3U);
  ASSERT_EQ(batch.events.size(), 1U);
  const EngineEvent& event = batch.events[0];
  EXPECT_EQ(event.kind, EngineEventKind::kStored);
  EXPECT_EQ(names_of(batch, event), (std::vector<std::uint64_t>{100, 101, 102, 103}));
  EXPECT_FALSE(event.parent.has_value());
  EXPECT_EQ(event.block_size, 2U);
  EXPECT_EQ(event.medium, "GPU");
  ASSERT_EQ(batch.tokens_of(event).size(), 8U);
  EXPECT_EQ(batch.tokens_of(event)[2], Token(101));
}

// As vLLM does: an entry for each block, and the salt with the first of a sequence.
TEST_F(ZmqEventSinkTest, TheFirstBlockCarriesItsSalt) {
  auto sink = make_sink(
      {.salt_of = [](const SequenceHash& hash) { return std::string(hash.chain() < 200 ? "tenant" : ""); }});
  publish(*sink, chain(100, 3));
  const events::EngineBatch salted = sent_batch();
  ASSERT_EQ(salted.events.size(), 1U);
  EXPECT_TRUE(salted.events[0].has_extra_keys);
  EXPECT_EQ(salted.events[0].extra_key_blocks, 3U);
  ASSERT_EQ(salted.extra_keys_of(salted.events[0]).size(), 1U);
  EXPECT_EQ(salted.extra_keys[0], (events::EngineExtraKey{.value = "tenant"}));

  std::vector<KvEvent> more = chain(100, 5);
  publish(*sink, {more[3], more[4]});
  const events::EngineBatch tail = sent_batch();
  EXPECT_EQ(tail.events.at(0).extra_key_blocks, 2U);
  EXPECT_TRUE(tail.extra_keys.empty()) << "the salt is the parent's";

  publish(*sink, chain(200, 2));
  const events::EngineBatch plain = sent_batch();
  EXPECT_TRUE(plain.events.at(0).has_extra_keys);
  EXPECT_TRUE(plain.extra_keys.empty());
}

TEST_F(ZmqEventSinkTest, AStoreNamesItsParent) {
  auto sink = make_sink();
  std::vector<KvEvent> stored = chain(100, 4);
  publish(*sink, {stored[0], stored[1]});
  (void)sent();
  publish(*sink, {stored[2], stored[3]});
  const events::EngineBatch batch = sent_batch();
  ASSERT_EQ(batch.events.size(), 1U);
  EXPECT_EQ(batch.events[0].parent, BlockName(101));
  EXPECT_TRUE(batch.tokens_of(batch.events[0]).empty());
  EXPECT_EQ(batch.events[0].block_size, 2U);
  // Blocks that have names of their own: the parent's is remembered, in this batch and in later ones.
  std::vector<KvEvent> named = chain(200, 3);
  for (std::size_t i = 0; i < named.size(); ++i) {
    named[i].has_name = true;
    named[i].name_bits = 7000 + i;
  }
  publish(*sink, {named[0], stored[0], named[1]});
  publish(*sink, {named[2]});
  const std::vector<std::string> payloads = sent();
  ASSERT_EQ(payloads.size(), 2U);
  events::EngineBatch decoded;
  ASSERT_TRUE(events::decode_engine_batch(bytes_of(payloads[0]), decoded).has_value());
  ASSERT_EQ(decoded.events.size(), 3U);
  EXPECT_EQ(decoded.events[2].parent, BlockName(7000));
  ASSERT_TRUE(events::decode_engine_batch(bytes_of(payloads[1]), decoded).has_value());
  EXPECT_EQ(decoded.events[0].parent, BlockName(7001));
}

TEST_F(ZmqEventSinkTest, BlocksWithAndWithoutTokensDoNotShareAnEvent) {
  auto sink = make_sink({.tokens_of = [](const SequenceHash& hash) -> std::optional<std::vector<Token>> {
    if (hash.chain() == 102) return std::nullopt;
    if (hash.chain() == 103) return std::vector<Token>(5);  // not a block
    return std::vector<Token>(2);
  }});
  publish(*sink, chain(100, 5));
  const events::EngineBatch batch = sent_batch();
  ASSERT_EQ(batch.events.size(), 3U);
  EXPECT_EQ(names_of(batch, batch.events[1]), (std::vector<std::uint64_t>{102, 103}));
  EXPECT_EQ(batch.events[1].parent, BlockName(101));
  EXPECT_TRUE(batch.tokens_of(batch.events[1]).empty());
  EXPECT_EQ(batch.events[2].parent, BlockName(103));
  EXPECT_EQ(batch.tokens_of(batch.events[2]).size(), 2U);
}

TEST_F(ZmqEventSinkTest, RemovalsSayTheirTier) {
  auto sink = make_sink();
  const std::vector<KvEvent> disk = chain(100, 3, events::kTierId<events::G3>);
  const std::vector<KvEvent> host = chain(200, 1, events::kTierId<events::G2>);
  publish(*sink, {removal(disk[2]), removal(disk[1]), removal(host[0])});
  const events::EngineBatch batch = sent_batch();
  ASSERT_EQ(batch.events.size(), 2U);
  EXPECT_EQ(batch.events[0].kind, EngineEventKind::kRemoved);
  EXPECT_EQ(names_of(batch, batch.events[0]), (std::vector<std::uint64_t>{102, 101}));
  EXPECT_EQ(batch.events[0].medium, "DISK");
  EXPECT_EQ(batch.events[1].medium, "CPU");
}

TEST_F(ZmqEventSinkTest, ASnapshotIsAClearAndStores) {
  auto sink = make_sink();
  std::vector<KvEvent> first = chain(100, 2);
  const std::vector<KvEvent> host = chain(200, 2, events::kTierId<events::G2>);
  first.insert(first.end(), host.begin(), host.end());
  publish(*sink, first);
  (void)sent();
  publish(*sink, chain(300, 2), events::BatchKind::kSnapshot, 0);
  const events::EngineBatch batch = sent_batch();
  ASSERT_EQ(batch.events.size(), 3U);
  EXPECT_EQ(batch.events[0].kind, EngineEventKind::kCleared);
  EXPECT_EQ(batch.events[1].kind, EngineEventKind::kRemoved);
  EXPECT_EQ(batch.events[1].medium, "CPU");
  std::vector<std::uint64_t> gone = names_of(batch, batch.events[1]);
  std::sort(gone.begin(), gone.end());
  EXPECT_EQ(gone, (std::vector<std::uint64_t>{200, 201}));
  EXPECT_EQ(batch.events[2].kind, EngineEventKind::kStored);
  publish(*sink, chain(400, 2), events::BatchKind::kSnapshot, 1);
  EXPECT_EQ(sent_batch().events.size(), 1U) << "the second part clears nothing";
}

TEST_F(ZmqEventSinkTest, ClearsNameTheBlocksOfOtherTiers) {
  auto sink = make_sink();
  std::vector<KvEvent> events = chain(100, 2, events::kTierId<events::G2>);
  events.push_back(cleared(events::kTierId<events::G2>));
  events.push_back(cleared(events::kTierId<events::G3>));
  publish(*sink, events);
  events::EngineBatch batch = sent_batch();
  ASSERT_EQ(batch.events.size(), 2U) << "an empty tier says nothing";
  EXPECT_EQ(batch.events[1].kind, EngineEventKind::kRemoved);
  EXPECT_EQ(batch.names_of(batch.events[1]).size(), 2U);
  KvEvent lost;
  lost.kind = KvEventKind::kResync;
  publish(*sink, {lost});
  batch = sent_batch();
  ASSERT_EQ(batch.events.size(), 1U);
  EXPECT_EQ(batch.events[0].kind, EngineEventKind::kCleared);
}

TEST_F(ZmqEventSinkTest, AccessesSayNothing) {
  auto sink = make_sink();
  KvEvent access;
  access.kind = KvEventKind::kAccess;
  publish(*sink, {access, access});
  EXPECT_TRUE(sent().empty());
}

}  // namespace
}  // namespace ashlar::backend::zmq
