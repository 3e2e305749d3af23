#include "tiers/remote/peer_reacher.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"

namespace ashlar::tiers {

using transfer::RemotePeer;

namespace {

// Requests may name any address.
constexpr std::size_t kMostPlaces = 4096;

}  // namespace

PeerReacher::PeerReacher(std::shared_ptr<transfer::RemoteAgent> agent, const Options& options)
    : agent_(std::move(agent)), options_(options) {
  ASHLAR_CHECK(options_.clock != nullptr, "rests are counted by a clock");
}

void PeerReacher::stop() {
  stop_.request_stop();
  hurried_.stop();  // they post to the others
  persisting_.stop();
}

PeerReacher::Start PeerReacher::reach(const std::string& address, Reached reached) {
  for (const std::shared_ptr<RemotePeer>& peer : agent_->peers()) {
    if (peer->address() != address) continue;
    reached(peer);
    return Start::kKnown;
  }
  std::optional<Outcome> known;
  bool doubtful = false;
  {
    const MutexLock lock(mu_);
    bound_places();
    Place& place = places_[address];
    const std::shared_ptr<RemotePeer> peer = place.peer.lock();
    doubtful = place.failure.has_value() || place.span != Clock::Duration(0);
    if (peer != nullptr && peer->alive()) {
      known.emplace(peer);
    } else if (place.failure && !place.trying && options_.clock->now() < place.rests_until) {
      known.emplace(Unexpected(*place.failure));
    } else {
      place.waiting.push_back(reached);
      if (!place.trying) (doubtful ? doubtful_ : fresh_).push_back(address);
      if (!std::exchange(place.trying, true) && !hurried_.post([this] { hurry(); })) {
        place.trying = false;
        place.waiting.clear();
        std::erase(doubtful ? doubtful_ : fresh_, address);
        known.emplace(make_error(ErrorCode::kCapacity, "no thread to connect to %s", address.c_str()));
      }
    }
  }
  if (!known) return doubtful ? Start::kDoubtful : Start::kTrying;
  reached(*known);
  return Start::kKnown;
}

void PeerReacher::hurry() {
  std::string address;
  {
    const MutexLock lock(mu_);
    std::deque<std::string>& queue = fresh_.empty() ? doubtful_ : fresh_;
    ASHLAR_CHECK(!queue.empty(), "an attempt without an address");
    address = std::move(queue.front());
    queue.pop_front();
  }
  attempt(address, std::min(kHurry, options_.call_limit));
}

void PeerReacher::persist() {
  std::string address;
  Clock::Duration span = {};
  {
    const MutexLock lock(mu_);
    ASHLAR_CHECK(!slow_.empty(), "an attempt without an address");
    address = std::move(slow_.front());
    slow_.pop_front();
    span = places_[address].span;
  }
  attempt(address, span);
}

void PeerReacher::attempt(const std::string& address, Clock::Duration span) {
  const Clock::TimePoint end = Clock::real().now() + span;
  const Outcome outcome = agent_->connect(address, {.deadline = end, .stop = stop_.get_token()});
  if (!outcome && span < options_.call_limit && !stop_.stop_requested() && Clock::real().now() >= end) {
    const MutexLock lock(mu_);
    places_[address].span = std::min(4 * span, options_.call_limit);
    slow_.push_back(address);
    if (persisting_.post([this] { persist(); })) return;
    slow_.pop_back();
  }
  const bool is_self = !outcome && outcome.error().code() == ErrorCode::kAlreadyExists;
  if (!outcome && !is_self && !stop_.stop_requested())
    ASHLAR_LOG(LogLevel::kWarn, "tiers", "peer %s is left alone for a while: %s", printable(address).c_str(),
               outcome.error().to_string().c_str());
  std::vector<Reached> waiting;
  {
    const MutexLock lock(mu_);
    Place& place = places_[address];
    place.trying = false;
    place.span = {};
    waiting.swap(place.waiting);
    if (outcome) {
      place.peer = *outcome;
      place.failure.reset();
    } else {
      place.failure = outcome.error();
      place.rests_until = options_.clock->now() + options_.rest;
    }
  }
  for (const Reached& reached : waiting) reached(outcome);
}

void PeerReacher::bound_places() {
  if (places_.size() < kMostPlaces) return;
  std::erase_if(places_, [](const auto& one) { return !one.second.trying; });
}

}  // namespace ashlar::tiers
