// One scenario over all tiers, again and again, and every time another step of it fails: a copy that is
// refused, a read, a write, a sync, a call of the volume, a byte that changes on its way to the disk.
// Whatever fails, nothing wrong is found, what was removed stays away, and no block is lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "support/watched_executor.h"
#include "tiers/kv_workload.h"
#include "tiers/volume/directory_volume.h"

namespace ashlar::tiers {
namespace {

using events::kTierId;
using tokens::SequenceHash;

enum class Fault : std::uint8_t { kNone, kCopy, kRead, kWrite, kNoSpace, kShortWrite, kSync, kFlip, kVolume };

// Counts the steps of one kind; one of them fails, or all from one on.
class Steps {
 public:
  void arm(Fault fault, std::int64_t at, bool from_then_on) {
    fault_ = fault;
    at_ = at;
    all_ = from_then_on;
    count_ = 0;
  }
  bool strikes(Fault fault) {
    if (fault != fault_) return false;
    const std::int64_t step = count_++;
    return all_ ? step >= at_ : step == at_;
  }
  std::int64_t count() const { return count_; }

 private:
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<std::int64_t> at_{0};
  std::atomic<bool> all_{false};
  std::atomic<std::int64_t> count_{0};
};

class StepFaults final : public storage::IoFaults {
 public:
  StepFaults(Steps& steps, std::string path) : steps_(steps), path_(std::move(path)) {}
  storage::IoVerdict judge(storage::IoDirection direction, std::uint64_t, std::uint64_t) override {
    if (direction == storage::IoDirection::kRead) return {.error = steps_.strikes(Fault::kRead) ? EIO : 0};
    if (steps_.strikes(Fault::kWrite)) return {.error = EIO};
    if (steps_.strikes(Fault::kNoSpace)) return {.error = ENOSPC};
    if (steps_.strikes(Fault::kShortWrite)) return {.error = 0, .at_most = 512};
    return {};
  }
  void written(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (bytes.empty() || offset == 0 || !steps_.strikes(Fault::kFlip)) return;
    const int file = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    const std::byte flipped = bytes[bytes.size() / 2] ^ std::byte{16};
    EXPECT_EQ(pwrite(file, &flipped, 1, static_cast<off_t>(offset + bytes.size() / 2)), 1);
    close(file);
  }
  int syncing() override { return steps_.strikes(Fault::kSync) ? EIO : 0; }

 private:
  Steps& steps_;
  const std::string path_;
};

class TierFaultsTest : public ::testing::TestWithParam<Fault> {
 protected:
  struct Found {
    std::size_t first = 0;   // blocks of the first sequence after a restart
    std::size_t second = 0;  // of the second
  };

  // False when the manager could not be made, which is an answer too.
  bool open(bool read_back) {
    KvOptions options = KvWorkload::options(folder_->file("a"));
    options.g3->paths = {folder_->file("a"), folder_->file("b")};
    options.g3->faults = {std::make_shared<StepFaults>(steps_, folder_->file("a")),
                          std::make_shared<StepFaults>(steps_, folder_->file("b"))};
    script_ = std::make_shared<VolumeScript>();
    script_->verdict = [this](VolumeCall, std::string_view) {
      return steps_.strikes(Fault::kVolume) ? std::optional(ErrorCode::kUnavailable) : std::nullopt;
    };
    options.g4 = VolumeShape{.block_count = 40, .rest = {}};
    options.g4->kinds.add(
        "scripted", [this](const VolumeDescriptor& descriptor) -> Result<std::unique_ptr<Volume>> {
          return std::unique_ptr<Volume>(
              std::make_unique<ScriptedVolume>(DirectoryVolume::attach(descriptor).value(), script_));
        });
    mkdir(folder_->file("v").c_str(), 0700);
    options.g4->volumes = {{.name = "v",
                            .kind = "scripted",
                            .location = folder_->file("v"),
                            .options = {{"sync", "false"}, {"threads", "1"}}}};
    for (OffloadRoute* const way : {&options.to_g2, &options.to_g3, &options.to_g4})
      way->worker.max_wait = {};
    options.read_back_after_write = read_back;
    options.executor = std::make_shared<transfer::WatchedExecutor>(
        [this](const transfer::TransferPlan&) -> std::optional<Error> {
          if (!steps_.strikes(Fault::kCopy)) return std::nullopt;
          return make_error(ErrorCode::kCapacity, "no copies today");
        });
    auto made = KvBlockManager::create(options);
    if (!made) return false;
    kv_ = *std::move(made);
    return true;
  }
  void expect_counts_exact() {
    kv_->drain();
    const KvStatus status = kv_->status();
    EXPECT_EQ(status.g1.pool.available(), 8u);
    EXPECT_EQ(status.g2->pool.available(), 12u);
    EXPECT_EQ(status.g3->pool.available() + status.g3->pool.owned,
              40u);  // blocks of a device that failed rest
    EXPECT_EQ(status.g4->pool.available(), 40u);
    kv_->check_invariants();
  }
  std::size_t bring(const std::vector<SequenceHash>& hashes) {
    const OnboardTable table = kv_->onboard(hashes);
    EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
    return table.size();
  }

  std::optional<Found> scenario(bool read_back) {
    folder_.emplace();
    if (!open(read_back)) return std::nullopt;
    const auto first = KvWorkload::sequence(1, 5);
    const auto second = KvWorkload::sequence(2, 3);
    int wrong = 0;
    {
      const auto table = KvWorkload(*kv_).request(first, &wrong);
    }
    kv_->drain();
    kv_->reset(kTierId<events::G1>).value();
    kv_->reset(kTierId<events::G2>).value();
    bring(first);
    const bool removed = kv_->reset_blocks(std::span(first).last(1)).has_value();
    {
      const auto table = KvWorkload(*kv_).request(second, &wrong);
    }
    expect_counts_exact();
    EXPECT_EQ(wrong, 0);
    kv_.reset();
    if (!open(read_back)) return std::nullopt;
    Found found{bring(first), bring(second)};
    if (removed) {
      EXPECT_LE(found.first, 4u) << "it was removed";
    }
    expect_counts_exact();
    kv_.reset();
    return found;
  }

  const ScopedLogSink quiet_{[](LogLevel, std::string_view, std::string_view) {}};
  std::optional<ScratchFolder> folder_;
  Steps steps_;
  std::shared_ptr<VolumeScript> script_;
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_P(TierFaultsTest, WhateverFailsNothingWrongIsFound) {
  for (const bool read_back : {false, true}) {
    steps_.arm(GetParam(), 1 << 30, false);
    const std::optional<Found> clean = scenario(read_back);
    ASSERT_TRUE(clean);
    EXPECT_EQ(clean->first, 4u);
    EXPECT_EQ(clean->second, 3u);
    const std::int64_t steps = steps_.count();
    ASSERT_GT(steps, 0) << "the scenario has no such step";
    Random random(7);
    const ashlar::testing::TimeBox box(0.5);
    const auto at_least = static_cast<std::int64_t>(ashlar::testing::rounds(16));
    for (std::int64_t round = 0; round < at_least || (round < 4 * steps && !box.over()); ++round) {
      const auto at = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(steps)));
      const bool from_then_on = random.below(4) == 0;
      SCOPED_TRACE(::testing::Message() << "step " << at << (from_then_on ? " and all after it" : ""));
      steps_.arm(GetParam(), at, from_then_on);
      scenario(read_back);
      kv_.reset();
      if (HasFailure()) return;
    }
  }
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& each) {
  constexpr std::array kNames = {"None",       "Copy", "Read", "Write", "NoSpace",
                                 "ShortWrite", "Sync", "Flip", "Volume"};
  return kNames[static_cast<std::size_t>(each.param)];
}

INSTANTIATE_TEST_SUITE_P(All, TierFaultsTest,
                         ::testing::Values(Fault::kCopy, Fault::kRead, Fault::kWrite, Fault::kNoSpace,
                                           Fault::kShortWrite, Fault::kSync, Fault::kFlip, Fault::kVolume),
                         fault_name);

}  // namespace
}  // namespace ashlar::tiers
