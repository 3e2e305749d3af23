// RadixDump: the calls that rebuild one worker's content of a radix tree.
//
// Nodes come by ascending position, so that every parent is stored before it is referenced. Each block on a
// path to a held one gets one name: one of the worker's or, if the worker does not hold it, an unused one
// that is removed at the end. Further names and tiers follow as separate stores.
//
// Thread safety: thread-compatible; add() reads nodes through the caller's function.
// Complexity:    O(n log n) in the names of the worker and the blocks on their paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/radix/radix_node.h"
#include "index/radix/radix_place.h"

namespace ashlar::index {

class RadixDump {
 public:
  explicit RadixDump(const Worker& worker) : worker_(worker) {}

  // Copies the first local hashes of a node.
  using ReadEdge = void (*)(const RadixNode& node, std::span<LocalHash> locals);
  // Requires: the worker's names do not change during the call.
  void add(const RadixNames& names, ReadEdge read);
  void send(IndexSink& sink) const;

 private:
  // One name of a block in one tier.
  struct Named {
    StorageTier tier;
    std::uint32_t offset;
    BlockName name;
  };
  // The part of a node on a path to a held block.
  struct Part {
    const RadixNode* node = nullptr;
    std::uint32_t length = 0;
    std::vector<LocalHash> locals;
    std::vector<std::optional<BlockName>> names;  // one of each block
    std::vector<Named> first;                     // a tier of each of these names
    std::vector<Named> further;
  };
  struct Call {
    StorageTier tier;
    std::optional<BlockName> parent;
    std::uint32_t start_position;
    std::vector<StoredBlock> blocks;
  };

  Part& part_of(const RadixNode& node, std::uint32_t length);
  void add_calls(const Part& part, std::span<const Named> named);

  Worker worker_;
  std::unordered_map<const RadixNode*, Part> parts_;
  std::vector<Call> calls_;
  std::vector<BlockName> placeholders_;
};

}  // namespace ashlar::index
