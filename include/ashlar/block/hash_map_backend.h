// HashMapBackend: inactive blocks found by hash and evicted in the order of a reuse policy.
//
// The hash map is the store's own index, which finds active and inactive blocks alike; what is left to choose
// is the order, and that is the policy. Memory, facts and complexity are the policy's.
//
// Thread safety: confined.
#pragma once

#include <cstdint>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/block/eviction.h"
#include "ashlar/block/fifo_reuse.h"
#include "ashlar/block/lifo_reuse.h"
#include "ashlar/block/lru_reuse.h"
#include "ashlar/block/priority_reuse.h"
#include "ashlar/block/reuse_policy.h"

namespace ashlar::block {

template <ReusePolicy Policy>
class HashMapBackend {
 public:
  static constexpr std::size_t kBytesPerBlock = Policy::kBytesPerBlock;  // where the policy says it

  template <class... Args>
  explicit HashMapBackend(const EvictionContext& context, Args&&... args)
      : policy_(context, std::forward<Args>(args)...) {}
  explicit HashMapBackend(Policy policy) : policy_(std::move(policy)) {}

  void insert(BlockId id)
    requires requires(Policy policy) { policy.insert(id); }
  {
    policy_.insert(id);
  }
  void insert(BlockId id, const tokens::SequenceHash& hash) { policy_.insert(id, hash); }
  void remove(BlockId id) { policy_.remove(id); }
  void touch(BlockId id) {
    if constexpr (requires { policy_.touch(id); }) policy_.touch(id);
  }
  std::optional<BlockId> pop() { return policy_.next(); }
  std::size_t peek(std::span<BlockId> out) const { return policy_.peek(out); }
  std::size_t size() const { return policy_.size(); }

 private:
  Policy policy_;
};
static_assert(EvictionBackend<HashMapBackend<FifoReuse>>);
static_assert(EvictionBackend<HashMapBackend<LifoReuse>>);
static_assert(EvictionBackend<HashMapBackend<LruReuse>>);
static_assert(EvictionBackend<HashMapBackend<PriorityReuse>>);

// The policies of the library.
enum class ReuseOrder : std::uint8_t { kFifo, kLifo, kLru, kPriority };

// A factory of the HashMapBackend with that policy.
inline EvictionFactory hashmap_eviction(ReuseOrder order) {
  switch (order) {
    case ReuseOrder::kFifo:
      return eviction_of<HashMapBackend<FifoReuse>>();
    case ReuseOrder::kLifo:
      return eviction_of<HashMapBackend<LifoReuse>>();
    case ReuseOrder::kLru:
      return eviction_of<HashMapBackend<LruReuse>>();
    case ReuseOrder::kPriority:
      return eviction_of<HashMapBackend<PriorityReuse>>();
  }
  ASHLAR_CHECK(false, "there is no reuse order %u", static_cast<unsigned>(order));
  return {};
}

}  // namespace ashlar::block
