// The objects behind handles that several files of the C interface use.
//
// PoolLife: the blocks of a manager or of tiers, and how many lists and requests are open over them. A ticket
// is taken before anything that holds blocks is made, and given back after it is gone, so close() succeeds
// only when the C++ manager can be destroyed.
//
// BlocksObject and RequestObject have a lock each: calls of two threads with one handle wait for each other.
// `handle` is the one handle that names the object now; a call that waited while a transition consumed its
// handle finds another number there.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/block/fence.h"
#include "ashlar/events/event_log.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "c/src/calls.h"
#include "c/src/handle_table.h"

namespace ashlar::c_interface {

using Manager = block::BlockManager<events::G1>;

// Same bytes on both sides of the interface.
static_assert(sizeof(ashlar_hash) == sizeof(tokens::SequenceHash) &&
              sizeof(ashlar_digest) == sizeof(tokens::PrefixDigest) &&
              sizeof(ashlar_block_hashes) == sizeof(tokens::BlockHashes) &&
              sizeof(std::uint32_t) == sizeof(tokens::Token) &&
              sizeof(std::uint64_t) == sizeof(tokens::LocalHash));
inline const tokens::SequenceHash& hash_in(const ashlar_hash& hash) {
  return reinterpret_cast<const tokens::SequenceHash&>(hash);
}
inline const tokens::BlockHashes& hashes_in(const ashlar_block_hashes& hashes) {
  return reinterpret_cast<const tokens::BlockHashes&>(hashes);
}

class PoolLife {
 public:
  virtual ~PoolLife() = default;

  virtual Manager& manager() noexcept = 0;
  // The hasher with the prefix key of this pool.
  virtual tokens::SequenceHasher bind(const tokens::SequenceHasher& hasher) const = 0;
  // Hands waiting events over; 0 without a log.
  virtual std::size_t drain_events(events::EventSink& sink) = 0;

  // False: closed.
  bool enter() noexcept {
    std::int64_t now = guards_.load(std::memory_order_relaxed);
    do {
      if (now < 0) return false;
    } while (!guards_.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
    return true;
  }
  // release: pairs with the acquire in close(): what the guard did to the manager happens before its end.
  void leave() noexcept { guards_.fetch_sub(1, std::memory_order_release); }
  // Returns how many guards are open; 0: there were none, and enter() fails from now on; -1: it was closed.
  std::int64_t close() noexcept {
    std::int64_t none = 0;
    if (guards_.compare_exchange_strong(none, kClosed, std::memory_order_acquire)) return 0;
    return none < 0 ? -1 : none;
  }
  std::size_t guards() const noexcept {
    const std::int64_t now = guards_.load(std::memory_order_relaxed);
    return now < 0 ? 0 : static_cast<std::size_t>(now);
  }

 private:
  static constexpr std::int64_t kClosed = INT64_MIN / 2;
  std::atomic<std::int64_t> guards_{0};
};

// One open list or request. Declared before the blocks it stands for, so that it goes after them.
class PoolTicket {
 public:
  PoolTicket() = default;
  explicit PoolTicket(std::shared_ptr<PoolLife> life) noexcept : life_(std::move(life)) {}
  PoolTicket(PoolTicket&& other) noexcept : life_(std::move(other.life_)) {}
  PoolTicket& operator=(PoolTicket&& other) noexcept {
    if (this != &other) {
      end();
      life_ = std::move(other.life_);
    }
    return *this;
  }
  ~PoolTicket() { end(); }

  PoolLife& life() const noexcept { return *life_; }
  const std::shared_ptr<PoolLife>& shared() const noexcept { return life_; }

 private:
  void end() noexcept {
    if (life_ != nullptr) life_->leave();
    life_.reset();
  }
  std::shared_ptr<PoolLife> life_;
};

struct HasherObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kHasher;
  explicit HasherObject(tokens::SequenceHasher its_hasher) : hasher(std::move(its_hasher)) {}
  const tokens::SequenceHasher hasher;
};

struct RegistryObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kRegistry;
  explicit RegistryObject(block::BlockRegistry its_registry) : registry(std::move(its_registry)) {}
  const block::BlockRegistry registry;
};

struct ManagerObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kManager;
  ManagerObject(std::shared_ptr<PoolLife> its_life, bool is_of_tiers)
      : life(std::move(its_life)), of_tiers(is_of_tiers) {}
  const std::shared_ptr<PoolLife> life;
  const bool of_tiers;
};

struct FenceObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kFence;
  explicit FenceObject(std::pair<block::Fence, block::FenceSignal> both)
      : fence(std::move(both.first)), signal(std::move(both.second)) {}
  const block::Fence fence;
  Mutex mu;
  std::optional<block::FenceSignal> signal ASHLAR_GUARDED_BY(mu);  // empty: used
};

using EmptyBlocks = block::BlockList<Manager::Mutable>;
using CompleteBlocks = block::BlockList<Manager::Complete>;
using RegisteredBlocks = block::BlockList<Manager::Immutable>;
using AnyBlocks = std::variant<EmptyBlocks, CompleteBlocks, RegisteredBlocks>;

struct BlocksObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kBlocks;
  BlocksObject(PoolTicket its_ticket, AnyBlocks its_blocks)
      : ticket(std::move(its_ticket)), blocks(std::move(its_blocks)) {}
  const PoolTicket ticket;
  Mutex mu;
  std::uint64_t handle ASHLAR_GUARDED_BY(mu) = 0;  // 0: consumed
  AnyBlocks blocks ASHLAR_GUARDED_BY(mu);
};

Outcome<tokens::SequenceHasher> make_hasher(const ashlar_hasher_options* options);
// The default hasher for a zero handle.
Outcome<tokens::SequenceHasher> hasher_of(ashlar_hasher hasher);
// Errors: a closed pool counts as a handle that is gone.
Outcome<PoolTicket> ticket_of(ashlar_manager manager);
// A new list under a handle of its own.
Outcome<std::uint64_t> open_blocks(PoolTicket ticket, AnyBlocks blocks);
Outcome<std::vector<block::Fence>> fences_of(const ashlar_fence* fences, std::size_t n);
Outcome<block::Fence> fence_of(ashlar_fence fence);
Outcome<block::BlockRetention> retention_of(std::uint8_t priority, std::uint64_t ttl_ns);
// Keeps something with blocks until the fence passes; forever if it is abandoned.
void keep_until(const block::Fence& fence, std::shared_ptr<HandleObject> object);

// What a pin handle holds.
class PinObject final : public HandleObject {
 public:
  static constexpr HandleKind kKind = HandleKind::kPin;
  explicit PinObject(std::vector<block::Pin> pins) : pins_(std::move(pins)) {}
  // A pin of another kind: `holds` tells whether it still does; both die with this.
  PinObject(std::shared_ptr<void> other, bool (*holds)(void*)) : other_(std::move(other)), holds_(holds) {}

  bool active() const;

 private:
  const std::vector<block::Pin> pins_;
  const std::shared_ptr<void> other_;
  bool (*const holds_)(void*) = nullptr;
};

}  // namespace ashlar::c_interface
