#include "ashlar/backend/ucx/ucx_transport.h"

#include <utility>

#include "ashlar/base/check.h"
#include "backend/ucx/engine.h"
#include "backend/ucx/memory.h"
#include "backend/ucx/transports.h"
#include "base/wide.h"

namespace ashlar::backend::ucx {

using storage::RemoteMemory;
using storage::RemoteStorage;
using transfer::AgentIdentity;
using transfer::BlockSet;

namespace {

constexpr std::uint64_t kMinStripBytes = 4096;

Result<void> check_duration(const char* field, Clock::Duration value, Clock::Duration least) {
  if (value >= least && value <= std::chrono::hours(1)) return {};
  return make_error(ErrorCode::kInvalidArgument, "%s is %lld ns; it is %lld ns to an hour", field,
                    static_cast<long long>(value.count()), static_cast<long long>(least.count()));
}

class UcxPath final : public transfer::RemotePath {
 public:
  UcxPath(const std::shared_ptr<Engine>& engine, std::shared_ptr<Link> link) noexcept
      : engine_(engine), link_(std::move(link)) {}
  ~UcxPath() override {
    close(make_error(ErrorCode::kUnavailable, "the path to agent %s was dropped",
                     link_->peer().to_string().c_str()));
  }

  Result<std::shared_ptr<RemoteStorage>> open(RemoteMemory memory) override {
    const AgentIdentity owner{memory.agent, memory.incarnation};
    if (owner != link_->peer())
      return make_error(ErrorCode::kInvalidArgument, "memory of agent %s was opened on the path to agent %s",
                        owner.to_string().c_str(), link_->peer().to_string().c_str());
    ASHLAR_TRY(const MemoryKey key, decode_key(memory.key));
    if (memory.kind != key.kind || memory.device != key.device)
      return make_error(ErrorCode::kInvalidArgument,
                        "the key is for %s memory, device %d; the memory is %s, device %d",
                        std::string(to_string(key.kind)).c_str(), key.device,
                        std::string(to_string(memory.kind)).c_str(), memory.device);
    if (memory.mode == storage::AccessMode::kReadWrite && key.mode != memory.mode)
      return make_error(ErrorCode::kInvalidArgument,
                        "agent %s offers this memory for reading; it cannot be opened for writing",
                        owner.to_string().c_str());
    if (memory.address < key.address || memory.address - key.address > key.bytes ||
        memory.bytes > key.bytes - (memory.address - key.address))
      return make_error(ErrorCode::kInvalidArgument,
                        "the key is for %llu bytes at %llx, the memory has %llu bytes at %llx",
                        wide(key.bytes), wide(key.address), wide(memory.bytes), wide(memory.address));
    ASHLAR_TRY(std::shared_ptr<const storage::RemoteAccess> access, link_->open(link_, key));
    return RemoteStorage::create(std::move(memory), std::move(access));
  }

  void close(const Error& why) override {
    if (!link_->fail(why)) return;
    if (const std::shared_ptr<Engine> engine = engine_.lock()) engine->attend(link_);
  }
  std::optional<Error> failure() const override { return link_->failure(); }

 private:
  std::weak_ptr<Engine> engine_;
  std::shared_ptr<Link> link_;
};

const UcxAccess* access_of(const transfer::RegionMemory& region) noexcept {
  if (region.storage->kind() != StorageKind::kRemote) return nullptr;
  const auto& storage = static_cast<const RemoteStorage&>(*region.storage);
  return dynamic_cast<const UcxAccess*>(storage.access().get());
}

class UcxExecutor final : public transfer::Executor {
 public:
  explicit UcxExecutor(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}

  std::string_view name() const noexcept override { return "ucx"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override {
    return (from.host_accessible() && access_of(to.planes()[0].regions[0]) != nullptr) ||
           (to.host_accessible() && access_of(from.planes()[0].regions[0]) != nullptr);
  }
  Result<transfer::Transfer> submit(transfer::TransferRequest request) override {
    ASHLAR_RETURN_IF_ERROR(check_handles(*this, request.plan));
    const BlockSet& remote = request.plan.from().host_accessible() ? request.plan.to() : request.plan.from();
    std::shared_ptr<Link> link;
    for (const transfer::Plane& plane : remote.planes())
      for (const transfer::RegionMemory& region : plane.regions) {
        const UcxAccess* access = access_of(region);
        if (link == nullptr && access != nullptr) link = access->link();
        if (access == nullptr || access->link() != link || !link->belongs_to(engine_.get()))
          return make_error(ErrorCode::kUnsupported,
                            "the regions of a remote block set lie behind different paths or transports");
      }
    return engine_->submit(std::move(request), link);
  }
  transfer::ExecutorCounters counters() const override { return engine_->counters(); }

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace

Result<void> UcxOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(check_transports(transports));
  if (segment_bytes < 8192 || segment_bytes > (std::uint32_t{16} << 20))
    return make_error(ErrorCode::kInvalidArgument, "segment_bytes is %u; it is 8192 to 16 MiB",
                      segment_bytes);
  if (strip_bytes < kMinStripBytes || strip_bytes > transfer::kMaxStripBytes)
    return make_error(ErrorCode::kInvalidArgument, "strip_bytes is %llu; it is %llu to %llu",
                      wide(strip_bytes), wide(kMinStripBytes), wide(transfer::kMaxStripBytes));
  if (window == 0 || window > 4096)
    return make_error(ErrorCode::kInvalidArgument, "window is %u; it is 1 to 4096", window);
  ASHLAR_RETURN_IF_ERROR(check_duration("spin", spin, {}));
  ASHLAR_RETURN_IF_ERROR(check_duration("inline_limit", inline_limit, {}));
  ASHLAR_RETURN_IF_ERROR(check_duration("connect_limit", connect_limit, std::chrono::milliseconds(1)));
  ASHLAR_RETURN_IF_ERROR(check_duration("close_limit", close_limit, std::chrono::milliseconds(1)));
  ASHLAR_RETURN_IF_ERROR(check_duration("reply_limit", reply_limit, std::chrono::milliseconds(1)));
  if (bounce_buffers == 0 || bounce_buffers > 1024)
    return make_error(ErrorCode::kInvalidArgument, "bounce_buffers is %u; it is 1 to 1024", bounce_buffers);
  // UCX cannot take a buffer back from a reader that was killed, unless it was connected by TCP.
  if (device_executor != nullptr && shares_memory(transports))
    return make_error(ErrorCode::kInvalidArgument,
                      "device_executor needs TCP alone, not '%s'; within a machine LoopbackTransport shares "
                      "device memory",
                      transports.c_str());
  return limits.validate();
}

class UcxTransport::Impl {
 public:
  explicit Impl(std::shared_ptr<Engine> its_engine) : engine(std::move(its_engine)), executor(engine) {}
  ~Impl() { engine->stop(); }

  std::shared_ptr<Engine> engine;
  UcxExecutor executor;
};

UcxTransport::UcxTransport(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
UcxTransport::~UcxTransport() = default;

Result<std::shared_ptr<UcxTransport>> UcxTransport::create(const UcxOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(std::shared_ptr<Engine> engine, Engine::create(options));
  return std::shared_ptr<UcxTransport>(new UcxTransport(std::make_unique<Impl>(std::move(engine))));
}

std::vector<std::byte> UcxTransport::address() const {
  return impl_->engine->address();
}

Result<void> UcxTransport::listen_at(std::string_view host) {
  return impl_->engine->listen_at(std::string(host));
}

Result<std::unique_ptr<transfer::MemoryRegistration>> UcxTransport::register_memory(
    std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) {
  const bool on_device = storage != nullptr && storage->kind() == StorageKind::kDevice;
  if (on_device && !impl_->engine->copies_devices())
    return make_error(ErrorCode::kUnsupported,
                      "the ucx transport serves '%s' only where UcxOptions::device_executor copies it",
                      storage->describe().c_str());
  if (storage == nullptr || (!on_device && !storage->host_accessible()))
    return make_error(ErrorCode::kUnsupported, "the ucx transport serves memory, not %s",
                      storage == nullptr ? "nothing" : storage->describe().c_str());
  return register_storage(impl_->engine->context(), impl_->engine->table(), std::move(storage), mode);
}

std::shared_ptr<storage::Allocator> UcxTransport::allocator() const {
  return make_allocator(impl_->engine->context());
}

Result<std::shared_ptr<transfer::RemotePath>> UcxTransport::connect(
    const AgentIdentity& peer, std::span<const std::byte> address,
    std::function<void(const Error&)> on_failure, Clock::TimePoint deadline) {
  if (address.size() > kMaxAddressBytes)
    return make_error(ErrorCode::kInvalidArgument, "an address has at most %zu bytes, not %zu",
                      kMaxAddressBytes, address.size());
  ASHLAR_TRY(const WorkerAddress decoded, decode_address(address));
  ASHLAR_TRY(std::shared_ptr<Link> link,
             impl_->engine->connect(peer, decoded, std::move(on_failure), deadline));
  return std::shared_ptr<transfer::RemotePath>(std::make_shared<UcxPath>(impl_->engine, std::move(link)));
}

transfer::Executor& UcxTransport::executor() noexcept {
  return impl_->executor;
}

}  // namespace ashlar::backend::ucx
