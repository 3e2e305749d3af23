#include "backend/ucx/region_table.h"

#include <random>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/ucx/peer_store.h"

namespace ashlar::backend::ucx {

RegionTable::Name RegionTable::add(std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) {
  std::random_device random;
  const std::uint64_t token = std::uint64_t{random()} << 32 | random();
  const MutexLock lock(mu_);
  const std::uint64_t region = next_++;
  regions_.emplace(region, Region{std::move(storage), token, mode});
  return {region, token};
}

void RegionTable::remove(std::uint64_t region) {
  std::shared_ptr<storage::Storage> last;  // goes outside the lock
  const MutexLock lock(mu_);
  const auto found = regions_.find(region);
  ASHLAR_CHECK(found != regions_.end(), "a region of memory is withdrawn twice");
  last = std::move(found->second.storage);
  regions_.erase(found);
  while (device_writes_.contains(region)) write_ended_.wait(mu_);
}

const RegionTable::Region* RegionTable::look_up(const RequestHeader& request) const {
  const auto found = regions_.find(request.region);
  if (found == regions_.end() || found->second.token != request.token) return nullptr;
  const std::uint64_t size = found->second.storage->size();
  if (request.bytes == 0 || request.offset > size || request.bytes > size - request.offset) return nullptr;
  return &found->second;
}

std::shared_ptr<storage::Storage> RegionTable::find(const RequestHeader& request) const {
  const MutexLock lock(mu_);
  const Region* region = look_up(request);
  return region == nullptr ? nullptr : region->storage;
}

Verdict RegionTable::write(const RequestHeader& request, std::span<const std::byte> bytes, bool* on_device) {
  const MutexLock lock(mu_);
  const Region* region = look_up(request);
  if (region == nullptr || bytes.size() != request.bytes) return Verdict::kNotOffered;
  if (region->mode != storage::AccessMode::kReadWrite) return Verdict::kReadOnly;
  *on_device = !region->storage->host_accessible();
  if (*on_device) return Verdict::kGranted;
  store_for_peer(region->storage->address() + request.offset, bytes);
  return Verdict::kGranted;
}

std::shared_ptr<storage::Storage> RegionTable::begin_device_write(const RequestHeader& request) {
  const MutexLock lock(mu_);
  const Region* region = look_up(request);
  if (region == nullptr || region->mode != storage::AccessMode::kReadWrite) return nullptr;
  ++device_writes_[request.region];
  return region->storage;
}

void RegionTable::end_device_write(std::uint64_t region) {
  const MutexLock lock(mu_);
  const auto found = device_writes_.find(region);
  ASHLAR_CHECK(found != device_writes_.end(), "a write into device memory ends twice");
  if (--found->second == 0) device_writes_.erase(found);
  write_ended_.notify_all();
}

}  // namespace ashlar::backend::ucx
