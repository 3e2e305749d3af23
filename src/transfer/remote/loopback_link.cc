#include "transfer/remote/loopback_link.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ashlar/base/check.h"
#include "base/wide.h"

namespace ashlar::transfer {

LoopbackLink::LoopbackLink(const void* owner, const AgentIdentity& peer, const LoopbackAddress& address,
                           OwnedFd process, std::unique_ptr<PeerTable> table) noexcept
    : owner_(owner), peer_(peer), address_(address), process_(std::move(process)), table_(std::move(table)) {}

Result<std::shared_ptr<LoopbackLink>> LoopbackLink::connect(const void* owner, const AgentIdentity& peer,
                                                            const LoopbackAddress& address) {
  ASHLAR_TRY(OwnedFd process, open_process(address));
  Result<std::unique_ptr<PeerTable>> table = PeerTable::open(address.pid, address.table);
  if (!table) {
    if (table.error().code() == ErrorCode::kInvalidArgument) return table.error();
    std::string why = table.error().message();
    if (address.user != geteuid())
      why += "; it runs as user " + std::to_string(address.user) + ", this process as " +
             std::to_string(geteuid());
    return Error(ErrorCode::kUnavailable, std::move(why));
  }
  return std::shared_ptr<LoopbackLink>(
      new LoopbackLink(owner, peer, address, std::move(process), *std::move(table)));
}

Result<void> LoopbackLink::check_locked() const {
  if (failure_) return Error(ErrorCode::kUnavailable, failure_->message());
  return {};
}

Result<void> LoopbackLink::check_open() const {
  const MutexLock lock(mu_);
  return check_locked();
}

Result<void> LoopbackLink::enter() {
  const MutexLock lock(mu_);
  ASHLAR_RETURN_IF_ERROR(check_locked());
  ++inside_;
  return {};
}

void LoopbackLink::leave() {
  const MutexLock lock(mu_);
  ASHLAR_DCHECK(inside_ > 0, "a copy leaves a link that it did not enter");
  if (--inside_ == 0 && failure_) left_.notify_all();
}

bool LoopbackLink::close(const Error& why) {
  std::map<std::uint64_t, std::function<void(const Error&)>> transfers;
  bool was_open = false;
  {
    const MutexLock lock(mu_);
    was_open = !failure_;
    if (was_open) failure_ = why;
    transfers.swap(transfers_);
    while (inside_ > 0) left_.wait(mu_);
  }
  const Error unavailable(ErrorCode::kUnavailable, why.message());
  for (const auto& [id, stop] : transfers) stop(unavailable);
  return was_open;
}

std::optional<Error> LoopbackLink::failure() const {
  const MutexLock lock(mu_);
  return failure_;
}

Result<std::uint64_t> LoopbackLink::add_transfer(std::function<void(const Error&)> stop) {
  const MutexLock lock(mu_);
  ASHLAR_RETURN_IF_ERROR(check_locked());
  transfers_.emplace(next_transfer_, std::move(stop));
  return next_transfer_++;
}

void LoopbackLink::remove_transfer(std::uint64_t id) {
  const MutexLock lock(mu_);
  transfers_.erase(id);
}

Error LoopbackAccess::withdrawn() {
  return make_error(ErrorCode::kUnavailable, "the peer does not share this memory any more");
}

Result<void> LoopbackAccess::enter() const {
  if (lock_ != nullptr && !lock_->enter()) return withdrawn();
  if (is_shared()) return {};
  leave();
  return withdrawn();
}

void LoopbackAccess::leave() const {
  if (lock_ != nullptr) lock_->leave();
}

const LoopbackAccess* LoopbackAccess::of(const storage::Storage& storage) noexcept {
  if (storage.kind() != StorageKind::kRemote) return nullptr;
  const auto* remote = dynamic_cast<const storage::RemoteStorage*>(&storage);
  return remote == nullptr ? nullptr : dynamic_cast<const LoopbackAccess*>(remote->access().get());
}

Result<std::shared_ptr<const RemoteSide>> LoopbackAccess::side(
    const std::shared_ptr<const BlockSet>& set) const {
  const MutexLock lock(mu_);
  for (const Known& known : known_)
    if (known.side != nullptr && known.set.lock() == set) return known.side;
  auto side = std::make_shared<RemoteSide>();
  side->link = link_;
  std::vector<Plane> twins;
  bool has_twin = true;
  for (const Plane& plane : set->planes()) {
    Plane twin{plane.layout, plane.shard, {}};
    std::vector<RemoteSide::Region> regions;
    for (const RegionMemory& region : plane.regions) {
      const LoopbackAccess* const access = of(*region.storage);
      if (access == nullptr || access->link_ != link_)
        return make_error(ErrorCode::kInvalidArgument,
                          "a set over the memory of one peer is expected; '%s' is reached in another way "
                          "than the set's first region",
                          region.storage->describe().c_str());
      const bool through_kernel = access->local_ == nullptr;
      ASHLAR_CHECK(through_kernel || access->local_->size() == region.storage->size(),
                   "%llu bytes of a peer are seen as %llu here", wide(region.storage->size()),
                   wide(access->local_->size()));
      std::byte* const start = through_kernel ? region.storage->address() : access->local_->address();
      const auto found = std::ranges::find(side->accesses, access);
      const auto number = static_cast<std::size_t>(found - side->accesses.begin());
      if (found == side->accesses.end()) side->accesses.push_back(access);
      regions.push_back({start + region.offset, through_kernel, number});
      if (through_kernel) has_twin = false;
      twin.regions.push_back({access->local_, region.offset});
    }
    side->planes.push_back(std::move(regions));
    twins.push_back(std::move(twin));
  }
  if (has_twin) {
    // A mapping need not have the alignment of the memory that it shows; then only the processor copies.
    Result<std::shared_ptr<const BlockSet>> made = BlockSet::create(std::move(twins));
    if (made) side->twin = *std::move(made);
  }
  std::erase_if(known_, [](const Known& known) { return known.set.expired(); });
  known_.push_back({set, side});
  return std::shared_ptr<const RemoteSide>(side);
}

}  // namespace ashlar::transfer
