// The objects behind handles that several files of the C interface use.
//
// PoolLife: the blocks of a manager or of tiers, how many lists and requests are open over them, and how many
// calls use them now. A ticket is taken before anything that holds blocks is made, and by every other call,
// and given back after it is gone, so close() succeeds only when the C++ manager can be destroyed. The call
// that closed it destroys it, and nobody else: when a destroy has returned, all is gone.
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

// What a ticket stands for; each has half of a counter.
enum class PoolUse : std::uint64_t {
  kGuard = 1,                      // an open list or request
  kCall = std::uint64_t{1} << 32,  // a call, while it runs
};
enum class PoolClosing : std::uint8_t { kDone, kInUse, kBefore };

class PoolLife {
 public:
  virtual ~PoolLife() = default;

  // Requires, here and below: a ticket.
  virtual Manager& manager() noexcept = 0;
  // The hasher with the prefix key of this pool; null: its default one. Errors: ASHLAR_INVALID_ARGUMENT:
  // its blocks are named by another scheme.
  virtual Outcome<tokens::SequenceHasher> bind(const tokens::SequenceHasher* hasher) const = 0;
  // Hands waiting events over; 0 without a log.
  virtual std::size_t drain_events(events::EventSink& sink) = 0;
  // Destroys the manager or the tiers. Requires: close() of this thread was done, and no other call of this.
  virtual void destroy() noexcept = 0;

  // False: closed.
  bool enter(PoolUse use = PoolUse::kGuard) noexcept {
    std::uint64_t now = uses_.load(std::memory_order_relaxed);
    do {
      if ((now & kClosed) != 0) return false;
    } while (
        !uses_.compare_exchange_weak(now, now + static_cast<std::uint64_t>(use), std::memory_order_relaxed));
    return true;
  }
  // release: pairs with the acquire in close(): what the user did to the manager happens before its end.
  void leave(PoolUse use) noexcept {
    uses_.fetch_sub(static_cast<std::uint64_t>(use), std::memory_order_release);
  }
  // kDone: nothing used it, and enter() fails from now on; kBefore: it was closed.
  PoolClosing close() noexcept {
    std::uint64_t none = 0;
    if (uses_.compare_exchange_strong(none, kClosed, std::memory_order_acquire)) return PoolClosing::kDone;
    return (none & kClosed) != 0 ? PoolClosing::kBefore : PoolClosing::kInUse;
  }
  std::uint32_t guards() const noexcept {
    return static_cast<std::uint32_t>(uses_.load(std::memory_order_relaxed));
  }
  std::uint32_t calls() const noexcept {
    return static_cast<std::uint32_t>((uses_.load(std::memory_order_relaxed) & ~kClosed) >> 32);
  }

 private:
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> uses_{0};
};

// One use of a pool, which was entered. Declared before the blocks it stands for, so that it goes after them.
class PoolTicket {
 public:
  PoolTicket() = default;
  explicit PoolTicket(std::shared_ptr<PoolLife> life, PoolUse use = PoolUse::kGuard) noexcept
      : life_(std::move(life)), use_(use) {}
  PoolTicket(PoolTicket&& other) noexcept : life_(std::move(other.life_)), use_(other.use_) {}
  PoolTicket& operator=(PoolTicket&& other) noexcept {
    if (this != &other) {
      end();
      life_ = std::move(other.life_);
      use_ = other.use_;
    }
    return *this;
  }
  ~PoolTicket() { end(); }

  PoolLife& life() const noexcept { return *life_; }
  const std::shared_ptr<PoolLife>& shared() const noexcept { return life_; }

 private:
  void end() noexcept {
    if (life_ != nullptr) life_->leave(use_);
    life_.reset();
  }
  std::shared_ptr<PoolLife> life_;
  PoolUse use_ = PoolUse::kGuard;
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

Outcome<tokens::SequenceHasher> make_hasher(const ashlar_hasher_options* options,
                                            const tokens::HashScheme& otherwise = {});
// The hasher as `life` binds it; its default one for a zero handle.
Outcome<tokens::SequenceHasher> hasher_of(ashlar_hasher hasher, const PoolLife& life);
// Errors: a closed pool counts as a handle that is gone.
Outcome<PoolTicket> ticket_of(ashlar_manager manager, PoolUse use = PoolUse::kGuard);
// Closes and destroys what the handle stands for. `what`: its name in a message. Errors: ASHLAR_NOT_READY,
// with its users; closed by another thread: a handle that is gone.
Outcome<> destroy_pool(PoolLife& life, const char* what, HandleKind kind, std::uint64_t handle);
// A new list under a handle of its own.
Outcome<std::uint64_t> open_blocks(PoolTicket ticket, AnyBlocks blocks);
Outcome<std::vector<block::Fence>> fences_of(const ashlar_fence* fences, std::size_t n);
Outcome<block::Fence> fence_of(ashlar_fence fence);
Outcome<block::BlockRetention> retention_of(std::uint8_t priority, std::uint64_t ttl_ns);
// The same for every block of a request or sequence; 0 ns: forever.
block::RetentionPlan retention_plan(std::uint8_t priority, std::uint64_t priority_ns);
// What a match may bring from below, as the options say it. Errors: ASHLAR_INVALID_ARGUMENT.
Outcome<block::PrefixBudget> prefix_budget(std::uint64_t max_blocks, std::uint64_t time_ns,
                                           double compute_tokens_per_second);
// For Fence::keep(): keeps a pool from being destroyed until the fence has ended, with the blocks that wait
// for it; forever if it is abandoned.
std::unique_ptr<block::Fence::Waiting> pool_until_fence(const PoolTicket& ticket);
// Keeps something with blocks until the fence has ended; forever if it is abandoned.
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
