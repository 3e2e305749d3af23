// DiskPool: G3, a tier in files that survive restarts (g3_file.h).
//
// Blocks are striped over the files, each on its own device: block b lies in file b mod n. A failing device
// loses only its own blocks: one that cannot be written to gets no blocks for a while, one that cannot be
// read is a miss. Removals missed by an absent device are logged in the other files and applied to its file
// when it returns.
//
// Thread safety: thread-safe.
// Invariant:     a registered block lies in a present file, whose header for it is valid.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "ashlar/base/mutex.h"
#include "tiers/disk/g3_file.h"
#include "tiers/pool/managed_pool.h"

namespace ashlar::tiers {

class DiskPool final : public ManagedPool<events::G3, BytePool> {
 public:
  // How many of `blocks` lie in file `part` of `parts`.
  static std::uint32_t share(std::uint32_t blocks, std::size_t part, std::size_t parts) noexcept {
    return static_cast<std::uint32_t>((blocks + parts - 1 - part) / parts);
  }

  struct Options {
    // How long the blocks of a device are withheld after a failed write.
    Clock::Duration rest = std::chrono::seconds(30);
    Clock* clock = nullptr;
  };
  // Registers the blocks found in the files; the manager is empty, has as many blocks, and outlives the pool.
  // A null file stands for a failed device: its blocks are left out. So are those of a file that missed
  // removals and cannot be written to. Errors: kInvalidArgument: no file, a wrong number of blocks, or blocks
  // in use; those of G3File::invalidate() for blocks that cannot be registered.
  static Result<std::unique_ptr<DiskPool>> create(block::BlockManager<events::G3>& manager,
                                                  std::vector<std::unique_ptr<G3File>> files,
                                                  const Options& options);
  static Result<std::unique_ptr<DiskPool>> create(block::BlockManager<events::G3>& manager,
                                                  std::unique_ptr<G3File> file);

  events::StorageTier storage_tier() const noexcept override { return events::StorageTier::kDisk; }
  const std::shared_ptr<const transfer::BlockSet>& blocks(std::uint32_t part = 0) const noexcept override {
    return files_[part]->blocks();
  }
  Place place(block::BlockId id) const noexcept override {
    const auto parts = static_cast<std::uint32_t>(files_.size());
    return {id.value() % parts, id.value() / parts};
  }
  Result<std::unique_ptr<Reservation>> reserve(std::size_t n) override;
  Result<void> remove(const tokens::SequenceHash& hash) override;
  // The same for many, with one sync per file. Hashes not present are no error, and are removed from absent
  // files too. Errors: kIo: the other blocks are removed.
  Result<void> remove_all(std::span<const tokens::SequenceHash> hashes);
  // Writes their headers again. Syncs.
  Result<void> save_values(std::span<const tokens::SequenceHash> hashes) override;
  // Removes all blocks, including those in absent files. Returns how many were present.
  Result<std::size_t> remove_everything();
  std::uint64_t block_bytes() const noexcept override { return block_bytes_; }

  std::size_t restored() const noexcept { return restored_; }
  // Free blocks withheld because their device cannot be written to.
  std::size_t resting() const;
  // For tests: stops the process unless registered, resting and stale blocks agree with the files. O(blocks).
  // Requires: no other call runs, and no block of the tier is in use.
  void check_invariants() const;

 private:
  class Reserved;
  using Blocks = block::BlockList<block::MutableBlock<events::G3>>;

  DiskPool(block::BlockManager<events::G3>& manager, std::vector<std::unique_ptr<G3File>> files,
           const Options& options);
  Result<void> restore();
  Result<void> remove_from_files(std::span<const tokens::SequenceHash> hashes, bool everything);
  // Withholds the blocks of a device after a failed write. A sole device is retried every time.
  void rest(std::uint32_t part, const Error& why);
  bool is_resting(std::size_t part) const;
  // Clears the headers of the taken blocks on disk, file by file. Blocks of a file that is resting or cannot
  // be written to are set aside. Errors: kIo: no taken block is left.
  Result<void> clear(Blocks& taken);
  void wake_rested();
  // Sets aside a block whose header could not be cleared, or was written but must not be relied on: after a
  // restart its hash would be found. The block is not handed out until its header is cleared.
  void set_aside(const tokens::SequenceHash& hash, block::MutableBlock<events::G3> block);
  // Retries clearing such headers: of these hashes, or of all on devices that are not resting. Errors: kIo:
  // some remain.
  Result<void> clear_stale(std::span<const tokens::SequenceHash> hashes);
  // The records that the caller must register, until release(); the others are empty.
  std::vector<TierRecord> claim(std::span<const TierRecord> records);
  void release(std::span<const TierRecord> claimed);
  bool is_arriving(const tokens::SequenceHash& hash) const;

  const Options options_;
  Clock& clock_;
  const std::vector<std::unique_ptr<G3File>> files_;
  std::uint64_t block_bytes_ = 0;
  std::size_t restored_ = 0;
  std::atomic<std::uint64_t> generation_{0};  // of all files together

  // Before the locks below. Held from the eviction of blocks until their headers are cleared, and while
  // blocks are removed: a removal sees every header that a restart would find.
  Mutex evict_mu_;
  std::uint64_t session_ = 0;
  Mutex removals_mu_;  // held while headers are cleared and logs are written
  RemovalLog removals_ ASHLAR_GUARDED_BY(removals_mu_);

  mutable Mutex mu_;
  // By file: blocks withheld until then.
  struct Resting {
    Clock::TimePoint until = {};
    Blocks blocks = {};
  };
  std::vector<Resting> resting_ ASHLAR_GUARDED_BY(mu_);

  struct Stale {
    tokens::SequenceHash hash;
    block::MutableBlock<events::G3> block;
  };
  mutable Mutex stale_mu_;  // before mu_; held while headers are cleared
  std::vector<Stale> stale_ ASHLAR_GUARDED_BY(stale_mu_);
  std::unordered_set<tokens::SequenceHash> arriving_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
