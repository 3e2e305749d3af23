// PeerFinder: makes this node known at a rendezvous, and finds the other nodes of its group there.
//
// Every node leaves its sealed block set under `<group>.<agent id>`. Whoever looks for peers imports the sets
// of agents that are not connected; that connects to them, and the handshake proves who they are. A record
// may be older than its node: where its incarnation is gone, whoever answers to the name now is asked for its
// current set, with a random number that only a fresh reply carries.
//
// docs/remote.md ("Finding peers") has names and messages, and what a hostile record can do.
//
// Thread safety: thread-safe. Holds no lock while it waits.
// Complexity:    look() is one list, and one connection for each new record, several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/rendezvous.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/remote_agent.h"

namespace ashlar::tiers {

class PeerFinder {
 public:
  struct Options {
    std::shared_ptr<Rendezvous> place = {};
    std::string group = {};
    Clock::Duration look_again = {};
    Clock::Duration rest = {};  // a record that led nowhere is left alone for this long, unless it changes
    Clock* clock = nullptr;
  };
  PeerFinder(std::shared_ptr<transfer::RemoteAgent> agent, const Options& options);

  // Leaves the agent's first exported set at the rendezvous, and answers for it. Errors: those of the
  // rendezvous; kNotReady: nothing is exported.
  Result<void> announce();
  // Ends that. Waits for a running answer.
  void withdraw();
  // Connects to nodes of the group that are not connected, unless that was tried less than look_again ago; a
  // look of another thread is waited for. Returns whether new peers were met since `seen`, which it updates.
  bool look(const transfer::RemoteCallLimits& limits, std::uint64_t& seen);
  // How many were met so far: for `seen`.
  std::uint64_t met() const;

  void add_to(RemoteStatus& status) const;

 private:
  std::string name_of(std::uint64_t agent) const;
  // Errors: see RemoteShape.
  Result<void> meet(const RendezvousRecord& record, const transfer::RemoteCallLimits& limits);
  Result<void> import(const transfer::SealedBytes& sealed, const transfer::RemoteCallLimits& limits);
  Result<transfer::SealedBytes> ask(const std::string& name, const transfer::RemoteCallLimits& limits);
  Result<std::vector<std::byte>> reply(std::span<const std::byte> request) const;
  // Whether nothing is to be done for it. Forgets rests that are over.
  bool is_known(const RendezvousRecord& record);

  const std::shared_ptr<transfer::RemoteAgent> agent_;
  const Options options_;
  const std::string label_;

  Mutex offers_mu_;
  std::vector<RendezvousOffer> offers_ ASHLAR_GUARDED_BY(offers_mu_);

  mutable Mutex mu_;  // a leaf
  CondVar looked_at_;
  bool looking_ ASHLAR_GUARDED_BY(mu_) = false;
  Clock::TimePoint next_ ASHLAR_GUARDED_BY(mu_) = Clock::TimePoint::min();
  std::uint64_t looked_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t met_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t refused_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::string refusal_ ASHLAR_GUARDED_BY(mu_);
  struct Rest {
    std::vector<std::byte> bytes;
    Clock::TimePoint until;
  };
  std::map<std::string, Rest> resting_ ASHLAR_GUARDED_BY(mu_);  // by name; those of the last list only
};

}  // namespace ashlar::tiers
