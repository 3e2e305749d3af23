// PeerCost: what reading from one peer takes, by what reads of it took. ReadTimes: how long one call reads
// from each peer.
//
// A peer is one of few that are connected (AgentOptions::max_peers), and what is known of it goes with it.
//
// Thread safety: thread-safe.
// Complexity:    O(1); ReadTimes O(log peers of the call).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "tiers/pool/cost_fit.h"

namespace ashlar::tiers {

class PeerCost {
 public:
  // How many times slower than the fastest a peer may be and count as fast: less is noise.
  static constexpr double kAsFast = 2;
  // After so long, for each time that it is slower, a peer is tried again: it may be fast by now.
  static constexpr Clock::Duration kTryAgain = std::chrono::minutes(1);

  PeerCost() = default;
  PeerCost(const PeerCost& other) { *this = other; }
  PeerCost& operator=(const PeerCost& other);

  // A call read so many bytes from it, or tried to: without bytes nothing is measured.
  void observe(std::uint64_t bytes, Clock::Duration duration, Clock::TimePoint now) ASHLAR_EXCLUDES(mu_);
  // Expected seconds of reading so many bytes; 0: nothing was measured.
  double seconds(std::uint64_t bytes) const ASHLAR_EXCLUDES(mu_);
  // How many times slower it is than one that takes `fastest` for so many bytes; 1: as fast, or not measured.
  double slowness(std::uint64_t bytes, double fastest) const ASHLAR_EXCLUDES(mu_);
  // Whether it is time to see how fast it is: it was not tried yet, or long ago and it was slow.
  bool is_due(std::uint64_t bytes, double fastest, Clock::TimePoint now) const ASHLAR_EXCLUDES(mu_);

 private:
  struct Measured {
    CostFit fit;
    std::optional<Clock::TimePoint> at;  // the last time, or attempt
  };
  Measured measured() const ASHLAR_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return measured_;
  }
  mutable Mutex mu_;  // a leaf
  Measured measured_ ASHLAR_GUARDED_BY(mu_);
};

class ReadTimes : public std::enable_shared_from_this<ReadTimes> {
 public:
  using Number = std::uint16_t;  // of a peer, as its caller has them
  explicit ReadTimes(Clock& clock) : clock_(clock) {}

  // Something that is on its way from a peer, from now on until done() or the end of the last copy.
  class Span {
   public:
    Span(std::shared_ptr<ReadTimes> times, Number peer);
    ~Span() { done(); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    // Again: nothing.
    void done();

   private:
    const std::shared_ptr<ReadTimes> times_;
    const Number peer_;
    bool over_ = false;  // under the lock of times_
  };
  std::shared_ptr<Span> begin(Number peer) { return std::make_shared<Span>(shared_from_this(), peer); }
  void arrived(Number peer, std::uint64_t bytes) ASHLAR_EXCLUDES(mu_);
  // Its time says nothing: a part of what was asked for did not come.
  void failed(Number peer) ASHLAR_EXCLUDES(mu_);

  struct Total {
    std::uint64_t bytes = 0;        // 0 also where a part did not come
    Clock::Duration duration = {};  // while anything was on its way, however much
  };
  // Of each peer, so far.
  std::map<Number, Total> totals() const ASHLAR_EXCLUDES(mu_);

 private:
  struct Peer {
    Total total;
    std::size_t open = 0;
    Clock::TimePoint since;  // when the first of those open began
    bool failed = false;
  };
  Clock& clock_;
  mutable Mutex mu_;  // a leaf
  std::map<Number, Peer> peers_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
