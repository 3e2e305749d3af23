#include "tiers/disk/removal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ashlar::tiers {
namespace {

using ::testing::UnorderedElementsAre;
using tokens::SequenceHash;

SequenceHash removed_hash(std::uint64_t content) {
  return SequenceHash::root(content * 0x9E3779B97F4A7C15ull + 1);
}
std::vector<SequenceHash> removed_hashes(std::uint64_t first, std::uint64_t end) {
  std::vector<SequenceHash> out;
  for (; first < end; ++first) out.push_back(removed_hash(first));
  return out;
}
RemovalLog log_of(std::uint64_t first, std::uint64_t end) {
  RemovalLog log;
  log.add(removed_hashes(first, end), 1);
  return log;
}

TEST(RemovalLogTest, SaysWhatAnotherHasMissed) {
  RemovalLog old = log_of(0, 3);
  RemovalLog log = old;
  EXPECT_TRUE(log.missed_by(old).hashes.empty());
  log.add(removed_hashes(10, 12), 2);
  const RemovalLog::Missed missed = log.missed_by(old);
  EXPECT_FALSE(missed.everything);
  EXPECT_THAT(missed.hashes, UnorderedElementsAre(removed_hash(10), removed_hash(11)));
  EXPECT_TRUE(missed.contains(removed_hash(10)));
  EXPECT_FALSE(missed.contains(removed_hash(0)));
  EXPECT_TRUE(old.missed_by(log).hashes.empty());
}

TEST(RemovalLogTest, EverythingIsMissedByWhomeverWasAbsent) {
  const RemovalLog old = log_of(0, 3);
  RemovalLog log = old;
  log.add_everything(2);
  EXPECT_TRUE(log.missed_by(old).everything);
  EXPECT_FALSE(old.missed_by(log).everything);
  RemovalLog later = log;
  later.add(removed_hashes(5, 6), 2);
  EXPECT_TRUE(later.missed_by(old).everything);
  EXPECT_FALSE(later.missed_by(log).everything);
}

TEST(RemovalLogTest, WhatItHasForgottenIsEverything) {
  const RemovalLog old = log_of(0, 3);
  RemovalLog log = old;
  log.add(removed_hashes(10, 10 + RemovalLog::kEntries), 2);
  EXPECT_FALSE(log.missed_by(old).everything) << "the floor is the last that both know";
  EXPECT_EQ(log.missed_by(old).hashes.size(), RemovalLog::kEntries);
  log.add(removed_hashes(5000, 5001), 2);
  EXPECT_TRUE(log.missed_by(old).everything);
  EXPECT_FALSE(old.missed_by(log).everything) << "the longer one was there";
}

TEST(RemovalLogTest, TheMergedLogIsTheLongestWhereTheOthersAreBehindIt) {
  const RemovalLog old = log_of(0, 3);
  RemovalLog log = old;
  log.add(removed_hashes(10, 12), 2);
  for (const std::vector<RemovalLog>& logs :
       {std::vector{old, log, RemovalLog()}, std::vector{log, old}, std::vector{log, log}, std::vector{log}})
    EXPECT_EQ(RemovalLog::merge(logs, 3), log);
  EXPECT_EQ(RemovalLog::merge(std::vector{RemovalLog(), RemovalLog()}, 3), RemovalLog());
}

TEST(RemovalLogTest, LogsThatWentDifferentWaysTellEachOther) {
  RemovalLog a = log_of(0, 3);
  RemovalLog b = a;
  a.add(removed_hashes(10, 11), 2);
  b.add(removed_hashes(20, 22), 4);
  const RemovalLog merged = RemovalLog::merge(std::vector{a, b}, 3);
  EXPECT_TRUE(merged.missed_by(a).contains(removed_hash(20)));
  EXPECT_TRUE(merged.missed_by(a).contains(removed_hash(21)));
  EXPECT_TRUE(merged.missed_by(b).contains(removed_hash(10)));
  EXPECT_FALSE(merged.missed_by(a).everything);
  EXPECT_FALSE(merged.missed_by(b).everything);
  // One that was absent all the time.
  const RemovalLog::Missed missed = merged.missed_by(log_of(0, 3));
  for (const std::uint64_t content : {10, 20, 21}) EXPECT_TRUE(missed.contains(removed_hash(content)));
  a.add_everything(2);
  const RemovalLog everything = RemovalLog::merge(std::vector{a, b}, 3);
  EXPECT_TRUE(everything.missed_by(b).everything);
  EXPECT_FALSE(everything.missed_by(everything).everything);
}

// A log that has forgotten what another has still knows that it was there.
TEST(RemovalLogTest, TheLongerLogIsToldNothingByOneThatItGoesOnFrom) {
  RemovalLog old = log_of(0, 3);
  old.add_everything(1);
  old.add(removed_hashes(3, 6), 1);
  RemovalLog log = old;
  log.add(removed_hashes(10, 10 + 2 * RemovalLog::kEntries), 2);
  log.add_everything(2);
  EXPECT_EQ(RemovalLog::merge(std::vector{old, log}, 3), log);
  EXPECT_TRUE(log.missed_by(old).everything);
  // Until there were too many sessions since.
  for (std::uint64_t session = 10; session < 10 + RemovalLog::kSessions; ++session)
    log.add(removed_hashes(session, session + 1), session);
  EXPECT_TRUE(RemovalLog::merge(std::vector{old, log}, 3).missed_by(log).everything);
}

// A file may have stored the block again in between.
TEST(RemovalLogTest, TheSameRemovalInTwoSessionsIsTwo) {
  RemovalLog a = log_of(0, 3);
  RemovalLog b = a;
  a.add(removed_hashes(10, 11), 4);
  b.add(removed_hashes(10, 11), 5);
  const RemovalLog merged = RemovalLog::merge(std::vector{a, b}, 6);
  EXPECT_TRUE(merged.missed_by(a).contains(removed_hash(10)));
  EXPECT_TRUE(merged.missed_by(b).contains(removed_hash(10)));
  a.add_everything(4);
  b.add_everything(5);
  const RemovalLog everything = RemovalLog::merge(std::vector{a, b}, 6);
  EXPECT_TRUE(everything.missed_by(a).everything);
  EXPECT_TRUE(everything.missed_by(b).everything);
}

TEST(RemovalLogTest, ComesBackFromItsBytes) {
  RemovalLog full;
  full.add(removed_hashes(0, 3 * RemovalLog::kEntries), 2);
  RemovalLog reset = log_of(0, 9);
  reset.add_everything(2);
  for (std::uint64_t session = 0; session < 2 * RemovalLog::kSessions; ++session)
    full.add(removed_hashes(session, session + 1), 1000 + session);
  for (const RemovalLog& log : {RemovalLog(), log_of(0, 7), full, reset}) {
    RemovalLog::Bytes bytes = log.encode(77);
    std::uint64_t serial = 0;
    EXPECT_EQ(RemovalLog::decode(bytes, &serial), log);
    EXPECT_EQ(serial, 77u);
    for (const std::size_t at : {0u, 5u, 9u, 20u, 45u, 60u, 32000u, 32767u}) {
      bytes[at] ^= std::byte{4};
      EXPECT_FALSE(RemovalLog::decode(bytes, &serial)) << at;
      bytes[at] ^= std::byte{4};
    }
  }
  std::uint64_t serial = 0;
  EXPECT_FALSE(RemovalLog::decode(RemovalLog::Bytes{}, &serial));
}

}  // namespace
}  // namespace ashlar::tiers
