// OffloadQueue: which blocks are offloaded next.
//
// Blocks on deck are held in the source tier, ready to be copied; their number is bounded. A new block goes
// straight on deck while there is room and no block with a better rank waits. Other blocks wait in the
// in-queue, by hash only: the cache may evict them meanwhile. Taking blocks from the deck makes room for the
// next of the in-queue: higher priority first, older first among equals. A block that can no longer be held
// is discarded.
//
// A hash is in the queue once: on deck, waiting, or in flight from take() until finished(). So no block is
// copied twice. A hash is offered either on behalf of callers, who may release it, or permanently.
//
// Thread safety: thread-safe. Holds are taken and dropped outside its lock.
// Complexity:    O(log waiting) per block.
// Invariant:     see check_invariants().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/pin.h"
#include "ashlar/tiers/offload_options.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

// The outcome of an offer.
enum class Offer : std::uint8_t {
  kOnDeck,
  kWaiting,
  kRaised,    // it was waiting, and has a higher priority now
  kKnown,     // already in the queue or in flight
  kGone,      // evicted: it cannot be held
  kNoRoom,    // the in-queue is full of blocks with a better rank
  kTakenOut,  // cancelled during its upgrade to the deck
};

// The outcome of a release.
enum class Release : std::uint8_t {
  kOut,        // it left the queue
  kPermanent,  // stays: it was offered permanently
  kInFlight,   // being copied
  kUnknown,    // not in the queue
};

class OffloadQueue {
 public:
  struct Item {
    block::Hold hold;
    std::uint8_t priority = 0;
    bool permanently = false;
  };
  // Holds a block in the source tier; empty when it was evicted.
  using Upgrade = std::function<std::optional<block::Hold>(const tokens::SequenceHash&)>;

  // Called for hashes that left without being taken or cancelled: kGone, or kNoRoom when displaced. They may
  // have been offered again by then. Runs outside the lock, on the thread whose call noticed.
  using Dropped = std::function<void(const tokens::SequenceHash&, Offer why)>;

  static Result<std::unique_ptr<OffloadQueue>> create(const OffloadQueueOptions& options, Upgrade upgrade,
                                                      Dropped dropped = {});
  ~OffloadQueue();

  Offer offer(const tokens::SequenceHash& hash, std::uint8_t priority, bool permanently = false);
  // Takes up to n blocks from the deck, in order, and marks them in flight. Refills the deck.
  std::vector<Item> take(std::size_t n);
  // Ends the flight of a hash, which may be offered again. True when it had been offered permanently.
  bool finished(const tokens::SequenceHash& hash);
  // Takes out a hash that no caller wants, unless it is in flight or was offered permanently.
  Release release(const tokens::SequenceHash& hash);
  // Takes out a hash that is not in flight. False when it is not in the queue.
  bool cancel(const tokens::SequenceHash& hash);
  // Takes out every hash that is not in flight. Returns their number.
  std::size_t clear();

  std::size_t on_deck() const;
  bool in_flight(const tokens::SequenceHash& hash) const;
  // True when the hash is in the queue or in flight and was offered permanently.
  bool is_permanent(const tokens::SequenceHash& hash) const;
  OffloadQueueCounters counters() const;
  // For tests: stops the process unless deck, in-queue and the table of known hashes agree. O(queue). Safe at
  // any time.
  void check_invariants() const;

 private:
  enum class Stage : std::uint8_t { kUpgrading, kOnDeck, kWaiting, kInFlight, kCancelled };
  static constexpr std::size_t kStages = 5;
  // Higher priority first, then older first.
  struct Order {
    std::uint8_t below = 0;  // 255 - priority
    std::uint64_t age = 0;

    friend auto operator<=>(const Order&, const Order&) = default;
  };
  struct Known {
    Stage stage = Stage::kUpgrading;
    bool permanently = false;
    Order order;
  };

  OffloadQueue(const OffloadQueueOptions& options, Upgrade upgrade, Dropped dropped)
      : options_(options), upgrade_(std::move(upgrade)), dropped_(std::move(dropped)) {}
  // Removes a hash. `if_released`: only if it was not offered permanently.
  Release take_out(const tokens::SequenceHash& hash, bool if_released);
  // `displaced`: the hash evicted from the in-queue to make room.
  Offer wait_locked(const tokens::SequenceHash& hash, const Order& order,
                    std::optional<tokens::SequenceHash>* displaced) ASHLAR_REQUIRES(mu_);
  // Puts a hash on deck, or drops it: kGone, kTakenOut.
  Offer settle(const tokens::SequenceHash& hash, const Order& order, std::optional<block::Hold> hold);
  // Moves hashes from the in-queue to the deck until it is full. Called without the lock.
  void refill();

  const OffloadQueueOptions options_;
  const Upgrade upgrade_;
  const Dropped dropped_;
  mutable Mutex mu_;
  std::map<Order, block::Hold> deck_ ASHLAR_GUARDED_BY(mu_);
  std::map<Order, tokens::SequenceHash> waiting_ ASHLAR_GUARDED_BY(mu_);
  std::unordered_map<tokens::SequenceHash, Known> known_ ASHLAR_GUARDED_BY(mu_);
  std::size_t upgrading_ ASHLAR_GUARDED_BY(mu_) = 0;  // reserved places on deck
  std::uint64_t next_age_ ASHLAR_GUARDED_BY(mu_) = 0;
  OffloadQueueCounters counters_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
