// HostStore: G2 and the tiers below it, for an engine that keeps G1 itself and copies between G1 and G2 with
// workers of its own, in other processes.
//
// The engine's scheduler asks for each block of a request; its workers copy the blocks that were promised. A
// copy by a worker cannot fail, so a promise is kept by construction: kHit is answered only for a block that
// is complete in G2, has the digest that was asked for, and is pinned by the request until it ends. What is
// on a slower tier is kPending or kUnknown while it is brought up and checked, and then a hit or a miss. A
// block is written into a slot that nobody can find, and is found when the worker has reported its end.
//
//   auto store = HostStore::create(*kv, {}).value();
//   const auto request = store->begin_request();
//   while (store->lookup(request, block) == HostAnswer::kPending) store->fetch_asked(), …one step…;
//   auto load = store->begin_load(request, blocks).value();   // a worker copies load.slots
//   store->end_job(load.job, true);
//   store->end_request(request);
//
// forget_all() makes every block that was stored before unreachable, wherever a copy of it is: names and
// digests are tied to an epoch that nobody else has.
//
// Thread safety: thread-safe. No call but forget_all() waits for a disk, and none for a volume or a peer.
// Complexity:    lookup() is one look-up in G2, and one in the tiers below it for what is not there.
// Invariant:     a slot of a job is neither evicted nor given to another job before end_job().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/base/strong_id.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/events/tier.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

// A block as an engine names it. Two blocks of one hash and different digests are different blocks.
struct HostBlock {
  tokens::SequenceHash hash;
  tokens::PrefixDigest prefix;
};

enum class HostAnswer : std::uint8_t {
  kMiss,
  kHit,      // in G2, and pinned by the request
  kPending,  // some tier has it, or it is being stored: ask again
  kUnknown,  // volumes or peers are being asked: ask again
};
std::string_view to_string(HostAnswer answer) noexcept;

struct HostStoreOptions {
  // How long a request waits for blocks of slower tiers, all in all; then they are misses.
  Clock::Duration fetch_limit = std::chrono::seconds(30);
  // How fast the engine computes, in blocks: those that take longer to bring up are misses. Empty: none is.
  std::optional<double> compute_blocks_per_second = {};
  // Stores that may be under way, with loads, before further stores are refused.
  std::size_t max_jobs = 16384;
};

// What has happened so far, in blocks.
struct HostStoreCounters {
  std::uint64_t hits_host = 0;  // first answers, by the tier that had the block when it was asked for
  std::uint64_t hits_disk = 0;
  std::uint64_t hits_volume = 0;
  std::uint64_t hits_peer = 0;
  std::uint64_t misses = 0;
  std::uint64_t late = 0;  // of the misses: fetch_limit passed
  std::uint64_t stored = 0;
  std::uint64_t loaded = 0;
  std::uint64_t not_stored = 0;  // no room in G2
  std::uint64_t collided = 0;    // G2 has the hash with another digest
  std::uint64_t damaged = 0;     // of loads that were not done
  std::uint64_t abandoned = 0;   // of jobs that were under way during forget_all()
};

class HostStore {
 public:
  using RequestId = StrongId<struct HostRequestTag, std::uint64_t>;
  using JobId = StrongId<struct HostJobTag, std::uint64_t>;

  // Slots of G2 that a worker is to fill or read.
  struct Job {
    JobId job;
    std::vector<std::size_t> chosen;    // of the blocks that were given, those to copy
    std::vector<block::BlockId> slots;  // one for each chosen block
    // Of a load: the mark() of each block's store. A worker that keeps checksums of what it stored keeps the
    // mark beside them; where the slot was filled from another tier since, its mark is not the block's.
    std::vector<std::uint32_t> writers;
  };

  // Tells apart what a slot was given: never the same of two slots in one job, or of two jobs in one slot,
  // as far as 32 bits tell jobs apart.
  static std::uint32_t mark(JobId job, block::BlockId slot) noexcept;

  // The manager must outlive the store. Errors: kInvalidArgument: it has no G2; the options.
  static Result<std::unique_ptr<HostStore>> create(KvBlockManager& kv, const HostStoreOptions& options);
  // Gives back all slots: workers must have stopped.
  ~HostStore();

  // ---- requests

  RequestId begin_request();
  // Ends its pins, for a request that loads nothing more.
  void drop_pins(RequestId request);
  // The same, and forgets it. Jobs go on.
  void end_request(RequestId request);

  // A request that is not known gets kMiss.
  HostAnswer lookup(RequestId request, const HostBlock& block);
  // The tier that had a block when the request first asked for it; nullopt: no hit.
  std::optional<events::TierId> source(RequestId request, const tokens::SequenceHash& hash) const;
  // Begins to bring up what lookup() was asked for since the last call. Once per step of the engine.
  void fetch_asked();
  // Whether blocks are being brought up for a request.
  bool fetching() const;
  // The name under which the tiers have a block, for events and hints: another one after forget_all().
  tokens::SequenceHash name(const tokens::SequenceHash& hash) const;
  // Counts as a use of those that are in G2.
  void touch(std::span<const tokens::SequenceHash> hashes);

  // ---- jobs

  // Slots for the blocks that are not in G2 and are not being stored, the first ones first where room is
  // short. Nothing to do: a job without slots, which needs no end. Errors: kCapacity: max_jobs.
  Result<Job> begin_store(std::span<const HostBlock> blocks);
  // The slots of blocks that were hits of the request; its other pins end. Errors: kNotFound: one is not in
  // G2.
  Result<Job> begin_load(RequestId request, std::span<const HostBlock> blocks);
  // The worker has ended: stored blocks are found from now on if `done`, loaded ones may be evicted again. A
  // load that is not `done` found damage: G2 drops its blocks.
  // Errors: kNotFound: no such job.
  Result<void> end_job(JobId job, bool done);
  std::size_t jobs() const;

  // ---- all

  // Forgets every block: those of G2 and G3 are removed, those on volumes and of peers cannot be found by
  // this store any more. Jobs that are under way still need their end, and store nothing. Errors: kIo: G3.
  Result<void> forget_all();

  HostStoreCounters counters() const;

 private:
  struct State;
  explicit HostStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::tiers
