// IndexChanges: what an engine's messages change for a routing index, in order: runs of stored blocks, names
// that left a tier, ranks that are empty. The same news as the KvEvents that an index needs
// (EngineIngest::for_index()), in the form in which an index takes it, so that a run costs one call and a
// block 32 bytes.
//
// ChangeOutput: where an EngineIngest puts its changes, a vector of KvEvents or IndexChanges.
//
// Thread safety: thread-compatible; a ChangeOutput refers to the caller's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/events/index_sink.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::feed {

struct IndexChanges {
  // Consecutive blocks of a sequence that are in a tier now (kStored), names that left a tier (kRemoved), or,
  // with kAllTiers, a rank that holds nothing any more (kCleared).
  struct Change {
    events::KvEventKind kind = events::KvEventKind::kStored;
    events::TierId tier = {};
    std::uint16_t group = 0;  // of layers
    std::uint32_t rank = 0;
    std::uint32_t first = 0;  // kStored: of `blocks`; kRemoved: of `names`
    std::uint32_t count = 0;
    // kStored: the block before the first one.
    std::optional<tokens::SequenceHash> parent = {};
    // Its name, if the rank holds it now. A run without a parent begins a sequence.
    std::optional<events::BlockName> parent_name = {};
  };

  std::vector<Change> changes;
  // Of kStored, and their hashes; of kRemoved, and theirs. Hashes are those of group 0.
  std::vector<events::StoredBlock> blocks;
  std::vector<tokens::SequenceHash> block_hashes;
  std::vector<events::BlockName> names;
  std::vector<tokens::SequenceHash> name_hashes;
  // Blocks that were left out, since an index does not need them, and the tiers where some were stored.
  std::uint64_t tracked_only = 0;
  std::uint8_t tracked_tiers = 0;  // a bit each

  bool empty() const noexcept { return changes.empty(); }
  // As many as the KvEvents would be.
  std::size_t size() const noexcept {
    std::size_t count = blocks.size() + names.size() + tracked_only;
    for (const Change& change : changes) count += change.kind == events::KvEventKind::kCleared ? 1 : 0;
    return count;
  }
  // For a change more, and so many blocks or names. Throws std::bad_alloc with nothing changed.
  void make_room(events::KvEventKind kind, std::size_t count) {
    grow(changes, 1);
    if (kind == events::KvEventKind::kStored) {
      grow(blocks, count);
      grow(block_hashes, count);
    } else if (kind == events::KvEventKind::kRemoved) {
      grow(names, count);
      grow(name_hashes, count);
    }
  }
  void clear() noexcept {
    changes.clear();
    blocks.clear();
    block_hashes.clear();
    names.clear();
    name_hashes.clear();
    tracked_only = 0;
    tracked_tiers = 0;
  }

  // Room for `more` elements, by doubling.
  template <class T>
  static void grow(std::vector<T>& array, std::size_t more) {
    const std::size_t needed = array.size() + more;
    if (needed > array.capacity()) array.reserve(std::max(needed, 2 * array.capacity()));
  }
};

class ChangeOutput {
 public:
  // Implicit: a caller passes either by its name.
  ChangeOutput(std::vector<events::KvEvent>& events) noexcept  // NOLINT(google-explicit-constructor)
      : events_(&events) {}
  ChangeOutput(IndexChanges& changes) noexcept  // NOLINT(google-explicit-constructor)
      : changes_(&changes) {}

  // For so many stored blocks of a run. Throws std::bad_alloc with nothing changed.
  void make_room(std::size_t blocks) const {
    if (events_ != nullptr)
      IndexChanges::grow(*events_, blocks);
    else
      changes_->make_room(events::KvEventKind::kStored, blocks);
  }
  // One of them is not null.
  std::vector<events::KvEvent>* events() const noexcept { return events_; }
  IndexChanges* changes() const noexcept { return changes_; }

 private:
  std::vector<events::KvEvent>* events_ = nullptr;
  IndexChanges* changes_ = nullptr;
};

}  // namespace ashlar::feed
