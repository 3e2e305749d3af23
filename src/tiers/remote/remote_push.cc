// Pushes: reservations in the landing of a peer, and what is written there.
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/transfer_plan.h"
#include "tiers/remote/remote_core.h"

namespace ashlar::tiers {

using tokens::SequenceHash;
using transfer::RemoteBlockSet;
using transfer::RemotePeer;

namespace {

// Between two attempts to push blocks that found no room: each twice the one before.
constexpr Clock::Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Clock::Duration kLongestPause = std::chrono::milliseconds(64);
// In so many turns, about a second, all of these blocks are tried: for one that another rank has begun there
// is always room.
constexpr std::size_t kTurns = 16;

}  // namespace

// ---- reservations

RemoteReservation::~RemoteReservation() {
  if (!over_)
    static_cast<void>(set_->peer()->notify(static_cast<std::uint16_t>(RemoteMethod::kAbort),
                                           encode_numbers(std::span(&id_, 1))));
}

Result<std::vector<Result<Pushed>>> RemoteReservation::commit(std::span<const SequenceHash> hashes,
                                                              const transfer::RemoteCallLimits& limits) {
  if (hashes.size() > slots_.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu blocks were written into a reservation of %zu",
                      hashes.size(), slots_.size());
  const std::shared_ptr<RemoteCore> core = core_.lock();
  if (core == nullptr)
    return make_error(ErrorCode::kNotReady, "the manager whose blocks were written into it is gone");
  BytePool& g2 = *core->g2;
  CommitRequest request{
      .reservation = id_, .part = is_whole() ? std::nullopt : std::optional(part_), .records = {}};
  std::vector<Result<Pushed>> outcomes(hashes.size(), Pushed::kRegistered);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    TierRecord& record = request.records.emplace_back();
    const std::optional<block::Hold> held = g2.hold(hashes[i]);
    if (!held) {
      outcomes[i] =
          make_error(ErrorCode::kNotFound, "G2 no longer has block %s", hashes[i].to_string().c_str());
      continue;
    }
    if (g2.records().precondition(*held)) {
      outcomes[i] = make_error(ErrorCode::kNotFound, "block %s of G2 is still being written",
                               hashes[i].to_string().c_str());
      continue;
    }
    const BytePool::Place place = g2.place(held->block_id());
    // A part is trusted only if the whole is.
    if (const std::optional<transfer::BlockChecksum> whole = g2.records().checksum(*held))
      if (const Result<void> good =
              transfer::verify_block(*g2.blocks(place.part), place.slot, {hashes[i], names_.keys}, *whole,
                                     events::StorageTier::kHost);
          !good) {
        outcomes[i] = good.error();
        continue;
      }
    const auto made = transfer::checksum_part(*g2.blocks(place.part), place.slot, {hashes[i], names_.keys},
                                              part_.layers, part_.heads);
    if (!made) {
      outcomes[i] = made.error();
      continue;
    }
    record = g2.record(*held);
    record.checksum = *made;
  }
  over_ = true;  // the peer takes it out, whatever it answers
  const RemoteMethod method = is_whole() ? RemoteMethod::kCommit : RemoteMethod::kCommitPart;
  const auto said = set_->peer()->call(static_cast<std::uint16_t>(method), request.encode(), limits);
  // It may never have been sent. A reservation that was taken out is not there to be aborted.
  if (!said)
    static_cast<void>(set_->peer()->notify(static_cast<std::uint16_t>(RemoteMethod::kAbort),
                                           encode_numbers(std::span(&id_, 1))));
  ASHLAR_RETURN_IF_ERROR(said);
  ASHLAR_TRY(CommitAnswer answer, CommitAnswer::decode(*said, hashes.size()));
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (outcomes[i]) outcomes[i] = std::move(answer.blocks[i]);
  return outcomes;
}

const std::shared_ptr<const transfer::BlockSet>& RemoteBlocksMutable::blocks() const noexcept {
  return reservation_->set().blocks();
}

std::span<const std::uint32_t> RemoteBlocksMutable::ids() const noexcept {
  return reservation_->slots();
}

transfer::PlanSelection RemoteBlocksMutable::part() const {
  const RemotePart& part = reservation_->part();
  return {part.layers, part.heads,
          reservation_->is_whole() ? transfer::SharedHeads::kWithAll : transfer::SharedHeads::kMove};
}

Result<std::vector<Result<Pushed>>> RemoteBlocksMutable::commit(std::span<const SequenceHash> hashes,
                                                                const transfer::RemoteCallLimits& limits) && {
  const std::shared_ptr<RemoteReservation> reservation = std::move(reservation_);
  return reservation->commit(hashes, limits);
}

// ---- the node

Result<RemoteBlocksMutable> RemoteNode::get_remote_blocks_mutable(const transfer::AgentIdentity& peer,
                                                                  std::size_t n,
                                                                  std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, core_->set_of(peer, kLandingSet));
  const RemotePart part = core_->common_part(*set);
  if (part.layers.count == 0 || part.heads.count == 0)
    return make_error(ErrorCode::kUnsupported, "%s has nothing of what %s holds",
                      core_->g2->blocks()->planes()[0].shard.to_string().c_str(),
                      set->shard().to_string().c_str());
  const std::array<std::uint64_t, 2> request = {
      n, static_cast<std::uint64_t>(
             std::chrono::duration_cast<std::chrono::milliseconds>(core_->lease).count())};
  // A reservation that is made when this call has ended is given back, as is one that makes no sense.
  const auto give_back = [weak = std::weak_ptr<RemotePeer>(set->peer())](std::span<const std::byte> late) {
    const Result<std::vector<std::uint64_t>> numbers = decode_numbers(late);
    const std::shared_ptr<RemotePeer> owner = weak.lock();
    if (owner != nullptr && numbers && !numbers->empty())
      static_cast<void>(owner->notify(static_cast<std::uint16_t>(RemoteMethod::kAbort),
                                      encode_numbers(std::span(*numbers).first(1))));
  };
  ASHLAR_TRY(const std::vector<std::byte> said,
             set->peer()->call(static_cast<std::uint16_t>(RemoteMethod::kReserve), encode_numbers(request),
                               core_->pool->call_limits({.deadline = until}), give_back));
  ASHLAR_TRY(const std::vector<std::uint64_t> answer, decode_numbers(said));
  std::vector<std::uint32_t> slots;
  for (const std::uint64_t slot : std::span(answer).subspan(std::min<std::size_t>(answer.size(), 1)))
    if (slot < set->blocks()->block_count()) slots.push_back(static_cast<std::uint32_t>(slot));
  if (answer.size() != n + 1 || slots.size() != n) {
    give_back(said);
    return make_error(ErrorCode::kInvalidArgument,
                      "a peer reserves %zu blocks in place of %zu, %zu of them among its %u",
                      answer.empty() ? 0 : answer.size() - 1, n, slots.size(), set->blocks()->block_count());
  }
  return RemoteBlocksMutable(std::make_shared<RemoteReservation>(std::move(set), answer[0], std::move(slots),
                                                                 part, core_, core_->names));
}

Result<std::vector<Result<Pushed>>> RemoteNode::push(const transfer::AgentIdentity& peer,
                                                     std::span<const SequenceHash> hashes,
                                                     std::optional<Clock::TimePoint> until) {
  Result<std::vector<Result<Pushed>>> all = push_batches(peer, hashes, until);
  const auto no_room = [](const auto& outcome) {
    return !outcome && outcome.error().code() == ErrorCode::kCapacity;
  };
  if (!until) return all;
  std::vector<std::size_t> left;
  if (!all && no_room(all)) all = std::vector<Result<Pushed>>(hashes.size(), all.error());
  if (!all) return all;
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (no_room((*all)[i])) left.push_back(i);
  // Other ranks, or other peers, make room. Bytes that find none were sent for nothing: a few blocks try, the
  // first ones, as ranks fill them in the same order, and some of the others in turn. Twice as many follow
  // where all of them were taken.
  Clock::Duration pause = kFirstPause;
  std::size_t first = 0;  // how many of the first ones; 0: as many as of the others
  std::size_t next = 0;   // of the others
  bool wait = true;
  Mutex mu;
  CondVar never;
  while (!left.empty()) {
    if (wait) {
      const MutexLock lock(mu);
      core_->clock->wait_until(never, mu, std::min(*until, core_->clock->now() + pause));
    }
    if (core_->clock->now() >= *until) break;
    const std::size_t few = (left.size() + kTurns - 1) / kTurns;
    first = std::min(std::max(first, few), left.size());
    if (next < first || next >= left.size()) next = first;
    const std::size_t last = std::min(next + few, left.size());
    std::vector<std::size_t> turn;
    std::vector<std::size_t> kept;
    for (std::size_t k = 0; k < left.size(); ++k)
      (k < first || (k >= next && k < last) ? turn : kept).push_back(left[k]);
    std::vector<SequenceHash> some;
    some.reserve(turn.size());
    for (const std::size_t i : turn) some.push_back(hashes[i]);
    Result<std::vector<Result<Pushed>>> pushed = push_batches(peer, some, until);
    std::size_t refused = 0;
    for (std::size_t k = 0; k < turn.size(); ++k) {
      Result<Pushed>& outcome = (*all)[turn[k]];
      outcome = pushed ? std::move((*pushed)[k]) : Result<Pushed>(pushed.error());
      if (!no_room(outcome)) continue;
      kept.push_back(turn[k]);
      ++refused;
    }
    std::ranges::sort(kept);
    left = std::move(kept);
    next = last - (turn.size() - refused);
    wait = refused != 0;
    pause = refused == turn.size() ? std::min(2 * pause, kLongestPause) : kFirstPause;
    first = refused == 0 ? 2 * turn.size() : 0;
  }
  return all;
}

Result<std::vector<Result<Pushed>>> RemoteNode::push_batches(const transfer::AgentIdentity& peer,
                                                             std::span<const SequenceHash> hashes,
                                                             std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(const std::shared_ptr<const RemoteBlockSet> set, core_->set_of(peer, kLandingSet));
  std::vector<Result<Pushed>> outcomes;
  // As many at a time as the landing has room for.
  std::size_t most = set->blocks()->block_count();
  while (outcomes.size() < hashes.size()) {
    const std::span<const SequenceHash> some =
        hashes.subspan(outcomes.size(), std::min(most, hashes.size() - outcomes.size()));
    Result<std::vector<Result<Pushed>>> pushed = push_some(peer, some, until);
    if (!pushed && pushed.error().code() == ErrorCode::kCapacity && some.size() > 1) {
      most = some.size() / 2;
      continue;
    }
    if (!pushed && outcomes.empty()) return pushed.error();
    for (std::size_t i = 0; i < some.size(); ++i)
      outcomes.push_back(pushed ? std::move((*pushed)[i]) : Result<Pushed>(pushed.error()));
  }
  return outcomes;
}

Result<std::vector<Result<Pushed>>> RemoteNode::push_some(const transfer::AgentIdentity& peer,
                                                          std::span<const SequenceHash> hashes,
                                                          std::optional<Clock::TimePoint> until) {
  std::vector<Result<Pushed>> outcomes(hashes.size(), Pushed::kRegistered);
  struct Held {
    std::vector<block::Hold> holds;
    std::optional<RemoteBlocksMutable> target;  // its slots are another's only when no byte is on its way
  };
  const auto held = std::make_shared<Held>();
  std::vector<std::size_t> members;
  std::vector<std::uint32_t> from;
  std::vector<SequenceHash> pushed;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    std::optional<block::Hold> hold = core_->g2->hold(hashes[i]);
    if (!hold || core_->g2->records().precondition(*hold)) {
      outcomes[i] =
          make_error(ErrorCode::kNotFound, "G2 has no complete block %s", hashes[i].to_string().c_str());
      continue;
    }
    from.push_back(core_->g2->place(hold->block_id()).slot);
    held->holds.push_back(*std::move(hold));
    members.push_back(i);
    pushed.push_back(hashes[i]);
  }
  if (members.empty()) return outcomes;
  ASHLAR_TRY(const std::shared_ptr<const RemoteBlockSet> landing, core_->set_of(peer, kLandingSet));
  ASHLAR_TRY(RemoteBlocksMutable target, get_remote_blocks_mutable(peer, members.size(), until));
  held->target = target;
  const std::shared_ptr<const transfer::BlockSet> set = target.blocks();
  ASHLAR_TRY(transfer::TransferPlan plan,
             transfer::plan(core_->g2->blocks(), from, set, target.ids(), target.part()));
  Clock::Duration patience = core_->copy_limit;
  if (until)
    patience = std::clamp<Clock::Duration>(*until - core_->clock->now(), Clock::Duration(0), patience);
  const Clock::TimePoint end = Clock::real().now() + patience;
  ASHLAR_TRY(const transfer::Transfer transfer,
             core_->agent->executor().submit({.plan = std::move(plan), .owned = held, .deadline = end}));
  core_->pool->follow(landing->peer(), transfer);
  const transfer::TransferResult moved = transfer.wait_until(end);
  if (!moved) {
    transfer.cancel();
    return moved.error();
  }
  ASHLAR_TRY(std::vector<Result<Pushed>> done,
             std::move(target).commit(pushed, core_->pool->call_limits({.deadline = until})));
  for (std::size_t k = 0; k < members.size(); ++k) outcomes[members[k]] = std::move(done[k]);
  return outcomes;
}

}  // namespace ashlar::tiers
