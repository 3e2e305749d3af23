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
constexpr Clock::Duration kLeastInterval = std::chrono::milliseconds(1);

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

Clock::Duration LeaseKeeper::interval(const RemoteLease& lease) const {
  return std::max<Clock::Duration>(std::min(renew_, lease.granted() / 3), kLeastInterval);
}

void LeaseKeeper::keep(const std::shared_ptr<RemoteLease>& lease) {
  const MutexLock lock(mu_);
  if (stopping_) return;
  std::erase_if(leases_, [](const Kept& one) { return one.lease.expired(); });
  leases_.push_back({lease, clock_.now() + interval(*lease)});
  if (!started_) {
    started_ = static_cast<bool>(start_thread(&thread_, [this] { run(); }));
  } else {
    changed_.notify_all();  // it may be due before the others
  }
}

void LeaseKeeper::run() {
  for (;;) {
    std::vector<std::shared_ptr<RemoteLease>> leases;
    {
      const MutexLock lock(mu_);
      std::erase_if(leases_, [](const Kept& one) { return one.lease.expired(); });
      while (!stopping_ && leases_.empty()) changed_.wait(mu_);
      if (stopping_) return;
      const Clock::TimePoint now = clock_.now();
      const Clock::TimePoint due = std::ranges::min_element(leases_, {}, &Kept::due)->due;
      if (now < due) {
        clock_.wait_until(changed_, mu_, due);
        continue;
      }
      for (Kept& one : leases_) {
        if (now < one.due) continue;
        if (std::shared_ptr<RemoteLease> lease = one.lease.lock()) {
          one.due = now + interval(*lease);
          leases.push_back(std::move(lease));
        }
      }
    }
    renew(leases, {.deadline = Clock::real().now() + call_limit_});
    // One that has ended is not renewed again.
    std::erase_if(leases, [](const std::shared_ptr<RemoteLease>& one) { return one->active(); });
    if (leases.empty()) continue;
    const MutexLock lock(mu_);
    std::erase_if(leases_, [&](const Kept& kept) {
      return std::ranges::any_of(leases, [&](const std::shared_ptr<RemoteLease>& ended) {
        return !kept.lease.owner_before(ended) && !ended.owner_before(kept.lease);
      });
    });
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
