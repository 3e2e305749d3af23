// A handle of CUDA names a whole allocation, so ours also has the offset in it. The driver knows where an
// allocation starts; the runtime finds the driver's function, because the driver is not linked.
#include "ashlar/backend/cuda/cuda_ipc.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "ashlar/backend/cuda/device.h"
#include "ashlar/storage/external_storage.h"
#include "backend/cuda/cuda_error.h"
#include "base/byte_io.h"
#include "base/table_seed.h"
#include "base/wide.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::uint32_t kHandleMagic = 0x4349'4C41;  // "ALIC"
constexpr std::uint16_t kHandleVersion = 1;
constexpr unsigned int kSymbolVersion = 12000;  // of CUDA, in which the function is as below

using Uuid = std::array<std::byte, 16>;

struct IpcHandle {
  std::int32_t pid = 0;
  std::uint64_t process = 0;  // random: tells a process from a later one with its pid
  Uuid uuid = {};
  std::uint64_t address = 0;  // at the owner
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // of the address in its allocation
  cudaIpcMemHandle_t memory = {};

  std::vector<std::byte> encode() const {
    ByteWriter out;
    out.put(kHandleMagic);
    out.put(kHandleVersion);
    out.put(pid);
    out.put(process);
    out.put_bytes(uuid);
    out.put(address);
    out.put(bytes);
    out.put(offset);
    out.put_bytes(std::as_bytes(std::span(memory.reserved)));
    return std::move(out.bytes());
  }
  static std::optional<IpcHandle> decode(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    IpcHandle handle;
    const bool known = in.get<std::uint32_t>() == kHandleMagic && in.get<std::uint16_t>() == kHandleVersion;
    handle.pid = in.get<std::int32_t>();
    handle.process = in.get<std::uint64_t>();
    std::ranges::copy(in.get_bytes(handle.uuid.size()), handle.uuid.begin());
    handle.address = in.get<std::uint64_t>();
    handle.bytes = in.get<std::uint64_t>();
    handle.offset = in.get<std::uint64_t>();
    const std::span<const std::byte> memory = in.get_bytes(sizeof handle.memory.reserved);
    if (!known || !in.ok() || in.left() != 0 || handle.pid <= 0) return std::nullopt;
    std::memcpy(handle.memory.reserved, memory.data(), memory.size());
    return handle;
  }
};

std::uint64_t this_process() {
  static const std::uint64_t word = random_word();
  return word;
}

Result<Uuid> uuid_of(int device) {
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess)
    return cuda_error(status, "device %d cannot be described", device);
  Uuid uuid{};
  static_assert(sizeof properties.uuid.bytes == sizeof uuid);
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

// The start of the allocation that holds an address.
Result<std::uint64_t> allocation_start(std::uint64_t address) {
  using GetAddressRange = int (*)(unsigned long long* base, std::size_t* size, unsigned long long address);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, kSymbolVersion,
                                                              cudaEnableDefault, &answer);
  if (status != cudaSuccess || found == nullptr)
    return cuda_error(status, "the driver has no cuMemGetAddressRange");
  unsigned long long base = 0;
  std::size_t size = 0;
  if (const int code = reinterpret_cast<GetAddressRange>(found)(&base, &size, address); code != 0)
    return make_error(ErrorCode::kUnsupported, "CUDA has no allocation at %llx (CUresult %d)", wide(address),
                      code);
  return std::uint64_t{base};
}

Result<std::shared_ptr<storage::Storage>> device_memory(std::byte* address, std::uint64_t bytes, int device,
                                                        std::shared_ptr<const void> owner) {
  return storage::ExternalStorage::create({.kind = StorageKind::kDevice,
                                           .address = address,
                                           .bytes = bytes,
                                           .device = device,
                                           .owner = std::move(owner)})
      .transform([](auto&& made) { return std::shared_ptr<storage::Storage>(made); });
}

}  // namespace

Result<std::shared_ptr<CudaIpc>> CudaIpc::create() {
  ASHLAR_RETURN_IF_ERROR(device_count());
  return std::shared_ptr<CudaIpc>(new CudaIpc());
}

Result<std::vector<std::byte>> CudaIpc::share(const storage::Storage& storage) {
  if (storage.kind() != StorageKind::kDevice)
    return make_error(ErrorCode::kUnsupported, "'%s' is not device memory", storage.describe().c_str());
  IpcHandle handle{.pid = getpid(),
                   .process = this_process(),
                   .address = reinterpret_cast<std::uintptr_t>(storage.address()),
                   .bytes = storage.size()};
  const DeviceScope scope(storage.device());
  ASHLAR_TRY(handle.uuid, uuid_of(storage.device()));
  ASHLAR_TRY(const std::uint64_t start, allocation_start(handle.address));
  handle.offset = handle.address - start;
  const cudaError_t status = cudaIpcGetMemHandle(&handle.memory, reinterpret_cast<void*>(start));
  if (status != cudaSuccess) {
    const Error error =
        cuda_error(status, "'%s' cannot be shared with other processes", storage.describe().c_str());
    if (error.code() == ErrorCode::kUnavailable) return error;
    return Error(ErrorCode::kUnsupported, error.message() + "; allocate it with cudaMalloc()");
  }
  return handle.encode();
}

Result<std::shared_ptr<storage::Storage>> CudaIpc::open(std::span<const std::byte> bytes_of_handle,
                                                        std::uint64_t bytes, std::int32_t device) {
  const std::optional<IpcHandle> handle = IpcHandle::decode(bytes_of_handle);
  if (!handle || bytes == 0 || bytes > handle->bytes)
    return make_error(ErrorCode::kInvalidArgument,
                      "%zu bytes that are not a CUDA handle for %llu bytes of device %d",
                      bytes_of_handle.size(), wide(bytes), device);
  ASHLAR_TRY(const int count, device_count());
  int here = -1;
  for (int i = 0; i < count && here < 0; ++i) {
    ASHLAR_TRY(const Uuid uuid, uuid_of(i));
    if (uuid == handle->uuid) here = i;
  }
  if (here < 0)
    return make_error(ErrorCode::kUnsupported,
                      "device %d of the owner is none of the %d that this process sees; check "
                      "CUDA_VISIBLE_DEVICES",
                      device, count);
  if (handle->process == this_process())
    return device_memory(reinterpret_cast<std::byte*>(handle->address), bytes, here, nullptr);
  if (::kill(handle->pid, 0) != 0 && errno == ESRCH)
    return make_error(ErrorCode::kUnavailable, "process %d, which owns the device memory, has ended",
                      handle->pid);
  const DeviceScope scope(here);
  void* start = nullptr;
  const cudaError_t status = cudaIpcOpenMemHandle(&start, handle->memory, cudaIpcMemLazyEnablePeerAccess);
  if (status != cudaSuccess) {
    const Error error =
        cuda_error(status, "memory of process %d on device %d cannot be opened", handle->pid, here);
    if (status != cudaErrorInvalidValue && status != cudaErrorInvalidResourceHandle) return error;
    return Error(ErrorCode::kInvalidArgument, error.message());
  }
  const std::shared_ptr<void> owner(start, [here](void* opened) {
    const DeviceScope closing(here);
    if (cudaIpcCloseMemHandle(opened) != cudaSuccess) static_cast<void>(cudaGetLastError());
  });
  return device_memory(static_cast<std::byte*>(start) + handle->offset, bytes, here, owner);
}

}  // namespace ashlar::backend::cuda
