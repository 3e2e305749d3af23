// FileWork: a transfer between memory and files as a numbered list of file operations.
//
// Operations are made on demand from their number. Small pieces that are contiguous in the file but not in
// memory form one operation with a staging buffer: collect() fills the buffer before a write, spread()
// empties it after a read.
//
// Thread safety: immutable. The plan outlives the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/storage/disk_storage.h"
#include "ashlar/storage/storage.h"
#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::transfer {

struct FileOperation {
  const storage::Storage* storage = nullptr;
  storage::IoDirection direction = storage::IoDirection::kRead;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
  std::byte* memory = nullptr;  // address of the bytes, or of the first of them when scattered
  bool staged = false;
  std::size_t plane = 0;

  const storage::FileAccess& file() const noexcept { return *storage->file(); }
};

class FileWork {
 public:
  // Requires: one side is a file, the other host memory; strip_bytes is a multiple of 4096.
  FileWork(const TransferPlan& plan, std::uint64_t strip_bytes);

  std::uint64_t units() const noexcept { return units_; }
  // End of a chunk of about strip_bytes that begins with unit `first`, inside one plane.
  std::uint64_t chunk_end(std::uint64_t first) const noexcept;
  // The largest buffer an operation needs; 0 when none does.
  std::uint64_t staging_bytes() const noexcept { return staging_bytes_; }
  storage::IoDirection direction() const noexcept { return direction_; }

  class Cursor {
   public:
    Cursor(const FileWork& work, std::uint64_t first, std::uint64_t end);
    bool next(FileOperation* out);

   private:
    bool enter(std::size_t plane);
    const FileWork* work_;
    std::uint64_t first_;
    std::uint64_t end_;
    std::size_t plane_ = 0;
    std::vector<CopyCursor> cursor_;  // at most one
  };

  void collect(const FileOperation& operation, std::byte* buffer) const;
  void spread(const FileOperation& operation, const std::byte* buffer) const;

 private:
  struct PlaneWork {
    GatheredPlan plan;
    std::uint64_t strip_bytes;
    std::uint64_t first;  // unit
    std::uint64_t end;
  };
  // Calls fn(memory, buffer offset, bytes) for the pieces of a staged operation.
  template <class F>
  void for_each_piece(const FileOperation& operation, F&& fn) const;

  const TransferPlan& plan_;
  const std::uint64_t chunk_bytes_;
  storage::IoDirection direction_;
  std::vector<PlaneWork> planes_;
  std::uint64_t units_ = 0;
  std::uint64_t staging_bytes_ = 0;
};

// Whether FileWork supports a transfer between these sets.
bool moves_between_memory_and_file(const BlockSet& from, const BlockSet& to) noexcept;

// The descriptor for an operation: the direct one when offset, length and address allow it.
int choose_descriptor(const storage::FileAccess& file, std::uint64_t offset, std::uint64_t bytes,
                      const std::byte* memory) noexcept;

// The error of a failed operation: kCapacity for a full disk, quota or file limit, kIo for the rest. `error`
// is an errno; 0 means that the file ended.
Error file_error(const FileOperation& operation, int error);

}  // namespace ashlar::transfer
