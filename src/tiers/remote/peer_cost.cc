#include "tiers/remote/peer_cost.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::tiers {

PeerCost& PeerCost::operator=(const PeerCost& other) {
  if (this == &other) return *this;
  const Measured its = other.measured();
  const MutexLock lock(mu_);
  measured_ = its;
  return *this;
}

void PeerCost::observe(std::uint64_t bytes, Clock::Duration duration, Clock::TimePoint now) {
  const MutexLock lock(mu_);
  measured_.fit.observe(bytes, std::chrono::duration<double>(duration).count());
  measured_.at = now;
}

double PeerCost::seconds(std::uint64_t bytes) const {
  const MutexLock lock(mu_);
  return measured_.fit.seconds(bytes);
}

double PeerCost::slowness(std::uint64_t bytes, double fastest) const {
  const double its = seconds(bytes);
  return fastest > 0 && its > kAsFast * fastest ? its / fastest : 1;
}

bool PeerCost::is_due(std::uint64_t bytes, double fastest, Clock::TimePoint now) const {
  const Measured its = measured();
  if (!its.at) return true;
  const double times = slowness(bytes, fastest);
  if (times == 1 && its.fit.seconds(bytes) > 0) return false;  // it is used as it is
  // One that is a thousand times slower is tried once in a day or so, as is one that is slower still.
  const double wait = std::chrono::duration<double>(kTryAgain).count() * std::min(times, 1e3);
  return std::chrono::duration<double>(now - *its.at).count() >= wait;
}

// ---- the times of a call

ReadTimes::Span::Span(std::shared_ptr<ReadTimes> times, Number peer) : times_(std::move(times)), peer_(peer) {
  const MutexLock lock(times_->mu_);
  Peer& its = times_->peers_[peer_];
  if (its.open++ == 0) its.since = times_->clock_.now();
}

void ReadTimes::Span::done() {
  const MutexLock lock(times_->mu_);
  if (std::exchange(over_, true)) return;
  Peer& its = times_->peers_[peer_];
  ASHLAR_DCHECK(its.open > 0, "more reads of a peer end than began");
  if (--its.open == 0) its.total.duration += times_->clock_.now() - its.since;
}

void ReadTimes::arrived(Number peer, std::uint64_t bytes) {
  const MutexLock lock(mu_);
  peers_[peer].total.bytes += bytes;
}

void ReadTimes::failed(Number peer) {
  const MutexLock lock(mu_);
  peers_[peer].failed = true;
}

std::map<ReadTimes::Number, ReadTimes::Total> ReadTimes::totals() const {
  std::map<Number, Total> out;
  const MutexLock lock(mu_);
  for (const auto& [peer, its] : peers_)
    out.emplace(peer, Total{its.failed ? 0 : its.total.bytes, its.total.duration});
  return out;
}

}  // namespace ashlar::tiers
