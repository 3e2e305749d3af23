// WorkerBlocks: the content of one (worker, rank): its names, and a record for every content, linked to the
// record of its predecessor.
//
// A record whose content the worker no longer holds stays while later records depend on it: such a ghost
// keeps the path of retained blocks. A worker without ghosts holds every predecessor of a block it holds, so
// "no ghosts" and "nothing in lower tiers" make a worker nested (positional_indexer.h). Ghosts are freed with
// the last record behind them.
//
// Records are found by chain when a ghost's block is stored again, and when a content gets another name: a
// table has the number of every record with 32 hash bits of its chain. Nearly every content has one name. For
// those with more, a separate table has name counts per tier.
//
// Thread safety: thread-compatible; PositionalTables holds `lock` around every use.
// Complexity:    O(1) expected per name, except when a table doubles or halves.
// Memory:        add_record() and add_name() throw std::bad_alloc with nothing changed; the rest needs no
//                memory.
// Invariant:     a name's tiers are a subset of its record's; a record's tiers are the union of its names';
//                a record without tiers has records behind it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/events/index_sink.h"
#include "base/entry_map.h"
#include "index/positional/positional_chain.h"
#include "index/positional/positional_set.h"

namespace ashlar::index::detail {

inline constexpr std::uint32_t kNoRecord = 0xFFFF'FFFFu;

struct HeldBlock {
  Chain chain;
  tokens::LocalHash local;
  std::uint32_t position = 0;
  std::uint32_t parent = kNoRecord;
  std::uint32_t children = 0;
  std::uint32_t names : 32 - kTierBits = 0;
  std::uint32_t tiers : kTierBits = 0;  // where the worker holds the content; 0: a ghost
};
static_assert(sizeof(HeldBlock) == 40);

// Records by number, in chunks that do not move and are freed with their last record.
class RecordChunks {
 public:
  // Throws std::bad_alloc with nothing changed.
  std::uint32_t create(const HeldBlock& record);
  void destroy(std::uint32_t number) noexcept;

  HeldBlock& operator[](std::uint32_t number) noexcept {
    return chunks_[number / kChunk].records[number % kChunk];
  }
  const HeldBlock& operator[](std::uint32_t number) const noexcept {
    return chunks_[number / kChunk].records[number % kChunk];
  }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept;
  void clear() noexcept;

  // fn(number, record), by ascending number.
  template <class F>
  void for_each(F&& fn) const;

 private:
  static constexpr std::uint32_t kChunk = 64;
  struct Chunk {
    std::unique_ptr<HeldBlock[]> records;  // null while none is used
    std::uint64_t used = 0;                // a bit per record
  };

  void add_chunk();

  std::vector<Chunk> chunks_;
  // Chunks with room, the next to use at the back. Its capacity suffices for all chunks.
  std::vector<std::uint32_t> open_;
  std::size_t with_memory_ = 0;  // chunks
  std::size_t size_ = 0;
};

struct NameEntry {
  using Key = std::uint64_t;
  std::uint64_t name = 0;
  std::uint32_t record_and_one = 0;  // 0: empty
  TierMask tiers = 0;

  std::uint32_t record() const noexcept { return record_and_one - 1; }
  Key key() const noexcept { return name; }
  bool empty() const noexcept { return record_and_one == 0; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
};
static_assert(sizeof(NameEntry) == 16);

// A record by the hash bits of its chain.
struct ChainEntry {
  struct Key {
    std::uint32_t bits = 0;
    std::uint32_t record_and_one = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  std::uint32_t bits = 0;
  std::uint32_t record_and_one = 0;  // 0: empty

  Key key() const noexcept { return {bits, record_and_one}; }
  bool empty() const noexcept { return record_and_one == 0; }
  // The bits come from a seeded hash.
  static std::uint64_t hash(const Key& key, std::uint64_t) noexcept { return hash(key.bits); }
  static std::uint64_t hash(std::uint32_t bits) noexcept { return std::uint64_t{bits} << 32; }
};
static_assert(sizeof(ChainEntry) == 8);

// How many names a record has in each tier.
struct NameCounts {
  using Key = std::uint32_t;
  std::uint32_t record_and_one = 0;  // 0: empty
  std::array<std::uint32_t, events::kStorageTiers> in_tier{};

  Key key() const noexcept { return record_and_one; }
  bool empty() const noexcept { return record_and_one == 0; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
};

class WorkerBlocks {
 public:
  explicit WorkerBlocks(std::uint32_t slot) noexcept : slot_(slot), seed_(draw_seed()) {}

  Mutex lock;
  std::unique_ptr<WorkerBlocks> next_retired;  // for RetiredWorkers

  std::uint32_t slot() const noexcept { return slot_; }
  bool empty() const noexcept { return blocks_ == 0; }
  // (content, tier) presences.
  std::size_t blocks() const noexcept { return blocks_; }
  std::size_t bytes() const noexcept;
  bool in_lower_tiers() const noexcept { return lower_ != 0; }
  bool nested() const noexcept { return ghosts_ == 0 && lower_ == 0; }
  // Ghosts included.
  std::size_t records() const noexcept { return records_.size(); }

  // always_inline: as EntryMap::prefetch().
  [[gnu::always_inline]] void prefetch_name(events::BlockName name) const noexcept {
    names_.prefetch(name.value());
  }
  // Null if the worker has no such name. Valid until the next change of names.
  NameEntry* find_name(events::BlockName name) noexcept { return names_.find(name.value()); }
  const HeldBlock& record(std::uint32_t number) const noexcept { return records_[number]; }

  bool has_ghosts() const noexcept { return ghosts_ != 0; }
  [[gnu::always_inline]] void prefetch_chain(const Chain& chain) const noexcept {
    chains_.prefetch({bits_of(chain), 0});
  }
  // The record of a content, ghosts included; kNoRecord without one.
  std::uint32_t find_record(const Chain& chain) const noexcept;

  // Requires: no record of that content; the parent's record, or kNoRecord at position 0.
  std::uint32_t add_record(const Chain& chain, tokens::LocalHash local, std::uint32_t parent);
  // Adds a new name for the record's content / a known name in a new tier.
  void add_name(events::BlockName name, std::uint32_t record, events::StorageTier tier);
  void add_tier(NameEntry& name, events::StorageTier tier) noexcept;
  // Undoes add_record(). Requires: nothing refers to the record, and its parent has names.
  void drop_record(std::uint32_t number) noexcept { free_records_from(number); }
  // Whether removing the name from the tier ends the content's presence there. Requires: the name is in it.
  bool is_last_in_tier(const NameEntry& name, events::StorageTier tier) const noexcept;
  // Removes the name from the tier, and frees unreferenced records. The entry is gone.
  void remove_name(NameEntry& name, events::StorageTier tier) noexcept;

  template <class F>
  void for_each_record(F&& fn) const {  // fn(number, record), ghosts included
    records_.for_each(fn);
  }
  template <class F>
  void for_each_name(F&& fn) const {  // fn(const NameEntry&)
    names_.for_each(fn);
  }

 private:
  std::uint32_t bits_of(const Chain& chain) const noexcept {
    return static_cast<std::uint32_t>(seeded_hash(chain.a, chain.b, seed_) >> 32);
  }
  void gain_presence(HeldBlock& record, events::StorageTier tier) noexcept;
  void count_first_names(std::uint32_t number);
  void free_records_from(std::uint32_t number) noexcept;

  std::uint32_t slot_;
  std::uint64_t seed_;  // of the hash bits of chains
  RecordChunks records_;
  EntryMap<NameEntry> names_;
  EntryMap<ChainEntry> chains_;  // all records
  EntryMap<NameCounts> counts_;  // of records with more than one name
  std::size_t ghosts_ = 0;
  std::size_t blocks_ = 0;
  std::size_t lower_ = 0;  // of blocks_: in lower tiers
};

template <class F>
void RecordChunks::for_each(F&& fn) const {
  count_steps(size_);
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (std::uint64_t used = chunks_[chunk].used; used != 0; used &= used - 1) {
      const auto at = static_cast<std::uint32_t>(std::countr_zero(used));
      fn(static_cast<std::uint32_t>(chunk) * kChunk + at, chunks_[chunk].records[at]);
    }
  }
}

}  // namespace ashlar::index::detail
