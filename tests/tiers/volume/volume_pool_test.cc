// G4: blocks as objects, what is read is what was written, and objects and volumes that fail.
#include "tiers/volume/volume_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tiers/volume/volume_fixture.h"

namespace ashlar::tiers {
namespace {

using VolumePoolTest = VolumePoolFixture;

TEST_F(VolumePoolTest, BlocksComeBackWhateverTheOrderTheyLieIn) {
  // Straight from memory in one piece or two; through a buffer.
  const std::vector<layout::AxisOrder> orders = {
      layout::order::kFullyContiguousNhd, layout::order::kBlockFirstNhd, layout::order::kUniversalTp,
      layout::order::kFullyContiguousHnd, layout::order::kBlockSecondNhd};
  std::string first;
  for (const layout::AxisOrder& from : orders)
    for (const layout::AxisOrder& to : orders) {
      open({.host = {from}, .target = to});
      ASSERT_TRUE(attach("a"));
      for (const auto& entry : std::filesystem::directory_iterator(folder_of("a")))
        std::filesystem::remove_all(entry.path());
      EXPECT_EQ(std::ranges::count(put(range(0, 5)), Moved::kArrived), 5);
      const MoveReport report = get({4, 0, 2});
      EXPECT_EQ(report.count(Moved::kArrived), 3u);
      EXPECT_EQ(report.bytes, 3 * g4_->block_bytes());
      for (const std::uint64_t i : {0, 2, 4}) EXPECT_TRUE(right(i)) << i;
      const std::string object = read(file_of("a", 3));
      EXPECT_EQ(object.size(), VolumeObject::kHeaderBytes + g4_->block_bytes());
      if (first.empty()) first = object;
      EXPECT_TRUE(object == first) << "an object does not tell how its block lay";
      expect_counts_exact();
    }
}

TEST_F(VolumePoolTest, BlocksOfSeveralPlanesComeBack) {
  for (const layout::AxisOrder& second :
       {layout::order::kFullyContiguousNhd, layout::order::kBlockFirstNhd}) {
    open({.host = {layout::order::kFullyContiguousNhd, second}, .target = layout::order::kUniversalTp});
    ASSERT_TRUE(attach(second == layout::order::kBlockFirstNhd ? "a" : "b"));
    EXPECT_EQ(std::ranges::count(put(range(0, 4)), Moved::kArrived), 4);
    EXPECT_EQ(get(range(0, 4)).count(Moved::kArrived), 4u);
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(right(i)) << i;
  }
}

TEST_F(VolumePoolTest, WhatNobodyWantsAnyMoreIsNotWritten) {
  ASSERT_TRUE(attach("a"));
  put_in_host(1);
  const auto hold = [&] {
    std::vector<block::Hold> holds;
    holds.push_back(host_->hold(name(1)).value());
    return holds;
  };
  MoveControl control;
  control.cancel();
  const MoveReport cancelled = g4_->put(*host_, hold(), {.control = &control});
  EXPECT_EQ(cancelled.blocks, std::vector{Moved::kStopped});
  EXPECT_EQ(cancelled.error->code(), ErrorCode::kCancelled);
  const MoveReport late = g4_->put(*host_, hold(), {.deadline = Clock::real().now()});
  EXPECT_EQ(late.error->code(), ErrorCode::kTimeout);
  EXPECT_FALSE(std::filesystem::exists(file_of("a", 1)));
  expect_counts_exact();
}

TEST_F(VolumePoolTest, SaysWhatBecameOfEachBlock) {
  ASSERT_TRUE(attach("a"));
  put({1});
  EXPECT_EQ(put({0, 1, 2}), (std::vector{Moved::kArrived, Moved::kPresent, Moved::kArrived}));
  get({0});
  const auto report = g4_->get(names({0, 9, 2}), *target_);
  EXPECT_EQ(report.blocks, (std::vector{Moved::kPresent, Moved::kGone, Moved::kArrived}));
  EXPECT_FALSE(report.error);
  expect_counts_exact();
}

TEST_F(VolumePoolTest, WhatIsKnownOfABlockTravelsWithIt) {
  ASSERT_TRUE(attach("a"));
  const tokens::SaltFingerprint salt = tokens::SaltFingerprint::from_bits(1, 2);
  put_in_host(1, {.parent = name(0), .salt = salt});
  put({1});
  ASSERT_EQ(get({1}).count(Moved::kArrived), 1u);
  TierRecord record = target_->record(target_->hold(name(1)).value());
  EXPECT_EQ(record.parent, name(0));
  EXPECT_EQ(record.salt, salt);
  EXPECT_TRUE(record.checksum);
  open({});
  ASSERT_TRUE(attach("a"));
  ASSERT_EQ(g4_->probe(names({1})), 1u);
  ASSERT_EQ(get({1}).count(Moved::kArrived), 1u);
  record = target_->record(target_->hold(name(1)).value());
  EXPECT_EQ(record.salt, salt) << "of the object, where nothing else is known";
}

TEST_F(VolumePoolTest, AnObjectThatSomebodyRemovedIsForgotten) {
  ASSERT_TRUE(attach("a"));
  put(range(0, 3));
  std::filesystem::remove(file_of("a", 1));
  const MoveReport report = get(range(0, 3));
  EXPECT_EQ(report.blocks, (std::vector{Moved::kArrived, Moved::kGone, Moved::kArrived}));
  EXPECT_FALSE(report.error);
  EXPECT_FALSE(g4_->has(name(1)));
  EXPECT_EQ(status("a").block_count, 2u);
  EXPECT_EQ(status("a").failed, 0u);
  EXPECT_TRUE(lines_.empty()) << "volumes are shared; that is no alarm";
  EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
  expect_counts_exact();
}

TEST_F(VolumePoolTest, ADamagedObjectIsNeverReturnedAndGoes) {
  using Damage = std::function<std::string(const std::string& whole, const std::string& other)>;
  const auto flip = [](std::size_t at) -> Damage {
    return [at](const std::string& whole, const std::string&) {
      return whole.substr(0, at) + static_cast<char>(whole[at] ^ 1) + whole.substr(at + 1);
    };
  };
  constexpr std::size_t kHeader = VolumeObject::kHeaderBytes;
  const std::vector<std::pair<const char*, Damage>> damages = {
      {"a bit of its block", flip(kHeader + 1000)},
      {"its last bit", flip(kHeader + g4_->block_bytes() - 1)},
      {"a bit of its header", flip(60)},
      {"its magic", flip(0)},
      {"its version", flip(8)},
      {"cut", [](const auto& whole, const auto&) { return whole.substr(0, whole.size() - 1); }},
      {"empty", [](const auto&, const auto&) { return std::string(); }},
      {"longer", [](const auto& whole, const auto&) { return whole + "x"; }},
      {"another's", [](const auto&, const auto& other) { return other; }},
      {"another's bytes",
       [](const auto& whole, const auto& other) { return whole.substr(0, kHeader) + other.substr(kHeader); }},
  };
  for (const auto order : {layout::order::kFullyContiguousNhd, layout::order::kUniversalTp}) {
    open({.host = {order}, .target = order});
    ASSERT_TRUE(attach("a"));
    std::uint64_t failed = 0;
    for (const auto& [what, damage] : damages) {
      lines_.clear();
      put(range(0, 3));
      write(file_of("a", 1), damage(read(file_of("a", 1)), read(file_of("a", 2))));
      const MoveReport report = get(range(0, 3));
      EXPECT_EQ(report.blocks, (std::vector{Moved::kArrived, Moved::kDamaged, Moved::kArrived})) << what;
      ASSERT_TRUE(report.error);
      EXPECT_EQ(report.error->code(), ErrorCode::kCorruption);
      EXPECT_EQ(lines_.size(), 1u) << "an alarm: " << what;
      EXPECT_FALSE(target_->has(name(1)));
      EXPECT_FALSE(g4_->has(name(1)));
      EXPECT_EQ(file_of("a", 1), "") << what;
      EXPECT_TRUE(right(0) && right(2));
      EXPECT_EQ(status("a").failed, ++failed);
      EXPECT_EQ(g4_->probe(names({1})), 0u);
      expect_counts_exact();
    }
  }
}

TEST_F(VolumePoolTest, ABlockOfAnotherModelUnderTheSameKeyIsDamaged) {
  ASSERT_TRUE(attach("a"));
  put({1});
  const std::string whole = read(file_of("a", 1));
  const auto bytes = std::as_bytes(std::span(whole)).first(VolumeObject::kHeaderBytes);
  VolumeObject header = VolumeObject::decode(bytes).value();
  header.keys = tokens::NamespaceFingerprint::from_bits(7, 7);
  const auto encoded = header.encode();
  write(file_of("a", 1), std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size()) +
                             whole.substr(VolumeObject::kHeaderBytes));
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kDamaged});
  EXPECT_FALSE(target_->has(name(1)));
}

TEST_F(VolumePoolTest, BytesThatChangeOnTheWayAreNotReturned) {
  for (const auto order : {layout::order::kFullyContiguousNhd, layout::order::kUniversalTp}) {
    open({.target = order});
    ASSERT_TRUE(attach("a"));
    put({1});
    script("a").flips = true;
    EXPECT_EQ(get({1}).blocks, std::vector{Moved::kDamaged});
    EXPECT_FALSE(target_->has(name(1)));
    script("a").flips = false;
    expect_counts_exact();
  }
}

TEST_F(VolumePoolTest, ADamagedObjectThatCannotBeRemovedIsForgottenHere) {
  ASSERT_TRUE(attach("a"));
  put({1});
  script("a").flips = true;
  script("a").fail(VolumeCall::kRemove, ErrorCode::kUnavailable);
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kDamaged});
  EXPECT_FALSE(g4_->has(name(1)));
  EXPECT_EQ(lines_.size(), 2u) << "the alarm, and that it stays";
  expect_counts_exact();
}

TEST_F(VolumePoolTest, AVolumeThatCannotBeReachedIsAMissAndKeepsItsBlocks) {
  ASSERT_TRUE(attach("a"));
  put(range(0, 4));
  std::uint64_t failed = 0;
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kIo, ErrorCode::kTimeout}) {
    script("a").verdict = [&, code](VolumeCall call, std::string_view one) {
      return call == VolumeCall::kGet && one == key(2) ? std::optional(code) : std::nullopt;
    };
    const MoveReport report = get(range(0, 4));
    EXPECT_EQ(report.blocks,
              (std::vector{Moved::kArrived, Moved::kArrived, Moved::kFailed, Moved::kArrived}));
    ASSERT_TRUE(report.error);
    EXPECT_EQ(report.error->code(), code);
    EXPECT_TRUE(g4_->has(name(2)));
    EXPECT_FALSE(target_->has(name(2)));
    EXPECT_EQ(status("a").failed, ++failed);
    expect_counts_exact();
  }
  script("a").verdict = {};
  EXPECT_EQ(get({2}).count(Moved::kArrived), 1u);
  EXPECT_TRUE(right(2));
  EXPECT_EQ(status("a").got, 3u * 3 + 1);
}

TEST_F(VolumePoolTest, WhatCannotBePutIsNotThere) {
  ASSERT_TRUE(attach("a"));
  for (const ErrorCode code : {ErrorCode::kCapacity, ErrorCode::kUnavailable, ErrorCode::kIo}) {
    script("a").verdict = [&, code](VolumeCall call, std::string_view one) {
      return call == VolumeCall::kPut && one == key(1) ? std::optional(code) : std::nullopt;
    };
    std::optional<Error> error;
    const std::vector<Moved> moved = put({1, 10 + static_cast<std::uint64_t>(code)}, &error);
    EXPECT_EQ(moved, (std::vector{Moved::kFailed, Moved::kArrived}));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), code);
    EXPECT_FALSE(g4_->has(name(1)));
    expect_counts_exact();
  }
  EXPECT_EQ(status("a").put, 3u);
  EXPECT_EQ(status("a").failed, 3u);
  script("a").verdict = {};
  EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
  EXPECT_EQ(status("a").block_count, 4u);
}

TEST_F(VolumePoolTest, WithoutAVolumeNothingIsTaken) {
  std::optional<Error> error;
  EXPECT_EQ(put({1}, &error), std::vector{Moved::kFailed});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kGone});
  EXPECT_EQ(g4_->probe(names({1})), 0u);
  EXPECT_EQ(g4_->remove(name(1)).error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(g4_->remove_all(names({1})));
  EXPECT_TRUE(g4_->volumes().empty());
  expect_counts_exact();
}

TEST_F(VolumePoolTest, WhatReadsBackDifferentlyIsNotRegistered) {
  for (const auto order : {layout::order::kFullyContiguousNhd, layout::order::kUniversalTp}) {
    open({.host = {order}, .read_back = true});
    ASSERT_TRUE(attach("a"));
    EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
    script("a").flips = true;
    std::optional<Error> error;
    EXPECT_EQ(put({2}, &error), std::vector{Moved::kFailed});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorruption);
    EXPECT_FALSE(g4_->has(name(2)));
    script("a").flips = false;
    script("a").fail(VolumeCall::kGet, ErrorCode::kUnavailable);
    EXPECT_EQ(put({3}), std::vector{Moved::kFailed});
    EXPECT_FALSE(g4_->has(name(3)));
    script("a").verdict = {};
    expect_counts_exact();
  }
}

TEST_F(VolumePoolTest, EvictedBlocksLeaveTheirObjectsUnlessTheyAreToGo) {
  for (const bool remove : {false, true}) {
    open({.blocks = 4, .remove_evicted = remove});
    ASSERT_TRUE(attach("a"));
    EXPECT_EQ(std::ranges::count(put({0}), Moved::kArrived), 1);
    for (std::uint64_t i = 1; i < 7; ++i) put({i});
    for (std::uint64_t i = 0; i < 7; ++i) {
      EXPECT_EQ(g4_->has(name(i)), i >= 3) << i;
      EXPECT_EQ(file_of("a", i).empty(), i < 3 && remove) << i;
    }
    EXPECT_EQ(g4_->records().evictions().value(), 3u);
    EXPECT_EQ(g4_->probe(names({0, 1})), remove ? 0u : 2u);
    EXPECT_TRUE(g4_->remove_all(names(range(0, 7))));
    expect_counts_exact();
  }
}

TEST_F(VolumePoolTest, RemovingIsForGood) {
  ASSERT_TRUE(attach("a"));
  ASSERT_TRUE(attach("b"));
  put(range(0, 12));
  ASSERT_TRUE(g4_->remove(name(3)));
  EXPECT_EQ(g4_->probe(names({3})), 0u);
  EXPECT_EQ(g4_->remove(name(3)).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(g4_->remove_all(names({4, 5, 99})));
  // A new pool knows nothing of the objects, and removes them all the same.
  open({});
  ASSERT_TRUE(attach("a"));
  ASSERT_TRUE(attach("b"));
  ASSERT_TRUE(g4_->remove_all(names({6, 7})));
  for (std::uint64_t i = 0; i < 12; ++i) EXPECT_EQ(g4_->probe(names({i})), i < 3 || i > 7 ? 1u : 0u) << i;
  expect_counts_exact();
}

TEST_F(VolumePoolTest, RemovingFromAFailingVolumeKeepsWhatItHasAndSaysSo) {
  ASSERT_TRUE(attach("a"));
  ASSERT_TRUE(attach("b"));
  put(range(0, 20));
  std::vector<bool> on_b;
  for (std::uint64_t i = 0; i < 20; ++i) on_b.push_back(!file_of("b", i).empty());
  ASSERT_GT(std::ranges::count(on_b, true), 0);
  ASSERT_GT(std::ranges::count(on_b, false), 0);
  script("b").fail(VolumeCall::kRemove, ErrorCode::kUnavailable);
  const Result<void> removed = g4_->remove_all(names(range(0, 20)));
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code(), ErrorCode::kUnavailable);
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_EQ(g4_->has(name(i)), on_b[i]) << i;
  EXPECT_EQ(status("a").block_count, 0u);
  EXPECT_EQ(status("b").block_count, static_cast<std::size_t>(std::ranges::count(on_b, true)));
  script("b").verdict = {};
  ASSERT_TRUE(g4_->remove_all(names(range(0, 20))));
  EXPECT_EQ(g4_manager_->status().reset, 200u);
  expect_counts_exact();
}

TEST_F(VolumePoolTest, ReadingStopsForACancelADeadlineAndAFullTarget) {
  ManualClock clock;
  open({.clock = &clock});
  ASSERT_TRUE(attach("a"));
  put(range(0, 4));
  MoveControl control;
  control.cancel();
  const auto expect_failed = [&](const MoveReport& report, ErrorCode code) {
    EXPECT_EQ(report.count(code == ErrorCode::kCapacity ? Moved::kFailed : Moved::kStopped), 4u);
    ASSERT_TRUE(report.error);
    EXPECT_EQ(report.error->code(), code);
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(g4_->has(name(i)));
  };
  expect_failed(get(range(0, 4), {.control = &control}), ErrorCode::kCancelled);
  expect_failed(get(range(0, 4), {.deadline = clock.now()}), ErrorCode::kTimeout);
  {
    const auto taken = target_manager_->allocate_blocks(kTargetBlocks - 3).value();
    expect_failed(get(range(0, 4)), ErrorCode::kCapacity);
  }
  EXPECT_EQ(get(range(0, 4), {.deadline = clock.now() + std::chrono::seconds(1)}).count(Moved::kArrived), 4u);
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
