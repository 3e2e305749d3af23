// Eviction: which inactive block goes next. One concept for the policies, one class that the store calls.
//
// A backend orders the inactive blocks of one manager. It is told when a block becomes inactive (insert),
// leaves because somebody uses it again (remove), is touched while it stays (touch), and is asked for victims
// (pop). It never looks blocks up: the store's index does that, for active and inactive blocks alike. What a
// backend prefers to keep is a preference: while it holds a block, pop() yields one. Only pins are vetoes,
// and pinned blocks are not in it.
//
// Beyond the hash, a backend may ask the facts (block_facts.h), the clock, and the registry: the handle of a
// candidate (registry.match_sequence_hash(hash, false)) shows its attachments and the other tiers that hold
// it.
//
// Thread safety: confined; the store calls a backend under its own lock.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_facts.h"
#include "ashlar/block/block_id.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/detail/function_ref.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

// What a backend is made for. All of it outlives the backend.
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

// A backend that orders blocks without a look at their hash may offer insert(id) beside insert(id, hash).
// insert(): the block is not in the backend. remove(), touch(): it is. pop(): the next victim leaves the
// backend; nothing when it is empty, and only then. peek(): the next victims in order, without a change.
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

// A backend that also wants to hear of blocks in use. registered(): a block is registered, and in use.
// unregistered(): a registered block that is not in the backend is gone. A block that pop() yields is gone
// too; nobody says so again. insert() of a block that was not announced announces it.
template <class B>
concept FollowsRegistrations = requires(B backend, BlockId id, const tokens::SequenceHash& hash) {
  { backend.registered(id, hash) } -> std::same_as<void>;
  { backend.unregistered(id) } -> std::same_as<void>;
};

// A backend behind virtual calls: what the store holds.
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
  // Fills `out` with victims, as many as there are. Returns their number.
  virtual std::size_t pop(std::span<BlockId> out) = 0;
  virtual std::size_t peek(std::span<BlockId> out) const = 0;
  virtual std::size_t size() const = 0;
  // Whether registered() and unregistered() are to be called.
  virtual bool follows_registrations() const noexcept { return false; }
  virtual void registered(BlockId, const tokens::SequenceHash&) {}
  virtual void unregistered(BlockId) {}
};

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

// Makes the backend of one manager. Errors refuse the manager.
using EvictionFactory = std::function<Result<std::unique_ptr<InactivePool>>(const EvictionContext&)>;

// A factory of B(context, args...), or of B::create(context, args...) where B has one.
template <EvictionBackend B, class... Args>
EvictionFactory eviction_of(Args... args) {
  return [args...](const EvictionContext& context) -> Result<std::unique_ptr<InactivePool>> {
    if constexpr (requires { B::create(context, args...); }) {
      Result<B> backend = B::create(context, args...);
      if (!backend) return std::move(backend).error();
      return std::unique_ptr<InactivePool>(std::make_unique<InactivePoolOf<B>>(*std::move(backend)));
    } else {
      return std::unique_ptr<InactivePool>(std::make_unique<InactivePoolOf<B>>(B(context, args...)));
    }
  };
}

// The backend registered under a name ("lru", "hashmap_fifo", …), for configuration.
// Errors: kNotFound, with the names there are.
Result<EvictionFactory> eviction_by_name(std::string_view name);
// All registered names, sorted.
std::vector<std::string> eviction_names();

}  // namespace ashlar::block
