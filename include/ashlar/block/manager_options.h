// ManagerOptions: the configuration of a BlockManager, and the small types of its interface: policies,
// watermarks, the status of its pools, refusals and counters.
//
// BlockManager<Tier>::builder() sets the same options.
//
// Thread safety: ManagerOptions is thread-compatible; the other types are immutable values. PressureCallback
//                says where it runs.
// Complexity:    copying options copies functions and shared pointers; nothing here is on a hot path.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/eviction.h"
#include "ashlar/block/reset_allocator.h"
#include "ashlar/events/access_sampler.h"
#include "ashlar/events/event_log.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block {

// What happens when a registered block's hash already has a block.
enum class DuplicatePolicy : std::uint8_t {
  // The candidate keeps its own id and becomes the block that the hash finds. The first block stays, as a
  // duplicate, for the holders of its references, and is reset with the last one. So a hash has several
  // blocks only while several are in use; or while the first is pinned or held, which keeps it primary.
  kAllow,
  // The caller gets the first; the candidate is reset. A sequence that registers before it has computed
  // (RegisterBlocks::kAtOnce) keeps its own block, as with kAllow: it never gets one that another sequence
  // still computes.
  kReject,
};

// Memory pressure of the pool, with hysteresis between the two watermarks.
enum class Pressure : std::uint8_t { kNormal, kLow };

// Bounds on the available blocks. Requires low <= high <= block_count; low = 0 turns pressure off.
struct Watermarks {
  std::size_t low = 0;   // pressure starts when fewer blocks are available
  std::size_t high = 0;  // and ends when at least this many are
};

// Called after the operation that crossed a watermark, outside all locks. It must not throw. Calls of
// different threads may arrive in either order, and one may arrive while the manager is being destroyed:
// BlockManager::pressure() is the truth. It may use the manager, but not the sequence or batch whose call it
// interrupts.
using PressureCallback = std::function<void(Pressure, std::size_t available)>;

// block_count and registry have no default. The registry is shared by the managers of all tiers.
struct ManagerOptions {
  // Blocks of the pool, 1 to 2^32 - 2. The manager never grows.
  std::uint32_t block_count = 0;
  // Tokens per block, 1 to 65,536. Managers that exchange blocks must agree on it.
  std::uint32_t block_size = 16;
  // Where hashes are registered, shared by the managers of all tiers. Required.
  std::optional<BlockRegistry> registry;
  // What happens when a hash is registered twice.
  DuplicatePolicy duplicates = DuplicatePolicy::kAllow;
  // User-supplied components. Factories run inside create(); their errors refuse the manager.
  EvictionFactory eviction;               // default: LRU
  ResetAllocatorFactory reset_allocator;  // default: first in, first out
  // Receives Stored and Removed events; null: nothing is published. A log serves one manager.
  std::shared_ptr<events::EventLog> events;
  // Samples which hashes are hit; null: nothing is sampled.
  std::shared_ptr<events::AccessSampler> accesses;
  // The block size reported in events; 0: none. The manager itself never touches the bytes.
  std::uint32_t block_bytes = 0;
  // For deadlines and pins. Must outlive the manager.
  Clock* clock = &Clock::real();
  // The initial value for a newly allocated block (ImmutableBlock::set_reset_on_release()).
  bool default_reset_on_release = false;
  // Keeps the tokens of completed blocks for BlockManager::tokens_of(): 4 bytes per token of the pool.
  bool keep_tokens = false;
  // The key of the digests of its blocks. Sequences over the manager use it in place of the process's key;
  // set it where digests outlive the process or leave it. The digest of a TokenBlock that was made under
  // another key counts as unknown: its block is known by name, as one that was staged. Empty: sequences and
  // token blocks bring their own.
  std::optional<tokens::PrefixKey> prefix_key = {};
  // Pins that may be held at once, at most 2^24; 0: a quarter of the blocks, at least one.
  std::size_t max_pins = 0;
  // Back-pressure: see Pressure and PressureCallback.
  Watermarks watermarks;
  PressureCallback on_pressure;

  // Errors: kInvalidArgument naming the option, its value and the range.
  Result<void> validate() const;
};

// The pools of a manager. The numbers belong to one moment. Invariant: the pools and owners add up to total.
struct PoolStatus {
  std::size_t total = 0;
  std::size_t reset = 0;            // empty, free
  std::size_t inactive = 0;         // registered, without references, evictable
  std::size_t pinned_inactive = 0;  // registered, without references, pinned
  std::size_t held_inactive = 0;    // registered, without references, held for a copy
  std::size_t active = 0;           // registered and in use: primaries and duplicates
  std::size_t owned = 0;            // held by unique guards
  std::size_t quarantined = 0;      // dropped in flight, waiting for their fence
  std::size_t waiters = 0;          // allocations waiting for room
  // Blocks that an allocation can get now: reset + inactive.
  std::size_t available() const noexcept { return reset + inactive; }
  std::string to_string() const;
};

// What a manager knows of one block (BlockManager::describe()), at one moment.
struct BlockDescription {
  BlockId id = {};
  BlockState state = BlockState::kReset;
  // Of a registered block. One that a single guard owns shows only its state here; the guard shows the rest.
  std::optional<BlockIdentity> identity = {};
  std::uint32_t references = 0;  // guards and sequences
  std::uint32_t pins = 0;
  std::uint32_t holds = 0;
  bool reset_on_release = false;                          // the last drop does not cache it
  std::optional<BlockRetention> retention = {};           // empty: none was set, or none is kept
  std::optional<std::vector<tokens::Token>> tokens = {};  // with ManagerOptions::keep_tokens
  std::vector<events::TierId> tiers = {};                 // that have a block of its hash, the fastest first

  // Registered and without references: cached.
  bool is_inactive() const noexcept { return state == BlockState::kPrimary && references == 0; }
  // One line, without the tokens.
  std::string to_string() const;
};

// Why an allocation was refused. No block was taken.
struct [[nodiscard]] AllocationRefusal {
  enum class Reason : std::uint8_t {
    kTooMany,       // more than the manager has in total
    kNoRoom,        // not enough blocks are available now
    kQueued,        // there may be room, but earlier allocations wait for it
    kTimedOut,      // the deadline came first
    kCancelled,     // the caller stopped the wait
    kOutOfMemory,   // the process has no memory for the answer
    kOtherManager,  // the sequence belongs to another manager
  };
  Reason reason;
  std::size_t requested;
  PoolStatus status;

  // kInvalidArgument for kTooMany and kOtherManager, kTimeout for kTimedOut, kCancelled for kCancelled, else
  // kCapacity; the text has the status.
  Error to_error() const;
  std::string to_string() const { return to_error().to_string(); }
};

// Counters of a manager since its creation. They only grow; exact when no other thread uses the manager.
struct ManagerCounters {
  std::uint64_t allocations = 0;             // blocks handed out
  std::uint64_t allocations_from_reset = 0;  // of these, taken from the reset pool
  std::uint64_t evictions = 0;               // of these, evicted
  std::uint64_t stagings = 0;                // blocks completed
  std::uint64_t registrations = 0;           // blocks registered, duplicates and refused candidates included
  std::uint64_t duplicates = 0;              // of these, kept beside or in place of the existing block
  std::uint64_t deduplications = 0;          // of these, answered with the existing block
  std::uint64_t collisions = 0;  // registrations refused because the prefix digests differ: other tokens
  std::uint64_t match_hashes_requested = 0;
  std::uint64_t match_blocks_returned = 0;
  // Index probes by which matches over cache groups choose their length.
  std::uint64_t match_probes = 0;
  std::uint64_t scan_hashes_requested = 0;
  std::uint64_t scan_blocks_returned = 0;
  std::uint64_t revivals = 0;       // inactive blocks that came back into use
  std::uint64_t quarantines = 0;    // blocks dropped in flight
  std::uint64_t late_releases = 0;  // last drops that found the block revived
};

}  // namespace ashlar::block
