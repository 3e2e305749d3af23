// The executors that need nothing but the host: MemcpyExecutor between memory, FileExecutor between memory
// and files.
//
// Both divide a transfer among a few threads, in the order of submission. Where the kernel has io_uring, the
// uring backend does the work of FileExecutor with less processor time; FileExecutor works everywhere.
//
// Thread safety: thread-safe.
// Complexity:    one queue per executor; memory is bounded by QueueLimits, plus one strip per thread for
//                files.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::transfer {

struct MemcpyOptions {
  std::uint32_t threads = 2;
  // submit() copies up to this size itself: waking a thread would cost more.
  std::uint64_t inline_bytes = std::uint64_t{64} << 10;
  // What a thread takes at a time, and checks for a cancel in between.
  std::uint64_t strip_bytes = std::uint64_t{1} << 20;
  QueueLimits limits = {};
  Clock* clock = nullptr;  // null: the machine's

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

class TransferThreads;

// MemcpyExecutor: copies between host memory, small transfers inside submit(), large ones on several threads.
class MemcpyExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<MemcpyExecutor>> create(const MemcpyOptions& options = {});
  ~MemcpyExecutor() override;

  std::string_view name() const noexcept override { return "memcpy"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override;
  Result<Transfer> submit(TransferRequest request) override;
  ExecutorCounters counters() const override;

 private:
  explicit MemcpyExecutor(std::unique_ptr<TransferThreads> pool) noexcept;
  std::unique_ptr<TransferThreads> pool_;
};

struct FileOptions {
  std::uint32_t threads = 4;
  // Largest single operation; a multiple of 4096.
  std::uint64_t strip_bytes = std::uint64_t{1} << 20;
  QueueLimits limits = {};
  Clock* clock = nullptr;

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

// FileExecutor: reads and writes files with pread and pwrite. Pieces whose offset, length and address are
// aligned bypass the page cache. Where a layout scatters a contiguous run of the file over memory, the run is
// assembled in a buffer and moves as one operation.
class FileExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<FileExecutor>> create(const FileOptions& options = {});
  ~FileExecutor() override;

  std::string_view name() const noexcept override { return "file"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override;
  Result<Transfer> submit(TransferRequest request) override;
  ExecutorCounters counters() const override;

 private:
  explicit FileExecutor(std::unique_ptr<TransferThreads> pool) noexcept;
  std::unique_ptr<TransferThreads> pool_;
};

}  // namespace ashlar::transfer
