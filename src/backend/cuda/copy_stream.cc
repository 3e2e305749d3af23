#include "backend/cuda/copy_stream.h"

#include <utility>

#include "ashlar/base/check.h"
#include "backend/cuda/cuda_error.h"
#include "base/interleaving.h"
#include "base/start_thread.h"

namespace ashlar::backend::cuda {
namespace {

// Slices on the stream: enough that it does not run dry while the watcher wakes.
constexpr std::uint64_t kWindow = 3;
// Small transfers that may be on the stream together.
constexpr std::size_t kWindowSlices = 256;

}  // namespace

Result<std::unique_ptr<CopyStream>> CopyStream::create(int device, const CopyRules& rules, bool urgent,
                                                       cudaStream_t borrowed) {
  const DeviceScope scope(device);
  if (scope.status() != cudaSuccess) return cuda_error(scope.status(), "device %d", device);
  cudaStream_t stream = borrowed;
  if (borrowed == nullptr) {
    int least = 0;
    int greatest = 0;
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    const int priority = urgent ? greatest : least;
    if (status == cudaSuccess)
      status = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority);
    if (status != cudaSuccess) return cuda_error(status, "a stream of device %d cannot be created", device);
  }
  std::unique_ptr<CopyStream> copier(new CopyStream(device, rules, stream, borrowed == nullptr));
  ASHLAR_RETURN_IF_ERROR(start_thread(&copier->watcher_, [raw = copier.get()] { raw->watch(); }));
  return copier;
}

CopyStream::~CopyStream() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    for (const std::shared_ptr<Task>& task : waiting_) task->state->cancel();
    changed_.notify_all();
  }
  interleaving_point("cuda.stream_stopping");
  if (watcher_.joinable()) watcher_.join();
  const DeviceScope scope(device_);
  const MutexLock lock(mu_);
  ASHLAR_CHECK(waiting_.empty() && running_.empty(), "%zu transfers outlive their stream",
               waiting_.size() + running_.size());
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
  packer_.reset();
  if (owned_) cudaStreamDestroy(stream_);
}

Result<void> CopyStream::pack(std::uint64_t bytes, std::uint32_t blocks, bool to_host) {
  const DeviceScope scope(device_);
  ASHLAR_TRY(std::unique_ptr<Packer> made, Packer::create(bytes, blocks, to_host, stream_));
  packer_ = std::move(made);
  return {};
}

void CopyStream::submit(std::shared_ptr<transfer::TransferState> state) {
  Ended ended;
  {
    const MutexLock lock(mu_);
    auto task = std::make_shared<Task>();
    task->state = std::move(state);
    waiting_.push_back(std::move(task));
    const DeviceScope scope(device_);
    issue_more(&ended);
  }
  for (const auto& done : ended) done->finish();
}

void CopyStream::submit_at_once(std::shared_ptr<transfer::TransferState> state, cudaEvent_t wait_before,
                                std::span<const transfer::TransferPlan> parts,
                                std::span<const cudaEvent_t> events) {
  Ended ended;
  {
    const MutexLock lock(mu_);
    const DeviceScope scope(device_);
    auto task = std::make_shared<Task>();
    task->state = std::move(state);
    Issued issued{.stream = stream_};
    task->state->start();
    const cudaError_t status = issue_parts(*task->state, wait_before, parts, events, &issued);
    if (status != cudaSuccess) task->state->fail(cuda_error(status, "an event of the caller was refused"));
    mark(task, issued);
    close(task, &ended);
  }
  for (const auto& done : ended) done->finish();
}

cudaError_t CopyStream::issue_parts(transfer::TransferState& state, cudaEvent_t wait_before,
                                    std::span<const transfer::TransferPlan> parts,
                                    std::span<const cudaEvent_t> events, Issued* issued) {
  if (wait_before != nullptr)
    if (const cudaError_t status = cudaStreamWaitEvent(stream_, wait_before, 0); status != cudaSuccess)
      return status;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    CopyIssuer issuer(parts[i], rules_);
    while (!issuer.done()) {
      const Result<Issued> part = issuer.issue(stream_, rules_.slice_bytes);
      if (!part) {
        state.fail(part.error());
        return cudaSuccess;
      }
      issued->bytes += part->bytes;
      issued->operations += part->operations;
    }
    if (i < events.size())
      if (const cudaError_t status = cudaEventRecord(events[i], stream_); status != cudaSuccess)
        return status;
  }
  return cudaSuccess;
}

// Cancelled and late transfers do not wait behind others.
void CopyStream::sweep(Ended* ended) {
  std::deque<std::shared_ptr<Task>> left;
  for (std::shared_ptr<Task>& task : waiting_) {
    if (!task->issuer && !task->state->may_continue()) {
      close(task, ended);
    } else {
      left.push_back(std::move(task));
    }
  }
  waiting_.swap(left);
}

void CopyStream::issue_more(Ended* ended) {
  sweep(ended);
  while (!waiting_.empty() && running_bytes_ < kWindow * rules_.slice_bytes &&
         running_.size() < kWindowSlices) {
    const std::shared_ptr<Task> task = waiting_.front();
    bool last = !task->state->may_continue();
    if (!last) {
      if (!task->issuer) {
        task->state->start();
        task->issuer.emplace(task->state->plan(), rules_, packer_.get());
      }
      const Result<Issued> issued = task->issuer->issue(stream_, rules_.slice_bytes);
      if (!issued) task->state->fail(issued.error());
      // Also after a failure: part of the slice may be on the stream.
      const bool marked = mark(task, issued ? *issued : Issued{.stream = stream_});
      last = !issued || !marked || task->issuer->done();
    }
    if (!last) continue;
    waiting_.pop_front();
    close(task, ended);
  }
}

bool CopyStream::mark(const std::shared_ptr<Task>& task, const Issued& issued) {
  cudaEvent_t event = nullptr;
  cudaError_t status = cudaSuccess;
  if (free_events_.empty()) {
    status = cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming);
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  if (status == cudaSuccess) status = cudaEventRecord(event, issued.stream);
  if (status != cudaSuccess) {
    if (event != nullptr) free_events_.push_back(event);
    task->state->fail(cuda_error(status, "the end of a copy cannot be marked"));
    static_cast<void>(cudaStreamSynchronize(issued.stream));  // at once when the device has failed
    return false;
  }
  ASHLAR_DCHECK(!task->closed, "a slice of a transfer is issued after its last");
  ++task->running;
  running_bytes_ += issued.bytes;
  running_.push_back({event, task, issued});
  changed_.notify_all();
  return true;
}

void CopyStream::close(const std::shared_ptr<Task>& task, Ended* ended) {
  ASHLAR_CHECK(!task->closed, "a transfer is closed twice");
  task->closed = true;
  task->issuer.reset();
  if (task->running == 0) ended->push_back(task->state);
}

void CopyStream::watch() {
  const DeviceScope scope(device_);
  for (;;) {
    Ended ended;
    Slice slice;
    {
      const MutexLock lock(mu_);
      while (running_.empty() && !stopping_) changed_.wait(mu_);
      if (running_.empty()) {
        issue_more(&ended);  // stopping: queued transfers were cancelled
        if (running_.empty() && waiting_.empty() && ended.empty()) return;
      } else {
        slice = running_.front();  // stays in the list: it still fills the window
      }
    }
    if (slice.event != nullptr) {
      cudaError_t status = cudaEventSynchronize(slice.event);
      if (status != cudaSuccess) {
        slice.task->state->fail(cuda_error(status, "a copy of %llu bytes failed",
                                           static_cast<unsigned long long>(slice.issued.bytes)));
        static_cast<void>(cudaStreamSynchronize(slice.issued.stream));
      } else {
        slice.task->state->moved({.bytes = slice.issued.bytes,
                                  .operations = slice.issued.operations,
                                  .staged_bytes = slice.issued.staged});
      }
      interleaving_point("cuda.slice_done");
      const MutexLock lock(mu_);
      ASHLAR_CHECK(slice.task->running != 0 && running_bytes_ >= slice.issued.bytes,
                   "a slice of %llu bytes ends that was not on the stream",
                   static_cast<unsigned long long>(slice.issued.bytes));
      running_.pop_front();
      running_bytes_ -= slice.issued.bytes;
      free_events_.push_back(slice.event);
      --slice.task->running;
      if (slice.task->closed && slice.task->running == 0) ended.push_back(slice.task->state);
      issue_more(&ended);
    }
    slice.task.reset();
    for (const auto& done : ended) done->finish();
  }
}

}  // namespace ashlar::backend::cuda
