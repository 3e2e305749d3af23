// What comes from outside takes no more memory than the options allow: decoders, what waits, files. Measured
// by the bytes that are in use, and compared with what the components count themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "events/event_samples.h"
#include "feed/engine_messages.h"
#include "support/kvrec.h"
#include "support/live_bytes.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

using events::EngineBatch;
using events::KvEvent;
using events::OwnedBatch;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSlack = 32 * 1024;  // whole pages, messages of errors, and the like

// Msgpack by hand.
class Wire {
 public:
  Wire& u8(unsigned value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  Wire& number(std::uint64_t value, int width) {
    for (int i = width - 1; i >= 0; --i) u8(static_cast<unsigned>(value >> (8 * i) & 0xFF));
    return *this;
  }
  Wire& text(std::string_view value) {
    u8(0xDB).number(value.size(), 4);
    for (const char c : value) u8(static_cast<unsigned char>(c));
    return *this;
  }
  Wire& array(std::uint64_t count) { return u8(0xDD).number(count, 4); }
  // The start of a batch of so many events.
  static Wire batch(std::uint64_t events) {
    Wire wire;
    wire.u8(0x92).u8(0x01).array(events);
    return wire;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Messages that become much larger when they are decoded.
std::vector<std::pair<const char*, Wire>> growing_messages() {
  std::vector<std::pair<const char*, Wire>> out;
  constexpr std::uint64_t kMany = 20'000;
  Wire events = Wire::batch(kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) events.u8(0x91).u8(0xA0);
  out.emplace_back("events", events);
  Wire names = Wire::batch(1).u8(0x92).text("BlockRemoved").array(kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) names.u8(7);
  out.emplace_back("names", names);
  Wire digests = Wire::batch(1).u8(0x92).text("BlockRemoved").array(kMany / 8);
  for (std::uint64_t i = 0; i < kMany / 8; ++i) digests.u8(0xC4).u8(8).number(i, 8);
  out.emplace_back("digests", digests);
  const auto stored = [] { return Wire::batch(1).u8(0x87).text("type").text("BlockStored"); };
  Wire tokens = stored();
  tokens.text("block_hashes").u8(0x91).u8(1).text("token_ids").array(kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) tokens.u8(3);
  for (const char* field : {"a", "b", "c", "d"}) tokens.text(field).u8(0xC0);
  out.emplace_back("tokens", tokens);
  Wire pairs = stored();
  pairs.text("block_hashes").u8(0x91).u8(1).text("token_ids").array(kMany / 2);
  for (std::uint64_t i = 0; i < kMany / 2; ++i) pairs.u8(0x92).u8(3).u8(4);
  for (const char* field : {"a", "b", "c", "d"}) pairs.text(field).u8(0xC0);
  out.emplace_back("pairs", pairs);
  for (const std::size_t length : {std::size_t{1}, std::size_t{40}, std::size_t{5000}}) {
    Wire keys = stored();
    keys.text("block_hashes").u8(0x91).u8(1).text("extra_keys").array(kMany / 16 / length + 1);
    for (std::uint64_t i = 0; i <= kMany / 16 / length; ++i) keys.text(std::string(length, 'k'));
    for (const char* field : {"a", "b", "c", "d"}) keys.text(field).u8(0xC0);
    out.emplace_back("keys", keys);
  }
  return out;
}

TEST(FeedMemoryTest, ADecodedEngineBatchStaysWithinItsLimit) {
  for (const auto& [name, wire] : growing_messages()) {
    EngineBatch batch;
    std::size_t refused = 0;
    std::size_t accepted = 0;
    for (std::size_t limit = 1024; limit <= 32 * kMiB; limit += limit / 2) {
      const Peak peak;
      const Result<void> decoded = events::decode_engine_batch(wire.bytes(), batch, limit);
      EXPECT_LE(peak.bytes(), limit + kSlack) << name << " " << limit;
      if (decoded) {
        ++accepted;
      } else {
        ++refused;
        EXPECT_EQ(decoded.error().code(), ErrorCode::kCapacity) << name << decoded.error();
        EXPECT_EQ(accepted, 0u) << "what fits, fits a larger limit too";
        EXPECT_TRUE(batch.events.empty());
      }
    }
    EXPECT_GT(refused, 0u) << name;
    EXPECT_GT(accepted, 0u) << name;
  }
}

// What one batch left in memory does not keep another one out.
TEST(FeedMemoryTest, ABatchFitsHoweverLargeTheOneBeforeWas) {
  const auto messages = growing_messages();
  const auto smallest = [](const Wire& wire) {
    for (std::size_t limit = 1024;; limit += limit / 8) {
      EngineBatch batch;
      if (events::decode_engine_batch(wire.bytes(), batch, limit)) return limit;
    }
  };
  for (const auto& [name, wire] : messages) {
    const std::size_t limit = smallest(wire);
    for (const auto& [before, other] : messages) {
      EngineBatch batch;
      static_cast<void>(events::decode_engine_batch(other.bytes(), batch, limit));
      const Peak peak;
      EXPECT_TRUE(events::decode_engine_batch(wire.bytes(), batch, limit)) << name << " after " << before;
      EXPECT_LE(peak.bytes(), limit + kSlack);
    }
  }
}

TEST(FeedMemoryTest, ADecodedBatchStaysWithinItsLimit) {
  OwnedBatch batch;
  for (std::uint64_t i = 0; i < 5'000; ++i) {
    KvEvent& event = batch.events.emplace_back();
    event.kind = events::KvEventKind::kRemoved;
    event.hash = tokens::SequenceHash::root(i);
  }
  for (std::uint16_t i = 0; i < 500; ++i) batch.locations.push_back({i, std::string(i % 50, 'x')});
  std::vector<std::byte> bytes;
  events::encode_batch(batch.view(), bytes);
  OwnedBatch out;
  bool accepted = false;
  for (std::size_t limit = 4096; limit <= 2 * kMiB; limit += limit / 3) {
    const Peak peak;
    const Result<void> decoded = events::decode_batch(bytes, out, limit);
    EXPECT_LE(peak.bytes(), limit + kSlack);
    EXPECT_TRUE(decoded || decoded.error().code() == ErrorCode::kCapacity);
    EXPECT_TRUE(decoded || !accepted);
    accepted = decoded.has_value();
  }
  EXPECT_TRUE(accepted);
}

// A message that is too large is lost, counted, and the picture begins anew.
TEST(FeedMemoryTest, ASessionCountsWhatItCannotDecode) {
  ScriptedSource::Script script;
  for (std::uint64_t i = 0; i < 3; ++i) {
    BatchBuilder builder;
    const BlockName name(i + 1);
    const std::vector<Token> text(4, Token(static_cast<std::uint32_t>(i)));
    builder.stored(std::nullopt, std::span(&name, 1), text, 4);
    script.live.push_back({.topic = "kv", .sequence = i, .payload = BatchEncoder::encode(builder.batch())});
  }
  script.live[1].payload = growing_messages().front().second.bytes();
  auto session =
      EngineSession::create(std::make_unique<ScriptedSource>(script), {.max_batch_bytes = kMiB / 2}).value();
  std::vector<KvEvent> out;
  const Peak peak;
  while (session.step({}, out)) continue;
  EXPECT_LE(peak.bytes(), 2 * kMiB);
  EXPECT_EQ(session.counters().oversized, 1u);
  EXPECT_EQ(session.counters().undecodable, 1u);
  EXPECT_EQ(session.counters().lost, 1u);
  EXPECT_EQ(session.counters().resyncs, 1u);
}

// Stores whose parents never come, of several ranks: with many tokens, long salts or keys.
class WaitingMemoryTest : public ::testing::TestWithParam<int> {
 protected:
  static EngineBatch store(std::uint64_t number, std::uint32_t rank, int kind, const std::string& text) {
    EngineBatch batch;
    batch.rank = rank;
    events::EngineEvent& event = batch.events.emplace_back();
    event.kind = events::EngineEventKind::kStored;
    event.parent = events::BlockName(1'000'000'000 + number);
    event.block_size = 16;
    event.medium = "GPU";
    const std::uint32_t blocks = kind == 0 ? 100 : 1;
    for (std::uint32_t i = 0; i < blocks; ++i) batch.names.emplace_back(number * 100 + i);
    batch.tokens.resize(std::size_t{16} * blocks);
    event.names = {0, blocks};
    event.tokens = {0, 16 * blocks};
    if (kind == 1) event.cache_salt = text;
    if (kind == 2) {
      event.has_extra_keys = true;
      for (std::uint32_t i = 0; i < 5; ++i)
        batch.extra_keys.push_back(
            {.block = 0, .kind = events::EngineExtraKey::Kind::kMultimodal, .value = text});
      event.extra_keys = {0, 5};
    }
    if (kind == 3) {
      event.parent.reset();
      event.medium = "CPU";
      event.tokens = {};
    }
    return batch;
  }
};

TEST_P(WaitingMemoryTest, WhatWaitsStaysWithinItsLimit) {
  constexpr std::size_t kLimit = kMiB / 2;
  auto ingest = EngineIngest::create({.max_waiting_bytes = kLimit}).value();
  const std::string text(3000, 'x');
  std::vector<KvEvent> out;
  // What grows once: tables of hashes.
  constexpr std::size_t kTables = 256 * 1024;
  const Peak peak;
  for (std::uint64_t i = 0; i < 4'000; ++i) {
    const std::size_t before = g_live_bytes.load();
    EngineBatch batch = store(i, static_cast<std::uint32_t>(i % 3), GetParam(), text);
    const std::size_t given = g_live_bytes.load() - before;
    ingest.apply(batch, out);
    ASSERT_LE(ingest.waiting_bytes(), kLimit);
    ASSERT_LE(peak.bytes(), kLimit + kTables + 4 * given) << i;
  }
  EXPECT_GT(ingest.counters().overflowed, 0u);
  EXPECT_GT(ingest.waiting(), 0u);
  EXPECT_EQ(ingest.counters().waited, ingest.waiting() + ingest.counters().overflowed);
  ingest.resync(out);
  EXPECT_EQ(ingest.waiting_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(TokensSaltsKeysNames, WaitingMemoryTest, ::testing::Range(0, 4));

TEST(FeedMemoryTest, ASaltThatIsTooLongIsRefused) {
  auto ingest = EngineIngest::create({}).value();
  std::vector<KvEvent> out;
  EngineBatch batch;
  events::EngineEvent event;
  event.kind = events::EngineEventKind::kStored;
  event.block_size = 4;
  const std::string text(5000, 's');
  batch.names = {events::BlockName(1)};
  batch.tokens.resize(4);
  event.names = {0, 1};
  event.tokens = {0, 4};
  event.cache_salt = text;
  batch.events = {event};
  ingest.apply(batch, out);
  batch.events[0].cache_salt = {};
  batch.events[0].lora_name = text;
  ingest.apply(batch, out);
  EXPECT_EQ(ingest.counters().long_salts, 2u);
  EXPECT_NE(ingest.last_refusal().find("max_salt_bytes"), std::string::npos);
  EXPECT_TRUE(out.empty());
  batch.events[0].lora_name = std::string_view(text).substr(0, 4096);
  ingest.apply(batch, out);
  EXPECT_EQ(out.size(), 1u);
}

class Deaf final : public StreamListener {
 public:
  void on_reset(const events::StreamId&) override { ++resets; }
  void on_events(const events::EventBatch& batch) override { events += batch.events.size(); }
  std::uint64_t resets = 0;
  std::uint64_t events = 0;
};
class NoSource final : public FeedSource {
 public:
  Result<std::size_t> poll(BatchConsumer&, Clock::Duration) override { return std::size_t{0}; }
  Result<bool> recover(const events::StreamId&, std::uint64_t, BatchConsumer&) override {
    return make_error(ErrorCode::kUnavailable, "not now");
  }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "nothing"; }
};

TEST(FeedMemoryTest, AnUnfinishedSnapshotStaysWithinTheLimitAndIsGivenUp) {
  constexpr std::size_t kLimit = 2 * kMiB;
  NoSource source;
  Deaf listener;
  StreamReceiver receiver(source, listener, {.max_waiting_bytes = kLimit});
  const std::vector<KvEvent> events(1000);
  events::EventBatch part;
  part.kind = events::BatchKind::kSnapshot;
  part.stream = {{events::WorkerId(1), 0}, 1};
  part.first = 10;
  part.parts = 1000;
  part.events = events;
  const Peak peak;
  for (part.part = 0; part.part < 200; ++part.part) {
    receiver.on_batch(part);
    ASSERT_LE(receiver.waiting_bytes(), kLimit);
    ASSERT_LE(peak.bytes(), kLimit + 2 * kSlack);
  }
  EXPECT_EQ(receiver.counters().overflowed, 1u) << "the rest of it is not taken";
  EXPECT_EQ(receiver.waiting_bytes(), 0u);
  EXPECT_NE(receiver.last_refusal().find("max_waiting_bytes"), std::string::npos);
  EXPECT_FALSE(receiver.is_complete(part.stream.worker));
  // One that fits is taken, also of the same moment.
  part.parts = 2;
  for (part.part = 0; part.part < 2; ++part.part) receiver.on_batch(part);
  EXPECT_EQ(receiver.counters().snapshots, 1u);
  EXPECT_TRUE(receiver.is_complete(part.stream.worker));
  EXPECT_EQ(listener.events, 2000u);
  EXPECT_EQ(receiver.waiting_bytes(), 0u);
}

TEST(FeedMemoryTest, WhatWaitsBehindGapsOfAllWorkersStaysWithinTheLimit) {
  constexpr std::size_t kLimit = 2 * kMiB;
  NoSource source;
  Deaf listener;
  StreamReceiver receiver(source, listener, {.max_waiting_bytes = kLimit});
  const std::vector<KvEvent> events(50);
  Random random(7);
  std::vector<std::uint64_t> next(20, 1);
  constexpr std::size_t kWorkers = 64 * 1024;  // their own records
  const Peak peak;
  for (int i = 0; i < 3'000; ++i) {
    const std::size_t worker = random.below(next.size());
    events::EventBatch batch;
    batch.stream = {{events::WorkerId(worker), 0}, 1};
    batch.first = next[worker];
    batch.events = events;
    next[worker] += events.size() + random.below(2);
    receiver.on_batch(batch);
    if (i % 100 == 0) receiver.mend();
    receiver.check_invariants();
    ASSERT_LE(receiver.waiting_bytes(), kLimit);
    ASSERT_LE(peak.bytes(), kLimit + kWorkers);
  }
  EXPECT_GT(receiver.counters().resyncs, 0u);
  EXPECT_GT(receiver.waiting_bytes(), kLimit / 2);
  EXPECT_GE(listener.resets, receiver.counters().resyncs);
}

// A length is not believed before the bytes are there, and not above the limit.
TEST(FeedMemoryTest, SparseFilesTakeNoMemory) {
  const ScratchFolder folder;
  const std::string path = folder.file("sparse");
  constexpr std::uint64_t kHole = std::uint64_t{3} << 30;
  const auto claim = [&](std::string head, std::uint32_t length) {
    for (int i = 0; i < 4; ++i) head.push_back(static_cast<char>(length >> (8 * i)));
    std::ofstream(path, std::ios::binary | std::ios::trunc) << head;
    std::filesystem::resize_file(path, head.size() + kHole);
  };
  {
    claim(std::string("\3\0\0\0\2\0\0\0kv\10\0\0\0\0\0\0\0\0\0\0\1", 22), 0x7FFF'FFFF);
    const Peak peak;
    auto source = RecordingSource::create({.path = path, .max_message_bytes = kMiB}).value();
    // A file of holes is long to search: the head alone is looked at here.
    std::filesystem::resize_file(path, 26 + 4 * kMiB);
    auto shorter = RecordingSource::create({.path = path, .max_message_bytes = kMiB}).value();
    EXPECT_EQ(shorter->receive({}).error().code(), ErrorCode::kNotFound);
    EXPECT_EQ(shorter->damaged(), 1u);
    EXPECT_LE(peak.bytes(), kMiB);
  }
  claim(std::string("ASHLFEED\1\0\0\0\0\0\0\0", 16), 0x3FFF'FFFF);
  const Peak peak;
  auto source = FileSource::create({.path = path, .max_batch_bytes = kMiB}).value();
  struct Nobody final : BatchConsumer {
    void on_batch(const events::EventBatch&) override {}
  } nobody;
  EXPECT_EQ(source->poll(nobody, {}).value(), 0u);
  EXPECT_LE(peak.bytes(), kMiB);
}

// What the index holds is not kept a second time. Names that an engine chose take a table of 16 bytes each.
TEST(FeedMemoryTest, AFeederKeepsNothingThatTheIndexTells) {
  static constexpr std::size_t kBlocks = 200'000;
  const auto kept_bytes = [](bool own_names) {
    index::FlashIndex index;
    index::SinkOf<index::FlashIndex> sink(index);
    auto feeder = std::make_unique<IndexFeeder>(sink, events::WorkerId(7));
    Random random(3);
    std::vector<KvEvent> batch;
    std::optional<tokens::SequenceHash> last;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      KvEvent event;
      if (i % 64 == 0) last.reset();
      event.hash = last ? last->child(random.next()).value() : tokens::SequenceHash::root(random.next());
      event.set_parent(last);
      event.set_local(tokens::LocalHash(random.next()));
      if (own_names) event.set_name(events::BlockName(random.next()));
      last = event.hash;
      batch.push_back(event);
      if (batch.size() < 100) continue;
      feeder->apply(0, batch);
      batch.clear();
    }
    EXPECT_EQ(feeder->kept(), 0u);
    EXPECT_EQ(index.sizes().blocks, kBlocks);
    const std::size_t before = g_live_bytes.load();
    feeder.reset();
    return before - g_live_bytes.load();
  };
  EXPECT_LT(kept_bytes(false), kBlocks / 2) << "less than half a byte per block";
  const std::size_t with_names = kept_bytes(true);
  if (!ashlar::testing::kSanitized) {  // whose own operator new[] is not counted
    EXPECT_GE(with_names, kBlocks * 16);
  }
  EXPECT_LT(with_names, kBlocks * 48);
}

// One engine that stores chains of 64 blocks, each event with 16 of them.
class StoringEngine {
 public:
  static constexpr std::uint64_t kBlocks = 200'000;

  void store_all(EngineIngest& ingest) {
    for (std::uint64_t first = 0; first < kBlocks; first += kRun) {
      BatchBuilder builder;
      builder.stored(first % 64 == 0 ? std::nullopt : std::optional(events::BlockName(first)), names(first),
                     tokens_, kSize);
      apply(ingest, builder.batch());
    }
  }
  void remove_all(EngineIngest& ingest) {
    for (std::uint64_t first = 0; first < kBlocks; first += kRun) {
      BatchBuilder builder;
      builder.removed(names(first));
      apply(ingest, builder.batch());
    }
  }

 private:
  static constexpr std::uint64_t kRun = 16;
  static constexpr std::uint32_t kSize = 4;

  static std::vector<events::BlockName> names(std::uint64_t first) {
    std::vector<events::BlockName> out;
    for (std::uint64_t i = 1; i <= kRun; ++i) out.emplace_back(first + i);
    return out;
  }
  void apply(EngineIngest& ingest, const EngineBatch& batch) {
    out_.clear();
    ingest.apply(batch, out_);
  }

  const std::vector<tokens::Token> tokens_ = std::vector<tokens::Token>(kRun * kSize, tokens::Token(7));
  std::vector<KvEvent> out_ = std::vector<KvEvent>(4 * kRun);
};

TEST(FeedMemoryTest, WhatIsExpectedIsTakenAtCreationAndGivenBack) {
  StoringEngine engine;
  EngineIngestOptions options;
  options.expected_blocks = StoringEngine::kBlocks;
  const std::size_t before = g_live_bytes.load();
  EngineIngest ingest = EngineIngest::create(options).value();
  const std::size_t taken = g_live_bytes.load() - before;
  EXPECT_GE(taken, StoringEngine::kBlocks * 80) << "a record and a place for each";
  engine.store_all(ingest);
  ASSERT_EQ(ingest.present(), StoringEngine::kBlocks);
  const std::size_t used = g_live_bytes.load() - before;
  // Beyond what is expected, each chain has a sequence.
  EXPECT_LT(used, taken + StoringEngine::kBlocks * 8);
  engine.remove_all(ingest);
  ASSERT_EQ(ingest.present(), 0u);
  EXPECT_LT(g_live_bytes.load() - before, kSlack);
}

TEST(FeedMemoryTest, ALoadedStateFindsWhatWasExpected) {
  StoringEngine engine;
  EngineIngest first = EngineIngest::create({}).value();
  engine.store_all(first);
  const std::vector<std::byte> state = first.save().value();
  std::vector<KvEvent> out;
  out.reserve(StoringEngine::kBlocks);
  EngineIngestOptions options;
  options.expected_blocks = 2 * StoringEngine::kBlocks;
  const std::size_t before = g_live_bytes.load();
  EngineIngest second = EngineIngest::create(options).value();
  const std::size_t taken = g_live_bytes.load() - before;
  ASSERT_TRUE(second.load(state, out));
  const std::size_t used = g_live_bytes.load() - before;
  EXPECT_GE(used, taken - kSlack);
  EXPECT_LT(used, taken + StoringEngine::kBlocks * 8)
      << "what was taken at creation is used, not kept beside";
}

}  // namespace
}  // namespace ashlar::feed
