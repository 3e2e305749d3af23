#include "backend/ucx/memory.h"

#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "backend/ucx/framing.h"
#include "backend/ucx/transports.h"
#include "backend/ucx/ucx_library.h"
#include "base/wide.h"

namespace ashlar::backend::ucx {
namespace {

// Memory that UCX knows. Keeps the context.
class MappedHandle {
 public:
  static Result<std::shared_ptr<MappedHandle>> create(std::shared_ptr<UcxContext> context,
                                                      ucp_mem_map_params_t parameters) {
    ucp_mem_h handle = nullptr;
    if (const ucs_status_t status = ucx().ucp_mem_map(context->handle(), &parameters, &handle);
        status != UCS_OK)
      return make_error(status == UCS_ERR_NO_MEMORY ? ErrorCode::kCapacity : ErrorCode::kIo,
                        "UCX cannot register %zu bytes (%s)", parameters.length, reason(status).c_str());
    return std::shared_ptr<MappedHandle>(new MappedHandle(std::move(context), handle));
  }
  ~MappedHandle() { ucx().ucp_mem_unmap(context_->handle(), handle_); }
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
    const ucs_status_t status = ucx().ucp_mem_query(memory->handle(), &attributes);
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
  UcxRegistration(std::shared_ptr<RegionTable> table, RegionTable::Name name,
                  std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) noexcept
      : table_(std::move(table)), name_(name), storage_(std::move(storage)), mode_(mode) {}
  ~UcxRegistration() override { table_->remove(name_.region); }
  std::span<const std::byte> key() const noexcept override { return key_; }

  // Errors: those of register_storage().
  Result<void> make_key(const std::shared_ptr<UcxContext>& context) {
    MemoryKey key{reinterpret_cast<std::uintptr_t>(storage_->address()),
                  storage_->size(),
                  name_.region,
                  name_.token,
                  storage_->kind(),
                  storage_->device(),
                  mode_,
                  {}};
    // Only memory that peers map: for other memory UCX would emulate access, and read it after its end. And
    // only for writing too: UCX has no keys that only read.
    const auto* own = dynamic_cast<const UcxStorage*>(storage_.get());
    if (mode_ == storage::AccessMode::kReadWrite && own != nullptr && own->memory()->context() == context &&
        shares_memory(context->transports())) {
      ASHLAR_TRY(key.packed, pack(*own->memory()));
    }
    key_ = encode(key);
    if (key_.size() <= storage::RemoteStorage::kMaxKeyBytes) return {};
    return make_error(ErrorCode::kUnsupported, "the key of %s has %zu bytes, more than %zu",
                      storage_->describe().c_str(), key_.size(), storage::RemoteStorage::kMaxKeyBytes);
  }

 private:
  Result<std::vector<std::byte>> pack(const MappedHandle& memory) const {
    void* packed = nullptr;
    std::size_t length = 0;
    if (const ucs_status_t status =
            ucx().ucp_rkey_pack(memory.context()->handle(), memory.handle(), &packed, &length);
        status != UCS_OK)
      return make_error(ErrorCode::kIo, "%s has no remote key: %s", storage_->describe().c_str(),
                        reason(status).c_str());
    const auto* bytes = static_cast<const std::byte*>(packed);
    std::vector<std::byte> out(bytes, bytes + length);
    ucx().ucp_rkey_buffer_release(packed);
    return out;
  }

  std::shared_ptr<RegionTable> table_;
  const RegionTable::Name name_;
  std::shared_ptr<storage::Storage> storage_;
  const storage::AccessMode mode_;
  std::vector<std::byte> key_;
};

}  // namespace

std::shared_ptr<storage::Allocator> make_allocator(std::shared_ptr<UcxContext> context) {
  return std::make_shared<UcxAllocator>(std::move(context));
}

Result<std::unique_ptr<transfer::MemoryRegistration>> register_storage(
    std::shared_ptr<UcxContext> context, std::shared_ptr<RegionTable> table,
    std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) {
  const RegionTable::Name name = table->add(storage, mode);
  auto out = std::make_unique<UcxRegistration>(std::move(table), name, std::move(storage), mode);
  ASHLAR_RETURN_IF_ERROR(out->make_key(context));
  return std::unique_ptr<transfer::MemoryRegistration>(std::move(out));
}

}  // namespace ashlar::backend::ucx
