#include "c/src/handle_table.h"

#include <new>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::c_interface {

const char* to_string(HandleKind kind) noexcept {
  switch (kind) {
    case HandleKind::kHasher:
      return "hasher";
    case HandleKind::kRegistry:
      return "registry";
    case HandleKind::kManager:
      return "manager";
    case HandleKind::kBlocks:
      return "list of blocks";
    case HandleKind::kPin:
      return "pin";
    case HandleKind::kFence:
      return "fence";
    case HandleKind::kRequest:
      return "request";
    case HandleKind::kTiers:
      return "tiers";
    case HandleKind::kOffload:
      return "offload";
    case HandleKind::kOnboard:
      return "onboard";
    case HandleKind::kIndex:
      return "index";
    case HandleKind::kFeed:
      return "feed";
    case HandleKind::kClient:
      return "client";
    case HandleKind::kAnswer:
      return "answer";
    case HandleKind::kSequences:
      return "maker of sequences";
    case HandleKind::kSequence:
      return "sequence";
  }
  return "unknown";
}

HandleTable& HandleTable::of_process() {
  static HandleTable* const table = new HandleTable;
  return *table;
}

std::uint64_t HandleTable::add(HandleKind kind, std::shared_ptr<HandleObject> object) {
  ASHLAR_DCHECK(object != nullptr, "a handle of nothing");
  // A thread stays with its shard, so that threads rarely meet.
  static std::atomic<unsigned> threads{0};
  thread_local const unsigned mine = threads.fetch_add(1, std::memory_order_relaxed) % kShards;
  Shard& shard = shards_[mine];
  const MutexLock lock(shard.mu);
  if (shard.free.empty()) {
    const std::size_t at = shard.places.size();
    if (at >= (std::size_t{1} << kPlaceBits) / kShards) throw std::bad_alloc();
    if (shard.free.capacity() <= at) shard.free.reserve(2 * at + 16);  // so that remove() needs no memory
    shard.places.emplace_back();
    shard.free.push_back(static_cast<std::uint32_t>(at));
  }
  const std::uint32_t at = shard.free.back();
  shard.free.pop_back();
  HandlePlace& place = shard.places[at];
  ASHLAR_DCHECK(place.object == nullptr, "place %u is free and taken", at);
  place.object = std::move(object);
  place.kind = kind;
  open_.fetch_add(1, std::memory_order_relaxed);
  return std::uint64_t{place.generation} << 32 |
         std::uint64_t{static_cast<std::uint8_t>(kind)} << kPlaceBits | (std::uint64_t{at} * kShards + mine);
}

HandleTable::HandlePlace* HandleTable::place_of(Shard& shard, HandleKind kind, std::uint64_t handle) {
  const std::uint64_t at = (handle & ((std::uint64_t{1} << kPlaceBits) - 1)) / kShards;
  if (at >= shard.places.size()) return nullptr;
  HandlePlace& place = shard.places[at];
  const bool same = place.object != nullptr && place.kind == kind && place.generation == handle >> 32 &&
                    (handle >> kPlaceBits & ((1u << kKindBits) - 1)) == static_cast<std::uint8_t>(kind);
  return same ? &place : nullptr;
}

std::shared_ptr<HandleObject> HandleTable::find(HandleKind kind, std::uint64_t handle) {
  Shard& shard = shard_of(handle);
  const MutexLock lock(shard.mu);
  const HandlePlace* const place = place_of(shard, kind, handle);
  return place == nullptr ? nullptr : place->object;
}

std::shared_ptr<HandleObject> HandleTable::remove(HandleKind kind, std::uint64_t handle) noexcept {
  Shard& shard = shard_of(handle);
  const MutexLock lock(shard.mu);
  HandlePlace* const place = place_of(shard, kind, handle);
  if (place == nullptr) return nullptr;
  open_.fetch_sub(1, std::memory_order_relaxed);
  if (place->generation != kLastGeneration) {  // else the place is never used again
    ++place->generation;
    shard.free.push_back(static_cast<std::uint32_t>(place - shard.places.data()));
  }
  return std::move(place->object);
}

}  // namespace ashlar::c_interface
