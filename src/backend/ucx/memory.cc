#include "backend/ucx/memory.h"

#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "backend/ucx/framing.h"
#include "base/wide.h"

namespace ashlar::backend::ucx {
namespace {

// Memory that UCX knows. Keeps the context.
class MappedHandle {
 public:
  static Result<std::shared_ptr<MappedHandle>> create(std::shared_ptr<UcxContext> context,
                                                      ucp_mem_map_params_t parameters) {
    ucp_mem_h handle = nullptr;
    if (const ucs_status_t status = ucp_mem_map(context->handle(), &parameters, &handle); status != UCS_OK)
      return make_error(status == UCS_ERR_NO_MEMORY ? ErrorCode::kCapacity : ErrorCode::kIo,
                        "UCX cannot register %zu bytes (%s)", parameters.length, reason(status).c_str());
    return std::shared_ptr<MappedHandle>(new MappedHandle(std::move(context), handle));
  }
  ~MappedHandle() { ucp_mem_unmap(context_->handle(), handle_); }
  MappedHandle(const MappedHandle&) = delete;
  MappedHandle& operator=(const MappedHandle&) = delete;

  const std::shared_ptr<UcxContext>& context() const noexcept { return context_; }
  ucp_mem_h handle() const noexcept { return handle_; }

 private:
  MappedHandle(std::shared_ptr<UcxContext> context, ucp_mem_h handle) noexcept
      : context_(std::move(context)), handle_(handle) {}
  std::shared_ptr<UcxContext> context_;
  ucp_mem_h handle_;
};

class UcxStorage final : public storage::Storage {
 public:
  UcxStorage(std::shared_ptr<MappedHandle> memory, std::byte* address, std::uint64_t bytes) noexcept
      : Storage(StorageKind::kSystem, address, bytes), memory_(std::move(memory)) {}
  const std::shared_ptr<MappedHandle>& memory() const noexcept { return memory_; }

 private:
  std::shared_ptr<MappedHandle> memory_;
};

class UcxAllocator final : public storage::Allocator {
 public:
  explicit UcxAllocator(std::shared_ptr<UcxContext> context) noexcept : context_(std::move(context)) {}
  StorageKind kind() const noexcept override { return StorageKind::kSystem; }

  Result<std::shared_ptr<storage::Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override {
    if (bytes == 0 || bytes > storage_limit() || alignment == 0 || (alignment & (alignment - 1)) != 0 ||
        alignment > storage_limit())
      return make_error(ErrorCode::kInvalidArgument,
                        "%llu bytes with an alignment of %llu cannot be allocated", wide(bytes),
                        wide(alignment));
    ucp_mem_map_params_t parameters{};
    parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    parameters.length = bytes + alignment - 1;
    parameters.flags = UCP_MEM_MAP_ALLOCATE;
    ASHLAR_TRY(std::shared_ptr<MappedHandle> memory, MappedHandle::create(context_, parameters));
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    const ucs_status_t status = ucp_mem_query(memory->handle(), &attributes);
    ASHLAR_CHECK(status == UCS_OK, "UCX does not know its own memory: %s", reason(status).c_str());
    const auto start = reinterpret_cast<std::uintptr_t>(attributes.address);
    auto* address = reinterpret_cast<std::byte*>((start + alignment - 1) & ~(alignment - 1));
    return std::shared_ptr<storage::Storage>(std::make_shared<UcxStorage>(std::move(memory), address, bytes));
  }

 private:
  static constexpr std::uint64_t storage_limit() { return std::uint64_t{1} << 47; }
  std::shared_ptr<UcxContext> context_;
};

class UcxRegistration final : public transfer::MemoryRegistration {
 public:
  UcxRegistration(std::shared_ptr<MappedHandle> memory, std::shared_ptr<storage::Storage> storage,
                  std::vector<std::byte> key) noexcept
      : storage_(std::move(storage)), memory_(std::move(memory)), key_(std::move(key)) {}
  std::span<const std::byte> key() const noexcept override { return key_; }

 private:
  std::shared_ptr<storage::Storage> storage_;
  std::shared_ptr<MappedHandle> memory_;  // goes before the storage
  std::vector<std::byte> key_;
};

}  // namespace

std::shared_ptr<storage::Allocator> make_allocator(std::shared_ptr<UcxContext> context) {
  return std::make_shared<UcxAllocator>(std::move(context));
}

Result<std::unique_ptr<transfer::MemoryRegistration>> register_storage(
    std::shared_ptr<UcxContext> context, std::shared_ptr<storage::Storage> storage) {
  std::shared_ptr<MappedHandle> memory;
  const auto* own = dynamic_cast<const UcxStorage*>(storage.get());
  if (own != nullptr && own->memory()->context() == context) {
    memory = own->memory();
  } else {
    ucp_mem_map_params_t parameters{};
    parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    parameters.address = storage->address();
    parameters.length = storage->size();
    ASHLAR_TRY(memory, MappedHandle::create(context, parameters));
  }
  void* packed = nullptr;
  std::size_t length = 0;
  if (const ucs_status_t status = ucp_rkey_pack(context->handle(), memory->handle(), &packed, &length);
      status != UCS_OK)
    return make_error(ErrorCode::kIo, "%s has no remote key: %s", storage->describe().c_str(),
                      reason(status).c_str());
  const auto* bytes = static_cast<const std::byte*>(packed);
  std::vector<std::byte> key =
      encode(MemoryKey{reinterpret_cast<std::uintptr_t>(storage->address()), storage->size(),
                       std::vector<std::byte>(bytes, bytes + length)});
  ucp_rkey_buffer_release(packed);
  if (key.size() > storage::RemoteStorage::kMaxKeyBytes)
    return make_error(ErrorCode::kUnsupported, "the key of %s has %zu bytes, more than %zu",
                      storage->describe().c_str(), key.size(), storage::RemoteStorage::kMaxKeyBytes);
  return std::unique_ptr<transfer::MemoryRegistration>(
      std::make_unique<UcxRegistration>(std::move(memory), std::move(storage), std::move(key)));
}

}  // namespace ashlar::backend::ucx
