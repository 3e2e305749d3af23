#include "ashlar/backend/cuda/cuda_executor.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "ashlar/backend/cuda/device.h"
#include "ashlar/base/mutex.h"
#include "backend/cuda/calibration.h"
#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/copy_stream.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/memory_check.h"
#include "backend/cuda/staged_copier.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::backend::cuda {

using transfer::BlockSet;
using transfer::Transfer;
using transfer::TransferPlan;
using transfer::TransferRequest;
using transfer::TransferState;

namespace {

enum Direction : std::uint8_t { kToHost, kToDevice, kOnDevice };
constexpr std::size_t kDirections = 3;
constexpr std::uint32_t kMaxBlocks = 65535;
constexpr std::uint64_t kDeviceSlice = std::uint64_t{512} << 20;  // takes as long as 64 MiB over the link
constexpr std::uint64_t kMinPacking = std::uint64_t{1} << 20;

Direction direction_of(const BlockSet& from, const BlockSet& to) {
  if (from.kind() != StorageKind::kDevice) return kToDevice;
  return to.kind() == StorageKind::kDevice ? kOnDevice : kToHost;
}

layout::Range selected_layers(const TransferPlan& plan) {
  return plan.selection().layers.value_or(
      intersect(plan.from().planes()[0].shard.layers, plan.to().planes()[0].shard.layers));
}

// Splits the plan by layers.
Result<std::vector<TransferPlan>> plans_by_layer(const TransferPlan& plan) {
  std::vector<std::uint32_t> from_blocks;
  std::vector<std::uint32_t> to_blocks;
  for (const transfer::BlockPair& pair : plan.copies()[0].pairs()) {
    from_blocks.push_back(pair.from);
    to_blocks.push_back(pair.to);
  }
  const layout::Range layers = selected_layers(plan);
  std::vector<TransferPlan> parts;
  for (std::uint32_t i = 0; i < layers.count; ++i) {
    transfer::PlanSelection selection = plan.selection();
    selection.layers = layout::Range{layers.first + i, 1};
    ASHLAR_TRY(TransferPlan part,
               transfer::plan(plan.shared_from(), from_blocks, plan.shared_to(), to_blocks, selection));
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

Result<void> CudaOptions::validate() const {
  if (device < 0)
    return make_error(ErrorCode::kInvalidArgument, "device is %d; devices are counted from 0", device);
  if (copy_blocks == 0 || copy_blocks > kMaxBlocks)
    return make_error(ErrorCode::kInvalidArgument, "copy_blocks is %u; it is 1 to %u", copy_blocks,
                      kMaxBlocks);
  if (device_copy_blocks > kMaxBlocks)
    return make_error(ErrorCode::kInvalidArgument, "device_copy_blocks is %u; it is at most %u",
                      device_copy_blocks, kMaxBlocks);
  if (packing_bytes != 0 && packing_bytes < kMinPacking)
    return make_error(ErrorCode::kInvalidArgument, "packing_bytes is %llu; it is 0 or at least %llu",
                      static_cast<unsigned long long>(packing_bytes),
                      static_cast<unsigned long long>(kMinPacking));
  return limits.validate();
}

class CudaStreams {
 public:
  CudaStreams(const CudaOptions& options, const SwitchPoints& points, std::uint32_t device_blocks)
      : device_(options.device),
        points_(points),
        packing_bytes_(options.packing_bytes),
        // Writes to the host saturate the link with a quarter of the threads that reads need; more would only
        // slow the reads.
        rules_{{{points.to_host, points.packed_run, std::max(1u, options.copy_blocks / 4)},
                {points.to_device, points.packed_run, options.copy_blocks},
                {points.on_device, points.packed_run, device_blocks, kDeviceSlice}}},
        admission_(options.limits, options.clock != nullptr ? *options.clock : Clock::real()),
        memory_(options.device),
        staged_{{{options.device, options.copy_blocks, true}, {options.device, options.copy_blocks, false}}} {
  }
  ~CudaStreams() {
    admission_.close();
    {
      const MutexLock lock(mu_);
      ordered_.clear();
    }
    for (std::unique_ptr<CopyStream>& copier : streams_) copier.reset();
    for (StagedCopier& copier : staged_) copier.stop();
    admission_.wait_empty();  // callers that waited for room are still leaving
  }

  Result<void> open() {
    const DeviceScope scope(device_);
    if (const cudaError_t status = load_copy_kernels(); status != cudaSuccess)
      return cuda_error(status, "the kernels cannot be loaded on device %d", device_);
    for (std::size_t i = 0; i < kDirections; ++i) {
      ASHLAR_TRY(std::unique_ptr<CopyStream> copier, CopyStream::create(device_, rules_[i], i != kOnDevice));
      if (i != kOnDevice && packing_bytes_ != 0)
        ASHLAR_RETURN_IF_ERROR(copier->pack(packing_bytes_, 2 * rules_[kToDevice].blocks, i == kToHost));
      streams_[i] = std::move(copier);
    }
    return {};
  }

  bool handles(const BlockSet& from, const BlockSet& to) const noexcept {
    const auto fits = [this](const BlockSet& set) {
      return set.kind() == StorageKind::kDevice ? set.device() == device_ : set.host_accessible();
    };
    return fits(from) && fits(to) &&
           (from.kind() == StorageKind::kDevice || to.kind() == StorageKind::kDevice);
  }

  Result<Transfer> submit(TransferRequest request, const CudaSubmitOptions& options) {
    if (request.plan.copies().empty())
      return make_error(ErrorCode::kInvalidArgument, "the request has no plan");
    const BlockSet& from = request.plan.from();
    const BlockSet& to = request.plan.to();
    if (!handles(from, to))
      return make_error(ErrorCode::kUnsupported, "the executor of device %d does not copy from '%s' to '%s'",
                        device_, from.planes()[0].regions[0].storage->describe().c_str(),
                        to.planes()[0].regions[0].storage->describe().c_str());
    const Direction direction = direction_of(from, to);
    ASHLAR_TRY(const Reach source, memory_.reach(request.plan.shared_from()));
    ASHLAR_TRY(const Reach target, memory_.reach(request.plan.shared_to()));
    const bool staged = source == Reach::kPageable || target == Reach::kPageable;
    if (options.stream == nullptr && options.wait_before == nullptr && options.layer_events.empty())
      return submit_plain(std::move(request), direction, staged);
    if (staged)
      return make_error(
          ErrorCode::kUnsupported,
          "streams and events need memory that the device reaches; lock the pages of '%s'",
          (source == Reach::kPageable ? from : to).planes()[0].regions[0].storage->describe().c_str());
    return submit_ordered(std::move(request), direction, options);
  }

  transfer::ExecutorCounters counters() const { return admission_.counters(); }
  const SwitchPoints& switch_points() const noexcept { return points_; }

 private:
  Result<Transfer> submit_plain(TransferRequest request, Direction direction, bool staged) {
    ASHLAR_TRY(std::shared_ptr<TransferState> state, TransferState::admit(std::move(request), admission_));
    Transfer handle(state);
    if (staged) {
      staged_[direction == kToHost ? 0 : 1].submit(std::move(state));
    } else {
      streams_[direction]->submit(std::move(state));
    }
    return handle;
  }

  Result<Transfer> submit_ordered(TransferRequest request, Direction direction,
                                  const CudaSubmitOptions& options) {
    std::vector<TransferPlan> parts;
    if (!options.layer_events.empty()) {
      const std::uint32_t layers = selected_layers(request.plan).count;
      if (options.layer_events.size() != layers)
        return make_error(ErrorCode::kInvalidArgument, "%zu events for %u selected layers",
                          options.layer_events.size(), layers);
      if (const auto null = std::ranges::find(options.layer_events, nullptr);
          null != options.layer_events.end())
        return make_error(ErrorCode::kInvalidArgument, "the event of selected layer %zu is null",
                          static_cast<std::size_t>(null - options.layer_events.begin()));
      ASHLAR_TRY(std::vector<TransferPlan> by_layer, plans_by_layer(request.plan));
      parts = std::move(by_layer);
    } else {
      parts.push_back(request.plan);
    }
    ASHLAR_TRY(CopyStream* const copier, ordered_stream(direction, options.stream));
    ASHLAR_TRY(std::shared_ptr<TransferState> state, TransferState::admit(std::move(request), admission_));
    Transfer handle(state);
    copier->submit_at_once(std::move(state), options.wait_before, parts, options.layer_events);
    return handle;
  }

  // Created for the first transfer that needs it: one per caller stream, and one per direction, so that
  // transfers that wait for events delay no others.
  Result<CopyStream*> ordered_stream(Direction direction, cudaStream_t stream) {
    const MutexLock lock(mu_);
    std::unique_ptr<CopyStream>& copier = ordered_[{direction, stream}];
    if (copier == nullptr) {
      ASHLAR_TRY(std::unique_ptr<CopyStream> made,
                 CopyStream::create(device_, rules_[direction], direction != kOnDevice, stream));
      copier = std::move(made);
    }
    return copier.get();
  }

  const int device_;
  const SwitchPoints points_;
  const std::uint64_t packing_bytes_;
  const std::array<CopyRules, kDirections> rules_;
  transfer::Admission admission_;
  MemoryCheck memory_;
  std::array<StagedCopier, 2> staged_;
  std::array<std::unique_ptr<CopyStream>, kDirections> streams_;
  Mutex mu_;
  std::map<std::pair<Direction, cudaStream_t>, std::unique_ptr<CopyStream>> ordered_ ASHLAR_GUARDED_BY(mu_);
};

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::create(const CudaOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(const DeviceInfo info, describe_device(options.device));
  const std::uint32_t device_blocks =
      options.device_copy_blocks != 0 ? options.device_copy_blocks : 4 * info.multiprocessors;
  SwitchPoints points;
  if (options.switch_points) {
    points = *options.switch_points;
  } else {
    ASHLAR_TRY(const SwitchPoints measured,
               measure_switch_points(options.device, options.copy_blocks, device_blocks));
    points = measured;
  }
  auto streams = std::make_unique<CudaStreams>(options, points, device_blocks);
  ASHLAR_RETURN_IF_ERROR(streams->open());
  return std::unique_ptr<CudaExecutor>(new CudaExecutor(std::move(streams)));
}

CudaExecutor::CudaExecutor(std::unique_ptr<CudaStreams> streams) noexcept : streams_(std::move(streams)) {}
CudaExecutor::~CudaExecutor() = default;

bool CudaExecutor::handles(const BlockSet& from, const BlockSet& to) const noexcept {
  return streams_->handles(from, to);
}

Result<Transfer> CudaExecutor::submit(TransferRequest request) {
  return streams_->submit(std::move(request), {});
}

Result<Transfer> CudaExecutor::submit(TransferRequest request, const CudaSubmitOptions& options) {
  return streams_->submit(std::move(request), options);
}

transfer::ExecutorCounters CudaExecutor::counters() const {
  return streams_->counters();
}

const SwitchPoints& CudaExecutor::switch_points() const noexcept {
  return streams_->switch_points();
}

}  // namespace ashlar::backend::cuda
