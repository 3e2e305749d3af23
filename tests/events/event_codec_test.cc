// Batches as bytes: golden ones, random ones there and back, damaged ones.
#include "ashlar/events/event_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "events/event_samples.h"

namespace ashlar::events {
namespace {

using tokens::SequenceHash;

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[std::to_integer<unsigned>(byte) >> 4];
    out += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return out;
}

// What a reader sees: numbers follow from the batch.
OwnedBatch as_read(OwnedBatch batch) {
  std::uint64_t number = batch.head.first;
  for (KvEvent& event : batch.events) event.sequence = batch.head.kind == BatchKind::kEvents ? number++ : 0;
  return batch;
}

void expect_equal(const OwnedBatch& got, const OwnedBatch& want) {
  EXPECT_EQ(got.head.stream, want.head.stream);
  EXPECT_EQ(got.head.keys, want.head.keys);
  EXPECT_EQ(got.head.kind, want.head.kind);
  EXPECT_EQ(got.head.first, want.head.first);
  EXPECT_EQ(got.head.part, want.head.part);
  EXPECT_EQ(got.head.parts, want.head.parts);
  EXPECT_EQ(got.head.published_ns, want.head.published_ns);
  EXPECT_EQ(got.locations, want.locations);
  EXPECT_TRUE(got.events == want.events);
}

TEST(EventCodec, AChainOfTwoBlocksHasTheseBytes) {
  OwnedBatch batch;
  batch.head.stream = {{WorkerId(7), 2}, 5};
  batch.head.keys = {.scheme = 0x1122334455667788,
                     .name_space = tokens::NamespaceFingerprint::from_bits(1, 2),
                     .block_size = 16};
  batch.head.first = 9;
  batch.head.published_ns = 3;
  const SequenceHash root = SequenceHash::root(0xABCD);
  const SequenceHash child = root.child(0xEF01).value();
  batch.events = {stored(root, std::nullopt, root, 4), stored(child, root, root, 5)};
  std::vector<std::byte> bytes;
  encode_batch(batch.view(), bytes);
  ASSERT_EQ(bytes.size(), 96u + 16 + 16 + 2 * (16 + 4 + 8));
  EXPECT_EQ(hex(std::span(bytes).first(8)), "414b455601000000");
  EXPECT_EQ(hex(std::span(bytes).subspan(16, 80)),
            "0700000000000000"  // worker
            "0200000010000000"  // rank, block size
            "0500000000000000"  // incarnation
            "0900000000000000"  // first
            "0300000000000000"  // published
            "8877665544332211"  // scheme
            "0100000000000000"
            "0200000000000000"    // namespace
            "0000000001000000"    // part, parts
            "0200000000000000");  // events, locations
  EXPECT_EQ(hex(std::span(bytes).subspan(96, 16)),
            "00002a00"
            "02000000"
            "00000000"
            "00100000");
  OwnedBatch read;
  ASSERT_TRUE(decode_batch(bytes, read));
  expect_equal(read, as_read(batch));
}

TEST(EventCodec, ARunOfManyBlocksTakesAFewBytesEach) {
  OwnedBatch batch;
  for (const KvEvent& event : chain(1, 100)) batch.events.push_back(event);
  std::vector<std::byte> bytes;
  encode_batch(batch.view(), bytes);
  EXPECT_LE(bytes.size(), 96u + 48 + 100 * 28);
  EXPECT_EQ(run_length(batch.events), 100u);
  // The largest event there is.
  KvEvent large = batch.events[1];
  large.has_name = true;
  large.metadata = 1;
  batch.events = {large};
  encode_batch(batch.view(), bytes);
  EXPECT_LE(bytes.size() - 96, 100u);
}

TEST(EventCodec, NamesOfParentsStayWithTheirListener) {
  OwnedBatch batch;
  batch.events = chain(1, 5);
  for (KvEvent& event : batch.events) event.block = event.bytes = 0;
  std::vector<std::byte> expected;
  encode_batch(batch.view(), expected);
  for (KvEvent& event : batch.events)
    event.set_parent_name(event.has_parent ? std::optional(BlockName(event.hash.chain() * 7)) : std::nullopt);
  EXPECT_EQ(run_length(batch.events), 5u);
  std::vector<std::byte> bytes;
  encode_batch(batch.view(), bytes);
  EXPECT_EQ(bytes, expected);
}

TEST(EventCodec, RemovalsAlongAChainTakeAFewBytesEach) {
  OwnedBatch batch;
  batch.events = chain(1, 100);
  for (KvEvent& event : batch.events) event.kind = KvEventKind::kRemoved;
  std::vector<std::byte> bytes;
  OwnedBatch read;
  for (const bool leaf_first : {false, true}) {
    if (leaf_first) std::ranges::reverse(batch.events);
    encode_batch(batch.view(), bytes);
    EXPECT_LE(bytes.size(), 96u + 48 + 100 * 28) << leaf_first;
    ASSERT_TRUE(decode_batch(bytes, read));
    ASSERT_NO_FATAL_FAILURE(expect_equal(read, as_read(batch)));
  }
  // To formats that only name what is gone, removals of several chains are one run.
  for (const KvEvent& event : chain(2, 3))
    batch.events.push_back(event), batch.events.back().kind = KvEventKind::kRemoved;
  EXPECT_EQ(run_length(batch.events), 103u);
  encode_batch(batch.view(), bytes);
  ASSERT_TRUE(decode_batch(bytes, read));
  ASSERT_NO_FATAL_FAILURE(expect_equal(read, as_read(batch)));
}

TEST(EventCodec, ARunGoesOneWay) {
  std::vector<std::byte> bytes;
  OwnedBatch read;
  for (const bool stores : {false, true}) {
    OwnedBatch batch;
    batch.events = chain(1, 3);
    for (KvEvent& event : batch.events)
      if (!stores) event.kind = KvEventKind::kRemoved;
    encode_batch(batch.view(), bytes);
    bytes[96 + 2] |= std::byte{0xC0};
    seal(bytes);
    const Result<void> decoded = decode_batch(bytes, read);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), ErrorCode::kCorruption);
    EXPECT_NE(decoded.error().message().find("from parents to children"), std::string::npos);
  }
}

TEST(EventCodec, WhatIsWrittenIsReadAgain) {
  Random random(3);
  const testing::TimeBox box(0.5);
  std::vector<std::byte> bytes;
  OwnedBatch read;
  do {
    const OwnedBatch batch = random_batch(random);
    encode_batch(batch.view(), bytes);
    ASSERT_TRUE(decode_batch(bytes, read));
    ASSERT_NO_FATAL_FAILURE(expect_equal(read, as_read(batch)));
  } while (!box.over());
}

TEST(EventCodec, EveryFlippedBitAndEveryCutIsNoticed) {
  Random random(4);
  const OwnedBatch batch = random_batch(random);
  std::vector<std::byte> bytes;
  encode_batch(batch.view(), bytes);
  OwnedBatch read;
  for (std::size_t cut = 0; cut < bytes.size(); ++cut)
    ASSERT_FALSE(decode_batch(std::span(bytes).first(cut), read)) << cut;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    const Result<void> decoded = decode_batch(bytes, read);
    ASSERT_FALSE(decoded) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

TEST(EventCodec, AnotherVersionIsRefusedByName) {
  std::vector<std::byte> bytes;
  encode_batch({}, bytes);
  bytes[4] = std::byte{2};
  OwnedBatch read;
  const Result<void> decoded = decode_batch(bytes, read);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(decoded.error().message().find("version 2"), std::string::npos);
}

// What a broken or hostile writer may send: the checksum is right, the rest is not.
TEST(EventCodec, NothingThatIsReadCanDoHarm) {
  Random random(5);
  const testing::TimeBox box(1);
  OwnedBatch read;
  std::vector<std::byte> bytes;
  std::size_t tried = 0;
  std::size_t accepted = 0;
  do {
    encode_batch(random_batch(random).view(), bytes);
    const std::size_t changes = 1 + random.below(8);
    for (std::size_t i = 0; i < changes; ++i)
      bytes[16 + random.below(bytes.size() - 16)] = static_cast<std::byte>(random.next());
    if (random.below(4) == 0) bytes.resize(16 + random.below(bytes.size() - 15));
    if (bytes.size() > 16) seal(bytes);
    accepted += decode_batch(bytes, read).has_value() ? 1u : 0u;
    ASSERT_LE(read.events.capacity(), bytes.size() + 4096);
  } while (++tried < 2000 || !box.over());
  EXPECT_GT(accepted, 0u);
}

}  // namespace
}  // namespace ashlar::events
