#include "ashlar/events/rolling_events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ashlar/tokens/hash_scheme.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::events {
namespace {

using tokens::Token;

std::vector<Token> prompt(std::uint32_t count) {
  std::vector<Token> out;
  for (std::uint32_t i = 0; i < count; ++i) out.emplace_back(i * 977);
  return out;
}

std::string json(const RollingEvent& event) {
  std::string out;
  append_rolling_event(event, out);
  return out;
}

TEST(RollingEvents, HashesFollowTheRuleForEverySeed) {
  const std::vector<Token> tokens = prompt(35);
  for (const std::uint64_t seed : {std::uint64_t{1337}, std::uint64_t{0}, std::uint64_t{1} << 40}) {
    std::vector<std::uint64_t> want;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t local = XXH3_64bits_withSeed(tokens.data() + 8 * i, 32, seed);
      const std::uint64_t pair[2] = {i == 0 ? 0 : want.back(), local};
      want.push_back(i == 0 ? local : XXH3_64bits_withSeed(pair, 16, seed));
    }
    EXPECT_EQ(rolling_hashes(tokens, 8, seed).value(), want);
    EXPECT_EQ(rolling_hashes(std::span(tokens).subspan(16), 8, seed, want[1]).value(),
              (std::vector<std::uint64_t>{want[2], want[3]}));
  }
  EXPECT_FALSE(rolling_hashes(tokens, 0));
  EXPECT_FALSE(rolling_hashes(tokens, 0, 1));
}

constexpr const char* kStored =
    "{\"event_id\":42,\"timestamp\":1739145600000,\"event_type\":\"stored\",\"model_name\":\"m\",\"block_"
    "size\":2,"
    "\"additional_salt\":null,\"lora_name\":\"l\",\"tenant_id\":\"default\",\"backend_id\":\"worker-0\","
    "\"medium\":\"gpu\","
    "\"dp_rank\":0,\"seq_hashes\":[18446744073709551615,2],\"base_block_idx\":5,\"parent_hash\":9,\"token_"
    "ids\":[1,2,3,4]}";

TEST(RollingEvents, StoredRemovedAndClearedAreReadAndWritten) {
  RollingEvent event;
  ASSERT_TRUE(decode_rolling_event(kStored, event));
  EXPECT_EQ(event.event_id, 42u);
  EXPECT_EQ(event.timestamp_ms, 1739145600000u);
  EXPECT_EQ(event.source.lora_name, "l");
  EXPECT_FALSE(event.source.additional_salt);
  EXPECT_EQ(event.hashes, (std::vector<std::uint64_t>{UINT64_MAX, 2}));
  EXPECT_EQ(event.first_position, 5u);
  EXPECT_EQ(event.parent, 9u);
  EXPECT_EQ(event.token_ids->size(), 4u);
  EXPECT_EQ(json(event), kStored);
  event.kind = KvEventKind::kRemoved;
  event.parent.reset();
  event.token_ids.reset();
  RollingEvent again;
  ASSERT_TRUE(decode_rolling_event(json(event), again));
  EXPECT_EQ(again, event);
  event.kind = KvEventKind::kCleared;
  event.hashes.clear();
  event.first_position.reset();
  ASSERT_TRUE(decode_rolling_event(json(event), again));
  EXPECT_EQ(again, event);
  EXPECT_EQ(json(event).find("seq_hashes"), std::string::npos);
}

TEST(RollingEvents, FaultsAreNamed) {
  RollingEvent event;
  const auto failure = [&event](std::string_view text) {
    const Result<void> decoded = decode_rolling_event(text, event);
    return decoded ? std::string() : decoded.error().to_string();
  };
  EXPECT_EQ(failure("[]"), "corruption: KV event: an event must be an object, at byte 0 of 2");
  EXPECT_EQ(failure("{\"event_type\":\"moved\"}"),
            "corruption: KV event: event_type must be stored, removed or cleared, at byte 21 of 22");
  EXPECT_EQ(failure("{\"event_id\":1}"),
            "corruption: KV event: an event without event_type, at byte 0 of 14");
  EXPECT_EQ(failure("{\"token_ids\":[4294967296]}"),
            "corruption: KV event: a token id must be an integer of 32 bits, at byte 14 of 26");
  const std::string whole = kStored;
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(failure(whole.substr(0, size)), "") << size;
}

class RollingEventsOfABatch : public ::testing::Test {
 protected:
  RollingEventsOfABatch() {
    hashes = rolling_hashes(prompt(32), 8).value();
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      KvEvent event;
      event.hash = tokens::SequenceHash::make(i, hashes[i], i == 0 ? 0 : hashes[i - 1]).value();
      event.has_parent = i > 0;
      if (i > 0) event.parent_bits = events.back().hash;
      events.push_back(event);
    }
  }
  EventBatch batch() const {
    EventBatch out;
    out.stream.worker = {WorkerId(3), 1};
    out.keys.block_size = 8;
    out.published_ns = 5'000'000;
    out.events = events;
    return out;
  }

  std::vector<std::uint64_t> hashes;
  std::vector<KvEvent> events;
  RollingIds ids = {7, 0, 0, 0};
  std::vector<RollingEvent> made;
};

TEST_F(RollingEventsOfABatch, ARunIsOneEventAndComesBack) {
  ASSERT_TRUE(to_rolling_events(batch(), {.backend_id = "b"}, ids, made));
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].event_id, 7u);
  EXPECT_EQ(ids, (RollingIds{8, 0, 0, 0}));
  EXPECT_EQ(made[0].hashes, hashes);
  EXPECT_EQ(made[0].medium, "gpu");
  EXPECT_EQ(made[0].rank, 1u);
  EXPECT_EQ(made[0].timestamp_ms, 5u);
  EXPECT_EQ(made[0].first_position, 0u);
  RollingEvent read;
  ASSERT_TRUE(decode_rolling_event(json(made[0]), read));
  EXPECT_EQ(read, made[0]);
  std::vector<KvEvent> again;
  ASSERT_TRUE(append_kv_events(read, again));
  EXPECT_EQ(again, events);
}

TEST_F(RollingEventsOfABatch, TokensGiveLocalHashesWhereTheRuleIsOurs) {
  ASSERT_TRUE(to_rolling_events(batch(), {}, ids, made));
  made[0].token_ids = prompt(32);
  std::vector<KvEvent> again;
  ASSERT_TRUE(append_kv_events(made[0], again));
  EXPECT_EQ(again[1].local(), tokens::LocalHash(XXH3_64bits_withSeed(prompt(32).data() + 8, 32, 1337)));
  made[0].hashes[3] ^= 1;
  again.clear();
  ASSERT_TRUE(append_kv_events(made[0], again));
  EXPECT_FALSE(again[1].local());
  made[0].token_ids->pop_back();
  EXPECT_EQ(append_kv_events(made[0], again).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(RollingEventsOfABatch, EachMediumHasNumbersOfItsOwn) {
  events[2].tier = kTierId<G2>;
  events[3].kind = KvEventKind::kCleared;
  events[3].tier = kAllTiers;
  ASSERT_TRUE(to_rolling_events(batch(), {}, ids, made));
  ASSERT_EQ(made.size(), 7u);  // two runs, and the end of five media
  EXPECT_EQ(made[1].medium, "cpu");
  EXPECT_EQ(made[1].parent, hashes[1]);
  EXPECT_EQ(made[1].event_id, 0u);
  EXPECT_EQ(ids, (RollingIds{9, 2, 1, 1, 1}));
}

TEST_F(RollingEventsOfABatch, OtherNamesAreRefused) {
  EventBatch other = batch();
  other.keys.scheme = tokens::HashScheme::xxh64_int64().fingerprint();
  EXPECT_EQ(to_rolling_events(other, {}, ids, made).error().code(), ErrorCode::kUnsupported);
  events[1].has_name = true;
  EXPECT_EQ(to_rolling_events(batch(), {}, ids, made).error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(made.empty());
  EXPECT_EQ(ids, (RollingIds{7, 0, 0, 0}));
}

TEST(RollingEvents, WhatCannotBePlacedIsRefused) {
  std::vector<KvEvent> out;
  RollingEvent event;
  ASSERT_TRUE(decode_rolling_event(kStored, event));
  event.medium = "tape";
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kUnsupported);
  event.medium = "gpu";
  event.first_position.reset();
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kUnsupported);
  event.first_position = 0;
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kInvalidArgument);
  event.first_position = tokens::SequenceHash::kMaxPosition;
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace ashlar::events
