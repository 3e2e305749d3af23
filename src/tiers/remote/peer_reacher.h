// PeerReacher: connects to addresses, several at once. Whoever wants an address that is being connected to
// shares the attempt; nobody waits here.
//
// A thread tries an address for kHurry. One that has not answered by then goes to other threads, which try it
// again for four times as long, and so on, the last time for `call_limit`; an address waits for its turn
// between. So addresses at which nobody answers keep no thread from those that answer: kAtOnce of them cost
// an address that waits behind them one kHurry.
//
// An address that could not be reached rests; after that it is doubtful until an attempt succeeds: those who
// have other peers need not wait for it. So is one that has not answered within kHurry.
//
// Thread safety: thread-safe. Callbacks run without a lock.
// Complexity:    kAtOnce hurried attempts and kAtOnce others at a time, a thread each; those that failed
//                before come last.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/remote_agent.h"
#include "base/task_threads.h"

namespace ashlar::tiers {

class PeerReacher {
 public:
  static constexpr std::size_t kAtOnce = 16;
  static constexpr Clock::Duration kHurry = std::chrono::milliseconds(200);

  using Outcome = Result<std::shared_ptr<transfer::RemotePeer>>;
  using Reached = std::function<void(const Outcome&)>;
  struct Options {
    Clock::Duration call_limit = {};
    Clock::Duration rest = {};
    Clock* clock = nullptr;
  };
  enum class Start : std::uint8_t {
    kKnown,     // the outcome was known, and `reached` has been called
    kTrying,    // `reached` is called when the attempt is over
    kDoubtful,  // the same, and the last attempt failed, or this one has taken longer than kHurry
  };
  PeerReacher(std::shared_ptr<transfer::RemoteAgent> agent, const Options& options);
  ~PeerReacher() { stop(); }

  // Calls `reached` once: on this thread or, after an attempt, on another. It must not wait.
  Start reach(const std::string& address, Reached reached);
  // Ends the attempts.
  void stop();

 private:
  struct Place {
    std::weak_ptr<transfer::RemotePeer> peer;  // the one reached last
    std::optional<Error> failure;              // of the last attempt
    Clock::TimePoint rests_until = {};
    bool trying = false;
    Clock::Duration span = {};  // of the next attempt; 0: the first is not over
    std::vector<Reached> waiting;
  };

  // On threads for hurried attempts, and on the others: one address, the one that has waited longest.
  void hurry();
  void persist();
  void attempt(const std::string& address, Clock::Duration span);
  void bound_places() ASHLAR_REQUIRES(mu_);

  const std::shared_ptr<transfer::RemoteAgent> agent_;
  const Options options_;
  std::stop_source stop_;

  Mutex mu_;  // before that of the threads
  std::map<std::string, Place> places_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::string> fresh_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::string> doubtful_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::string> slow_ ASHLAR_GUARDED_BY(mu_);  // did not answer within kHurry

  // Last: they use everything above.
  TaskThreads persisting_{kAtOnce};
  TaskThreads hurried_{kAtOnce};
};

}  // namespace ashlar::tiers
