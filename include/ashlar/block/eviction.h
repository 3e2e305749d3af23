// Eviction: chooses the next inactive block to evict. A concept for backends, the class that the store calls,
// and factories of the library's backends.
//
// A backend orders the inactive blocks of one manager. The store tells it when a block becomes inactive
// (insert), comes back into use (remove) or is touched while inactive (touch), and asks it for victims (pop).
// It never looks blocks up: the store's index does that, for active and inactive blocks alike. Its order is a
// preference: while it holds a block, pop() yields one. Only pins are vetoes, and pinned blocks are not in
// it.
//
// Beyond the hash, a backend may query the facts (BlockFacts), the clock, and the registry: the handle of a
// candidate (registry.match_sequence_hash(hash, false)) shows its attachments and the other tiers that hold
// it. A user-defined order is a ReusePolicy (reuse_policy.h) or, with eviction_of<Backend>(), a backend.
//
// Thread safety: confined; the store calls a backend under its own lock.
// Complexity:    a backend should do each call in O(log n) or better: it runs under the store's lock.
// Invariant:     size() blocks are in the backend, each once; pop() is empty only when size() is 0.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

namespace detail {

// A reference to a callable, for calls that do not store it. Never allocates.
template <class Signature>
class FunctionRef;

template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  // The callable must outlive the call that takes this reference.
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(F&& callable) noexcept  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

}  // namespace detail

// Facts about a block, beyond its hash, for eviction backends.
//
// Every fact is a column over the blocks of one manager. A backend requests its columns during construction
// (keep_…()); the store writes only those, so unused facts cost nothing.
//
//   retention    how much the block is worth, set by its users              8 bytes per block
//   hits         whether a match has found the block since it was registered        1 byte
//   acquisition  tick of the block's last allocation or revival             8 bytes
//   parents      the name of the block before, where known                 24 bytes
//
// Thread safety: keep_…() during the backend's construction. Afterwards hits from any thread (relaxed; a drop
// of a reference publishes them to the thread that settles the block), retention and acquisition under the
// store's lock, parents by the block's owner, and read under the store's lock.
class BlockFacts {
 public:
  explicit BlockFacts(std::uint32_t block_count);
  ~BlockFacts();
  BlockFacts(const BlockFacts&) = delete;
  BlockFacts& operator=(const BlockFacts&) = delete;

  // ---- during the backend's construction

  void keep_retentions();
  void keep_hits();
  void keep_acquisitions();
  void keep_parents();

  bool keeps_retentions() const noexcept { return retentions_ != nullptr; }
  bool keeps_hits() const noexcept { return hits_ != nullptr; }
  bool keeps_acquisitions() const noexcept { return acquired_ != nullptr; }
  bool keeps_parents() const noexcept { return parents_ != nullptr; }

  // ---- for the backend; each requires its column

  // nullopt when no retention was set.
  std::optional<BlockRetention> retention(BlockId id) const noexcept;
  bool was_hit(BlockId id) const noexcept { return hits_[id.value()].load(std::memory_order_relaxed) != 0; }
  std::uint64_t acquired(BlockId id) const noexcept { return acquired_[id.value()]; }
  const std::optional<tokens::SequenceHash>& parent(BlockId id) const noexcept {
    return parents_[id.value()];
  }

  // ---- for the store; each is a no-op without its column

  // The block is allocated, empty: forgets all its facts.
  void begin_life(BlockId id) noexcept {
    if (keeps_any_) forget(id);
  }
  void acquire(BlockId id) noexcept {
    if (acquired_ != nullptr) acquired_[id.value()] = ++tick_;
  }
  void set_retention(BlockId id, const BlockRetention& retention) noexcept;
  void set_hit(BlockId id) noexcept {
    if (hits_ == nullptr) return;
    std::atomic<std::uint8_t>& hit = hits_[id.value()];
    // relaxed: a flag that only ever rises during one life of the block.
    if (hit.load(std::memory_order_relaxed) == 0) hit.store(1, std::memory_order_relaxed);
  }
  // Block `to` has the content of `from` and replaces it: copies its retention and hit.
  void pass_on(BlockId from, BlockId to) noexcept;
  void set_parent(BlockId id, const std::optional<tokens::SequenceHash>& parent) {
    if (parents_ != nullptr) parents_[id.value()] = parent;
  }

 private:
  void forget(BlockId id) noexcept;

  struct Columns;  // the memory behind the pointers
  std::uint32_t block_count_;
  bool keeps_any_ = false;
  // Null if the backend did not request the column.
  std::atomic<std::uint64_t>* retentions_ = nullptr;  // 0: none; else priority << 57 | microseconds + 1
  std::atomic<std::uint8_t>* hits_ = nullptr;
  std::uint64_t* acquired_ = nullptr;
  std::optional<tokens::SequenceHash>* parents_ = nullptr;
  std::uint64_t tick_ = 0;
  std::unique_ptr<Columns> columns_;
};

// The environment of a backend. All of it outlives the backend.
struct EvictionContext {
  EvictionContext(std::uint32_t blocks, BlockRegistry shared_registry, Clock& time = Clock::real(),
                  std::shared_ptr<BlockFacts> known = nullptr)
      : block_count(blocks),
        registry(std::move(shared_registry)),
        clock(&time),
        facts(known ? std::move(known) : std::make_shared<BlockFacts>(blocks)) {}

  std::uint32_t block_count;
  BlockRegistry registry;
  Clock* clock;
  std::shared_ptr<BlockFacts> facts;  // never null
};

// A backend that ignores hashes may offer insert(id) beside insert(id, hash). insert(): the block is not in
// the backend. remove(), touch(): it is. pop(): removes and returns the next victim; nullopt only when the
// backend is empty. peek(): the next victims in order, without a change.
template <class B>
concept EvictionBackend =
    requires(B backend, const B& view, BlockId id, const tokens::SequenceHash& hash, std::span<BlockId> out) {
      { backend.insert(id, hash) } -> std::same_as<void>;
      { backend.remove(id) } -> std::same_as<void>;
      { backend.touch(id) } -> std::same_as<void>;
      { backend.pop() } -> std::same_as<std::optional<BlockId>>;
      { view.peek(out) } -> std::same_as<std::size_t>;
      { view.size() } -> std::same_as<std::size_t>;
    };

// A backend that also follows blocks in use. registered(): a block is registered, and in use. unregistered():
// a registered block outside the backend is gone. A block that pop() yields is gone too, without another
// call. insert() of an unannounced block announces it.
template <class B>
concept FollowsRegistrations = requires(B backend, BlockId id, const tokens::SequenceHash& hash) {
  { backend.registered(id, hash) } -> std::same_as<void>;
  { backend.unregistered(id) } -> std::same_as<void>;
};

// A backend behind virtual calls, as the store holds it. Calls follow the concept; all run under the store's
// lock. insert() and remove() must not allocate: the store calls them where it cannot undo anything.
class InactivePool {
 public:
  virtual ~InactivePool() = default;
  virtual void insert(BlockId id, const tokens::SequenceHash& hash) = 0;
  // The same for many, in order; hash_of(id) names each.
  using HashOf = detail::FunctionRef<tokens::SequenceHash(BlockId)>;
  virtual void insert_all(std::span<const BlockId> ids, HashOf hash_of) {
    for (const BlockId id : ids) insert(id, hash_of(id));
  }
  virtual void remove(BlockId id) = 0;
  virtual void touch(BlockId id) = 0;
  // Fills `out` with as many victims as there are. Returns their number.
  virtual std::size_t pop(std::span<BlockId> out) = 0;
  virtual std::size_t peek(std::span<BlockId> out) const = 0;
  virtual std::size_t size() const = 0;
  // Whether the store must call registered() and unregistered().
  virtual bool follows_registrations() const noexcept { return false; }
  virtual void registered(BlockId, const tokens::SequenceHash&) {}
  virtual void unregistered(BlockId) {}
};

// Adapts a backend to the virtual calls.
template <EvictionBackend B>
class InactivePoolOf final : public InactivePool {
 public:
  explicit InactivePoolOf(B backend) : backend_(std::move(backend)) {}
  void insert(BlockId id, const tokens::SequenceHash& hash) override { backend_.insert(id, hash); }
  void insert_all(std::span<const BlockId> ids, HashOf hash_of) override {
    for (const BlockId id : ids) {
      if constexpr (requires { backend_.insert(id); }) {
        backend_.insert(id);
      } else {
        backend_.insert(id, hash_of(id));
      }
    }
  }
  void remove(BlockId id) override { backend_.remove(id); }
  void touch(BlockId id) override { backend_.touch(id); }
  std::size_t pop(std::span<BlockId> out) override {
    std::size_t count = 0;
    while (count < out.size()) {
      const std::optional<BlockId> victim = backend_.pop();
      if (!victim) break;
      out[count++] = *victim;
    }
    return count;
  }
  std::size_t peek(std::span<BlockId> out) const override { return backend_.peek(out); }
  std::size_t size() const override { return backend_.size(); }
  bool follows_registrations() const noexcept override { return FollowsRegistrations<B>; }
  void registered(BlockId id, const tokens::SequenceHash& hash) override {
    if constexpr (FollowsRegistrations<B>) backend_.registered(id, hash);
  }
  void unregistered(BlockId id) override {
    if constexpr (FollowsRegistrations<B>) backend_.unregistered(id);
  }

 private:
  B backend_;
};

// Creates the backend of one manager. Errors refuse the manager.
using EvictionFactory = std::function<Result<std::unique_ptr<InactivePool>>(const EvictionContext&)>;

// A factory of B(context, args...), or of B::create(context, args...) where B has one.
template <EvictionBackend B, class... Args>
EvictionFactory eviction_of(Args... args) {
  return [args...](const EvictionContext& context) -> Result<std::unique_ptr<InactivePool>> {
    if constexpr (requires { B::create(context, args...); }) {
      ASHLAR_TRY(B backend, B::create(context, args...));
      return std::unique_ptr<InactivePool>(std::make_unique<InactivePoolOf<B>>(std::move(backend)));
    } else {
      return std::unique_ptr<InactivePool>(std::make_unique<InactivePoolOf<B>>(B(context, args...)));
    }
  };
}

// ---- the library's backends. Memory is per block of the pool.

// Evicts the block released or touched longest ago. O(1); 8 bytes; no facts.
EvictionFactory lru_eviction();

// Evicts the block registered longest ago, however often it was used. O(log n); 24 bytes; no facts.
EvictionFactory fifo_eviction();
// Evicts the block used least often since it was registered, then as lru. O(log n); 28 bytes; no facts.
EvictionFactory lfu_eviction();
// S3-FIFO: new blocks in a small queue, those used again in a main one, and the names of those that went.
// O(log n) amortised; 80 bytes; no facts.
EvictionFactory s3_fifo_eviction();

// The order of a hash-map backend (reuse_policy.h).
enum class ReuseOrder : std::uint8_t { kFifo, kLifo, kLru, kPriority };
EvictionFactory hashmap_eviction(ReuseOrder order);

// The counts at which a block enters a tier; below `warm` it is cold.
struct MultiLruThresholds {
  unsigned warm = 3;
  unsigned hot = 8;
  unsigned very_hot = 15;

  // Errors: kInvalidArgument unless 1 <= warm < hot < very_hot <= TinyLfu::kMaxCount.
  Result<void> validate() const;
};
// Four lists by how often the block's hash was used lately; the victim is the block of the coldest non-empty
// list that was released or touched longest ago. O(1); 24 bytes. Needs a registry with a frequency tracker.
// Errors (of the factory): those of the thresholds; kInvalidArgument without a tracker.
EvictionFactory multi_lru_eviction(const MultiLruThresholds& thresholds = {});

struct RetentionOptions {
  // The priority of blocks without a retention, to which every limited retention fades.
  std::uint8_t default_priority = BlockRetention::kDefaultPriority;
  // The share of the pool's blocks that may be here above the default priority; rounded down.
  double retained_share = 0.5;
  // Zero: drops to the default priority as soon as the time is over.
  Clock::Duration half_life = std::chrono::seconds(30);
  // At equal priority, blocks that no match has found are evicted before those with a hit.
  bool never_hit_first = false;

  // Errors: kInvalidArgument for a priority above BlockRetention::kMaxPriority, a share outside 0 to 1, a
  // negative half_life.
  Result<void> validate() const;
};
// Evicts by a retention priority that fades with time and that only a share of the pool may claim. O(log n);
// 48 bytes, and facts. Errors (of the factory): those of the options.
EvictionFactory retention_eviction(const RetentionOptions& options = {});

// Which leaf a lineage backend evicts first: from the chain released longest ago, chain by chain; or one
// block of each chain in turn.
enum class LineageOrder : std::uint8_t { kOldestChainFirst, kRoundRobin };
// Evicts from the ends of sequences, so that the remaining blocks can be matched. O(log n) or O(1); at most
// 96 bytes, and facts. Errors (of the factory): kInvalidArgument for a pool of 2^31 blocks or more.
EvictionFactory lineage_eviction(LineageOrder order = LineageOrder::kOldestChainFirst);

// The backend registered under a name ("lru", "hashmap_fifo", …), for configuration.
// Errors: kNotFound, with the existing names.
Result<EvictionFactory> eviction_by_name(std::string_view name);
// All registered names, sorted.
std::vector<std::string> eviction_names();

}  // namespace ashlar::block
