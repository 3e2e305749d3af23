// What choices lead to, in a RouteCore: blocks that are expected where requests were sent.
#include <algorithm>
#include <bit>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "service/route/route_core.h"
#include "service/route/route_group.h"

namespace ashlar::service {

using events::Worker;
using tokens::LocalHash;

namespace {

// A prompt that comes again within this part of the lifetime of expectations is not noted again.
constexpr int kRenewals = 8;
constexpr std::size_t kMaxExpected = 65'536;

std::uint64_t prompt_key(const Worker& worker, std::span<const LocalHash> locals) {
  std::uint64_t key = spread_bits(worker.id.value() * 65'537 + worker.rank);
  for (const LocalHash local : locals) key = (std::rotl(key, 23) ^ local.value()) * 0x9E37'79B9'7F4A'7C15u;
  return spread_bits(key);
}

}  // namespace

void RouteCore::expect(const Worker& worker, std::span<const LocalHash> locals, Clock::TimePoint now) {
  settle();
  clock_->set(now);
  const Rank* rank = rank_of(worker);
  if (rank == nullptr || rank->state == WorkerState::kExact || locals.empty()) return;
  workers_.at(worker.id).group->lasting.predict(worker, locals);
}

std::size_t RouteCore::end_predictions(Clock::TimePoint now, std::size_t limit) {
  settle();
  clock_->set(now);
  std::size_t ended = 0;
  for (const auto& [name, group] : groups_) {
    ended += group->soon.expire(limit - ended);
    ended += group->lasting.expire(limit - ended);
  }
  return ended;
}

void RouteCore::expect(Group& group, bool has_events, const Worker& worker, std::span<const LocalHash> locals,
                       std::span<const LocalHash> identity, Clock::TimePoint now) {
  const Clock::Duration ttl = has_events ? options_.prediction_ttl : options_.fallback_ttl;
  if (options_.max_predicted_blocks == 0) return;
  if (group.expected.size() >= kMaxExpected) group.expected.clear();
  const auto [noted, is_new] = group.expected.try_emplace(prompt_key(worker, identity), now);
  if (!is_new && now - noted->second < ttl / kRenewals) return;
  noted->second = now;
  ASHLAR_DCHECK(options_.max_predicted_blocks <= options_.max_predictions,
                "one request may predict %zu blocks, all of them %zu", options_.max_predicted_blocks,
                options_.max_predictions);
  const std::size_t kept = std::min(locals.size(), options_.max_predicted_blocks);
  group.cut += locals.size() - kept;
  ASHLAR_DCHECK(put_off_.predictions == nullptr, "one expectation is put off at a time");
  put_off_.predictions = has_events ? &group.soon : &group.lasting;
  put_off_.worker = worker;
  put_off_.locals.assign(locals.begin(), locals.begin() + static_cast<std::ptrdiff_t>(kept));
}

void RouteCore::settle() const {
  if (put_off_.predictions == nullptr) return;
  std::exchange(put_off_.predictions, nullptr)->predict(put_off_.worker, put_off_.locals);
}

std::size_t RouteCore::predicted(std::string_view group) const {
  settle();
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second->soon.predicted() + found->second->lasting.predicted();
}

std::pair<std::uint64_t, std::uint64_t> RouteCore::left_out(std::string_view group) const {
  settle();
  const auto found = groups_.find(group);
  if (found == groups_.end()) return {};
  const Group& its = *found->second;
  return {its.cut, its.soon.prediction_counters().evicted + its.lasting.prediction_counters().evicted};
}

}  // namespace ashlar::service
