#include "ashlar/transfer/host_executors.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "transfer/copy/file_work.h"
#include "transfer/copy/transfer_threads.h"

namespace ashlar::transfer {
namespace {

// A buffer aligned for direct I/O.
class AlignedBuffer {
 public:
  // Null without memory.
  std::byte* at_least(std::uint64_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
      size_ = memory_ == nullptr ? 0 : bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t size_ = 0;
};

// One attempt. Returns the bytes moved, or the negative errno.
std::int64_t attempt(const FileOperation& operation, int descriptor, std::byte* memory, std::uint64_t done) {
  std::uint64_t bytes = operation.bytes - done;
  const std::uint64_t offset = operation.offset + done;
  if (operation.file().faults != nullptr) {
    const storage::IoVerdict verdict = operation.file().faults->judge(operation.direction, offset, bytes);
    if (verdict.error != 0) return -verdict.error;
    bytes = std::min(bytes, verdict.at_most);
  }
  const ssize_t moved = operation.direction == storage::IoDirection::kWrite
                            ? pwrite(descriptor, memory + done, bytes, static_cast<off_t>(offset))
                            : pread(descriptor, memory + done, bytes, static_cast<off_t>(offset));
  return moved < 0 ? -errno : moved;
}

Result<void> run(const FileOperation& operation, std::byte* memory, TransferStats* stats) {
  std::uint64_t done = 0;
  bool direct_refused = false;
  ++stats->operations;
  while (done < operation.bytes) {
    const storage::FileAccess& file = operation.file();
    int descriptor = choose_descriptor(file, operation.offset + done, operation.bytes - done, memory + done);
    if (direct_refused) descriptor = file.buffered;
    const std::int64_t moved = attempt(operation, descriptor, memory, done);
    if (moved == -EINTR) continue;
    if (moved == -EINVAL && descriptor == file.direct) {
      direct_refused = true;
      continue;
    }
    if (moved <= 0) return file_error(operation, static_cast<int>(-moved));
    if (file.faults != nullptr && operation.direction == storage::IoDirection::kWrite)
      file.faults->written(operation.offset + done, {memory + done, static_cast<std::size_t>(moved)});
    done += static_cast<std::uint64_t>(moved);
    if (descriptor == file.direct) stats->direct_bytes += static_cast<std::uint64_t>(moved);
    if (done < operation.bytes) ++stats->continued;
  }
  return {};
}

class PoolFileWork final : public ChunkedWork {
 public:
  PoolFileWork(const TransferPlan& plan, std::uint64_t strip_bytes) : work_(plan, strip_bytes) {}

  std::uint64_t units() const noexcept override { return work_.units(); }
  std::uint64_t chunk_end(std::uint64_t first) const noexcept override { return work_.chunk_end(first); }
  void move(TransferState& state, std::uint64_t first, std::uint64_t end) const override {
    thread_local AlignedBuffer buffer;
    FileWork::Cursor cursor(work_, first, end);
    FileOperation operation;
    while (cursor.next(&operation) && state.may_continue()) {
      TransferStats stats;
      std::byte* memory = operation.staged ? buffer.at_least(operation.bytes) : operation.memory;
      if (memory == nullptr) {
        state.fail(make_error(ErrorCode::kCapacity, "no memory for a buffer of %llu bytes",
                              static_cast<unsigned long long>(operation.bytes)));
        return;
      }
      const bool writes = operation.direction == storage::IoDirection::kWrite;
      if (operation.staged && writes) work_.collect(operation, memory);
      if (Result<void> moved = run(operation, memory, &stats); !moved) {
        state.fail(std::move(moved).error());
        return;
      }
      if (operation.staged && !writes) work_.spread(operation, memory);
      stats.bytes = operation.bytes;
      if (operation.staged) stats.staged_bytes = operation.bytes;
      state.moved(stats);
    }
  }

 private:
  FileWork work_;
};

}  // namespace

Result<void> FileOptions::validate() const {
  if (threads == 0 || threads > 1024)
    return make_error(ErrorCode::kInvalidArgument, "threads is %u; it is 1 to 1024", threads);
  if (strip_bytes == 0 || strip_bytes % 4096 != 0 || strip_bytes > kMaxStripBytes)
    return make_error(
        ErrorCode::kInvalidArgument, "strip_bytes is %llu; it is a multiple of 4096, up to %llu",
        static_cast<unsigned long long>(strip_bytes), static_cast<unsigned long long>(kMaxStripBytes));
  return limits.validate();
}

Result<std::unique_ptr<FileExecutor>> FileExecutor::create(const FileOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return TransferThreads::create({options.threads, 0, options.limits, options.clock},
                                 [strip = options.strip_bytes](const TransferPlan& plan) {
                                   return std::make_unique<PoolFileWork>(plan, strip);
                                 })
      .transform([](std::unique_ptr<TransferThreads>&& pool) {
        return std::unique_ptr<FileExecutor>(new FileExecutor(std::move(pool)));
      });
}

FileExecutor::FileExecutor(std::unique_ptr<TransferThreads> pool) noexcept : pool_(std::move(pool)) {}
FileExecutor::~FileExecutor() = default;

bool FileExecutor::handles(const BlockSet& from, const BlockSet& to) const noexcept {
  return moves_between_memory_and_file(from, to);
}

Result<Transfer> FileExecutor::submit(TransferRequest request) {
  ASHLAR_RETURN_IF_ERROR(check_handles(*this, request.plan));
  return pool_->submit(std::move(request));
}

ExecutorCounters FileExecutor::counters() const {
  return pool_->counters();
}

}  // namespace ashlar::transfer
