// RegistryEntries: the entries of a BlockRegistry, and the ways to find them by hash.
//
// A hash that some manager holds is found through that manager's own index, which leads to the slot and from
// there to the entry; hashes that only handles keep ("orphans") have an index here. So a block costs one
// index entry, whether it is looked for by its manager or by the registry. What the parts agree on is the
// shard's lock: for one hash, the manager's index entry, the slot's entry pointer, the orphan index and the
// count change only under it.
//
// Position first: a hash belongs to the shard of its position. 16 consecutive positions share one, so a walk
// along a sequence changes locks every 16 blocks.
//
// Most hashes have one block and no handle. Such a block implies its entry: its slot says so (is_implied),
// and the entry is spelled out on demand, under the shard's lock.
//
// Entries live in slabs that are never freed before the core, so a late reader touches stale memory, never
// foreign memory. An entry is erased under its shard's lock when its count is zero; a count that reached zero
// outside the lock is looked at again inside it, and the generation tells a late thread that the entry has
// begun another life.
//
// Thread safety: thread-safe. Shard locks are leaves: nothing is called and no other lock is taken under one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <typeindex>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/registration_handle.h"
#include "base/large_array.h"
#include "block/registry/hash_index.h"
#include "block/registry/hash_mix.h"
#include "block/registry/tiny_lfu.h"

namespace ashlar::block::detail {

// What few hashes have: attachments and callbacks. Made on first use.
struct EntryExtension {
  Mutex mu;
  std::vector<std::pair<std::type_index, std::shared_ptr<AttachmentBase>>> attachments ASHLAR_GUARDED_BY(mu);
  // Replaced as a whole, so that a touch takes no copy of it.
  using Callbacks = std::vector<std::shared_ptr<const RegistrationHandle::TouchCallback>>;
  std::shared_ptr<const Callbacks> callbacks ASHLAR_GUARDED_BY(mu);  // null: none
  EntryExtension* next_retired = nullptr;  // link in a list of extensions whose entries are gone
};

struct alignas(64) Entry {
  tokens::SequenceHash hash;           // constant during one life
  std::atomic<std::uint32_t> refs{0};  // handles + registered primaries
  std::uint32_t place = 0;             // in the shard's slabs
  std::array<std::atomic<std::uint16_t>, events::kMaxTiers>
      presence{};  // primaries per tier; written under the lock
  std::atomic<EntryExtension*> extension{nullptr};
  std::uint64_t generation = 0;  // lives so far; written under the shard's lock
  std::uint8_t shard = 0;        // whose lock protects it; constant

  // Primaries in all tiers. relaxed: a count to look at.
  std::uint32_t total_presence() const noexcept {
    std::uint32_t total = 0;
    for (const auto& count : presence) total += count.load(std::memory_order_relaxed);
    return total;
  }
  bool orphan = false;  // no manager has it; written under the shard's lock

  // relaxed: the caller keeps the entry referenced, or holds the shard's lock, which orders this with the
  // erasure that a count of zero may lead to.
  void add_reference() noexcept {
    const std::uint32_t old = refs.fetch_add(1, std::memory_order_relaxed);
    ASHLAR_CHECK(old < kMaxReferences, "a hash has %u handles, as many as it may have", old);
  }
  // The room above it is for other threads that have counted themselves and are about to stop.
  static constexpr std::uint32_t kMaxReferences = UINT32_MAX - (1u << 20);
};
static_assert(sizeof(Entry) == 64);

inline constexpr std::size_t kRegistryShards = 64;

// Stand for the entries of hashes that have one block and nothing else: one reference, present in the block's
// tier. One per shard, so that what a slot has says whose lock keeps it.
class ImpliedEntries {
 public:
  constexpr ImpliedEntries() {
    for (std::size_t i = 0; i < kRegistryShards; ++i) entries_[i].shard = static_cast<std::uint8_t>(i);
  }
  Entry* of(std::size_t shard) noexcept { return &entries_[shard]; }
  bool contains(const Entry* entry) const noexcept {
    return reinterpret_cast<std::uintptr_t>(entry) - reinterpret_cast<std::uintptr_t>(&entries_) <
           sizeof entries_;
  }

 private:
  std::array<Entry, kRegistryShards> entries_;
};
inline constinit ImpliedEntries implied_entries;
inline bool is_implied(const Entry* entry) noexcept {
  return implied_entries.contains(entry);
}

// Extensions to be destroyed after all locks are released: they own values of the callers.
class RetiredExtensions {
 public:
  RetiredExtensions() = default;
  RetiredExtensions(const RetiredExtensions&) = delete;
  RetiredExtensions& operator=(const RetiredExtensions&) = delete;
  // What is destroyed may retire more; that is destroyed by the outermost list, so a chain does not recurse.
  ~RetiredExtensions() { destroy(); }
  void destroy() noexcept;
  bool empty() const noexcept { return head_ == nullptr; }
  void add(EntryExtension* extension) noexcept { extension->next_retired = std::exchange(head_, extension); }

 private:
  EntryExtension* head_ = nullptr;
};

// Somebody who can find entries by hash: a manager's store.
class EntrySource {
 public:
  virtual ~EntrySource() = default;
  // These hashes were used somewhere: what is inactive here is refreshed. Called outside all locks.
  virtual void touched(std::span<const tokens::SequenceHash> hashes) noexcept = 0;
  // The entry of a hash that is registered here, or null; one that was implied is spelled out. Called under
  // the hash's shard lock.
  virtual Entry* find_entry(std::uint64_t mixed, const tokens::SequenceHash& hash) = 0;
  // How many hashes at a position have an implied entry here. Called under the position's shard lock.
  virtual std::size_t count_implied(std::uint32_t position) const noexcept = 0;
};

class RegistryEntries : public std::enable_shared_from_this<RegistryEntries> {
  struct Shard;

 public:
  explicit RegistryEntries(const RegistryOptions& options);
  ~RegistryEntries();

  // Holds the lock of the shard it was last used with; passing from one shard to the next changes locks.
  class Cursor {
   public:
    Cursor() = default;
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;
    ~Cursor() { release(); }
    // Lets the lock go; the cursor may be used again.
    void release() noexcept { move_to(nullptr); }

   private:
    friend class RegistryEntries;
    void move_to(Shard* shard) noexcept {
      if (shard != held_) change_to(shard);
    }
    void change_to(Shard* shard) noexcept;
    Shard* held_ = nullptr;
  };

  // A source is asked from attach() to detach(); it must be empty at both.
  void attach(const std::shared_ptr<EntrySource>& source);
  void detach(EntrySource& source) noexcept;
  // True when a hash may be present with more than one source.
  bool has_several_sources() const noexcept { return source_count_.load(std::memory_order_relaxed) > 1; }
  // Tells every source but `except` that these hashes were used. Requires: no lock is held.
  void tell_touched(std::span<const tokens::SequenceHash> hashes, const EntrySource* except) noexcept;
  // One use of a hash that has an entry: counted, told to all sources, told to its callbacks.
  void touch(Entry& entry) noexcept;

  struct Acquired {
    Entry* entry;
    bool created;
  };
  // Which of the locks a position belongs to.
  static std::size_t shard_number(std::uint32_t position) noexcept { return run_of(position) % kShards; }
  // Finds or makes the entry and counts one reference.
  Acquired acquire(Cursor& cursor, const tokens::SequenceHash& hash);
  // Finds the entry and counts one reference; null when there is none.
  Entry* find(Cursor& cursor, const tokens::SequenceHash& hash);
  // Gives back a reference under the shard's lock.
  void release(Cursor& cursor, Entry& entry, RetiredExtensions& retired);
  // Gives back a reference from anywhere.
  void release(Entry& entry);

  // The reference of a block that is being registered: it becomes present in its tier. The caller is the
  // source `self`, does not have the hash yet, and puts it into its index before the cursor moves on. A hash
  // that is new gets an implied entry.
  Acquired acquire_block(Cursor& cursor, const tokens::SequenceHash& hash, events::TierId tier,
                         const EntrySource& self);
  // The block leaves. In `leave()`, which runs under the shard's lock, the caller takes the hash out of its
  // index and says which entry it had.
  template <class Leave>
  void release_block(Cursor& cursor, const tokens::SequenceHash& hash, events::TierId tier,
                     RetiredExtensions& retired, Leave&& leave) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    Shard& shard = shard_of(hash.position());
    cursor.move_to(&shard);
    Entry* const entry = std::forward<Leave>(leave)();
    if (is_implied(entry)) [[likely]] {
      --shard.count;
    } else {
      block_left(shard, *entry, tier, retired);
    }
  }
  // Another block of the same source takes the block's place: in `pass()`, which runs under the shard's lock,
  // the caller changes its index and hands the entry on. The hash stays present all the while.
  template <class Pass>
  void pass_block(Cursor& cursor, const tokens::SequenceHash& hash, Pass&& pass) {
    cursor.move_to(&shard_of(hash.position()));
    std::forward<Pass>(pass)();
  }
  // The entry that a block has implied so far. Requires: the shard's lock.
  Entry& spell_out(const tokens::SequenceHash& hash, events::TierId tier);
  RegistrationHandle handle(Entry* entry_with_reference) {
    return RegistrationHandle(shared_from_this(), entry_with_reference);
  }
  // Runs the entry's callbacks, outside all locks. Requires: the caller keeps the entry referenced.
  void run_touch_callbacks(Entry& entry) noexcept;
  void add_touch_callback(Entry& entry, RegistrationHandle::TouchCallback callback);
  // False while no entry has ever had a touch callback: the common case, known without looking at entries.
  bool has_touch_callbacks() const noexcept { return has_touch_callbacks_.load(std::memory_order_relaxed); }

  std::size_t registered_count();
  std::size_t registered_count_at(std::uint32_t position);

  TinyLfu* tracker() noexcept { return tracker_ ? &*tracker_ : nullptr; }
  const RegistryOptions& options() const noexcept { return options_; }

  static EntryExtension& extension_of(Entry& entry);

 private:
  static constexpr std::size_t kShards = kRegistryShards;
  static constexpr std::size_t kPositionsPerRun = 16;
  static constexpr std::uint32_t kSlab = 1024;

  struct alignas(64) Shard {
    Mutex mu;
    HashIndex orphans ASHLAR_GUARDED_BY(mu){kSlab};
    std::size_t orphan_count ASHLAR_GUARDED_BY(mu) = 0;
    std::vector<LargeArray<Entry>> slabs ASHLAR_GUARDED_BY(mu);
    std::vector<Entry*> free ASHLAR_GUARDED_BY(mu);
    std::size_t count ASHLAR_GUARDED_BY(mu) = 0;              // hashes, those with implied entries included
    std::vector<EntrySource*> sources ASHLAR_GUARDED_BY(mu);  // the same in every shard

    Entry& entry(std::uint32_t place) ASHLAR_REQUIRES(mu) { return slabs[place / kSlab][place % kSlab]; }
    Entry* find_orphan(std::uint64_t mixed, const tokens::SequenceHash& hash) ASHLAR_REQUIRES(mu);
    void add_orphan(Entry& entry) ASHLAR_REQUIRES(mu);
    void remove_orphan(Entry& entry) ASHLAR_REQUIRES(mu);
    // An entry with one reference. The caller makes it an orphan or a block's, and counts the hash if it is
    // new.
    Entry& make(const tokens::SequenceHash& hash) ASHLAR_REQUIRES(mu);
    void erase(Entry& entry, RetiredExtensions& retired) ASHLAR_REQUIRES(mu);
    // The only place that allocates.
    void add_slab(std::size_t shard) ASHLAR_REQUIRES(mu);
  };

  // The entry of a hash, wherever it is; null when there is none. Requires: the shard's lock.
  Entry* lookup(Shard& shard, const tokens::SequenceHash& hash, const EntrySource* except);
  static void block_left(Shard& shard, Entry& entry, events::TierId tier, RetiredExtensions& retired);
  static void release(Shard& shard, Entry& entry, RetiredExtensions& retired);

  static std::size_t run_of(std::uint32_t position) noexcept { return position / kPositionsPerRun; }
  Shard& shard_of(std::uint32_t position) noexcept { return shards_[shard_number(position)]; }

  const RegistryOptions options_;
  std::optional<TinyLfu> tracker_;
  std::array<Shard, kShards> shards_;
  std::atomic<bool> has_touch_callbacks_{false};

  void remove_from_shards(const EntrySource* source) noexcept;

  // The managers that hear of touches. Replaced as a whole, so that it can be walked without the lock.
  using Listeners = std::vector<std::weak_ptr<EntrySource>>;
  Mutex listeners_mu_;
  std::shared_ptr<const Listeners> listeners_ ASHLAR_GUARDED_BY(listeners_mu_) =
      std::make_shared<Listeners>();
  std::atomic<std::size_t> source_count_{0};
};

// ---- what every registration and every eviction does

inline void RegistryEntries::Shard::erase(Entry& gone, RetiredExtensions& retired) {
  if (gone.orphan) [[unlikely]]
    remove_orphan(gone);
  --count;
  ++gone.generation;
  // relaxed: the entry has no references any more.
  if (EntryExtension* extension = gone.extension.load(std::memory_order_relaxed)) [[unlikely]] {
    gone.extension.store(nullptr, std::memory_order_relaxed);
    retired.add(extension);
  }
  free.push_back(&gone);
}

inline void RegistryEntries::release(Shard& shard, Entry& entry,
                                     RetiredExtensions& retired) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  // acquire, acq_rel: what every holder did with the entry happens before its memory begins another life. A
  // count of one is ours, and no thread can add to it: new references come from holders, or from a look-up
  // under this lock.
  if (entry.refs.load(std::memory_order_acquire) == 1) [[likely]] {
    entry.refs.store(0, std::memory_order_relaxed);
    shard.erase(entry, retired);
  } else if (entry.refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    shard.erase(entry, retired);
  }
}

// relaxed, in both: presence is a count that is written under the shard's lock and only looked at without it.
inline void RegistryEntries::block_left(Shard& shard, Entry& entry, events::TierId tier,
                                        RetiredExtensions& retired) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  auto& present = entry.presence[tier.value()];
  present.store(static_cast<std::uint16_t>(present.load(std::memory_order_relaxed) - 1),
                std::memory_order_relaxed);
  // With a second reference the entry outlives the block, at least until this lock is free again; if no other
  // tier has it either, it must be found here.
  if (entry.refs.load(std::memory_order_acquire) > 1) [[unlikely]] {
    if (entry.total_presence() == 0) shard.add_orphan(entry);
  }
  release(shard, entry, retired);
}

inline RegistryEntries::Acquired RegistryEntries::acquire_block(
    Cursor& cursor, const tokens::SequenceHash& hash, events::TierId tier,
    const EntrySource& self) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  Shard& shard = shard_of(hash.position());
  cursor.move_to(&shard);
  // The common case first: one manager, which asks for itself, and no orphans.
  const bool alone = shard.orphan_count == 0 && shard.sources.size() == 1;
  Acquired acquired{alone ? nullptr : lookup(shard, hash, &self), false};
  if (acquired.entry == nullptr) [[likely]] {
    ++shard.count;
    return {implied_entries.of(shard_number(hash.position())), true};
  }
  acquired.entry->add_reference();
  if (acquired.entry->orphan) shard.remove_orphan(*acquired.entry);
  auto& present = acquired.entry->presence[tier.value()];
  present.store(static_cast<std::uint16_t>(present.load(std::memory_order_relaxed) + 1),
                std::memory_order_relaxed);
  return acquired;
}

}  // namespace ashlar::block::detail
