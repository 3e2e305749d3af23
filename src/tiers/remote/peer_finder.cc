#include "tiers/remote/peer_finder.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/wide.h"

namespace ashlar::tiers {

using transfer::RemotePeer;
using transfer::SealedBytes;

namespace {

constexpr std::size_t kMostMeetings = 16;  // threads that connect

}  // namespace

PeerFinder::PeerFinder(std::shared_ptr<transfer::RemoteAgent> agent, const Options& options)
    : agent_(std::move(agent)),
      options_(options),
      label_("block set for the group " + options.group),
      threads_(kMostMeetings) {
  ASHLAR_CHECK(options_.place != nullptr && options_.clock != nullptr, "a finder has a place and a clock");
}

std::string PeerFinder::name_of(std::uint64_t agent) const {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", wide(agent));
  return options_.group + "." + text;
}

// ---- being found

Result<void> PeerFinder::announce() {
  const std::vector<std::vector<std::byte>> sets = agent_->exports();
  if (sets.empty()) return make_error(ErrorCode::kNotReady, "the agent exports no block set");
  const std::string name = name_of(agent_->identity().agent);
  // First the answer: who finds the record may ask.
  ASHLAR_TRY(
      RendezvousOffer serving,
      options_.place->answer(name, [this](std::span<const std::byte> request) { return reply(request); }));
  ASHLAR_TRY(RendezvousOffer record, options_.place->publish(name, agent_->seal(label_, sets[0])));
  const MutexLock lock(offers_mu_);
  offers_.push_back(std::move(serving));
  offers_.push_back(std::move(record));
  return {};
}

void PeerFinder::withdraw() {
  std::vector<RendezvousOffer> offers;
  const MutexLock lock(offers_mu_);
  offers.swap(offers_);
  // The record first: offers go in the reverse order of their making.
  while (!offers.empty()) offers.pop_back();
}

Result<std::vector<std::byte>> PeerFinder::reply(std::span<const std::byte> request) const {
  ASHLAR_TRY(const SealedBytes asked, agent_->unseal(label_ + ", asked for", request));
  const std::vector<std::vector<std::byte>> sets = agent_->exports();
  if (sets.empty()) return make_error(ErrorCode::kNotReady, "this node no longer shares its blocks");
  return agent_->seal(label_ + ", as a reply", sets[0], asked.bytes);
}

// ---- finding

void PeerFinder::stop() {
  withdraw();
  stop_.request_stop();
  threads_.stop();
  const MutexLock lock(mu_);
  changed_.notify_all();
}

transfer::RemoteCallLimits PeerFinder::own_limits() const {
  return {.deadline = Clock::real().now() + options_.call_limit, .stop = stop_.get_token()};
}

bool PeerFinder::is_busy(bool hurried) const {
  return (listing_ && !(hurried && list_failed_)) || meeting_.size() > (hurried ? doubtful_ : 0);
}

bool PeerFinder::look(const transfer::RemoteCallLimits& limits, std::uint64_t& seen, bool hurried) {
  const std::stop_callback on_stop(limits.stop, [this] {
    const MutexLock lock(mu_);
    changed_.notify_all();
  });
  const MutexLock lock(mu_);
  if (!listing_ && options_.clock->now() >= next_) {
    listing_ = threads_.post([this] { list(); });
    if (listing_) ++looked_;
  }
  const Clock::TimePoint until = limits.deadline.value_or(Clock::TimePoint::max());
  while (met_ == seen && is_busy(hurried) && !limits.stop.stop_requested() && Clock::real().now() < until) {
    if (limits.deadline) {
      Clock::real().wait_until(changed_, mu_, until);
    } else {
      changed_.wait(mu_);
    }
  }
  return std::exchange(seen, met_) != met_;
}

void PeerFinder::list() {
  const Result<std::vector<RendezvousRecord>> listed =
      options_.place->list(options_.group, *own_limits().deadline);
  if (!listed)
    ASHLAR_LOG(LogLevel::kWarn, "tiers", "the nodes of group '%s' cannot be listed: %s",
               options_.group.c_str(), listed.error().to_string().c_str());
  const std::string own = name_of(agent_->identity().agent);
  const MutexLock lock(mu_);
  listing_ = false;
  list_failed_ = !listed;
  next_ = options_.clock->now() + options_.look_again;
  changed_.notify_all();
  if (!listed) return;
  std::set<std::string> present;
  for (const RendezvousRecord& record : *listed) present.insert(record.name);
  std::erase_if(resting_, [&](const auto& one) { return !present.contains(one.first); });
  for (const RendezvousRecord& record : *listed) {
    if (record.name == own || meeting_.contains(record.name)) continue;
    const auto rest = resting_.find(record.name);
    const bool doubtful = rest != resting_.end() && rest->second.bytes == record.bytes;
    if (doubtful && options_.clock->now() < rest->second.until) continue;
    if (!threads_.post([this, record, doubtful] { try_record(record, doubtful); })) continue;
    meeting_.insert(record.name);
    if (doubtful) ++doubtful_;
  }
}

void PeerFinder::try_record(const RendezvousRecord& record, bool doubtful) {
  const Result<void> met = meet(record, own_limits());
  const bool connected = met || met.error().code() == ErrorCode::kAlreadyExists;
  const bool refused = !connected && !stop_.stop_requested();
  if (refused)
    ASHLAR_LOG(LogLevel::kInfo, "tiers", "the record %s leads to no peer: %s", printable(record.name).c_str(),
               met.error().to_string().c_str());
  const MutexLock lock(mu_);
  meeting_.erase(record.name);
  if (doubtful) --doubtful_;
  changed_.notify_all();
  if (met) ++met_;
  if (connected) resting_.erase(record.name);
  if (!refused) return;
  ++refused_;
  refusal_ = record.name + ": " + met.error().message();
  resting_[record.name] = {record.bytes, options_.clock->now() + options_.rest};
}

Result<void> PeerFinder::meet(const RendezvousRecord& record, const transfer::RemoteCallLimits& limits) {
  ASHLAR_TRY(SealedBytes sealed, agent_->unseal(label_, record.bytes));
  if (name_of(sealed.author.agent) != record.name)
    return make_error(ErrorCode::kInvalidArgument, "it has the record of agent %s, whose name is %s",
                      sealed.author.to_string().c_str(), name_of(sealed.author.agent).c_str());
  Result<void> imported = import(sealed, limits);
  if (imported || imported.error().code() != ErrorCode::kUnavailable) return imported;
  // That incarnation is gone. Another may answer to the name.
  Result<SealedBytes> now = ask(record.name, limits);
  if (!now)
    return make_error(ErrorCode::kUnavailable, "%s; and asked for its current set: %s",
                      imported.error().message().c_str(), now.error().message().c_str());
  if (now->author == sealed.author || name_of(now->author.agent) != record.name) return imported;
  return import(*now, limits);
}

Result<void> PeerFinder::import(const SealedBytes& sealed, const transfer::RemoteCallLimits& limits) {
  if (sealed.author == agent_->identity())
    return make_error(ErrorCode::kAlreadyExists, "it is this agent's own");
  const auto is_author = [&](const std::shared_ptr<RemotePeer>& peer) {
    return peer->identity() == sealed.author;
  };
  if (std::ranges::any_of(agent_->peers(), is_author))
    return make_error(ErrorCode::kAlreadyExists, "agent %s is connected", sealed.author.to_string().c_str());
  ASHLAR_TRY(const transfer::BlockSetOwner described, transfer::RemoteAgent::owner_of_blockset(sealed.bytes));
  if (described.owner != sealed.author)
    return make_error(ErrorCode::kInvalidArgument, "agent %s has sealed a block set of agent %s",
                      sealed.author.to_string().c_str(), described.owner.to_string().c_str());
  if (agent_->is_dropped(described))
    return make_error(ErrorCode::kAlreadyExists, "the set of agent %s was dropped here",
                      sealed.author.to_string().c_str());
  const auto imported = agent_->import_remote_blockset(sealed.bytes, limits);
  // Once it is connected, a look-up may have been faster to ask it for its sets.
  if (!imported && imported.error().code() != ErrorCode::kAlreadyExists) return imported.error();
  return {};
}

Result<SealedBytes> PeerFinder::ask(const std::string& name, const transfer::RemoteCallLimits& limits) {
  ASHLAR_TRY(const std::vector<std::byte> challenge, transfer::RemoteAgent::draw_challenge());
  ASHLAR_TRY(const std::vector<std::byte> said,
             options_.place->ask(name, agent_->seal(label_ + ", asked for", challenge), *limits.deadline));
  return agent_->unseal(label_ + ", as a reply", said, challenge);
}

std::uint64_t PeerFinder::met() const {
  const MutexLock lock(mu_);
  return met_;
}

void PeerFinder::add_to(RemoteStatus& status) const {
  const MutexLock lock(mu_);
  status.looked = looked_;
  status.met = met_;
  status.records_refused = refused_;
  status.record_refusal = refusal_;
}

}  // namespace ashlar::tiers
