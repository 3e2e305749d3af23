// FileExecutor: reads and writes files with pread and pwrite on a few threads; what works everywhere.
//
// The io_uring backend does the same with less work for the processor; where the kernel refuses io_uring,
// this is what remains. Pieces whose offset, length and address fit go past the page cache, the others
// through it. Where a layout scatters a contiguous run of the file over memory, the run is put together in a
// buffer and moves as one operation.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::transfer {

struct FileOptions {
  std::uint32_t threads = 4;
  // Largest single operation; a multiple of 4096.
  std::uint64_t strip_bytes = std::uint64_t{1} << 20;
  QueueLimits limits = {};
  Clock* clock = nullptr;

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

class ChunkedPool;

class FileExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<FileExecutor>> create(const FileOptions& options = {});
  ~FileExecutor() override;

  std::string_view name() const noexcept override { return "file"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override;
  Result<Transfer> submit(TransferRequest request) override;
  ExecutorCounters counters() const override;

 private:
  explicit FileExecutor(std::unique_ptr<ChunkedPool> pool) noexcept;
  std::unique_ptr<ChunkedPool> pool_;
};

}  // namespace ashlar::transfer
