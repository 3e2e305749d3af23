// ManagerCore: the untyped manager behind BlockManager<Tier>. Owns the store; results go out slot by slot.
//
// The calls with an `emit` hand slots to emit(index, slot) in chunks. emit may run under the store's lock and
// must only write the slot away: into guards that hold nothing. A match may be told by an exception that a
// slot was not taken.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/detail/function_ref.h"
#include "ashlar/block/detail/registered.h"
#include "ashlar/block/detail/slot_ref.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::block::detail {

class ManagerCore {
 public:
  static Result<ManagerCore> create(const ManagerOptions& options, events::TierId tier,
                                    std::string_view tier_name);
  ManagerCore(ManagerCore&&) noexcept;
  ManagerCore& operator=(ManagerCore&&) noexcept;
  // Stops the process when guards are outstanding.
  ~ManagerCore();

  const ManagerOptions& options() const noexcept;
  // For the sequences that take their blocks from here.
  const std::shared_ptr<BlockStore>& store() const noexcept { return store_; }

  template <class Emit>
  std::optional<AllocationRefusal> allocate(std::size_t n, std::vector<tokens::SequenceHash>* evicted,
                                            Emit&& emit) {
    return allocate_chunks(n, evicted, in_chunks(emit));
  }
  template <class Emit>
  std::optional<AllocationRefusal> allocate_until(std::size_t n, Clock::TimePoint deadline, Emit&& emit) {
    return allocate_until_chunks(n, deadline, in_chunks(emit));
  }
  std::optional<AllocationRefusal> why_not(std::size_t n) const;
  // The refusal of an allocation whose guards find no memory.
  AllocationRefusal out_of_memory(std::size_t n) const noexcept;

  Result<SlotRef> register_one(const SlotRef& slot);
  // candidate(i) names the i-th block.
  template <class Candidate, class Emit>
  std::optional<Error> register_many(std::size_t n, std::size_t room, Candidate&& candidate, Emit&& emit) {
    auto fill = [&](std::size_t first, std::span<SlotRef> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = candidate(first + i);
    };
    return register_chunks(n, room, fill, in_chunks(emit));
  }

  // emit(index of the first, slots).
  template <class Emit>
  std::size_t match_prefix(std::span<const tokens::SequenceHash> hashes, Emit&& emit) {
    return match_prefix_chunks(hashes, emit);
  }
  template <class Emit>
  std::size_t match_prefix(std::span<const tokens::TokenBlock> blocks, Emit&& emit) {
    return match_prefix_chunks(blocks, emit);
  }
  template <class Emit>
  std::size_t match_scattered(std::span<const tokens::SequenceHash> hashes, Emit&& emit) {
    auto one = [&](std::size_t first, std::span<const SlotRef> slots) { emit(first, slots.front()); };
    return match_scattered_each(hashes, one);
  }
  template <class Emit>
  void scan(std::span<const tokens::SequenceHash> hashes, bool touch, Emit&& emit) {
    auto one = [&](std::size_t first, std::span<const SlotRef> slots) { emit(first, slots.front()); };
    scan_each(hashes, touch, one);
  }

  Result<PinRef> pin(const tokens::SequenceHash& hash, Clock::Duration ttl);
  Result<HoldRef> hold(const tokens::SequenceHash& hash);
  Result<void> set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention);
  std::size_t reset_inactive();
  std::vector<tokens::SequenceHash> candidates(std::size_t n) const;
  void for_each_registered(const std::function<void(const tokens::SequenceHash&, BlockId)>& visit) const;

  PoolStatus status() const;
  Pressure pressure() const noexcept;
  ManagerCounters counters() const;
  std::optional<std::vector<tokens::Token>> tokens_of(const tokens::SequenceHash& hash) const;
  std::uint64_t list_stored(std::vector<events::KvEvent>& out) const;
  void check_invariants() const;

 private:
  // (index of the first, the slots).
  using Emitter = FunctionRef<void(std::size_t, std::span<const SlotRef>)>;
  using Filler = FunctionRef<void(std::size_t, std::span<SlotRef>)>;

  template <class Emit>
  static auto in_chunks(Emit& emit) {
    return [&emit](std::size_t first, std::span<const SlotRef> slots) {
      for (std::size_t i = 0; i < slots.size(); ++i) emit(first + i, slots[i]);
    };
  }

  std::optional<AllocationRefusal> allocate_chunks(std::size_t n, std::vector<tokens::SequenceHash>* evicted,
                                                   Emitter emit);
  std::optional<AllocationRefusal> allocate_until_chunks(std::size_t n, Clock::TimePoint deadline,
                                                         Emitter emit);
  std::optional<Error> register_chunks(std::size_t n, std::size_t room, Filler fill, Emitter emit);
  std::size_t match_prefix_chunks(std::span<const tokens::SequenceHash> hashes, Emitter emit);
  std::size_t match_prefix_chunks(std::span<const tokens::TokenBlock> blocks, Emitter emit);
  std::size_t match_scattered_each(std::span<const tokens::SequenceHash> hashes, Emitter emit);
  void scan_each(std::span<const tokens::SequenceHash> hashes, bool touch, Emitter emit);

  static Result<ManagerCore> make(const ManagerOptions& options, events::TierId tier,
                                  std::string_view tier_name);
  explicit ManagerCore(std::shared_ptr<BlockStore> store);
  std::shared_ptr<BlockStore> store_;
};

}  // namespace ashlar::block::detail
