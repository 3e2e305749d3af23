#include "tiers/remote/push_assembly.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/transfer_plan.h"
#include "base/interleaving.h"

namespace ashlar::tiers {

using layout::Range;
using tokens::SequenceHash;

namespace {

bool is_within(const Range& inner, const Range& outer) {
  return intersect(inner, outer) == inner;
}
bool is_within(const RemotePart& inner, const RemotePart& outer) {
  return is_within(inner.layers, outer.layers) && is_within(inner.heads, outer.heads);
}
bool overlap(const RemotePart& a, const RemotePart& b) {
  return intersect(a.layers, b.layers).count != 0 && intersect(a.heads, b.heads).count != 0;
}
std::uint64_t area(const RemotePart& part) {
  return std::uint64_t{part.layers.count} * part.heads.count;
}
std::string text_of(const RemotePart& part) {
  return "layers " + std::to_string(part.layers.first) + " to " + std::to_string(part.layers.end() - 1) +
         ", heads " + std::to_string(part.heads.first) + " to " + std::to_string(part.heads.end() - 1);
}

Error is_another(const SequenceHash& hash) {
  return make_error(ErrorCode::kInvalidArgument,
                    "block %s is here with another text than the pushed one; it stays until it is removed",
                    hash.to_string().c_str());
}

Error was_dropped(const SequenceHash& hash) {
  return make_error(ErrorCode::kNotReady, "block %s was dropped while its parts came; push it again",
                    hash.to_string().c_str());
}

// Layers of a part that move alike: with the planes that all heads share, or without.
struct LayerRun {
  Range layers;
  transfer::SharedHeads shared;
};
using LayerRuns = std::vector<LayerRun>;

// What all heads of a layer share came with the first part that has it.
LayerRuns runs_of(const Range& layers, std::span<const RemotePart> before) {
  LayerRuns runs;
  for (std::uint64_t layer = layers.first; layer < layers.end(); ++layer) {
    const Range one{static_cast<std::uint32_t>(layer), 1};
    const bool came = std::ranges::any_of(
        before, [&](const RemotePart& part) { return intersect(one, part.layers).count != 0; });
    const auto shared = came ? transfer::SharedHeads::kLeave : transfer::SharedHeads::kMove;
    if (!runs.empty() && runs.back().shared == shared) {
      ++runs.back().layers.count;
    } else {
      runs.push_back({one, shared});
    }
  }
  return runs;
}

bool are_equal(const LayerRuns& a, const LayerRuns& b) {
  return std::ranges::equal(a, b, [](const LayerRun& one, const LayerRun& other) {
    return one.layers == other.layers && one.shared == other.shared;
  });
}

}  // namespace

PushAssembly::PushAssembly(BytePool& g2, std::shared_ptr<const transfer::BlockSet> landing,
                           transfer::Executor& executor, const Options& options)
    : g2_(g2),
      landing_(std::move(landing)),
      executor_(executor),
      options_(options),
      shard_(g2.blocks()->planes()[0].shard),
      clock_(*options.clock) {
  ASHLAR_CHECK(options.blocks_per_peer > 0 && options.blocks_per_peer <= options.blocks,
               "a peer may begin %u of %u blocks", options.blocks_per_peer, options.blocks);
}

Result<std::vector<Result<Pushed>>> PushAssembly::add(const Peer& peer, const RemotePart& part,
                                                      std::span<const std::uint32_t> slots,
                                                      std::span<const TierRecord> records,
                                                      std::vector<TierRecord>& registered) {
  ASHLAR_DCHECK(records.size() <= slots.size(), "%zu blocks in %zu slots", records.size(), slots.size());
  if (area(part) == 0 || !is_within(part, {shard_.layers, shard_.heads}))
    return make_error(ErrorCode::kInvalidArgument,
                      "a part of %u layers from %u and %u heads from %u is pushed to %s; push what it holds",
                      part.layers.count, part.layers.first, part.heads.count, part.heads.first,
                      shard_.to_string().c_str());
  std::vector<Result<Pushed>> outcomes(records.size(), Pushed::kRegistered);
  std::vector<std::size_t> left;
  std::vector<SequenceHash> here;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].empty()) {
      outcomes[i] = make_error(ErrorCode::kNotFound, "nothing was written");
    } else if (std::optional<Result<Pushed>> known = in_g2(g2_, records[i])) {
      outcomes[i] = *std::move(known);
      if (!outcomes[i]) refuse_one();
      here.push_back(records[i].hash);
    } else {
      left.push_back(i);
    }
  }
  end_registered(here);
  const Request request{peer, part, slots, records, outcomes};
  while (!left.empty()) {
    std::vector<Claim> claims = claim(request, left);
    for (Claim& one : claims) reserve(request, one);
    copy(request, claims);
    for (Claim& one : claims) verify(request, one);
    settle(request, claims, registered);
  }
  return outcomes;
}

std::optional<Result<Pushed>> PushAssembly::in_g2(BytePool& g2, const TierRecord& record) {
  if (!g2.has(record.hash)) return std::nullopt;
  if (g2.has_other_text(record.hash, record.text())) return is_another(record.hash);
  return Pushed::kRegistered;
}

void PushAssembly::refuse_one() {
  const MutexLock lock(mu_);
  ++refused_;
}

std::size_t PushAssembly::begun_by(const Peer& peer) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(blocks_, [&](const auto& one) { return one.second->began == peer; }));
}

std::optional<Result<Pushed>> PushAssembly::decide(const RemotePart& part, const Block& block,
                                                   const TierRecord& record) {
  if (!block.record.agrees_with(record))
    return make_error(ErrorCode::kInvalidArgument,
                      "block %s is pushed with another text than its other parts have",
                      record.hash.to_string().c_str());
  for (const RemotePart& other : block.parts) {
    if (is_within(part, other)) return Result<Pushed>(Pushed::kIncomplete);
    if (overlap(part, other))
      return make_error(ErrorCode::kAlreadyExists,
                        "block %s has %s already, and a push brings %s: the ranks that push a block must "
                        "divide it without overlap",
                        record.hash.to_string().c_str(), text_of(other).c_str(), text_of(part).c_str());
  }
  return std::nullopt;
}

std::vector<PushAssembly::Claim> PushAssembly::claim(const Request& request, std::vector<std::size_t>& left) {
  std::vector<Claim> claims;
  const MutexLock lock(mu_);
  std::size_t begun = begun_by(request.peer);
  for (;;) {
    std::vector<std::size_t> busy;
    for (const std::size_t i : left) {
      const TierRecord& record = request.records[i];
      const auto found = blocks_.find(record.hash);
      if (found == blocks_.end()) {
        if (begun >= options_.blocks_per_peer || blocks_.size() >= options_.blocks) {
          const bool its = begun >= options_.blocks_per_peer;
          ++refused_;
          request.outcomes[i] =
              make_error(ErrorCode::kCapacity,
                         "%s %zu blocks of which other ranks have not pushed their part; push this one again "
                         "later",
                         its ? "one peer may begin, and this one has begun," : "there may be, and there are,",
                         its ? begun : blocks_.size());
          continue;
        }
        auto block = std::make_shared<Block>();
        block->began = request.peer;
        blocks_.emplace(record.hash, block);
        ++begun;
        claims.push_back({i, std::move(block)});
      } else if (found->second->busy) {
        busy.push_back(i);
      } else if (std::optional<Result<Pushed>> known = decide(request.part, *found->second, record)) {
        if (!*known) ++refused_;
        request.outcomes[i] = *std::move(known);
      } else {
        found->second->busy = true;
        claims.push_back({i, found->second});
      }
    }
    left = std::move(busy);
    if (!claims.empty() || left.empty()) return claims;
    changed_.wait(mu_);
    begun = begun_by(request.peer);
  }
}

void PushAssembly::reserve(const Request& request, Claim& claim) {
  // It may have come whole meanwhile.
  claim.outcome = in_g2(g2_, request.records[claim.place]);
  if (claim.outcome) return;
  Block& block = *claim.block;
  if (block.target != nullptr) return;
  Result<std::unique_ptr<Reservation>> reserved = g2_.reserve(1);
  if (!reserved) {
    claim.outcome = reserved.error();
    return;
  }
  block.target = *std::move(reserved);
  block.slot = g2_.place(block.target->ids()[0]).slot;
}

void PushAssembly::copy(const Request& request, std::span<Claim> claims) {
  std::vector<std::pair<LayerRuns, std::vector<Claim*>>> groups;  // nearly always one
  for (Claim& claim : claims) {
    if (claim.outcome) continue;
    LayerRuns runs = runs_of(request.part.layers, claim.block->parts);
    const auto found =
        std::ranges::find_if(groups, [&](const auto& group) { return are_equal(group.first, runs); });
    if (found != groups.end()) {
      found->second.push_back(&claim);
    } else {
      groups.emplace_back(std::move(runs), std::vector<Claim*>{&claim});
    }
  }
  for (const auto& group : groups) {
    const std::vector<Claim*>& members = group.second;
    std::vector<std::uint32_t> from;
    std::vector<std::uint32_t> to;
    for (const Claim* const claim : members) {
      from.push_back(request.slots[claim->place]);
      to.push_back(claim->block->slot);
    }
    const auto copied = [&]() -> Result<void> {
      for (const LayerRun& run : group.first) {
        ASHLAR_TRY(transfer::TransferPlan plan, transfer::plan(landing_, from, g2_.blocks(), to,
                                                               {run.layers, request.part.heads, run.shared}));
        ASHLAR_TRY(const transfer::Transfer transfer, executor_.submit({.plan = std::move(plan)}));
        ASHLAR_RETURN_IF_ERROR(transfer.wait_for_end());
      }
      return {};
    }();
    if (copied) continue;
    for (Claim* const claim : members) claim->outcome = copied.error();
  }
}

// A part is compared where it stays: the landing may still be written by a peer that is late.
void PushAssembly::verify(const Request& request, Claim& claim) const {
  if (claim.outcome) return;
  const TierRecord& record = request.records[claim.place];
  const Result<transfer::BlockChecksum> found =
      transfer::checksum_part(*g2_.blocks(), claim.block->slot, {record.hash, options_.keys},
                              request.part.layers, request.part.heads);
  if (!found) {
    claim.outcome = found.error();
  } else if (std::optional(*found) != record.checksum) {
    claim.outcome = make_error(ErrorCode::kCorruption,
                               "the bytes pushed for %s of block %s do not match their checksum; push them "
                               "again",
                               text_of(request.part).c_str(), record.hash.to_string().c_str());
  }
}

bool PushAssembly::is_whole(const Block& block) const {
  std::uint64_t sum = 0;  // parts do not overlap
  for (const RemotePart& part : block.parts) sum += area(part);
  const std::uint64_t all = area({shard_.layers, shard_.heads});
  ASHLAR_DCHECK(sum <= all, "parts of %llu heads of layers in a block of %llu",
                static_cast<unsigned long long>(sum), static_cast<unsigned long long>(all));
  return sum == all;
}

void PushAssembly::settle(const Request& request, std::span<Claim> claims,
                          std::vector<TierRecord>& registered) {
  std::vector<Claim*> whole;
  {
    const MutexLock lock(mu_);
    const Clock::TimePoint now = clock_.now();
    for (Claim& claim : claims) {
      Block& block = *claim.block;
      const TierRecord& record = request.records[claim.place];
      Result<Pushed>& outcome = request.outcomes[claim.place];
      ASHLAR_DCHECK(block.busy, "two threads work on block %s", record.hash.to_string().c_str());
      block.busy = false;
      if (block.over) {
        outcome = was_dropped(record.hash);
        continue;
      }
      if (claim.outcome) {
        outcome = *std::move(claim.outcome);
        if (!outcome) ++refused_;
        if (outcome || block.parts.empty()) erase(record.hash, block);
        continue;
      }
      if (block.record.empty()) block.record = record;
      block.record.learn_text(record.text());
      block.parts.push_back(request.part);
      if (std::ranges::find(block.peers, request.peer) == block.peers.end()) {
        block.peers.push_back(request.peer);
        block.end = now + options_.duration;  // a peer that divides its part gains no time
      }
      outcome = Pushed::kIncomplete;
      if (!is_whole(block)) continue;
      block.busy = true;  // until it is registered: then it is found in G2
      whole.push_back(&claim);
    }
    changed_.notify_all();
  }
  if (whole.empty()) return;
  interleaving_point("push_assembly.before_publish");
  for (const Claim* const claim : whole) {
    Block& block = *claim->block;
    block.record.checksum.reset();  // of a part; that of the whole is computed when it is needed
    const Published published =
        block.target->publish(std::span(&block.record, 1), block::KvReady::asserted_by_caller());
    Result<Pushed>& outcome = request.outcomes[claim->place];
    if (published.registered[0]) {
      outcome = Pushed::kRegistered;
    } else {
      outcome = published.error.value_or(Error(ErrorCode::kInternal, "it was not registered"));
    }
    block.target.reset();  // a reset from now on finds it in G2; one before has said that it is over
  }
  std::vector<SequenceHash> dropped;
  {
    const MutexLock lock(mu_);
    for (const Claim* const claim : whole) {
      Block& block = *claim->block;
      Result<Pushed>& outcome = request.outcomes[claim->place];
      block.busy = false;
      if (block.over) {
        if (outcome) dropped.push_back(block.record.hash);
        outcome = was_dropped(block.record.hash);
        continue;
      }
      if (outcome) {
        registered.push_back(block.record);
      } else {
        ++refused_;
      }
      erase(block.record.hash, block);
    }
    changed_.notify_all();
  }
  for (const SequenceHash& hash : dropped) static_cast<void>(g2_.remove(hash));
}

void PushAssembly::erase(const SequenceHash& hash, Block& block) {
  block.over = true;
  const auto found = blocks_.find(hash);
  ASHLAR_CHECK(found != blocks_.end() && found->second.get() == &block, "block %s is not incomplete",
               hash.to_string().c_str());
  blocks_.erase(found);
}

// One that is being worked on returns its place when that thread has ended.
template <class Which>
void PushAssembly::end(Which&& which) {
  std::vector<std::shared_ptr<Block>> dropped;  // after the lock
  const MutexLock lock(mu_);
  std::erase_if(blocks_, [&](auto& one) ASHLAR_REQUIRES(mu_) {
    if (!which(one.first, *one.second)) return false;
    one.second->over = true;
    dropped.push_back(std::move(one.second));
    return true;
  });
  if (!dropped.empty()) changed_.notify_all();
}

void PushAssembly::end_peer(const Peer& peer) {
  end([&](const SequenceHash&, const Block& block) {
    return block.parts.empty()
               ? block.began == peer
               : std::ranges::all_of(block.peers, [&](const Peer& its) { return its == peer; });
  });
}

void PushAssembly::end_blocks(std::span<const SequenceHash> hashes) {
  end([&](const SequenceHash& hash, const Block&) {
    return std::ranges::find(hashes, hash) != hashes.end();
  });
}

void PushAssembly::end_registered(std::span<const SequenceHash> hashes) {
  if (hashes.empty()) return;
  end([&](const SequenceHash& hash, const Block& block) {
    return !block.busy && std::ranges::find(hashes, hash) != hashes.end();
  });
}

void PushAssembly::end_all() {
  end([](const SequenceHash&, const Block&) { return true; });
}

std::optional<Clock::TimePoint> PushAssembly::expire() {
  const Clock::TimePoint now = clock_.now();
  end([&](const SequenceHash&, const Block& block) ASHLAR_REQUIRES(mu_) {
    const bool is_over = !block.busy && block.end <= now;
    if (is_over) ++expired_;
    return is_over;
  });
  const MutexLock lock(mu_);
  std::optional<Clock::TimePoint> next;
  for (const auto& [hash, block] : blocks_)
    if (!block->busy) next = next ? std::min(*next, block->end) : block->end;
  return next;
}

void PushAssembly::add_to(RemoteStatus& status) const {
  const MutexLock lock(mu_);
  status.incomplete_blocks = blocks_.size();
  status.incomplete_expired = expired_;
  status.push_refused += refused_;
}

}  // namespace ashlar::tiers
