// LfuBackend: evicts the block whose name was used least often, and among equals the one that was released or
// touched longest ago.
//
// A use is a release or a touch. Counts never decay: a block that was popular once stays for long. They
// outlive the block: one that is registered again goes on from its count, as long as the name is among those
// that are remembered (PastUses). `multi_lru` counts with decay.
//
// Memory: kBytesPerBlock per block of the pool; a small one takes up to 2 MiB more for names. Asks for no
// facts.
//
// Thread safety: confined. Complexity: O(log n); peek() at k blocks O(k log k), and it allocates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"
#include "block/registry/hash_mix.h"

namespace ashlar::block {

// How often names were used whose blocks are gone, approximately: eight places per bucket, of which the
// oldest is overwritten. A name may be forgotten, or (once in 2^13) be taken for another.
class PastUses {
 public:
  static constexpr std::size_t kBytesPerName = 8;

  explicit PastUses(std::size_t names) : counts_((names / kPlaces + 1) * kPlaces) {}
  // Remembers the count of a name, which is not 0. Requires: the name is not remembered.
  void put(const tokens::SequenceHash& hash, std::uint32_t uses) noexcept {
    const std::uint64_t mix = HashMix::of(hash);
    const std::span<Count> bucket = bucket_of(mix);
    const auto age = [this](const Count& count) { return count.uses == 0 ? kOldest : last_ - count.number; };
    *std::ranges::max_element(bucket, {}, age) = {++last_, tag_of(mix), saturated(uses)};
  }
  // The count of a name, which is forgotten then; 0: unknown.
  std::uint32_t take(const tokens::SequenceHash& hash) noexcept {
    const std::uint64_t mix = HashMix::of(hash);
    for (Count& count : bucket_of(mix))
      if (count.uses != 0 && count.tag == tag_of(mix)) return std::exchange(count, {}).uses;
    return 0;
  }

 private:
  static constexpr std::size_t kPlaces = 8;
  static constexpr std::uint32_t kOldest = std::numeric_limits<std::uint32_t>::max();
  struct Count {
    std::uint32_t number = 0;  // larger: younger
    std::uint16_t tag = 0;
    std::uint16_t uses = 0;  // 0: empty
  };
  static_assert(sizeof(Count) == kBytesPerName);
  static std::uint16_t tag_of(std::uint64_t mix) noexcept { return static_cast<std::uint16_t>(mix >> 48); }
  static std::uint16_t saturated(std::uint32_t uses) noexcept {
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(uses, 0xFFFF));
  }
  std::span<Count> bucket_of(std::uint64_t mix) noexcept {
    const std::uint64_t buckets = counts_.size() / kPlaces;
    const auto bucket = static_cast<std::size_t>(static_cast<std::uint32_t>(mix) * buckets >> 32);
    return std::span(counts_).subspan(bucket * kPlaces, kPlaces);
  }

  std::vector<Count> counts_;
  std::uint32_t last_ = 0;
};

class LfuBackend {
 public:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;  // uses, then the turn of the last one
  static constexpr std::size_t kNamesPerBlock = 16;      // that are remembered
  // A small pool sees many names between two uses of one, and they cost little there.
  static constexpr std::size_t kMostNamesPerBlock = 256;
  static constexpr std::size_t kFewNames = std::size_t{1} << 18;
  static constexpr std::size_t kBytesPerBlock = IndexedHeap<Rank>::kBytesPerBlock + sizeof(std::uint32_t) +
                                                sizeof(tokens::SequenceHash) +
                                                kNamesPerBlock * PastUses::kBytesPerName;

  // That are remembered in a pool of so many blocks.
  static constexpr std::size_t names_of(std::size_t blocks) noexcept {
    return std::min(kMostNamesPerBlock * blocks, std::max(kNamesPerBlock * blocks, kFewNames));
  }

  explicit LfuBackend(const EvictionContext& context)
      : uses_(context.block_count),
        hashes_(context.block_count),
        inactive_(context.block_count),
        past_(names_of(context.block_count)) {}

  void registered(BlockId id, const tokens::SequenceHash& hash) {
    uses_[id.value()] = past_.take(hash);
    hashes_[id.value()] = hash;
  }
  void unregistered(BlockId id) { remember(id); }
  void insert(BlockId id, const tokens::SequenceHash& hash) {
    if (uses_[id.value()] == 0) registered(id, hash);
    inactive_.push(id, used(id));
  }
  void remove(BlockId id) { inactive_.remove(id); }
  void touch(BlockId id) { inactive_.update(id, used(id)); }
  std::optional<BlockId> pop() {
    const std::optional<BlockId> victim = inactive_.pop();
    if (victim) remember(*victim);
    return victim;
  }
  std::size_t peek(std::span<BlockId> out) const { return inactive_.peek(out); }
  std::size_t size() const { return inactive_.size(); }

 private:
  // Counts a use. Returns the block's place in the order.
  Rank used(BlockId id) {
    std::uint32_t& uses = uses_[id.value()];
    if (uses != std::numeric_limits<std::uint32_t>::max()) ++uses;
    return {uses, ++turn_};
  }

  void remember(BlockId id) {
    const std::uint32_t uses = std::exchange(uses_[id.value()], 0);
    if (uses != 0) past_.put(hashes_[id.value()], uses);
  }

  std::vector<std::uint32_t> uses_;           // by id
  std::vector<tokens::SequenceHash> hashes_;  // by id; valid for blocks that were used
  IndexedHeap<Rank> inactive_;
  PastUses past_;
  std::uint64_t turn_ = 0;
};
static_assert(EvictionBackend<LfuBackend> && FollowsRegistrations<LfuBackend>);

}  // namespace ashlar::block
