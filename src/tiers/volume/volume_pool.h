// VolumePool: G4, blocks as objects on volumes that operators provisioned.
//
// The blocks of its manager have no bytes here: each names the volume that holds the object of its hash. So
// presence, eviction and events work as in any tier. A block goes to one volume, chosen by its hash among the
// writable ones, and is read from the volume that is known to have it. Volumes may be shared with other
// processes: probe() asks them for unknown hashes, and an object that is gone when it is read is forgotten.
//
// Calls of volumes run on threads of the pool, with buffers of their own. A caller stops waiting at its
// deadline or when it is cancelled, whatever the volume does; the call runs on until the volume returns
// (volume_calls.h).
//
// Thread safety: thread-safe. Holds no lock while it calls a volume.
// Invariant:     see check_invariants().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/managed_pool.h"
#include "tiers/volume/volume_object.h"

namespace ashlar::tiers {

class ObjectClaims;
class VolumeCalls;

class VolumePool final : public ManagedPool<events::G4, TierPool> {
 public:
  struct Options {
    // What objects hold: the shape of the blocks, their namespace and the scheme of their names.
    VolumeObject shape = {};
    // An object whose block is evicted here is removed from its volume, unless somebody puts it or asks for
    // it just then; else it is only forgotten, and others may read it.
    bool remove_evicted = false;
    bool read_back_after_write = false;
    // A volume that could not be reached is left alone this long: it is asked for nothing and given nothing.
    Clock::Duration rest = {};
    // A call of a volume that takes longer is left: kUnavailable. Zero: none is.
    Clock::Duration call_limit = {};
    Clock* clock = nullptr;
  };
  // The manager outlives the pool.
  VolumePool(block::BlockManager<events::G4>& manager, const Options& options);
  // Waits for no volume.
  ~VolumePool() override;
  // Ends all calls of volumes and begins none any more: whoever waits for one returns.
  void stop();

  // Errors: kInvalidArgument: no name; kAlreadyExists: a volume of that name.
  Result<void> attach(std::string name, std::unique_ptr<Volume> volume, const VolumeUse& use = {});
  // Waits until nobody uses the volume, and forgets what it had; its objects stay as they are. When `until`
  // comes first, calls of the volume are left, and waits of those who use it end. Returns how many blocks
  // were forgotten. Errors: kNotFound.
  Result<std::size_t> detach(std::string_view name, std::optional<Clock::TimePoint> until = {});
  std::vector<VolumeStatus> volumes() const;
  // For tests: stops the process unless registered blocks, volumes and claims agree. O(blocks).
  // Requires: no other call runs.
  void check_invariants() const;

  events::StorageTier storage_tier() const noexcept override { return events::StorageTier::kExternal; }
  std::uint64_t block_bytes() const noexcept override { return options_.shape.payload_bytes; }
  // Removes the object too. Errors: kNotFound; as remove_all().
  Result<void> remove(const tokens::SequenceHash& hash) override;
  // The same for many, from every volume that takes blocks, whether they are known to be there or not.
  // Errors: kUnsupported: a volume that is only read has some; kUnavailable: also where a put that was left
  // is still under way, and could bring the object back, and where a volume is detached meanwhile; those of
  // the volumes and of the limits. What stays where it was is still known; the rest is gone.
  Result<void> remove_all(std::span<const tokens::SequenceHash> hashes, const CallLimits& limits = {});

  // Asks the volumes for the first of `hashes` that are not known yet, until one is not there. Returns how
  // many of the first are known now. Limits are by the clock of the pool, here and below.
  std::size_t probe(std::span<const tokens::SequenceHash> hashes, const CallLimits& limits = {});
  // Writes blocks of host memory to volumes. The holds are dropped when it returns. A deadline or a cancel
  // ends it at once; an object that was on its way then may be there or not.
  MoveReport put(BytePool& from, std::vector<block::Hold> holds, const MoveOptions& options = {});
  // Reads blocks into host memory and compares them with their checksums; one that does not agree is removed,
  // unless somebody puts it or asks for it just then.
  MoveReport get(std::span<const tokens::SequenceHash> hashes, BytePool& to, const MoveOptions& options = {});

 private:
  struct Attached;
  class Use;
  class UseLimits;
  struct Images;
  struct Reading;
  template <class R>
  struct Pending;
  using Number = std::uint16_t;  // of a volume; never given again

  // A use of a volume that is not being detached; empty when there is none.
  Use use(Number number);
  // Of all that are attached, with their numbers.
  std::vector<std::pair<Number, Use>> use_all();
  // The volume of a block. A look is no use: it leaves the order of eviction as it is.
  std::optional<Number> where(const tokens::SequenceHash& hash);
  // Registers the first of these names, as far as some volume has them.
  void ask(std::vector<tokens::SequenceHash> names, const CallLimits& limits);
  bool rests(const Attached& volume) const;
  void rest(Attached& volume, const Error& error) const;
  // Something went wrong with a volume: it may have to rest.
  void note(Attached& volume, const Error& error) const;

  // A call of a volume: fn(volume, limits) answers `count` objects. It owns all it refers to.
  template <class R, class F>
  Pending<R> begin_call(const Use& volume, std::size_t count, const CallLimits& limits, F fn);
  // The answers; one error for all of them where the call was left: that of the limits, or kUnavailable.
  template <class R>
  std::vector<R> finish_call(Pending<R>& pending, const CallLimits& limits);
  template <class R, class F>
  std::vector<R> call(const Use& volume, std::size_t count, const CallLimits& limits, F fn);
  std::vector<Result<void>> remove_keys(const Use& volume, std::vector<std::string> keys,
                                        const CallLimits& limits, std::shared_ptr<const void> claim);
  // Of a call that begins now: no longer than Options::call_limit.
  CallLimits bounded(const CallLimits& limits) const;
  // Why a call was left.
  Error why_left(Attached& volume, const CallLimits& limits) const;
  // Whether an error is that of the caller's own limits.
  bool is_stop(const Error& error, const CallLimits& limits) const;
  // Where a block goes. Nothing when no volume takes blocks.
  std::optional<Number> choose(const tokens::SequenceHash& hash) const;
  VolumeObject object_of(const TierRecord& record) const;
  // Takes blocks of the manager; what had to go is removed from its volume, where that is wanted.
  Result<ReservedBlocks<events::G4>> take(std::size_t n, const CallLimits& limits);
  void remove_evicted(std::span<const std::pair<Number, tokens::SequenceHash>> evicted,
                      const CallLimits& limits);
  void publish(ReservedBlocks<events::G4>& taken, std::span<const TierRecord> records,
               std::span<const Number> numbers, MoveReport& report, std::span<const std::size_t> places);
  // False where the block is not, or is on another volume.
  bool forget(const tokens::SequenceHash& hash, Number number);
  void read(Reading& reading, std::span<const tokens::SequenceHash> hashes, std::span<block::Hold> holds,
            BytePool& to, MoveReport& report, const CallLimits& limits);
  void settle(Reading& reading, std::size_t i, std::span<const tokens::SequenceHash> hashes,
              std::span<block::Hold> holds, MoveReport& report, const CallLimits& limits);
  Result<void> inspect(const block::Hold& hold, std::span<const std::byte> header, BytePool& to,
                       block::BlockId id, TierRecord* out) const;
  Result<void> check_written(const Use& volume, const TierRecord& record, const BytePool& from,
                             const CallLimits& limits);

  const Options options_;
  Clock& clock_;
  std::vector<std::atomic<Number>> where_;  // by block; written by its owner before it is registered

  const std::shared_ptr<ObjectClaims> claims_;
  const std::unique_ptr<VolumeCalls> calls_;

  mutable Mutex mu_;
  CondVar unused_;
  std::vector<std::shared_ptr<Attached>> volumes_ ASHLAR_GUARDED_BY(mu_);  // by number; null: detached
  bool stopped_ ASHLAR_GUARDED_BY(mu_) = false;
};

}  // namespace ashlar::tiers
