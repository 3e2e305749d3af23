// RegistryCore: the entries of a BlockRegistry and their position-first index.
//
// Entries live in slabs that are never freed before the core, so a late reader touches stale memory, never foreign
// memory. An entry is erased under its shard's lock when its count is zero; a count that reached zero outside the
// lock is looked at again inside it, and the generation tells a late thread that the entry has begun another life.
//
// Sharding: 16 consecutive positions share a shard, so a walk along a sequence changes locks every 16 blocks.
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

#include "ashlar/base/mutex.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/registration_handle.h"

namespace ashlar::block::detail {

// What few hashes have: attachments and callbacks. Made on first use.
struct EntryExtension {
  Mutex mu;
  std::vector<std::pair<std::type_index, std::shared_ptr<AttachmentBase>>> attachments ASHLAR_GUARDED_BY(mu);
  std::vector<std::shared_ptr<const RegistrationHandle::TouchCallback>> callbacks ASHLAR_GUARDED_BY(mu);
  EntryExtension* next_retired = nullptr;  // link in a list of extensions whose entries are gone
};

struct alignas(64) Entry {
  tokens::SequenceHash hash;                     // constant during one life
  std::atomic<std::uint32_t> refs{0};            // handles + registered primaries
  std::uint32_t generation = 0;                  // lives so far; written under the shard's lock
  std::array<std::atomic<std::uint16_t>, events::kMaxTiers> presence{};  // registered primaries per tier
  std::atomic<EntryExtension*> extension{nullptr};
  std::uint32_t index = 0;                       // place in the shard's slab
};

// Extensions to be destroyed after all locks are released: they own values of the callers.
class RetiredExtensions {
 public:
  RetiredExtensions() = default;
  RetiredExtensions(const RetiredExtensions&) = delete;
  RetiredExtensions& operator=(const RetiredExtensions&) = delete;
  ~RetiredExtensions() {
    while (head_ != nullptr) delete std::exchange(head_, head_->next_retired);
  }
  void add(EntryExtension* extension) noexcept {
    extension->next_retired = std::exchange(head_, extension);
  }

 private:
  EntryExtension* head_ = nullptr;
};

class RegistryCore : public std::enable_shared_from_this<RegistryCore> {
  struct Shard;

 public:
  explicit RegistryCore(const RegistryOptions& options);
  ~RegistryCore();

  // Holds the lock of the shard it was last used with; passing from one shard to the next changes locks.
  class Cursor {
   public:
    explicit Cursor(RegistryCore& /*core*/) {}
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;
    ~Cursor() { move_to(nullptr); }

   private:
    friend class RegistryCore;
    void move_to(Shard* shard) noexcept;
    Shard* held_ = nullptr;
  };

  struct Acquired {
    Entry* entry;
    bool created;
  };
  // Finds or makes the entry and counts one reference.
  Acquired acquire(Cursor& cursor, const tokens::SequenceHash& hash);
  // Brings the index of the leading hashes closer, as far as they share a shard. Worth a call every kPositionsPerRun
  // hashes of a sequence.
  void prefetch(Cursor& cursor, std::span<const tokens::SequenceHash> hashes);
  // Finds the entry and counts one reference; null when there is none.
  Entry* find(Cursor& cursor, const tokens::SequenceHash& hash);
  // Gives back a reference under the shard's lock.
  void release(Cursor& cursor, Entry& entry, RetiredExtensions& retired);
  // Gives back a reference from anywhere.
  void release(Entry& entry);

  RegistrationHandle handle(Entry* entry_with_reference) {
    return RegistrationHandle(shared_from_this(), entry_with_reference);
  }
  // Runs the entry's callbacks, outside all locks. Requires: the caller keeps the entry referenced.
  void run_touch_callbacks(Entry& entry);
  void add_touch_callback(Entry& entry, RegistrationHandle::TouchCallback callback);
  // False while no entry has ever had a touch callback: the common case, known without looking at entries.
  bool has_touch_callbacks() const noexcept { return has_touch_callbacks_.load(std::memory_order_relaxed); }

  std::size_t registered_count();
  std::size_t registered_count_at(std::uint32_t position);

  TinyLfu* tracker() noexcept { return tracker_ ? &*tracker_ : nullptr; }
  const RegistryOptions& options() const noexcept { return options_; }

  static EntryExtension& extension_of(Entry& entry);

  static constexpr std::size_t kPositionsPerRun = 16;

 private:
  // Hashes of one position: open addressing over {tag, entry index}.
  struct PositionTable {
    std::vector<std::uint64_t> cells;  // 0 = empty, else tag << 32 | (entry index + 1)
    std::uint32_t count = 0;
  };
  static constexpr std::size_t kShards = 64;
  static constexpr std::size_t kSlab = 1024;

  struct alignas(64) Shard {
    Mutex mu;
    std::vector<PositionTable> tables ASHLAR_GUARDED_BY(mu);
    std::vector<std::unique_ptr<Entry[]>> slabs ASHLAR_GUARDED_BY(mu);
    std::vector<std::uint32_t> free ASHLAR_GUARDED_BY(mu);
    std::size_t count ASHLAR_GUARDED_BY(mu) = 0;

    Entry& entry(std::uint32_t index) ASHLAR_REQUIRES(mu) { return slabs[index / kSlab][index % kSlab]; }
    Entry* lookup(const tokens::SequenceHash& hash) ASHLAR_REQUIRES(mu);
    Entry& insert(const tokens::SequenceHash& hash) ASHLAR_REQUIRES(mu);
    void erase(Entry& entry, RetiredExtensions& retired) ASHLAR_REQUIRES(mu);
    void grow(PositionTable& table) ASHLAR_REQUIRES(mu);
  };

  static std::size_t run_of(std::uint32_t position) noexcept { return position / kPositionsPerRun; }
  Shard& shard_of(std::uint32_t position) noexcept { return shards_[run_of(position) % kShards]; }
  // Place of a position among the tables of its shard.
  static std::size_t table_of(std::uint32_t position) noexcept {
    return run_of(position) / kShards * kPositionsPerRun + position % kPositionsPerRun;
  }
  static std::uint32_t tag_of(const tokens::SequenceHash& hash) noexcept {
    return static_cast<std::uint32_t>(((hash.lo() ^ hash.hi() * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u) >> 32);
  }

  const RegistryOptions options_;
  std::optional<TinyLfu> tracker_;
  std::array<Shard, kShards> shards_;
  std::atomic<bool> has_touch_callbacks_{false};
};

}  // namespace ashlar::block::detail
