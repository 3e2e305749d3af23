#include "ashlar/backend/uring/uring_executor.h"

#include <algorithm>

#include "ashlar/transfer/host_executors.h"
#include "backend/uring/ring.h"

namespace ashlar::backend::uring {

Result<void> UringOptions::validate() const {
  if (depth == 0 || depth > 4096)
    return make_error(ErrorCode::kInvalidArgument, "depth is %u; it is 1 to 4096", depth);
  if (strip_bytes == 0 || strip_bytes % 4096 != 0 || strip_bytes > (std::uint64_t{1} << 30))
    return make_error(ErrorCode::kInvalidArgument,
                      "strip_bytes is %llu; it is a multiple of 4096, up to 1 GiB",
                      static_cast<unsigned long long>(strip_bytes));
  if (staging_buffers == 0 || staging_buffers > 4096)
    return make_error(ErrorCode::kInvalidArgument, "staging_buffers is %u; it is 1 to 4096", staging_buffers);
  if (registered_buffers == 0 || registered_buffers > 16384 || registered_files == 0 ||
      registered_files > 16384)
    return make_error(ErrorCode::kInvalidArgument,
                      "registered_buffers and registered_files are %u and %u; each is 1 to 16384",
                      registered_buffers, registered_files);
  return limits.validate();
}

Registration& Registration::operator=(Registration&& other) noexcept {
  std::swap(ring_, other.ring_);
  std::swap(id_, other.id_);
  return *this;
}

Registration::~Registration() {
  if (ring_ != nullptr) ring_->unregister_set(id_);
}

Result<std::unique_ptr<UringExecutor>> UringExecutor::create(const UringOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return Ring::create(options).transform([](std::shared_ptr<Ring>&& ring) {
    return std::unique_ptr<UringExecutor>(new UringExecutor(std::move(ring)));
  });
}

UringExecutor::~UringExecutor() {
  ring_->stop();
}

bool UringExecutor::handles(const transfer::BlockSet& from, const transfer::BlockSet& to) const noexcept {
  return transfer::moves_between_memory_and_file(from, to);
}

Result<transfer::Transfer> UringExecutor::submit(transfer::TransferRequest request) {
  ASHLAR_RETURN_IF_ERROR(check_handles(*this, request.plan));
  return ring_->submit(std::move(request));
}

transfer::ExecutorCounters UringExecutor::counters() const {
  return ring_->counters();
}

Result<Registration> UringExecutor::register_set(std::shared_ptr<const transfer::BlockSet> set) {
  return ring_->register_set(std::move(set)).transform([this](std::uint64_t&& id) {
    return Registration(ring_, id);
  });
}

Result<std::unique_ptr<transfer::Executor>> create_disk_executor(const UringOptions& options) {
  Result<std::unique_ptr<UringExecutor>> made = UringExecutor::create(options);
  if (made) return std::unique_ptr<transfer::Executor>(*std::move(made));
  if (made.error().code() != ErrorCode::kUnsupported) return made.error();
  return transfer::FileExecutor::create({.threads = std::min(options.depth, 8u),
                                         .strip_bytes = options.strip_bytes,
                                         .limits = options.limits,
                                         .clock = options.clock})
      .transform([](std::unique_ptr<transfer::FileExecutor>&& executor) {
        return std::unique_ptr<transfer::Executor>(std::move(executor));
      });
}

}  // namespace ashlar::backend::uring
