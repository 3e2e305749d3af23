#include "tiers/disk/g3_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/transfer/host_executors.h"
#include "support/block_images.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "tiers/disk/g3_places.h"
#include "tiers/power_loss.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;
using tokens::NamespaceFingerprint;
using tokens::SequenceHash;
using transfer::BlockImage;
using transfer::BlockSet;
using transfer::ChecksumKey;
using transfer::PlaneShape;

constexpr std::uint32_t kBlocks = 12;
constexpr std::ptrdiff_t kTableAt = kG3TableAt;
const NamespaceFingerprint kG3Keys = NamespaceFingerprint::from_bits(1, 2);

layout::Layout shape(std::uint32_t blocks = kBlocks) {
  layout::LayoutConfig config = transfer::small_shape(blocks, 2, 2);
  config.head_dim = 96;
  config.inner_dim = 192;
  config.alignment = 4096;
  return layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
}

class G3FileTest : public ::testing::Test {
 protected:
  G3Options options() const {
    return {.path = path_, .planes = {PlaneShape::whole(shape())}, .keys = kG3Keys, .scheme_fingerprint = 77};
  }
  std::unique_ptr<G3File> open() { return G3File::open(options()).value(); }
  void expect_refused(const G3Options& wanted, ErrorCode code, const std::string& says) {
    const auto file = G3File::open(wanted);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code(), code) << file.error();
    EXPECT_THAT(file.error().message(), HasSubstr(says));
  }
  std::vector<std::uint8_t> bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void store(const std::vector<std::uint8_t>& bytes) const {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  static SequenceHash hash_of(std::uint64_t content) {
    return SequenceHash::root(content * 0x9E3779B97F4A7C15ull + 1);
  }
  // Bytes that belong to a content, in a block of host memory.
  void fill(std::uint64_t content) {
    Random random(content + 1);
    const layout::Layout& layout = memory_->planes()[0].layout;
    for (std::uint64_t i = 0; i < layout.config().block_bytes(); ++i)
      memory_->address(0, layout.place({.block = 0}))[i] = static_cast<std::byte>(random.next());
  }
  // Puts a content into a slot, whatever was there.
  Result<void> put(G3File& file, std::uint32_t slot, std::uint64_t content) {
    if (const Result<void> gone = file.invalidate(std::span(&slot, 1)); !gone) return gone;
    fill(content);
    const std::uint64_t before = file.failed_syncs();
    const std::uint32_t zero = 0;
    const auto done =
        executor_
            ->submit({.plan = plan(memory_, std::span(&zero, 1), file.blocks(), std::span(&slot, 1)).value()})
            .value()
            .wait();
    if (!done) return done.error();
    const SequenceHash hash = hash_of(content);
    const G3File::Entry entry{
        slot,
        {.hash = hash,
         .checksum = transfer::checksum_block(*memory_, 0, transfer::ChecksumKey{hash, kG3Keys}).value()}};
    return file.commit(std::span(&entry, 1), before);
  }
  // Reads a block of the file and compares it with its header. May run while a block is being put.
  bool intact(const G3File& file, const G3File::Entry& entry) {
    const std::uint32_t zero = 0;
    const auto done =
        reader_
            ->submit(
                {.plan = plan(file.blocks(), std::span(&entry.slot, 1), seen_, std::span(&zero, 1)).value()})
            .value()
            .wait();
    return done && transfer::verify_block(*seen_, 0, {entry.header.hash, kG3Keys}, entry.header.checksum,
                                          events::StorageTier::kDisk);
  }
  static std::map<std::uint32_t, SequenceHash> contents(const G3File& file) {
    std::map<std::uint32_t, SequenceHash> found;
    for (const G3File::Entry& entry : file.restored()) found[entry.slot] = entry.header.hash;
    return found;
  }

  ScratchFolder folder_;
  std::string path_ = folder_.file("g3");
  storage::SystemAllocator allocator_;
  std::shared_ptr<const BlockSet> memory_ = BlockSet::allocate(shape(1), allocator_).value();
  std::shared_ptr<const BlockSet> seen_ = BlockSet::allocate(shape(1), allocator_).value();
  std::unique_ptr<transfer::FileExecutor> executor_ = transfer::FileExecutor::create({.threads = 1}).value();
  std::unique_ptr<transfer::FileExecutor> reader_ = transfer::FileExecutor::create({.threads = 1}).value();
};

TEST_F(G3FileTest, WhatWasCommittedIsThereAfterARestart) {
  {
    const auto file = open();
    EXPECT_TRUE(file->restored().empty());
    EXPECT_EQ(file->capacity(), kBlocks);
    ASSERT_TRUE(put(*file, 3, 30));
    ASSERT_TRUE(put(*file, 7, 70));
    ASSERT_TRUE(put(*file, 3, 31));  // another block in the same place
    ASSERT_TRUE(put(*file, 5, 50));
    const std::uint32_t gone = 5;
    ASSERT_TRUE(file->invalidate(std::span(&gone, 1)));
  }
  const auto file = open();
  EXPECT_EQ(contents(*file), (std::map<std::uint32_t, SequenceHash>{{3, hash_of(31)}, {7, hash_of(70)}}));
  for (const G3File::Entry& entry : file->restored()) EXPECT_TRUE(intact(*file, entry));
}

TEST_F(G3FileTest, HeadersKeepWhatTheyAreGiven) {
  G3Header header{.hash = SequenceHash::make(4, 5, 6).value(),
                  .parent = SequenceHash::make(3, 6, 7).value(),
                  .salt = NamespaceFingerprint::from_bits(8, 9),
                  .checksum = transfer::BlockChecksum(10),
                  .has_parent = true};
  {
    const auto file = open();
    const G3File::Entry entry{2, header};
    ASSERT_TRUE(file->commit(std::span(&entry, 1), file->failed_syncs()));
  }
  const auto file = open();
  ASSERT_EQ(file->restored().size(), 1u);
  header.generation = 1;
  EXPECT_EQ(file->restored()[0], (G3File::Entry{2, header}));
}

TEST_F(G3FileTest, AForeignFileIsLeftAlone) {
  for (const std::string& text : {std::string("short"), std::string(200000, 'x')}) {
    std::ofstream(path_) << text;
    expect_refused(options(), ErrorCode::kAlreadyExists, "is not a G3 file; it was left alone");
    EXPECT_EQ(bytes(), std::vector<std::uint8_t>(text.begin(), text.end()));
  }
}

TEST_F(G3FileTest, AFileOfAnotherKindIsRefusedWithTheReason) {
  put(*open(), 1, 10).value();
  const std::vector<std::uint8_t> before = bytes();
  G3Options other = options();
  other.keys = NamespaceFingerprint::from_bits(1, 3);
  expect_refused(other, ErrorCode::kInvalidArgument, "another namespace");
  other = options();
  other.scheme_fingerprint = 78;
  expect_refused(other, ErrorCode::kInvalidArgument,
                 "another hash scheme or key: 000000000000004d, expected 000000000000004e");
  other = options();
  other.planes = {PlaneShape::whole(shape(kBlocks - 1))};
  expect_refused(other, ErrorCode::kInvalidArgument,
                 "was created for " + std::to_string(kBlocks) + " blocks, and " +
                     std::to_string(kBlocks - 1) + " are wanted; keep the block_count");
  other.planes = {PlaneShape::whole(shape(kBlocks * 100))};
  expect_refused(other, ErrorCode::kInvalidArgument,
                 " blocks, and " + std::to_string(kBlocks * 100) + " are wanted");
  other = options();
  other.planes.push_back(other.planes[0]);
  expect_refused(other, ErrorCode::kInvalidArgument, "holds blocks of 1 planes, 2 are wanted");
  other = options();
  other.planes.clear();
  expect_refused(other, ErrorCode::kInvalidArgument, "planes is empty");
  EXPECT_EQ(bytes(), before);
}

TEST_F(G3FileTest, AFileOfAnotherRankIsRefusedWithWhoseItIs) {
  G3Options first = options();
  first.planes[0].shard = {{0, 2}, {0, 2}, 0, 2};
  put(*G3File::open(first).value(), 1, 10).value();
  const std::vector<std::uint8_t> before = bytes();
  G3Options second = options();
  second.planes[0].shard = {{0, 2}, {2, 2}, 1, 2};
  expect_refused(
      second, ErrorCode::kInvalidArgument,
      " belongs to rank 0 of 2 (layers 0 to 1, heads 0 to 1), and this is rank 1 of 2 (layers 0 to 1, "
      "heads 2 to 3); give every rank a file of its own");
  // Also where it has other layers, and so another size.
  layout::LayoutConfig config = shape().config();
  config.num_layers = 5;
  second.planes = {
      {layout::Layout::create(config, layout::order::kFullyContiguousNhd).value(), {{2, 5}, {0, 2}, 1, 2}}};
  expect_refused(second, ErrorCode::kInvalidArgument,
                 "and this is rank 1 of 2 (layers 2 to 6, heads 0 to 1)");
  expect_refused(options(), ErrorCode::kInvalidArgument,
                 "and this is rank 0 of 1 (layers 0 to 1, heads 0 to 1)");
  // The same rank with other layers has another shape.
  second.planes[0].shard = {{0, 5}, {0, 2}, 0, 2};
  expect_refused(
      second, ErrorCode::kInvalidArgument,
      "holds blocks of another shape: rank 0 of 2 (layers 0 to 1, heads 0 to 1), expected rank 0 of 2 "
      "(layers 0 to 4, heads 0 to 1)");
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(G3File::open(first).value()->restored().size(), 1u);
}

TEST_F(G3FileTest, AHeaderOfAnotherRankIsAnEmptyBlock) {
  const auto as_rank = [&](std::uint32_t rank) {
    path_ = folder_.file("rank" + std::to_string(rank));
    G3Options wanted = options();
    wanted.planes[0].shard = {{0, 2}, {0, 2}, rank, 2};  // the same heads on both
    return wanted;
  };
  ASSERT_TRUE(put(*G3File::open(as_rank(0)).value(), 1, 10));
  const std::vector<std::uint8_t> other = bytes();
  ASSERT_TRUE(put(*G3File::open(as_rank(1)).value(), 2, 20));
  std::vector<std::uint8_t> mixed = bytes();
  std::copy_n(other.begin() + kTableAt + 256, 256, mixed.begin() + kTableAt + 256);
  store(mixed);
  EXPECT_EQ(contents(*G3File::open(as_rank(1)).value()),
            (std::map<std::uint32_t, SequenceHash>{{2, hash_of(20)}}));
}

TEST_F(G3FileTest, AFileThatWasCutShortIsRefusedWithBothSizes) {
  open().reset();
  std::vector<std::uint8_t> image = bytes();
  image.resize(image.size() - 4096);
  store(image);
  expect_refused(options(), ErrorCode::kInvalidArgument, "it was truncated");
}

TEST_F(G3FileTest, AMissingFolderIsNamed) {
  G3Options lost = options();
  lost.path = folder_.file("no") + "/g3";
  const auto made = G3File::open(lost);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(made.error().message(),
            lost.path + ": its folder " + folder_.file("no") + " does not exist; create it first");
}

TEST_F(G3FileTest, AnotherVersionIsRefusedWithWhatToDo) {
  open().reset();
  for (const int version : {1, 2, 4}) {
    std::vector<std::uint8_t> image = bytes();
    image[8] = static_cast<std::uint8_t>(version);
    const std::uint64_t sum = XXH3_64bits(image.data(), 4088);
    std::memcpy(image.data() + 4088, &sum, sizeof sum);
    store(image);
    expect_refused(options(), ErrorCode::kUnsupported,
                   "this program reads version 3; name another file, or remove this one");
    EXPECT_EQ(bytes(), image);
  }
}

TEST_F(G3FileTest, ADamagedSuperblockIsRefused) {
  open().reset();
  const std::vector<std::uint8_t> good = bytes();
  for (const std::size_t at : {9u, 20u, 100u, 4000u, 4095u}) {
    std::vector<std::uint8_t> bad = good;
    bad[at] ^= 1;
    store(bad);
    expect_refused(options(), ErrorCode::kCorruption, "is damaged");
    EXPECT_EQ(bytes(), bad);
  }
  std::vector<std::uint8_t> cut(good.begin(), good.begin() + kTableAt);
  store(cut);
  expect_refused(options(), ErrorCode::kInvalidArgument, "it was truncated");
}

TEST_F(G3FileTest, ADamagedHeaderIsAnEmptyBlock) {
  {
    const auto file = open();
    for (std::uint32_t slot = 0; slot < kBlocks; ++slot) ASSERT_TRUE(put(*file, slot, slot));
  }
  std::vector<std::uint8_t> image = bytes();
  image[kTableAt + 256 * 4 + 30] ^= 1;
  std::copy_n(image.begin() + kTableAt + 256 * 5, 256,
              image.begin() + kTableAt + 256 * 6);  // a header in the wrong place
  store(image);
  const auto file = open();
  EXPECT_EQ(file->restored().size(), kBlocks - 2);
  EXPECT_FALSE(contents(*file).contains(4));
  EXPECT_FALSE(contents(*file).contains(6));
}

TEST_F(G3FileTest, OfTwoBlocksWithOneNameTheNewerStays) {
  {
    const auto file = open();
    ASSERT_TRUE(put(*file, 1, 10));
    ASSERT_TRUE(put(*file, 9, 10));
    ASSERT_TRUE(put(*file, 4, 10));
  }
  EXPECT_EQ(contents(*open()), (std::map<std::uint32_t, SequenceHash>{{4, hash_of(10)}}));
}

TEST_F(G3FileTest, FailuresAreToldAndNothingInvalidIsTakenForValid) {
  struct ErrorFaults final : storage::IoFaults {
    storage::IoVerdict judge(storage::IoDirection, std::uint64_t, std::uint64_t) override {
      return {.error = error};
    }
    int syncing() override { return sync_error; }
    std::atomic<int> error{0};
    std::atomic<int> sync_error{0};
  };
  const auto faults = std::make_shared<ErrorFaults>();
  G3Options wanted = options();
  wanted.faults = faults;
  {
    const auto file = G3File::open(wanted).value();
    ASSERT_TRUE(put(*file, 1, 10));
    const std::uint32_t slot = 1;
    faults->error = EIO;
    EXPECT_EQ(file->invalidate(std::span(&slot, 1)).error().code(), ErrorCode::kIo);
    faults->error = ENOSPC;
    const G3File::Entry entry{2, {.hash = hash_of(20)}};
    EXPECT_EQ(file->commit(std::span(&entry, 1), file->failed_syncs()).error().code(), ErrorCode::kCapacity);
    faults->error = 0;
    faults->sync_error = EIO;
    EXPECT_EQ(file->commit(std::span(&entry, 1), file->failed_syncs()).error().code(), ErrorCode::kIo);
    EXPECT_EQ(file->invalidate(std::span(&slot, 1)).error().code(), ErrorCode::kIo);
    faults->sync_error = 0;
    EXPECT_TRUE(file->invalidate(std::span(&slot, 1))) << "can be repeated";
  }
  EXPECT_TRUE(open()->restored().empty());
}

TEST_F(G3FileTest, AFullDiskLeavesNoFile) {
  G3Options wanted = options();
  layout::LayoutConfig config = shape().config();
  config.block_count = 1u << 30;
  wanted.planes = {
      PlaneShape::whole(layout::Layout::create(config, layout::order::kFullyContiguousNhd).value())};
  expect_refused(wanted, ErrorCode::kCapacity, "bytes were requested, the file system has");
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

// A system tells of bytes that it lost once; who is told may not be the one whose bytes they were.
TEST_F(G3FileTest, ASyncThatFailsFailsWhatWasWrittenBeforeItToo) {
  const auto power = std::make_shared<PowerLoss>();
  G3Options watched = options();
  watched.faults = power;
  const auto file = G3File::open(watched).value();
  for (const std::uint32_t slot : {1u, 2u}) ASSERT_TRUE(put(*file, slot, slot * 10));
  power->start(bytes());
  Random random(3);
  const std::string real_path = path_;
  const auto after_a_power_failure = [&] {
    path_ = folder_.file("image");
    store(power->image(random));
    const auto found = contents(*open());
    path_ = real_path;
    return found;
  };
  const std::uint32_t first = 1;
  const std::uint32_t second = 2;
  const auto invalidate_while_another_sync_fails = [&] {
    power->after_write = [&] {
      const auto once = std::exchange(power->after_write, nullptr);  // lives until this call ends
      power->failing_syncs = 1;
      EXPECT_EQ(file->invalidate(std::span(&second, 1)).error().code(), ErrorCode::kIo);
    };
    return file->invalidate(std::span(&first, 1));
  };
  const Result<void> removed = invalidate_while_another_sync_fails();
  EXPECT_EQ(after_a_power_failure().size(), 2u) << "neither removal has reached the disk";
  ASSERT_FALSE(removed) << "and neither may be told to have";
  EXPECT_THAT(removed.error().message(), HasSubstr("which may be lost; repeat it"));
  ASSERT_TRUE(file->invalidate(std::span(&first, 1)));
  EXPECT_EQ(after_a_power_failure(), (std::map<std::uint32_t, SequenceHash>{{2, hash_of(20)}}));
  // The bytes of a block that has no header yet.
  const std::uint64_t before = file->failed_syncs();
  power->failing_syncs = 1;
  EXPECT_FALSE(file->invalidate(std::span(&second, 1)));
  const G3File::Entry entry{3, {.hash = hash_of(30)}};
  EXPECT_EQ(file->commit(std::span(&entry, 1), before).error().code(), ErrorCode::kIo);
  EXPECT_FALSE(after_a_power_failure().contains(3));
  EXPECT_TRUE(put(*file, 3, 30));
  EXPECT_TRUE(after_a_power_failure().contains(3));
}

// Hundreds of disks after a power failure: each block is intact or absent; what was promised is kept.
TEST_F(G3FileTest, AfterAPowerFailureEachBlockIsIntactOrAbsent) {
  const auto power = std::make_shared<PowerLoss>();
  G3Options watched = options();
  watched.faults = power;
  const auto file = G3File::open(watched).value();
  power->start(bytes());
  Random random(11);
  std::map<std::uint32_t, std::uint64_t>
      held;  // what a restart must find: committed, and not invalidated since
  std::uint64_t next_content = 1;
  const std::string real_path = path_;
  std::uint64_t images = 0;
  std::uint64_t torn = 0;
  // Mounts some images. `uncertain`: a slot that may hold its old content, its new one, or nothing.
  const auto mount = [&](std::optional<std::uint32_t> uncertain) {
    for (int i = 0; i < 4; ++i, ++images) {
      torn += power->pending_sectors() > 0 ? 1 : 0;
      path_ = folder_.file("image");
      store(power->image(random));
      const auto mounted = G3File::open(options());
      path_ = real_path;
      ASSERT_TRUE(mounted) << mounted.error();
      std::map<std::uint32_t, SequenceHash> found = contents(**mounted);
      for (const G3File::Entry& entry : (*mounted)->restored())
        ASSERT_TRUE(intact(**mounted, entry)) << "slot " << entry.slot;
      for (const auto& [slot, content] : held)
        if (slot != uncertain) {
          ASSERT_TRUE(found.contains(slot)) << "a promised block is gone";
          ASSERT_EQ(found[slot], hash_of(content));
        }
      for (const auto& [slot, hash] : found)
        ASSERT_TRUE(slot == uncertain || held.contains(slot)) << "a removed block is back";
    }
  };
  std::uint32_t slot = 0;
  // Also in the middle of a call, between a write and the sync behind it.
  power->after_write = [&] {
    if (!HasFatalFailure()) mount(slot);
  };
  for (int step = 0; step < 75 && !HasFatalFailure(); ++step) {
    slot = static_cast<std::uint32_t>(random.below(kBlocks));
    if (random.below(5) == 0) {
      ASSERT_TRUE(file->invalidate(std::span(&slot, 1)));
      held.erase(slot);
      mount({});
      continue;
    }
    // put(), with the power failing before, between and after its parts.
    ASSERT_TRUE(file->invalidate(std::span(&slot, 1)));
    held.erase(slot);
    mount({});
    const std::uint64_t content = next_content++;
    fill(content);
    const SequenceHash hash = hash_of(content);
    const G3File::Entry entry{
        slot,
        {.hash = hash,
         .checksum = transfer::checksum_block(*memory_, 0, transfer::ChecksumKey{hash, kG3Keys}).value()}};
    const std::uint32_t zero = 0;
    ASSERT_TRUE(
        executor_
            ->submit(
                {.plan = plan(memory_, std::span(&zero, 1), file->blocks(), std::span(&slot, 1)).value()})
            .value()
            .wait());
    mount(slot);
    ASSERT_TRUE(file->commit(std::span(&entry, 1), file->failed_syncs()));
    held[slot] = content;
    mount({});
  }
  EXPECT_GE(images, 500u);
  EXPECT_GE(torn, 100u) << "images with writes that were not synced";
}

TEST_F(G3FileTest, AfterAPowerFailureTheLogOfRemovalsIsTheLastOrTheOneBefore) {
  const auto power = std::make_shared<PowerLoss>();
  G3Options watched = options();
  watched.faults = power;
  const auto file = G3File::open(watched).value();
  power->start(bytes());
  Random random(5);
  const std::string real_path = path_;
  RemovalLog before;
  RemovalLog log;
  std::uint64_t torn = 0;
  const auto mounted = [&] {
    path_ = folder_.file("image");
    store(power->image(random));
    RemovalLog found = open()->removals();
    path_ = real_path;
    return found;
  };
  power->after_write = [&] {
    for (int i = 0; i < 8; ++i) {
      const RemovalLog found = mounted();
      torn += found == before ? 1 : 0;
      EXPECT_TRUE(found == before || found == log);
    }
  };
  for (std::uint64_t step = 0; step < 20; ++step) {
    before = log;
    const SequenceHash hash = hash_of(step);
    log.add(std::span(&hash, 1), 1);
    for (power->failing_syncs = static_cast<int>(random.below(3)); power->failing_syncs > 0;) {
      EXPECT_FALSE(file->invalidate({}, &log));
      EXPECT_EQ(mounted(), before) << "never neither";
    }
    ASSERT_TRUE(file->invalidate({}, &log));
    EXPECT_EQ(mounted(), log);
  }
  EXPECT_GT(torn, 20u);
}

}  // namespace
}  // namespace ashlar::tiers
