// FakeDevice: memory of a device without one, for machines that have no GPU. The host cannot read or write at
// its addresses: that ends the process. Its executor copies between it and host memory, as a GPU's would.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/executor.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar {

class FakeDevice {
 public:
  static constexpr std::uint64_t kBytes = 1 << 20;

  // One memory, mapped twice: by the device's addresses without any right, and for the driver.
  explicit FakeDevice(std::uint64_t bytes = kBytes) : bytes_(bytes) {
    const int file = memfd_create("fake_device", MFD_CLOEXEC);
    ASHLAR_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes_)) == 0,
                 "no memory for the fake device");
    device_ = map(file, PROT_NONE);
    driver_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }
  ~FakeDevice() {
    munmap(device_, bytes_);
    munmap(driver_, bytes_);
  }
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // As cudaMalloc(); freed with the device.
  storage::ExternalMemory allocate(std::uint64_t bytes) {
    std::byte* const address = device_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    ASHLAR_CHECK(used_ <= bytes_, "the fake device has %llu bytes", static_cast<unsigned long long>(bytes_));
    return {.kind = StorageKind::kDevice, .address = address, .bytes = bytes, .device = 0};
  }
  // Copies as a driver does; either side may be the device's. Copies are ordered with each other.
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) const {
    const MutexLock lock(mu_);
    std::memcpy(driver(to), driver(const_cast<std::byte*>(from)), bytes);
  }
  // Where the driver reads and writes an address of the device; others stay as they are.
  std::byte* driver(std::byte* address) const noexcept {
    return address >= device_ && address < device_ + bytes_ ? driver_ + (address - device_) : address;
  }

 private:
  std::byte* map(int file, int rights) const {
    void* const address = mmap(nullptr, bytes_, rights, MAP_SHARED, file, 0);
    ASHLAR_CHECK(address != MAP_FAILED, "the fake device cannot be mapped");
    return static_cast<std::byte*>(address);
  }
  const std::uint64_t bytes_;
  std::byte* device_;
  std::byte* driver_;
  std::uint64_t used_ = 0;
  mutable Mutex mu_;
};

// Copies on the submitting thread.
class FakeDeviceExecutor final : public transfer::Executor {
 public:
  explicit FakeDeviceExecutor(std::shared_ptr<const FakeDevice> device) : device_(std::move(device)) {}

  std::string_view name() const noexcept override { return "fake_device"; }
  bool handles(const transfer::BlockSet& from, const transfer::BlockSet& to) const noexcept override {
    return (from.kind() == StorageKind::kDevice && to.host_accessible()) ||
           (to.kind() == StorageKind::kDevice && from.host_accessible());
  }
  Result<transfer::Transfer> submit(transfer::TransferRequest request) override {
    ASHLAR_RETURN_IF_ERROR(transfer::check_handles(*this, request.plan));
    ASHLAR_TRY(const std::shared_ptr<transfer::TransferState> state,
               transfer::TransferState::admit(std::move(request), admission_));
    state->start();
    state->moved(copy(*device_, state->plan()));
    state->finish();
    return transfer::Transfer(state);
  }
  // What a driver does with a plan.
  static transfer::TransferStats copy(const FakeDevice& device, const transfer::TransferPlan& plan) {
    transfer::TransferStats stats;
    for (std::size_t plane = 0; plane < plan.copies().size(); ++plane) {
      const transfer::CopyPlan& pieces = plan.copies()[plane];
      transfer::CopyCursor cursor(pieces, kStrip, 0, transfer::CopyCursor::units(pieces, kStrip));
      transfer::CopyPiece piece;
      while (cursor.next(&piece)) {
        device.copy(plan.to().address(plane, piece.to), plan.from().address(plane, piece.from), piece.bytes);
        stats.bytes += piece.bytes;
        ++stats.operations;
      }
    }
    return stats;
  }
  transfer::ExecutorCounters counters() const override { return admission_.counters(); }

 private:
  static constexpr std::uint64_t kStrip = 4096;
  const std::shared_ptr<const FakeDevice> device_;
  transfer::Admission admission_{{}, Clock::real()};
};

}  // namespace ashlar
