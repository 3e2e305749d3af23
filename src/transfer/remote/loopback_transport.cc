#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <cerrno>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "ashlar/base/mutex.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/transfer/remote_transport.h"
#include "base/checked_math.h"
#include "base/table_seed.h"
#include "base/wide.h"
#include "transfer/remote/loopback_executor.h"
#include "transfer/remote/loopback_link.h"
#include "transfer/remote/process_watch.h"
#include "transfer/remote/registration_table.h"

namespace ashlar::transfer {
namespace {

class LoopbackRegistration final : public MemoryRegistration {
 public:
  LoopbackRegistration(std::shared_ptr<RegistrationTable> table, std::weak_ptr<ProcessWatch> watch,
                       std::uint32_t slot, std::vector<std::byte> key,
                       std::shared_ptr<storage::Storage> storage)
      : table_(std::move(table)),
        watch_(std::move(watch)),
        slot_(slot),
        key_(std::move(key)),
        storage_(std::move(storage)) {
    table_->publish(slot_, LoopbackKey::digest(key_));
  }
  ~LoopbackRegistration() override {
    if (!table_->withdraw(slot_, std::move(storage_))) return;
    if (const std::shared_ptr<ProcessWatch> watch = watch_.lock()) watch->release_memory_soon();
  }
  std::span<const std::byte> key() const noexcept override { return key_; }

 private:
  const std::shared_ptr<RegistrationTable> table_;
  const std::weak_ptr<ProcessWatch> watch_;
  const std::uint32_t slot_;
  const std::vector<std::byte> key_;
  std::shared_ptr<storage::Storage> storage_;
};

// Lets the kernel refuse whoever would map the memory for writing after this. Memory that was registered for
// writing before keeps what it allowed. Errors: kUnsupported: it was registered for reading before.
Result<void> seal(const storage::SharedMemory& memory, storage::AccessMode mode) {
  const int seals = fcntl(memory.descriptor, F_GET_SEALS);
  if (mode == storage::AccessMode::kReadWrite) {
    if (seals >= 0 && (seals & F_SEAL_FUTURE_WRITE) != 0)
      return make_error(ErrorCode::kUnsupported,
                        "this memory was registered for reading, after which no process can map it for "
                        "writing; let peers write into memory that was allocated for that");
    fcntl(memory.descriptor, F_ADD_SEALS, F_SEAL_SEAL);
    return {};
  }
  // Refused where peers may write already, and by kernels before 5.1: then only their transport obeys.
  if (fcntl(memory.descriptor, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EPERM && errno != EINVAL)
    return make_error(ErrorCode::kIo, "shared memory cannot be sealed against writing (errno %d)", errno);
  return {};
}

// Maps `bytes` of a memory file of a peer.
Result<std::shared_ptr<storage::Storage>> map_memory(std::int32_t pid, const LoopbackKey& key) {
  std::uint64_t end = 0;
  if (!add(key.offset, key.bytes, &end))
    return make_error(ErrorCode::kInvalidArgument, "%llu bytes from %llu on are not inside a file",
                      wide(key.bytes), wide(key.offset));
  const bool writes = key.mode == storage::AccessMode::kReadWrite;
  ASHLAR_TRY(const OwnedFd file, open_memory_file(pid, key.file, end, writes ? O_RDWR : O_RDONLY));
  const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t before = key.offset % page;
  const std::uint64_t length = before + key.bytes;
  void* const mapping = mmap(nullptr, length, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                             file.get(), static_cast<off_t>(key.offset - before));
  if (mapping == MAP_FAILED)
    return make_error(ErrorCode::kCapacity, "%llu bytes of process %d cannot be mapped (errno %d)",
                      wide(key.bytes), pid, errno);
  madvise(mapping, length, MADV_HUGEPAGE);  // a hint
  const std::shared_ptr<void> owner(mapping, [length](void* address) { munmap(address, length); });
  return storage::ExternalStorage::create({.kind = StorageKind::kSystem,
                                           .address = static_cast<std::byte*>(mapping) + before,
                                           .bytes = key.bytes,
                                           .owner = owner})
      .transform([](auto&& made) { return std::shared_ptr<storage::Storage>(made); });
}

// Whether the kernel copies from that process at all.
Result<void> probe(std::int32_t pid, std::uint64_t address) {
  std::byte byte{};
  const iovec local{&byte, 1};
  const iovec remote{reinterpret_cast<void*>(address), 1};
  if (process_vm_readv(pid, &local, 1, &remote, 1, 0) == 1) return {};
  const int error = errno;
  if (error == ESRCH) return make_error(ErrorCode::kUnavailable, "process %d has ended", pid);
  if (error == EFAULT)
    return make_error(ErrorCode::kUnavailable, "process %d has no memory at %llx any more", pid,
                      wide(address));
  return make_error(ErrorCode::kUnsupported,
                    "the system does not let this process read memory of process %d (%s); allocate it with "
                    "storage::SharedAllocator, or allow it: one user, kernel.yama.ptrace_scope = 0 or "
                    "CAP_SYS_PTRACE",
                    pid, std::generic_category().message(error).c_str());
}

class LoopbackPath final : public RemotePath {
 public:
  LoopbackPath(std::shared_ptr<LoopbackLink> link, std::shared_ptr<DeviceSharing> devices) noexcept
      : link_(std::move(link)), devices_(std::move(devices)) {}
  ~LoopbackPath() override {
    close(make_error(ErrorCode::kCancelled, "the path to agent %s was dropped",
                     link_->peer().to_string().c_str()));
  }
  // Closes the link and calls on_failure when the process ends. Called once, before the path is used.
  Result<void> watch(const std::shared_ptr<ProcessWatch>& watch,
                     std::function<void(const Error&)> on_failure) {
    ASHLAR_TRY(watch_id_, watch->add(link_->process(), [link = std::weak_ptr<LoopbackLink>(link_),
                                                        call = std::move(on_failure)] {
      const std::shared_ptr<LoopbackLink> open = link.lock();
      if (open == nullptr) return;
      const Error gone = make_error(ErrorCode::kUnavailable, "agent %s is gone: its process %d has ended",
                                    open->peer().to_string().c_str(), open->address().pid);
      if (open->close(gone) && call) call(gone);
    }));
    watch_ = watch;
    return {};
  }

  Result<std::shared_ptr<storage::RemoteStorage>> open(storage::RemoteMemory memory) override;
  void close(const Error& why) override;
  std::optional<Error> failure() const override { return link_->failure(); }

 private:
  Result<std::shared_ptr<storage::Storage>> local(const LoopbackKey& key, std::uint64_t digest);

  const std::shared_ptr<LoopbackLink> link_;
  const std::shared_ptr<DeviceSharing> devices_;
  std::weak_ptr<ProcessWatch> watch_;
  std::uint64_t watch_id_ = 0;
  Mutex mu_;
  // What is mapped, by the digest of its key: several parts of a region share one mapping.
  std::map<std::uint64_t, std::weak_ptr<storage::Storage>> opened_ ASHLAR_GUARDED_BY(mu_);
};

void LoopbackPath::close(const Error& why) {
  if (const std::shared_ptr<ProcessWatch> watch = watch_.lock()) watch->remove(watch_id_);
  link_->close(why);
}

Result<std::shared_ptr<storage::Storage>> LoopbackPath::local(const LoopbackKey& key, std::uint64_t digest) {
  const MutexLock lock(mu_);
  if (const auto found = opened_.find(digest); found != opened_.end())
    if (std::shared_ptr<storage::Storage> known = found->second.lock()) return known;
  std::shared_ptr<storage::Storage> made;
  if (key.access == PeerAccess::kMapped) {
    ASHLAR_TRY(made, map_memory(link_->address().pid, key));
  } else {
    if (devices_ == nullptr)
      return make_error(ErrorCode::kUnsupported,
                        "device memory of a peer needs LoopbackOptions::devices and device_executor");
    ASHLAR_TRY(made, devices_->open(key.handle, key.bytes, key.device));
  }
  std::erase_if(opened_, [](const auto& entry) { return entry.second.expired(); });
  opened_[digest] = made;
  return made;
}

Result<std::shared_ptr<storage::RemoteStorage>> LoopbackPath::open(storage::RemoteMemory memory) {
  ASHLAR_RETURN_IF_ERROR(link_->check_open());
  if (memory.agent != link_->peer().agent || memory.incarnation != link_->peer().incarnation)
    return make_error(ErrorCode::kInvalidArgument, "memory of agent %s is opened over the path to agent %s",
                      AgentIdentity{memory.agent, memory.incarnation}.to_string().c_str(),
                      link_->peer().to_string().c_str());
  if (memory.key.size() > storage::RemoteStorage::kMaxKeyBytes)
    return make_error(ErrorCode::kInvalidArgument, "a key of %zu bytes; it has at most %zu",
                      memory.key.size(), storage::RemoteStorage::kMaxKeyBytes);
  ASHLAR_TRY(const LoopbackKey key, LoopbackKey::decode(memory.key));
  const std::uint64_t digest = LoopbackKey::digest(memory.key);
  if (!link_->table().has(key.slot, digest))
    return make_error(ErrorCode::kInvalidArgument,
                      "agent %s does not share memory by this key, or not any more",
                      link_->peer().to_string().c_str());
  if (memory.mode == storage::AccessMode::kReadWrite && key.mode != memory.mode)
    return make_error(ErrorCode::kInvalidArgument,
                      "agent %s shares this memory for reading; it cannot be opened for writing",
                      link_->peer().to_string().c_str());
  std::uint64_t end = 0;
  if (memory.kind != key.kind || memory.device != key.device || memory.address < key.address ||
      !add(memory.address, memory.bytes, &end) || end > key.address + key.bytes)
    return make_error(ErrorCode::kInvalidArgument,
                      "%llu bytes at %llx are not inside the registered memory of %llu bytes at %llx",
                      wide(memory.bytes), wide(memory.address), wide(key.bytes), wide(key.address));
  std::shared_ptr<storage::Storage> seen;
  std::unique_ptr<SlotLock> slot_lock;
  if (key.access == PeerAccess::kKernel) {
    ASHLAR_RETURN_IF_ERROR(probe(link_->address().pid, memory.address));
    ASHLAR_TRY(OwnedFd table, PeerTable::open_again(link_->address().pid, link_->address().table));
    slot_lock = std::make_unique<SlotLock>(std::move(table), key.slot);
  } else {
    ASHLAR_TRY(const std::shared_ptr<storage::Storage> whole, local(key, digest));
    const std::uint64_t offset = memory.address - key.address;
    if (offset == 0 && memory.bytes == whole->size()) {
      seen = whole;
    } else {
      ASHLAR_TRY(seen, storage::ExternalStorage::create({.kind = whole->kind(),
                                                         .address = whole->address() + offset,
                                                         .bytes = memory.bytes,
                                                         .device = whole->device(),
                                                         .owner = whole})
                           .transform([](auto&& made) { return std::shared_ptr<storage::Storage>(made); }));
    }
  }
  return storage::RemoteStorage::create(
      std::move(memory),
      std::make_shared<LoopbackAccess>(link_, key.slot, digest, std::move(seen), std::move(slot_lock)));
}

}  // namespace

class LoopbackTransport::Impl {
 public:
  Impl(LoopbackAddress address, std::shared_ptr<RegistrationTable> table, std::shared_ptr<ProcessWatch> watch,
       std::shared_ptr<DeviceSharing> devices)
      : address_(address), table_(std::move(table)), watch_(std::move(watch)), devices_(std::move(devices)) {}

  const LoopbackAddress address_;
  const std::shared_ptr<RegistrationTable> table_;
  const std::shared_ptr<ProcessWatch> watch_;
  const std::shared_ptr<DeviceSharing> devices_;
  std::unique_ptr<LoopbackExecutor> executor_;
};

LoopbackTransport::LoopbackTransport(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
LoopbackTransport::~LoopbackTransport() = default;

Result<std::shared_ptr<LoopbackTransport>> LoopbackTransport::create(const LoopbackOptions& options) {
  if ((options.devices == nullptr) != (options.device_executor == nullptr))
    return make_error(ErrorCode::kInvalidArgument,
                      "devices and device_executor belong together: one shares memory, the other copies it");
  ASHLAR_TRY(LoopbackAddress address, LoopbackAddress::of_this_process());
  ASHLAR_TRY(const std::shared_ptr<RegistrationTable> table, RegistrationTable::create());
  address.table = table->file();
  ASHLAR_TRY(const std::shared_ptr<ProcessWatch> watch, ProcessWatch::create(table));
  auto impl = std::make_unique<Impl>(address, table, watch, options.devices);
  ASHLAR_TRY(impl->executor_, LoopbackExecutor::create(options, impl.get()));
  return std::shared_ptr<LoopbackTransport>(new LoopbackTransport(std::move(impl)));
}

std::vector<std::byte> LoopbackTransport::address() const {
  return impl_->address_.encode();
}

Executor& LoopbackTransport::executor() noexcept {
  return *impl_->executor_;
}

Result<std::unique_ptr<MemoryRegistration>> LoopbackTransport::register_memory(
    std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) {
  if (storage == nullptr) return make_error(ErrorCode::kInvalidArgument, "no storage to register");
  LoopbackKey key{.mode = mode,
                  .kind = storage->kind(),
                  .device = storage->device(),
                  .address = reinterpret_cast<std::uintptr_t>(storage->address()),
                  .bytes = storage->size(),
                  .id = random_word()};
  if (storage->kind() == StorageKind::kDevice && impl_->devices_ != nullptr) {
    key.access = PeerAccess::kDevice;
    ASHLAR_TRY(key.handle, impl_->devices_->share(*storage));
  } else if (const storage::SharedMemory* const shared = storage->shared()) {
    ASHLAR_RETURN_IF_ERROR(seal(*shared, mode));
    key.access = PeerAccess::kMapped;
    key.file = {shared->descriptor, shared->device_id, shared->inode};
    key.offset = shared->offset;
  } else if (storage->host_accessible()) {
    key.access = PeerAccess::kKernel;
  } else {
    return make_error(ErrorCode::kUnsupported,
                      "'%s' cannot be shared with processes of this machine; the loopback transport shares "
                      "host memory, and device memory through LoopbackOptions::devices",
                      storage->describe().c_str());
  }
  ASHLAR_TRY(key.slot, impl_->table_->take());
  std::vector<std::byte> bytes = key.encode();
  if (bytes.size() > storage::RemoteStorage::kMaxKeyBytes) {
    impl_->table_->withdraw(key.slot, nullptr);
    return make_error(ErrorCode::kUnsupported, "a device handle of %zu bytes does not fit into a key",
                      key.handle.size());
  }
  return std::unique_ptr<MemoryRegistration>(
      new LoopbackRegistration(impl_->table_, impl_->watch_, key.slot, std::move(bytes), std::move(storage)));
}

Result<std::shared_ptr<RemotePath>> LoopbackTransport::connect(const AgentIdentity& peer,
                                                               std::span<const std::byte> address,
                                                               std::function<void(const Error&)> on_failure,
                                                               Clock::TimePoint /*deadline*/) {
  if (peer.agent == 0 || peer.incarnation == 0)
    return make_error(ErrorCode::kInvalidArgument, "a peer has an identity; this one is %s",
                      peer.to_string().c_str());
  ASHLAR_TRY(const LoopbackAddress decoded, LoopbackAddress::decode(address));
  ASHLAR_TRY(std::shared_ptr<LoopbackLink> link, LoopbackLink::connect(impl_.get(), peer, decoded));
  auto path = std::make_shared<LoopbackPath>(std::move(link), impl_->devices_);
  ASHLAR_RETURN_IF_ERROR(path->watch(impl_->watch_, std::move(on_failure)));
  return std::shared_ptr<RemotePath>(path);
}

}  // namespace ashlar::transfer
