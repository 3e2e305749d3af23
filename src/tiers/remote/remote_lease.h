// RemoteLease: a lease that this node has at a peer. LeaseKeeper: renews the leases of a node while they are
// in use.
//
// Times are durations from before the request was sent: the owner's clock began to run later, so a lease that
// is active here is active there.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/remote_agent.h"

namespace ashlar::tiers {

class RemoteLease {
 public:
  // Active from `sent`, by `clock`, which outlives every lease, for what the owner grants at a time.
  RemoteLease(std::shared_ptr<transfer::RemotePeer> peer, std::uint64_t id, Clock& clock,
              Clock::TimePoint sent, Clock::Duration granted)
      : peer_(std::move(peer)), id_(id), clock_(clock), granted_(granted), end_(sent + granted) {}
  // Gives it back.
  ~RemoteLease();
  RemoteLease(const RemoteLease&) = delete;
  RemoteLease& operator=(const RemoteLease&) = delete;

  const std::shared_ptr<transfer::RemotePeer>& peer() const noexcept { return peer_; }
  std::uint64_t id() const noexcept { return id_; }
  // What the owner grants at a time.
  Clock::Duration granted() const noexcept { return granted_; }
  bool active() const { return peer_->alive() && clock_.now() < end_.load(); }
  void renewed(Clock::TimePoint sent) { end_ = sent + granted_; }
  // The owner ended it.
  void over() { end_ = Clock::TimePoint::min(); }

 private:
  const std::shared_ptr<transfer::RemotePeer> peer_;
  const std::uint64_t id_;
  Clock& clock_;
  const Clock::Duration granted_;
  std::atomic<Clock::TimePoint> end_;
};

class LeaseKeeper {
 public:
  LeaseKeeper(Clock& clock, Clock::Duration lease, Clock::Duration renew, Clock::Duration call_limit)
      : clock_(clock), lease_(lease), renew_(renew), call_limit_(call_limit) {}
  ~LeaseKeeper();

  // Renews the lease until it is dropped, every `renew`, and at least three times while what its owner grants
  // lasts: that may be less than what was asked for. Without a thread it is not renewed, and ends in its
  // time.
  void keep(const std::shared_ptr<RemoteLease>& lease);
  // Asks the owner whether the lease lasts. False: no, or it does not answer.
  bool confirm(const std::shared_ptr<RemoteLease>& lease, const transfer::RemoteCallLimits& limits);
  void stop();

 private:
  struct Kept {
    std::weak_ptr<RemoteLease> lease;
    Clock::TimePoint due;
  };
  Clock::Duration interval(const RemoteLease& lease) const;
  void run();
  // At all owners at once: who does not answer costs the others nothing. False: one did not.
  bool renew(const std::vector<std::shared_ptr<RemoteLease>>& leases,
             const transfer::RemoteCallLimits& limits);

  Clock& clock_;
  const Clock::Duration lease_;
  const Clock::Duration renew_;
  const Clock::Duration call_limit_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Kept> leases_ ASHLAR_GUARDED_BY(mu_);
  bool started_ ASHLAR_GUARDED_BY(mu_) = false;
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread thread_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
