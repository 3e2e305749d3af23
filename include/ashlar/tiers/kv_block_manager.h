// KvBlockManager: the blocks of a model over several tiers: G1 where they are computed, G2 in host memory, G3
// in files, G4 on volumes.
//
// One registry names the blocks of all tiers. Blocks that are registered in G1 may go down, by policy or by
// call; blocks that a request needs come up again. Each tier has a BlockManager of its own, which allocates,
// matches and evicts as ever; what this class adds is the bytes and the ways between them.
//
//   auto kv = KvBlockManager::create({.model = {…}, .g1 = {.blocks = 1024}, .g2 = TierShape{.blocks = 8192},
//                                     .g3 = DiskShape{.blocks = 100000, .paths = {"/data/g3"}}, .keys =
//                                     keys});
//   auto table = kv->onboard(hashes);            // the longest prefix that any tier has, in G1 now
//   auto fresh = kv->get_mutable_blocks(hashes.size() - table.size());
//   …compute the rest…
//   kv->register_blocks(std::move(complete));    // goes down as the policy says
//
// Thread safety: thread-safe. Takes no lock while blocks move.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/events/event_sink.h"
#include "ashlar/tiers/cost_model.h"
#include "ashlar/tiers/kv_metrics.h"
#include "ashlar/tiers/kv_options.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tiers/onboard_handle.h"
#include "ashlar/tiers/volume_pool.h"

namespace ashlar::tiers {

struct TierStatus {
  block::PoolStatus pool;
  std::uint64_t hits = 0;       // blocks asked for that this tier was the fastest to have
  std::uint64_t onboarded = 0;  // brought up from here
  std::uint64_t evictions = 0;
  std::uint64_t damaged = 0;
  std::uint64_t failed = 0;  // could not be read
};

struct KvStatus {
  TierStatus g1;
  std::optional<TierStatus> g2;
  std::optional<TierStatus> g3;
  std::optional<TierStatus> g4;
  std::array<std::uint64_t, kMisses> misses = {};  // by Miss
  std::optional<OffloadLaneCounters> to_g2;
  std::optional<OffloadLaneCounters> to_g3;
  std::optional<OffloadLaneCounters> to_g4;
  std::vector<VolumeStatus> volumes;

  std::uint64_t missed() const noexcept;
};

struct RegisterOptions {
  std::uint8_t priority = block::BlockRetention::kDefaultPriority;
  // Of the request that computed them. Zero: not known.
  SaltFingerprint salt = {};
  // The block before the first one. Those behind it follow each other, unless their positions say otherwise.
  std::optional<tokens::SequenceHash> parent = {};
  // See OffloadOptions.
  std::vector<block::Fence> after = {};
};

class KvBlockManager {
 public:
  using Registered = Result<block::BlockList<block::ImmutableBlock<events::G1>>,
                            Rejected<block::BlockList<block::CompleteBlock<events::G1>>>>;

  // Errors: those of the options, of the memory, of G3File::open(), of the volumes.
  static Result<std::unique_ptr<KvBlockManager>> create(KvOptions options);
  // What is on its way down to G2 and G3 arrives; what waits is given up, and so is what is on its way to a
  // volume: no volume is waited for. See shutdown(). Guards must be gone; handles may stay, and what has
  // arrived for one that nobody has waited for is given back.
  ~KvBlockManager();

  block::BlockManager<events::G1>& g1() noexcept;
  block::BlockManager<events::G2>* g2() noexcept;
  block::BlockManager<events::G3>* g3() noexcept;
  block::BlockManager<events::G4>* g4() noexcept;
  const block::BlockRegistry& registry() const noexcept;
  // The bytes of G1.
  const std::shared_ptr<const transfer::BlockSet>& g1_blocks() const noexcept;

  // ---- compute

  // Empty blocks of G1; all or nothing.
  [[nodiscard]] Result<block::BlockList<block::MutableBlock<events::G1>>, block::AllocationRefusal>
  get_mutable_blocks(std::size_t n);
  // As BlockManager::register_blocks(); what was registered is offered to the tier below. Errors: also
  // kInvalidArgument: neither none, one, nor as many preconditions as blocks; kCorruption: G1 has a block of
  // that name with another salt.
  Registered register_blocks(block::BlockList<block::CompleteBlock<events::G1>> blocks,
                             const RegisterOptions& options = {});

  // ---- down

  // Offers blocks of G1 to G2 now; offload_to() also those of G2 to G3 or G4. Errors: kUnsupported: there is
  // no such tier; kCancelled: after shutdown(); kInvalidArgument: the preconditions.
  Result<OffloadHandle> offload(std::span<const tokens::SequenceHash> hashes,
                                const OffloadOptions& options = {});
  Result<OffloadHandle> offload_to(events::TierId tier, std::span<const tokens::SequenceHash> hashes,
                                   const OffloadOptions& options = {});
  // Offers what is near eviction to the tiers below, where they are triggered by that. Calls of this class do
  // so by themselves; for those who allocate from g1().
  void look_ahead();
  // Waits until everything that is in a queue to go down is there; not for what waits for a precondition.
  // False when `until` came first.
  bool drain(std::optional<Clock::TimePoint> until = {});

  // ---- up

  // Which tiers have the longest prefix of `hashes`, from the fastest for each block, and what it costs to
  // bring them up. Counts no use. Volumes that have not answered when `until` comes are not waited for.
  std::vector<TierRun> find(std::span<const tokens::SequenceHash> hashes,
                            std::optional<Clock::TimePoint> until = {});
  // Brings the longest prefix that any tier has into G1, as far as there is room and it pays, and returns it,
  // in use. A block that cannot be read ends the prefix. Calls that want the same block wait for one copy of
  // it.
  OnboardTable onboard(std::span<const tokens::SequenceHash> hashes, const OnboardOptions& options = {});
  // The same, while the caller does something else. Errors: kCapacity: no thread.
  Result<OnboardHandle> onboard_async(std::span<const tokens::SequenceHash> hashes,
                                      const OnboardOptions& options = {});
  // They will be wanted soon: brings what is on disks and volumes into G2. The table of the handle stays
  // empty.
  Result<OnboardHandle> prefetch(std::span<const tokens::SequenceHash> hashes,
                                 const OnboardOptions& options = {});

  // ---- volumes

  // Attaches what the operator provisioned. Errors: kUnsupported: there is no G4; kAlreadyExists; those of
  // the backend.
  Result<void> register_volume(const VolumeDescriptor& descriptor, const VolumeUse& use = {});
  // Waits until nobody uses the volume, and forgets what it had; its objects stay as they are. When `until`
  // comes first, those who use it are told that it is gone. Returns how many blocks were forgotten. Errors:
  // kNotFound; kUnsupported: there is no G4.
  Result<std::size_t> unregister_volume(std::string_view name, std::optional<Clock::TimePoint> until = {});

  // ---- all

  // Evicts what nobody uses. What G3 holds and G4 knows is gone for good. Errors: kNotFound: no such tier;
  // kUnsupported: a volume that is only read; kIo, kUnavailable, kTimeout (of volumes, when `until` comes):
  // the rest is gone.
  Result<std::size_t> reset(events::TierId tier, std::optional<Clock::TimePoint> until = {});
  // Removes blocks from every tier, for good, after copies of them that are under way have ended; also from
  // files of G3 that are absent, as soon as they are back. Errors: as reset(); kTimeout also when `until`
  // came while others still brought some of them up: nothing was removed then, and the message says so.
  Result<void> reset_blocks(std::span<const tokens::SequenceHash> hashes,
                            std::optional<Clock::TimePoint> until = {});
  // Takes nothing new down, waits for what is in the queues, cancels onboard_async() and prefetch(). Errors:
  // kTimeout: with the number of blocks that were given up, because `until` came or their precondition has
  // not passed; what had arrived is safe.
  Result<void> shutdown(std::optional<Clock::TimePoint> until = {});

  KvStatus status() const;
  // Names for everything this manager counts, until the registrations are dropped; they go before the
  // manager.
  Result<std::vector<MetricRegistration>> add_metrics(MetricRegistry& metrics,
                                                      const KvMetrics::Labels& labels = {}) const;
  // Hands what the tiers have stored and removed to a sink, tier by tier. Returns the number of events.
  // Between attach_events() and detach_events() nothing: the events belong to that listener.
  std::size_t drain_events(events::EventSink& sink);
  // The tiers become sources of `events`, with the names of their files and volumes; beginning with what they
  // hold. Those of volumes that are registered later are told, too. detach_events() comes before the end of
  // either. Errors: kNotReady: no event_capacity; kAlreadyExists.
  Result<void> attach_events(events::EventManager& events);
  void detach_events();

 private:
  struct Assembly;
  explicit KvBlockManager(std::unique_ptr<Assembly> assembly);
  std::unique_ptr<Assembly> assembly_;
};

}  // namespace ashlar::tiers
