// The tiers of TierTest, with G3 over three files whose devices fail one by one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/log.h"
#include "tiers/tier_fixture.h"

namespace ashlar::tiers {

// Operations of one device: what fails, and what is written otherwise than it was asked to.
class Device final : public storage::IoFaults {
 public:
  storage::IoVerdict judge(storage::IoDirection direction, std::uint64_t offset, std::uint64_t) override {
    if (direction == storage::IoDirection::kRead) return {.error = read_error};
    return {.error = offset < data_at ? header_error : write_error};
  }
  void written(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (!alters || offset < data_at) return;
    const std::byte other = ~bytes[0];
    EXPECT_EQ(pwrite(descriptor, &other, 1, static_cast<off_t>(offset)), 1);
  }

  int syncing() override { return sync_error.exchange(0); }

  std::atomic<int> read_error{0};
  std::atomic<int> write_error{0};   // of blocks
  std::atomic<int> header_error{0};  // of their headers
  std::atomic<int> sync_error{0};    // of the next sync
  std::atomic<bool> alters{false};
  std::atomic<std::uint64_t> data_at{0};
  std::atomic<int> descriptor{-1};
};

class StripedTest : public TierTest {
 protected:
  static constexpr std::size_t kFiles = 3;  // 4, 3 and 3 blocks
  static constexpr std::uint64_t kAll = kG3Blocks;
  static constexpr Clock::Duration kRest = std::chrono::seconds(30);

  StripedTest() { open_striped(); }

  Result<std::unique_ptr<G3File>> open_file(std::size_t part, std::uint32_t blocks) {
    return G3File::open(
        {.path = folder_.file("part" + std::to_string(part)),
         .planes = {transfer::PlaneShape::whole(layout_of(blocks, layout::order::kUniversalTp))},
         .keys = kKeys,
         .survive_power_loss = syncs_,
         .faults = devices_[part]});
  }
  Result<std::unique_ptr<G3File>> open_file(std::size_t part) {
    return open_file(part, DiskPool::share(kG3Blocks, part, kFiles));
  }
  // G3 as the files have it, without those of devices that are missing.
  void open_striped(const std::vector<std::size_t>& missing = {}) {
    g3_.reset();
    g3_manager_.emplace(ashlar::testing::make_manager<G3>(options<G3>(kG3Blocks)));
    std::vector<std::unique_ptr<G3File>> files(kFiles);
    for (std::size_t part = 0; part < kFiles; ++part) {
      if (std::ranges::find(missing, part) != missing.end()) continue;
      files[part] = open_file(part).value();
      const transfer::RegionMemory& region = files[part]->blocks()->planes()[0].regions[0];
      devices_[part]->data_at = region.offset;
      devices_[part]->descriptor = region.storage->file()->buffered;
    }
    auto pool = DiskPool::create(*g3_manager_, std::move(files), {.rest = kRest, .clock = &clock_});
    ASSERT_TRUE(pool) << pool.error();
    g3_ = *std::move(pool);
  }
  void restart(const std::vector<std::size_t>& missing = {}) {
    close();
    open();
    open_striped(missing);
  }

  // A block in G2, with what is known of it.
  void put_in_host(std::uint64_t content, const TierRecord& record = {}) {
    auto reserved = g2_->reserve(1).value();
    each_byte(*g2_->blocks(), reserved->ids()[0].value(),
              [&](std::byte& byte, std::uint64_t i) { byte = byte_of(content, i); });
    TierRecord named = record;
    named.hash = name(content);
    const Published published = reserved->publish(std::span(&named, 1), KvReady::asserted_by_caller());
    ASSERT_TRUE(published.registered[0]);
  }
  // Blocks first … end - 1 to G3, a few at a time. Returns what became of them.
  std::vector<Moved> store(std::uint64_t first, std::uint64_t end, std::optional<Error>* error = nullptr) {
    std::vector<Moved> moved;
    while (first < end) {
      std::vector<SequenceHash> some;
      for (; first < end && some.size() < kG2Blocks; ++first) {
        put_in_host(first);
        some.push_back(name(first));
      }
      const MoveReport report = mover_->move(*g2_, *g3_, some);
      moved.insert(moved.end(), report.blocks.begin(), report.blocks.end());
      if (error != nullptr && report.error) *error = report.error;
    }
    g2_manager_->reset_inactive_pool();
    return moved;
  }
  // Brings a block up and compares it.
  Moved fetch(std::uint64_t content) {
    g2_manager_->reset_inactive_pool();
    const Moved moved = move(*g3_, *g2_, {content}).blocks[0];
    EXPECT_EQ(moved == Moved::kArrived, right(*g2_, content)) << content;
    return moved;
  }
  // The file that has a block.
  std::optional<std::uint32_t> part_of(std::uint64_t content) {
    const auto hold = g3_->hold(name(content));
    if (!hold) return std::nullopt;
    return g3_->place(hold->block_id()).part;
  }
  void expect_all_available() {
    EXPECT_EQ(g3_->resting(), 0u);
    expect_counts_exact();
  }

  bool syncs_ = false;  // from the next opening on
  ManualClock clock_;
  std::array<std::shared_ptr<Device>, kFiles> devices_ = {
      std::make_shared<Device>(), std::make_shared<Device>(), std::make_shared<Device>()};
  std::vector<std::string> lines_;  // of the log
  ScopedLogSink sink_{
      [this](LogLevel, std::string_view, std::string_view line) { lines_.emplace_back(line); }};
};

}  // namespace ashlar::tiers
