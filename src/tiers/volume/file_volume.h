// FileVolume: one file or raw block device set aside by an operator: objects in slots of one size.
//
// The operator creates the file at its final size and calls provision_file_volume() once. attach() opens
// what was provisioned and never formats anything. A superblock has the number and size of the slots; a
// table has one header per slot, with the key and a checksum of its object. docs/formats/file_volume.md
// specifies every byte.
//
//   put:      bytes into a slot whose header is cleared · sync · header · sync
//   replace:  put into another slot, with a larger generation · clear the old header · sync
//   remove:   clear the header · sync; the slot may be used again after that
//
// A batch shares its syncs. After a crash of the process or a power failure each object is whole or absent;
// of two headers with one key the larger generation counts. A restart reads the table. get() verifies the
// checksum.
//
// Call limits are checked between objects: disk operations on one cannot be interrupted.
//
// Options: sync (true: an object survives a power failure when put() returns, a removal when remove() does).
//
// Thread safety: thread-safe; one process, and in it one volume, has the file at a time. Reads do not wait
//                for writes.
// Complexity:    memory for every key, and 12 bytes per slot. An object of any size takes a slot.
// Invariant:     a valid header on disk has its bytes in its slot.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/disk_storage.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::tiers {

struct FileVolumeOptions {
  std::string path;
  bool sync = true;
  std::shared_ptr<storage::IoFaults> faults = {};
};

class FileVolume final : public Volume {
 public:
  static constexpr std::size_t kLongestKey = 192;

  // Errors: kNotFound; kInvalidArgument: an option, or not provisioned; kCorruption: a damaged superblock or
  // a truncated file; kUnsupported: a newer version; kNotReady: another process or volume has it; kIo. Writes
  // nothing.
  static Result<std::unique_ptr<Volume>> attach(const VolumeDescriptor& descriptor);
  static Result<std::unique_ptr<FileVolume>> open(FileVolumeOptions options);

  const FileVolumeShape& shape() const noexcept { return shape_; }
  // Slots available to new objects.
  std::uint64_t free_slots() const;

  std::string describe() const override { return "file " + options_.path; }
  // Errors besides those of every volume: kInvalidArgument: a key of more than kLongestKey characters;
  // kCapacity: larger than a slot. After an error the object is absent or unchanged; if the headers could not
  // be synced it may be present, whole, after a restart.
  std::vector<Result<void>> put(std::span<const ObjectWrite> objects, const CallLimits& limits = {}) override;
  // kCorruption also when the bytes do not match their checksum.
  std::vector<Result<void>> get(std::span<const ObjectRead> objects, const CallLimits& limits = {}) override;
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const CallLimits& limits = {}) override;
  // After an error the object may or may not be present, also after a restart; repeat the call.
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const CallLimits& limits = {}) override;

 private:
  struct Entry {
    std::uint32_t slot = 0;
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;
  };
  struct Slot {
    std::uint32_t readers = 0;
    bool leaving = false;  // freed when its last reader leaves
  };
  // A slot without an owner whose header on disk may still be valid.
  struct Uncleared {
    std::uint32_t slot = 0;
    std::string key;
    Result<void> cleared = {};  // the last attempt
  };
  // An object whose bytes are in their slot but whose header is not written.
  struct Written {
    std::size_t object = 0;
    Entry entry;
  };
  struct KeyHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const noexcept { return std::hash<std::string_view>{}(key); }
  };

  FileVolume(FileVolumeOptions options, std::shared_ptr<storage::DiskStorage> storage,
             const FileVolumeShape& shape, std::uint64_t first_slot);
  Result<void> read_table();
  Result<void> check_key(std::string_view key) const;
  std::uint64_t place_of(std::uint32_t slot) const noexcept { return first_slot_ + slot * shape_.slot_bytes; }
  Result<void> write_header(std::uint32_t slot, std::span<const std::byte> bytes) const;
  // As DiskStorage::sync(), if enabled in the options.
  Result<void> sync(std::uint64_t before) const;

  Result<Entry> write_bytes(const ObjectWrite& object);
  Result<std::uint32_t> take_slot(const ObjectWrite& object);
  void commit(std::span<const ObjectWrite> objects, std::span<const Written> written,
              std::span<Result<void>> results);
  void clear() ASHLAR_REQUIRES(table_mu_);
  Result<void> get_one(const ObjectRead& object);
  void free_slot(std::uint32_t slot) ASHLAR_REQUIRES(mu_);
  void end_read(std::uint32_t slot);

  const FileVolumeOptions options_;
  const std::shared_ptr<storage::DiskStorage> storage_;
  const FileVolumeShape shape_;
  const std::uint64_t first_slot_;  // its offset

  Mutex table_mu_;  // before mu_; held while headers are written and synced
  std::uint64_t generation_ ASHLAR_GUARDED_BY(table_mu_) = 0;
  std::vector<Uncleared> uncleared_ ASHLAR_GUARDED_BY(table_mu_);

  mutable Mutex mu_;  // never held during I/O of objects
  std::unordered_map<std::string, Entry, KeyHash, std::equal_to<>> entries_ ASHLAR_GUARDED_BY(mu_);
  std::vector<Slot> slots_ ASHLAR_GUARDED_BY(mu_);
  std::vector<std::uint32_t> free_ ASHLAR_GUARDED_BY(mu_);  // headers are cleared; used from the back
};

}  // namespace ashlar::tiers
