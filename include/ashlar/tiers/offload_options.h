// What an operator sets about offloading: OffloadPolicy decides which blocks to copy, OffloadWorkerOptions
// how they are batched. OffloadCounters reports what became of them.
//
// A policy is a function; those here can be combined:
//
//   all_of({absent_below(), used_at_least(2)})
//
// It runs on the thread that offers the block, once per offer, with no lock held.
//
// Thread safety: options and counters are plain values. The policies here are thread-safe; a user's own
//                policy must be, too.
// Complexity:    absent_below() looks up one hash; the other policies are O(1).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class TierPool;

// A block that was offered to the tier below.
struct OffloadCandidate {
  // Made by the library, with the tier below.
  OffloadCandidate(const tokens::SequenceHash& its_hash, std::uint8_t its_priority, unsigned its_uses,
                   TierPool* below) noexcept
      : hash(its_hash), priority(its_priority), uses(its_uses), to_(below) {}

  tokens::SequenceHash hash;
  std::uint8_t priority;
  unsigned uses;  // recent ones, counted by the registry's tracker; 0 without a tracker

  // Whether the tier below already has the block. Looks it up at the time of the call.
  bool is_present_below() const;

 private:
  TierPool* to_;
};

// True: copy the block.
using OffloadPolicy = std::function<bool(const OffloadCandidate&)>;

inline OffloadPolicy every_block() {
  return [](const OffloadCandidate&) { return true; };
}
// The tier below does not have the block yet.
inline OffloadPolicy absent_below() {
  return [](const OffloadCandidate& block) { return !block.is_present_below(); };
}
inline OffloadPolicy used_at_least(unsigned uses) {
  return [uses](const OffloadCandidate& block) { return block.uses >= uses; };
}
inline OffloadPolicy priority_at_least(std::uint8_t priority) {
  return [priority](const OffloadCandidate& block) { return block.priority >= priority; };
}
// Copying the block now is expected to cost less than recomputing it later. `chance_of_reuse` returns the
// caller's estimate, in [0, 1].
inline OffloadPolicy worth_it(std::function<double(const OffloadCandidate&)> chance_of_reuse,
                              double recompute_seconds, double copy_seconds) {
  return [chance = std::move(chance_of_reuse), recompute_seconds, copy_seconds](
             const OffloadCandidate& block) { return chance(block) * recompute_seconds > copy_seconds; };
}
// Every policy agrees. They are asked in order, up to the first refusal.
inline OffloadPolicy all_of(std::vector<OffloadPolicy> policies) {
  return [policies = std::move(policies)](const OffloadCandidate& block) {
    for (const OffloadPolicy& policy : policies)
      if (!policy(block)) return false;
    return true;
  };
}
// Some policy agrees. They are asked in order, up to the first that does.
inline OffloadPolicy any_of(std::vector<OffloadPolicy> policies) {
  return [policies = std::move(policies)](const OffloadCandidate& block) {
    for (const OffloadPolicy& policy : policies)
      if (policy(block)) return true;
    return false;
  };
}

struct OffloadQueueOptions {
  std::size_t on_deck = 64;     // blocks held in the source tier, ready to be copied
  std::size_t waiting = 65536;  // blocks queued by hash only; the source tier may evict them meanwhile

  // Errors: kInvalidArgument: a limit of 0.
  Result<void> validate() const;
};

// How the worker of one offload route forms and paces its batches.
struct OffloadWorkerOptions {
  OffloadQueueOptions queue = {};
  // Limits of one batch. At most two batches are in flight.
  std::size_t batch_blocks = 32;
  std::uint64_t batch_bytes = std::uint64_t{256} << 20;
  std::size_t full_batch = 8;  // a batch starts at once when this many blocks are on deck
  // A smaller batch starts when its oldest block has waited this long.
  Clock::Duration max_wait = std::chrono::milliseconds(2);
  // Average limit; 0: unlimited. Blocks above the limit wait in the queue, which drops the lowest priority
  // first when it is full.
  std::uint64_t bytes_per_second = 0;
  OffloadPolicy policy = every_block();
  // Recent uses of a hash, for the policy. Empty: the manager asks its registry.
  std::function<unsigned(const tokens::SequenceHash&)> uses = {};
  Clock* clock = nullptr;  // null: the manager's

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

// What an offload queue has done. Exact only while the queue is idle.
struct OffloadQueueCounters {
  std::uint64_t offered = 0;
  std::uint64_t discarded = 0;  // already evicted from the source tier when their turn came
  std::uint64_t displaced = 0;  // dropped from a full queue in favour of a higher priority
  std::uint64_t refused = 0;    // the queue was full of blocks with a higher priority
  std::uint64_t cancelled = 0;
  std::uint64_t taken = 0;  // into batches
  std::size_t on_deck = 0;
  std::size_t waiting = 0;  // including blocks that are being taken on deck
  std::size_t in_flight = 0;
};

// What the worker of one offload route has done, in blocks unless noted.
struct OffloadCounters {
  std::uint64_t batches = 0;
  std::uint64_t arrived = 0;   // copied and registered below
  std::uint64_t present = 0;   // the tier below already had them
  std::uint64_t filtered = 0;  // refused by the policy
  std::uint64_t gone = 0;      // evicted before their turn
  std::uint64_t damaged = 0;   // their bytes did not match their checksum
  std::uint64_t failed = 0;    // the copy failed
  std::uint64_t stopped = 0;   // stopped in flight: no caller wanted them any more, or the deadline passed
  std::uint64_t bytes = 0;     // that arrived
  std::size_t blocked = 0;     // waiting for a precondition now
  OffloadQueueCounters queue = {};
};

}  // namespace ashlar::tiers
