// KvBlockManager: the KV blocks of a model over several tiers: G1 where they are computed, G2 in host memory,
// G3 in files, G4 on volumes; and Remote: blocks that are in the G2 of other nodes.
//
// One registry names the blocks of all tiers. Blocks registered in G1 are offloaded by policy or by call;
// blocks that a request needs are onboarded again. Each tier has a BlockManager of its own, which allocates,
// matches and evicts as ever; this class adds the bytes and the routes between tiers.
//
//   auto kv = KvBlockManager::create({.model = {…},
//                                     .keys = keys,
//                                     .g1 = {.block_count = 1024},
//                                     .g2 = TierShape{.block_count = 8192},
//                                     .g3 = DiskShape{.block_count = 100000, .paths = {"/data/g3"}}})
//                 .value();
//   auto table = kv->onboard(hashes);            // the longest prefix that any tier has, now in G1
//   auto fresh = kv->get_mutable_blocks(hashes.size() - table.size()).value();
//   …compute the rest…
//   auto stored = kv->register_blocks(std::move(complete)).value();  // offloaded as the policy says
//
// Thread safety: thread-safe. Holds no lock while blocks move.
// Complexity:    find() is O(hashes) lookups per tier, plus one call per volume where G4 probes.
// Invariant:     a block can be found in a tier only after every byte of it has arrived there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/tiers/kv_options.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tiers/offload_options.h"
#include "ashlar/tiers/onboard_handle.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_block.h"
#include "ashlar/transfer/block_checksum.h"

namespace ashlar::tiers {

// Counts are in blocks.
struct TierStatus {
  block::PoolStatus pool;
  std::uint64_t hits = 0;       // requested, and this was the fastest tier that had them
  std::uint64_t onboarded = 0;  // brought up from this tier
  std::uint64_t evictions = 0;
  std::uint64_t damaged = 0;  // their bytes did not match their checksum
  std::uint64_t failed = 0;   // could not be read
};

// A snapshot of all counters. Tiers are read one after the other, so sums may be off by what moves meanwhile.
struct KvStatus {
  TierStatus g1;
  std::optional<TierStatus> g2;
  std::optional<TierStatus> g3;
  std::optional<TierStatus> g4;
  std::optional<TierStatus> remote;
  std::array<std::uint64_t, kMisses> misses = {};  // by Miss
  std::optional<OffloadCounters> to_g2;
  std::optional<OffloadCounters> to_g3;
  std::optional<OffloadCounters> to_g4;
  std::vector<VolumeStatus> volumes;
  // Why the last block that was a miss for Miss::kOtherShards could not be used; empty: none was.
  std::string shard_refusal;

  // Over all reasons.
  std::uint64_t missed() const noexcept;
};

using RegisterOptions = block::RegistrationOptions;

// The tiers that have a block of one hash.
struct TierPresence {
  std::uint8_t bits = 0;  // bit i: TierId(i)

  bool in(events::TierId tier) const noexcept { return (bits >> tier.value() & 1) != 0; }
  bool anywhere() const noexcept { return bits != 0; }
  friend bool operator==(const TierPresence&, const TierPresence&) = default;
};

// The block of one hash in one tier.
struct TierBlock {
  events::TierId tier;
  block::BlockDescription block;  // its state, references, pins, holds, identity, retention
  std::uint64_t bytes = 0;
  std::string location;                                  // file of G3, or volume of G4
  Clock::TimePoint since = {};                           // when it entered the tier
  bool being_written = false;                            // a precondition of its registration has not passed
  std::optional<transfer::BlockChecksum> checksum = {};  // empty: its bytes have not been in host memory
};

// What the tiers together know of one hash. They are read one after the other.
struct KvBlockDescription {
  tokens::SequenceHash hash;
  block::BlockIdentity identity;    // each part from the fastest tier that knows it
  block::BlockRetention retention;  // in the fastest tier
  std::size_t pins = 0;             // KvPins that name the hash
  std::vector<TierBlock> tiers;     // the fastest first; never empty

  // Null: the tier has no block of the hash.
  const TierBlock* in(events::TierId tier) const noexcept;
};

class PinRequest;

// Pins blocks by hash in every tier that has them, or gets them, until the guard is gone or its time is over.
// A pinned block is not evicted; KvBlockManager::reset_blocks() removes it all the same, and ends the pin. A
// block that is lost (its volume was detached, its bytes are damaged or missing) leaves its tier too; a new
// copy there is pinned again.
//
// Thread safety: thread-compatible. It may outlive the manager, and then pins nothing.
class [[nodiscard]] KvPin {
 public:
  // Pins nothing.
  KvPin() = default;
  KvPin(KvPin&&) noexcept = default;
  KvPin& operator=(KvPin&& other) noexcept;
  ~KvPin();

  // True until the guard is ended or its time is over.
  bool active() const;
  // Blocks that it pins now, over all tiers.
  std::size_t pinned() const;
  // Blocks that arrived in a tier that had no pin left, or no memory for it.
  std::size_t refused() const;
  // Ends it early.
  void unpin() &&;

 private:
  friend class KvBlockManager;
  explicit KvPin(std::shared_ptr<PinRequest> request) : request_(std::move(request)) {}
  std::shared_ptr<PinRequest> request_;
};

class KvBlockManager {
 public:
  using Registered = Result<block::BlockList<block::ImmutableBlock<events::G1>>,
                            Rejected<block::BlockList<block::CompleteBlock<events::G1>>>>;
  using MetricLabels = ashlar::MetricLabels;

  // Errors: those of KvOptions::validate(), of allocating memory, of opening files and of attaching volumes;
  // kCapacity: out of memory, with the block counts.
  static Result<std::unique_ptr<KvBlockManager>> create(KvOptions options);
  // Finishes in-flight offloads to G2 and G3; drops queued ones and those to volumes: it never waits for a
  // volume. Call shutdown() first to keep them. Guards must be gone. Handles may stay; blocks that arrived
  // for a handle and were not handed over are released.
  ~KvBlockManager();

  // Blocks registered there, by guards, sequences or batches, are offloaded as those of register_blocks().
  block::BlockManager<events::G1>& g1() noexcept;
  // Null where the options leave the tier out. Blocks that the caller registers in G2 go down as those that
  // arrived there from G1.
  block::BlockManager<events::G2>* g2() noexcept;
  block::BlockManager<events::G3>* g3() noexcept;
  block::BlockManager<events::G4>* g4() noexcept;
  // The tier of other nodes' blocks: peers, pushes, hints.
  RemoteNode* remote() noexcept;
  const block::BlockRegistry& registry() const noexcept;
  // The hasher whose digests every tier keeps: for token sequences whose blocks are registered here by
  // guards. Requests and sequences over g1() use its key by themselves.
  tokens::SequenceHasher hasher(const tokens::Salt& salt = {}, const tokens::HashScheme& scheme = {}) const;
  // The bytes of G1.
  const std::shared_ptr<const transfer::BlockSet>& g1_blocks() const noexcept;

  // ---- compute

  // Empty blocks of G1; all or none.
  [[nodiscard]] Result<block::BlockList<block::MutableBlock<events::G1>>, block::AllocationRefusal>
  get_mutable_blocks(std::size_t n);
  // As BlockManager::register_blocks(); also offers the registered blocks to the tier below. Errors: also
  // kInvalidArgument: `after` must have 0, 1 or blocks.size() entries; kCorruption: G1 has a block with the
  // same hash and another salt.
  Registered register_blocks(block::BlockList<block::CompleteBlock<events::G1>> blocks,
                             const RegisterOptions& options = {});

  // ---- offload

  // Offers blocks of G1 to G2 now. offload_to() also offers blocks of G2 to G3 or G4. Errors: kUnsupported:
  // no such tier; kCancelled: after shutdown(); kInvalidArgument: the number of preconditions.
  Result<OffloadHandle> offload(std::span<const tokens::SequenceHash> hashes,
                                const OffloadOptions& options = {});
  Result<OffloadHandle> offload_to(events::TierId tier, std::span<const tokens::SequenceHash> hashes,
                                   const OffloadOptions& options = {});
  // Offers the next eviction candidates to the tiers below, on routes with Trigger::kNearEviction. Every
  // allocation from G1 does so.
  void look_ahead();
  // Waits until every queued and in-flight offload has ended. Does not wait for blocks that wait for a
  // precondition. False: `until` passed first.
  bool drain(std::optional<Clock::TimePoint> until = {});

  // ---- onboard

  // The longest prefix of `hashes` that the tiers have, with the fastest tier of each block and the cost of
  // bringing it up. Does not count as a use. Volumes that have not answered by `until` are left out.
  std::vector<TierRun> find(std::span<const tokens::SequenceHash> hashes,
                            std::optional<Clock::TimePoint> until = {});
  // Brings the longest prefix that any tier has into G1, as far as there is room and it is faster than
  // recomputing, and returns it pinned. A block that cannot be read ends the prefix. Concurrent calls for the
  // same block share one copy. Requires: no digests, or one per hash.
  OnboardTable onboard(std::span<const tokens::SequenceHash> hashes, const OnboardOptions& options = {});
  // The same for token blocks, made with hasher(): their digests are compared, and where G1 keeps tokens the
  // blocks have theirs. What `options` says of digests, local hashes and the blocks before is not read.
  OnboardTable onboard(std::span<const tokens::TokenBlock> blocks, const OnboardOptions& options = {});
  // Both in the background. Errors: kCapacity: no thread; kCancelled: after shutdown(); kInvalidArgument: the
  // number of digests.
  Result<OnboardHandle> onboard_async(std::span<const tokens::SequenceHash> hashes,
                                      const OnboardOptions& options = {});
  Result<OnboardHandle> onboard_async(std::span<const tokens::TokenBlock> blocks,
                                      const OnboardOptions& options = {});
  // Brings blocks from disks and volumes into G2, ahead of a request. The table of the handle stays empty.
  // Errors: as onboard_async().
  Result<OnboardHandle> prefetch(std::span<const tokens::SequenceHash> hashes,
                                 const OnboardOptions& options = {});

  // ---- by hash, over all tiers

  // Pins the blocks of these hashes in every tier that has them, and in every tier that gets them before
  // `ttl` has passed, by any way. Errors: kInvalidArgument: `ttl` is not positive; kCapacity: a tier has no
  // pins left (ManagerOptions::max_pins); then nothing is pinned.
  Result<KvPin> pin(std::span<const tokens::SequenceHash> hashes, Clock::Duration ttl);
  // Sets how long to keep the blocks, in every tier that has them, and their place in the queues on the way
  // down; it goes down with them. After a restart of G3 the priority no longer ends. Returns how many of the
  // hashes some tier has. Errors: kInvalidArgument: the priority; kIo: G3 keeps the value only until it is
  // closed.
  Result<std::size_t> set_retention(std::span<const tokens::SequenceHash> hashes,
                                    const block::BlockRetention& retention);
  // The same for the caller's own number. Objects on volumes keep the one they were written with.
  Result<std::size_t> set_metadata(std::span<const tokens::SequenceHash> hashes, std::uint32_t metadata);
  // From the fastest tier that has the block; nullopt when none has it.
  std::optional<std::uint32_t> metadata(const tokens::SequenceHash& hash) const;
  // The tiers that have each hash. Volumes are not asked: find() does that.
  std::vector<TierPresence> presence(std::span<const tokens::SequenceHash> hashes) const;
  // Whether volumes or peers may have blocks that no tier is known to have: find() and prefetch() ask them.
  bool probes() const;
  // Everything known; nullopt when no tier has the hash. Does not count as a use. Volumes are not asked.
  std::optional<KvBlockDescription> describe(const tokens::SequenceHash& hash) const;

  // ---- volumes

  // Attaches a volume that the operator provisioned. Errors: kUnsupported: no G4; kAlreadyExists: the name;
  // those of the backend.
  Result<void> register_volume(const VolumeDescriptor& descriptor, const VolumeUse& use = {});
  // Waits until the volume is unused, then forgets its blocks; the objects stay on the volume. When `until`
  // passes first, calls that use the volume fail. Returns the number of forgotten blocks. Errors: kNotFound;
  // kUnsupported: no G4.
  Result<std::size_t> unregister_volume(std::string_view name, std::optional<Clock::TimePoint> until = {});

  // ---- all tiers

  // Evicts every unused block of a tier; for G3 and G4 permanently. Errors: kUnsupported: no such tier,
  // or a volume is read-only; kIo, kUnavailable, kTimeout (volumes, at `until`): the other blocks
  // are gone.
  Result<std::size_t> reset(events::TierId tier, std::optional<Clock::TimePoint> until = {});
  // Removes blocks from every tier permanently, after their in-flight copies have ended; also from files of
  // G3 that are absent now, as soon as they return. Errors: as reset(); kTimeout also when `until` passed
  // while other calls still brought some of the blocks up: then nothing was removed, and the message says so.
  Result<void> reset_blocks(std::span<const tokens::SequenceHash> hashes,
                            std::optional<Clock::TimePoint> until = {});
  // Accepts no more offloads, waits for the queued ones, cancels onboard_async() and prefetch(). Errors:
  // kTimeout: with the number of blocks that were dropped because `until` passed or their precondition has
  // not passed; blocks that had arrived are safe.
  Result<void> shutdown(std::optional<Clock::TimePoint> until = {});

  // ---- observe

  KvStatus status() const;
  // Registers every counter of this manager, its tiers, offload routes and queues, and of its volumes, those
  // registered later included; `labels` go to each. Names: docs/tiers.md. Drop the registrations before the
  // manager. Errors: those of the registry.
  Result<std::vector<MetricRegistration>> add_metrics(MetricRegistry& metrics,
                                                      const MetricLabels& labels = {}) const;
  // Hands buffered events to a sink, tier by tier. Returns their number; 0 between attach_events() and
  // detach_events(), where the events belong to the EventManager, and while another drain runs. The sink may
  // use the tiers.
  std::size_t drain_events(events::EventSink& sink);
  // Appends what a tier holds as Stored events, parents before children, and returns the number of the next
  // event of its log: a first state, or a new one after a kResync, for who drains events. A kResync does not
  // say which tier's log it is of. Errors: kUnsupported: no such tier; kNotReady: no event_capacity.
  Result<std::uint64_t> list_stored(events::TierId tier, std::vector<events::KvEvent>& out) const;
  // Makes the tiers sources of `events`, beginning with what they hold, and names their files and volumes,
  // including volumes registered later. Call detach_events() before either is destroyed. Errors: kNotReady:
  // no event_capacity, or drain_events() runs; kAlreadyExists: attached already.
  Result<void> attach_events(events::EventManager& events);
  void detach_events();
  // For tests: stops the process at the first invariant of the tiers, queues and volumes that does not hold.
  // O(blocks). Requires: no other call runs and drain() has returned.
  void check_invariants() const;

 private:
  struct Assembly;
  explicit KvBlockManager(std::unique_ptr<Assembly> assembly);
  std::shared_ptr<OnboardCall> call_for(std::span<const tokens::TokenBlock> blocks, OnboardOptions options);
  OnboardTable run(const std::shared_ptr<OnboardCall>& call);
  std::unique_ptr<Assembly> assembly_;
};

}  // namespace ashlar::tiers
