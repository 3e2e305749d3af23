#include "tiers/remote/remote_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ashlar/base/random.h"
#include "support/rounds.h"

namespace ashlar::tiers {
namespace {

using tokens::SequenceHash;

SequenceHash any_hash(Random& random) {
  return SequenceHash::from_bits(random.next(), random.next());
}

TierRecord any_record(Random& random) {
  TierRecord record;
  record.hash = any_hash(random);
  record.parent = any_hash(random);
  record.salt = tokens::SaltFingerprint::from_bits(random.next(), random.next());
  record.prefix = tokens::PrefixDigest::from_bits(random.next(), random.next());
  if (random.below(2) == 0) record.root = any_hash(random);
  if (random.below(2) == 0) record.local = tokens::LocalHash(random.next());
  record.group = static_cast<std::uint16_t>(random.next());
  record.metadata = static_cast<std::uint32_t>(random.next());
  record.retention.priority = static_cast<std::uint8_t>(random.below(101));
  record.checksum = transfer::BlockChecksum(random.next());
  return record;
}

void expect_equal(const TierRecord& a, const TierRecord& b) {
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.parent, b.parent);
  EXPECT_EQ(a.salt, b.salt);
  EXPECT_EQ(a.prefix, b.prefix);
  EXPECT_EQ(a.root, b.root);
  EXPECT_EQ(a.local, b.local);
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.metadata, b.metadata);
  EXPECT_EQ(a.retention, b.retention);
  EXPECT_EQ(a.checksum, b.checksum);
}

TEST(RemoteMessagesTest, WhatIsWrittenIsRead) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    FindRequest request{.lease = random.below(2) == 0,
                        .duration = std::chrono::milliseconds(random.below(100'000)),
                        .part = {{1, 2}, {3, 4}},
                        .hashes = {}};
    for (std::uint64_t i = random.below(5); i > 0; --i) request.hashes.push_back(any_hash(random));
    const FindRequest read = FindRequest::decode(request.encode()).value();
    EXPECT_EQ(read.lease, request.lease);
    EXPECT_EQ(read.duration, request.duration);
    EXPECT_EQ(read.part, request.part);
    EXPECT_EQ(read.hashes, request.hashes);

    FindAnswer answer{.lease = random.next(),
                      .duration = std::chrono::milliseconds(random.below(100'000)),
                      .load = random.next(),
                      .refusal = "no more",
                      .blocks = {}};
    for (const SequenceHash& hash : request.hashes) {
      FoundBlock& block = answer.blocks.emplace_back();
      block.miss = random.below(2) == 0 ? Miss::kNone : Miss::kRefused;
      block.slot = static_cast<std::uint32_t>(random.next());
      block.record = any_record(random);
      block.record.hash = hash;
    }
    const FindAnswer heard = FindAnswer::decode(answer.encode(), request.hashes).value();
    EXPECT_EQ(heard.lease, answer.lease);
    EXPECT_EQ(heard.duration, answer.duration);
    EXPECT_EQ(heard.load, answer.load);
    EXPECT_EQ(heard.refusal, answer.refusal);
    ASSERT_EQ(heard.blocks.size(), answer.blocks.size());
    for (std::size_t i = 0; i < heard.blocks.size(); ++i) {
      EXPECT_EQ(heard.blocks[i].miss, answer.blocks[i].miss);
      if (answer.blocks[i].miss != Miss::kNone) continue;
      EXPECT_EQ(heard.blocks[i].slot, answer.blocks[i].slot);
      expect_equal(heard.blocks[i].record, answer.blocks[i].record);
    }

    SlotRequest by_slot{.duration = request.duration, .part = request.part, .slots = {}};
    for (const FoundBlock& block : answer.blocks) by_slot.slots.push_back(block.slot);
    const SlotRequest slots = SlotRequest::decode(by_slot.encode()).value();
    EXPECT_EQ(slots.duration, by_slot.duration);
    EXPECT_EQ(slots.part, by_slot.part);
    EXPECT_EQ(slots.slots, by_slot.slots);
    EXPECT_TRUE(FindAnswer::decode_slots(answer.encode(), by_slot.slots));
    EXPECT_EQ(FindAnswer::lease_of(answer.encode()), answer.lease);

    CommitRequest commit{.reservation = random.next(), .records = {}};
    for (std::uint64_t i = random.below(4); i > 0; --i) commit.records.push_back(any_record(random));
    const CommitRequest committed = CommitRequest::decode(commit.encode()).value();
    EXPECT_EQ(committed.reservation, commit.reservation);
    ASSERT_EQ(committed.records.size(), commit.records.size());
    for (std::size_t i = 0; i < commit.records.size(); ++i)
      expect_equal(committed.records[i], commit.records[i]);
    commit.part = RemotePart{{1, 2}, {3, 4}};
    const CommitRequest part = CommitRequest::decode(commit.encode(), true).value();
    EXPECT_EQ(part.part, commit.part);
    EXPECT_EQ(part.reservation, commit.reservation);
    EXPECT_EQ(part.records.size(), commit.records.size());
  }
  CommitAnswer outcomes;
  outcomes.blocks.emplace_back(Pushed::kRegistered);
  outcomes.blocks.emplace_back(Error(ErrorCode::kCorruption, "other bytes"));
  outcomes.blocks.emplace_back(Pushed::kIncomplete);
  const CommitAnswer heard = CommitAnswer::decode(outcomes.encode(), outcomes.blocks.size()).value();
  ASSERT_EQ(heard.blocks.size(), 3u);
  EXPECT_EQ(*heard.blocks[0], Pushed::kRegistered);
  EXPECT_EQ(*heard.blocks[2], Pushed::kIncomplete);
  EXPECT_EQ(heard.blocks[1].error().code(), ErrorCode::kCorruption);
  EXPECT_EQ(heard.blocks[1].error().message(), "other bytes");
}

TEST(RemoteMessagesTest, AnAnswerAboutOtherBlocksIsRefused) {
  Random random(2);
  const std::vector<SequenceHash> asked = {any_hash(random)};
  FindAnswer answer;
  answer.blocks.resize(1);
  answer.blocks[0].record = any_record(random);
  EXPECT_FALSE(FindAnswer::decode(answer.encode(), asked));
  const std::vector<std::uint32_t> slots = {answer.blocks[0].slot};
  EXPECT_TRUE(FindAnswer::decode_slots(answer.encode(), slots));
  EXPECT_FALSE(FindAnswer::decode_slots(answer.encode(), std::vector<std::uint32_t>{slots[0] + 1}));
  EXPECT_FALSE(FindAnswer::decode_slots(answer.encode(), std::vector<std::uint32_t>(2, slots[0])));
  answer.blocks[0].record.hash = SequenceHash();
  EXPECT_FALSE(FindAnswer::decode_slots(answer.encode(), slots)) << "a block without a name";
  EXPECT_EQ(FindAnswer::lease_of({}), 0u);
  answer.blocks.clear();
  EXPECT_FALSE(FindAnswer::decode(answer.encode(), asked));
}

// No bytes crash it, and no count makes it allocate what is not there.
TEST(RemoteMessagesTest, HostileBytesAreErrors) {
  Random random(3);
  std::vector<SequenceHash> hashes = {any_hash(random), any_hash(random)};
  FindRequest request{.hashes = hashes};
  FindAnswer answer;
  answer.blocks.resize(2);
  for (std::size_t i = 0; i < 2; ++i) {
    answer.blocks[i].record = any_record(random);
    answer.blocks[i].record.hash = hashes[i];
  }
  const CommitRequest commit{.reservation = 1, .records = {any_record(random)}};
  CommitAnswer outcomes;
  outcomes.blocks.emplace_back(Error(ErrorCode::kIo, "x"));
  const std::vector<std::uint64_t> numbers = {1, 2, 3};
  const std::vector<std::uint32_t> slots = {0, 7};
  const SlotRequest by_slot{.duration = {}, .part = {}, .slots = slots};
  const std::vector<std::vector<std::byte>> good = {
      request.encode(), answer.encode(),         commit.encode(),      outcomes.encode(),
      by_slot.encode(), encode_numbers(numbers), encode_hashes(hashes)};
  std::size_t refused = 0;
  for (std::size_t round = 0; round < testing::rounds(20'000); ++round) {
    std::vector<std::byte> bytes = good[random.below(good.size())];
    if (random.below(3) == 0) bytes.resize(random.below(bytes.size() + 1));
    for (std::uint64_t flips = random.below(4); flips > 0 && !bytes.empty(); --flips)
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    if (random.below(8) == 0) bytes.push_back(std::byte{1});
    refused += !FindRequest::decode(bytes);
    refused += !FindAnswer::decode(bytes, hashes);
    refused += !FindAnswer::decode_slots(bytes, slots);
    refused += !SlotRequest::decode(bytes);
    refused += !CommitRequest::decode(bytes);
    refused += !CommitRequest::decode(bytes, true);
    refused += !CommitAnswer::decode(bytes, outcomes.blocks.size());
    refused += !decode_numbers(bytes);
    refused += !decode_hashes(bytes);
  }
  EXPECT_GT(refused, testing::rounds(20'000));
  for (const std::vector<std::byte>& bytes : good)
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto cut = std::span(bytes).first(size);
      EXPECT_FALSE(FindRequest::decode(cut) && FindAnswer::decode(cut, hashes) && decode_numbers(cut));
    }
}

}  // namespace
}  // namespace ashlar::tiers
