// BlockStore: a BlockManager without its tier. Slots, their index, the pools, and every transition between
// them.
//
// Locking. One lock, `store`. Without it: matching, copying and dropping references while a block is in use
// (the slot word, docs/slot_word.md), and every transition of a slot that one guard owns. Under it: every
// change to a pool, the index, or a count from or to zero. Sinks and user callbacks run after it is released.
//
// Thread safety: thread-safe. Lock order: store, then registry.shard.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/store_calls.h"
#include "ashlar/block/detail/untyped_manager.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/tokens/token_block.h"
#include "block/registry/hash_index.h"
#include "block/registry/registry_entries.h"
#include "block/store/pin_table.h"
#include "block/store/prefetching_lookup.h"
#include "block/store/slot_buffer.h"
#include "block/store/slot_table.h"
#include "block/store/writers.h"

namespace ashlar::block::detail {

class BlockStore final : public StoreFace,
                         public std::enable_shared_from_this<BlockStore>,
                         public UntypedManager,
                         public EntrySource {
 public:
  // Blocks handled per batch of an operation.
  static constexpr std::size_t kChunk = 64;

  // Requires: options.validate() passed, and the factories were called: `inactive` and `reset` are empty.
  BlockStore(ManagerOptions options, events::TierId tier, std::string tier_name,
             std::shared_ptr<BlockFacts> facts, std::unique_ptr<InactivePool> inactive,
             std::unique_ptr<ResetAllocator> reset);
  ~BlockStore() override = default;

  const ManagerOptions& options() const noexcept override { return options_; }
  SlotTable& slots() noexcept { return slots_; }
  BlockFacts& facts() noexcept { return *facts_; }
  RegistryEntries& registry() noexcept { return registry_; }
  SlotRef ref(std::uint32_t slot, std::uint64_t word) noexcept {
    return {this, slot, SlotWord::generation(word)};
  }

  // allocation (allocate.cc)
  Result<void, AllocationRefusal> allocate(std::size_t n, std::vector<tokens::SequenceHash>* evicted,
                                           Emitter emit) override;
  Result<void, AllocationRefusal> allocate_until(std::size_t n, Clock::TimePoint deadline,
                                                 std::stop_token stop, Emitter emit) override;
  Result<void, AllocationRefusal> can_allocate(std::size_t n) override;
  std::size_t reset_inactive() override;
  std::vector<tokens::SequenceHash> next_victims(std::size_t n) override;

  // registration (register.cc)
  // What becomes of a candidate whose hash already has a block: follow DuplicatePolicy, or always keep the
  // candidate's own block because its KV is still to be written.
  enum class OnTwin : std::uint8_t { kFollowPolicy, kKeepOwn };
  // A tentative registration counts no collision; its retry does. All or none; throws std::bad_alloc.
  // `describe` adds what only the caller knows of block i; called when the store is observed. `writers`: of
  // blocks that launched work still writes.
  using Describe = FunctionRef<void(std::size_t, RegisteredBlock&)>;
  Result<void> register_slots(std::size_t n, Filler fill, Emitter emit, Describe describe,
                              bool tentative = false, OnTwin on_twin = OnTwin::kFollowPolicy,
                              Writers* writers = nullptr);
  Result<void> register_blocks(std::size_t n, Filler fill, Emitter emit,
                               const RegistrationOptions& options = {}) override;

  // observers (observe.cc)
  void observe(BlockObserver& observer) override;
  void set_prefix_source(PrefixSource& source) override { source_ = &source; }
  PrefixSource* prefix_source() const noexcept { return source_; }
  bool is_observed() const noexcept { return !observers_.empty(); }
  BlockIdentity identity(const HoldRef& hold) override;
  BlockRetention retention(const HoldRef& hold) override;

  // Keeps the tokens of blocks that came up from another tier by name, where tokens are kept and the digest
  // says that these are theirs. `prefixes` and `tokens`: of all of them, in order. Requires: a reference to
  // each.
  void restore_tokens(std::span<const SlotRef> slots, std::span<const tokens::PrefixDigest> prefixes,
                      std::span<const tokens::Token> tokens);
  void restore_tokens(std::span<const tokens::TokenBlock> blocks) override;
  // The tokens of a registered block, where they are kept.
  std::optional<std::vector<tokens::Token>> tokens_of(const tokens::SequenceHash& hash) override;
  // The registered blocks as the Stored events that would announce them, parents before children, and the
  // number of the log's next event. Requires: an event log.
  std::uint64_t list_stored(std::vector<events::KvEvent>& out) override;

  // matching (match.cc)
  // A block whose known prefix digest differs from the requested one holds other tokens: a miss. `prefixes`
  // has one digest per hash, or is empty: then names alone decide.
  std::size_t match_prefix(std::span<const tokens::SequenceHash> hashes,
                           std::span<const tokens::PrefixDigest> prefixes, Emitter emit) override;
  std::size_t match_prefix(std::span<const tokens::TokenBlock> blocks, Emitter emit) override;
  // Whether a hash has a block here now: a hint, without a reference and nearly always without the lock. A
  // match over several groups probes its blocks with it before taking references.
  bool holds(const tokens::SequenceHash& hash, const tokens::PrefixDigest& prefix) noexcept;
  // Why match_prefix() plus an allocation for the rest of `blocks` blocks would be refused now, as one
  // operation.
  Result<void, AllocationRefusal> can_allocate_after_match(std::span<const tokens::SequenceHash> hashes,
                                                           std::span<const tokens::PrefixDigest> prefixes,
                                                           std::size_t blocks);
  // One emit per hit, with one slot.
  std::size_t match_scattered(std::span<const tokens::SequenceHash> hashes, Emitter emit) override;
  void scan(std::span<const tokens::SequenceHash> hashes, bool touch, Emitter emit) override;
  std::optional<SlotRef> upgrade(const WeakSlot& weak);

  // release (release.cc)
  void drop_owned(const SlotRef& slot) noexcept;
  // The same for many at once, in this order. Requires: none is in flight.
  void drop_owned(std::span<const SlotRef> slots) noexcept;
  // The counts of these slots have reached zero.
  void settle(std::span<const SlotRef> idle) noexcept;
  void drop_reference_after(const SlotRef& slot, const Fence& fence);
  // The fence of these blocks has settled (writers.cc).
  void end_writing(std::span<const SlotRef> slots, FenceEnd end) noexcept;

  // pins (pin.cc)
  Result<PinRef> pin(const tokens::SequenceHash& hash, Clock::Duration ttl) override;
  Result<PinRef> pin(const SlotRef& slot, Clock::Duration ttl);
  void unpin(const PinTable::Key& key);
  bool is_pinned(const PinTable::Key& key);

  // holds (hold.cc)
  Result<HoldRef> hold(const tokens::SequenceHash& hash) override;
  std::optional<HoldRef> try_hold(const tokens::SequenceHash& hash, NotHeld* why) override;
  void end_hold(std::uint32_t slot) noexcept;
  void end_hold(std::uint32_t slot, std::optional<EvictedBlock>& gone) noexcept;  // without the observers

  // facts about blocks (facts.cc)
  void set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept;
  Result<void> set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention) override;
  bool contains(const tokens::SequenceHash& hash) noexcept override {
    return holds(hash, tokens::PrefixDigest());
  }
  Result<void> set_metadata(const tokens::SequenceHash& hash, std::uint32_t metadata) override;
  void touched(std::span<const tokens::SequenceHash> hashes) noexcept override;

  // looking inside (describe.cc)
  Result<BlockDescription> describe(BlockId id) override;
  std::optional<BlockDescription> describe(const tokens::SequenceHash& hash) override;

  // for the registry, under its lock: finds registered entries
  Entry* find_entry(std::uint64_t mixed, const tokens::SequenceHash& hash) override;
  std::size_t count_implied(std::uint32_t position) const noexcept override;

  // the whole (block_store.cc)
  PoolStatus status() override;
  Pressure pressure() const noexcept override { return pressure_.load(std::memory_order_relaxed); }
  ManagerCounters counters() override;
  void count_staging(std::uint64_t n = 1) noexcept { stagings_.add(n); }
  void count_probes(std::uint64_t n) noexcept { match_probes_.add(n); }
  // Whether a listener or the backend needs a block's parent.
  bool keeps_ancestry() const noexcept {
    return options_.events != nullptr || is_observed() || facts_->keeps_parents();
  }
  // The digest of a token block as the blocks here have them.
  tokens::PrefixDigest prefix_of(const tokens::TokenBlock& block) const noexcept {
    return options_.prefix_key ? block.prefix_digest_under(*options_.prefix_key) : block.prefix_digest();
  }
  // Mutable -> Complete for a slot that the caller owns, when its parent is not needed. Counts no
  // staging.
  void complete(const SlotRef& slot, const tokens::SequenceHash& hash, const tokens::PrefixDigest& prefix,
                std::span<const tokens::Token> tokens) noexcept {
    slots_.set_tokens(slot.id, tokens);
    slots_.set_hash(slot.id, hash, prefix);
    slots_.word(slot.id).store(SlotWord::make(BlockState::kComplete, 0, slot.generation), kOrderEvict);
  }
  void for_each_registered(const std::function<void(const tokens::SequenceHash&, BlockId)>& visit) override;
  void check_invariants() override;
  void close() override;

 private:
  static constexpr std::uint32_t kNone = HashIndex::kNone;

  // The hashes of one call that other managers also hold. Its end notifies those managers, from the last hash
  // to the first: the order of a release, the end of a sequence before its head. Hashes without memory to
  // record them are skipped: elsewhere their blocks keep their place.
  class UsedElsewhere {
   public:
    explicit UsedElsewhere(BlockStore& store) noexcept : store_(store) {}
    ~UsedElsewhere();
    UsedElsewhere(const UsedElsewhere&) = delete;
    UsedElsewhere& operator=(const UsedElsewhere&) = delete;
    // Requires: a reference to each slot.
    void note(std::span<const SlotRef> slots) noexcept;

   private:
    BlockStore& store_;
    std::vector<tokens::SequenceHash> hashes_;
  };

  // A waiting allocation, on its thread's stack.
  struct Waiter {
    std::size_t n;
    CondVar condition;
    Waiter* next = nullptr;
  };

  // Holds the lock for one operation. Afterwards, outside the lock, it wakes waiters that can proceed,
  // destroys retired values, and reports pressure.
  class ASHLAR_SCOPED_CAPABILITY Operation {
   public:
    explicit Operation(BlockStore& store) ASHLAR_ACQUIRE(store.mu_);
    ~Operation() ASHLAR_RELEASE();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    RetiredExtensions retired;

   private:
    BlockStore& store_;
  };

  struct PressureChange {
    bool changed = false;
    Pressure now = Pressure::kNormal;
    std::size_t available = 0;
  };

  std::size_t available_locked() const ASHLAR_REQUIRES(mu_) {
    return reset_->size() + inactive_->size() - held_inactive_;
  }
  PoolStatus status_locked() const ASHLAR_REQUIRES(mu_);
  AllocationRefusal refusal_locked(AllocationRefusal::Reason reason, std::size_t n) const
      ASHLAR_REQUIRES(mu_);
  // Collects what ends without a call: pins by time, and quarantines without a watcher.
  void expire_pins_locked(RetiredExtensions& retired) ASHLAR_REQUIRES(mu_);
  PressureChange pressure_change_locked() ASHLAR_REQUIRES(mu_);
  void wake_waiter_locked() ASHLAR_REQUIRES(mu_);
  // Destroys retired values with the lock released meanwhile. False when there were none.
  bool destroy_retired_locked(RetiredExtensions& retired) ASHLAR_REQUIRES(mu_);

  // Takes n slots, as allocate() and allocate_until() do under the lock.
  using Take = FunctionRef<Result<void, AllocationRefusal>(std::vector<EvictedBlock>*, Emitter)>;
  // Tells the observers what was taken.
  Result<void, AllocationRefusal> take_observed(std::size_t n, std::vector<tokens::SequenceHash>* evicted,
                                                Emitter emit, Take take);
  Result<void, AllocationRefusal> try_take(std::size_t n, std::vector<EvictedBlock>* evicted, Emitter emit);
  Result<void, AllocationRefusal> wait_and_take(std::size_t n, Clock::TimePoint deadline,
                                                const std::stop_token& stop,
                                                std::vector<EvictedBlock>* evicted, Emitter emit);
  // Notes what the caller of a registration knows of slots that it owns. Requires: ancestry is kept.
  void annotate(std::size_t n, Filler fill, const RegistrationOptions& options);
  // Adds what observers hear of the slots that are about to be registered.
  void describe_candidates(std::size_t n, Filler fill, Describe describe,
                           std::vector<RegisteredBlock>& blocks);
  BlockIdentity identity_of(std::uint32_t slot) const;
  BlockDescription describe_locked(std::uint32_t slot) ASHLAR_REQUIRES(mu_);
  Result<void> register_unobserved(std::size_t n, Filler fill, Emitter emit, bool tentative, OnTwin on_twin,
                                   Writers* writers);

  // Takes n slots from the pools and emits them. False, with nothing taken, when a pool delivers fewer than
  // it announced. Requires: n <= available.
  bool take_locked(std::size_t n, std::vector<EvictedBlock>* evicted, RetiredExtensions& retired,
                   Emitter emit) ASHLAR_REQUIRES(mu_);
  void emit_taken_locked(std::uint32_t first, std::size_t n, std::vector<EvictedBlock>* evicted,
                         RetiredExtensions& retired, Emitter emit) ASHLAR_REQUIRES(mu_);
  // Evicts the slot if it was registered; it is Mutable afterwards.
  SlotRef take_one_locked(std::uint32_t slot, std::uint64_t mixed, RegistryEntries::Cursor& cursor,
                          std::vector<EvictedBlock>* evicted, RetiredExtensions& retired)
      ASHLAR_REQUIRES(mu_);
  // Removes the primary from index, registry and presence. Its word stays the caller's to change.
  void unregister_locked(std::uint32_t slot, std::uint64_t mixed, RegistryEntries::Cursor& cursor,
                         RetiredExtensions& retired) ASHLAR_REQUIRES(mu_);
  // Without the event.
  void leave_locked(std::uint32_t slot, std::uint64_t mixed, RegistryEntries::Cursor& cursor,
                    RetiredExtensions& retired) ASHLAR_REQUIRES(mu_);
  void to_reset_pool_locked(std::uint32_t slot) ASHLAR_REQUIRES(mu_);

  Result<void> check_candidates_locked(std::size_t n, Filler fill, bool& ascending) ASHLAR_REQUIRES(mu_);
  Result<void> check_twins_locked(std::size_t n, Filler fill) ASHLAR_REQUIRES(mu_);
  // Puts candidates whose hash has no block into index and registry; for the others, notes the existing block
  // in the scratch column. All or none: throws std::bad_alloc.
  void enter_locked(std::size_t n, Filler fill, bool ascending, RetiredExtensions& retired)
      ASHLAR_REQUIRES(mu_);
  // Tells the backend that these slots were registered as primaries.
  void announce_locked(std::span<const std::uint32_t> slots) ASHLAR_REQUIRES(mu_);

  // duplicates (duplicates.cc)
  // A candidate whose hash already has a primary. `written`: launched work still writes it.
  SlotRef register_twin_locked(const SlotRef& candidate, std::uint32_t primary, OnTwin on_twin, bool written,
                               RegistryEntries::Cursor& cursor) ASHLAR_REQUIRES(mu_);
  bool has_duplicates_locked(std::uint32_t primary) const noexcept ASHLAR_REQUIRES(mu_) {
    return slots_.next_twin[primary] != SlotTable::kNoTwin;
  }
  void join_twins_locked(std::uint32_t primary, std::uint32_t duplicate) noexcept ASHLAR_REQUIRES(mu_);
  void leave_twins_locked(std::uint32_t slot) noexcept ASHLAR_REQUIRES(mu_);
  // Makes `to` the block that the hash of `from` finds. The words stay the caller's to change: `to` becomes a
  // primary, and `from` a duplicate, or empty. Requires: `from` is in no pool.
  void pass_place_locked(std::uint32_t from, std::uint32_t to, RegistryEntries::Cursor& cursor)
      ASHLAR_REQUIRES(mu_);
  void pass_metadata_locked(std::uint32_t from, std::uint32_t to) noexcept ASHLAR_REQUIRES(mu_);
  // Empties the primary; one of its duplicates replaces it. Requires: it has a duplicate and no references,
  // is in no pool, and is neither pinned nor held.
  void give_way_locked(std::uint32_t primary, RegistryEntries::Cursor& cursor) ASHLAR_REQUIRES(mu_);
  // The number of duplicates of the primary. Aborts if one is not a duplicate of its hash.
  std::size_t check_twins_of_locked(std::uint32_t primary) const ASHLAR_REQUIRES(mu_);
  // The last reference to a duplicate is gone.
  void drop_duplicate_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor) ASHLAR_REQUIRES(mu_);

  // blocks that lose their names while they are in use (writers.cc)
  // relaxed: the flag changes under the lock.
  bool is_withdrawn_locked(std::uint32_t slot) noexcept ASHLAR_REQUIRES(mu_) {
    return (slots_.flags(slot).load(std::memory_order_relaxed) & SlotTable::kWithdrawn) != 0;
  }
  // Nobody finds the block from now on; its last reference empties it. Requires: a reference to it.
  void withdraw_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor, RetiredExtensions& retired)
      ASHLAR_REQUIRES(mu_);
  void drop_withdrawn_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor, RetiredExtensions& retired)
      ASHLAR_REQUIRES(mu_);

  events::KvEvent event_locked(events::KvEventKind kind, std::uint32_t slot) const ASHLAR_REQUIRES(mu_);
  void publish_removed_locked(std::uint32_t slot) ASHLAR_REQUIRES(mu_);

  std::uint32_t find_confirmed(std::uint64_t mixed, const tokens::SequenceHash& hash) const noexcept {
    return index_.find(mixed, [&](std::uint32_t slot) { return slots_.hash(slot) == hash; });
  }
  std::uint32_t find_confirmed(const tokens::SequenceHash& hash) const noexcept {
    return find_confirmed(HashMix::of(hash), hash);
  }
  // Adds a reference to the primary of a hash, reviving it if need be; none when its prefix digest does not
  // agree. `hint` is a slot to try first, or kNone.
  std::optional<SlotRef> acquire_locked(const tokens::SequenceHash& hash, const tokens::PrefixDigest& prefix,
                                        std::uint32_t hint) ASHLAR_REQUIRES(mu_);
  // Requires: has_room_for_references(slot, 1).
  std::uint64_t add_reference_locked(std::uint32_t slot) ASHLAR_REQUIRES(mu_);
  bool has_room_for_references(std::uint32_t slot, std::size_t n) const noexcept {
    const std::uint32_t refs = SlotWord::refs(slots_.word(slot).load(kOrderProbe));
    return refs < kMaxReferences && n <= kMaxReferences - refs;
  }
  // Matches hashes, with their prefix digests if given, using their candidate slots; stops at the first miss.
  // Returns the hits. With the mixed hashes, their counters are prefetched on the way, one by one: many at
  // once wait for each other.
  std::size_t match_run(std::span<const tokens::SequenceHash> hashes,
                        std::span<const tokens::PrefixDigest> prefixes, const std::uint32_t* candidates,
                        SlotRef* found, const std::uint64_t* mixed = nullptr);
  // Emits matched slots; drops the references again when emit() throws.
  static void hand_over(std::size_t first, std::span<const SlotRef> found, Emitter emit);
  // visit(index, mixed hash, candidate) for every hash. With a tracker, prefetches its counters too.
  template <class Visit>
  void match_each(std::span<const tokens::SequenceHash> hashes, const TinyLfu* tracker, Visit&& visit);
  // The entry of a block that the caller refers to.
  Entry& entry_of(std::uint32_t slot) noexcept;
  // Every hit is one use of its hash: counts it, notes the other managers to refresh, and runs the touch
  // callbacks, outside the lock.
  void used(std::span<const std::uint64_t> mixed, const SlotRef* found, UsedElsewhere& elsewhere) noexcept;

  // A count has reached zero: lists the slot, or resets it, unless another thread was faster.
  void settle_locked(std::uint32_t slot, RegistryEntries::Cursor& cursor, RetiredExtensions& retired)
      ASHLAR_REQUIRES(mu_);
  // Whether the only step left is to list the slot in the inactive pool: the common case.
  bool becomes_inactive_locked(std::uint32_t slot) noexcept ASHLAR_REQUIRES(mu_);
  void list_inactive_locked(std::span<const BlockId> ids, RegistryEntries::Cursor& cursor)
      ASHLAR_REQUIRES(mu_);
  // The slot's quarantine ends when the fence passes.
  void watch_quarantine(std::uint32_t slot, Fence fence) noexcept;
  void end_quarantine(std::uint32_t slot);
  // Checks quarantines without a watcher, and ends those whose fences have passed.
  void end_unwatched_locked() noexcept ASHLAR_REQUIRES(mu_);
  Result<PinRef> pin_locked(std::uint32_t slot, Clock::Duration ttl) ASHLAR_REQUIRES(mu_);
  bool set_aside_if_held_locked(std::uint32_t slot) ASHLAR_REQUIRES(mu_);
  void pin_ended_locked(std::uint32_t slot, RetiredExtensions& retired) ASHLAR_REQUIRES(mu_);

  // Constant after construction.
  const ManagerOptions options_;
  const events::TierId tier_;
  const std::string tier_name_;
  RegistryEntries& registry_;  // kept by options_.registry

  SlotTable slots_;                          // each column says which threads may touch it
  HashIndex index_;                          // read by any thread, written under mu_
  const std::shared_ptr<BlockFacts> facts_;  // each column says which threads may touch it
  const bool follows_registrations_;
  std::vector<BlockObserver*> observers_;  // complete before the first allocation
  PrefixSource* source_ = nullptr;         // set before the first sequence

  Mutex mu_;
  std::unique_ptr<InactivePool> inactive_ ASHLAR_PT_GUARDED_BY(mu_);
  std::unique_ptr<ResetAllocator> reset_ ASHLAR_PT_GUARDED_BY(mu_);
  PinTable pins_ ASHLAR_GUARDED_BY(mu_);
  Waiter* first_waiter_ ASHLAR_GUARDED_BY(mu_) = nullptr;
  Waiter* last_waiter_ ASHLAR_GUARDED_BY(mu_) = nullptr;
  std::size_t waiters_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::size_t owned_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::size_t pinned_aside_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::size_t held_inactive_ ASHLAR_GUARDED_BY(mu_) = 0;  // in the inactive pool
  std::size_t held_aside_ ASHLAR_GUARDED_BY(mu_) = 0;     // chosen as victims by the backend
  std::size_t quarantined_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint32_t unwatched_ ASHLAR_GUARDED_BY(mu_) = kNone;  // first of a list through the scratch column
  bool closed_ ASHLAR_GUARDED_BY(mu_) = false;
  ManagerCounters counters_ ASHLAR_GUARDED_BY(mu_);
  LargeArray<std::uint32_t> sorted_ ASHLAR_GUARDED_BY(mu_);  // room to sort a batch of slots

  std::atomic<Pressure> pressure_{Pressure::kNormal};
  Counter stagings_;
  Counter match_requested_;
  Counter match_returned_;
  Counter match_probes_;
  Counter scan_requested_;
  Counter scan_returned_;
};

inline BlockStore& store_of(const SlotRef& slot) noexcept {
  return *static_cast<BlockStore*>(slot.store);
}

}  // namespace ashlar::block::detail
