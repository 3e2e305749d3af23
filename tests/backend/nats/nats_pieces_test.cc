// What needs no server: names, pieces, order.
#include <algorithm>
#include <random>

#include "ashlar/events/event_codec.h"
#include "backend/nats/batch_pieces.h"
#include "backend/nats/nats_fixture.h"
#include "backend/nats/replay_order.h"
#include "backend/nats/subjects.h"

namespace ashlar::backend::nats {
namespace {

TEST(NatsSubjects, SayWorkerRankAndTier) {
  std::string subject;
  batch_subject("ashlar.kv", batch_of(0, 3).view(), subject);
  EXPECT_EQ(subject, "ashlar.kv.7.1.g1");
  batch_subject("a", batch_of(0, 3, kStream, 2).view(), subject);
  EXPECT_EQ(subject, "a.7.1.mixed");
  batch_subject("a", snapshot_of(0, 3).view(), subject);
  EXPECT_EQ(subject, "a.7.1.snapshot");
  events::OwnedBatch cleared = batch_of(0, 1);
  cleared.events[0].tier = events::kAllTiers;
  batch_subject("a", cleared.view(), subject);
  EXPECT_EQ(subject, "a.7.1.mixed");
  EXPECT_EQ(batch_filter("a.b", std::nullopt), "a.b.*.*.*");
  EXPECT_EQ(batch_filter("a.b", kStream.worker), "a.b.7.1.*");
  EXPECT_EQ(request_subject("a.b", kStream.worker), "a.b.snapshot.7.1.get");
}

TEST(NatsSubjects, IdsTellBatchesApart) {
  std::string a;
  std::string b;
  batch_id(batch_of(10, 3).view(), a);
  EXPECT_EQ(a, "7.1.3.10-13");
  batch_id(snapshot_of(10, 3).view(), b);
  EXPECT_EQ(b, "7.1.3.10.s42.0.1");
}

TEST(NatsPieces, AreSmallEnoughAndHaveEverything) {
  for (const std::size_t limit : {300u, 1000u, 5000u, 1'000'000u}) {
    for (const bool is_snapshot : {false, true}) {
      events::OwnedBatch batch = is_snapshot ? snapshot_of(77, 400) : batch_of(77, 400, kStream, 2);
      for (std::size_t i = 0; i < batch.events.size(); ++i)
        batch.events[i].location = static_cast<std::uint16_t>(i / 100);
      batch.locations = {
          {.number = 1, .name = "one"}, {.number = 2, .name = "two"}, {.number = 3, .name = "three"}};
      std::vector<std::byte> buffer;
      std::vector<events::OwnedBatch> pieces;
      const Result<void> cut = for_each_piece(
          batch.view(), limit, buffer,
          [&](const events::EventBatch& piece, std::span<const std::byte> bytes) -> Result<void> {
            EXPECT_LE(bytes.size(), limit);
            events::OwnedBatch read;
            EXPECT_TRUE(events::decode_batch(bytes, read));
            EXPECT_EQ(read.head.first, piece.first);
            pieces.push_back(read);
            return {};
          });
      ASSERT_TRUE(cut) << cut.error();
      EXPECT_EQ(events_of(pieces), batch.events);
      for (std::uint32_t i = 0; i < pieces.size(); ++i) {
        EXPECT_EQ(pieces[i].head.part, is_snapshot ? i : 0);
        EXPECT_EQ(pieces[i].head.parts, is_snapshot ? pieces.size() : 1);
        for (const events::KvEvent& event : pieces[i].events)
          EXPECT_EQ(event.location != 0, std::ranges::any_of(pieces[i].locations, [&](const auto& location) {
                      return location.number == event.location;
                    }));
      }
    }
  }
}

// Parts that were cut by somebody who did not know the limit.
TEST(NatsPieces, PartsOfASnapshotAreCutAlike) {
  const events::OwnedBatch whole = snapshot_of(77, 250);
  for (const std::size_t limit : {300u, 1000u, 3000u, 1'000'000u}) {
    SnapshotCut cut;
    std::vector<std::byte> buffer;
    std::vector<events::OwnedBatch> pieces;
    for (std::uint32_t part = 0; part < 3; ++part) {
      events::EventBatch batch = whole.view();
      batch.part = part;
      batch.parts = 3;
      batch.events = batch.events.subspan(part * 100, part == 2 ? 50 : 100);
      const Result<void> taken = for_each_piece(
          batch, limit, buffer,
          [&](const events::EventBatch&, std::span<const std::byte> bytes) -> Result<void> {
            EXPECT_LE(bytes.size(), limit);
            EXPECT_TRUE(events::decode_batch(bytes, pieces.emplace_back()));
            return {};
          },
          &cut);
      ASSERT_TRUE(taken) << taken.error();
    }
    EXPECT_EQ(events_of(pieces), whole.events);
    EXPECT_EQ(pieces.size(), 3 * cut.pieces);
    for (std::uint32_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(pieces[i].head.part, i);
      EXPECT_EQ(pieces[i].head.parts, pieces.size());
    }
  }
}

TEST(NatsPieces, APartThatNeedsMorePiecesMakesTheNextSnapshotFiner) {
  const events::OwnedBatch whole = snapshot_of(77, 101);
  SnapshotCut cut;
  std::vector<std::byte> buffer;
  std::vector<events::OwnedBatch> pieces;
  const auto offer = [&](std::uint32_t part) {
    events::EventBatch batch = whole.view();
    batch.part = part;
    batch.parts = 2;
    batch.events = part == 0 ? batch.events.first(1) : batch.events.subspan(1);
    return for_each_piece(
        batch, 1000, buffer,
        [&](const events::EventBatch&, std::span<const std::byte> bytes) -> Result<void> {
          EXPECT_TRUE(events::decode_batch(bytes, pieces.emplace_back()));
          return {};
        },
        &cut);
  };
  ASSERT_TRUE(offer(0));
  const Result<void> refused = offer(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  pieces.clear();
  ASSERT_TRUE(offer(0));
  ASSERT_TRUE(offer(1));
  EXPECT_EQ(events_of(pieces), whole.events);
  EXPECT_EQ(pieces.back().head.part + 1, pieces.back().head.parts);
  EXPECT_EQ(pieces.back().head.parts, pieces.size());
}

TEST(NatsPieces, ASnapshotIsNeverInMorePartsThanListenersTake) {
  std::vector<std::byte> buffer;
  events::EventBatch batch;
  const events::OwnedBatch whole = snapshot_of(77, 100);
  batch = whole.view();
  batch.parts = events::kMaxSnapshotParts;
  const auto take = [](const events::EventBatch&, std::span<const std::byte>) -> Result<void> { return {}; };
  EXPECT_TRUE(for_each_piece(batch, 100'000, buffer, take));
  const Result<void> cut = for_each_piece(batch, 1000, buffer, take);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code(), ErrorCode::kCapacity);
}

TEST(NatsPieces, WhatCannotFitIsSaid) {
  std::vector<std::byte> buffer;
  const auto nothing = [](const events::EventBatch&, std::span<const std::byte>) -> Result<void> {
    ADD_FAILURE() << "nothing fits";
    return {};
  };
  for (const events::OwnedBatch& batch : {batch_of(0, 5), snapshot_of(0, 5), snapshot_of(0, 0)}) {
    const Result<void> cut = for_each_piece(batch.view(), 20, buffer, nothing);
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().code(), ErrorCode::kCapacity) << cut.error();
  }
}

// Batches of a stream that were stored out of order and twice, with a hole and a snapshot after it.
TEST(NatsReplayOrder, PutsBatchesInOrder) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<events::OwnedBatch> stored;
    for (std::uint64_t i = 0; i < 200; i += 10)
      for (unsigned times = 1 + random() % 2; times > 0; --times) stored.push_back(batch_of(i, 10));
    std::ranges::shuffle(stored, random);
    const std::uint64_t from = random() % 200;
    Collector got;
    ReplayOrder order(kStream, from, got);
    for (const events::OwnedBatch& batch : stored) order.add(batch);
    EXPECT_TRUE(order.has_recovered());
    std::uint64_t next = from;
    for (const events::OwnedBatch& batch : got.batches) {
      EXPECT_LE(batch.head.first, next);
      EXPECT_GT(batch.view().end(), next);
      next = batch.view().end();
    }
    EXPECT_EQ(next, 200u);
  }
}

TEST(NatsReplayOrder, AWholeSnapshotBridgesAHole) {
  Collector got;
  ReplayOrder order(kStream, 5, got);
  order.add(batch_of(20, 10));
  EXPECT_FALSE(order.has_recovered());
  // One that was not finished.
  events::OwnedBatch half = snapshot_of(22, 4, 1);
  half.head.parts = 2;
  order.add(half);
  events::OwnedBatch first = snapshot_of(25, 4, 2);
  first.head.parts = 2;
  events::OwnedBatch second = first;
  second.head.part = 1;
  order.add(second);
  EXPECT_FALSE(order.has_recovered());
  order.add(first);
  order.add(batch_of(30, 5));
  EXPECT_TRUE(order.has_recovered());
  ASSERT_EQ(got.batches.size(), 4u);
  EXPECT_EQ(got.batches[0].head.part, 0u);
  EXPECT_EQ(got.batches[1].head.part, 1u);
  EXPECT_EQ(got.batches[2].head.first, 20u);
  EXPECT_EQ(got.batches[3].head.first, 30u);
}

TEST(NatsReplayOrder, AHoleWithoutASnapshotIsNoRecovery) {
  Collector got;
  ReplayOrder order(kStream, 5, got);
  for (std::uint64_t i = 0; i < 2 * ReplayOrder::kHeld; ++i) order.add(batch_of(10 + i, 1));
  EXPECT_FALSE(order.has_recovered());
  EXPECT_TRUE(got.batches.empty());
}

}  // namespace
}  // namespace ashlar::backend::nats
