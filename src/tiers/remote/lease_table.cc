#include "tiers/remote/lease_table.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "ashlar/base/check.h"
#include "base/wide.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

LeaseTable::LeaseTable(const RemoteLimits& limits, std::uint64_t block_bytes, std::uint32_t slots,
                       Clock& clock)
    : limits_(limits), block_bytes_(block_bytes), slots_(slots), clock_(clock) {
  ASHLAR_CHECK(block_bytes > 0, "blocks of %llu bytes", wide(block_bytes));
  for (std::uint32_t slot = slots; slot-- > 0;) free_.push_back(slot);
}

std::size_t LeaseTable::room_locked(const Peer& peer, std::size_t wanted, std::string* refusal) const {
  const auto found = sums_.find(peer);
  const Sums its = found == sums_.end() ? Sums() : found->second;
  const auto refuse = [&](const char* what, std::uint64_t limit) ASHLAR_REQUIRES(mu_) {
    ++refused_;
    if (refusal != nullptr)
      *refusal = make_error(ErrorCode::kCapacity, "%s is %llu; release leases, or ask again later", what,
                            wide(limit))
                     .message();
  };
  if (all_.leases >= limits_.leases) return refuse("the limit of leases for all peers", limits_.leases), 0;
  if (its.leases >= limits_.leases_per_peer)
    return refuse("the limit of leases for one peer", limits_.leases_per_peer), 0;
  const auto blocks = [&](std::uint64_t limit, std::size_t used) {
    const std::uint64_t most = limit / block_bytes_;
    return most > used ? static_cast<std::size_t>(most - used) : 0;
  };
  const std::size_t for_peer = blocks(limits_.leased_bytes_per_peer, its.blocks);
  const std::size_t for_all = blocks(limits_.leased_bytes, all_.blocks);
  if (for_peer < wanted && for_peer <= for_all) {
    refuse("the limit of leased bytes for one peer", limits_.leased_bytes_per_peer);
  } else if (for_all < wanted) {
    refuse("the limit of leased bytes for all peers", limits_.leased_bytes);
  }
  return std::min({wanted, for_peer, for_all});
}

std::size_t LeaseTable::room(const Peer& peer, std::size_t wanted, std::string* refusal) const {
  const MutexLock lock(mu_);
  return room_locked(peer, wanted, refusal);
}

Result<std::uint64_t> LeaseTable::grant(const Peer& peer, std::vector<block::Hold> holds,
                                        Clock::Duration duration) {
  const Clock::TimePoint end = clock_.now() + duration;
  std::vector<block::Hold> dropped;  // after the lock
  const MutexLock lock(mu_);
  std::string refusal;
  const std::size_t count = holds.size();
  if (room_locked(peer, count, &refusal) < count) {
    dropped = std::move(holds);
    return Error(ErrorCode::kCapacity, refusal);
  }
  const std::uint64_t id = next_++;
  leases_.emplace(id, Lease{peer, std::move(holds), end});
  for (Sums* const sums : {&sums_[peer], &all_}) {
    ++sums->leases;
    sums->blocks += count;
  }
  ++granted_;
  return id;
}

bool LeaseTable::renew(const Peer& peer, std::uint64_t lease, Clock::Duration duration) {
  const Clock::TimePoint now = clock_.now();
  const MutexLock lock(mu_);
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.peer != peer || found->second.end <= now) return false;
  found->second.end = std::max(found->second.end, now + duration);
  ++renewed_;
  return true;
}

void LeaseTable::end_lease(std::map<std::uint64_t, Lease>::iterator at, std::vector<block::Hold>& dropped) {
  Lease& lease = at->second;
  const auto its = sums_.find(lease.peer);
  ASHLAR_CHECK(its != sums_.end() && its->second.leases > 0 && its->second.blocks >= lease.holds.size(),
               "a lease of %s ends that was not counted", lease.peer.to_string().c_str());
  for (Sums* const sums : {&its->second, &all_}) {
    --sums->leases;
    sums->blocks -= lease.holds.size();
  }
  if (its->second.leases == 0 && its->second.slots == 0) sums_.erase(its);
  std::ranges::move(lease.holds, std::back_inserter(dropped));
  leases_.erase(at);
}

template <class Which>
std::size_t LeaseTable::end_leases(Which&& which) {
  std::vector<block::Hold> dropped;  // after the lock
  std::size_t ended = 0;
  const MutexLock lock(mu_);
  for (auto at = leases_.begin(); at != leases_.end();) {
    const auto here = at++;
    if (!which(here->second)) continue;
    end_lease(here, dropped);
    ++ended;
  }
  return ended;
}

void LeaseTable::release(const Peer& peer, std::uint64_t lease) {
  std::vector<block::Hold> dropped;  // after the lock
  const MutexLock lock(mu_);
  const auto found = leases_.find(lease);
  if (found != leases_.end() && found->second.peer == peer) end_lease(found, dropped);
}

std::size_t LeaseTable::end_blocks(std::span<const SequenceHash> hashes) {
  const std::set<SequenceHash> these(hashes.begin(), hashes.end());
  return end_leases([&](const Lease& lease) {
    return std::ranges::any_of(lease.holds,
                               [&](const block::Hold& hold) { return these.contains(hold.sequence_hash()); });
  });
}

std::size_t LeaseTable::end_all() {
  return end_leases([](const Lease&) { return true; });
}

void LeaseTable::end_reservation(std::map<std::uint64_t, Reservation>::iterator at) {
  Reservation& reservation = at->second;
  const auto its = sums_.find(reservation.peer);
  ASHLAR_CHECK(its != sums_.end() && its->second.slots >= reservation.slots.size(),
               "a reservation of %s ends that was not counted", reservation.peer.to_string().c_str());
  its->second.slots -= reservation.slots.size();
  all_.slots -= reservation.slots.size();
  if (its->second.leases == 0 && its->second.slots == 0) sums_.erase(its);
  reservations_.erase(at);
}

void LeaseTable::end_peer(const Peer& peer) {
  end_leases([&](const Lease& lease) { return lease.peer == peer; });
  const MutexLock lock(mu_);
  for (auto at = reservations_.begin(); at != reservations_.end();) {
    const auto here = at++;
    if (here->second.peer != peer) continue;
    std::ranges::copy(here->second.slots, std::back_inserter(free_));
    end_reservation(here);
  }
}

std::optional<Clock::TimePoint> LeaseTable::expire() {
  const Clock::TimePoint now = clock_.now();
  std::vector<block::Hold> dropped;  // after the lock
  std::optional<Clock::TimePoint> next;
  const auto note = [&](Clock::TimePoint end) { next = next ? std::min(*next, end) : end; };
  const MutexLock lock(mu_);
  for (auto at = leases_.begin(); at != leases_.end();) {
    const auto here = at++;
    if (here->second.end > now) {
      note(here->second.end);
      continue;
    }
    end_lease(here, dropped);
    ++expired_;
  }
  for (auto at = reservations_.begin(); at != reservations_.end();) {
    const auto here = at++;
    if (here->second.end > now) {
      note(here->second.end);
      continue;
    }
    std::ranges::copy(here->second.slots, std::back_inserter(free_));
    end_reservation(here);
    ++reservations_expired_;
  }
  return next;
}

Result<LeaseTable::Reserved> LeaseTable::reserve(const Peer& peer, std::size_t slots,
                                                 Clock::Duration duration) {
  const Clock::TimePoint end = clock_.now() + duration;
  const MutexLock lock(mu_);
  const auto found = sums_.find(peer);
  const std::size_t its = found == sums_.end() ? 0 : found->second.slots;
  if (slots == 0 || slots > free_.size() || its + slots > limits_.reserved_blocks_per_peer) {
    ++refused_;
    return make_error(ErrorCode::kCapacity,
                      "%zu blocks to write: the landing has %zu of %u free, and one peer may have %u, of "
                      "which this one has %zu",
                      slots, free_.size(), slots_, limits_.reserved_blocks_per_peer, its);
  }
  Reserved reserved{.id = next_++, .slots = {free_.end() - static_cast<std::ptrdiff_t>(slots), free_.end()}};
  free_.resize(free_.size() - slots);
  reservations_.emplace(reserved.id, Reservation{peer, reserved.slots, end});
  sums_[peer].slots += slots;
  all_.slots += slots;
  ++reserved_;
  return reserved;
}

Result<std::vector<std::uint32_t>> LeaseTable::take(const Peer& peer, std::uint64_t reservation) {
  const Clock::TimePoint now = clock_.now();
  const MutexLock lock(mu_);
  const auto found = reservations_.find(reservation);
  if (found == reservations_.end() || found->second.peer != peer || found->second.end <= now)
    return make_error(ErrorCode::kNotReady, "reservation %llu is over; reserve again and write again",
                      wide(reservation));
  std::vector<std::uint32_t> slots = found->second.slots;
  end_reservation(found);
  return slots;
}

void LeaseTable::give_back(std::span<const std::uint32_t> slots) {
  const MutexLock lock(mu_);
  std::ranges::copy(slots, std::back_inserter(free_));
  ASHLAR_CHECK(free_.size() + all_.slots <= slots_, "%zu slots are free and %zu reserved, of %u",
               free_.size(), all_.slots, slots_);
}

void LeaseTable::add_to(RemoteStatus& status) const {
  const MutexLock lock(mu_);
  status.leases = all_.leases;
  status.leased_bytes = all_.blocks * block_bytes_;
  status.granted = granted_;
  status.renewed = renewed_;
  status.expired = expired_;
  status.refused = refused_;
  status.reserved_blocks = all_.slots;
  status.reservations = reserved_;
  status.reservations_expired = reservations_expired_;
}

std::uint64_t LeaseTable::leased_bytes() const {
  const MutexLock lock(mu_);
  return all_.blocks * block_bytes_;
}

void LeaseTable::check_invariants() const {
  const MutexLock lock(mu_);
  std::map<Peer, Sums> sums;
  Sums all;
  for (const auto& [id, lease] : leases_)
    for (Sums* const one : {&sums[lease.peer], &all}) {
      ++one->leases;
      one->blocks += lease.holds.size();
    }
  std::set<std::uint32_t> slots(free_.begin(), free_.end());
  ASHLAR_CHECK(slots.size() == free_.size(), "a slot is free twice: %zu of %zu", slots.size(), free_.size());
  for (const auto& [id, reservation] : reservations_) {
    sums[reservation.peer].slots += reservation.slots.size();
    all.slots += reservation.slots.size();
    for (const std::uint32_t slot : reservation.slots)
      ASHLAR_CHECK(slots.insert(slot).second, "slot %u is free and reserved, or reserved twice", slot);
  }
  ASHLAR_CHECK(all.leases == all_.leases && all.blocks == all_.blocks && all.slots == all_.slots,
               "%zu leases on %zu blocks and %zu slots; counted were %zu, %zu and %zu", all.leases,
               all.blocks, all.slots, all_.leases, all_.blocks, all_.slots);
  for (const auto& [peer, its] : sums) {
    const auto counted = sums_.find(peer);
    ASHLAR_CHECK(counted != sums_.end() && counted->second.leases == its.leases &&
                     counted->second.blocks == its.blocks && counted->second.slots == its.slots,
                 "the sums of peer %s are wrong", peer.to_string().c_str());
  }
  ASHLAR_CHECK(sums.size() == sums_.size(), "%zu peers have leases; %zu are counted", sums.size(),
               sums_.size());
}

}  // namespace ashlar::tiers
