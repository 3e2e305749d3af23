// Onboarding batches: each is started, and finished while the next is copied.
#include <algorithm>
#include <utility>

#include "tiers/onboard/onboarder.h"

namespace ashlar::tiers {

using events::G2;
using events::kTierId;
using tokens::SequenceHash;

namespace {

double seconds_of(Clock::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// The error of a report is of some of its blocks; it says why others failed only where those do not.
Miss miss_of(Moved moved, const std::optional<Error>& error, const OnboardCall& call) {
  if (moved == Moved::kArrived || moved == Moved::kPresent) return Miss::kNone;
  if (moved == Moved::kDamaged) return Miss::kDamaged;
  if (moved == Moved::kGone) return Miss::kGone;
  if (moved == Moved::kOtherShards) return Miss::kOtherShards;
  if (moved == Moved::kRefused) return Miss::kRefused;
  if (moved == Moved::kUnreachable) return Miss::kUnreachable;
  if (moved == Moved::kUnwritten) return Miss::kUnwritten;
  if (moved == Moved::kNoRoom) return Miss::kNoRoom;
  if (moved == Moved::kStopped) return call.stopped() ? Miss::kCancelled : Miss::kLate;
  if (!error) return Miss::kGone;
  switch (error->code()) {
    case ErrorCode::kCapacity:
      return Miss::kNoRoom;
    case ErrorCode::kCancelled:
      return Miss::kCancelled;
    case ErrorCode::kTimeout:
      return Miss::kLate;
    default:
      return Miss::kFailed;
  }
}

}  // namespace

void Onboarder::account(TierPool& pool, const MoveReport& report) {
  KvMetrics::Tier& counters = stack_.metrics.of(pool.tier());
  counters.onboarded.add(report.count(Moved::kArrived));
  counters.damaged.add(report.count(Moved::kDamaged));
  counters.failed.add(report.count(Moved::kFailed));
  if (!report.error && &pool != stack_.remote.get())
    stack_.costs.observe(pool.tier(), report.bytes, seconds_of(report.copying));
}

std::vector<std::size_t> Onboarder::offered_by(TierPool& pool, bool as_best, const OnboardCall& call,
                                               ToHost& to_host) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < to_host.hashes.size(); ++i) {
    if (to_host.missing[i] == Miss::kNone || (to_host.best[i] == &pool) != as_best) continue;
    const std::optional<block::Hold> hold = pool.hold(to_host.hashes[i]);
    if (!hold) continue;
    if (const Miss other = other_content(call, pool, to_host.hashes[i]); other != Miss::kNone) {
      to_host.missing[i] = other;
      continue;
    }
    pool.records().hit(hold->block_id());
    places.push_back(i);
  }
  return places;
}

Onboarder::ToHost Onboarder::begin_to_host(OnboardCall& call, std::vector<SequenceHash> hashes) {
  ToHost to_host;
  to_host.hashes = std::move(hashes);
  to_host.missing.assign(to_host.hashes.size(), Miss::kGone);
  BlockCosts costs = block_costs();
  for (const SequenceHash& hash : to_host.hashes) to_host.best.push_back(best_below_g2(hash, costs));
  if (stack_.g3 == nullptr) return to_host;
  std::vector<block::Hold> holds;
  for (const std::size_t i : offered_by(*stack_.g3, true, call, to_host))
    if (std::optional<block::Hold> hold = stack_.g3->hold(to_host.hashes[i])) {
      holds.push_back(*std::move(hold));
      to_host.places.push_back(i);
    }
  if (!holds.empty())
    to_host.move = stack_.mover->begin(*stack_.g3, *stack_.g2, std::move(holds), move_options(call));
  return to_host;
}

// Blocks that one tier cannot supply may come from another.
std::vector<Miss> Onboarder::finish_to_host(OnboardCall& call, ToHost& to_host) {
  const auto note = [&](TierPool& pool, std::span<const std::size_t> places, const MoveReport& report) {
    for (std::size_t i = 0; i < places.size(); ++i)
      to_host.missing[places[i]] = miss_of(report.blocks[i], report.error, call);
    account(pool, report);
  };
  if (to_host.move != nullptr) note(*stack_.g3, to_host.places, to_host.move->finish());
  const auto move = [&](TierPool& pool, std::span<const SequenceHash> some) {
    if (&pool == stack_.g3.get()) return stack_.mover->move(*stack_.g3, *stack_.g2, some, move_options(call));
    const LateValues::Before before = stack_.values.before();
    MoveReport report = &pool == stack_.g4.get() ? stack_.g4->get(some, *stack_.g2, move_options(call))
                                                 : stack_.remote->get(some, *stack_.g2, move_options(call));
    stack_.values.arrived(before, pool, *stack_.g2, some);
    return report;
  };
  // Each block is asked for once of each tier, first of the best.
  for (const bool as_best : {true, false})
    for (TierPool* const pool : below_g2()) {
      if (call.stopped()) break;
      if (as_best && pool == stack_.g3.get() && to_host.move != nullptr) continue;
      const std::vector<std::size_t> places = offered_by(*pool, as_best, call, to_host);
      std::vector<SequenceHash> wanted;
      wanted.reserve(places.size());
      for (const std::size_t i : places) wanted.push_back(to_host.hashes[i]);
      if (!wanted.empty()) note(*pool, places, move(*pool, wanted));
    }
  return to_host.missing;
}

// Blocks in G1 and G2 are held before others are moved there and could evict them.
Onboarder::Batch Onboarder::begin(OnboardCall& call, std::span<const SequenceHash> hashes, bool last) {
  Batch batch;
  batch.by_layer = call.options.by_layer && last;  // a layer is complete when all blocks have it
  batch.hashes = hashes;
  batch.here.resize(hashes.size());
  batch.in_host.resize(hashes.size());
  std::vector<SequenceHash> below;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    batch.here[i] = stack_.g1->hold(hashes[i]);  // another call onboarded it, or it never left
    if (batch.here[i]) continue;
    batch.in_host[i] = stack_.g2->hold(hashes[i]);
    if (batch.in_host[i]) {
      stack_.g2->records().hit(batch.in_host[i]->block_id());
      continue;
    }
    below.push_back(hashes[i]);
    batch.below.push_back(i);
  }
  if (below.empty() && !batch.by_layer) {
    begin_up(call, batch, {});
  } else {
    batch.to_host = begin_to_host(call, std::move(below));
  }
  return batch;
}

// Stops at the first missing block.
void Onboarder::begin_up(OnboardCall& call, Batch& batch, const MoveOptions& how) {
  batch.end = 0;
  for (; batch.end < batch.hashes.size(); ++batch.end) {
    if (batch.here[batch.end]) continue;
    if (!batch.in_host[batch.end]) break;
    const Miss why = stack_.g2->records().precondition(*batch.in_host[batch.end])
                         ? Miss::kUnwritten
                         : other_content(call, *stack_.g2, batch.hashes[batch.end]);
    if (why == Miss::kNone) continue;
    batch.why = why;
    break;
  }
  std::vector<block::Hold> moving;
  for (std::size_t i = 0; i < batch.end; ++i)
    if (!batch.here[i]) {
      moving.push_back(*std::move(batch.in_host[i]));
      batch.moved.push_back(i);
    }
  MoveOptions options = how;
  options.deadline = call.options.deadline;
  options.control = &call.control;
  options.keep = true;
  if (!moving.empty()) batch.up = stack_.mover->begin(*stack_.g2, *stack_.g1, std::move(moving), options);
}

Onboarder::Arrived Onboarder::finish(OnboardCall& call, Batch& batch, const OnboardTable& table) {
  const std::span<const SequenceHash> hashes = batch.hashes;
  if (!batch.below.empty() || batch.by_layer) {
    const std::vector<Miss> missing = finish_to_host(call, batch.to_host);
    for (std::size_t i = 0; i < missing.size(); ++i)
      batch.in_host[batch.below[i]] = stack_.g2->hold(hashes[batch.below[i]]);
    batch.to_host.move.reset();
    const auto first = std::ranges::find_if(
        batch.below, [&](std::size_t place) { return !batch.in_host[place].has_value(); });
    if (first != batch.below.end()) {
      const Miss why = missing[static_cast<std::size_t>(first - batch.below.begin())];
      batch.why = why == Miss::kNone ? Miss::kGone : why;
    }
    MoveOptions how;
    how.by_layer = batch.by_layer;
    if (how.by_layer) {
      how.on_reserved = [&](std::span<const std::optional<block::BlockId>> reserved) {
        std::vector<block::BlockId> ids;
        for (const auto& block : table) ids.push_back(block.block_id());
        std::size_t next = 0;
        for (std::size_t i = 0; i < batch.end; ++i) {
          const std::optional<block::BlockId> id =
              batch.here[i] ? std::optional(batch.here[i]->block_id()) : reserved[next++];
          if (!id) break;  // it arrived another way; the end of the call tells where
          ids.push_back(*id);
        }
        call.places(std::move(ids));
      };
      how.on_layer = [&](std::uint32_t layer) { call.layer_arrived(layer); };
    }
    begin_up(call, batch, how);
  }
  MoveReport up;
  if (batch.up != nullptr) {
    up = batch.up->finish();
    if (up.error) call.failed(*up.error);
    if (!up.error) stack_.costs.observe(kTierId<G2>, up.bytes, seconds_of(up.copying));
  }
  std::size_t arrived = 0;
  while (arrived < batch.end && stack_.g1->has(hashes[arrived])) ++arrived;
  std::uint64_t from_host = 0;
  for (std::size_t i = 0; i < batch.moved.size(); ++i) {
    const bool was_below = std::ranges::binary_search(batch.below, batch.moved[i]);
    if (!was_below && up.blocks[i] == Moved::kArrived) ++from_host;
    if (batch.moved[i] == arrived) batch.why = miss_of(up.blocks[i], up.error, call);
  }
  stack_.metrics.of(kTierId<G2>).onboarded.add(from_host);
  if (arrived == hashes.size()) return {arrived, Miss::kNone};
  return {arrived, batch.why == Miss::kNone ? Miss::kGone : batch.why};
}

}  // namespace ashlar::tiers
