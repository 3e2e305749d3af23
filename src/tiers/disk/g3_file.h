// G3File: a file of blocks that survives a restart.
//
// The file has a superblock, a table with one header per block, and the blocks. A header describes its block
// and carries its own checksum; a header that fails its checksum means an empty block. A restart reads the
// superblock and the table, never the blocks. A file, and each header, belongs to one rank of one model.
// docs/formats/g3_file.md specifies every byte.
//
//   put a block:  invalidate(slot)   clears the old header before the first new byte overwrites the old block
//                 … copy the bytes …
//                 commit(slot, …)    writes the new header after the bytes have reached the device
//
// So at every moment, and after every crash, a valid header has exactly its bytes below it.
//
// The file also keeps a log of removals from G3, for G3 files that are absent (removal_log.h).
//
// Thread safety: thread-safe, as long as no slot and no log is in two calls at once; several calls may
// invalidate one slot.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout.h"
#include "ashlar/storage/disk_storage.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_set.h"
#include "tiers/disk/g3_format.h"
#include "tiers/disk/removal_log.h"

namespace ashlar::tiers {

struct G3Options {
  std::string path;
  // Shapes of the planes, with the rank they belong to; all with the same number of blocks, which is the
  // capacity of the file.
  std::vector<transfer::PlaneShape> planes;
  tokens::NamespaceFingerprint keys = {};  // of the namespace: model, dtype, layout, block size
  std::uint64_t scheme_fingerprint = 0;    // of the hash scheme
  std::uint64_t prefix_key = 0;            // fingerprint of the key of prefix digests
  storage::DirectIo direct = storage::DirectIo::kIfPossible;
  // False: writes survive a process crash but not a power failure; faster where syncs are slow.
  bool survive_power_loss = true;
  std::shared_ptr<storage::IoFaults> faults = {};

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

class G3File {
 public:
  static constexpr std::uint64_t kHeaderBytes = kG3HeaderBytes;

  struct Entry {
    std::uint32_t slot = 0;
    G3Header header;

    friend bool operator==(const Entry&, const Entry&) = default;
  };

  // Opens the file, or creates it. Errors: kAlreadyExists: the path holds another kind of file (without our
  // superblock), which is left alone; kCorruption: damaged superblock; kUnsupported: another version;
  // kInvalidArgument: another layout, block count, namespace, hash scheme, prefix key or rank, named in the
  // text;
  // kNotFound: the folder; kCapacity and kIo as DiskStorage.
  static Result<std::unique_ptr<G3File>> open(G3Options options);

  // The blocks found when the file was opened, each hash once.
  const std::vector<Entry>& restored() const noexcept { return restored_; }
  void forget_restored() noexcept { restored_ = {}; }
  // The log found when the file was opened.
  const RemovalLog& removals() const noexcept { return removals_; }
  // Brings a file that was absent up to date, before its first use: invalidates the blocks it missed, then
  // writes the log. Errors: kIo.
  Result<void> catch_up(const RemovalLog& log);

  std::uint32_t capacity() const noexcept { return set_->block_count(); }
  const std::shared_ptr<const transfer::BlockSet>& blocks() const noexcept { return set_; }
  const std::string& path() const noexcept { return options_.path; }

  // Whether a restart might find a block in the slot.
  bool may_be_valid(std::uint32_t slot) const noexcept { return valid_[slot]; }
  // Empties the slots, durably. Slots already empty cost nothing. `log`, if given, is written with the same
  // sync. Errors: kIo.
  Result<void> invalidate(std::span<const std::uint32_t> slots, const RemovalLog* log = nullptr);
  // See DiskStorage: read it before writing the bytes of blocks, and pass it to commit().
  std::uint64_t failed_syncs() const noexcept { return storage_->failed_syncs(); }
  // Requires: the bytes of these slots were written after failed_syncs() returned `before`. Syncs the bytes,
  // writes the headers, then syncs those. Errors: kIo: no slot may be treated as valid; invalidate them
  // before reuse.
  Result<void> commit(std::span<const Entry> entries, std::uint64_t before);

 private:
  G3File(G3Options options, std::shared_ptr<storage::DiskStorage> storage, std::uint64_t table_offset,
         std::shared_ptr<const transfer::BlockSet> set);
  Result<void> read(const char* what, std::uint64_t offset, std::span<std::byte> into) const;
  Result<void> read_removals();
  Result<void> write_removals(const RemovalLog& log) const;
  Result<void> read_table();
  using HeaderBytes = std::array<std::byte, kHeaderBytes>;
  Result<void> write_headers(std::vector<std::pair<std::uint32_t, HeaderBytes>> headers);
  Result<void> sync(std::uint64_t before) const;

  G3Options options_;
  std::shared_ptr<storage::DiskStorage> storage_;
  std::uint64_t table_offset_;
  std::shared_ptr<const transfer::BlockSet> set_;
  std::vector<Entry> restored_;
  RemovalLog removals_;
  std::uint64_t removals_serial_ = 0;  // of the copy on the device; copies alternate
  std::atomic<std::uint64_t> generation_{0};
  std::vector<std::atomic<bool>> valid_;  // by slot: its header on disk may be valid
};

}  // namespace ashlar::tiers
