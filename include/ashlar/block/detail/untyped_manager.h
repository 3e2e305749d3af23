// UntypedManager: the calls of BlockManager<Tier> without the tier. The store implements them.
//
// Slots go out through an Emitter, which takes over all slots of a call or throws and takes none. It may run
// under the store's lock and must only store the slots into empty guards. Allocation and registration call it
// where nothing can be undone: there it must not throw.
//
// Thread safety: thread-safe. Complexity: as BlockManager<Tier> says; one virtual call on top.
// Invariant:     a refused call has changed nothing, even when memory ran out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_observer.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/detail/store_calls.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/block/prefix_source.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::block::detail {

class UntypedManager {
 public:
  // (index of the first, the slots).
  using Emitter = FunctionRef<void(std::size_t, std::span<const SlotRef>)>;
  using Filler = FunctionRef<void(std::size_t, std::span<SlotRef>)>;

  // The store of a new manager. Errors: kInvalidArgument, naming the option; kCapacity: out of memory, with
  // the block count; those of the factories.
  static Result<std::shared_ptr<BlockStore>> create(const ManagerOptions& options, TierId tier,
                                                    std::string_view tier_name);
  virtual const ManagerOptions& options() const noexcept = 0;

  // All or nothing. `evicted`, if given, receives the hashes of evicted blocks: failing to allocate for it
  // throws std::bad_alloc.
  virtual Result<void, AllocationRefusal> allocate(std::size_t n, std::vector<tokens::SequenceHash>* evicted,
                                                   Emitter emit) = 0;
  virtual Result<void, AllocationRefusal> allocate_until(std::size_t n, Clock::TimePoint deadline,
                                                         std::stop_token stop, Emitter emit) = 0;
  virtual Result<void, AllocationRefusal> can_allocate(std::size_t n) = 0;

  // fill(first, slots) names the blocks from the first-th on.
  virtual Result<void> register_blocks(std::size_t n, Filler fill, Emitter emit,
                                       const RegistrationOptions& options = {}) = 0;
  // Requires: no block was allocated yet.
  virtual void observe(BlockObserver& observer) = 0;
  virtual void set_prefix_source(PrefixSource& source) = 0;
  // What is known of a held block, and its retention.
  virtual BlockIdentity identity(const HoldRef& hold) = 0;
  virtual BlockRetention retention(const HoldRef& hold) = 0;

  // The longest prefix that is registered, in chunks of slots. Returns its length.
  // `prefixes`: one digest per hash, or none; a block with another known digest is a miss.
  virtual std::size_t match_prefix(std::span<const tokens::SequenceHash> hashes,
                                   std::span<const tokens::PrefixDigest> prefixes, Emitter emit) = 0;
  virtual std::size_t match_prefix(std::span<const tokens::TokenBlock> blocks, Emitter emit) = 0;
  // One emit per hit, with one slot.
  virtual std::size_t match_scattered(std::span<const tokens::SequenceHash> hashes, Emitter emit) = 0;
  virtual void scan(std::span<const tokens::SequenceHash> hashes, bool touch, Emitter emit) = 0;

  // By hash: its primary, in use or inactive. Errors: kNotFound; kCapacity.
  virtual bool contains(const tokens::SequenceHash& hash) noexcept = 0;
  virtual Result<PinRef> pin(const tokens::SequenceHash& hash, Clock::Duration ttl) = 0;
  virtual Result<HoldRef> hold(const tokens::SequenceHash& hash) = 0;
  // Sets `why` when it returns nothing.
  virtual std::optional<HoldRef> try_hold(const tokens::SequenceHash& hash, NotHeld* why) = 0;
  virtual Result<void> set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention) = 0;
  virtual Result<void> set_metadata(const tokens::SequenceHash& hash, std::uint32_t metadata) = 0;
  virtual Result<BlockDescription> describe(BlockId id) = 0;
  virtual std::optional<BlockDescription> describe(const tokens::SequenceHash& hash) = 0;
  // Documented at BlockManager, under the same or similar names.
  virtual std::size_t reset_inactive() = 0;
  virtual std::vector<tokens::SequenceHash> next_victims(std::size_t n) = 0;
  virtual void for_each_registered(
      const std::function<void(const tokens::SequenceHash&, BlockId)>& visit) = 0;

  virtual PoolStatus status() = 0;
  virtual Pressure pressure() const noexcept = 0;
  virtual ManagerCounters counters() = 0;
  Result<std::vector<MetricRegistration>> add_metrics(MetricRegistry& metrics, const MetricLabels& labels);
  virtual std::optional<std::vector<tokens::Token>> tokens_of(const tokens::SequenceHash& hash) = 0;
  virtual void restore_tokens(std::span<const tokens::TokenBlock> blocks) = 0;
  virtual std::uint64_t list_stored(std::vector<events::KvEvent>& out) = 0;
  virtual void check_invariants() = 0;

  // The manager is gone: releases everything registered. Stops the process when guards are outstanding.
  virtual void close() = 0;

 protected:
  ~UntypedManager() = default;
};

// Owns the store of one manager and closes it. Guards, weak blocks and pins may keep the store's memory.
class StoreOwner {
 public:
  explicit StoreOwner(std::shared_ptr<BlockStore> store) noexcept;
  StoreOwner(StoreOwner&& other) noexcept;
  StoreOwner& operator=(StoreOwner&& other) noexcept;
  // Stops the process when guards are outstanding.
  ~StoreOwner();

  // Both stop the process after a move.
  UntypedManager* operator->() const noexcept {
    ASHLAR_CHECK(calls_ != nullptr, "this manager was moved from");
    return calls_;
  }
  // For the sequences that take their blocks from here.
  const std::shared_ptr<BlockStore>& store() const noexcept {
    ASHLAR_CHECK(store_ != nullptr, "this manager was moved from");
    return store_;
  }

 private:
  std::shared_ptr<BlockStore> store_;  // null after a move
  UntypedManager* calls_;              // likewise
};

}  // namespace ashlar::block::detail
