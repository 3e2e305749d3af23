// LeaseTable: what peers may read of this node for a while, and the slots of the landing that they may write.
//
// A lease holds blocks, so that they are not evicted; a reservation owns slots. Each belongs to one peer and
// ends by release, by time, or with its peer. Times are durations from when this node heard of them: the
// clocks of peers do not matter.
//
// Thread safety: thread-safe. Holds are dropped outside the lock: they may call observers.
// Complexity:    O(log leases) per call; end_blocks() is linear in the leased blocks.
// Invariant:     no limit is passed, for any peer or in all; a slot is free or in one reservation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/pin.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class LeaseTable {
 public:
  using Peer = transfer::AgentIdentity;

  // Blocks of `block_bytes` each; slots 0 to `slots` - 1.
  LeaseTable(const RemoteLimits& limits, std::uint64_t block_bytes, std::uint32_t slots, Clock& clock);

  // How many of `wanted` blocks the peer may lease now. Why not all: `refusal`.
  std::size_t room(const Peer& peer, std::size_t wanted, std::string* refusal) const;
  // Errors: kCapacity: a limit, with the numbers.
  Result<std::uint64_t> grant(const Peer& peer, std::vector<block::Hold> holds, Clock::Duration duration);
  // False: the lease is over.
  bool renew(const Peer& peer, std::uint64_t lease, Clock::Duration duration);
  void release(const Peer& peer, std::uint64_t lease);
  // Ends leases on any of these blocks, or all. Returns their number.
  std::size_t end_blocks(std::span<const tokens::SequenceHash> hashes);
  std::size_t end_all();
  // Ends leases and reservations of a peer that is dead.
  void end_peer(const Peer& peer);
  // Ends what is over. Returns when the next one is; empty: nothing is left.
  std::optional<Clock::TimePoint> expire();

  struct Reserved {
    std::uint64_t id = 0;
    std::vector<std::uint32_t> slots;
  };
  // Errors: kCapacity with the numbers.
  Result<Reserved> reserve(const Peer& peer, std::size_t slots, Clock::Duration duration);
  // Takes a reservation out, so that its time no longer counts; give its slots back. Errors: kNotReady: it is
  // over, or another peer's.
  Result<std::vector<std::uint32_t>> take(const Peer& peer, std::uint64_t reservation);
  void give_back(std::span<const std::uint32_t> slots);

  // Adds what is known here.
  void add_to(RemoteStatus& status) const;
  std::uint64_t leased_bytes() const;
  // For tests: stops the process at the first sum that does not hold.
  void check_invariants() const;

 private:
  struct Lease {
    Peer peer;
    std::vector<block::Hold> holds;
    Clock::TimePoint end;
  };
  struct Reservation {
    Peer peer;
    std::vector<std::uint32_t> slots;
    Clock::TimePoint end;
  };
  struct Sums {
    std::size_t leases = 0;
    std::size_t blocks = 0;
    std::size_t slots = 0;
  };

  std::size_t room_locked(const Peer& peer, std::size_t wanted, std::string* refusal) const
      ASHLAR_REQUIRES(mu_);
  void end_lease(std::map<std::uint64_t, Lease>::iterator at, std::vector<block::Hold>& dropped)
      ASHLAR_REQUIRES(mu_);
  void end_reservation(std::map<std::uint64_t, Reservation>::iterator at) ASHLAR_REQUIRES(mu_);
  template <class Which>
  std::size_t end_leases(Which&& which);

  const RemoteLimits limits_;
  const std::uint64_t block_bytes_;
  const std::uint32_t slots_;
  Clock& clock_;
  mutable Mutex mu_;  // a leaf
  std::map<std::uint64_t, Lease> leases_ ASHLAR_GUARDED_BY(mu_);
  std::map<std::uint64_t, Reservation> reservations_ ASHLAR_GUARDED_BY(mu_);
  std::map<Peer, Sums> sums_ ASHLAR_GUARDED_BY(mu_);
  Sums all_ ASHLAR_GUARDED_BY(mu_);
  std::vector<std::uint32_t> free_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t next_ ASHLAR_GUARDED_BY(mu_) = 1;
  std::uint64_t granted_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t renewed_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t expired_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t reserved_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t reservations_expired_ ASHLAR_GUARDED_BY(mu_) = 0;
  mutable std::uint64_t refused_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::tiers
