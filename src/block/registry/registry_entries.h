// RegistryEntries: the entries of a BlockRegistry, and the ways to find them by hash.
//
// A hash that some manager holds is found through that manager's own index, which leads to the slot and from
// there to the entry; hashes that only handles keep ("orphans") have an index here. So a block costs one
// index entry, whether its manager or the registry looks for it. The shard's lock keeps them consistent: for
// one hash, the manager's index entry, the slot's entry pointer, the orphan index and the count change only
// under it.
//
// Position first: a hash belongs to the shard of its position. 16 consecutive positions share one, so a walk
// along a sequence changes locks every 16 blocks.
//
// Most hashes have one block and no handle. Such a block implies its entry: its slot says so (is_implied),
// and the entry is materialised on demand, under the shard's lock.
//
// Entries live in slabs that are freed only with the registry, so a late reader touches stale memory, never
// unrelated memory. An entry is erased under its shard's lock when its count is zero; a count that reached
// zero outside the lock is checked again inside it, and the generation tells a late thread that the entry has
// begun another life.
//
// Thread safety: thread-safe. Shard locks are leaves: no callback runs and no other lock is taken under one.
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

// Rarely needed parts of an entry: attachments and callbacks. Created on first use.
struct EntryExtension {
  Mutex mu;
  std::vector<std::pair<std::type_index, std::shared_ptr<AttachmentBase>>> attachments ASHLAR_GUARDED_BY(mu);
  // Replaced as a whole, so that a touch does not copy it.
  struct Callback {
    TouchId id;
    std::shared_ptr<const RegistrationHandle::TouchCallback> call;
  };
  using Callbacks = std::vector<Callback>;
  std::shared_ptr<const Callbacks> callbacks ASHLAR_GUARDED_BY(mu);  // null: none
  EntryExtension* next_retired = nullptr;  // link in a list of extensions whose entries are gone
};

struct alignas(64) Entry {
  tokens::SequenceHash hash;           // constant during one life
  std::atomic<std::uint32_t> refs{0};  // handles + registered primaries
  std::uint32_t place = 0;             // index in the shard's slabs
  std::array<std::atomic<std::uint16_t>, events::kMaxTiers>
      presence{};  // primaries per tier; written under the lock
  std::atomic<EntryExtension*> extension{nullptr};
  std::uint64_t generation = 0;  // lives so far; written under the shard's lock
  std::uint8_t shard = 0;        // the shard whose lock protects it; constant

  // Primaries in all tiers. relaxed: a statistic.
  std::uint32_t total_presence() const noexcept {
    std::uint32_t total = 0;
    for (const auto& count : presence) total += count.load(std::memory_order_relaxed);
    return total;
  }
  bool orphan = false;  // no manager holds it; written under the shard's lock

  // relaxed: the caller keeps the entry referenced, or holds the shard's lock, which orders this with the
  // erasure that may follow a count of zero.
  void add_reference() noexcept {
    const std::uint32_t old = refs.fetch_add(1, std::memory_order_relaxed);
    ASHLAR_CHECK(old < kMaxReferences, "a hash has %u handles, as many as it may have", old);
  }
  // The headroom above it is for threads that have incremented and are about to back out.
  static constexpr std::uint32_t kMaxReferences = UINT32_MAX - (1u << 20);
};
static_assert(sizeof(Entry) == 64);

inline constexpr std::size_t kRegistryShards = 64;

// Placeholders for the entries of hashes with one block and no handle: one reference, present in the block's
// tier. One per shard, so that a slot's pointer tells which lock protects it.
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

// Extensions to destroy after all locks are released: they own callers' values.
class RetiredExtensions {
 public:
  RetiredExtensions() = default;
  RetiredExtensions(const RetiredExtensions&) = delete;
  RetiredExtensions& operator=(const RetiredExtensions&) = delete;
  // Destroying one may retire more; the outermost list destroys those, so a chain does not recurse.
  ~RetiredExtensions() { destroy(); }
  void destroy() noexcept;
  bool empty() const noexcept { return head_ == nullptr; }
  void add(EntryExtension* extension) noexcept { extension->next_retired = std::exchange(head_, extension); }

 private:
  EntryExtension* head_ = nullptr;
};

// Finds entries by hash: implemented by a manager's store.
class EntrySource {
 public:
  virtual ~EntrySource() = default;
  // These hashes were used elsewhere: refreshes those that are inactive here. Called outside all locks.
  virtual void touched(std::span<const tokens::SequenceHash> hashes) noexcept = 0;
  // The entry of a hash registered here, or null; an implied one is materialised. Called under the hash's
  // shard lock.
  virtual Entry* find_entry(std::uint64_t mixed, const tokens::SequenceHash& hash) = 0;
  // The number of hashes at a position with an implied entry here. Called under the position's shard lock.
  virtual std::size_t count_implied(std::uint32_t position) const noexcept = 0;
};

class RegistryEntries : public std::enable_shared_from_this<RegistryEntries> {
  struct Shard;

 public:
  explicit RegistryEntries(const RegistryOptions& options);
  ~RegistryEntries();

  // Holds the lock of the shard it was last used with; moving to another shard changes locks.
  class Cursor {
   public:
    Cursor() = default;
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;
    ~Cursor() { release(); }
    // Releases the lock; the cursor may be used again.
    void release() noexcept { move_to(nullptr); }

   private:
    friend class RegistryEntries;
    void move_to(Shard* shard) noexcept {
      if (shard != held_) change_to(shard);
    }
    void change_to(Shard* shard) noexcept;
    Shard* held_ = nullptr;
  };

  // A source is queried from attach() to detach(); it must be empty at both.
  void attach(const std::shared_ptr<EntrySource>& source);
  void detach(EntrySource& source) noexcept;
  // True when more than one source may hold a hash.
  bool has_several_sources() const noexcept { return source_count_.load(std::memory_order_relaxed) > 1; }
  // Tells every source but `except` that these hashes were used. Requires: no lock is held.
  void tell_touched(std::span<const tokens::SequenceHash> hashes, const EntrySource* except) noexcept;
  // One use of an existing entry's hash: counts it, tells all sources and runs its callbacks.
  void touch(Entry& entry) noexcept;

  struct Acquired {
    Entry* entry;
    bool created;
  };
  // The shard of a position.
  static std::size_t shard_number(std::uint32_t position) noexcept { return run_of(position) % kShards; }
  // Finds or creates the entry and adds one reference.
  Acquired acquire(Cursor& cursor, const tokens::SequenceHash& hash);
  // Finds the entry and adds one reference; null when there is none.
  Entry* find(Cursor& cursor, const tokens::SequenceHash& hash);
  // Drops a reference under the shard's lock.
  void release(Cursor& cursor, Entry& entry, RetiredExtensions& retired);
  // Drops a reference; no lock needed.
  void release(Entry& entry);

  // Adds the reference of a block being registered, which becomes present in its tier. The caller is the
  // source `self`, does not hold the hash yet, and inserts it into its index before the cursor moves on. A
  // new hash gets an implied entry.
  Acquired acquire_block(Cursor& cursor, const tokens::SequenceHash& hash, events::TierId tier,
                         const EntrySource& self);
  // Removes the block. In `leave()`, which runs under the shard's lock, the caller takes the hash out of its
  // index and returns the entry it had.
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
  // Another block of the same source replaces the block: in `pass()`, which runs under the shard's lock, the
  // caller updates its index and hands over the entry. The hash stays present throughout.
  template <class Pass>
  void pass_block(Cursor& cursor, const tokens::SequenceHash& hash, Pass&& pass) {
    cursor.move_to(&shard_of(hash.position()));
    std::forward<Pass>(pass)();
  }
  // Materialises the entry that a block implied so far. Requires: the shard's lock.
  Entry& spell_out(const tokens::SequenceHash& hash, events::TierId tier);
  RegistrationHandle handle(Entry* entry_with_reference) {
    return RegistrationHandle(shared_from_this(), entry_with_reference);
  }
  // Runs the entry's callbacks, outside all locks. Requires: the caller keeps the entry referenced.
  void run_touch_callbacks(Entry& entry) noexcept;
  TouchId add_touch_callback(Entry& entry, RegistrationHandle::TouchCallback callback);
  static bool remove_touch_callback(Entry& entry, TouchId id);
  // False while no entry has ever had a touch callback: the common case, without looking at entries.
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
    // An entry with one reference. The caller makes it an orphan or assigns it to a block, and counts a new
    // hash.
    Entry& make(const tokens::SequenceHash& hash) ASHLAR_REQUIRES(mu);
    void erase(Entry& entry, RetiredExtensions& retired) ASHLAR_REQUIRES(mu);
    // The only place that allocates.
    void add_slab(std::size_t shard) ASHLAR_REQUIRES(mu);
  };

  // The entry of a hash, from any source; null when there is none. Requires: the shard's lock.
  Entry* lookup(Shard& shard, const tokens::SequenceHash& hash, const EntrySource* except);
  static void block_left(Shard& shard, Entry& entry, events::TierId tier, RetiredExtensions& retired);
  static void release(Shard& shard, Entry& entry, RetiredExtensions& retired);

  static std::size_t run_of(std::uint32_t position) noexcept { return position / kPositionsPerRun; }
  Shard& shard_of(std::uint32_t position) noexcept { return shards_[shard_number(position)]; }

  const RegistryOptions options_;
  std::optional<TinyLfu> tracker_;
  std::array<Shard, kShards> shards_;
  std::atomic<bool> has_touch_callbacks_{false};
  std::atomic<std::uint64_t> last_touch_id_{0};

  void remove_from_shards(const EntrySource* source) noexcept;

  // The managers that hear of touches. Replaced as a whole, so that readers walk it without the lock.
  using Listeners = std::vector<std::weak_ptr<EntrySource>>;
  Mutex listeners_mu_;
  std::shared_ptr<const Listeners> listeners_ ASHLAR_GUARDED_BY(listeners_mu_) =
      std::make_shared<Listeners>();
  std::atomic<std::size_t> source_count_{0};
};

// ---- on the path of every registration and eviction

inline void RegistryEntries::Shard::erase(Entry& gone, RetiredExtensions& retired) {
  if (gone.orphan) [[unlikely]]
    remove_orphan(gone);
  --count;
  ++gone.generation;
  // relaxed: the entry has no references left.
  if (EntryExtension* extension = gone.extension.load(std::memory_order_relaxed)) [[unlikely]] {
    gone.extension.store(nullptr, std::memory_order_relaxed);
    retired.add(extension);
  }
  free.push_back(&gone);
}

inline void RegistryEntries::release(Shard& shard, Entry& entry,
                                     RetiredExtensions& retired) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  // acquire, acq_rel: every holder's accesses to the entry happen before its memory begins another life. A
  // count of one is ours, and no thread can add to it: new references come from holders, or from a look-up
  // under this lock.
  if (entry.refs.load(std::memory_order_acquire) == 1) [[likely]] {
    entry.refs.store(0, std::memory_order_relaxed);
    shard.erase(entry, retired);
  } else if (entry.refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    shard.erase(entry, retired);
  }
}

// relaxed, in both: presence is a count, written under the shard's lock and only observed without it.
inline void RegistryEntries::block_left(Shard& shard, Entry& entry, events::TierId tier,
                                        RetiredExtensions& retired) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  auto& present = entry.presence[tier.value()];
  present.store(static_cast<std::uint16_t>(present.load(std::memory_order_relaxed) - 1),
                std::memory_order_relaxed);
  // With a second reference the entry outlives the block, at least until this lock is released; if no other
  // tier holds it, it must be findable here.
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
