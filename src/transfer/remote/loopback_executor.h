// LoopbackExecutor: runs plans between memory of this process and memory of others on the machine.
//
// Mapped memory is copied as local memory is; other host memory through the kernel. Where device memory takes
// part, on either side, the device executor runs the plan over a twin of the remote set.
//
// Thread safety: thread-safe.
#pragma once

#include <memory>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"
#include "ashlar/transfer/remote_transport.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_threads.h"
#include "transfer/remote/loopback_link.h"

namespace ashlar::transfer {

class LoopbackExecutor final : public Executor {
 public:
  // `owner`: the transport whose storage it moves.
  static Result<std::unique_ptr<LoopbackExecutor>> create(const LoopbackOptions& options, const void* owner);
  ~LoopbackExecutor() override;

  std::string_view name() const noexcept override { return "loopback"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override;
  Result<Transfer> submit(TransferRequest request) override;
  ExecutorCounters counters() const override;

 private:
  LoopbackExecutor(const LoopbackOptions& options, const void* owner, std::unique_ptr<TransferThreads> pool);
  bool is_ours(const BlockSet& set) const noexcept;
  Result<Transfer> submit_to_device(TransferRequest request, const RemoteSide& side);

  const void* const owner_;
  const std::shared_ptr<Executor> device_;
  Admission device_admission_;
  std::unique_ptr<TransferThreads> pool_;
};

}  // namespace ashlar::transfer
