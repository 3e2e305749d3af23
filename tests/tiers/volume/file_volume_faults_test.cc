// FileVolume when writes, reads and syncs fail, when the process dies, and when the power does.
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "tiers/power_loss.h"
#include "tiers/volume/file_volume_fixture.h"

namespace ashlar::tiers {
namespace {

// Counts writes and syncs. From number `first` on, `count` of them fail with an errno; or every one is short.
class Faults final : public storage::IoFaults {
 public:
  static constexpr int kForever = std::numeric_limits<int>::max();

  void fail(int first, int count, int error) {
    first_ = first;
    count_ = count;
    error_ = error;
    operations_ = 0;
    struck = false;
  }
  void stop() { fail(0, 0, 0); }

  storage::IoVerdict judge(storage::IoDirection direction, std::uint64_t, std::uint64_t) override {
    if (direction == storage::IoDirection::kRead) return {.error = read_error, .at_most = at_most};
    return {.error = next(), .at_most = at_most};
  }
  int syncing() override {
    ++syncs;
    return next() == 0 ? 0 : EIO;
  }

  bool struck = false;  // something failed
  int syncs = 0;
  int read_error = 0;
  std::uint64_t at_most = std::numeric_limits<std::uint64_t>::max();

 private:
  int next() {
    const int number = operations_++;
    if (number < first_ || number - first_ >= count_) return 0;
    struck = true;
    return error_;
  }
  int operations_ = 0;
  int first_ = 0;
  int count_ = 0;
  int error_ = 0;
};

// PowerLoss whose syncs fail now and then. What was written before such a sync may be on the disk or not:
// some systems write it with the next sync, others forget it.
class FailingPower final : public storage::IoFaults {
 public:
  explicit FailingPower(std::uint64_t seed) : random_(seed) {}

  storage::IoVerdict judge(storage::IoDirection, std::uint64_t, std::uint64_t) override { return {}; }
  void written(std::uint64_t offset, std::span<const std::byte> bytes) override {
    power.written(offset, bytes);
  }
  void synced() override { power.synced(); }
  int syncing() override {
    if (random_.below(10) >= failures_of_ten) return 0;
    ++failed;
    if (random_.below(2) == 0) power.start(power.image(random_));
    return EIO;
  }

  PowerLoss power;
  std::uint64_t failures_of_ten = 0;
  int failed = 0;

 private:
  Random random_;
};

// Which bytes a key may have; an empty optional is no object.
using Content = std::optional<std::uint64_t>;
using Allowed = std::map<std::string, std::set<Content>>;

std::size_t size_of(std::uint64_t content) {
  return 1 + content * 997 % 8192;
}

// The content of a key; fails the test if it has bytes that nobody gave it.
Content content_of(Volume& volume, const std::string& key, const std::set<Content>& allowed) {
  if (!contains_one(volume, key).value()) return std::nullopt;
  for (const Content& content : allowed) {
    if (!content) continue;
    const Result<Bytes> got = get_one(volume, key, size_of(*content));
    if (got && *got == make_bytes(size_of(*content), *content)) return content;
  }
  ADD_FAILURE() << key << " has bytes that it should not have";
  return std::nullopt;
}

void expect_allowed(Volume& volume, const Allowed& allowed) {
  for (const auto& [key, contents] : allowed)
    EXPECT_TRUE(contents.contains(content_of(volume, key, contents))) << key;
}

class FileVolumeFaultsTest : public FileVolumeFixture {
 protected:
  // Does what it can of: replace a, new c and d in a batch; remove b; new e. Narrows what is allowed by the
  // answers.
  static void work(FileVolume& volume, Allowed& now, Allowed& later, int error) {
    Writes writes;
    const std::vector<std::pair<std::string, std::uint64_t>> batch{{"a", 11}, {"c", 12}, {"d", 13}};
    for (const auto& [key, content] : batch) writes.add(key, make_bytes(size_of(content), content));
    const std::vector<Result<void>> put = volume.put(writes.objects());
    for (std::size_t i = 0; i < batch.size(); ++i) answer(put[i], batch[i], now, later, error);
    const std::string_view b = "b";
    const Result<void> removed = volume.remove(std::span(&b, 1))[0];
    now["b"] = {std::nullopt};
    if (removed) {
      later["b"] = {std::nullopt};
    } else {
      later["b"].insert(std::nullopt);
    }
    const std::pair<std::string, std::uint64_t> last{"e", 14};
    answer(put_one(volume, "e", make_bytes(size_of(14), 14)), last, now, later, error);
  }
  static void answer(const Result<void>& put, const std::pair<std::string, std::uint64_t>& object,
                     Allowed& now, Allowed& later, int error) {
    if (put) {
      now[object.first] = {object.second};
      later[object.first] = {object.second};
    } else {
      // A sync has no other error than kIo.
      const bool named = put.error().code() == ErrorCode::kIo ||
                         (error == ENOSPC && put.error().code() == ErrorCode::kCapacity);
      EXPECT_TRUE(named) << put.error();
      later[object.first].insert(object.second);  // whole, or as it was
    }
  }
  void start(FileVolume& volume, Allowed& allowed) {
    allowed = {{"a", {1}}, {"b", {2}}, {"c", {std::nullopt}}, {"d", {std::nullopt}}, {"e", {std::nullopt}}};
    ASSERT_TRUE(put_one(volume, "a", make_bytes(size_of(1), 1)));
    ASSERT_TRUE(put_one(volume, "b", make_bytes(size_of(2), 2)));
  }
};

TEST_F(FileVolumeFaultsTest, AFaultAtAnyWriteOrSyncIsToldAndHarmsNothingElse) {
  for (const int error : {EIO, ENOSPC}) {
    for (const int count : {1, 2, Faults::kForever}) {
      int first = 0;
      for (bool struck = true; struck && !HasFailure(); ++first) {
        const auto faults = std::make_shared<Faults>();
        Allowed now;
        Allowed later;
        // Once with a restart after it, once with what failed repeated.
        for (const bool repeat : {false, true}) {
          provision();
          {
            const auto volume = open(faults);
            start(*volume, now);
            later = now;
            faults->fail(first, count, error);
            work(*volume, now, later, error);
            struck = faults->struck;
            faults->stop();
            expect_allowed(*volume, now);
            if (repeat) {
              work(*volume, now, later, error);
              EXPECT_EQ(now, later) << "nothing failed";
              expect_allowed(*volume, now);
              EXPECT_EQ(volume->free_slots(), kSlots - 4) << "no slot is lost";
            }
          }
          expect_allowed(*open(), later);
        }
      }
      EXPECT_GE(first, 15) << "writes and syncs of the work";
    }
  }
}

TEST_F(FileVolumeFaultsTest, ShortWritesAndReadsGoOn) {
  provision();
  const auto faults = std::make_shared<Faults>();
  faults->at_most = 100;
  Allowed now;
  Allowed later;
  const auto volume = open(faults);
  start(*volume, now);
  later = now;
  work(*volume, now, later, 0);
  EXPECT_EQ(now, later) << "nothing failed";
  expect_allowed(*volume, now);
}

// The slot of an object that is being read is nobody else's before the read has ended.
TEST_F(FileVolumeFaultsTest, WhatIsRemovedWhileItIsReadComesBackWhole) {
  struct DuringRead final : storage::IoFaults {
    storage::IoVerdict judge(storage::IoDirection direction, std::uint64_t, std::uint64_t) override {
      if (direction == storage::IoDirection::kRead && act) std::exchange(act, nullptr)();
      return {};
    }
    std::function<void()> act;
  };
  provision();
  const auto faults = std::make_shared<DuringRead>();
  const auto volume = open(faults);
  ASSERT_TRUE(put_one(*volume, "k", make_bytes(5000, 1)));
  faults->act = [&] {
    const std::string_view key = "k";
    EXPECT_TRUE(volume->remove(std::span(&key, 1))[0]);
    for (std::uint64_t i = 0; i < kSlots; ++i)
      EXPECT_EQ(code_of(put_one(*volume, "new" + std::to_string(i), make_bytes(6000, 2))),
                i + 1 < kSlots ? std::nullopt : std::optional(ErrorCode::kCapacity));
  };
  EXPECT_TRUE(get_one(*volume, "k", 5000).value() == make_bytes(5000, 1));
  EXPECT_EQ(volume->free_slots(), 1u);
  EXPECT_TRUE(put_one(*volume, "last", make_bytes(6000, 2)));
}

// A system tells of bytes that it lost once; who is told may not be the one whose bytes they were.
TEST_F(FileVolumeFaultsTest, ASyncThatFailsFailsWhatWasWrittenBeforeItToo) {
  struct DuringWrite final : storage::IoFaults {
    storage::IoVerdict judge(storage::IoDirection, std::uint64_t, std::uint64_t) override { return {}; }
    void written(std::uint64_t, std::span<const std::byte>) override {
      if (act) std::exchange(act, nullptr)();
    }
    int syncing() override { return std::exchange(sync_error, 0); }
    int sync_error = 0;
    std::function<void()> act;
  };
  provision();
  const auto faults = std::make_shared<DuringWrite>();
  {
    const auto volume = open(faults);
    faults->act = [&] {
      faults->sync_error = EIO;
      EXPECT_EQ(code_of(put_one(*volume, "other", make_bytes(100, 1))), ErrorCode::kIo);
    };
    const Result<void> put = put_one(*volume, "k", make_bytes(100, 2));
    ASSERT_EQ(code_of(put), ErrorCode::kIo);
    EXPECT_NE(put.error().message().find("repeat it"), std::string::npos) << put.error();
    EXPECT_EQ(volume->free_slots(), kSlots);
    EXPECT_TRUE(put_one(*volume, "k", make_bytes(100, 2)));
  }
  EXPECT_TRUE(get_one(*open(), "k", 100).value() == make_bytes(100, 2));
}

TEST_F(FileVolumeFaultsTest, ReadsThatFailAreTold) {
  provision();
  const auto faults = std::make_shared<Faults>();
  {
    const auto volume = open(faults);
    ASSERT_TRUE(put_one(*volume, "k", make_bytes(100, 1)));
    faults->read_error = EIO;
    EXPECT_EQ(code_of(get_one(*volume, "k", 100)), ErrorCode::kIo);
    EXPECT_TRUE(contains_one(*volume, "k").value());
    faults->read_error = 0;
    EXPECT_TRUE(get_one(*volume, "k", 100));
  }
  faults->read_error = EIO;
  EXPECT_EQ(code_of(FileVolume::open({.path = path_, .faults = faults})), ErrorCode::kIo);
  faults->read_error = 0;
  EXPECT_TRUE(FileVolume::open({.path = path_, .faults = faults}));
}

TEST_F(FileVolumeFaultsTest, ProvisionThatFailsLeavesAnEmptyFile) {
  for (int first = 0; first < 4; ++first) {
    make_file();
    const auto faults = std::make_shared<Faults>();
    faults->fail(first, 1, EIO);
    EXPECT_EQ(code_of(provision_file_volume(path_, {.slot_bytes = kSlotBytes, .faults = faults})),
              ErrorCode::kIo);
    EXPECT_EQ(image(), Image(kBytes, 0)) << first;
    EXPECT_TRUE(provision_file_volume(path_, {.slot_bytes = kSlotBytes}));
  }
}

// The operator cleared an old volume, which is in memory only, and the sync that would tell fails.
TEST_F(FileVolumeFaultsTest, ProvisionAgainAfterAFailedSyncBringsNoOldObjectBack) {
  provision();
  ASSERT_TRUE(put_one(*open(), "k", make_bytes(100, 2)));
  const auto power = std::make_shared<PowerLoss>();
  power->start(image());
  make_file();
  power->failing_syncs = 1;
  const ProvisionOptions options{.slot_bytes = kSlotBytes, .faults = power};
  EXPECT_EQ(code_of(provision_file_volume(path_, options)), ErrorCode::kIo);
  ASSERT_TRUE(provision_file_volume(path_, options));
  Random random(5);
  store(power->image(random));
  EXPECT_EQ(open()->free_slots(), kSlots);
}

TEST_F(FileVolumeFaultsTest, ABatchIsSyncedAsOne) {
  provision();
  const auto faults = std::make_shared<Faults>();
  const auto volume = open(faults);
  Writes writes;
  std::vector<std::string_view> keys;
  for (std::size_t i = 0; i < kSlots / 2; ++i) writes.add("k" + std::to_string(i), make_bytes(100, i));
  keys.reserve(writes.size());
  for (std::size_t i = 0; i < writes.size(); ++i) keys.push_back(writes.key(i));
  const auto syncs_of = [&](auto act) {
    const int before = faults->syncs;
    for (const Result<void>& result : act()) EXPECT_TRUE(result) << result.error();
    return faults->syncs - before;
  };
  EXPECT_EQ(syncs_of([&] { return volume->put(writes.objects()); }), 2) << "bytes, headers";
  EXPECT_EQ(syncs_of([&] { return volume->put(writes.objects()); }), 3) << "and old headers";
  EXPECT_EQ(syncs_of([&] { return volume->remove(keys); }), 1);
  EXPECT_EQ(syncs_of([&] { return volume->remove(keys); }), 0);
}

// Thousands of disks after a power failure, or the death of the process, in the middle of calls and between
// them, while syncs fail now and then: each object is whole or absent; what was promised is kept. Now and
// then the work goes on with one of those disks.
class FileVolumePowerTest : public FileVolumeFaultsTest {
 protected:
  void SetUp() override {
    provision();
    volume_ = open(faults_);
    power().start(image());
    for (int i = 0; i < 8; ++i) allowed_["k" + std::to_string(i)] = {std::nullopt};
    power().after_write = [&] {
      if (HasFailure()) return;
      torn_ += power().pending_sectors() > 0 ? 1 : 0;
      for (int i = 0; i < 3; ++i) mount(power().image(random_));
      mount(image());  // the process has died, and the system has not
      if (may_cut_ && !cut_ && random_.below(4) == 0) cut_ = power().image(random_);
    };
  }
  PowerLoss& power() { return faults_->power; }
  void mount(const Image& disk) {
    store(mounted_at_, disk);
    const auto mounted = FileVolume::open({.path = mounted_at_});
    ASSERT_TRUE(mounted) << mounted.error();
    expect_allowed(**mounted, allowed_);
    ++images_;
  }
  // Puts or removes some keys. What they may have is wider while it runs, and after an error.
  void step() {
    std::set<std::string> keys;
    const std::uint64_t count = 1 + random_.below(3);
    while (keys.size() < count) keys.insert("k" + std::to_string(random_.below(allowed_.size())));
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<Content> contents;
    Writes writes;
    const bool remove = random_.below(4) == 0;
    for (const std::string& key : keys) {
      contents.push_back(remove ? Content() : next_content_++);
      allowed_[key].insert(contents.back());
      if (!remove) writes.add(key, make_bytes(size_of(*contents.back()), *contents.back()));
    }
    const std::vector<Result<void>> results =
        remove ? volume_->remove(views) : volume_->put(writes.objects());
    if (cut_) return;
    for (std::size_t i = 0; i < results.size(); ++i)
      if (results[i]) allowed_[std::string(views[i])] = {contents[i]};
    mount(power().image(random_));
  }
  void run(int steps) {
    for (int i = 0; i < steps && !HasFailure(); ++i) {
      may_cut_ = i % 4 == 3;
      step();
      if (!cut_) continue;
      volume_.reset();
      store(*cut_);
      power().start(*std::exchange(cut_, std::nullopt));
      volume_ = open(faults_);
      ++restarts_;
      for (auto& [key, contents] : allowed_) contents = {content_of(*volume_, key, contents)};
    }
    EXPECT_GE(images_, 1000u);
    EXPECT_GE(torn_, 250u) << "moments with writes that were not synced";
    EXPECT_GE(restarts_, 5);
  }

  const std::shared_ptr<FailingPower> faults_ = std::make_shared<FailingPower>(23);
  const std::string mounted_at_ = folder_.file("image");
  std::unique_ptr<FileVolume> volume_;
  Random random_{17};
  Allowed allowed_;
  std::uint64_t next_content_ = 1;
  std::uint64_t images_ = 0;
  std::uint64_t torn_ = 0;
  int restarts_ = 0;
  bool may_cut_ = false;
  std::optional<Image> cut_;  // the disk that the work goes on with
};

TEST_F(FileVolumePowerTest, AfterAPowerFailureEachObjectIsWholeOrAbsent) {
  run(80);
}

TEST_F(FileVolumePowerTest, AlsoWhereSyncsHaveFailedBefore) {
  faults_->failures_of_ten = 3;
  run(80);
  EXPECT_GE(faults_->failed, 25);
}

}  // namespace
}  // namespace ashlar::tiers
