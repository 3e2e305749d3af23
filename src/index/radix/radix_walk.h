// RadixWalk: one query descending a radix tree, node by node.
//
// Workers whose prefix lies in the device tier are bits of `active_`, and their depth is that of the walk; a
// worker is scored when it leaves. Workers that continued in a lower tier are bits of `mixed_`, and their
// scores grow with every node. Where all active workers are full, a node costs a comparison of its edge and a
// few words.
//
// Thread safety: confined to the thread of the query; the caller keeps the node unchanged during visit().
// Complexity:    O(length of the edge + slots / 64) per node, and O(owners of the node) where a worker leaves
//                or the query leaves the edge before its end. Allocates only for more than 1,024 slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/radix/radix_node.h"

namespace ashlar::index {

class RadixWalk {
 public:
  // Requires: `scores` has begun. Slots of `retired`, bits from slot 0 on, are skipped.
  RadixWalk(std::span<const LocalHash> locals, MatchScores& scores, const FindOptions& options,
            std::span<const std::uint64_t> retired);
  RadixWalk(const RadixWalk&) = delete;
  RadixWalk& operator=(const RadixWalk&) = delete;

  // Matches as much of the query as lies on the node. Returns false when no later node can matter.
  bool visit(const RadixNode& node);
  // After a visit that returned true: where the query leaves the node, and with which block.
  std::uint32_t offset() const noexcept { return offset_; }
  LocalHash next_local() const noexcept { return locals_[position_]; }
  // Scores the remaining workers.
  void finish();

 private:
  static constexpr std::size_t kInsideWords = 16;

  struct Set {
    explicit Set(std::size_t words) : outside(words > kInsideWords ? words : 0) {
      data = words > kInsideWords ? outside.data() : inside.data();
    }
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    bool contains(std::uint32_t slot) const noexcept { return (data[slot / 64] >> (slot % 64) & 1) != 0; }
    void insert(std::uint32_t slot) noexcept { data[slot / 64] |= std::uint64_t{1} << (slot % 64); }
    void erase(std::uint32_t slot) noexcept { data[slot / 64] &= ~(std::uint64_t{1} << (slot % 64)); }

    std::array<std::uint64_t, kInsideWords> inside{};
    std::vector<std::uint64_t> outside;
    std::uint64_t* data;
  };

  void start(const RadixNode& node);
  // How many of the `length` blocks the walk may take with early_exit.
  std::uint32_t limit(const RadixNode& node, std::uint32_t length);
  void go_on_mixed(const RadixNode& node, std::uint32_t length);
  void leave_device(const RadixNode& node, std::uint32_t owner, std::uint32_t length);
  // Adds the owner's blocks among the first `length` to a score. Returns how many are consecutive in some
  // tier.
  static std::uint32_t add_blocks(const RadixNode& node, std::uint32_t owner, std::uint32_t length,
                                  Score& score);

  std::span<const LocalHash> locals_;
  MatchScores& scores_;
  std::span<const std::uint64_t> retired_;
  const bool early_exit_;
  const std::size_t words_;
  std::uint32_t position_ = 0;
  std::uint32_t offset_ = 0;
  bool stopped_ = false;
  bool any_mixed_ = false;
  Set active_;
  Set leaving_;
  Set mixed_;
};

}  // namespace ashlar::index
