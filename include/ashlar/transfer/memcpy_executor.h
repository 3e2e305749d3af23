// MemcpyExecutor: copies between memory that the host can reach, small transfers at once, large ones with
// several threads.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::transfer {

struct MemcpyOptions {
  std::uint32_t threads = 2;
  // Up to here submit() copies by itself: waking a thread would cost more.
  std::uint64_t inline_bytes = std::uint64_t{64} << 10;
  // What a thread takes at a time.
  std::uint64_t strip_bytes = std::uint64_t{1} << 20;
  QueueLimits limits = {};
  Clock* clock = nullptr;  // the machine's unless given

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

class ChunkedPool;

class MemcpyExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<MemcpyExecutor>> create(const MemcpyOptions& options = {});
  ~MemcpyExecutor() override;

  std::string_view name() const noexcept override { return "memcpy"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override;
  Result<Transfer> submit(TransferRequest request) override;
  ExecutorCounters counters() const override;

 private:
  explicit MemcpyExecutor(std::unique_ptr<ChunkedPool> pool) noexcept;
  std::unique_ptr<ChunkedPool> pool_;
};

}  // namespace ashlar::transfer
