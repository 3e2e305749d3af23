// BlockFacts: what an eviction backend may know about a block beyond its hash.
//
// Every fact is a column over the blocks of one manager. A backend asks for the columns it needs when it is
// made (keep_…()); the store writes those and no others, so nobody pays for a fact that nobody reads.
//
//   retention    how much the block is worth, set by its users         8 bytes per block
//   hits         whether a match has found the block since it was registered        1 byte
//   acquisition  tick of the block's last allocation or revival         8 bytes
//   parents      the name of the block before, where known             24 bytes
//
// Thread safety: keep_…() while the backend is made. Afterwards hits from anywhere (relaxed; a drop of a
// reference hands them on to whoever settles the block), retention and acquisition under the store's lock,
// parents by the block's owner, and read under the store's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/base/large_array.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

class BlockFacts {
 public:
  explicit BlockFacts(std::uint32_t block_count) : block_count_(block_count) {}

  // ---- while the backend is made

  void keep_retentions();
  void keep_hits();
  void keep_acquisitions();
  void keep_parents();

  bool keeps_retentions() const noexcept { return !retentions_.empty(); }
  bool keeps_hits() const noexcept { return !hits_.empty(); }
  bool keeps_acquisitions() const noexcept { return !acquired_.empty(); }
  bool keeps_parents() const noexcept { return !parents_.empty(); }

  // ---- for the backend; each requires its column

  // Nothing when nobody spoke about the block.
  std::optional<BlockRetention> retention(BlockId id) const noexcept;
  bool was_hit(BlockId id) const noexcept { return hits_[id.value()].load(std::memory_order_relaxed) != 0; }
  std::uint64_t acquired(BlockId id) const noexcept { return acquired_[id.value()]; }
  const std::optional<tokens::SequenceHash>& parent(BlockId id) const noexcept {
    return parents_[id.value()];
  }

  // ---- for the store; without its column each does nothing

  // The block is handed out empty: all that was known about it is forgotten.
  void begin_life(BlockId id) noexcept {
    if (keeps_any_) forget(id);
  }
  void acquire(BlockId id) noexcept {
    if (!acquired_.empty()) acquired_[id.value()] = ++tick_;
  }
  void set_retention(BlockId id, const BlockRetention& retention) noexcept;
  void set_hit(BlockId id) noexcept {
    if (hits_.empty()) return;
    std::atomic<std::uint8_t>& hit = hits_[id.value()];
    // relaxed: a flag that only ever rises during one life of the block.
    if (hit.load(std::memory_order_relaxed) == 0) hit.store(1, std::memory_order_relaxed);
  }
  // Block `to` has the content of `from` and takes its place: it is worth as much, and was hit as often.
  void pass_on(BlockId from, BlockId to) noexcept;
  void set_parent(BlockId id, const std::optional<tokens::SequenceHash>& parent) {
    if (!parents_.empty()) parents_[id.value()] = parent;
  }

 private:
  void forget(BlockId id) noexcept;

  std::uint32_t block_count_;
  bool keeps_any_ = false;
  LargeArray<std::atomic<std::uint64_t>> retentions_;  // 0: none; else priority << 57 | microseconds + 1
  LargeArray<std::atomic<std::uint8_t>> hits_;
  std::vector<std::uint64_t> acquired_;
  std::vector<std::optional<tokens::SequenceHash>> parents_;
  std::uint64_t tick_ = 0;
};

}  // namespace ashlar::block
