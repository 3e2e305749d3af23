// VolumeTier: a KvBlockManager whose blocks go to volumes, and what tests do with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/tiers/kv_block_manager.h"
#include "tiers/kv_workload.h"

namespace ashlar::tiers {

class VolumeTier {
 public:
  using Hashes = std::vector<tokens::SequenceHash>;

  static constexpr events::TierId kG1 = events::kTierId<events::G1>;
  static constexpr events::TierId kG2 = events::kTierId<events::G2>;
  static constexpr events::TierId kG3 = events::kTierId<events::G3>;
  static constexpr events::TierId kG4 = events::kTierId<events::G4>;

  // 8, 12 and 60 blocks; no G3.
  static KvOptions options(std::vector<VolumeDescriptor> volumes,
                           VolumeRegistry kinds = VolumeRegistry::with_builtin()) {
    KvOptions options = KvWorkload::options("unused");
    options.g3.reset();
    options.g4 =
        VolumeShape{.block_count = 60, .rest = {}, .volumes = std::move(volumes), .kinds = std::move(kinds)};
    return options;
  }

  explicit VolumeTier(KvOptions options) : options_(std::move(options)) { restart(); }

  // What was only in memory is gone.
  void restart() {
    kv_.reset();
    kv_ = KvBlockManager::create(options_).value();
  }
  KvBlockManager& kv() { return *kv_; }
  KvOptions& options() { return options_; }

  static Hashes sequence(std::uint64_t number, std::size_t blocks) {
    return KvWorkload::sequence(number, blocks);
  }
  // Brings up what there is and computes the rest. Returns how many came up.
  std::size_t request(const Hashes& hashes) {
    int wrong = 0;
    const std::uint64_t before = kv_->status().missed();
    const auto table = KvWorkload(*kv_).request(hashes, &wrong);
    EXPECT_TRUE(table);
    EXPECT_EQ(wrong, 0);
    return hashes.size() - (kv_->status().missed() - before);
  }
  // How many come up, all with their bytes.
  std::size_t onboard(const Hashes& hashes) {
    const auto table = kv_->onboard(hashes);
    EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
    return table.size();
  }
  // Leaves blocks on volumes and disks only.
  void push_out() {
    EXPECT_TRUE(kv_->drain());
    EXPECT_TRUE(kv_->reset(kG1));
    EXPECT_TRUE(kv_->reset(kG2));
  }
  // Where the fastest copy of each block is.
  std::vector<events::TierId> tiers_of(const Hashes& hashes) {
    std::vector<events::TierId> tiers;
    for (const TierRun& run : kv_->find(hashes)) tiers.insert(tiers.end(), run.count, run.tier);
    return tiers;
  }
  void expect_counts_exact() {
    kv_->drain();
    const auto exact = [](auto& manager) {
      EXPECT_EQ(manager.available_blocks(), manager.total_blocks());
      manager.check_invariants();
    };
    exact(kv_->g1());
    exact(*kv_->g2());
    if (kv_->g3() != nullptr) exact(*kv_->g3());
    exact(*kv_->g4());
    kv_->check_invariants();
  }

 private:
  KvOptions options_;
  std::unique_ptr<KvBlockManager> kv_;
};

}  // namespace ashlar::tiers
