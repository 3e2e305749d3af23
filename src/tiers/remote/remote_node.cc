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
      reserved_blocks_per_peer == 0 || incomplete_blocks == 0 || incomplete_blocks_per_peer == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "remote.limits has a limit of 0; leave serve off to give peers nothing");
  if (leases_per_peer > leases || leased_bytes_per_peer > leased_bytes ||
      incomplete_blocks_per_peer > incomplete_blocks)
    return make_error(
        ErrorCode::kInvalidArgument,
        "remote.limits gives one peer more than all of them: %u of %u leases, %llu of %llu bytes, "
        "%u of %u incomplete blocks",
        leases_per_peer, leases, wide(leased_bytes_per_peer), wide(leased_bytes), incomplete_blocks_per_peer,
        incomplete_blocks);
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

Result<std::shared_ptr<const RemoteBlockSet>> RemoteCore::set_of(const transfer::AgentIdentity& peer,
                                                                 std::uint64_t id) const {
  std::shared_ptr<const RemoteBlockSet> set = pool->set_of(peer, id);
  if (set == nullptr)
    return make_error(ErrorCode::kNotFound, "agent %s is not connected, or shares no %s that fits here",
                      peer.to_string().c_str(), id == kG2Set ? "blocks" : "landing");
  return set;
}

RemotePart RemoteCore::common_part(const RemoteBlockSet& set) const {
  const layout::Shard& mine = g2->blocks()->planes()[0].shard;
  return {intersect(mine.layers, set.shard().layers), intersect(mine.heads, set.shard().heads)};
}

Result<RemoteBlocks> RemoteNode::get_remote_blocks(const transfer::AgentIdentity& peer,
                                                   std::span<const SequenceHash> hashes,
                                                   std::optional<Clock::TimePoint> until) {
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, core_->set_of(peer, kG2Set));
  ASHLAR_TRY(const RemotePool::Leased leased,
             core_->pool->lease(*set, hashes, core_->common_part(*set), {.deadline = until}));
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
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, core_->set_of(peer, kG2Set));
  ASHLAR_TRY(const RemotePool::Leased leased,
             core_->pool->lease(*set, hashes, core_->common_part(*set), {.deadline = until}));
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
  ASHLAR_TRY(std::shared_ptr<const RemoteBlockSet> set, core_->set_of(peer, kG2Set));
  ASHLAR_TRY(const RemotePool::Leased leased,
             core_->pool->lease_slots(*set, slots, core_->common_part(*set), {.deadline = until}));
  std::vector<RemoteBlock> blocks;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const FoundBlock& found = leased.answer.blocks[i];
    blocks.push_back({.hash = found.record.hash, .miss = found.miss, .slot = slots[i]});
    if (found.miss == Miss::kNone) blocks.back().checksum = *found.record.checksum;
  }
  return RemoteBlocks(std::move(set), std::move(blocks), leased.lease);
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
        One{"ashlar_remote_incomplete_blocks", "Blocks of G2 of which ranks have pushed some parts, not all.",
            &RemoteStatus::incomplete_blocks},
        One{"ashlar_remote_incomplete_expired_total", "Blocks of which parts did not come in time.",
            &RemoteStatus::incomplete_expired},
        One{"ashlar_remote_pushed_blocks_total", "Blocks that peers pushed here.", &RemoteStatus::pushed},
        One{"ashlar_remote_push_refused_blocks_total",
            "Pushed blocks, or parts, whose bytes did not fit, or that had no room.",
            &RemoteStatus::push_refused}})
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
