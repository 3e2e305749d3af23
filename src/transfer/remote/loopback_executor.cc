#include "transfer/remote/loopback_executor.h"

#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "transfer/copy/planned_units.h"
#include "transfer/copy/transfer_state.h"
#include "transfer/remote/kernel_copy.h"

namespace ashlar::transfer {
namespace {

const LoopbackAccess* access_of(const BlockSet& set) noexcept {
  return LoopbackAccess::of(*set.planes()[0].regions[0].storage);
}

// The remote side of a plan that handles() accepted.
Result<std::shared_ptr<const RemoteSide>> remote_side(const TransferPlan& plan) {
  const bool reads = plan.from().kind() == StorageKind::kRemote;
  const std::shared_ptr<const BlockSet>& set = reads ? plan.shared_from() : plan.shared_to();
  return access_of(*set)->side(set);
}

// The regions that a chunk has touched: their owner shares them, and keeps them while it is copied from or to
// them through the kernel.
class TouchedRegions {
 public:
  explicit TouchedRegions(const RemoteSide& side) : side_(side), touched_(side.accesses.size()) {}
  TouchedRegions(const TouchedRegions&) = delete;
  TouchedRegions& operator=(const TouchedRegions&) = delete;
  ~TouchedRegions() {
    for (std::size_t i = 0; i < touched_.size(); ++i)
      if (touched_[i]) side_.accesses[i]->leave();
  }
  Result<void> touch(std::size_t access) {
    if (touched_[access]) return {};
    ASHLAR_RETURN_IF_ERROR(side_.accesses[access]->enter());
    touched_[access] = true;
    return {};
  }
  bool are_shared() const noexcept {
    for (std::size_t i = 0; i < touched_.size(); ++i)
      if (touched_[i] && !side_.accesses[i]->is_shared()) return false;
    return true;
  }

 private:
  const RemoteSide& side_;
  std::vector<bool> touched_;
};

class LoopbackWork final : public ChunkedWork {
 public:
  LoopbackWork(const TransferPlan& plan, std::uint64_t strip_bytes)
      : plan_(plan),
        reads_(plan.from().kind() == StorageKind::kRemote),
        side_(remote_side(plan).value()),
        units_(plan, strip_bytes) {}

  std::uint64_t units() const noexcept override { return units_.count(); }
  std::uint64_t chunk_end(std::uint64_t first) const noexcept override { return units_.chunk_end(first); }
  void move(TransferState& state, std::uint64_t first, std::uint64_t end) const override {
    Result<void> result = side_->link->enter();
    if (!result) return state.fail(std::move(result).error());
    TransferStats stats;
    result = copy(first, end, &stats);
    side_->link->leave();
    state.moved(stats);
    if (!result) state.fail(std::move(result).error());
  }

 private:
  Result<void> copy(std::uint64_t first, std::uint64_t end, TransferStats* stats) const {
    TouchedRegions touched(*side_);
    std::optional<KernelCopy> kernel;
    Result<void> result;
    units_.each_row(first, end, [&](std::size_t plane, const CopyRow& row) {
      const layout::Place& there = reads_ ? row.from : row.to;
      ASHLAR_DCHECK(plane < side_->planes.size() && there.region < side_->planes[plane].size(),
                    "a row in region %u of plane %zu, which the remote set does not have", there.region,
                    plane);
      const RemoteSide::Region& region = side_->planes[plane][there.region];
      std::byte* const remote = region.address + there.offset;
      std::byte* const local =
          reads_ ? plan_.to().address(plane, row.to) : plan_.from().address(plane, row.from);
      result = touched.touch(region.access);
      if (!result) return false;
      if (!region.through_kernel) {
        copy_row(row, reads_ ? remote : local, reads_ ? local : remote, stats);
        return true;
      }
      if (!kernel)
        kernel.emplace(side_->link->address().pid, side_->link->process(),
                       reads_ ? KernelCopyDirection::kRead : KernelCopyDirection::kWrite, stats);
      const std::uint64_t local_stride = reads_ ? row.to_stride : row.from_stride;
      const std::uint64_t remote_stride = reads_ ? row.from_stride : row.to_stride;
      for (std::uint64_t i = 0; i < row.count && result; ++i)
        result = kernel->add(local + i * local_stride, remote + i * remote_stride, row.bytes);
      return result.has_value();
    });
    if (result && kernel) result = kernel->flush();
    // The owner may have used the memory for something else meanwhile.
    if (result && !touched.are_shared()) return LoopbackAccess::withdrawn();
    return result;
  }

  const TransferPlan& plan_;
  const bool reads_;
  const std::shared_ptr<const RemoteSide> side_;
  const PlannedUnits units_;
};

}  // namespace

LoopbackExecutor::LoopbackExecutor(const LoopbackOptions& options, const void* owner,
                                   std::unique_ptr<TransferThreads> pool)
    : owner_(owner),
      device_(options.device_executor),
      device_admission_(options.copies.limits,
                        options.copies.clock == nullptr ? Clock::real() : *options.copies.clock),
      pool_(std::move(pool)) {}

Result<std::unique_ptr<LoopbackExecutor>> LoopbackExecutor::create(const LoopbackOptions& options,
                                                                   const void* owner) {
  const MemcpyOptions& copies = options.copies;
  ASHLAR_RETURN_IF_ERROR(copies.validate());
  ASHLAR_TRY(auto pool,
             TransferThreads::create({copies.threads, copies.inline_bytes, copies.limits, copies.clock},
                                     [strip = copies.strip_bytes](const TransferPlan& plan) {
                                       return std::make_unique<LoopbackWork>(plan, strip);
                                     }));
  return std::unique_ptr<LoopbackExecutor>(new LoopbackExecutor(options, owner, std::move(pool)));
}

LoopbackExecutor::~LoopbackExecutor() {
  device_admission_.close();
  device_admission_.wait_empty();
}

bool LoopbackExecutor::is_ours(const BlockSet& set) const noexcept {
  const LoopbackAccess* const access = access_of(set);
  return access != nullptr && access->link()->owner() == owner_;
}

bool LoopbackExecutor::handles(const BlockSet& from, const BlockSet& to) const noexcept {
  const auto pair = [this](const BlockSet& local, const BlockSet& remote) {
    if (!is_ours(remote)) return false;
    if (local.kind() == StorageKind::kDevice) return device_ != nullptr;
    const std::shared_ptr<storage::Storage>& seen = access_of(remote)->local();
    return local.host_accessible() &&
           (seen == nullptr || seen->kind() != StorageKind::kDevice || device_ != nullptr);
  };
  return pair(from, to) || pair(to, from);
}

Result<Transfer> LoopbackExecutor::submit(TransferRequest request) {
  ASHLAR_RETURN_IF_ERROR(check_handles(*this, request.plan));
  ASHLAR_TRY(const std::shared_ptr<const RemoteSide> side, remote_side(request.plan));
  ASHLAR_RETURN_IF_ERROR(side->link->check_open());
  for (const LoopbackAccess* const access : side->accesses)
    if (!access->is_shared()) return LoopbackAccess::withdrawn();
  const bool reads = request.plan.from().kind() == StorageKind::kRemote;
  const BlockSet& local = reads ? request.plan.to() : request.plan.from();
  const bool on_device = side->twin != nullptr && side->twin->kind() == StorageKind::kDevice;
  if (on_device || local.kind() == StorageKind::kDevice) return submit_to_device(std::move(request), *side);
  return pool_->submit(std::move(request));
}

Result<Transfer> LoopbackExecutor::submit_to_device(TransferRequest request, const RemoteSide& side) {
  if (side.twin == nullptr)
    return make_error(ErrorCode::kUnsupported,
                      "a device cannot reach this memory of the peer; allocate it with "
                      "storage::SharedAllocator, or copy it to host memory first");
  const bool reads = request.plan.from().kind() == StorageKind::kRemote;
  TransferPlan twin_plan = request.plan.between(reads ? side.twin : request.plan.shared_from(),
                                                reads ? request.plan.shared_to() : side.twin);
  if (!device_->handles(twin_plan.from(), twin_plan.to())) return check_handles(*device_, twin_plan).error();
  const bool wait_for_room = request.wait_for_room;
  ASHLAR_TRY(const std::shared_ptr<TransferState> state,
             TransferState::admit(std::move(request), device_admission_));
  const Transfer transfer(state);
  const std::shared_ptr<LoopbackLink> link = side.link;
  const auto end = [state](const Error& error) {
    state->fail(error);
    state->finish();
  };
  state->start();
  const Result<std::uint64_t> id =
      link->add_transfer([watched = std::weak_ptr<TransferState>(state)](const Error& why) {
        const std::shared_ptr<TransferState> running = watched.lock();
        if (running == nullptr) return;
        running->fail(why);
        running->cancel();
      });
  if (!id) {
    end(id.error());
    return transfer;
  }
  const auto done = [state, link, number = *id](const TransferResult& result) {
    link->remove_transfer(number);
    if (result) {
      state->moved(result->stats);
    } else {
      const ErrorCode code = result.error().code();
      const bool stopped = code == ErrorCode::kCancelled || code == ErrorCode::kTimeout;
      if (!stopped || state->may_continue()) state->fail(result.error());
    }
    state->finish();
  };
  const Result<Transfer> part = device_->submit({.plan = std::move(twin_plan),
                                                 .deadline = state->deadline(),
                                                 .wait_for_room = wait_for_room,
                                                 .on_done = done});
  if (!part) {
    link->remove_transfer(*id);
    end(part.error());
    return transfer;
  }
  state->set_part(*part);
  return transfer;
}

ExecutorCounters LoopbackExecutor::counters() const {
  ExecutorCounters sum = pool_->counters();
  const ExecutorCounters device = device_admission_.counters();
  sum.submitted += device.submitted;
  sum.completed += device.completed;
  sum.failed += device.failed;
  sum.cancelled += device.cancelled;
  sum.refused += device.refused;
  sum.bytes += device.bytes;
  sum.in_flight += device.in_flight;
  sum.in_flight_bytes += device.in_flight_bytes;
  return sum;
}

}  // namespace ashlar::transfer
