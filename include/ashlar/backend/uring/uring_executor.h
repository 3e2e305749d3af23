// UringExecutor: reads and writes files through io_uring, many operations at a time from one thread.
//
// The thread sleeps in the kernel until an operation ends or a request arrives; it never polls. Operations
// bypass the page cache where they fit, as with FileExecutor. Frequently used block sets can be registered:
// the kernel then knows their pages and files, and an operation costs less.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::backend::uring {

struct UringOptions {
  std::uint32_t depth = 16;  // operations in flight
  // Largest single operation; a multiple of 4096.
  std::uint64_t strip_bytes = std::uint64_t{1} << 20;
  // Buffers for runs that memory scatters, each as large as its run.
  std::uint32_t staging_buffers = 4;
  // Places for registered memory (one per GiB of a region) and registered files.
  std::uint32_t registered_buffers = 256;
  std::uint32_t registered_files = 256;
  transfer::QueueLimits limits = {};
  Clock* clock = nullptr;

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

class Ring;

// Keeps a block set registered, and alive; dropping it ends the registration.
class Registration {
 public:
  Registration(Registration&&) noexcept = default;
  Registration& operator=(Registration&& other) noexcept;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

 private:
  friend class UringExecutor;
  Registration(std::shared_ptr<Ring> ring, std::uint64_t id) noexcept : ring_(std::move(ring)), id_(id) {}

  std::shared_ptr<Ring> ring_;
  std::uint64_t id_;
};

class UringExecutor final : public transfer::Executor {
 public:
  // Errors: kInvalidArgument: the options; kUnsupported with the system's reason where the kernel refuses
  // io_uring.
  static Result<std::unique_ptr<UringExecutor>> create(const UringOptions& options = {});
  ~UringExecutor() override;

  std::string_view name() const noexcept override { return "uring"; }
  bool handles(const transfer::BlockSet& from, const transfer::BlockSet& to) const noexcept override;
  Result<transfer::Transfer> submit(transfer::TransferRequest request) override;
  transfer::ExecutorCounters counters() const override;

  // Registers the memory or the files of a set. Errors: kCapacity: no places left, or more memory than the
  // process may lock (RLIMIT_MEMLOCK), with the numbers; transfers work without it. kUnsupported: neither
  // host memory nor files; kIo: the kernel refuses a file; kCancelled: the executor is being destroyed.
  Result<Registration> register_set(std::shared_ptr<const transfer::BlockSet> set);

 private:
  explicit UringExecutor(std::shared_ptr<Ring> ring) noexcept : ring_(std::move(ring)) {}
  std::shared_ptr<Ring> ring_;
};

// A UringExecutor, or a FileExecutor with as many threads as operations in flight (at most 8) where the
// kernel refuses io_uring. Errors: kInvalidArgument: the options; kCapacity, kIo: no thread or descriptor is
// left.
Result<std::unique_ptr<transfer::Executor>> create_disk_executor(const UringOptions& options = {});

}  // namespace ashlar::backend::uring
