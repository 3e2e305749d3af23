// BlockManager<Tier>: allocates, names, shares and evicts the blocks of one tier.
//
//   auto manager =
//   BlockManager<G1>::builder().block_count(1024).registry(registry).with_lru_backend().build();
//
// The manager owns the lives of its blocks, not their bytes. Guards refer to the manager: destroying it while
// guards are outstanding, while blocks are in quarantine, or while blocks wait for a fence (also one that
// was abandoned) stops the process and prints their number and states. Weak blocks and pins may outlive it.
// Moving a manager leaves its guards valid.
//
// Thread safety: thread-safe. Takes store, then registry.shard (docs/concurrency.md). Matching, copying and
// dropping blocks that are in use takes no lock.
// Complexity:    match is O(prefix length), allocate and register O(blocks); nothing allocates from the heap
//                when the caller brings the output span and the registry is warm. Observers add what they do:
//                over a KvBlockManager, a table entry for each block that is offered to the tier below.
// Invariant:     available = reset + inactive - pinned. An allocation of n <= available succeeds when no
//                other allocation competes. A hash finds at most one primary block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_list.h"
#include "ashlar/block/block_observer.h"
#include "ashlar/block/detail/untyped_manager.h"
#include "ashlar/block/immutable_block.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/block/pin.h"
#include "ashlar/block/prefix_source.h"
#include "ashlar/block/reuse_policy.h"
#include "ashlar/block/tier.h"
#include "ashlar/block/unique_blocks.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::block {

template <events::Tier Tier>
class BlockManagerBuilder;
template <events::Tier Tier>
class RequestSequence;
template <events::Tier Tier>
class SequenceManager;

template <events::Tier Tier>
class BlockManager {
 public:
  // The guard types of its calls.
  using Mutable = MutableBlock<Tier>;
  using Complete = CompleteBlock<Tier>;
  using Immutable = ImmutableBlock<Tier>;

  // Blocks, and the hashes evicted to make room for them, in eviction order.
  struct Allocation {
    BlockList<Mutable> blocks;
    std::vector<tokens::SequenceHash> evicted;
  };

  // The usual way to create one; create() takes the same options as a struct.
  static BlockManagerBuilder<Tier> builder() { return {}; }
  // Errors: kInvalidArgument, naming the option.
  static Result<BlockManager> create(const ManagerOptions& options) {
    ASHLAR_TRY(auto store, detail::UntypedManager::create(options, kTierId<Tier>, Tier::kName));
    return BlockManager(std::move(store));
  }

  // A call that runs out of memory changes nothing: it refuses, or throws std::bad_alloc where it cannot
  // refuse (docs/memory_exhaustion.md).

  // Tells the observer of every allocation, registration and eviction from now on (block_observer.h). Several
  // are called in the order in which they came. Requires: no block was allocated yet; the observer outlives
  // the manager. Throws std::bad_alloc.
  void observe(BlockObserver& observer) { store_->observe(observer); }

  // Lets the sequences of this manager bring prefixes from below (prefix_source.h). Requires: no sequence was
  // made yet; the source outlives them.
  void set_prefix_source(PrefixSource& source) { store_->set_prefix_source(source); }

  // ---- allocate: all or nothing; empty blocks first, then inactive ones, evicted in the backend's order.

  // Errors: AllocationRefusal says why, and how full the pools are.
  [[nodiscard]] Result<BlockList<Mutable>, AllocationRefusal> allocate_blocks(std::size_t n) {
    if (n > total_blocks())
      return store_->can_allocate(n).error();  // before memory is reserved for guards that cannot come
    BlockList<Mutable> blocks;
    if (!has_memory([&] { blocks.reserve(n); })) return out_of_memory(n);
    ASHLAR_RETURN_IF_ERROR(
        store_->allocate(n, nullptr, [&](std::size_t, std::span<const detail::SlotRef> slots) {
          for (const detail::SlotRef& slot : slots) blocks.push_back(Mutable(detail::OwnedSlot(slot)));
        }));
    return blocks;
  }
  // Fills the caller's span; allocates nothing from the heap, but for what observers do.
  [[nodiscard]] Result<void, AllocationRefusal> allocate_blocks(std::span<Mutable> out) {
    for (Mutable& guard : out) {
      if (guard) guard = Mutable();
    }
    return store_->allocate(out.size(), nullptr, adopt_into(out));
  }
  // The same, and reports the evicted hashes: for callers with their own index.
  [[nodiscard]] Result<Allocation, AllocationRefusal> allocate_blocks_with_evictions(std::size_t n) {
    if (n > total_blocks()) return store_->can_allocate(n).error();
    Allocation allocation;
    const bool room = has_memory([&] {
      allocation.blocks.reserve(n);
      allocation.evicted.reserve(n);
    });
    if (!room) return out_of_memory(n);
    ASHLAR_RETURN_IF_ERROR(
        store_->allocate(n, &allocation.evicted, [&](std::size_t, std::span<const detail::SlotRef> slots) {
          for (const detail::SlotRef& slot : slots)
            allocation.blocks.push_back(Mutable(detail::OwnedSlot(slot)));
        }));
    return allocation;
  }
  // Waits for room until the deadline (of the manager's clock). Waiting allocations are served in order of
  // arrival, so a large one cannot starve; allocate_blocks() does not overtake them. A stop request ends the
  // wait with kCancelled; the thread that makes it must not hold a lock that the manager's callbacks take.
  [[nodiscard]] Result<BlockList<Mutable>, AllocationRefusal> try_allocate_until(std::size_t n,
                                                                                 Clock::TimePoint deadline,
                                                                                 std::stop_token stop = {}) {
    if (n > total_blocks()) return store_->can_allocate(n).error();
    BlockList<Mutable> blocks;
    if (!has_memory([&] { blocks.reserve(n); })) return out_of_memory(n);
    ASHLAR_RETURN_IF_ERROR(store_->allocate_until(n, deadline, std::move(stop),
                                                  [&](std::size_t, std::span<const detail::SlotRef> slots) {
                                                    for (const detail::SlotRef& slot : slots)
                                                      blocks.push_back(Mutable(detail::OwnedSlot(slot)));
                                                  }));
    return blocks;
  }
  // Whether an allocation of n would succeed now, or why it would be refused.
  Result<void, AllocationRefusal> can_allocate(std::size_t n) const { return store_->can_allocate(n); }

  // ---- register: the block becomes findable by its hash.

  // Errors: kInvalidArgument for a block of another manager; kCorruption when the hash has a block whose
  // prefix digest differs: other tokens, at or before the block (a hash collision); kCapacity when that block
  // is at its reference limit, or without memory; kInvalidArgument for the options. The block comes back.
  [[nodiscard]] Result<Immutable, Rejected<Complete>> register_block(
      Complete block, const RegistrationOptions& options = {}) {
    detail::SlotRef kept;
    const auto fill = [&](std::size_t, std::span<detail::SlotRef> out) { out[0] = block.slot_.get(); };
    const auto emit = [&](std::size_t, std::span<const detail::SlotRef> slots) { kept = slots[0]; };
    if (auto done = store_->register_blocks(1, fill, emit, options); !done) {
      return Unexpected(Rejected<Complete>{std::move(done).error(), std::move(block)});
    }
    block.slot_.take();
    return Immutable(detail::SharedSlot(kept));
  }
  // Registers all, in order, under one hold of the lock. Errors: as register_block(), for the first block
  // refused; then no block of the list is registered, and all come back.
  [[nodiscard]] Result<BlockList<Immutable>, Rejected<BlockList<Complete>>> register_blocks(
      BlockList<Complete> blocks, const RegistrationOptions& options = {}) {
    BlockList<Immutable> registered;
    if (!has_memory([&] { registered.reserve(blocks.size()); })) {
      return Unexpected(Rejected<BlockList<Complete>>{out_of_memory_error(), std::move(blocks)});
    }
    auto done = register_each(blocks.span(), options, [&](std::size_t, detail::SlotRef slot) {
      registered.push_back(Immutable(detail::SharedSlot(slot)));
    });
    if (!done) return Unexpected(Rejected<BlockList<Complete>>{std::move(done).error(), std::move(blocks)});
    return registered;
  }
  // The same into the caller's span. On success the input guards are empty. Requires: `out` is as long as
  // `blocks`.
  [[nodiscard]] Result<void> register_blocks(std::span<Complete> blocks, std::span<Immutable> out,
                                             const RegistrationOptions& options = {}) {
    ASHLAR_CHECK(blocks.size() == out.size(), "%zu blocks to register, room for %zu", blocks.size(),
                 out.size());
    Immutable::release(out);
    return register_each(blocks, options,
                         [&](std::size_t i, detail::SlotRef slot) { out[i].slot_.adopt(slot); });
  }

  // ---- match: find registered blocks by hash. Every hit is one use: it counts in the registry's frequency
  // tracker and runs the hash's touch callbacks.

  // The longest prefix of `hashes` whose blocks are all registered. Equal names imply equal tokens only if no
  // client crafts collisions: otherwise match by token blocks, or use the keyed scheme.
  BlockList<Immutable> match_blocks(std::span<const tokens::SequenceHash> hashes) {
    BlockList<Immutable> found;
    match_blocks(hashes, found);
    return found;
  }
  // The same, appended to the caller's list. Returns the number of hits.
  std::size_t match_blocks(std::span<const tokens::SequenceHash> hashes, BlockList<Immutable>& out) {
    return match_into(hashes, {}, out);
  }
  // The same with prefix digests compared, one per hash: a block with another known digest is a miss.
  std::size_t match_blocks(std::span<const tokens::SequenceHash> hashes,
                           std::span<const tokens::PrefixDigest> prefixes, BlockList<Immutable>& out) {
    ASHLAR_CHECK(hashes.size() == prefixes.size(), "%zu hashes, %zu digests", hashes.size(), prefixes.size());
    return match_into(hashes, prefixes, out);
  }
  // The same into the caller's span: at most out.size() blocks. Returns the number of hits.
  std::size_t match_blocks(std::span<const tokens::SequenceHash> hashes, std::span<Immutable> out) {
    const auto wanted = hashes.first(std::min(hashes.size(), out.size()));
    return store_->match_prefix(wanted, {}, adopt_into(out));
  }
  // The longest registered prefix of `blocks`, with prefix digests compared: every returned block has the
  // same tokens from position 0 on, and a hash that finds other tokens is a miss. Blocks staged without a
  // digest are trusted, and so are names of token blocks whose digest is of another key than
  // ManagerOptions::prefix_key. A token block of another size than the manager's is a miss.
  BlockList<Immutable> match_blocks(std::span<const tokens::TokenBlock> blocks) {
    BlockList<Immutable> found;
    const std::span<Immutable> out = found.extend(blocks.size());
    found.truncate(store_->match_prefix(blocks, adopt_into(out)));
    return found;
  }
  // One answer per hash, in order, without stopping at a miss; an empty guard is a miss. Repeated hashes are
  // answered repeatedly. Requires: out is as long as hashes.
  std::size_t match_blocks_scattered(std::span<const tokens::SequenceHash> hashes, std::span<Immutable> out) {
    ASHLAR_CHECK(hashes.size() == out.size(), "%zu hashes, room for %zu answers", hashes.size(), out.size());
    Immutable::release(out);
    return store_->match_scattered(hashes, adopt_into(out));
  }
  // The same into a vector as long as `hashes`.
  std::vector<Immutable> match_blocks_scattered(std::span<const tokens::SequenceHash> hashes) {
    std::vector<Immutable> found(hashes.size());
    match_blocks_scattered(hashes, found);
    return found;
  }
  // The distinct hashes that are registered. Without `touch` the scan does not count as a use.
  std::unordered_map<tokens::SequenceHash, Immutable> scan_matches(
      std::span<const tokens::SequenceHash> hashes, bool touch) {
    std::unordered_map<tokens::SequenceHash, Immutable> found;
    store_->scan(hashes, touch, [&](std::size_t i, std::span<const detail::SlotRef> slot) {
      found.try_emplace(hashes[i]).first->second.slot_.adopt(slot.front());
    });
    return found;
  }

  // ---- by hash

  // Whether it has a block of the hash, in use or inactive. Counts no use, and takes a lock only while blocks
  // of the hash change.
  bool contains(const tokens::SequenceHash& hash) const noexcept { return store_->contains(hash); }
  // Pins the primary block of a hash, in use or inactive. Errors: kNotFound; those of ImmutableBlock::pin().
  [[nodiscard]] Result<Pin> pin(const tokens::SequenceHash& hash, Clock::Duration ttl) {
    return store_->pin(hash, ttl).transform([](detail::PinRef pin) { return Pin(std::move(pin)); });
  }
  // Keeps the primary block of a hash in its slot, in use or inactive, without using it (pin.h). Errors:
  // kNotFound; kCapacity when it is held too often, or without memory.
  [[nodiscard]] Result<Hold> hold(const tokens::SequenceHash& hash) {
    return store_->hold(hash).transform([](detail::HoldRef hold) { return Hold(std::move(hold)); });
  }
  // The same, empty where hold() would make an error: for callers that expect misses.
  [[nodiscard]] std::optional<Hold> try_hold(const tokens::SequenceHash& hash) {
    detail::NotHeld why{};
    std::optional<detail::HoldRef> held = store_->try_hold(hash, &why);
    return held ? std::optional(Hold(*std::move(held))) : std::nullopt;
  }
  // What is known of a held block beyond its hash: parent, root, local hash, location and metadata where an
  // event log or an observer wants them. O(1).
  BlockIdentity identity(const Hold& hold) const { return store_->identity(hold.hold_); }
  // The retention of a held block; the default one where none was set or none is kept.
  BlockRetention retention(const Hold& hold) const { return store_->retention(hold.hold_); }
  // Sets the retention of the primary block of a hash, in use or inactive; refreshes an inactive one. Errors:
  // kNotFound; kInvalidArgument for the priority.
  Result<void> set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention) {
    ASHLAR_RETURN_IF_ERROR(retention.validate());
    return store_->set_retention(hash, retention);
  }
  // Sets the caller's own number on the primary block of a hash: it goes down with the block, and into events
  // of it from now on. Errors: kNotFound; kUnsupported: without an event log or an observer none is kept.
  Result<void> set_metadata(const tokens::SequenceHash& hash, std::uint32_t metadata) {
    return store_->set_metadata(hash, metadata);
  }
  // Evicts every inactive block that is not pinned into the reset pool. Returns how many.
  std::size_t reset_inactive_pool() { return store_->reset_inactive(); }
  // The next `n` victims in order, without evicting them: what a write-back should copy first.
  std::vector<tokens::SequenceHash> eviction_candidates(std::size_t n) const {
    return store_->next_victims(n);
  }
  // Calls visit for every registered primary, as a listener needs after a resync. The hashes are those of one
  // moment; the visits happen after it, outside all locks.
  void for_each_registered(const std::function<void(const tokens::SequenceHash&, BlockId)>& visit) const {
    store_->for_each_registered(visit);
  }

  // ---- look inside: takes the store's lock, does not count as a use, and may throw std::bad_alloc.

  // Errors: kInvalidArgument: no such block.
  Result<BlockDescription> describe(BlockId id) const { return store_->describe(id); }
  // The primary block of a hash; nullopt when there is none.
  std::optional<BlockDescription> describe(const tokens::SequenceHash& hash) const {
    return store_->describe(hash);
  }

  // ---- numbers

  // The options it was created with, and its counters. status() and counters() take the store's lock.
  std::size_t total_blocks() const noexcept { return store_->options().block_count; }
  std::size_t available_blocks() const { return store_->status().available(); }
  std::uint32_t block_size() const noexcept { return store_->options().block_size; }
  DuplicatePolicy duplicate_policy() const noexcept { return store_->options().duplicates; }
  const BlockRegistry& block_registry() const noexcept { return *store_->options().registry; }
  const std::shared_ptr<events::EventLog>& event_log() const noexcept { return store_->options().events; }
  PoolStatus status() const { return store_->status(); }
  // One relaxed load: cheap enough for every step of a scheduler.
  Pressure pressure() const noexcept { return store_->pressure(); }
  ManagerCounters counters() const { return store_->counters(); }
  // Registers the counters and pools of this manager, labelled with its tier and `labels`. Drop the
  // registrations before the manager. Errors: those of the registry.
  Result<std::vector<MetricRegistration>> add_metrics(MetricRegistry& metrics,
                                                      MetricLabels labels = {}) const {
    labels.emplace_back("tier", std::string(Tier::kName));
    return store_->add_metrics(metrics, labels);
  }
  // Gives the registered blocks of these names their tokens, where keep_tokens is on, a block has none and
  // both digests are known and equal: for blocks that were registered by name.
  void restore_tokens(std::span<const tokens::TokenBlock> blocks) { store_->restore_tokens(blocks); }
  // The tokens of a registered block; nullopt if it is not registered, was staged by name, or keep_tokens is
  // off. For publishers in engine formats, which carry tokens.
  std::optional<std::vector<tokens::Token>> tokens_of(const tokens::SequenceHash& hash) const {
    return store_->tokens_of(hash);
  }
  // Appends the registered blocks as Stored events, parents before children, and returns the number of the
  // log's next event: together they are a snapshot. Scans all blocks under the store's lock. Requires: an
  // event log.
  std::uint64_t list_stored(std::vector<events::KvEvent>& out) const { return store_->list_stored(out); }
  // Walks all slots and checks every invariant that holds outside a transition; for tests. Requires: no other
  // thread uses the manager.
  void check_invariants() const { store_->check_invariants(); }

 private:
  friend class SequenceManager<Tier>;
  friend class RequestSequence<Tier>;
  explicit BlockManager(std::shared_ptr<detail::BlockStore> store) : store_(std::move(store)) {}
  // Writes slots into the guards of a span, from the first on.
  template <class Guard>
  static auto adopt_into(std::span<Guard> out) {
    return [out](std::size_t first, std::span<const detail::SlotRef> slots) {
      for (std::size_t i = 0; i < slots.size(); ++i) out[first + i].slot_.adopt(slots[i]);
    };
  }
  std::size_t match_into(std::span<const tokens::SequenceHash> hashes,
                         std::span<const tokens::PrefixDigest> prefixes, BlockList<Immutable>& out) {
    const std::size_t before = out.size();
    const auto extend = [&](std::size_t first, std::span<const detail::SlotRef> slots) {
      if (first == 0 && !slots.empty()) out.reserve(before + hashes.size());
      const std::span<Immutable> room = out.extend(slots.size());
      for (std::size_t i = 0; i < slots.size(); ++i) room[i].slot_.adopt(slots[i]);
    };
    try {
      return store_->match_prefix(hashes, prefixes, extend);
    } catch (...) {
      out.truncate(before);
      throw;
    }
  }
  // emit(i, slot) for every block once all are registered.
  template <class Emit>
  Result<void> register_each(std::span<Complete> blocks, const RegistrationOptions& options, Emit&& emit) {
    const auto fill = [&](std::size_t first, std::span<detail::SlotRef> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = blocks[first + i].slot_.get();
    };
    const auto adopt = [&](std::size_t first, std::span<const detail::SlotRef> slots) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        blocks[first + i].slot_.take();
        emit(first + i, slots[i]);
      }
    };
    return store_->register_blocks(blocks.size(), fill, adopt, options);
  }
  AllocationRefusal out_of_memory(std::size_t n) const {
    return {AllocationRefusal::Reason::kOutOfMemory, n, store_->status()};
  }
  // Whether make_room() got the memory it asked for.
  template <class F>
  static bool has_memory(F&& make_room) {
    return unless_out_of_memory([&] { return std::forward<F>(make_room)(), true; }, [] { return false; });
  }
  detail::StoreOwner store_;
};

// Collects options; build() validates them and creates the manager. A wrapper of ManagerOptions, which
// documents each option: a method sets the field of the same name. Of the with_…_backend() methods the last
// call wins; without one the backend is LRU.
template <events::Tier Tier>
class BlockManagerBuilder {
 public:
  BlockManagerBuilder& block_count(std::uint32_t n) { return set(options_.block_count, n); }
  BlockManagerBuilder& block_size(std::uint32_t tokens) { return set(options_.block_size, tokens); }
  BlockManagerBuilder& registry(BlockRegistry registry) {
    return set(options_.registry, std::move(registry));
  }
  BlockManagerBuilder& duplicate_policy(DuplicatePolicy policy) { return set(options_.duplicates, policy); }
  // Evicts the block released or touched longest ago.
  BlockManagerBuilder& with_lru_backend() { return with_backend(lru_eviction()); }
  // Policy(context, args...) decides the order; first in, first out unless another is named.
  template <ReusePolicy Policy = FifoReuse, class... Args>
  BlockManagerBuilder& with_hashmap_backend(Args... args) {
    return with_backend(eviction_of<HashMapBackend<Policy>>(std::move(args)...));
  }
  BlockManagerBuilder& with_hashmap_backend(ReuseOrder order) {
    return with_backend(hashmap_eviction(order));
  }
  // Needs a registry with a frequency tracker.
  BlockManagerBuilder& with_multi_lru_backend(const MultiLruThresholds& thresholds = {}) {
    return with_backend(multi_lru_eviction(thresholds));
  }
  // Evicts by retention priority, which fades with time.
  BlockManagerBuilder& with_retention_backend(const RetentionOptions& options = {}) {
    return with_backend(retention_eviction(options));
  }
  // Evicts from the ends of sequences.
  BlockManagerBuilder& with_lineage_backend(LineageOrder order = LineageOrder::kOldestChainFirst) {
    return with_backend(lineage_eviction(order));
  }
  // A user-defined backend: eviction_of<Backend>(args…).
  BlockManagerBuilder& with_backend(EvictionFactory factory) {
    return set(options_.eviction, std::move(factory));
  }
  // By name, as in configuration files; an unknown name fails in build().
  BlockManagerBuilder& with_backend(std::string_view name) {
    return with_backend([name = std::string(name)](const EvictionContext& context) {
      return eviction_by_name(name).and_then(
          [&](const EvictionFactory& factory) { return factory(context); });
    });
  }
  // User-supplied components, and the destination of events.
  BlockManagerBuilder& reset_allocator(ResetAllocatorFactory factory) {
    return set(options_.reset_allocator, std::move(factory));
  }
  BlockManagerBuilder& event_log(std::shared_ptr<events::EventLog> log) {
    return set(options_.events, std::move(log));
  }
  BlockManagerBuilder& accesses(std::shared_ptr<events::AccessSampler> sampler) {
    return set(options_.accesses, std::move(sampler));
  }
  BlockManagerBuilder& block_bytes(std::uint32_t bytes) { return set(options_.block_bytes, bytes); }
  BlockManagerBuilder& clock(Clock& clock) { return set(options_.clock, &clock); }
  BlockManagerBuilder& default_reset_on_release(bool reset) {
    return set(options_.default_reset_on_release, reset);
  }
  BlockManagerBuilder& keep_tokens(bool keep) { return set(options_.keep_tokens, keep); }
  BlockManagerBuilder& prefix_key(tokens::PrefixKey key) { return set(options_.prefix_key, std::move(key)); }
  BlockManagerBuilder& max_pins(std::size_t n) { return set(options_.max_pins, n); }
  BlockManagerBuilder& watermarks(Watermarks marks, PressureCallback callback = {}) {
    options_.on_pressure = std::move(callback);
    return set(options_.watermarks, marks);
  }

  // Errors: as BlockManager::create(). A builder may build several managers; with an event log, one.
  [[nodiscard]] Result<BlockManager<Tier>> build() const { return BlockManager<Tier>::create(options_); }

 private:
  template <class T, class U>
  BlockManagerBuilder& set(T& option, U&& value) {
    option = std::forward<U>(value);
    return *this;
  }
  ManagerOptions options_;
};

}  // namespace ashlar::block
