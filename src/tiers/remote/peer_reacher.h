// PeerReacher: connects to addresses, several at once. Whoever wants an address that is being connected to
// shares the attempt; nobody waits here.
//
// An attempt takes no longer than `call_limit`, whatever the deadlines of those who share it. An address that
// could not be reached rests; after that it is doubtful until an attempt succeeds: those who have other peers
// need not wait for it.
//
// Thread safety: thread-safe. Callbacks run without a lock.
// Complexity:    kMostAttempts at a time; doubtful addresses come last.
#pragma once

#include <cstddef>
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
  static constexpr std::size_t kMostAttempts = 16;

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
    kDoubtful,  // the same, and the last attempt failed
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
    std::vector<Reached> waiting;
  };

  void attempt();
  void bound_places() ASHLAR_REQUIRES(mu_);

  const std::shared_ptr<transfer::RemoteAgent> agent_;
  const Options options_;
  std::stop_source stop_;

  Mutex mu_;  // before that of the threads
  std::map<std::string, Place> places_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::string> fresh_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::string> doubtful_ ASHLAR_GUARDED_BY(mu_);

  TaskThreads threads_;  // last: they use everything above
};

}  // namespace ashlar::tiers
