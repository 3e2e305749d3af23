#include "tiers/remote/remote_lease.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/in_parallel.h"
#include "base/start_thread.h"
#include "tiers/remote/remote_messages.h"

namespace ashlar::tiers {
namespace {

constexpr std::size_t kOwnersAtOnce = 16;

}  // namespace

RemoteLease::~RemoteLease() {
  // The owner's time ends it where this does not arrive.
  if (id_ != 0)
    static_cast<void>(peer_->notify(static_cast<std::uint16_t>(RemoteMethod::kRelease),
                                    encode_numbers(std::span(&id_, 1))));
}

LeaseKeeper::~LeaseKeeper() {
  stop();
}

void LeaseKeeper::stop() {
  std::thread thread;
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.notify_all();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void LeaseKeeper::keep(const std::shared_ptr<RemoteLease>& lease) {
  const MutexLock lock(mu_);
  if (stopping_) return;
  std::erase_if(leases_, [](const std::weak_ptr<RemoteLease>& one) { return one.expired(); });
  leases_.push_back(lease);
  if (!started_) {
    started_ = static_cast<bool>(start_thread(&thread_, [this] { run(); }));
  } else if (leases_.size() == 1) {
    changed_.notify_all();
  }
}

void LeaseKeeper::run() {
  Clock::TimePoint due = clock_.now() + renew_;
  for (;;) {
    std::vector<std::shared_ptr<RemoteLease>> leases;
    {
      const MutexLock lock(mu_);
      std::erase_if(leases_, [](const std::weak_ptr<RemoteLease>& one) { return one.expired(); });
      while (!stopping_ && leases_.empty()) {
        changed_.wait(mu_);
        due = clock_.now() + renew_;
      }
      if (stopping_) return;
      if (clock_.now() < due) {
        clock_.wait_until(changed_, mu_, due);
        continue;
      }
      for (const std::weak_ptr<RemoteLease>& one : leases_)
        if (std::shared_ptr<RemoteLease> lease = one.lock()) leases.push_back(std::move(lease));
    }
    due = clock_.now() + renew_;
    renew(leases, {.deadline = Clock::real().now() + call_limit_});
  }
}

bool LeaseKeeper::confirm(const std::shared_ptr<RemoteLease>& lease,
                          const transfer::RemoteCallLimits& limits) {
  return lease->active() && renew({lease}, limits) && lease->active();
}

bool LeaseKeeper::renew(const std::vector<std::shared_ptr<RemoteLease>>& leases,
                        const transfer::RemoteCallLimits& limits) {
  std::map<std::shared_ptr<transfer::RemotePeer>, std::vector<RemoteLease*>> by_peer;
  for (const std::shared_ptr<RemoteLease>& lease : leases)
    if (lease->active()) by_peer[lease->peer()].push_back(lease.get());
  std::vector<const decltype(by_peer)::value_type*> owners;
  for (const auto& one : by_peer) owners.push_back(&one);
  std::atomic<bool> all_answered{true};
  in_parallel(owners.size(), kOwnersAtOnce, [&](std::size_t i) {
    const auto& [peer, its] = *owners[i];
    std::vector<std::uint64_t> request = {
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(lease_).count())};
    for (const RemoteLease* const lease : its) request.push_back(lease->id());
    const Clock::TimePoint sent = clock_.now();
    const auto answer =
        peer->call(static_cast<std::uint16_t>(RemoteMethod::kRenew), encode_numbers(request), limits);
    const Result<std::vector<std::uint64_t>> renewed =
        answer ? decode_numbers(*answer) : Result<std::vector<std::uint64_t>>(answer.error());
    if (!renewed) {
      all_answered = false;
      return;  // its leases end in their time
    }
    for (RemoteLease* const lease : its) {
      if (std::ranges::find(*renewed, lease->id()) == renewed->end()) {
        lease->over();
      } else {
        lease->renewed(sent);
      }
    }
  });
  return all_answered;
}

}  // namespace ashlar::tiers
