// G3 over several files: what lies where, restarts, and devices that fail one by one.
#include "tiers/disk/disk_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "tiers/striped_fixture.h"

namespace ashlar::tiers {
namespace {

using DiskPoolTest = StripedTest;

TEST_F(DiskPoolTest, EveryBlockHasOnePlaceInOneFile) {
  for (std::uint32_t b = 0; b < kG3Blocks; ++b) {
    const BytePool::Place place = g3_->place(block::BlockId(b));
    EXPECT_EQ(place.part, b % kFiles);
    EXPECT_EQ(place.slot, b / kFiles);
    EXPECT_LT(place.slot, g3_->blocks(place.part)->block_count());
  }
  for (std::uint32_t blocks = 1; blocks < 40; ++blocks)
    for (std::size_t parts = 1; parts <= blocks && parts < 8; ++parts) {
      std::vector<std::uint32_t> dealt(parts);
      for (std::uint32_t b = 0; b < blocks; ++b) ++dealt[b % parts];
      for (std::size_t part = 0; part < parts; ++part)
        EXPECT_EQ(DiskPool::share(blocks, part, parts), dealt[part]) << blocks << " over " << parts;
    }
  EXPECT_EQ(g3_->block_bytes(), g3_->blocks(2)->block_bytes());
}

TEST_F(DiskPoolTest, BlocksOfAllFilesComeBackWithTheirBytes) {
  EXPECT_EQ(std::ranges::count(store(0, kAll), Moved::kArrived), kG3Blocks);
  std::vector<std::size_t> in_file(kFiles);
  for (std::uint64_t i = 0; i < kAll; ++i) ++in_file[part_of(i).value()];
  EXPECT_EQ(in_file, (std::vector<std::size_t>{4, 3, 3}));
  const MoveReport up = move(*g3_, *g2_, {9, 0, 4, 7, 2});
  EXPECT_EQ(up.count(Moved::kArrived), 5u);
  for (const std::uint64_t i : {9, 0, 4, 7, 2}) EXPECT_TRUE(right(*g2_, i)) << i;
  for (std::uint64_t i = 0; i < kAll; ++i) EXPECT_EQ(fetch(i), Moved::kArrived);
  expect_all_available();
}

TEST_F(DiskPoolTest, ARestartFindsAllFilesWithWhatWasKnownOfTheirBlocks) {
  const auto salt_of = [](std::uint64_t i) { return tokens::SaltFingerprint::from_bits(i, i + 1); };
  for (std::uint64_t i = 0; i < kAll; ++i) {
    put_in_host(i, {.parent = i == 0 ? SequenceHash() : name(i - 1), .salt = salt_of(i)});
    ASSERT_EQ(move(*g2_, *g3_, {i}).count(Moved::kArrived), 1u);
  }
  std::vector<std::optional<std::uint32_t>> parts;
  for (std::uint64_t i = 0; i < kAll; ++i) parts.push_back(part_of(i));
  restart();
  EXPECT_EQ(g3_->restored(), kAll);
  for (std::uint64_t i = 0; i < kAll; ++i) {
    EXPECT_EQ(part_of(i), parts[i]);
    EXPECT_EQ(fetch(i), Moved::kArrived);
    for (BytePool* const pool : {static_cast<BytePool*>(g3_.get()), static_cast<BytePool*>(g2_.get())}) {
      const TierRecord record = pool->record(pool->hold(name(i)).value());
      EXPECT_EQ(record.parent, i == 0 ? SequenceHash() : name(i - 1));
      EXPECT_EQ(record.salt, salt_of(i));
      EXPECT_TRUE(record.checksum);
    }
  }
  expect_all_available();
}

// A block whose turn to be evicted comes while it is held leaves when the hold ends, and its header stays
// until the slot is used again.
TEST_F(DiskPoolTest, WhatWasEvictedUnderAHoldIsRemovedForGood) {
  for (const bool everything : {false, true}) {
    const std::uint64_t other = everything ? 30 : 20;
    restart();
    store(0, kAll);
    const SequenceHash victim = g3_manager_->eviction_candidates(1).at(0);
    {
      const std::optional<block::Hold> held = g3_->hold(victim);
      ASSERT_TRUE(held);
      store(other, other + 1);
      EXPECT_TRUE(g3_->has(victim));
    }
    EXPECT_FALSE(g3_->has(victim)) << "evicted when its hold ended";
    if (everything) {
      ASSERT_TRUE(g3_->remove_everything());
    } else {
      ASSERT_TRUE(g3_->remove_all(std::vector{victim}));
    }
    restart();
    EXPECT_FALSE(g3_->has(victim)) << "gone for good";
    EXPECT_EQ(g3_->has(name(other)), !everything);
    expect_all_available();
  }
}

TEST_F(DiskPoolTest, ABlockThatTwoFilesHaveIsKeptOnceAndRemovedForGood) {
  store(1, 2);
  const block::BlockId id = g3_->hold(name(1)).value().block_id();
  const BytePool::Place from = g3_->place(id);
  const std::uint32_t other = (from.part + 1) % kFiles;
  const TierRecord record = g3_->record(g3_->hold(name(1)).value());
  close();
  {
    // As after a crash between the commit of a new copy and the end of the old one.
    const auto source = open_file(from.part).value();
    const auto target = open_file(other).value();
    std::vector<std::byte> bytes(source->blocks()->block_bytes());
    const auto at = [](G3File& file, std::uint32_t slot) {
      const transfer::Plane& plane = file.blocks()->planes()[0];
      return static_cast<off_t>(plane.regions[0].offset + plane.layout.place({.block = slot}).offset);
    };
    ASSERT_EQ(pread(devices_[from.part]->descriptor =
                        source->blocks()->planes()[0].regions[0].storage->file()->buffered,
                    bytes.data(), bytes.size(), at(*source, from.slot)),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(pwrite(target->blocks()->planes()[0].regions[0].storage->file()->buffered, bytes.data(),
                     bytes.size(), at(*target, 2)),
              static_cast<ssize_t>(bytes.size()));
    const G3File::Entry entry{2, {.hash = name(1), .checksum = *record.checksum}};
    ASSERT_TRUE(target->commit(std::span(&entry, 1), target->failed_syncs()));
  }
  open();
  open_striped();
  EXPECT_EQ(g3_->restored(), 1u);
  EXPECT_EQ(fetch(1), Moved::kArrived);
  expect_all_available();
  std::size_t headers = 0;
  close();
  for (std::size_t part = 0; part < kFiles; ++part) headers += open_file(part).value()->restored().size();
  EXPECT_EQ(headers, 1u) << "the other one is gone from its file";
  open();
  open_striped();
  ASSERT_TRUE(g3_->remove(name(1)));
  restart();
  EXPECT_EQ(g3_->restored(), 0u);
  EXPECT_FALSE(g3_->has(name(1)));
}

TEST_F(DiskPoolTest, ADeviceThatFailsOnWriteRestsAndTheOthersGoOn) {
  devices_[1]->write_error = EIO;
  std::optional<Error> error;
  const std::vector<Moved> first = store(0, 6, &error);
  const auto lost = static_cast<std::size_t>(std::ranges::count(first, Moved::kFailed));
  EXPECT_GT(lost, 0u);
  EXPECT_EQ(std::ranges::count(first, Moved::kArrived), static_cast<std::ptrdiff_t>(6 - lost));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_EQ(lines_.size(), 1u) << "said once";
  const std::uint64_t calls_end = 6 + 7 - (6 - lost);  // as many as the other two files have room for
  for (const Moved moved : store(6, calls_end))
    EXPECT_EQ(moved, Moved::kArrived) << "nothing goes to it any more";
  EXPECT_GT(g3_->resting(), 0u);
  for (std::uint64_t i = 0; i < calls_end; ++i) {
    const bool arrived = i >= 6 || first[i] == Moved::kArrived;
    EXPECT_EQ(g3_->has(name(i)), arrived);
    EXPECT_NE(part_of(i), 1u);
    EXPECT_EQ(fetch(i), arrived ? Moved::kArrived : Moved::kGone) << i;
  }
  EXPECT_EQ(g3_manager_->available_blocks(), kG3Blocks - g3_->resting());
  // It works again, and is given blocks again when it has rested.
  devices_[1]->write_error = 0;
  clock_.advance(kRest - std::chrono::seconds(1));
  store(20, 23);
  EXPECT_EQ(g3_->resting(), 3u);
  EXPECT_EQ(g3_manager_->available_blocks(), 7u);
  clock_.advance(std::chrono::seconds(1));
  for (const Moved moved : store(30, 33)) EXPECT_EQ(moved, Moved::kArrived);
  for (std::uint64_t i = 30; i < 33; ++i) {
    EXPECT_EQ(part_of(i), 1u) << "empty blocks come first";
    EXPECT_EQ(fetch(i), Moved::kArrived);
  }
  expect_all_available();
}

TEST_F(DiskPoolTest, ADeviceWhoseOldBlocksCannotBeClearedRests) {
  store(0, kAll);
  std::vector<std::uint64_t> elsewhere;
  for (std::uint64_t i = 0; i < kAll; ++i)
    if (part_of(i) != 0u) elsewhere.push_back(i);
  devices_[0]->header_error = EIO;
  for (const Moved moved : store(10, 14)) EXPECT_EQ(moved, Moved::kArrived);
  EXPECT_GT(g3_->resting(), 0u);
  EXPECT_EQ(g3_manager_->available_blocks(), kG3Blocks - g3_->resting());
  for (std::uint64_t i = 10; i < 14; ++i) {
    EXPECT_NE(part_of(i), 0u);
    EXPECT_EQ(fetch(i), Moved::kArrived);
  }
  devices_[0]->header_error = 0;
  clock_.advance(kRest);
  for (const Moved moved : store(20, 20 + kAll)) EXPECT_EQ(moved, Moved::kArrived);
  restart();
  EXPECT_EQ(g3_->restored(), kAll);
  for (std::uint64_t i = 20; i < 20 + kAll; ++i) EXPECT_EQ(fetch(i), Moved::kArrived);
  expect_all_available();
}

TEST_F(DiskPoolTest, WhenAllDevicesFailNothingIsTakenAndNothingIsLost) {
  for (const std::shared_ptr<Device>& device : devices_) device->write_error = EIO;
  for (int round = 0; round < 3; ++round) {
    std::optional<Error> error;
    EXPECT_EQ(std::ranges::count(store(0, 4, &error), Moved::kFailed), 4);
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->code() == ErrorCode::kIo || (round > 0 && error->code() == ErrorCode::kCapacity))
        << *error;
    EXPECT_EQ(g3_manager_->available_blocks(), kG3Blocks - g3_->resting());
  }
  for (const std::shared_ptr<Device>& device : devices_) device->write_error = 0;
  clock_.advance(kRest);
  EXPECT_EQ(std::ranges::count(store(0, 4), Moved::kArrived), 4);
  expect_all_available();
}

TEST_F(DiskPoolTest, ADeviceThatFailsOnReadIsAMissAndNoOther) {
  store(0, kAll);
  devices_[2]->read_error = EIO;
  for (std::uint64_t i = 0; i < kAll; ++i)
    EXPECT_EQ(fetch(i), part_of(i) == 2u ? Moved::kFailed : Moved::kArrived) << i;
  g2_manager_->reset_inactive_pool();
  const MoveReport mixed = move(*g3_, *g2_, {0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(mixed.error);
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(mixed.blocks[i], part_of(i) == 2u ? Moved::kFailed : Moved::kArrived);
    EXPECT_EQ(right(*g2_, i), part_of(i) != 2u);
  }
  devices_[2]->read_error = 0;
  for (std::uint64_t i = 0; i < kAll; ++i) EXPECT_EQ(fetch(i), Moved::kArrived) << "it was never wrong";
  expect_all_available();
}

TEST_F(DiskPoolTest, WithoutOneOfItsDevicesTheOthersWork) {
  store(0, kAll);
  for (std::size_t gone = 0; gone < kFiles; ++gone) {
    std::vector<bool> there;
    restart();
    for (std::uint64_t i = 0; i < kAll; ++i) there.push_back(part_of(i) != gone);
    restart({gone});
    const std::size_t left = kG3Blocks - DiskPool::share(kG3Blocks, gone, kFiles);
    EXPECT_EQ(g3_->restored(), left);
    EXPECT_EQ(g3_->resting(), kG3Blocks - left);
    EXPECT_EQ(g3_manager_->available_blocks(), left);
    EXPECT_EQ(g3_->block_bytes(), g2_->block_bytes());
    for (std::uint64_t i = 0; i < kAll; ++i) EXPECT_EQ(fetch(i), there[i] ? Moved::kArrived : Moved::kGone);
    EXPECT_EQ(g3_->reserve(left + 1).error().code(), ErrorCode::kCapacity);
    EXPECT_EQ(g3_->reserve(left).value()->ids().size(), left);
    clock_.advance(kRest * 100);
    EXPECT_FALSE(g3_->reserve(left + 1)) << "it does not come back by itself";
    g3_manager_->check_invariants();
    restart();
    store(0, kAll);  // what reserve() evicted
  }
}

TEST_F(DiskPoolTest, AHeaderThatCannotBeWrittenCostsItsBlocksOnly) {
  devices_[0]->header_error = EIO;
  std::optional<Error> error;
  const std::vector<Moved> moved = store(0, 6, &error);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_GT(std::ranges::count(moved, Moved::kFailed), 0);
  EXPECT_GT(std::ranges::count(moved, Moved::kArrived), 0);
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(g3_->has(name(i)), moved[i] == Moved::kArrived);
    EXPECT_NE(part_of(i), 0u);
    EXPECT_EQ(fetch(i), moved[i] == Moved::kArrived ? Moved::kArrived : Moved::kGone);
  }
  devices_[0]->header_error = 0;
  clock_.advance(kRest);
  EXPECT_EQ(std::ranges::count(store(10, 13), Moved::kArrived), 3);
  restart();
  EXPECT_EQ(g3_->restored(), static_cast<std::size_t>(3 + std::ranges::count(moved, Moved::kArrived)));
  expect_all_available();
}

// What a system lost is told to one of those who wrote.
TEST_F(DiskPoolTest, ABlockWhoseBytesASyncOfAnotherMayHaveLostIsNotRegistered) {
  syncs_ = true;
  restart();
  store(0, 3);
  for (std::uint64_t i = 10; i < 13; ++i) put_in_host(i);
  std::vector<block::Hold> holds;
  for (std::uint64_t i = 10; i < 13; ++i) holds.push_back(g2_->hold(name(i)).value());
  const auto running = mover_->begin(*g2_, *g3_, std::move(holds));
  devices_[1]->sync_error = EIO;
  std::vector<SequenceHash> names = {name(0), name(1), name(2)};
  EXPECT_EQ(g3_->remove_all(names).error().code(), ErrorCode::kIo);
  const MoveReport report = running->finish();
  EXPECT_EQ(report.count(Moved::kArrived), 2u);
  EXPECT_EQ(report.count(Moved::kFailed), 1u);
  for (std::uint64_t i = 10; i < 13; ++i) {
    EXPECT_EQ(g3_->has(name(i)), report.blocks[i - 10] == Moved::kArrived);
    EXPECT_NE(part_of(i), 1u);
  }
  ASSERT_TRUE(g3_->remove_all(names));
  restart();
  EXPECT_EQ(g3_->restored(), 2u);
}

TEST_F(DiskPoolTest, FilesThatDoNotFitAreRefused) {
  const auto create = [&](std::vector<std::unique_ptr<G3File>> files) {
    auto manager = ashlar::testing::make_manager<G3>(options<G3>(kG3Blocks));
    return DiskPool::create(manager, std::move(files), {}).error().code();
  };
  EXPECT_EQ(create({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(create(std::vector<std::unique_ptr<G3File>>(2)), ErrorCode::kInvalidArgument);
  g3_.reset();
  {
    std::vector<std::unique_ptr<G3File>> files(kFiles);
    files[1] = open_file(0).value();  // 4 blocks, where 3 are to be
    EXPECT_EQ(create(std::move(files)), ErrorCode::kInvalidArgument);
  }
  {
    std::vector<std::unique_ptr<G3File>> files;  // 10 over two are 5 and 5
    for (std::size_t part = 0; part < 2; ++part) files.push_back(open_file(part).value());
    EXPECT_EQ(create(std::move(files)), ErrorCode::kInvalidArgument);
  }
  auto manager = ashlar::testing::make_manager<G3>(options<G3>(kG3Blocks));
  const auto taken = manager.allocate_blocks(1).value();
  std::vector<std::unique_ptr<G3File>> files;
  for (std::size_t part = 0; part < kFiles; ++part) files.push_back(open_file(part).value());
  EXPECT_EQ(DiskPool::create(manager, std::move(files), {}).error().code(), ErrorCode::kInvalidArgument)
      << "one is in use";
}

TEST_F(DiskPoolTest, RemovingWithAFailingDeviceRemovesTheRestAndSaysSo) {
  store(0, kAll);
  devices_[1]->header_error = EIO;
  std::vector<SequenceHash> names = {name(77)};  // not there, which is no error
  std::vector<bool> stay;
  for (std::uint64_t i = 0; i < kAll; ++i) {
    names.push_back(name(i));
    stay.push_back(part_of(i) == 1u);
  }
  const Result<void> removed = g3_->remove_all(names);
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code(), ErrorCode::kIo);
  for (std::uint64_t i = 0; i < kAll; ++i) EXPECT_EQ(g3_->has(name(i)), stay[i]);
  restart();
  EXPECT_EQ(g3_->restored(), 0u);
  EXPECT_EQ(g3_->resting(), 3u) << "the others know what it should not have, and it cannot be told";
  devices_[1]->header_error = 0;
  restart();
  EXPECT_EQ(g3_->restored(), 0u);
  expect_all_available();
}

TEST_F(DiskPoolTest, SeveralMayRemoveTheSameBlocks) {
  store(0, kAll);
  std::vector<SequenceHash> names;
  for (std::uint64_t i = 0; i < kAll; ++i) names.push_back(name(i));
  std::vector<std::thread> threads;
  Gate start;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      start.pass();
      EXPECT_TRUE(g3_->remove_all(names));
      for (const SequenceHash& hash : names) {
        const Result<void> removed = g3_->remove(hash);
        EXPECT_TRUE(removed || removed.error().code() == ErrorCode::kNotFound);
      }
    });
  start.open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(g3_manager_->status().reset, kG3Blocks);
  restart();
  EXPECT_EQ(g3_->restored(), 0u);
  expect_all_available();
}

TEST_F(DiskPoolTest, TwoWhoStoreTheSameBlockLeaveOne) {
  put_in_host(1);
  EXPECT_EQ(move(*g2_, *g3_, {1, 1}).count(Moved::kArrived), 2u);
  for (std::uint64_t i = 2; i < 6; ++i) put_in_host(i);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      const MoveReport report = move(*g2_, *g3_, {2, 3, 4});
      for (std::uint64_t i = 2; i < 5; ++i) EXPECT_NE(report.blocks[i - 2], Moved::kGone);
    });
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t i = 1; i < 5; ++i) EXPECT_TRUE(g3_->has(name(i)));
  expect_all_available();
  for (std::uint64_t i = 1; i < 5; ++i) EXPECT_TRUE(g3_->remove(name(i)));
  restart();
  EXPECT_EQ(g3_->restored(), 0u) << "no second header comes to light";
}

// ---- reading back what was written

TEST_F(DiskPoolTest, AWriteThatWasAlteredOnTheWayIsNotRegistered) {
  devices_[1]->alters = true;
  for (std::uint64_t i = 0; i < 6; ++i) put_in_host(i);
  const MoveReport report = move(*g2_, *g3_, {0, 1, 2, 3, 4, 5});
  devices_[1]->alters = false;
  EXPECT_GT(report.count(Moved::kFailed), 0u);
  EXPECT_GT(report.count(Moved::kArrived), 0u);
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code(), ErrorCode::kCorruption);
  EXPECT_EQ(lines_.size(), report.count(Moved::kFailed)) << "an alarm for each";
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(right(*g2_, i)) << "the source stays";
    EXPECT_EQ(g3_->has(name(i)), report.blocks[i] == Moved::kArrived);
    EXPECT_NE(part_of(i), 1u);
  }
  const std::size_t arrived = report.count(Moved::kArrived);
  restart();
  EXPECT_EQ(g3_->restored(), arrived);
  expect_all_available();
}

TEST_F(DiskPoolTest, ADeviceThatCannotBeReadBackCostsItsBlocksOnly) {
  devices_[1]->read_error = EIO;
  const std::vector<Moved> moved = store(0, 6);
  EXPECT_GT(std::ranges::count(moved, Moved::kFailed), 0);
  EXPECT_GT(std::ranges::count(moved, Moved::kArrived), 0);
  devices_[1]->read_error = 0;
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(fetch(i), moved[i] == Moved::kArrived ? Moved::kArrived : Moved::kGone);
    EXPECT_NE(part_of(i), 1u);
  }
}

TEST_F(DiskPoolTest, ABlockThatCameWithoutAChecksumHasOneOnDisk) {
  put_in_host(1);  // past the mover
  ASSERT_FALSE(g2_->record(g2_->hold(name(1)).value()).checksum);
  EXPECT_EQ(move(*g2_, *g3_, {1}).count(Moved::kArrived), 1u);
  EXPECT_TRUE(g3_->record(g3_->hold(name(1)).value()).checksum);
  restart();
  EXPECT_EQ(fetch(1), Moved::kArrived);
}

}  // namespace
}  // namespace ashlar::tiers
