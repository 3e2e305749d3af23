// FileWork: a transfer between memory and files as a numbered list of file operations.
//
// Operations are made on demand from their number. Where pieces are small and lie side by side in the file
// but not in memory, they are one operation with a buffer in between: collect() fills the buffer before a
// write, spread() empties it after a read.
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
  std::byte* memory =
      nullptr;  // where the bytes are, or where the first of them is when they are not together
  bool staged = false;
  std::size_t plane = 0;

  const storage::FileAccess& file() const noexcept { return *storage->file(); }
};

class FileWork {
 public:
  // Requires: one side is a file, the other host memory; strip_bytes is a multiple of 4096.
  FileWork(const TransferPlan& plan, std::uint64_t strip_bytes);

  std::uint64_t units() const noexcept { return units_; }
  // Where a chunk of about a strip of bytes ends that begins with unit `first`, inside one plane.
  std::uint64_t chunk_end(std::uint64_t first) const noexcept;
  // The largest buffer that an operation needs; 0 when none does.
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

// What FileWork takes.
bool moves_between_memory_and_file(const BlockSet& from, const BlockSet& to) noexcept;

// Which descriptor an operation uses: the direct one when offset, length and address allow it.
int choose_descriptor(const storage::FileAccess& file, std::uint64_t offset, std::uint64_t bytes,
                      const std::byte* memory) noexcept;

// The error of a failed operation: kCapacity for a full disk, quota or file limit, kIo for the rest. `error`
// is an errno; 0 means that the file ended.
Error file_error(const FileOperation& operation, int error);

}  // namespace ashlar::transfer
