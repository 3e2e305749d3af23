// Reads blocks of peers into host memory: leases, copies, and the comparison of checksums.
#include <algorithm>
#include <map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/transfer_plan.h"
#include "base/in_parallel.h"
#include "tiers/remote/remote_choice.h"
#include "tiers/remote/remote_pool.h"

namespace ashlar::tiers {

using tokens::SequenceHash;
using transfer::BlockChecksum;
using transfer::RemoteBlockSet;

namespace {

constexpr std::size_t kChunksAtOnce = 8;
constexpr int kRounds = 3;  // a block that one peer no longer has may be had from another

Moved moved_of(Miss miss) {
  switch (miss) {
    case Miss::kUnknown:
    case Miss::kGone:
      return Moved::kGone;
    case Miss::kDamaged:
      return Moved::kDamaged;
    case Miss::kRefused:
      return Moved::kRefused;
    default:
      return Moved::kFailed;
  }
}

}  // namespace

struct RemotePool::Landing {
  std::unique_ptr<Reservation> reservation;
  std::vector<std::shared_ptr<RemoteLease>> leases;
};

struct RemotePool::Chunk {
  std::vector<std::size_t> members;  // of the request
  std::vector<SequenceHash> hashes;
  std::vector<Part> parts;
  std::vector<Leased> leased;  // by part
  std::vector<Moved> outcomes;
  std::vector<std::optional<std::size_t>> culprits;  // the part that failed a block
  std::vector<std::size_t> left;                     // blocks that every part has
  std::shared_ptr<Landing> landing;
  std::optional<Error> error;
  std::uint64_t bytes = 0;
  std::shared_ptr<ReadTimes> times;  // of the call

  void fail(std::size_t block, Moved how, std::optional<std::size_t> part = {}) {
    outcomes[block] = how;
    culprits[block] = part;
  }
  void fail_left(Moved how, const Error& why, std::optional<std::size_t> part = {}) {
    for (const std::size_t block : left) fail(block, how, part);
    if (!error) error = why;
    left.clear();
  }
};

// Blocks of one recipe together. What only sources have that rest is reported at once.
std::vector<RemotePool::Chunk> RemotePool::chunks_of(std::span<const SequenceHash> hashes,
                                                     std::span<const std::size_t> members,
                                                     const Refusals& refusals, MoveReport& report) {
  std::vector<Sources> has;
  Choice choice(*this, true);
  for (const std::size_t i : members) {
    has.push_back(holders(hashes[i]));
    std::erase_if(has.back(), [&](const auto& source) { return refusals.contains({i, source->number}); });
    const Sources with_resting = has.back();
    if (std::erase_if(has.back(), [&](const auto& source) { return rests(*source); }) != 0 &&
        !recipe(has.back()) && recipe(with_resting))
      report.blocks[i] = Moved::kUnreachable;
    choice.add(has.back());
  }
  choice.compare();
  std::vector<Chunk> chunks;
  std::map<std::vector<Number>, std::size_t> open;  // by who has the block: the chunk that takes more
  for (std::size_t k = 0; k < members.size(); ++k) {
    std::vector<Number> key;
    for (const auto& source : has[k]) key.push_back(source->number);
    std::ranges::sort(key);
    const auto found = open.find(key);
    if (found == open.end() || chunks[found->second].members.size() == Choice::kChunkBlocks) {
      Result<std::vector<Part>> parts = choice.take(has[k]);
      if (!parts) continue;  // no longer known, or its sources rest
      open[key] = chunks.size();
      chunks.push_back({});
      chunks.back().parts = *std::move(parts);
    }
    Chunk& chunk = chunks[open[key]];
    chunk.members.push_back(members[k]);
    chunk.hashes.push_back(hashes[members[k]]);
    chunk.outcomes.push_back(Moved::kFailed);
    chunk.culprits.emplace_back();
  }
  return chunks;
}

MoveReport RemotePool::get(std::span<const SequenceHash> hashes, BytePool& to, const MoveOptions& options) {
  MoveReport report;
  report.blocks.assign(hashes.size(), Moved::kGone);
  const Clock::TimePoint start = clock_.now();
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (to.has(hashes[i])) {
      report.blocks[i] = Moved::kPresent;
    } else {
      wanted.push_back(i);
    }
  }
  Refusals refusals;
  const auto times = std::make_shared<ReadTimes>(clock_);
  for (int round = 0; round < kRounds && !wanted.empty(); ++round) {
    std::vector<Chunk> chunks = chunks_of(hashes, wanted, refusals, report);
    for (Chunk& chunk : chunks) chunk.times = times;
    in_parallel(chunks.size(), kChunksAtOnce, [&](std::size_t i) { read(chunks[i], to, options); });
    std::vector<std::size_t> again;
    for (const Chunk& chunk : chunks) {
      report.bytes += chunk.bytes;
      if (chunk.error && !report.error) report.error = chunk.error;
      for (std::size_t k = 0; k < chunk.members.size(); ++k) {
        const Moved how = chunk.outcomes[k];
        report.blocks[chunk.members[k]] = how;
        if (how == Moved::kArrived || how == Moved::kStopped || !chunk.culprits[k]) continue;
        // Another peer may have it.
        const Source& source = *chunk.parts[*chunk.culprits[k]].source;
        if (how == Moved::kRefused) {
          refusals.emplace(chunk.members[k], source.number);
        } else {
          not_there(chunk.hashes[k], source);
        }
        Sources others = holders(chunk.hashes[k]);
        std::erase_if(
            others, [&](const auto& other) { return refusals.contains({chunk.members[k], other->number}); });
        if (recipe(others)) again.push_back(chunk.members[k]);
      }
    }
    std::ranges::sort(again);
    wanted = std::move(again);
    if (options.control != nullptr && options.control->cancelled()) break;
  }
  const bool all = std::ranges::all_of(
      report.blocks, [](Moved how) { return how == Moved::kArrived || how == Moved::kPresent; });
  if (all) report.error.reset();  // of a round that another made good
  report.copying = clock_.now() - start;
  learn_costs(*times);
  return report;
}

// A lease that is granted when its caller has left is given back as soon as it is known.
transfer::LateAnswer RemotePool::give_back_late(const std::shared_ptr<transfer::RemotePeer>& peer) {
  return [weak = std::weak_ptr<transfer::RemotePeer>(peer)](std::span<const std::byte> answer) {
    const std::uint64_t lease = FindAnswer::lease_of(answer);
    const std::shared_ptr<transfer::RemotePeer> owner = weak.lock();
    if (lease != 0 && owner != nullptr)
      static_cast<void>(owner->notify(static_cast<std::uint16_t>(RemoteMethod::kRelease),
                                      encode_numbers(std::span(&lease, 1))));
  };
}

Result<std::vector<std::byte>> RemotePool::ask_lease(const RemoteBlockSet& set, RemoteMethod method,
                                                     std::span<const std::byte> request,
                                                     const Limits& limits) {
  const AnswerWatch::Question question = answers_.ask(set.peer()->identity());
  Result<std::vector<std::byte>> said =
      set.peer()->call(static_cast<std::uint16_t>(method), request, call_limits(limits),
                       question.late(give_back_late(set.peer())));
  if (said) {
    question.answered();
  } else if (is_its_fault(said.error(), question)) {
    if (const std::shared_ptr<Source> source = source_of(set.peer()->identity()))
      source->rests_until = clock_.now() + options_.rest;
  }
  return said;
}

Result<RemotePool::Leased> RemotePool::lease(const RemoteBlockSet& set, std::span<const SequenceHash> hashes,
                                             const RemotePart& part, const Limits& limits) {
  const FindRequest request{.lease = true,
                            .duration = std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease),
                            .part = part,
                            .hashes = {hashes.begin(), hashes.end()}};
  const Clock::TimePoint sent = clock_.now();
  ASHLAR_TRY(const std::vector<std::byte> said,
             ask_lease(set, RemoteMethod::kFind, request.encode(), limits));
  Result<FindAnswer> answer = FindAnswer::decode(said, hashes);
  if (!answer) give_back_late(set.peer())(said);
  ASHLAR_RETURN_IF_ERROR(answer);
  return take(set, *std::move(answer), sent);
}

Result<RemotePool::Leased> RemotePool::lease_slots(const RemoteBlockSet& set,
                                                   std::span<const std::uint32_t> slots,
                                                   const RemotePart& part, const Limits& limits) {
  const SlotRequest request{.duration = std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease),
                            .part = part,
                            .slots = {slots.begin(), slots.end()}};
  const Clock::TimePoint sent = clock_.now();
  ASHLAR_TRY(const std::vector<std::byte> said,
             ask_lease(set, RemoteMethod::kSlots, request.encode(), limits));
  Result<FindAnswer> answer = FindAnswer::decode_slots(said, slots);
  if (!answer) give_back_late(set.peer())(said);
  ASHLAR_RETURN_IF_ERROR(answer);
  return take(set, *std::move(answer), sent);
}

RemotePool::Leased RemotePool::take(const RemoteBlockSet& set, FindAnswer answer, Clock::TimePoint sent) {
  Leased out;
  if (answer.lease != 0) {
    out.lease = std::make_shared<RemoteLease>(set.peer(), answer.lease, clock_, sent, answer.duration);
    keeper_.keep(out.lease);
  }
  for (FoundBlock& block : answer.blocks)
    if (block.miss == Miss::kNone && (answer.lease == 0 || block.slot >= set.blocks()->block_count()))
      block.miss = Miss::kFailed;
  out.answer = std::move(answer);
  return out;
}

void RemotePool::read(Chunk& chunk, BytePool& to, const MoveOptions& options) {
  const Limits limits{.deadline = options.deadline,
                      .stop = options.control == nullptr ? std::stop_token() : options.control->stop_token()};
  chunk.leased.resize(chunk.parts.size());
  chunk.landing = std::make_shared<Landing>();
  for (std::size_t k = 0; k < chunk.hashes.size(); ++k) chunk.left.push_back(k);
  if (!lease_parts(chunk, limits)) return;
  if (!copy_parts(chunk, to, options, limits)) return;
  settle(chunk, to, limits);
}

bool RemotePool::has_others(const Chunk& chunk) {
  Sources others = holders(chunk.hashes[0]);
  std::erase_if(others, [&](const auto& source) {
    return rests(*source) ||
           std::ranges::any_of(chunk.parts, [&](const Part& part) { return part.source == source; });
  });
  return recipe(others).has_value();
}

bool RemotePool::lease_parts(Chunk& chunk, const Limits& limits) {
  std::vector<std::optional<Error>> errors(chunk.parts.size());
  // With half of the time gone, others that have the blocks are asked in place of who has not answered.
  Limits its_limits = limits;
  if (limits.deadline && has_others(chunk))
    its_limits.deadline = *limits.deadline - (*limits.deadline - clock_.now()) / 2;
  in_parallel(chunk.parts.size(), chunk.parts.size(), [&](std::size_t p) {
    const Part& part = chunk.parts[p];
    const auto asking = chunk.times->begin(part.source->number);
    Result<Leased> leased =
        lease(*part.source->set, chunk.hashes, part.whole ? RemotePart() : part.part, its_limits);
    if (leased) {
      part.source->load = leased->answer.load;
      chunk.leased[p] = *std::move(leased);
    } else {
      errors[p] = leased.error();
    }
  });
  for (std::size_t p = 0; p < chunk.parts.size(); ++p) {
    if (errors[p]) {
      if (!is_no_answer(*errors[p])) chunk.parts[p].source->rests_until = clock_.now() + options_.rest;
      failed(*chunk.parts[p].source, chunk.left.size());
      chunk.times->failed(chunk.parts[p].source->number);
      chunk.fail_left(failure_of(*errors[p], limits), *errors[p], p);
      return false;
    }
    if (chunk.leased[p].lease != nullptr) chunk.landing->leases.push_back(chunk.leased[p].lease);
    const FindAnswer& answer = chunk.leased[p].answer;
    std::erase_if(chunk.left, [&](std::size_t k) {
      if (answer.blocks[k].miss == Miss::kNone) return false;
      chunk.fail(k, moved_of(answer.blocks[k].miss), p);
      if (!answer.refusal.empty() && !chunk.error)
        chunk.error =
            make_error(ErrorCode::kCapacity, "agent %s: %s",
                       chunk.parts[p].source->peer->identity().to_string().c_str(), answer.refusal.c_str());
      failed(*chunk.parts[p].source, 1);
      return true;
    });
  }
  std::erase_if(chunk.left, [&](std::size_t k) { return !is_one_text(chunk, k); });
  return !chunk.left.empty();
}

// Whether the owners lease what was found under this name, and the same. Unknown salts and digests agree with
// any, but the parts of a block with each other too.
bool RemotePool::is_one_text(Chunk& chunk, std::size_t k) {
  BlockText text;
  if (const std::optional<block::Hold> held = hold(chunk.hashes[k])) text = record(*held).text();
  BlockText leased;
  for (std::size_t p = 0; p < chunk.parts.size(); ++p) {
    const BlockText its = chunk.leased[p].answer.blocks[k].record.text();
    const bool is_found = text.agrees_with(its);
    if (is_found && leased.agrees_with(its)) {
      leased.learn(its);
      continue;
    }
    chunk.fail(k, is_found ? Moved::kOtherShards : Moved::kGone, p);
    failed(*chunk.parts[p].source, 1);
    return false;
  }
  return true;
}

Moved RemotePool::failure_of(const Error& error, const Limits& limits) const {
  const bool is_end = error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kCancelled;
  const bool is_over = limits.stop.stop_requested() || (limits.deadline && clock_.now() >= *limits.deadline);
  return is_end && is_over ? Moved::kStopped : Moved::kUnreachable;
}

// Transfers that do not end in time own the landing until they do.
bool RemotePool::copy_parts(Chunk& chunk, BytePool& to, const MoveOptions& options, const Limits& limits) {
  Result<std::unique_ptr<Reservation>> reserved = to.reserve(chunk.left.size());
  if (!reserved) {
    const bool full = reserved.error().code() == ErrorCode::kCapacity;
    chunk.fail_left(full ? Moved::kNoRoom : Moved::kFailed, reserved.error());
    return false;
  }
  chunk.landing->reservation = *std::move(reserved);
  std::vector<std::uint32_t> targets;
  for (const block::BlockId id : chunk.landing->reservation->ids()) {
    ASHLAR_DCHECK(to.place(id).part == 0, "block %u of a memory tier lies in part %u", id.value(),
                  to.place(id).part);
    targets.push_back(to.place(id).slot);
  }
  Clock::Duration patience = options_.copy_limit;
  if (options.deadline)
    patience = std::clamp<Clock::Duration>(*options.deadline - clock_.now(), Clock::Duration(0), patience);
  const Clock::TimePoint until = Clock::real().now() + patience;
  struct Running {
    transfer::Transfer transfer;
    std::uint64_t number;
    std::uint64_t bytes;
    std::shared_ptr<ReadTimes::Span> span;
  };
  std::vector<std::optional<Running>> running(chunk.parts.size());
  std::optional<std::pair<std::size_t, Error>> failure;
  for (std::size_t p = 0; p < chunk.parts.size() && !failure; ++p) {
    const Part& part = chunk.parts[p];
    std::vector<std::uint32_t> slots;
    for (const std::size_t k : chunk.left) slots.push_back(chunk.leased[p].answer.blocks[k].slot);
    // What all heads of a layer share comes from the first part with that layer.
    const bool brings_shared = std::none_of(
        chunk.parts.begin(), chunk.parts.begin() + static_cast<std::ptrdiff_t>(p),
        [&](const Part& other) { return intersect(other.part.layers, part.part.layers).count != 0; });
    Result<transfer::TransferPlan> plan =
        transfer::plan(part.source->set->blocks(), slots, to.blocks(), targets,
                       {part.part.layers, part.part.heads,
                        brings_shared ? transfer::SharedHeads::kMove : transfer::SharedHeads::kLeave});
    if (!plan) {
      failure.emplace(p, plan.error());
      break;
    }
    const std::uint64_t bytes = plan->bytes();
    const auto span = chunk.times->begin(part.source->number);
    const Result<transfer::Transfer> transfer =
        agent_->executor().submit({.plan = *std::move(plan),
                                   .owned = chunk.landing,
                                   .deadline = until,
                                   .on_done = [span](const transfer::TransferResult&) { span->done(); }});
    if (!transfer) {
      failure.emplace(p, transfer.error());
      break;
    }
    part.source->in_flight += bytes;
    const MutexLock lock(transfers_mu_);
    std::erase_if(transfers_, [](const auto& one) { return one.second.second.done(); });
    running[p] = Running{*transfer, next_transfer_++, bytes, span};
    transfers_.emplace(running[p]->number, std::pair(part.source->peer, *transfer));
  }
  if (options.control != nullptr)
    for (const auto& one : running)
      if (one) options.control->started(&chunk, one->transfer);
  bool unfinished = false;
  for (std::size_t p = 0; p < running.size(); ++p) {
    if (!running[p]) continue;
    const transfer::Transfer& transfer = running[p]->transfer;
    if (failure) transfer.cancel();
    const transfer::TransferResult moved = transfer.wait_until(until);
    if (!moved && !failure) failure.emplace(p, moved.error());
    running[p]->span->done();  // those that end late tell nobody
    if (moved) {
      totals_.add(PeerTotals::label(*chunk.parts[p].source->peer), PeerTotals::What::kPulledBytes,
                  running[p]->bytes);
      chunk.times->arrived(chunk.parts[p].source->number, running[p]->bytes);
    }
    unfinished |= !transfer.done();
    chunk.parts[p].source->in_flight -= running[p]->bytes;
  }
  if (options.control != nullptr) options.control->ended(&chunk);
  if (!failure) return true;
  const auto& [part, error] = *failure;
  const Moved how = failure_of(error, limits);
  Source& source = *chunk.parts[part].source;
  failed(source, chunk.left.size());
  chunk.times->failed(source.number);
  if (how != Moved::kStopped) source.rests_until = clock_.now() + options_.rest;
  chunk.fail_left(how, error, part);
  if (unfinished) chunk.landing.reset();  // the transfers have it
  return false;
}

// What arrived counts only if it is what the owners had under these names.
void RemotePool::settle(Chunk& chunk, BytePool& to, const Limits& limits) {
  const transfer::BlockSet& set = *to.blocks();
  std::vector<std::shared_ptr<ReadTimes::Span>> comparing;  // part of what reading takes
  for (const Part& part : chunk.parts) comparing.push_back(chunk.times->begin(part.source->number));
  std::vector<std::optional<bool>> leased_still(chunk.parts.size());  // asked once, of who is in doubt
  std::vector<TierRecord> records(chunk.left.size());
  for (std::size_t n = 0; n < chunk.left.size(); ++n) {
    const std::size_t k = chunk.left[n];
    const std::uint32_t slot = to.place(chunk.landing->reservation->ids()[n]).slot;
    const transfer::ChecksumKey name{chunk.hashes[k], options_.names.keys};
    TierRecord record;
    bool good = true;
    for (std::size_t p = 0; p < chunk.parts.size() && good; ++p) {
      const Part& part = chunk.parts[p];
      const TierRecord& its = chunk.leased[p].answer.blocks[k].record;
      const Result<BlockChecksum> found =
          part.whole ? transfer::checksum_block(set, slot, name)
                     : transfer::checksum_part(set, slot, name, part.part.layers, part.part.heads);
      if (!found || std::optional(*found) != its.checksum) {
        good = false;
        failed(*part.source, 1);
        // After the lease other bytes are no damage: the owner has reused the place. It may have ended the
        // lease before its time.
        if (!leased_still[p]) leased_still[p] = keeper_.confirm(chunk.leased[p].lease, call_limits(limits));
        chunk.fail(k, *leased_still[p] ? Moved::kDamaged : Moved::kGone, p);
        if (*leased_still[p])
          ASHLAR_LOG(LogLevel::kError, "tiers", "block %s from agent %s does not match its checksum",
                     chunk.hashes[k].to_string().c_str(), part.source->peer->identity().to_string().c_str());
      } else if (record.empty()) {
        record = its;
        if (!part.whole) record.checksum.reset();
      } else {
        record.learn_text(its.text());  // they agree: is_one_text()
      }
    }
    if (good) records[n] = record;
  }
  const Published published =
      chunk.landing->reservation->publish(records, block::KvReady::asserted_by_caller());
  if (published.error && !chunk.error) chunk.error = published.error;
  for (std::size_t n = 0; n < chunk.left.size(); ++n) {
    if (!published.registered[n]) continue;
    chunk.outcomes[chunk.left[n]] = Moved::kArrived;
    chunk.bytes += block_bytes();
    for (const Part& part : chunk.parts) part.source->got.add();
  }
  chunk.landing.reset();
}

}  // namespace ashlar::tiers
