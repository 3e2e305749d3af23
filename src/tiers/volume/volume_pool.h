// VolumePool: G4, blocks as objects on operator-provisioned volumes.
//
// The blocks of its manager have no bytes here: each names the volume that holds the object of its hash. So
// presence, eviction and events work as in any tier. A block goes to one volume, chosen by its hash among the
// writable ones, and is read from the volume known to have it. Volumes may be shared with other processes:
// probe() asks them for unknown hashes, and an object found missing on read is forgotten.
//
// Where no volume has a block of this rank, objects of the ranks in Options::others may make one
// (other_shards.h). Such a block is known by its origin: the recipe and the volume of each part. Evicting it
// or finding a part damaged removes no object: they are other ranks'. remove_all() removes them too.
//
// Volume calls run on threads of the pool, with their own buffers. A caller stops waiting at its deadline or
// when cancelled, even if the volume hangs; the call continues until the volume returns (volume_calls.h).
//
// Thread safety: thread-safe. Holds no lock while it calls a volume.
// Invariant:     see check_invariants().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/managed_pool.h"
#include "tiers/volume/other_shards.h"
#include "tiers/volume/volume_object.h"

namespace ashlar::tiers {

class ObjectClaims;
class VolumeCalls;

class VolumePool final : public ManagedPool<events::G4, TierPool> {
 public:
  struct Options {
    // Describes the objects: shape of the blocks, namespace and hash scheme.
    VolumeObject shape = {};
    // True: evicting a block removes its object from the volume, unless another call is putting or probing
    // it. False: it is only forgotten here, and other processes may still read it.
    bool remove_evicted = false;
    bool read_back_after_write = false;
    // Objects of other ranks that may make a block of this one. Null: none.
    std::shared_ptr<const OtherShards> others = {};
    // How long an unreachable volume is left alone: no reads, no writes.
    Clock::Duration rest = {};
    // A volume call that takes longer is abandoned: kUnavailable. Zero: no limit.
    Clock::Duration call_limit = {};
    Clock* clock = nullptr;
  };
  // The manager outlives the pool.
  VolumePool(block::BlockManager<events::G4>& manager, const Options& options);
  // Does not wait for volumes.
  ~VolumePool() override;
  // Ends all volume calls and starts no more: waiting callers return.
  void stop();

  // Errors: kInvalidArgument: no name; kAlreadyExists: a volume of that name.
  Result<void> attach(std::string name, std::unique_ptr<Volume> volume, const VolumeUse& use = {});
  // Waits until no call uses the volume, and forgets its blocks; its objects stay. When `until` passes first,
  // its calls are abandoned and the waits of its users end. Returns how many blocks were forgotten. Errors:
  // kNotFound.
  Result<std::size_t> detach(std::string_view name, std::optional<Clock::TimePoint> until = {});
  std::vector<VolumeStatus> volumes() const;
  // Empty: no such volume is attached.
  std::string volume_name(std::uint16_t number) const;
  // Registers the counters of all volumes, those attached later included. One that is detached keeps its last
  // values, and continues them when a volume of its name is attached again. The pool outlives the
  // registrations. Errors: those of the registry.
  Result<void> add_metrics(MetricRegistry& metrics, const MetricLabels& labels,
                           std::vector<MetricRegistration>& out) const;
  // For tests: stops the process unless registered blocks, volumes and claims agree. O(blocks).
  // Requires: no other call runs.
  void check_invariants() const;

  events::StorageTier storage_tier() const noexcept override { return events::StorageTier::kExternal; }
  std::uint64_t block_bytes() const noexcept override { return options_.shape.payload_bytes; }
  // A block that was found by asking has its values in its object; one that was put here has a checksum.
  bool knows_values(const block::Hold& hold) const override { return records_.checksum(hold).has_value(); }
  // Removes the object too. Errors: kNotFound; as remove_all().
  Result<void> remove(const tokens::SequenceHash& hash) override;
  // The same for many, from every writable volume, whether or not the hashes are known there. Errors:
  // kUnsupported: a read-only volume has some; kUnavailable: also when an abandoned put is still in flight
  // and could bring the object back, or a volume is detached concurrently; those of the volumes and of the
  // limits. Objects that stay are still known; the rest are removed.
  Result<void> remove_all(std::span<const tokens::SequenceHash> hashes, const CallLimits& limits = {});

  // Asks the volumes for the leading `hashes` not known yet, until one is absent; `first` is what the caller
  // knows of them, for their records. Returns how many leading hashes are known now. `refused` is set
  // when the volumes have the next one in shards of other ranks that do not make one of this rank. Limits are
  // by the clock of the pool, here and below.
  std::size_t probe(std::span<const tokens::SequenceHash> hashes, const CallLimits& limits = {},
                    const BlockLineage& first = {}, std::optional<Error>* refused = nullptr);
  // Why the last block that volumes have in shards of other ranks could not be made from them; empty: none
  // was refused.
  std::string last_refusal() const;
  // Writes blocks of host memory to volumes. The holds are dropped on return. A deadline or a cancel ends it
  // at once; an object in flight then may or may not be present.
  MoveReport put(BytePool& from, std::vector<block::Hold> holds, const MoveOptions& options = {});
  // Reads blocks into host memory and verifies their checksums; a mismatching object is removed, unless
  // another call is putting or probing it.
  MoveReport get(std::span<const tokens::SequenceHash> hashes, BytePool& to, const MoveOptions& options = {});

 private:
  struct Attached;
  struct Counts {
    std::uint64_t put = 0;
    std::uint64_t got = 0;
    std::uint64_t failed = 0;

    void add(const Attached& volume);
  };
  class Use;
  class UseLimits;
  struct Images;
  struct Reading;
  template <class R>
  struct Pending;
  using Number = std::uint16_t;  // of a volume; never reused
  // Of a block: below kFirstOrigin, the volume with its object; else the number of an origin.
  using Place = std::uint32_t;
  static constexpr Place kFirstOrigin = Place{1} << 16;
  static constexpr std::size_t kReadThreads = 4;  // of one get()
  // A block that is made from objects of other ranks.
  struct Origin {
    std::shared_ptr<const OtherShards::Recipe> recipe;
    std::vector<Number> volumes;  // of its parts
  };
  struct Asking;
  struct OthersReading;

  // Over all volumes that ever had the name.
  std::map<std::string, Counts> counts_by_name() const;
  // A use of a volume that is not being detached; empty when it is, or is unknown.
  Use use(Number number);
  // Uses of all attached volumes, with their numbers.
  std::vector<std::pair<Number, Use>> use_all();
  // The place of a block. Does not count as a use: the eviction order is unchanged.
  std::optional<Place> where(const tokens::SequenceHash& hash);
  // The place of blocks with this origin; the same for equal origins.
  Place place_of(Origin origin);
  std::vector<Number> volumes_at(Place place) const;
  std::shared_ptr<const Origin> origin_at(Place place) const;
  bool is_on(Place place, Number number) const;
  void note_refusal(const Error& error);
  // Registers those leading hashes that some volume has. Returns why the volumes' objects of other ranks do
  // not make the next.
  std::optional<Error> ask(std::vector<TierRecord> wanted, const CallLimits& limits);
  // For each key, the first volume that has it. Object i is one of block names[i]; objects being removed
  // count as absent.
  std::vector<std::optional<Number>> holders(const Asking& asking, const std::vector<std::string>& keys,
                                             std::span<const tokens::SequenceHash> names);
  // Looks for objects of other ranks where `found` is empty. Returns why the first that stays empty cannot be
  // made from them.
  std::optional<Error> find_in_others(const Asking& asking, std::span<const tokens::SequenceHash> names,
                                      std::span<std::optional<Place>> found);
  // The keys of the objects from which a block of this rank can be had: its own first.
  std::vector<std::string> keys_of(const tokens::SequenceHash& hash) const;
  bool rests(const Attached& volume) const;
  void rest(Attached& volume, const Error& error) const;
  // Records a volume's error: the volume may have to rest.
  void note(Attached& volume, const Error& error) const;

  // A volume call: fn(volume, limits) answers `count` objects. It owns all it refers to.
  template <class R, class F>
  Pending<R> begin_call(const Use& volume, std::size_t count, const CallLimits& limits, F fn);
  // The answers; one error for all of them if the call was abandoned: that of the limits, or kUnavailable.
  template <class R>
  std::vector<R> finish_call(Pending<R>& pending, const CallLimits& limits);
  template <class R, class F>
  std::vector<R> call(const Use& volume, std::size_t count, const CallLimits& limits, F fn);
  std::vector<Result<void>> remove_keys(const Use& volume, std::vector<std::string> keys,
                                        const CallLimits& limits, std::shared_ptr<const void> claim);
  // Limits of a call that starts now, at most Options::call_limit.
  CallLimits bounded(const CallLimits& limits) const;
  // Why a call was abandoned.
  Error why_left(Attached& volume, const CallLimits& limits) const;
  // Whether an error comes from the caller's own limits.
  bool is_stop(const Error& error, const CallLimits& limits) const;
  // The volume for a block; empty when no volume is writable.
  std::optional<Number> choose(const tokens::SequenceHash& hash) const;
  VolumeObject object_of(const TierRecord& record) const;
  // Gives the record of a held block's object the values that were set here since it was written.
  void keep_values(const block::Hold& hold, TierRecord& read) const;
  // Reserves blocks of the manager; evicted ones are removed from their volumes if the options say so.
  Result<ReservedBlocks<events::G4>> take(std::size_t n, const CallLimits& limits);
  void remove_evicted(std::span<const std::pair<Number, tokens::SequenceHash>> evicted,
                      const CallLimits& limits);
  void publish(ReservedBlocks<events::G4>& taken, std::span<const TierRecord> records,
               std::span<const Place> places, MoveReport& report, std::span<const std::size_t> members);
  // False when the block is unknown, or at another place.
  bool forget(const tokens::SequenceHash& hash, Place place);
  void read(Reading& reading, std::span<const tokens::SequenceHash> hashes, std::span<block::Hold> holds,
            BytePool& to, MoveReport& report, const CallLimits& limits);
  void settle(Reading& reading, std::size_t i, std::span<const tokens::SequenceHash> hashes,
              std::span<block::Hold> holds, MoveReport& report, const CallLimits& limits);
  Result<void> inspect(const block::Hold& hold, std::span<const std::byte> header, BytePool& to,
                       block::BlockId id, TierRecord* out) const;
  // Blocks of one origin.
  void get_others(Place place, std::span<const std::size_t> members,
                  std::span<const tokens::SequenceHash> hashes, std::span<block::Hold> holds, BytePool& to,
                  MoveReport& report, const CallLimits& limits);
  void read_others(OthersReading& reading, std::size_t first, std::size_t end);
  void settle_others(OthersReading& reading, std::size_t i, MoveReport& report, const CallLimits& limits);
  Result<void> check_written(const Use& volume, const TierRecord& record, const BytePool& from,
                             const CallLimits& limits);

  const Options options_;
  Clock& clock_;
  std::vector<std::atomic<Place>> where_;  // by block; written by its owner before it is registered

  const std::shared_ptr<ObjectClaims> claims_;
  const std::unique_ptr<VolumeCalls> calls_;

  mutable Mutex mu_;
  CondVar unused_;
  std::vector<std::shared_ptr<Attached>> volumes_ ASHLAR_GUARDED_BY(mu_);  // by number; null: detached
  std::map<std::string, Counts> detached_ ASHLAR_GUARDED_BY(mu_);          // by name
  bool stopped_ ASHLAR_GUARDED_BY(mu_) = false;
  // By number, from kFirstOrigin on. As many as recipes and volumes were combined, which is few: a fleet
  // chooses volumes as this pool does.
  std::vector<std::shared_ptr<const Origin>> origins_ ASHLAR_GUARDED_BY(mu_);
  std::string last_refusal_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
