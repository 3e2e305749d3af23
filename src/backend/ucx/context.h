// UcxContext: a UCX context, made from the options. UcxWorker: a UCX worker with its event descriptor.
//
// Thread safety: UcxContext is thread-safe: UCX locks it, as several threads have workers of it. A UcxWorker
//                is used by one thread at a time.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/base/result.h"
#include "backend/ucx/ucx_library.h"

namespace ashlar::backend::ucx {

class UcxContext {
 public:
  static Result<std::shared_ptr<UcxContext>> create(const UcxOptions& options);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h handle() const noexcept { return handle_; }
  const std::string& transports() const noexcept { return transports_; }

 private:
  UcxContext(ucp_context_h handle, std::string transports) noexcept
      : handle_(handle), transports_(std::move(transports)) {}
  ucp_context_h handle_;
  std::string transports_;
};

class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> create(std::shared_ptr<UcxContext> context);
  // Ends everything that is in flight; completion callbacks run here. With shared memory UCX forgets some of
  // them. Nothing touches the memory of operations afterwards.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h handle() const noexcept { return handle_; }
  // Readable when an armed worker has something to do.
  int event_fd() const noexcept { return event_fd_; }
  // Whether anything happened.
  bool progress() noexcept { return ucx().ucp_worker_progress(handle_) != 0; }
  // False: there is something to do already.
  bool arm() noexcept;
  Result<std::vector<std::byte>> address() const;

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h handle, int event_fd) noexcept
      : context_(std::move(context)), handle_(handle), event_fd_(event_fd) {}
  std::shared_ptr<UcxContext> context_;
  ucp_worker_h handle_;
  int event_fd_;
};

// Equal for all processes of a running system that see the same network and the same processes.
std::uint64_t machine_id();

// The IPv4 addresses of this machine's network devices, loopback last, separated by commas. `devices`: as in
// the options.
std::string host_addresses(const std::string& devices);

// "UCX: Endpoint timeout".
std::string reason(ucs_status_t status);

}  // namespace ashlar::backend::ucx
