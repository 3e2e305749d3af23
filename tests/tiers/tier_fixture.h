// Three tiers with bytes: G1 in host memory that stands for a GPU's, G2 in host memory, G3 in a file.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/storage/allocator.h"
#include "ashlar/testing/managers.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "support/block_images.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "tiers/disk/disk_pool.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/memory_pool.h"

namespace ashlar::tiers {

using block::KvReady;
using events::G1;
using events::G2;
using events::G3;
using tokens::SequenceHash;
using transfer::BlockSet;

inline constexpr std::uint32_t kG1Blocks = 8;
inline constexpr std::uint32_t kG2Blocks = 6;
inline constexpr std::uint32_t kG3Blocks = 10;
inline const tokens::NamespaceFingerprint kKeys = tokens::NamespaceFingerprint::from_bits(3, 4);

inline SequenceHash name(std::uint64_t content) {
  return SequenceHash::root(content * 0x9E3779B97F4A7C15ull + 1);
}

class TierTest : public ::testing::Test {
 protected:
  TierTest() {
    faults_ = std::make_shared<ScriptedFaults>([this](storage::IoDirection, std::uint64_t, std::uint64_t) {
      if (gate_ != nullptr) gate_->pass();
      return storage::IoVerdict{.error = error_.load()};
    });
    engine_ = transfer::TransferEngine::create({.executors = {transfer::MemcpyExecutor::create().value(),
                                                              transfer::FileExecutor::create().value()}})
                  .value();
    mover_ = std::make_unique<BlockMover>(*engine_,
                                          BlockMover::Options{.keys = kKeys, .read_back_after_write = true});
    open();
  }

  static layout::Layout layout_of(std::uint32_t blocks, const layout::AxisOrder& order) {
    layout::LayoutConfig config = transfer::small_shape(blocks, 2, 2);
    config.head_dim = 64;
    config.inner_dim = 128;
    config.alignment = 4096;
    return layout::Layout::create(config, order).value();
  }
  // All tiers, G3 as the file has it.
  void open() {
    storage::SystemAllocator memory;
    g1_manager_.emplace(ashlar::testing::make_manager<G1>(options<G1>(kG1Blocks)));
    g2_manager_.emplace(ashlar::testing::make_manager<G2>(options<G2>(kG2Blocks)));
    g3_manager_.emplace(ashlar::testing::make_manager<G3>(options<G3>(kG3Blocks)));
    g1_ = std::make_unique<MemoryPool<G1>>(
        *g1_manager_,
        BlockSet::allocate(layout_of(kG1Blocks, layout::order::kBlockSecondNhd), memory).value(),
        events::StorageTier::kDevice);
    g2_ = std::make_unique<MemoryPool<G2>>(
        *g2_manager_,
        BlockSet::allocate(layout_of(kG2Blocks, layout::order::kFullyContiguousHnd), memory).value(),
        events::StorageTier::kHost);
    auto file = G3File::open(
        {.path = folder_.file("g3"),
         .planes = {transfer::PlaneShape::whole(layout_of(kG3Blocks, layout::order::kUniversalTp))},
         .keys = kKeys,
         .faults = faults_});
    ASSERT_TRUE(file) << file.error();
    g3_ = DiskPool::create(*g3_manager_, *std::move(file)).value();
  }
  void close() {
    g1_.reset();
    g2_.reset();
    g3_.reset();
    g1_manager_.reset();
    g2_manager_.reset();
    g3_manager_.reset();
    registry_ = ashlar::testing::make_registry();
  }
  template <events::Tier Tier>
  block::ManagerOptions options(std::uint32_t blocks) {
    block::ManagerOptions options = ashlar::testing::manager_options(blocks);
    options.registry = registry_;
    options.duplicates = block::DuplicatePolicy::kReject;
    return options;
  }

  static std::byte byte_of(std::uint64_t content, std::uint64_t i) {
    return static_cast<std::byte>(content * 31 + i * 7 + (i >> 8));
  }
  // Element i of a block, in canonical order, wherever it lies.
  template <class F>
  static void each_byte(const BlockSet& set, std::uint32_t slot, F&& fn) {
    std::uint64_t i = 0;
    const layout::Layout& layout = set.planes()[0].layout;
    for (std::uint32_t l = 0; l < 2; ++l)
      for (std::uint32_t o = 0; o < 2; ++o)
        for (std::uint32_t t = 0; t < 3; ++t)
          for (std::uint32_t h = 0; h < 2; ++h)
            for (std::uint64_t b = 0; b < layout.config().head_bytes(); ++b)
              fn(set.address(0, layout.place({slot, l, o, t, h}))[b], i++);
  }
  // A block as if it were computed in G1.
  void compute(std::uint64_t content) {
    auto blocks = g1_manager_->allocate_blocks(1).value();
    each_byte(*g1_->blocks(), blocks[0].block_id().value(),
              [&](std::byte& byte, std::uint64_t i) { byte = byte_of(content, i); });
    const auto stored =
        g1_manager_->register_block(std::move(blocks[0]).stage(name(content), KvReady::asserted_by_caller()))
            .value();
  }
  // Whether a pool in memory has the right bytes of a block.
  bool right(BytePool& pool, std::uint64_t content) {
    const auto hold = pool.hold(name(content));
    if (!hold) return false;
    bool good = true;
    each_byte(*pool.blocks(), hold->block_id().value(),
              [&](const std::byte& byte, std::uint64_t i) { good &= byte == byte_of(content, i); });
    return good;
  }
  MoveReport move(BytePool& from, BytePool& to, std::initializer_list<std::uint64_t> contents) {
    std::vector<SequenceHash> hashes;
    for (const std::uint64_t content : contents) hashes.push_back(name(content));
    return mover_->move(from, to, hashes);
  }
  void expect_counts_exact() {
    EXPECT_EQ(g1_manager_->available_blocks(), kG1Blocks);
    EXPECT_EQ(g2_manager_->available_blocks(), kG2Blocks);
    EXPECT_EQ(g3_manager_->available_blocks(), kG3Blocks);
    g1_manager_->check_invariants();
    g2_manager_->check_invariants();
    g3_manager_->check_invariants();
    g3_->check_invariants();
  }

  ScratchFolder folder_;
  std::atomic<int> error_{0};
  std::shared_ptr<Gate> gate_;  // holds operations on the file
  std::shared_ptr<ScriptedFaults> faults_;
  block::BlockRegistry registry_ = ashlar::testing::make_registry();
  std::optional<block::BlockManager<G1>> g1_manager_;
  std::optional<block::BlockManager<G2>> g2_manager_;
  std::optional<block::BlockManager<G3>> g3_manager_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  std::unique_ptr<BlockMover> mover_;
  std::unique_ptr<MemoryPool<G1>> g1_;
  std::unique_ptr<MemoryPool<G2>> g2_;
  std::unique_ptr<DiskPool> g3_;
};

}  // namespace ashlar::tiers
