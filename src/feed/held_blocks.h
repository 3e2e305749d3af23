// HeldBlocks: the blocks that a rank of an engine holds, by name.
//
// A table of 8-byte entries (base/tag_table.h) leads from a name to the number of a record of one cache line,
// which has the name; records lie in chunks, side by side in the order in which they came, and do not move.
// The first 8 MiB of them lie in small chunks, the rest in chunks of 8 MiB, most of which can be huge pages.
// What the blocks of a sequence share is kept once, by number. probe() hides the miss of a look-up: events
// name blocks by the dozen.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected; no step moves more than a page of names.
// Invariant:     after give_back() an empty table owns no memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/tier.h"
#include "base/huge_new.h"
#include "base/slab_pool.h"
#include "base/table_seed.h"
#include "base/tag_table.h"
#include "feed/block_content.h"
#include "feed/engine_run.h"

namespace ashlar::feed {

struct EngineBlock {
  static constexpr std::uint16_t kMaxCopies = 0xFFFF;  // more are not counted: it goes with the last of these

  events::BlockName name = {};
  tokens::LocalHash local = {};
  tokens::SequenceHash hash = {};
  tokens::SequenceHash parent = {};    // of has_parent
  events::BlockName parent_name = {};  // of has_parent: what its run called it
  std::uint32_t sequence = 0;          // number of what it shares with others
  std::uint16_t copies = 0;            // in the device tier; others have one at most
  std::uint8_t tiers = 0;              // a bit each; none: a free record
  bool has_parent : 1 = false;
  bool has_extras : 1 = false;  // as BlockContent
  bool ambiguous : 1 = false;   // its name also arrived with other content

  bool in_tier(std::size_t tier) const noexcept { return (tiers >> tier & 1) != 0; }
  void set_tier(std::size_t tier, bool holds) noexcept {
    const unsigned bit = 1u << tier;
    tiers = static_cast<std::uint8_t>(holds ? tiers | bit : tiers & ~bit);
  }
};
static_assert(sizeof(EngineBlock) == 64 && events::kStorageTiers <= 8);

// What the blocks of a sequence share, within a group of layers.
struct EngineSequence {
  tokens::SequenceHash root = {};
  tokens::SequenceHasher hasher = {};
  std::uint32_t group = 0;
  bool indexed = true;  // an index needs them
  std::uint32_t blocks = 0;
};

class HeldBlocks {
  // Whether a number is that of the key's record.
  struct IsKey {
    HeldBlocks& blocks;
    const EngineKey& key;
    bool operator()(std::uint32_t number) const noexcept {
      const EngineBlock& block = blocks.record(number);
      return block.name == key.name && blocks.sequence(block.sequence).group == key.group;
    }
  };

 public:
  // A name that was looked for ahead of time; good until give_back() or clear().
  using Probe = TagTable::Probe;

  // A block, and what erase() needs of it.
  class Found {
   public:
    EngineBlock* block = nullptr;  // null: the rank does not hold it

   private:
    friend class HeldBlocks;
    std::uint32_t number_ = 0;
    Probe probe_;
  };

  HeldBlocks() : HeldBlocks(TableSeed(draw_seed())) {}

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

  // Prefetches the places of names, and writes their probes. Requires: as many as names. always_inline: g++
  // drops calls of functions that only prefetch.
  [[gnu::always_inline]] void probe(std::uint32_t group, std::span<const events::BlockName> names,
                                    std::span<Probe> probes) const noexcept {
    const TableSeed seed = seed_;
    places_.probe(probes, [&](std::size_t i) { return tag_of(seed, {group, names[i]}); });
  }
  // Prefetches the records that they probably lead to, and writes their numbers. Waits for their places.
  // Requires: as many numbers as probes.
  [[gnu::always_inline]] void prefetch_records(std::span<const Probe> probes,
                                               std::span<std::uint32_t> numbers) const noexcept {
    for (std::size_t i = 0; i < probes.size(); ++i) {
      numbers[i] = places_.find(probes[i], [](std::uint32_t) { return true; });
      if (numbers[i] != TagTable::kNone)
        __builtin_prefetch(&const_cast<HeldBlocks*>(this)->record(numbers[i]), 1);
    }
  }
  // Takes memory for that many blocks and touches it; give_back() returns it. Throws std::bad_alloc, with
  // part of it taken. Requires: an empty table.
  void reserve(std::size_t blocks) {
    places_.keep_room(blocks);
    while (room_ < blocks) {
      add_chunk();
      std::memset(static_cast<void*>(chunks_.back().get()), 0,
                  chunks_.back().get_deleter().records * sizeof(EngineBlock));
    }
  }
  Found look_up(const EngineKey& key) noexcept { return look_up(key, places_.probe(tag_of(seed_, key))); }
  Found look_up(const EngineKey& key, const Probe& probe) noexcept {
    Found found;
    found.number_ = places_.find(probe, IsKey{*this, key});
    if (found.number_ == TagTable::kNone) return found;
    found.probe_ = probe;
    found.block = &record(found.number_);
    return found;
  }
  // `number` is what prefetch_records() wrote.
  Found look_up(const EngineKey& key, const Probe& probe, std::uint32_t number) noexcept {
    if (number == TagTable::kNone || record(number).tiers == 0 || !IsKey{*this, key}(number))
      return look_up(key, probe);
    Found found;
    found.block = &record(number);
    found.number_ = number;
    found.probe_ = probe;
    return found;
  }
  // Null when the rank does not hold it.
  EngineBlock* find(const EngineKey& key) noexcept { return look_up(key).block; }
  const EngineBlock* find(const EngineKey& key) const noexcept {
    return const_cast<HeldBlocks*>(this)->find(key);
  }
  EngineBlock* find(const EngineKey& key, const Probe& probe) noexcept { return look_up(key, probe).block; }
  // The same as find(), without a look-up for the block that was added last: it is the parent of most runs.
  EngineBlock* find_parent(const EngineKey& key) noexcept {
    if (last_added_ != TagTable::kNone && record(last_added_).tiers != 0 && IsKey{*this, key}(last_added_))
      return &record(last_added_);
    return find(key);
  }
  // The number of a sequence for blocks that are to be added: the one of `known`, if it is that, or another.
  std::uint32_t sequence(const tokens::SequenceHash& root, const tokens::SequenceHasher& hasher,
                         std::uint32_t group, bool indexed, std::uint32_t known) {
    if (known != 0 && known <= sequences_.size()) {
      const EngineSequence& one = sequences_[known - 1];
      if (one.blocks != 0 && one.root == root && one.group == group && one.indexed == indexed &&
          one.hasher == hasher)
        return known;
    }
    if (free_sequences_.empty()) {
      if (free_sequences_.capacity() <= sequences_.size()) free_sequences_.reserve(2 * sequences_.size() + 1);
      sequences_.push_back({root, hasher, group, indexed, 0});
      return static_cast<std::uint32_t>(sequences_.size());
    }
    const std::uint32_t number = free_sequences_.back();
    free_sequences_.pop_back();
    sequences_[number - 1] = {root, hasher, group, indexed, 0};
    return number;
  }
  const EngineSequence& sequence(std::uint32_t number) const noexcept { return sequences_[number - 1]; }
  EngineKey key_of(const EngineBlock& block) const noexcept {
    return {sequence(block.sequence).group, block.name};
  }
  // For a run behind it, until a sequence is added.
  RunParent as_parent(const EngineBlock& block) const noexcept {
    const EngineSequence& shared = sequence(block.sequence);
    return {.hash = block.hash,
            .root = shared.root,
            .hasher = &shared.hasher,
            .sequence = block.sequence,
            .is_held = true};
  }
  // Requires: its key is absent; it has a name and a sequence. Throws std::bad_alloc with nothing changed.
  EngineBlock& add(const EngineBlock& block) {
    make_room(1);
    EngineBlock* place = nullptr;
    const Probe probe = places_.probe(tag_of(seed_, key_of(block)));
    const std::size_t added =
        add_run(std::span(&block.name, 1), std::span(&probe, 1), block.sequence,
                [&](std::size_t, EngineBlock* record) { place = std::construct_at(record, block); });
    if (added == 0) throw std::bad_alloc();
    return *place;
  }
  // Records for that many more. Throws std::bad_alloc with nothing added.
  void make_room(std::size_t blocks) {
    while (room_ - end_ + free_.size() < blocks) add_chunk();
  }
  // Adds blocks of one sequence, up to the first whose key is there or that there is no memory for: fill(i,
  // record) makes the record of block i, with its name. Returns how many. Requires: make_room(); the probes
  // of the names.
  template <class Fill>
  std::size_t add_run(std::span<const events::BlockName> names, std::span<const Probe> probes,
                      std::uint32_t sequence, Fill&& fill) noexcept {
    const std::uint32_t group = sequences_[sequence - 1].group;
    std::size_t added = 0;
    bool all_new = true;
    for (; all_new && added < names.size() && !free_.empty(); added += all_new ? 1 : 0) {
      const std::uint32_t number = free_.back();
      all_new = insert({group, names[added]}, probes[added], number);
      if (!all_new) break;
      free_.pop_back();
      fill(added, &record(number));
      last_added_ = number;
    }
    while (all_new && added < names.size()) {
      const std::size_t some = std::min(left_in_chunk(end_), names.size() - added);
      EngineBlock* const first = &record(end_ + 1);
      std::size_t placed = 0;
      while (placed < some) {
        const std::size_t from = placed;
        placed += places_.insert_new(probes.subspan(added + from, some - from),
                                     end_ + 1 + static_cast<std::uint32_t>(from));
        for (std::size_t i = from; i < placed; ++i) {
          __builtin_prefetch(first + kAhead + i, 1);  // for those that follow
          fill(added + i, first + i);
        }
        if (placed == some) break;
        all_new = insert({group, names[added + placed]}, probes[added + placed],
                         end_ + 1 + static_cast<std::uint32_t>(placed));
        if (!all_new) break;
        fill(added + placed, first + placed);
        ++placed;
      }
      end_ += static_cast<std::uint32_t>(placed);
      added += placed;
      if (placed != 0) last_added_ = end_;
    }
    sequences_[sequence - 1].blocks += static_cast<std::uint32_t>(added);
    size_ += added;
    return added;
  }
  // Requires: it is held.
  void erase(const Found& found) noexcept {
    EngineBlock& block = *found.block;
    places_.erase(found.probe_, found.number_);
    EngineSequence& shared = sequences_[block.sequence - 1];
    if (--shared.blocks == 0) {
      shared = {};
      free_sequences_.push_back(block.sequence);  // its memory was reserved
    }
    block = EngineBlock{};
    free_.push_back(found.number_);  // its memory was reserved
    --size_;
  }
  // Returns the memory of a table that has become empty. Probes are void.
  void give_back() noexcept {
    if (size_ == 0 && end_ != 0) clear();
  }
  void clear() noexcept {
    places_.reset();
    std::vector<Chunk>().swap(chunks_);  // assignment would keep the memory
    room_ = 0;
    std::vector<std::uint32_t>().swap(free_);
    std::vector<EngineSequence>().swap(sequences_);
    std::vector<std::uint32_t>().swap(free_sequences_);
    end_ = 0;
    last_added_ = TagTable::kNone;
    size_ = 0;
  }
  // fn(key, block), in no order that means anything.
  template <class F>
  void for_each(F&& fn) {
    for (std::uint32_t number = 1; number <= end_; ++number)
      if (EngineBlock& block = record(number); block.tiers != 0) fn(key_of(block), block);
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

  explicit HeldBlocks(const TableSeed& seed) : seed_(seed), places_(pool_, seed) {}

  static std::uint32_t tag_of(const TableSeed& seed, const EngineKey& key) noexcept {
    return static_cast<std::uint32_t>(seed.hash(key.name.value(), key.group));
  }
  // False: the key is there, or there is no memory.
  bool insert(const EngineKey& key, const Probe& probe, std::uint32_t number) noexcept {
    try {
      return places_.insert(probe, number, IsKey{*this, key}) == TagTable::kNone;
    } catch (const std::bad_alloc&) {
      return false;
    }
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

  const TableSeed seed_;
  SlabPool pool_;
  TagTable places_;
  std::size_t size_ = 0;
  std::vector<Chunk> chunks_;
  std::size_t room_ = 0;  // records in them
  std::vector<std::uint32_t> free_;
  std::uint32_t end_ = 0;                       // records that were given out
  std::uint32_t last_added_ = TagTable::kNone;  // the record that was filled last
  std::vector<EngineSequence> sequences_;       // by number, from 1 on
  std::vector<std::uint32_t> free_sequences_;
};

}  // namespace ashlar::feed
