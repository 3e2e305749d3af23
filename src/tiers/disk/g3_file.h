// G3File: a file of blocks that survives a restart.
//
// The file has a superblock, a table with one header per block, and the blocks. A header says what its block
// holds, and has a checksum of its own; a header that does not check out means an empty block. Restarting
// reads the superblock and the table, never the blocks. A file belongs to one rank of one model, and so does
// each header. docs/formats/g3_file.md has every byte.
//
//   put a block:  invalidate(slot)   clears the old header before the first new byte overwrites the old block
//                 … copy the bytes …
//                 commit(slot, …)    writes the new header after the bytes have reached the device
//
// So at every moment, and after every crash, a valid header has exactly its bytes below it.
//
// The file also keeps a log of what was removed from G3, for other files of it that are absent
// (removal_log.h).
//
// Thread safety: thread-safe, as long as no slot is in two calls at once, nor a log; several may invalidate
// one slot.
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
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"
#include "tiers/disk/removal_log.h"

namespace ashlar::tiers {

// What a block of the file holds.
struct G3Header {
  tokens::SequenceHash hash = {};
  tokens::SequenceHash parent = {};        // zero for the first block of a sequence, or when it is not known
  tokens::NamespaceFingerprint salt = {};  // 128 bits over LoRA name and tenant; zero when they are not known
  transfer::BlockChecksum checksum = {};
  std::uint64_t generation = 0;  // grows with every commit; given by the file where it is 0
  bool has_parent = false;

  friend bool operator==(const G3Header&, const G3Header&) = default;
};

struct G3Options {
  std::string path;
  // Shapes of the planes, with the rank they belong to; all with the same number of blocks, which is the
  // capacity of the file.
  std::vector<transfer::PlaneShape> planes;
  tokens::NamespaceFingerprint keys = {};  // of the namespace: model, dtype, layout, block size
  std::uint64_t scheme_fingerprint = 0;    // of the hash scheme
  storage::DirectIo direct = storage::DirectIo::kIfPossible;
  // False: writes are ordered against the death of the process, not against a power failure; faster where
  // syncs cost.
  bool survive_power_loss = true;
  std::shared_ptr<storage::IoFaults> faults = {};

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

class G3File {
 public:
  static constexpr std::uint64_t kHeaderBytes = 128;

  struct Entry {
    std::uint32_t slot = 0;
    G3Header header;

    friend bool operator==(const Entry&, const Entry&) = default;
  };

  // Opens the file, or makes it where there is none. Errors: kAlreadyExists: something else is there (no
  // superblock of ours), which is left alone; kCorruption: a superblock that was damaged; kUnsupported:
  // another version; kInvalidArgument: another layout, namespace, hash scheme or rank, saying which;
  // kCapacity and kIo as DiskStorage.
  static Result<std::unique_ptr<G3File>> open(G3Options options);

  // What was in the file when it was opened, each hash once.
  const std::vector<Entry>& restored() const noexcept { return restored_; }
  void forget_restored() noexcept { restored_ = {}; }
  // The log that was in the file when it was opened.
  const RemovalLog& removals() const noexcept { return removals_; }
  // Brings a file that was absent up to date, before anybody uses it: what it has missed is invalidated, then
  // the log is written. Errors: kIo.
  Result<void> catch_up(const RemovalLog& log);

  std::uint32_t capacity() const noexcept { return set_->block_count(); }
  const std::shared_ptr<const transfer::BlockSet>& blocks() const noexcept { return set_; }
  const std::string& path() const noexcept { return options_.path; }

  // Whether a restart might find something in the slot.
  bool may_be_valid(std::uint32_t slot) const noexcept { return valid_[slot]; }
  // The slots hold nothing from now on, also after a restart. Slots that were empty cost nothing. `log`, if
  // given, is written with the same sync. Errors: kIo.
  Result<void> invalidate(std::span<const std::uint32_t> slots, const RemovalLog* log = nullptr);
  // See DiskStorage: taken before the bytes of blocks are written, and given to commit().
  std::uint64_t failed_syncs() const noexcept { return storage_->failed_syncs(); }
  // The bytes of these slots have been written since failed_syncs() was `before`: syncs them, then writes the
  // headers, then syncs those. Errors: kIo; then none of the slots may be taken for valid, and they must be
  // invalidated before they are used again.
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
  std::uint64_t removals_serial_ = 0;  // of the copy that is on the device; copies take turns
  std::atomic<std::uint64_t> generation_{0};
  std::vector<std::atomic<bool>> valid_;  // by slot: its header on disk may be valid
};

}  // namespace ashlar::tiers
