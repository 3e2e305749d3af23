#include "tiers/remote/peer_finder.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/in_parallel.h"
#include "base/wide.h"

namespace ashlar::tiers {

using transfer::RemotePeer;
using transfer::SealedBytes;

namespace {

constexpr std::size_t kMostMeetings = 16;  // threads that connect

}  // namespace

PeerFinder::PeerFinder(std::shared_ptr<transfer::RemoteAgent> agent, const Options& options)
    : agent_(std::move(agent)), options_(options), label_("block set for the group " + options.group) {
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

bool PeerFinder::is_known(const RendezvousRecord& record) {
  const MutexLock lock(mu_);
  const auto found = resting_.find(record.name);
  if (found == resting_.end()) return false;
  if (found->second.bytes == record.bytes && options_.clock->now() < found->second.until) return true;
  resting_.erase(found);
  return false;
}

bool PeerFinder::look(const transfer::RemoteCallLimits& limits, std::uint64_t& seen) {
  {
    const MutexLock lock(mu_);
    const Clock::TimePoint until = limits.deadline.value_or(Clock::TimePoint::max());
    while (looking_ && Clock::real().now() < until && !limits.stop.stop_requested())
      Clock::real().wait_until(looked_at_, mu_,
                               std::min(until, Clock::real().now() + std::chrono::milliseconds(50)));
    if (looking_ || options_.clock->now() < next_) return std::exchange(seen, met_) != met_;
    looking_ = true;
    ++looked_;
  }
  const Clock::TimePoint until =
      limits.deadline.value_or(Clock::real().now() + Clock::Duration(std::chrono::seconds(5)));
  Result<std::vector<RendezvousRecord>> listed = options_.place->list(options_.group, until);
  std::vector<RendezvousRecord> fresh;
  if (listed) {
    const std::string own = name_of(agent_->identity().agent);
    std::set<std::string> present;
    for (const RendezvousRecord& record : *listed) present.insert(record.name);
    {
      const MutexLock lock(mu_);
      std::erase_if(resting_, [&](const auto& one) { return !present.contains(one.first); });
    }
    for (RendezvousRecord& record : *listed)
      if (record.name != own && !is_known(record)) fresh.push_back(std::move(record));
  } else {
    ASHLAR_LOG(LogLevel::kWarn, "tiers", "the nodes of group '%s' cannot be listed: %s",
               options_.group.c_str(), listed.error().to_string().c_str());
  }
  in_parallel(fresh.size(), kMostMeetings, [&](std::size_t i) {
    const Result<void> met = meet(fresh[i], limits);
    const MutexLock lock(mu_);
    if (met) {
      ++met_;
      return;
    }
    if (met.error().code() == ErrorCode::kAlreadyExists) return;  // connected
    // A caller who left says nothing about the record.
    if (limits.stop.stop_requested() || met.error().code() == ErrorCode::kCancelled) return;
    ++refused_;
    refusal_ = fresh[i].name + ": " + met.error().message();
    resting_[fresh[i].name] = {fresh[i].bytes, options_.clock->now() + options_.rest};
    ASHLAR_LOG(LogLevel::kInfo, "tiers", "the record %s leads to no peer: %s",
               printable(fresh[i].name).c_str(), met.error().to_string().c_str());
  });
  const MutexLock lock(mu_);
  looking_ = false;
  next_ = options_.clock->now() + options_.look_again;
  looked_at_.notify_all();
  return std::exchange(seen, met_) != met_;
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
  ASHLAR_TRY(const std::shared_ptr<const transfer::RemoteBlockSet> set,
             agent_->import_remote_blockset(sealed.bytes, limits));
  if (set->peer()->identity() == sealed.author) return {};
  agent_->drop_remote_blockset(set->peer()->identity(), set->id());
  return make_error(ErrorCode::kInvalidArgument, "agent %s has sealed a block set of agent %s",
                    sealed.author.to_string().c_str(), set->peer()->identity().to_string().c_str());
}

Result<SealedBytes> PeerFinder::ask(const std::string& name, const transfer::RemoteCallLimits& limits) {
  ASHLAR_TRY(const std::vector<std::byte> challenge, transfer::RemoteAgent::draw_challenge());
  const Clock::TimePoint until =
      limits.deadline.value_or(Clock::real().now() + Clock::Duration(std::chrono::seconds(5)));
  ASHLAR_TRY(const std::vector<std::byte> said,
             options_.place->ask(name, agent_->seal(label_ + ", asked for", challenge), until));
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
