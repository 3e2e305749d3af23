// A KvBlockManager with blocks of known names for tier_bench, and a duel whose sides are prepared outside the
// time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "transfer_measure.h"

namespace ashlar::bench {

inline tokens::NamespaceFingerprint tier_keys() {
  return tokens::NamespaceFingerprint::from_bits(11, 12);
}
// Names of sequences of 64 blocks.
inline std::vector<tokens::SequenceHash> tier_names(std::uint32_t count) {
  std::vector<tokens::SequenceHash> names;
  names.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t content = i * 0x9E3779B97F4A7C15ull + 1;
    names.push_back(i % 64 == 0 ? tokens::SequenceHash::root(content) : names.back().child(content).value());
  }
  return names;
}

// Both in turns; what prepares a side is not timed.
inline Duel duel_prepared(std::uint64_t bytes, const std::function<void()>& prepare_ours,
                          const std::function<void()>& ours, const std::function<void()>& prepare_rival,
                          const std::function<void()>& rival, std::size_t pairs = kTransferPairs) {
  std::vector<double> speeds[2];
  std::vector<double> ratios;
  double cpu[2] = {0, 0};
  const auto timed = [&](int side, bool count) {
    (side == 0 ? prepare_ours : prepare_rival)();
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    (side == 0 ? ours : rival)();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (!count) return;
    cpu[side] += cpu_seconds() - cpu_before;
    speeds[side].push_back(static_cast<double>(bytes) / elapsed.count() / 1e9);
  };
  timed(0, false);
  timed(1, false);
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    timed(pair % 2 == 0 ? 0 : 1, true);
    timed(pair % 2 == 0 ? 1 : 0, true);
    ratios.push_back(speeds[0].back() / speeds[1].back());
  }
  const double gib = static_cast<double>(bytes) * static_cast<double>(pairs) / static_cast<double>(1 << 30);
  return {{spread_of(speeds[0]), cpu[0] / gib}, {spread_of(speeds[1]), cpu[1] / gib}, spread_of(ratios)};
}

struct TierSetupOptions {
  std::uint64_t bytes = 0;  // of a block
  std::uint32_t blocks = 0;
  std::string folder = {};
  bool sync = true;
  bool disk = true;
  bool volume = true;
  std::shared_ptr<storage::Allocator> g1 = {};
  std::shared_ptr<storage::Allocator> g2 = {};
  std::shared_ptr<transfer::Executor> executor = {};
};

// All blocks are in G1, none below. Blocks go down by call only.
class TierSetup {
 public:
  explicit TierSetup(const TierSetupOptions& options) {
    const std::uint32_t room = options.blocks + options.blocks / 4 + 64;  // what is held needs room beside
    tiers::KvOptions kv_options{.model = block_pieces(options.bytes, 1).config(),
                                .block_size = 16,
                                .keys = tier_keys(),
                                .g1 = {.block_count = options.blocks, .allocator = options.g1},
                                .g2 = tiers::TierShape{.block_count = room, .allocator = options.g2},
                                .executor = options.executor};
    if (options.bytes < 4096) kv_options.model.alignment = 1;
    if (options.disk)
      kv_options.g3 = tiers::DiskShape{
          .block_count = room, .paths = {options.folder + "/g3"}, .survive_power_loss = options.sync};
    if (options.volume) {
      volume_ = options.folder + "/volume";
      std::filesystem::create_directory(volume_);
      kv_options.g4 =
          tiers::VolumeShape{.block_count = room,
                             .probe = false,
                             .volumes = {{.name = "v",
                                          .kind = "directory",
                                          .location = volume_,
                                          .options = {{"sync", options.sync ? "true" : "false"}}}}};
    }
    for (tiers::OffloadRoute* const way : {&kv_options.to_g2, &kv_options.to_g3, &kv_options.to_g4}) {
      way->trigger = tiers::Trigger::kOnCall;
      way->worker.queue = {.on_deck = 256, .waiting = options.blocks};
      way->worker.batch_blocks = 256;
      way->worker.batch_bytes = std::uint64_t{64} << 20;
      way->worker.full_batch = 1;
    }
    g3_ = options.disk ? options.folder + "/g3" : "";
    auto made = tiers::KvBlockManager::create(std::move(kv_options));
    if (!made) stop(made.error());
    kv_ = *std::move(made);
    names_ = tier_names(options.blocks);
    auto fresh = kv_->get_mutable_blocks(options.blocks).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::uint32_t i = 0; i < options.blocks; ++i)
      complete.push_back(std::move(fresh[i]).stage(names_[i], block::KvReady::asserted_by_caller()));
    const auto registered = kv_->register_blocks(std::move(complete)).value();
  }
  ~TierSetup() {
    table_.clear();
    kv_.reset();
    if (!g3_.empty()) std::filesystem::remove(g3_);
    if (!volume_.empty()) std::filesystem::remove_all(volume_);
  }
  TierSetup(const TierSetup&) = delete;
  TierSetup& operator=(const TierSetup&) = delete;

  tiers::KvBlockManager& kv() noexcept { return *kv_; }
  const std::vector<tokens::SequenceHash>& names() const noexcept { return names_; }
  // What this object itself has on the heap.
  std::int64_t own_bytes() const noexcept {
    return static_cast<std::int64_t>(names_.capacity() * sizeof(tokens::SequenceHash));
  }

  void clear(int tier) {
    table_.clear();
    const auto cleared = kv_->reset(events::TierId(static_cast<std::uint8_t>(tier)));
    if (!cleared) stop(cleared.error());
  }
  // All blocks, from the tier above that has them.
  void offload(int tier) {
    const auto done = kv_->offload_to(events::TierId(static_cast<std::uint8_t>(tier)), names_).value().wait();
    if (!done) stop(done.error());
    expect(done->arrived);
  }
  // Its blocks stay in use until clear().
  void onboard() {
    table_ = kv_->onboard(names_);
    expect(table_.size());
  }
  void prefetch() {
    const auto handle = kv_->prefetch(names_).value();
    if (const auto done = handle.wait(); !done) stop(done.error());
    std::size_t hits = 0;
    for (const tiers::BlockOutcome& block : handle.blocks()) hits += block.state == tiers::OnboardState::kHit;
    expect(hits);
  }

 private:
  void expect(std::size_t blocks) const {
    if (blocks == names_.size()) return;
    std::fprintf(stderr, "only %zu of %zu blocks moved\n", blocks, names_.size());
    std::exit(2);
  }
  [[noreturn]] static void stop(const Error& error) {
    std::fprintf(stderr, "%s\n", error.to_string().c_str());
    std::exit(2);
  }

  std::string g3_;
  std::string volume_;
  std::unique_ptr<tiers::KvBlockManager> kv_;
  std::vector<tokens::SequenceHash> names_;
  tiers::OnboardTable table_;
};

}  // namespace ashlar::bench
