// HeldBlocks: the blocks that a rank of an engine holds, by name.
//
// An array of 16-byte entries leads from a name to a record of one cache line; records lie in chunks, side by
// side in the order in which they came, and do not move. The first 8 MiB of them lie in small chunks, the
// rest in chunks of 8 MiB, most of which can be huge pages. What the blocks of a sequence share is kept once,
// by number. prefetch() hides the miss of a look-up: events name blocks by the dozen.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected, but for the steps that double or halve the array.
// Invariant:     an empty table owns no memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/tier.h"
#include "base/entry_map.h"
#include "base/huge_new.h"
#include "feed/block_content.h"
#include "feed/engine_run.h"

namespace ashlar::feed {

struct EngineBlock {
  tokens::LocalHash local = {};
  tokens::SequenceHash hash = {};
  tokens::SequenceHash parent = {};    // of has_parent
  events::BlockName parent_name = {};  // of has_parent: what its run called it
  std::uint32_t sequence = 0;          // number of what it shares with others
  std::uint32_t copies = 0;            // in the device tier; others have one at most
  std::uint8_t tiers = 0;              // a bit each; none: a free record
  bool has_parent = false;
  bool has_extras = false;  // as BlockContent
  bool ambiguous = false;   // its name also arrived with other content
  bool indexed = true;

  bool in_tier(std::size_t tier) const noexcept { return (tiers >> tier & 1) != 0; }
};
static_assert(sizeof(EngineBlock) == 64 && events::kStorageTiers <= 8);

// What the blocks of a sequence share.
struct EngineSequence {
  tokens::SequenceHash root = {};
  tokens::SequenceHasher hasher = {};
  std::uint32_t blocks = 0;
};

class HeldBlocks {
  struct Place {
    using Key = EngineKey;
    events::BlockName name;
    std::uint32_t group = 0;
    std::uint32_t number = 0;  // of the record, from 1 on

    Key key() const noexcept { return {group, name}; }
    bool empty() const noexcept { return number == 0; }
    static std::uint64_t hash(const Key& key, std::uint64_t seed) noexcept {
      return seeded_hash(key.name.value(), key.group, seed);
    }
  };
  static_assert(sizeof(Place) == 16);

 public:
  std::size_t size() const noexcept { return places_.size(); }
  bool empty() const noexcept { return places_.empty(); }

  HeldBlocks() { places_.draw(); }

  // Hashes of keys are those of this table as long as it lives, and may be kept beside it.
  std::uint64_t hash_of(const EngineKey& key) const noexcept { return places_.hash_of(key); }
  // Prefetches the places of names, and writes the hashes of their keys. Requires: as many hashes as names.
  // always_inline: as EntryMap::prefetch().
  [[gnu::always_inline]] void prefetch(std::uint32_t group, std::span<const events::BlockName> names,
                                       std::span<std::uint64_t> hashes) const noexcept {
    places_.prefetch(hashes, [&](std::size_t i) { return EngineKey{group, names[i]}; });
  }
  // The records of those that are held. Waits for their places.
  [[gnu::always_inline]] void prefetch_records(std::uint32_t group, std::span<const events::BlockName> names,
                                               std::span<const std::uint64_t> hashes) const noexcept {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (const Place* const place = places_.find({group, names[i]}, hashes[i]))
        __builtin_prefetch(&const_cast<HeldBlocks*>(this)->record(place->number), 1);
  }
  // Takes memory for that many blocks and touches it; clear() gives it back. Throws std::bad_alloc, with part
  // of it taken.
  void reserve(std::size_t blocks) {
    places_.reserve(blocks);
    while (room_ < blocks) {
      add_chunk();
      std::memset(static_cast<void*>(chunks_.back().get()), 0,
                  chunks_.back().get_deleter().records * sizeof(EngineBlock));
    }
  }
  // A block and its place, until the next change of the table.
  class Found {
   public:
    EngineBlock* block = nullptr;  // null: the rank does not hold it

   private:
    friend class HeldBlocks;
    Place* place_ = nullptr;
  };
  Found look_up(const EngineKey& key) noexcept { return look_up(key, hash_of(key)); }
  Found look_up(const EngineKey& key, std::uint64_t hash) noexcept {
    Found found;
    found.place_ = places_.find(key, hash);
    if (found.place_ != nullptr) found.block = &record(found.place_->number);
    return found;
  }
  // Null when the rank does not hold it.
  EngineBlock* find(const EngineKey& key) noexcept { return look_up(key).block; }
  const EngineBlock* find(const EngineKey& key) const noexcept {
    return const_cast<HeldBlocks*>(this)->find(key);
  }
  // The number of a sequence for blocks that are to be added: the one of `known`, if it is that, or another.
  std::uint32_t sequence(const tokens::SequenceHash& root, const tokens::SequenceHasher& hasher,
                         std::uint32_t known) {
    if (known != 0 && known <= sequences_.size()) {
      const EngineSequence& one = sequences_[known - 1];
      if (one.blocks != 0 && one.root == root && one.hasher == hasher) return known;
    }
    if (free_sequences_.empty()) {
      if (free_sequences_.capacity() <= sequences_.size()) free_sequences_.reserve(2 * sequences_.size() + 1);
      sequences_.push_back({root, hasher, 0});
      return static_cast<std::uint32_t>(sequences_.size());
    }
    const std::uint32_t number = free_sequences_.back();
    free_sequences_.pop_back();
    sequences_[number - 1] = {root, hasher, 0};
    return number;
  }
  const EngineSequence& sequence(std::uint32_t number) const noexcept { return sequences_[number - 1]; }
  // For a run behind it, until a sequence is added.
  RunParent as_parent(const EngineBlock& block) const noexcept {
    const EngineSequence& shared = sequence(block.sequence);
    return {.hash = block.hash,
            .root = shared.root,
            .hasher = &shared.hasher,
            .sequence = block.sequence,
            .is_held = true};
  }
  // Requires: the key is absent, and a sequence. Throws std::bad_alloc with nothing changed.
  EngineBlock& add(const EngineKey& key, const EngineBlock& block) {
    make_room(1);
    EngineBlock* place = nullptr;
    const std::uint64_t hash = hash_of(key);
    const std::size_t added =
        add_run(key.group, std::span(&key.name, 1), std::span(&hash, 1), block.sequence,
                [&](std::size_t, EngineBlock* record) { place = std::construct_at(record, block); });
    ASHLAR_DCHECK(added == 1, "a block is added that is there; %zu are", size());
    return *place;
  }
  // For that many more: add_run() of them needs no memory. Throws std::bad_alloc with nothing added.
  void make_room(std::size_t blocks) {
    while (room_ - end_ + free_.size() < blocks) add_chunk();
    places_.reserve(size() + blocks);
  }
  // Adds blocks of one sequence, up to the first whose key is there: fill(i, record) makes the record of block
  // i. Returns how many. Requires: make_room(); the hashes of the names.
  template <class Fill>
  std::size_t add_run(std::uint32_t group, std::span<const events::BlockName> names,
                      std::span<const std::uint64_t> hashes, std::uint32_t sequence, Fill&& fill) noexcept {
    const std::size_t reused = std::min(free_.size(), names.size());
    const auto reused_number = [&](std::size_t i) { return free_[free_.size() - 1 - i]; };
    std::size_t added = insert(group, names.first(reused), hashes, reused_number,
                               [&](std::size_t i) { fill(i, &record(reused_number(i))); });
    free_.resize(free_.size() - added);
    while (added >= reused && added < names.size()) {
      EngineBlock* const first = &record(end_ + 1);
      const std::uint32_t number = end_ + 1;
      const std::size_t some = std::min(left_in_chunk(end_), names.size() - added);
      const std::size_t placed = insert(
          group, names.subspan(added, some), hashes.subspan(added),
          [=](std::size_t i) { return number + static_cast<std::uint32_t>(i); },
          [&](std::size_t i) {
            __builtin_prefetch(first + kAhead + i, 1);  // for those that follow
            fill(added + i, first + i);
          });
      end_ += static_cast<std::uint32_t>(placed);
      added += placed;
      if (placed < some) break;
    }
    sequences_[sequence - 1].blocks += static_cast<std::uint32_t>(added);
    return added;
  }
  // Requires: it is held.
  void erase(const Found& found) noexcept {
    const std::uint32_t number = found.place_->number;
    EngineBlock& block = *found.block;
    places_.erase(found.place_);
    if (places_.empty()) return clear();
    EngineSequence& shared = sequences_[block.sequence - 1];
    if (--shared.blocks == 0) {
      shared = {};
      free_sequences_.push_back(block.sequence);  // its memory was reserved
    }
    block = EngineBlock{};
    free_.push_back(number);  // its memory was reserved
  }
  void clear() noexcept {
    places_.clear();
    std::vector<Chunk>().swap(chunks_);  // assignment would keep the memory
    room_ = 0;
    std::vector<std::uint32_t>().swap(free_);
    std::vector<EngineSequence>().swap(sequences_);
    std::vector<std::uint32_t>().swap(free_sequences_);
    end_ = 0;
  }
  // fn(key, block), in no order that means anything.
  template <class F>
  void for_each(F&& fn) {
    places_.for_each([&](const Place& place) { fn(place.key(), record(place.number)); });
  }
  template <class F>
  void for_each(F&& fn) const {
    const_cast<HeldBlocks*>(this)->for_each(
        [&](const EngineKey& key, const EngineBlock& block) { fn(key, block); });
  }

 private:
  static constexpr std::uint32_t kAhead = 12;         // records
  static constexpr std::size_t kChunk = 128;          // records
  static constexpr std::size_t kChunks = 1024;        // of that size
  static constexpr std::size_t kHugeChunk = 131'072;  // records of those that follow

  struct Free {
    void operator()(EngineBlock* chunk) const noexcept { huge_delete(chunk, records * sizeof(EngineBlock)); }
    std::size_t records;
  };
  using Chunk = std::unique_ptr<EngineBlock, Free>;

  template <class Number, class Then>
  std::size_t insert(std::uint32_t group, std::span<const events::BlockName> names,
                     std::span<const std::uint64_t> hashes, Number&& number, Then&& then) noexcept {
    return places_.insert_run(
        names.size(), [&](std::size_t i) { return hashes[i]; },
        [&](std::size_t i) { return Place{names[i], group, number(i)}; }, then);
  }
  // Records of the chunk of record `at` + 1 from that one on.
  static std::size_t left_in_chunk(std::size_t at) noexcept {
    if (at < kChunks * kChunk) return kChunk - at % kChunk;
    return kHugeChunk - (at - kChunks * kChunk) % kHugeChunk;
  }
  EngineBlock& record(std::uint32_t number) noexcept {
    const std::size_t at = number - 1;
    if (at < kChunks * kChunk) return chunks_[at / kChunk].get()[at % kChunk];
    const std::size_t behind = at - kChunks * kChunk;
    return chunks_[kChunks + behind / kHugeChunk].get()[behind % kHugeChunk];
  }
  void add_chunk() {
    const std::size_t records = chunks_.size() < kChunks ? kChunk : kHugeChunk;
    if (free_.capacity() < room_ + records) free_.reserve(2 * (room_ + records));
    if (chunks_.size() == chunks_.capacity()) chunks_.reserve(2 * chunks_.size() + 1);
    chunks_.push_back(
        Chunk(static_cast<EngineBlock*>(huge_new(records * sizeof(EngineBlock))), Free{records}));
    room_ += records;
  }

  EntryMap<Place> places_;
  std::vector<Chunk> chunks_;
  std::size_t room_ = 0;  // records in them
  std::vector<std::uint32_t> free_;
  std::uint32_t end_ = 0;                  // records that were given out
  std::vector<EngineSequence> sequences_;  // by number, from 1 on
  std::vector<std::uint32_t> free_sequences_;
};

}  // namespace ashlar::feed
