#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/transfer_plan.h"
#include "base/wide.h"
#include "tiers/remote/kv_hints.h"
#include "tiers/remote/remote_core.h"

namespace ashlar::tiers {

using tokens::SequenceHash;
using transfer::RemoteBlockSet;
using transfer::RemotePeer;

Result<void> RemoteLimits::validate() const {
  if (leases == 0 || leases_per_peer == 0 || leased_bytes == 0 || leased_bytes_per_peer == 0 ||
      reserved_blocks_per_peer == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "remote.limits has a limit of 0; leave serve off to give peers nothing");
  if (leases_per_peer > leases || leased_bytes_per_peer > leased_bytes)
    return make_error(
        ErrorCode::kInvalidArgument,
        "remote.limits gives one peer more than all of them: %u of %u leases, %llu of %llu bytes",
        leases_per_peer, leases, wide(leased_bytes_per_peer), wide(leased_bytes));
  return {};
}

Result<void> RemoteShape::validate() const {
  const auto bad = [](const char* what) {
    return make_error(ErrorCode::kInvalidArgument, "remote.%s", what);
  };
  if (own_agent.has_value() == (agent != nullptr)) return bad("own_agent and agent: give one of them");
  if (own_agent) ASHLAR_RETURN_IF_ERROR(own_agent->validate());
  if (rendezvous != nullptr) {
    if (const Result<void> good = Rendezvous::check_name(group + ".0123456789abcdef"); !good)
      return bad(("group: " + good.error().message()).c_str());
    if (look_again < Clock::Duration(0)) return bad("look_again is negative");
  } else if (!group.empty()) {
    return bad("group is set, and rendezvous is not: nowhere to meet");
  }
  if (block_count == 0) return bad("block_count is 0; it is the number of blocks of peers to track");
  if (lease < std::chrono::milliseconds(1) || renew <= Clock::Duration(0) || renew >= lease)
    return bad("renew must be shorter than lease, and both more than 0");
  if (call_limit <= Clock::Duration(0) || copy_limit <= Clock::Duration(0) || rest < Clock::Duration(0) ||
      patience < Clock::Duration(0))
    return bad("call_limit and copy_limit are more than 0, and rest and patience are not negative");
  if (landing_blocks != 0 && !serve) return bad("landing_blocks is set, and serve is off: nobody could push");
  return limits.validate();
}

bool RemoteBlocks::active() const {
  return lease_ != nullptr && lease_->active();
}

// ---- reservations

RemoteReservation::~RemoteReservation() {
  if (!over_)
    static_cast<void>(set_->peer()->notify(static_cast<std::uint16_t>(RemoteMethod::kAbort),
                                           encode_numbers(std::span(&id_, 1))));
}

Result<std::vector<Result<void>>> RemoteReservation::commit(std::span<const SequenceHash> hashes,
                                                            const transfer::RemoteCallLimits& limits) {
  if (hashes.size() > slots_.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu blocks were written into a reservation of %zu",
                      hashes.size(), slots_.size());
  const std::shared_ptr<RemoteCore> core = core_.lock();
  if (core == nullptr)
    return make_error(ErrorCode::kNotReady, "the manager whose blocks were written into it is gone");
  BytePool& g2 = *core->g2;
  const layout::Shard& theirs = set_->shard();
  CommitRequest request{.reservation = id_, .records = {}};
  std::vector<Result<void>> outcomes(hashes.size());
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
                                              theirs.layers, theirs.heads);
    if (!made) {
      outcomes[i] = made.error();
      continue;
    }
    record = g2.record(*held);
    record.checksum = *made;
  }
  over_ = true;  // the peer takes it out, whatever it answers
  const auto said =
      set_->peer()->call(static_cast<std::uint16_t>(RemoteMethod::kCommit), request.encode(), limits);
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

Result<std::vector<Result<void>>> RemoteBlocksMutable::commit(std::span<const SequenceHash> hashes,
                                                              const transfer::RemoteCallLimits& limits) && {
  const std::shared_ptr<RemoteReservation> reservation = std::move(reservation_);
  return reservation->commit(hashes, limits);
}

// ---- the node

transfer::RemoteAgent& RemoteNode::agent() noexcept {
  return *core_->agent;
}

Result<std::shared_ptr<RemotePeer>> RemoteNode::connect(std::string_view address,
                                                        std::optional<Clock::TimePoint> until) {
  return core_->pool->connect(address, core_->pool->call_limits({.deadline = until}), true);
}

Result<std::vector<std::byte>> RemoteNode::export_blockset() const {
  if (core_->server == nullptr)
    return make_error(ErrorCode::kNotReady, "this node serves no blocks; set RemoteShape::serve");
  const std::vector<std::vector<std::byte>> all = core_->agent->exports();
  if (all.empty()) return make_error(ErrorCode::kNotReady, "the agent exports no block set");
  return all[0];
}

Result<std::shared_ptr<RemotePeer>> RemoteNode::import_remote_blockset(
    std::span<const std::byte> bytes, std::optional<Clock::TimePoint> until) {
  const std::uint64_t since = core_->pool->drops();
  ASHLAR_TRY(const std::shared_ptr<const RemoteBlockSet> set,
             core_->agent->import_remote_blockset(bytes, core_->pool->call_limits({.deadline = until})));
  // Its landing too, where it has one.
  Result<RemotePool::Sets> all =
      core_->agent->exchange(set->peer(), core_->pool->call_limits({.deadline = until}), true);
  if (!all) all = RemotePool::Sets{set};
  ASHLAR_RETURN_IF_ERROR(core_->pool->adopt(set->peer(), all, since));
  return set->peer();
}

bool RemoteNode::drop_remote_blockset(const transfer::AgentIdentity& peer) {
  return core_->pool->drop(peer);
}

std::vector<std::shared_ptr<const RemoteBlockSet>> RemoteNode::remote_blocksets() const {
  return core_->pool->sets();
}

namespace {

Result<std::shared_ptr<const RemoteBlockSet>> set_of(const RemotePool& pool,
                                                     const transfer::AgentIdentity& peer, std::uint64_t id) {
  std::shared_ptr<const RemoteBlockSet> set = pool.set_of(peer, id);
  if (set == nullptr)
    return make_error(ErrorCode::kNotFound, "agent %s is not connected, or shares no %s that fits here",
                      peer.to_string().c_str(), id == kG2Set ? "blocks" : "landing");
  return set;
}

// The part of a peer's blocks that this rank has a use for.
RemotePart common_part(const RemoteBlockSet& set, const transfer::BlockSet& blocks) {
  const layout::Shard& mine = blocks.planes()[0].shard;
  return {intersect(mine.layers, set.shard().layers), intersect(mine.heads, set.shard().heads)};
}

}  // namespace

Result<RemoteBlocks> RemoteNode::get_remote_blocks(const transfer::AgentIdentity& peer,
                                                   std::span<const SequenceHash> hashes,
                                                   std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, set_of(*core_->pool, peer, kG2Set));
  ASHLAR_TRY(const RemotePool::Leased leased,
             core_->pool->lease(*set, hashes, common_part(*set, *core_->g2->blocks()), {.deadline = until}));
  std::vector<RemoteBlock> blocks;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const FoundBlock& found = leased.answer.blocks[i];
    blocks.push_back({.hash = hashes[i], .miss = found.miss, .slot = found.slot});
    if (found.miss == Miss::kNone) blocks.back().checksum = *found.record.checksum;
  }
  return RemoteBlocks(std::move(set), std::move(blocks), leased.lease);
}

Result<RemoteBlocks> RemoteNode::get_remote_blocks(const transfer::AgentIdentity& peer,
                                                   std::span<const RemoteBlock> wanted,
                                                   std::optional<Clock::TimePoint> until) {
  std::vector<SequenceHash> hashes;
  for (const RemoteBlock& block : wanted) hashes.push_back(block.hash);
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, set_of(*core_->pool, peer, kG2Set));
  ASHLAR_TRY(const RemotePool::Leased leased,
             core_->pool->lease(*set, hashes, common_part(*set, *core_->g2->blocks()), {.deadline = until}));
  std::vector<RemoteBlock> blocks(wanted.begin(), wanted.end());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const FoundBlock& found = leased.answer.blocks[i];
    blocks[i].miss = found.miss;
    if (found.miss != Miss::kNone) continue;
    if (found.slot != blocks[i].slot) blocks[i].miss = Miss::kGone;
    blocks[i].checksum = *found.record.checksum;
  }
  return RemoteBlocks(std::move(set), std::move(blocks), leased.lease);
}

Result<RemoteBlocks> RemoteNode::get_remote_blocks(const transfer::AgentIdentity& peer,
                                                   std::span<const std::uint32_t> slots,
                                                   std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, set_of(*core_->pool, peer, kG2Set));
  ASHLAR_TRY(
      const RemotePool::Leased leased,
      core_->pool->lease_slots(*set, slots, common_part(*set, *core_->g2->blocks()), {.deadline = until}));
  std::vector<RemoteBlock> blocks;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const FoundBlock& found = leased.answer.blocks[i];
    blocks.push_back({.hash = found.record.hash, .miss = found.miss, .slot = slots[i]});
    if (found.miss == Miss::kNone) blocks.back().checksum = *found.record.checksum;
  }
  return RemoteBlocks(std::move(set), std::move(blocks), leased.lease);
}

Result<RemoteBlocksMutable> RemoteNode::get_remote_blocks_mutable(const transfer::AgentIdentity& peer,
                                                                  std::size_t n,
                                                                  std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, set_of(*core_->pool, peer, kLandingSet));
  const layout::Shard& mine = core_->g2->blocks()->planes()[0].shard;
  const layout::Shard& theirs = set->shard();
  if (intersect(mine.layers, theirs.layers) != theirs.layers ||
      intersect(mine.heads, theirs.heads) != theirs.heads)
    return make_error(ErrorCode::kUnsupported,
                      "%s does not have all that %s holds, so it cannot push whole blocks there; let it pull",
                      mine.to_string().c_str(), theirs.to_string().c_str());
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
  return RemoteBlocksMutable(
      std::make_shared<RemoteReservation>(std::move(set), answer[0], std::move(slots), core_, core_->names));
}

Result<std::vector<Result<void>>> RemoteNode::push(const transfer::AgentIdentity& peer,
                                                   std::span<const SequenceHash> hashes,
                                                   std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(const std::shared_ptr<const RemoteBlockSet> set, set_of(*core_->pool, peer, kLandingSet));
  std::vector<Result<void>> outcomes;
  // As many at a time as the landing has room for.
  std::size_t most = set->blocks()->block_count();
  while (outcomes.size() < hashes.size()) {
    const std::span<const SequenceHash> some =
        hashes.subspan(outcomes.size(), std::min(most, hashes.size() - outcomes.size()));
    Result<std::vector<Result<void>>> pushed = push_some(peer, some, until);
    if (!pushed && pushed.error().code() == ErrorCode::kCapacity && some.size() > 1) {
      most = some.size() / 2;
      continue;
    }
    if (!pushed && outcomes.empty()) return pushed.error();
    for (std::size_t i = 0; i < some.size(); ++i)
      outcomes.push_back(pushed ? std::move((*pushed)[i]) : Result<void>(pushed.error()));
  }
  return outcomes;
}

Result<std::vector<Result<void>>> RemoteNode::push_some(const transfer::AgentIdentity& peer,
                                                        std::span<const SequenceHash> hashes,
                                                        std::optional<Clock::TimePoint> until) {
  std::vector<Result<void>> outcomes(hashes.size());
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
  ASHLAR_TRY(const std::shared_ptr<const RemoteBlockSet> landing, set_of(*core_->pool, peer, kLandingSet));
  ASHLAR_TRY(RemoteBlocksMutable target, get_remote_blocks_mutable(peer, members.size(), until));
  held->target = target;
  const std::shared_ptr<const transfer::BlockSet> set = target.blocks();
  const layout::Shard& theirs = set->planes()[0].shard;
  ASHLAR_TRY(transfer::TransferPlan plan,
             transfer::plan(core_->g2->blocks(), from, set, target.ids(), {theirs.layers, theirs.heads}));
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
  ASHLAR_TRY(std::vector<Result<void>> done,
             std::move(target).commit(pushed, core_->pool->call_limits({.deadline = until})));
  for (std::size_t k = 0; k < members.size(); ++k) outcomes[members[k]] = std::move(done[k]);
  return outcomes;
}

Result<std::vector<HintOutcome>> RemoteNode::execute_hints(std::string_view envelope,
                                                           std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(const std::vector<KvHint> hints, parse_hints(envelope));
  if (!until) until = core_->clock->now() + core_->pool->longest_fetch();
  std::map<std::string, std::string> dead;      // sources that did not answer: why
  std::unordered_set<std::uint64_t> in_memory;  // of all names
  std::unordered_set<std::uint64_t> named;
  for (const KvHint& hint : hints) named.insert(hint.block_hashes.begin(), hint.block_hashes.end());
  core_->each_in_memory([&](const SequenceHash& hash) {
    if (named.contains(hash.chain())) in_memory.insert(hash.chain());
  });
  std::vector<HintOutcome> outcomes;
  for (const KvHint& hint : hints) {
    HintOutcome& outcome = outcomes.emplace_back();
    outcome.message_id = hint.message_id;
    outcome.action_id = hint.action_id;
    outcome.action_type = hint.action_type;
    outcome.wanted = hint.block_hashes.size();
    if (!hint.refusal.empty()) {
      outcome.reason = hint.refusal;
      continue;
    }
    const auto count_here = [&] {
      return static_cast<std::size_t>(std::ranges::count_if(
          hint.block_hashes, [&](std::uint64_t name) { return in_memory.contains(name); }));
    };
    outcome.fetched = count_here();
    const auto fetch = [&]() -> Result<void> {
      if (const auto why = dead.find(hint.source); why != dead.end())
        return Error(ErrorCode::kUnavailable, why->second);
      if (core_->clock->now() >= *until)
        return make_error(ErrorCode::kTimeout, "the time for this envelope was over");
      const auto said = [&]() -> Result<std::vector<std::byte>> {
        ASHLAR_TRY(const std::shared_ptr<RemotePeer> peer,
                   core_->pool->reach(hint.source, {.deadline = until}));
        return peer->call(static_cast<std::uint16_t>(RemoteMethod::kNames), encode_numbers(hint.block_hashes),
                          core_->pool->call_limits({.deadline = until}));
      }();
      if (!said &&
          (said.error().code() == ErrorCode::kUnavailable || said.error().code() == ErrorCode::kTimeout))
        dead.emplace(hint.source, said.error().message());
      ASHLAR_RETURN_IF_ERROR(said);
      ASHLAR_TRY(std::vector<SequenceHash> names, decode_hashes(*said));
      // A name of 64 bits may stand for several blocks; all of them are fetched, in the order of their chain.
      const std::unordered_set<std::uint64_t> wanted(hint.block_hashes.begin(), hint.block_hashes.end());
      std::erase_if(names, [&](const SequenceHash& name) { return !wanted.contains(name.chain()); });
      std::ranges::sort(names);
      const bool none = names.empty();
      const std::string why = none ? "" : core_->fetch(names, hint.source, until);
      // One that stands for several blocks is there with all of them.
      for (const SequenceHash& name : names) in_memory.insert(name.chain());
      for (const SequenceHash& name : names)
        if (!core_->is_in_memory(name)) in_memory.erase(name.chain());
      outcome.fetched = count_here();
      if (outcome.fetched < outcome.wanted)
        outcome.reason = !why.empty() ? why
                         : none       ? "the source has none of these blocks"
                                      : "the source does not have all of these blocks";
      return {};
    };
    if (outcome.fetched < outcome.wanted)
      if (const Result<void> done = fetch(); !done) outcome.reason = done.error().message();
    outcome.kind = outcome.fetched == 0               ? HintOutcome::Kind::kRejected
                   : outcome.fetched < outcome.wanted ? HintOutcome::Kind::kClipped
                                                      : HintOutcome::Kind::kDone;
  }
  return outcomes;
}

std::string RemoteNode::to_json(std::span<const HintOutcome> outcomes) {
  return outcomes_to_json(outcomes);
}

RemoteStatus RemoteNode::status() const {
  RemoteStatus status;
  core_->pool->add_to(status);
  if (core_->server != nullptr) core_->server->add_to(status);
  return status;
}

Result<void> add_remote_metrics(const RemoteCore& core, MetricRegistry& metrics, const MetricLabels& labels,
                                std::vector<MetricRegistration>& out) {
  struct One {
    const char* name;
    const char* help;
    std::uint64_t RemoteStatus::* value;
  };
  const auto add = [&](const One& one) -> Result<void> {
    ASHLAR_TRY(MetricRegistration added,
               metrics.add({one.name, one.help, labels}, [&core, value = one.value] {
                 RemoteStatus status;
                 if (core.server != nullptr) core.server->add_to(status);
                 return static_cast<double>(status.*value);
               }));
    out.push_back(std::move(added));
    return {};
  };
  for (const One& one :
       {One{"ashlar_remote_leases", "Leases that peers have now.", &RemoteStatus::leases},
        One{"ashlar_remote_leased_bytes", "Bytes that peers may read now.", &RemoteStatus::leased_bytes},
        One{"ashlar_remote_leases_granted_total", "Leases granted to peers.", &RemoteStatus::granted},
        One{"ashlar_remote_leases_expired_total", "Leases that peers did not release in time.",
            &RemoteStatus::expired},
        One{"ashlar_remote_requests_refused_total", "Requests of peers that would have passed a limit.",
            &RemoteStatus::refused},
        One{"ashlar_remote_reserved_blocks", "Blocks of the landing that peers have reserved.",
            &RemoteStatus::reserved_blocks},
        One{"ashlar_remote_reservations_expired_total",
            "Reservations that peers neither committed nor gave back in time.",
            &RemoteStatus::reservations_expired},
        One{"ashlar_remote_pushed_blocks_total", "Blocks that peers pushed here.", &RemoteStatus::pushed},
        One{"ashlar_remote_push_refused_blocks_total",
            "Pushed blocks whose bytes did not match, or that had no room.", &RemoteStatus::push_refused}})
    ASHLAR_RETURN_IF_ERROR(add(one));
  struct Total {
    const char* name;
    const char* help;
    PeerTotals::What what;
  };
  const auto add_total = [&](const Total& one, const PeerTotals& totals) -> Result<void> {
    ASHLAR_TRY(MetricRegistration added,
               metrics.add_counters({one.name, one.help, labels}, "peer",
                                    [&totals, what = one.what] { return totals.values(what); }));
    out.push_back(std::move(added));
    return {};
  };
  for (const Total& one : {Total{"ashlar_remote_peer_pulled_bytes_total", "Bytes read from a peer.",
                                 PeerTotals::What::kPulledBytes},
                           Total{"ashlar_remote_peer_failed_blocks_total",
                                 "Blocks that a peer was thought to have, and that could not be read.",
                                 PeerTotals::What::kFailedBlocks}})
    ASHLAR_RETURN_IF_ERROR(add_total(one, core.pool->totals()));
  for (const Total& one :
       {Total{"ashlar_remote_peer_leases_total", "Leases granted to a peer.", PeerTotals::What::kLeases},
        Total{"ashlar_remote_peer_served_bytes_total", "Bytes of the blocks leased to a peer.",
              PeerTotals::What::kServedBytes}})
    if (core.server != nullptr) ASHLAR_RETURN_IF_ERROR(add_total(one, core.server->totals()));
  ASHLAR_TRY(MetricRegistration peers,
             metrics.add({"ashlar_remote_peers", "Living peers whose blocks can be used.", labels}, [&core] {
               RemoteStatus status;
               core.pool->add_to(status);
               return static_cast<double>(std::ranges::count(status.peers, "", &RemotePeerStatus::refusal));
             }));
  out.push_back(std::move(peers));
  return {};
}

}  // namespace ashlar::tiers
