#include "transfer/remote/registration_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "base/byte_io.h"
#include "base/wide.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::transfer {
namespace {

constexpr std::uint32_t kKeyMagic = 0x4B50'4C41;  // "ALPK"
constexpr std::uint16_t kKeyVersion = 2;
constexpr std::size_t kTableBytes = RegistrationTable::kSlots * sizeof(std::uint64_t);
constexpr std::chrono::seconds kLastWait{5};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share the digests");

// Locks or unlocks the byte of an entry, and does not wait.
bool lock_slot(int table, std::uint32_t slot, short type) noexcept {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = slot;
  range.l_len = 1;
  return fcntl(table, F_OFD_SETLK, &range) == 0;
}

}  // namespace

std::vector<std::byte> LoopbackKey::encode() const {
  ByteWriter out;
  out.put(kKeyMagic);
  out.put(kKeyVersion);
  out.put(static_cast<std::uint8_t>(access));
  out.put(static_cast<std::uint8_t>(mode));
  out.put(static_cast<std::uint8_t>(kind));
  out.put(device);
  out.put(address);
  out.put(bytes);
  out.put(slot);
  out.put(id);
  out.put(file.descriptor);
  out.put(file.device_id);
  out.put(file.inode);
  out.put(offset);
  out.put(static_cast<std::uint32_t>(handle.size()));
  out.put_bytes(handle);
  return std::move(out.bytes());
}

Result<LoopbackKey> LoopbackKey::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  LoopbackKey key;
  const auto magic = in.get<std::uint32_t>();
  const auto version = in.get<std::uint16_t>();
  key.access = static_cast<PeerAccess>(in.get<std::uint8_t>());
  key.mode = static_cast<storage::AccessMode>(in.get<std::uint8_t>());
  key.kind = static_cast<StorageKind>(in.get<std::uint8_t>());
  key.device = in.get<std::int32_t>();
  key.address = in.get<std::uint64_t>();
  key.bytes = in.get<std::uint64_t>();
  key.slot = in.get<std::uint32_t>();
  key.id = in.get<std::uint64_t>();
  key.file.descriptor = in.get<std::int32_t>();
  key.file.device_id = in.get<std::uint64_t>();
  key.file.inode = in.get<std::uint64_t>();
  key.offset = in.get<std::uint64_t>();
  const std::span<const std::byte> handle = in.get_bytes(in.get<std::uint32_t>());
  key.handle.assign(handle.begin(), handle.end());
  const bool known = key.access == PeerAccess::kMapped || key.access == PeerAccess::kKernel ||
                     key.access == PeerAccess::kDevice;
  const bool has_mode = key.mode == storage::AccessMode::kRead || key.mode == storage::AccessMode::kReadWrite;
  if (!in.ok() || in.left() != 0 || magic != kKeyMagic || version != kKeyVersion || !known || !has_mode)
    return make_error(ErrorCode::kInvalidArgument,
                      "a key of %zu bytes that no loopback transport of this version made", bytes.size());
  return key;
}

std::uint64_t LoopbackKey::digest(std::span<const std::byte> key) noexcept {
  return std::max<std::uint64_t>(1, XXH3_64bits(key.data(), key.size()));
}

RegistrationTable::RegistrationTable(OwnedFd fd, const ProcessFile& file, Digest* digests)
    : fd_(std::move(fd)), file_(file), digests_(digests), free_(kSlots) {
  std::iota(free_.rbegin(), free_.rend(), 0u);
}

Result<std::shared_ptr<RegistrationTable>> RegistrationTable::create() {
  OwnedFd fd(memfd_create("ashlar_registrations", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  struct stat status{};
  if (!fd.valid() || ftruncate(fd.get(), kTableBytes) != 0 || fstat(fd.get(), &status) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return make_error(ErrorCode::kCapacity,
                      "no memory for the table of registrations (errno %d); raise the limit of open files",
                      errno);
  void* mapped = mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED)
    return make_error(ErrorCode::kCapacity, "the table of registrations cannot be mapped (errno %d)", errno);
  const ProcessFile file{fd.get(), status.st_dev, status.st_ino};
  return std::shared_ptr<RegistrationTable>(
      new RegistrationTable(std::move(fd), file, static_cast<Digest*>(mapped)));
}

RegistrationTable::~RegistrationTable() {
  const auto last = std::chrono::steady_clock::now() + kLastWait;
  while (release_idle()) {
    if (std::chrono::steady_clock::now() >= last) {
      // A peer that was stopped inside a copy may go on: its target must stay memory that nothing else uses.
      const MutexLock lock(mu_);
      static_cast<void>(new std::vector<Kept>(std::move(kept_)));
      kept_.clear();
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  munmap(digests_, kTableBytes);
}

Result<std::uint32_t> RegistrationTable::take() {
  const MutexLock lock(mu_);
  if (free_.empty())
    return make_error(ErrorCode::kCapacity,
                      "%u regions are registered, which is the limit; register fewer, larger ones", kSlots);
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void RegistrationTable::publish(std::uint32_t slot, std::uint64_t digest) noexcept {
  ASHLAR_CHECK(slot < kSlots && digest != 0, "entry %u of %u is published with digest %llu", slot, kSlots,
               wide(digest));
  digests_[slot].store(digest, std::memory_order_release);  // release: pairs with the acquire in has()
}

// The peer locks, then reads the digest; this process clears the digest, then asks for the lock. So either
// the peer finds 0, or its lock is found.
bool RegistrationTable::withdraw(std::uint32_t slot, std::shared_ptr<storage::Storage> memory) {
  ASHLAR_CHECK(slot < kSlots, "entry %u of %u is withdrawn", slot, kSlots);
  digests_[slot].store(0);
  const bool is_idle = idle(slot);
  const MutexLock lock(mu_);
  if (is_idle) {
    free_.push_back(slot);
    return false;
  }
  kept_.push_back({slot, std::move(memory)});
  ASHLAR_DCHECK(free_.size() + kept_.size() <= kSlots, "%zu free and %zu kept entries of %u", free_.size(),
                kept_.size(), kSlots);
  return true;
}

bool RegistrationTable::idle(std::uint32_t slot) const noexcept {
  return lock_slot(fd_.get(), slot, F_WRLCK) && lock_slot(fd_.get(), slot, F_UNLCK);
}

bool RegistrationTable::release_idle() {
  std::vector<Kept> released;
  const MutexLock lock(mu_);
  for (Kept& one : kept_)
    if (idle(one.slot)) {
      free_.push_back(one.slot);
      released.push_back(std::move(one));
      one.slot = kSlots;
    }
  std::erase_if(kept_, [](const Kept& one) { return one.slot == kSlots; });
  return !kept_.empty();
}

Result<OwnedFd> PeerTable::open_again(std::int32_t pid, const ProcessFile& file) {
  return open_memory_file(pid, file, kTableBytes, O_RDONLY);
}

Result<std::unique_ptr<PeerTable>> PeerTable::open(std::int32_t pid, const ProcessFile& file) {
  ASHLAR_TRY(const OwnedFd fd, open_again(pid, file));
  void* mapped = mmap(nullptr, kTableBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED)
    return make_error(ErrorCode::kCapacity, "the registrations of process %d cannot be mapped (errno %d)",
                      pid, errno);
  return std::unique_ptr<PeerTable>(new PeerTable(static_cast<const std::atomic<std::uint64_t>*>(mapped)));
}

PeerTable::~PeerTable() {
  munmap(const_cast<std::atomic<std::uint64_t>*>(digests_), kTableBytes);
}

bool SlotLock::enter() {
  const MutexLock lock(mu_);
  if (inside_ == 0 && !lock_slot(table_.get(), slot_, F_RDLCK)) return false;
  ++inside_;
  return true;
}

void SlotLock::leave() {
  const MutexLock lock(mu_);
  ASHLAR_DCHECK(inside_ > 0, "a copy leaves entry %u, which it did not enter", slot_);
  if (--inside_ == 0) lock_slot(table_.get(), slot_, F_UNLCK);
}

}  // namespace ashlar::transfer
