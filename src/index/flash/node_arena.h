// NodeArena: memory for nodes, on one shelf per capacity (flash_node.h has the layout of a slab).
//
// Thread safety: thread-compatible.
// Complexity:    O(1).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <new>

#include "base/slab_pool.h"
#include "index/flash/flash_node.h"

namespace ashlar::index::detail {

class NodeArena {
 public:
  explicit NodeArena(SlabPool& pool) noexcept
      : shelves_{Shelf(pool, kSlabShapes[3].stride, kSlabShapes[3].nodes),
                 Shelf(pool, kSlabShapes[4].stride, kSlabShapes[4].nodes),
                 Shelf(pool, kSlabShapes[5].stride, kSlabShapes[5].nodes),
                 Shelf(pool, kSlabShapes[6].stride, kSlabShapes[6].nodes)} {}

  // A fresh node with room for `blocks` blocks (1..64), or a few more.
  Node* allocate(std::uint32_t blocks) {
    const auto log = static_cast<std::uint32_t>(std::bit_width(blocks - 1));
    const std::uint32_t shape = log < kSmallest ? kSmallest : log;
    Node* const node = new (shelves_[shape - kSmallest].allocate()) Node;
    node->shape = static_cast<std::uint8_t>(shape);
    return node;
  }
  void free(Node* node) noexcept {
    Shelf& shelf = shelves_[(node->shape & 7) - kSmallest];
    node->~Node();
    shelf.free(node);
  }

 private:
  static constexpr std::uint32_t kSmallest = 3;  // log2 of the smallest capacity
  std::array<Shelf, 4> shelves_;
};

}  // namespace ashlar::index::detail
