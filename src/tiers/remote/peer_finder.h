// PeerFinder: makes this node known at a rendezvous, and finds the other nodes of its group there.
//
// Every node leaves its sealed block set under `<group>.<agent id>`. Whoever looks for peers imports the sets
// of agents that are not connected; that connects to them, and the handshake proves who they are. A record
// may be older than its node: where its incarnation is gone, whoever answers to the name now is asked for its
// current set, with a random number that only a fresh reply carries.
//
// docs/remote_finding.md has names and messages, and what a hostile record can do.
//
// The group is listed, and its nodes are met, on threads of the finder: a record that leads nowhere keeps
// nobody from a node that was met meanwhile, and nobody with other peers waits for what failed before.
//
// Thread safety: thread-safe. Holds no lock while it waits.
// Complexity:    a look is one list, and one connection for each new record, several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/rendezvous.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/remote_agent.h"
#include "base/task_threads.h"

namespace ashlar::tiers {

class PeerFinder {
 public:
  struct Options {
    std::shared_ptr<Rendezvous> place = {};
    std::string group = {};
    Clock::Duration look_again = {};
    Clock::Duration rest = {};  // a record that led nowhere is left alone for this long, unless it changes
    Clock::Duration call_limit = {};  // of the list, and of meeting one node
    Clock* clock = nullptr;
  };
  PeerFinder(std::shared_ptr<transfer::RemoteAgent> agent, const Options& options);

  // Leaves the agent's first exported set at the rendezvous, and answers for it. Errors: those of the
  // rendezvous; kNotReady: nothing is exported.
  Result<void> announce();
  // Ends that. Waits for a running answer.
  void withdraw();
  // Ends what the finder does, too.
  void stop();
  // Starts to connect to nodes of the group that are not connected, unless that was tried less than
  // look_again ago, and waits until one was met since `seen`, or all were tried. `hurried`: does not wait for
  // what failed before. Returns whether new peers were met since `seen`, which it updates.
  bool look(const transfer::RemoteCallLimits& limits, std::uint64_t& seen, bool hurried = false);
  // How many were met so far: for `seen`.
  std::uint64_t met() const;

  void add_to(RemoteStatus& status) const;

 private:
  std::string name_of(std::uint64_t agent) const;
  // On threads of the finder: lists the group; meets a node of it.
  void list();
  void try_record(const RendezvousRecord& record, bool doubtful);
  // Whether a list or a meeting is under way that is worth waiting for.
  bool is_busy(bool hurried) const ASHLAR_REQUIRES(mu_);
  // Errors: see RemoteShape.
  Result<void> meet(const RendezvousRecord& record, const transfer::RemoteCallLimits& limits);
  Result<void> import(const transfer::SealedBytes& sealed, const transfer::RemoteCallLimits& limits);
  Result<transfer::SealedBytes> ask(const std::string& name, const transfer::RemoteCallLimits& limits);
  Result<std::vector<std::byte>> reply(std::span<const std::byte> request) const;
  transfer::RemoteCallLimits own_limits() const;

  const std::shared_ptr<transfer::RemoteAgent> agent_;
  const Options options_;
  const std::string label_;

  Mutex offers_mu_;
  std::vector<RendezvousOffer> offers_ ASHLAR_GUARDED_BY(offers_mu_);

  std::stop_source stop_;

  mutable Mutex mu_;  // before that of the threads
  CondVar changed_;
  bool listing_ ASHLAR_GUARDED_BY(mu_) = false;
  bool list_failed_ ASHLAR_GUARDED_BY(mu_) = false;       // the last one
  std::set<std::string> meeting_ ASHLAR_GUARDED_BY(mu_);  // names whose nodes are being met
  std::size_t doubtful_ ASHLAR_GUARDED_BY(mu_) = 0;       // of these, led nowhere before
  Clock::TimePoint next_ ASHLAR_GUARDED_BY(mu_) = Clock::TimePoint::min();
  std::uint64_t looked_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t met_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t refused_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::string refusal_ ASHLAR_GUARDED_BY(mu_);
  struct Rest {
    std::vector<std::byte> bytes;
    Clock::TimePoint until;
  };
  // By name, those of the last list only. One whose time is over is doubtful until it leads to a node.
  std::map<std::string, Rest> resting_ ASHLAR_GUARDED_BY(mu_);

  TaskThreads threads_;  // last: they use everything above
};

}  // namespace ashlar::tiers
