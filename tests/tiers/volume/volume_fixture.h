// Blocks in host memory, volumes in folders, and another pool of host memory that they come back to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/testing/managers.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "tiers/pool/memory_pool.h"
#include "tiers/volume/directory_volume.h"
#include "tiers/volume/volume_pool.h"

namespace ashlar::tiers {

class VolumePoolFixture : public ::testing::Test {
 protected:
  using G1 = events::G1;
  using G2 = events::G2;
  using G4 = events::G4;
  using SequenceHash = tokens::SequenceHash;
  using Contents = std::vector<std::uint64_t>;

  static constexpr std::uint32_t kHostBlocks = 16;
  static constexpr std::uint32_t kTargetBlocks = 20;
  static inline const tokens::NamespaceFingerprint kNames = tokens::NamespaceFingerprint::from_bits(5, 6);

  struct Setting {
    std::vector<layout::AxisOrder> host = {layout::order::kFullyContiguousNhd};  // one per plane
    layout::AxisOrder target = layout::order::kFullyContiguousNhd;
    std::uint32_t blocks = 200;  // of G4
    bool remove_evicted = false;
    bool read_back = false;
    Clock::Duration rest = {};
    Clock::Duration call_limit = {};
    Clock* clock = nullptr;
  };

  VolumePoolFixture() { open({}); }

  // Plane p of a block: 32 KiB, then less.
  static transfer::PlaneShape plane(std::size_t p, std::uint32_t blocks, const layout::AxisOrder& order) {
    const std::uint32_t heads = p == 0 ? 4 : 1;
    const layout::LayoutConfig config{.block_count = blocks,
                                      .num_layers = 2,
                                      .outer_dim = p == 0 ? 2u : 1u,
                                      .block_size = 16,
                                      .num_heads = heads,
                                      .head_dim = 64,
                                      .inner_dim = heads * 64,
                                      .dtype = layout::Dtype::kF16,
                                      .alignment = 4096};
    return transfer::PlaneShape::whole(layout::Layout::create(config, order).value());
  }
  // New pools, with no volume.
  void open(const Setting& setting) {
    g4_.reset();
    host_.reset();
    target_.reset();
    registry_ = ashlar::testing::make_registry();
    host_manager_.emplace(ashlar::testing::make_manager<G2>(options(kHostBlocks)));
    target_manager_.emplace(ashlar::testing::make_manager<G1>(options(kTargetBlocks)));
    block::ManagerOptions g4_options = options(setting.blocks);
    log_ = ashlar::testing::make_event_log();
    g4_options.events = log_;
    g4_manager_.emplace(ashlar::testing::make_manager<G4>(g4_options));
    std::vector<transfer::PlaneShape> host;
    std::vector<transfer::PlaneShape> target;
    for (std::size_t p = 0; p < setting.host.size(); ++p) {
      host.push_back(plane(p, kHostBlocks, setting.host[p]));
      target.push_back(plane(p, kTargetBlocks, setting.target));
    }
    storage::SystemAllocator memory;
    host_ = std::make_unique<MemoryPool<G2>>(
        *host_manager_, transfer::BlockSet::allocate(host, memory).value(), events::StorageTier::kHost);
    target_ = std::make_unique<MemoryPool<G1>>(
        *target_manager_, transfer::BlockSet::allocate(target, memory).value(), events::StorageTier::kDevice);
    g4_ = std::make_unique<VolumePool>(
        *g4_manager_, VolumePool::Options{.shape = VolumeObject::describe(*host_->blocks(), kNames, 9, 11),
                                          .remove_evicted = setting.remove_evicted,
                                          .read_back_after_write = setting.read_back,
                                          .rest = setting.rest,
                                          .call_limit = setting.call_limit,
                                          .clock = setting.clock});
  }
  block::ManagerOptions options(std::uint32_t blocks) const {
    block::ManagerOptions options = ashlar::testing::manager_options(blocks);
    options.registry = registry_;
    options.duplicates = block::DuplicatePolicy::kReject;
    return options;
  }

  // The folder of a volume stays when the volume goes.
  std::string folder_of(const std::string& volume) const { return folder_.file(volume); }
  Result<void> attach(const std::string& volume, const VolumeUse& use = {}) {
    std::filesystem::create_directories(folder_of(volume));
    auto& script = scripts_[volume];
    if (script == nullptr) script = std::make_shared<VolumeScript>();
    auto folder = DirectoryVolume::attach(
        {.name = volume, .kind = "directory", .location = folder_of(volume), .options = {{"sync", "false"}}});
    if (!folder) return folder.error();
    return g4_->attach(volume, std::make_unique<ScriptedVolume>(*std::move(folder), script), use);
  }
  VolumeScript& script(const std::string& volume) { return *scripts_.at(volume); }

  static SequenceHash name(std::uint64_t content) {
    return SequenceHash::root(content * 0x9E3779B97F4A7C15ull + 1);
  }
  static std::vector<SequenceHash> names(const Contents& contents) {
    std::vector<SequenceHash> out;
    for (const std::uint64_t content : contents) out.push_back(name(content));
    return out;
  }
  static Contents range(std::uint64_t first, std::uint64_t end) {
    Contents out;
    for (; first < end; ++first) out.push_back(first);
    return out;
  }
  std::string key(std::uint64_t content) const {
    VolumeObject object = VolumeObject::describe(*host_->blocks(), kNames, 9, 11);
    object.hash = name(content);
    return object.key();
  }
  // The file of an object; empty when there is none.
  std::string file_of(const std::string& volume, std::uint64_t content) const {
    std::string file_name = key(content);
    std::ranges::replace(file_name, '/', '~');
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_of(volume)))
      if (entry.path().filename() == file_name) return entry.path().string();
    return {};
  }
  static std::string read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  // Every byte of a block in canonical order, wherever it lies.
  template <class F>
  static void each_byte(const transfer::BlockSet& set, std::uint32_t slot, F&& fn) {
    std::uint64_t i = 0;
    for (std::size_t p = 0; p < set.planes().size(); ++p) {
      const layout::Layout& layout = set.planes()[p].layout;
      const layout::LayoutConfig& config = layout.config();
      const std::uint64_t head_bytes = config.head_bytes();
      for (std::uint32_t l = 0; l < config.num_layers; ++l)
        for (std::uint32_t o = 0; o < config.outer_dim; ++o)
          for (std::uint32_t t = 0; t < config.block_size; ++t)
            for (std::uint32_t h = 0; h < config.num_heads; ++h) {
              std::byte* const bytes = set.address(p, layout.place({slot, l, o, t, h}));
              for (std::uint64_t b = 0; b < head_bytes; ++b) fn(bytes[b], i++);
            }
    }
  }
  static std::byte byte_of(std::uint64_t content, std::uint64_t i) {
    return static_cast<std::byte>(content * 31 + i * 7 + (i >> 8));
  }
  void put_in_host(std::uint64_t content, TierRecord record = {}) {
    if (host_->has(name(content))) return;
    auto reserved = host_->reserve(1).value();
    each_byte(*host_->blocks(), reserved->ids()[0].value(),
              [&](std::byte& byte, std::uint64_t i) { byte = byte_of(content, i); });
    record.hash = name(content);
    ASSERT_TRUE(reserved->publish(std::span(&record, 1), block::KvReady::asserted_by_caller()).registered[0]);
  }
  // Computes blocks and puts them on volumes, a few at a time.
  std::vector<Moved> put(const Contents& contents, std::optional<Error>* error = nullptr) {
    std::vector<Moved> moved;
    for (std::size_t at = 0; at < contents.size();) {
      std::vector<block::Hold> holds;
      for (; at < contents.size() && holds.size() < 8; ++at) {
        put_in_host(contents[at]);
        holds.push_back(host_->hold(name(contents[at])).value());
      }
      const MoveReport report = g4_->put(*host_, std::move(holds));
      moved.insert(moved.end(), report.blocks.begin(), report.blocks.end());
      if (error != nullptr && report.error) *error = report.error;
    }
    return moved;
  }
  // Reads blocks that the target has not.
  MoveReport get(const Contents& contents, const MoveOptions& options = {}) {
    target_manager_->reset_inactive_pool();
    return g4_->get(names(contents), *target_, options);
  }
  bool right(std::uint64_t content) {
    const auto hold = target_->hold(name(content));
    if (!hold) return false;
    bool good = true;
    each_byte(*target_->blocks(), hold->block_id().value(),
              [&](const std::byte& byte, std::uint64_t i) { good &= byte == byte_of(content, i); });
    return good;
  }
  VolumeStatus status(const std::string& volume) const {
    for (const VolumeStatus& one : g4_->volumes())
      if (one.name == volume) return one;
    return {};
  }
  void expect_counts_exact() {
    EXPECT_EQ(host_manager_->available_blocks(), kHostBlocks);
    EXPECT_EQ(target_manager_->available_blocks(), kTargetBlocks);
    EXPECT_EQ(g4_manager_->available_blocks(), g4_manager_->total_blocks());
    host_manager_->check_invariants();
    target_manager_->check_invariants();
    g4_manager_->check_invariants();
    g4_->check_invariants();
  }

  ScratchFolder folder_;
  block::BlockRegistry registry_ = ashlar::testing::make_registry();
  std::shared_ptr<events::EventLog> log_;
  std::optional<block::BlockManager<G2>> host_manager_;
  std::optional<block::BlockManager<G1>> target_manager_;
  std::optional<block::BlockManager<G4>> g4_manager_;
  std::unique_ptr<MemoryPool<G2>> host_;
  std::unique_ptr<MemoryPool<G1>> target_;
  std::unique_ptr<VolumePool> g4_;
  std::map<std::string, std::shared_ptr<VolumeScript>> scripts_;
  Mutex lines_mu_;
  std::vector<std::string> lines_;  // of the log; read when nobody else runs
  ScopedLogSink sink_{[this](LogLevel, std::string_view, std::string_view line) {
    const MutexLock lock(lines_mu_);
    lines_.emplace_back(line);
  }};
};

}  // namespace ashlar::tiers
