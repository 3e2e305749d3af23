#include "backend/cuda/memory_check.h"

#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::size_t kMaxKnown = 1024;

}  // namespace

Result<Reach> MemoryCheck::reach(const std::shared_ptr<const transfer::BlockSet>& set) {
  {
    const MutexLock lock(mu_);
    const auto found = known_.find(set.get());
    if (found != known_.end() && found->second.set.lock() == set) return found->second.reach;
  }
  const Result<Reach> asked = ask(*set);
  if (!asked) return asked;
  const MutexLock lock(mu_);
  if (known_.size() >= kMaxKnown)
    std::erase_if(known_, [](const auto& entry) { return entry.second.set.expired(); });
  if (known_.size() < kMaxKnown) known_[set.get()] = {set, *asked};
  return asked;
}

Result<Reach> MemoryCheck::ask(const transfer::BlockSet& set) const {
  const DeviceScope scope(device_);
  const bool on_device = set.kind() == StorageKind::kDevice;
  for (const transfer::Plane& plane : set.planes()) {
    for (const transfer::RegionMemory& region : plane.regions) {
      const std::byte* first = region.storage->address() + region.offset;
      for (const std::byte* at : {first, first + plane.layout.region_bytes() - 1}) {
        cudaPointerAttributes about{};
        const cudaError_t status = cudaPointerGetAttributes(&about, at);
        if (status != cudaSuccess)
          return cuda_error(status, "memory at %p cannot be queried", static_cast<const void*>(at));
        if (on_device) {
          const bool device_memory =
              about.type == cudaMemoryTypeDevice || about.type == cudaMemoryTypeManaged;
          if (!device_memory || about.device != device_)
            return make_error(ErrorCode::kInvalidArgument,
                              "%s at %p is not memory of device %d (CUDA says type %d, device %d)",
                              region.storage->describe().c_str(), static_cast<const void*>(at), device_,
                              static_cast<int>(about.type), about.device);
        } else if (about.type == cudaMemoryTypeUnregistered || about.devicePointer != at) {
          return Reach::kPageable;
        }
      }
    }
  }
  return on_device ? Reach::kDevice : Reach::kLocked;
}

}  // namespace ashlar::backend::cuda
