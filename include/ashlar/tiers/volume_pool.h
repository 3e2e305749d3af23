// VolumePool: G4, blocks as objects on volumes that operators provisioned.
//
// The blocks of its manager have no bytes here: each says which volume has the object of its hash. So presence, order of
// eviction and events are those of any tier. A block goes to one volume, chosen by its hash among those that take blocks; it is
// read from wherever it is known to be. Volumes may be shared with others: probe() asks them for names not known yet, and an
// object that is gone when it is read is forgotten.
//
// Bytes go straight between host memory and the volume where a block lies in canonical order; else through a buffer.
//
// Thread safety: thread-safe. Takes no lock while it talks to a volume.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/tiers/block_mover.h"
#include "ashlar/tiers/managed_pool.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_object.h"

namespace ashlar::tiers {

struct VolumeUse {
  bool write = true;  // blocks may go there, and be removed; else it is only read
};

// What a pool knows of a volume.
struct VolumeStatus {
  std::uint16_t number = 0;  // among those of its manager, for ever
  std::string name;
  std::string describes;
  bool write = true;
  std::size_t blocks = 0;  // known to be there
  std::uint64_t put = 0;
  std::uint64_t got = 0;
  std::uint64_t failed = 0;
};

class VolumePool final : public ManagedPool<events::G4, TierPool> {
 public:
  struct Options {
    // What objects hold: the shape of the blocks, their namespace and the scheme of their names.
    VolumeObject shape = {};
    // An object whose block is evicted here is removed from its volume; else it is only forgotten, and others may read it.
    bool remove_evicted = false;
    bool read_back_after_write = false;
    // A volume that could not be reached is left alone this long: it is asked for nothing and given nothing.
    Clock::Duration rest = {};
    Clock* clock = nullptr;
  };
  // The manager outlives the pool.
  VolumePool(block::BlockManager<events::G4>& manager, const Options& options);
  ~VolumePool() override;

  // Errors: kInvalidArgument: no name; kAlreadyExists: a volume of that name.
  Result<void> attach(std::string name, std::unique_ptr<Volume> volume, const VolumeUse& use = {});
  // Waits until nobody uses the volume, and forgets what it had; its objects stay as they are. Returns how many blocks were
  // forgotten. Errors: kNotFound.
  Result<std::size_t> detach(std::string_view name);
  std::vector<VolumeStatus> volumes() const;

  events::StorageTier storage_tier() const noexcept override { return events::StorageTier::kExternal; }
  std::uint64_t block_bytes() const noexcept override { return options_.shape.payload_bytes; }
  // Removes the object too. Errors: kNotFound; as remove_all().
  Result<void> remove(const tokens::SequenceHash& hash) override;
  // The same for many, from every volume that takes blocks, whether they are known to be there or not. Errors: kUnsupported: a
  // volume that is only read has some; those of the volumes. What stays where it was is still known; the rest is gone.
  Result<void> remove_all(std::span<const tokens::SequenceHash> hashes);

  // Asks the volumes for the first of `hashes` that are not known yet, until one is not there. Returns how many of the first
  // are known now.
  std::size_t probe(std::span<const tokens::SequenceHash> hashes);
  // Writes blocks of host memory to volumes. The holds are dropped when it returns. A deadline or a cancel makes it give up
  // between volumes.
  MoveReport put(BytePool& from, std::vector<block::Hold> holds, const MoveOptions& options = {});
  // Reads blocks into host memory and compares them with their checksums; one that does not agree is removed.
  MoveReport get(std::span<const tokens::SequenceHash> hashes, BytePool& to, const MoveOptions& options = {});

 private:
  struct Attached;
  class Use;
  struct Payload;
  struct Reading;
  using Number = std::uint16_t;  // of a volume; never given again

  // A use of a volume that is not being detached; empty when there is none.
  Use use(Number number);
  // Of all that are attached, with their numbers.
  std::vector<std::pair<Number, Use>> use_all();
  // The volume of a block. A look is no use: it leaves the order of eviction as it is.
  std::optional<Number> where(const tokens::SequenceHash& hash);
  // Registers the first of these names, as far as some volume has them.
  void ask(std::vector<tokens::SequenceHash> names);
  bool rests(const Attached& volume) const;
  // Something went wrong with a volume: it may have to rest.
  void note(Attached& volume, const Error& error) const;
  // Where a block goes. Nothing when no volume takes blocks.
  std::optional<Number> choose(const tokens::SequenceHash& hash) const;
  VolumeObject object_of(const BlockRecord& record) const;
  // Takes blocks of the manager; what had to go is removed from its volume, where that is wanted.
  Result<ReservedBlocks<events::G4>> take(std::size_t n);
  void publish(ReservedBlocks<events::G4>& taken, std::span<const BlockRecord> records,
               std::span<const Number> numbers, MoveReport& report, std::span<const std::size_t> places);
  // False where the block is not, or is on another volume.
  bool forget(const tokens::SequenceHash& hash, Number number);
  void read(Reading& reading, std::span<const tokens::SequenceHash> hashes, std::span<block::Hold> holds,
            BytePool& to, MoveReport& report);
  void settle(Reading& reading, std::size_t i, std::span<const tokens::SequenceHash> hashes,
              std::span<block::Hold> holds, MoveReport& report);
  Result<void> inspect(const block::Hold& hold, std::span<const std::byte> header, BytePool& to,
                       block::BlockId id, BlockRecord* out) const;
  Result<void> check_written(Volume& volume, const BlockRecord& record, const BytePool& from) const;

  const Options options_;
  Clock& clock_;
  std::vector<std::atomic<Number>> where_;  // by block; written by its owner before it is registered

  mutable Mutex mu_;
  CondVar unused_;
  std::vector<std::shared_ptr<Attached>> volumes_ ASHLAR_GUARDED_BY(mu_);  // by number; null: detached
};

}  // namespace ashlar::tiers
