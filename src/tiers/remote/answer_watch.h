// AnswerWatch: which peers owe an answer.
//
// A peer owes from the moment when a caller left without its answer, until it answers a question: that one,
// or a later one. How long it has been silent counts from the oldest of these questions. So a peer that hangs
// is found out after `limit`, whether callers wait as long or leave much earlier.
//
// Thread safety: thread-safe.
// Complexity:    logarithmic in the peers that owe, at most kMostPeers of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/transfer/remote_agent.h"

namespace ashlar::tiers {

class AnswerWatch {
  struct State {
    Mutex mu;  // a leaf
    std::map<transfer::AgentIdentity, Clock::TimePoint> silent_since ASHLAR_GUARDED_BY(mu);
  };

 public:
  static constexpr std::size_t kMostPeers = 4096;

  // One question to one peer. Copies are the same question. It may outlive the watch.
  class Question {
   public:
    void answered() const;
    // For the answer that comes when the caller has left. `next` hears it too.
    transfer::LateAnswer late(transfer::LateAnswer next = {}) const;

   private:
    friend class AnswerWatch;
    std::shared_ptr<State> state_;
    transfer::AgentIdentity peer_;
    Clock::TimePoint sent_ = {};
    std::shared_ptr<bool> answered_ = std::make_shared<bool>(false);  // guarded by state_->mu
  };

  // `clock` outlives the watch; that of calls is Clock::real().
  explicit AnswerWatch(Clock::Duration limit, Clock& clock = Clock::real()) : limit_(limit), clock_(clock) {}

  // Before the question is sent.
  Question ask(const transfer::AgentIdentity& peer) const;
  // The caller has no answer, and leaves. Returns whether the peer has been silent for the limit; the next
  // time that it is, it has been silent for another limit.
  bool left(const Question& question);
  bool owes(const transfer::AgentIdentity& peer) const;
  // The peer is gone.
  void forget(const transfer::AgentIdentity& peer);

 private:
  const Clock::Duration limit_;
  Clock& clock_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ashlar::tiers
