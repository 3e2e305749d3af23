#include "ashlar/events/router_event_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ashlar/tokens/sequence_hasher.h"

namespace ashlar::events {
namespace {

using tokens::LocalHash;
using tokens::SequenceHash;
using tokens::Token;

constexpr const char* kStoredJson =
    "{\"worker_id\":7,\"storage_tier\":\"host_pinned\",\"residency_domain\":\"worker\",\"event\":{\"event_"
    "id\":3,\"data\":"
    "{\"stored\":{\"parent_hash\":18446744073709551615,\"start_position\":2,\"blocks\":[{\"block_hash\":1,"
    "\"tokens_hash\":2,"
    "\"mm_extra_info\":null},{\"block_hash\":18446744073709551614,\"tokens_hash\":4,\"mm_extra_info\":null}]}"
    "},\"dp_rank\":5}}";

RouterEvent stored_event() {
  return {.worker = {WorkerId(7), 5},
          .tier = kTierId<G2>,
          .event_id = 3,
          .kind = KvEventKind::kStored,
          .parent = BlockName(UINT64_MAX),
          .start_position = 2,
          .blocks = {{LocalHash(2), BlockName(1)}, {LocalHash(4), BlockName(UINT64_MAX - 1)}}};
}

std::string json(const RouterEvent& event) {
  std::string out;
  append_router_event(event, out);
  return out;
}

std::string failure(std::string_view text) {
  RouterEvent event;
  const Result<void> decoded = decode_router_event(text, event);
  if (decoded) return "";
  EXPECT_EQ(event, RouterEvent{});
  return decoded.error().to_string();
}

TEST(RouterEventJson, StoredBlocksAreWrittenAndRead) {
  EXPECT_EQ(json(stored_event()), kStoredJson);
  RouterEvent event;
  ASSERT_TRUE(decode_router_event(kStoredJson, event));
  EXPECT_EQ(event, stored_event());
}

TEST(RouterEventJson, RemovedAndClearedAreWrittenAndRead) {
  const RouterEvent removed{.worker = {WorkerId(1), 0},
                            .tier = kTierId<G3>,
                            .event_id = UINT64_MAX,
                            .kind = KvEventKind::kRemoved,
                            .removed = {BlockName(1), BlockName(2)}};
  EXPECT_EQ(
      json(removed),
      "{\"worker_id\":1,\"storage_tier\":\"disk\",\"residency_domain\":\"worker\",\"event\":{\"event_id\":"
      "18446744073709551615,\"data\":{\"removed\":{\"block_hashes\":[1,2]}},\"dp_rank\":0}}");
  RouterEvent event;
  ASSERT_TRUE(decode_router_event(json(removed), event));
  EXPECT_EQ(event, removed);
  const RouterEvent cleared{.residency_domain = "cache_owner", .kind = KvEventKind::kCleared};
  EXPECT_EQ(json(cleared),
            "{\"worker_id\":0,\"storage_tier\":\"device\",\"residency_domain\":\"cache_owner\",\"event\":{"
            "\"event_id\":0,"
            "\"data\":\"cleared\",\"dp_rank\":0}}");
  ASSERT_TRUE(decode_router_event(json(cleared), event));
  EXPECT_EQ(event, cleared);
}

TEST(RouterEventJson, KeysMayComeInAnyOrderAndUnknownOnesAreSkipped) {
  RouterEvent event;
  const Result<void> decoded = decode_router_event(
      " { \"state_source\": {\"x\": [1, 2]}, \"event\" : {\"dp_rank\":null, \"data\": {\"stored\": "
      "{\"blocks\": [ {\"mm_extra_info\": "
      "{\"mm_objects\": []}, \"tokens_hash\": -1, \"block_hash\": -2} ], \"parent_hash\": null} } }, "
      "\"worker_id\": 9 } ",
      event);
  ASSERT_TRUE(decoded) << decoded.error();
  EXPECT_EQ(event.worker, (Worker{WorkerId(9), 0}));
  EXPECT_EQ(event.tier, kTierId<G1>);
  ASSERT_EQ(event.blocks.size(), 1u);
  EXPECT_EQ(event.blocks[0], (StoredBlock{LocalHash(UINT64_MAX), BlockName(UINT64_MAX - 1)}));
  EXPECT_FALSE(event.start_position);
}

TEST(RouterEventJson, FaultsAreNamed) {
  EXPECT_EQ(failure(""), "corruption: router event: a router event must be an object, at byte 0 of 0");
  EXPECT_EQ(failure("{}"), "corruption: router event: a router event without worker_id, at byte 0 of 2");
  EXPECT_EQ(failure("{\"worker_id\":1}"),
            "corruption: router event: a router event without event, at byte 0 of 15");
  EXPECT_EQ(failure("{\"worker_id\":1.5}"),
            "corruption: router event: worker_id must be an integer of 64 bits, at byte 13 of 17");
  EXPECT_EQ(
      failure("{\"storage_tier\":\"tape\"}"),
      "unsupported: router event: storage tier \"tape\"; known are device, host_pinned, disk, external and "
      "remote");
  EXPECT_EQ(failure("{\"event\":{\"data\":\"other\"}}"),
            "corruption: router event: data must be stored, removed or cleared, at byte 17 of 26");
  EXPECT_EQ(failure("{\"event\":{\"data\":{\"stored\":{\"blocks\":[{\"block_hash\":1}]}}}}")
                .find("corruption: router event: a block without block_hash and tokens_hash"),
            0u);
  const std::string whole = kStoredJson;
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(failure(whole.substr(0, size)), "") << size;
  EXPECT_NE(failure(whole + "x"), "");
}

// Five blocks of a sequence as a worker of ours tells them, then what they add up to.
class RouterEventsOfABatch : public ::testing::Test {
 protected:
  RouterEventsOfABatch() {
    std::vector<Token> prompt;
    for (std::uint32_t i = 0; i < 20; ++i) prompt.emplace_back(i);
    std::vector<tokens::BlockHashes> hashes(5);
    EXPECT_TRUE(tokens::SequenceHasher().hash_blocks({}, prompt, 4, hashes));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      KvEvent event;
      event.hash = hashes[i].sequence;
      event.local_bits = hashes[i].local.value();
      event.has_local = true;
      event.has_parent = i > 0;
      if (i > 0) event.parent_bits = hashes[i - 1].sequence;
      event.sequence = i;
      events.push_back(event);
    }
  }
  EventBatch batch() const {
    EventBatch out;
    out.stream.worker = {WorkerId(3), 1};
    out.events = events;
    return out;
  }
  ErrorCode refusal() const {
    std::uint64_t id = 5;
    std::vector<RouterEvent> out;
    const Result<void> made = to_router_events(batch(), id, out);
    EXPECT_TRUE(out.empty());
    EXPECT_EQ(id, 5u);
    return made ? ErrorCode::kInternal : made.error().code();
  }

  std::vector<KvEvent> events;
};

TEST_F(RouterEventsOfABatch, ARunIsOneEventAndComesBack) {
  std::uint64_t id = 10;
  std::vector<RouterEvent> made;
  ASSERT_TRUE(to_router_events(batch(), id, made));
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(id, 11u);
  EXPECT_EQ(made[0].event_id, 10u);
  EXPECT_EQ(made[0].worker, (Worker{WorkerId(3), 1}));
  EXPECT_EQ(made[0].start_position, 0u);
  EXPECT_FALSE(made[0].parent);
  RouterEvent read;
  ASSERT_TRUE(decode_router_event(json(made[0]), read));
  std::vector<KvEvent> again;
  ASSERT_TRUE(append_kv_events(read, again));
  for (KvEvent& event : events) event.sequence = 0;
  EXPECT_EQ(again, events);
}

TEST_F(RouterEventsOfABatch, ARunInTheMiddleNamesItsParent) {
  const SequenceHash parent = events[1].hash;
  events.erase(events.begin(), events.begin() + 2);
  std::uint64_t id = 0;
  std::vector<RouterEvent> made;
  ASSERT_TRUE(to_router_events(batch(), id, made));
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].parent, BlockName(parent.chain()));
  EXPECT_EQ(made[0].start_position, 2u);
  std::vector<KvEvent> again;
  ASSERT_TRUE(append_kv_events(made[0], again));
  ASSERT_EQ(again.size(), 3u);
  EXPECT_EQ(again[0].hash, events[0].hash);
  EXPECT_EQ(again[0].parent()->chain(), parent.chain());
  EXPECT_EQ(again[0].parent()->position(), 1u);
  EXPECT_EQ(again[2].hash, events[2].hash);
  EXPECT_EQ(again[2].parent(), events[2].parent());
}

TEST_F(RouterEventsOfABatch, RemovalsAndClearingsAreToldApart) {
  for (KvEvent& event : events) {
    event.kind = KvEventKind::kRemoved;
    event.has_parent = false;
  }
  events[4].kind = KvEventKind::kCleared;
  events[4].tier = kAllTiers;
  events[3].kind = KvEventKind::kAccess;
  std::uint64_t id = 0;
  std::vector<RouterEvent> made;
  ASSERT_TRUE(to_router_events(batch(), id, made));
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[0].removed.size(), 3u);
  EXPECT_EQ(made[1].kind, KvEventKind::kCleared);
  std::vector<KvEvent> again;
  ASSERT_TRUE(append_kv_events(made[0], again));
  ASSERT_TRUE(append_kv_events(made[1], again));
  ASSERT_EQ(again.size(), 4u);
  EXPECT_EQ(again[2].name(), events[2].name());
  EXPECT_EQ(again[3].tier, kAllTiers);
}

TEST_F(RouterEventsOfABatch, OwnNamesOfParentsAreFoundInTheBatch) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    events[i].has_name = true;
    events[i].name_bits = 100 + i;
  }
  events[2].tier = kTierId<G2>;  // a run of its own
  std::uint64_t id = 0;
  std::vector<RouterEvent> made;
  ASSERT_TRUE(to_router_events(batch(), id, made));
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[1].parent, BlockName(101));
  EXPECT_EQ(made[2].parent, BlockName(102));
  events.erase(events.begin());
  EXPECT_EQ(refusal(), ErrorCode::kUnsupported);
}

TEST_F(RouterEventsOfABatch, EveryTierIsReadAsItWasWritten) {
  for (std::uint8_t tier = 0; tier < kStorageTiers; ++tier) {
    for (KvEvent& event : events) event.tier = TierId(tier);
    std::vector<RouterEvent> routed;
    std::uint64_t next = 0;
    EventBatch batch;
    batch.events = events;
    ASSERT_TRUE(to_router_events(batch, next, routed));
    std::string json;
    append_router_event(routed.front(), json);
    RouterEvent read;
    ASSERT_TRUE(decode_router_event(json, read)) << json;
    EXPECT_EQ(read.tier, TierId(tier));
  }
}

TEST_F(RouterEventsOfABatch, WhatRoutersHaveNoFormForIsRefused) {
  const std::vector<KvEvent> good = events;
  events[1].has_local = false;
  EXPECT_EQ(refusal(), ErrorCode::kUnsupported);
  events = good;
  events[4].tier = TierId(5);
  EXPECT_EQ(refusal(), ErrorCode::kUnsupported);
  events = good;
  events[4].kind = KvEventKind::kResync;
  EXPECT_EQ(refusal(), ErrorCode::kUnsupported);
  events = good;
  events[4].kind = KvEventKind::kCleared;
  EXPECT_EQ(refusal(), ErrorCode::kUnsupported);
}

TEST(RouterEventJson, PositionsMustAgreeWithParents) {
  std::vector<KvEvent> out;
  RouterEvent event = stored_event();
  event.start_position = 0;
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kInvalidArgument);
  event.start_position.reset();
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kUnsupported);
  event.start_position = UINT32_MAX;
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kInvalidArgument);
  event.start_position = SequenceHash::kMaxPosition;
  EXPECT_EQ(append_kv_events(event, out).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace ashlar::events
