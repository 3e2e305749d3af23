// How blocks go through the table. What callers and the manager ask of it is in offload_table_calls.cc.
#include "tiers/offload/offload_table.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::tiers {

using tokens::SequenceHash;

namespace {

Error never_written(const SequenceHash& hash) {
  return make_error(ErrorCode::kCancelled,
                    "the precondition of block %s failed or was abandoned, and can never pass",
                    hash.to_string().c_str());
}

}  // namespace

OffloadTable::OffloadTable(const OffloadWorkerOptions& options, std::size_t largest_batch, Clock& clock,
                           Upgrade upgrade)
    : options_(options), largest_batch_(largest_batch), clock_(clock), upgrade_(std::move(upgrade)) {
  ASHLAR_CHECK(largest_batch_ != 0, "a batch without blocks copies nothing");
}

// Lists are kept where order matters; elsewhere an entry keeps its place, so that none is allocated again.
void OffloadTable::move(Entries::iterator at, Stage stage) {
  Entry& entry = at->second;
  if (entry.stage == Stage::kNew) {
    ASHLAR_CHECK(is_listed(stage), "block %s begins in the middle of its way", at->first.to_string().c_str());
    list(stage).emplace(entry.rank, at->first);
  } else {
    if (is_listed(entry.stage)) entry.node = list(entry.stage).extract(entry.rank);
    ASHLAR_CHECK(!entry.node.empty(), "block %s is in another list than its stage, %u",
                 at->first.to_string().c_str(), static_cast<unsigned>(entry.stage));
    --count(entry.stage);
    if (is_listed(stage)) list(stage).insert(std::move(entry.node));
  }
  entry.stage = stage;
  ++count(stage);
}

void OffloadTable::move(Entry& entry, Rank rank) {
  if (is_listed(entry.stage)) entry.node = list(entry.stage).extract(entry.rank);
  ASHLAR_CHECK(!entry.node.empty(), "a block is listed under another rank than its own");
  entry.node.key() = rank;
  entry.rank = rank;
  if (is_listed(entry.stage)) list(entry.stage).insert(std::move(entry.node));
}

void OffloadTable::block(Entries::iterator at, Aftermath& after) {
  Entry& entry = at->second;
  if (entry.hold) after.dropped.push_back(*std::exchange(entry.hold, std::nullopt));
  move(at, Stage::kBlocked);
  fences_changed_ = true;  // they may have passed while it was elsewhere
}

void OffloadTable::join(const Wanted& wanted, std::uint8_t priority, const std::shared_ptr<OffloadCall>& call,
                        Aftermath& after) {
  ++counters_.queue.offered;
  if (refusing_) {
    ++counters_.queue.cancelled;
    if (call != nullptr) call->end(wanted.hash, &OffloadProgress::cancelled);
    return;
  }
  const Rank rank{static_cast<std::uint8_t>(255 - priority), next_age_};
  const auto [at, fresh] = entries_.try_emplace(wanted.hash);
  Entry& entry = at->second;
  if (call == nullptr) {
    entry.permanently = true;
  } else {
    entry.calls.push_back(call);
  }
  for (const block::Fence& fence : wanted.after) {
    const auto known = [&](const Precondition& one) { return one.call == call.get() && one.fence == fence; };
    if (!fence.passed() && std::ranges::none_of(entry.after, known))
      entry.after.push_back({call.get(), fence});
  }
  if (fresh) {
    ++next_age_;
    entry.rank = rank;
    if (entry.after.empty()) {
      enqueue(at, after);
    } else {
      move(at, Stage::kBlocked);
    }
    return;
  }
  if (rank.below < entry.rank.below) move(entry, Rank{rank.below, entry.rank.age});  // it keeps its age
  entry.renewed = true;
  if (!entry.after.empty() && (entry.stage == Stage::kWaiting || entry.stage == Stage::kOnDeck)) {
    block(at, after);  // whoever has no precondition waits with those that have one
  } else if (entry.after.empty() && entry.stage == Stage::kBlocked) {
    enqueue(at, after);  // another block may have the name now
  }
}

void OffloadTable::enqueue(Entries::iterator at, Aftermath& after) {
  const Entry& entry = at->second;
  ASHLAR_CHECK(entry.after.empty(), "block %s is queued before its preconditions have passed",
               at->first.to_string().c_str());
  List& waiting = list(Stage::kWaiting);
  const std::size_t queued = waiting.size() + count(Stage::kUpgrading) + count(Stage::kOnDeck);
  if (queued >= options_.queue.on_deck + options_.queue.waiting) {
    const auto last = std::prev(waiting.end());
    if (last->first < entry.rank) {
      ++counters_.queue.refused;
      end(at, &OffloadProgress::refused, after);
      return;
    }
    ++counters_.queue.displaced;
    end(entries_.find(last->second), &OffloadProgress::refused, after);
  }
  move(at, Stage::kWaiting);
  if (!oldest_) oldest_ = clock_.now();
}

// A block whose precondition can never pass may have incomplete bytes: it is offloaded for no caller. Of a
// registration the block that is found next decides.
void OffloadTable::unblock(Aftermath& after) {
  if (!std::exchange(fences_changed_, false)) return;
  const auto never_passes = [](const Precondition& one) { return one.fence.never_passes(); };
  std::vector<SequenceHash> free;
  std::vector<SequenceHash> hopeless;
  for (const auto& [rank, hash] : list(Stage::kBlocked)) {
    Entry& entry = entries_.at(hash);
    if (std::ranges::any_of(entry.after, never_passes)) {
      hopeless.push_back(hash);
      continue;
    }
    std::erase_if(entry.after, [](const Precondition& one) { return one.fence.passed(); });
    if (entry.after.empty() && entry.may_be_written()) free.push_back(hash);
  }
  for (const SequenceHash& hash : hopeless)
    end(entries_.find(hash), &OffloadProgress::failed, after, never_written(hash));
  for (const SequenceHash& hash : free) enqueue(entries_.find(hash), after);
  changed_.notify_all();  // drain() waits for this check
}

void OffloadTable::end(Entries::iterator at, std::size_t OffloadProgress::* outcome, Aftermath& after,
                       const std::optional<Error>& error) {
  Entry& entry = at->second;
  if (outcome == &OffloadProgress::gone) ++counters_.gone;
  if (outcome == &OffloadProgress::cancelled) ++counters_.queue.cancelled;
  for (const std::shared_ptr<OffloadCall>& call : entry.calls)
    if (call->end(at->first, outcome, error) && call->deadline) deadlines_.erase({*call->deadline, call});
  if (entry.hold) after.dropped.push_back(*std::move(entry.hold));
  if (is_listed(entry.stage)) list(entry.stage).erase(entry.rank);
  if (entry.stage != Stage::kNew) --count(entry.stage);
  entries_.erase(at);
  changed_.notify_all();
}

void OffloadTable::release(Entries::iterator at, Aftermath& after) {
  const Entry& entry = at->second;
  if (entry.wanted() || entry.stage == Stage::kUpgrading) return;  // upgraded() sees to it
  if (entry.stage != Stage::kInFlight) {
    end(at, &OffloadProgress::cancelled, after);
    return;
  }
  const auto wanted = [this](const OffloadBatch::Member& member)
                          ASHLAR_REQUIRES(mu_) { return entries_.at(member.hash).wanted(); };
  if (std::ranges::none_of(entry.batch->members, wanted)) after.stopped.push_back(entry.batch);
}

void OffloadTable::expire(Aftermath& after) {
  if (deadlines_.empty()) return;
  const Clock::TimePoint now = clock_.now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const std::shared_ptr<OffloadCall> call = deadlines_.begin()->second;
    abandon(call, &OffloadProgress::late, after);
  }
}

// A block that is wanted permanently keeps the preconditions of a call that leaves: its bytes may not be
// written yet.
void OffloadTable::abandon(const std::shared_ptr<OffloadCall>& call, std::size_t OffloadProgress::* outcome,
                           Aftermath& after) {
  std::vector<SequenceHash> hashes;
  hashes.reserve(call->pending.size());
  call->pending.for_each([&](const OffloadCall::Pending& block) { hashes.push_back(block.name); });
  for (const SequenceHash& hash : hashes) {
    call->end(hash, outcome);
    const auto at = entries_.find(hash);
    ASHLAR_CHECK(at != entries_.end(), "a call waits for block %s, which the table does not know",
                 hash.to_string().c_str());
    Entry& entry = at->second;
    std::erase(entry.calls, call);
    const auto its = [&](const Precondition& one) { return one.call == call.get(); };
    if (!entry.permanently) std::erase_if(entry.after, its);
    for (Precondition& one : entry.after)
      if (its(one)) one.call = nullptr;
    if (entry.stage == Stage::kBlocked)
      fences_changed_ = true;  // others may have waited for its precondition
    release(at, after);
  }
  if (call->deadline) deadlines_.erase({*call->deadline, call});
  work_.notify_all();
}

bool OffloadTable::deck_has_room() const {
  return count(Stage::kOnDeck) + count(Stage::kUpgrading) < options_.queue.on_deck;
}

std::vector<SequenceHash> OffloadTable::next_for_deck() {
  constexpr std::size_t kAtATime = 32;
  std::vector<SequenceHash> hashes;
  if (stopping_) return hashes;  // the tier above may be gone, and close() ends what waits
  hashes.reserve(kAtATime);
  while (hashes.size() < kAtATime && !list(Stage::kWaiting).empty() && deck_has_room()) {
    hashes.push_back(list(Stage::kWaiting).begin()->second);
    const auto at = entries_.find(hashes.back());
    at->second.renewed = false;
    move(at, Stage::kUpgrading);
  }
  return hashes;
}

void OffloadTable::refill() {
  std::vector<SequenceHash> hashes;
  {
    const MutexLock lock(mu_);
    hashes = next_for_deck();
  }
  refill(std::move(hashes));
}

// Holding a block takes its manager's lock, so it happens outside this one.
void OffloadTable::refill(std::vector<SequenceHash> hashes) {
  std::vector<std::optional<Source>> sources;
  while (!hashes.empty()) {
    sources.clear();
    for (const SequenceHash& hash : hashes) {
      sources.push_back(upgrade_(hash));
      // Before its entry says that it waits: who drains finds it held no longer.
      if (sources.back() && sources.back()->after) sources.back()->hold = block::Hold();
    }
    Aftermath after;
    {
      const MutexLock lock(mu_);
      for (std::size_t i = 0; i < hashes.size(); ++i) upgraded(hashes[i], std::move(sources[i]), after);
      if (stopping_) changed_.notify_all();  // close() waits for them
      hashes = next_for_deck();
    }
    for (const block::Fence& fence : after.unwatched) watch(fence);
  }
}

void OffloadTable::upgraded(const SequenceHash& hash, std::optional<Source> source, Aftermath& after) {
  const auto at = entries_.find(hash);
  ASHLAR_CHECK(at != entries_.end() && at->second.stage == Stage::kUpgrading,
               "block %s left the table while it was taken on deck", hash.to_string().c_str());
  Entry& entry = at->second;
  const std::optional<block::Fence> before = std::exchange(entry.written, std::nullopt);
  if (source) {
    entry.written = std::move(source->after);
    if (!entry.written) entry.hold = std::move(source->hold);
  }
  if (entry.withdrawn || !entry.wanted()) {
    end(at, &OffloadProgress::cancelled, after);
  } else if (entry.written && entry.written->never_passes()) {
    end(at, &OffloadProgress::failed, after, never_written(hash));
  } else if (entry.written || !entry.after.empty()) {
    if (entry.written && entry.written != before &&
        (after.unwatched.empty() || after.unwatched.back() != *entry.written))
      after.unwatched.push_back(*entry.written);
    block(at, after);
    work_.notify_all();
  } else if (entry.hold) {
    move(at, Stage::kOnDeck);
    const std::size_t on_deck = count(Stage::kOnDeck);
    if (on_deck == 1 || on_deck == std::min(options_.full_batch, largest_batch_)) work_.notify_all();
  } else if (entry.renewed) {
    move(at, Stage::kWaiting);  // registered again, perhaps
  } else if (before && before->never_passes()) {
    end(at, &OffloadProgress::failed, after, never_written(hash));  // its block went with its name
  } else {
    ++counters_.queue.discarded;
    end(at, &OffloadProgress::gone, after);
  }
}

std::optional<Clock::TimePoint> OffloadTable::next_batch() {
  const List& deck = list(Stage::kOnDeck);
  if (deck.empty()) {
    if (count(Stage::kWaiting) + count(Stage::kUpgrading) == 0) oldest_.reset();
    return std::nullopt;
  }
  ASHLAR_CHECK(oldest_.has_value(), "%zu blocks are on deck, since no time", deck.size());
  const bool enough = flushers_ != 0 || deck.size() >= std::min(options_.full_batch, largest_batch_);
  const Clock::Duration wait =
      enough ? Clock::Duration::zero() : std::min(options_.max_wait, Clock::TimePoint::max() - *oldest_);
  return std::max(not_before_, *oldest_ + wait);
}

bool OffloadTable::wait_for_batch(bool wait) {
  for (;;) {
    Aftermath after;
    bool refills = false;
    {
      const MutexLock lock(mu_);
      for (;;) {
        if (stopping_) return false;
        expire(after);
        unblock(after);
        refills = !list(Stage::kWaiting).empty() && deck_has_room();
        if (refills || !after.empty()) break;  // first, without the lock
        std::optional<Clock::TimePoint> next = next_batch();
        if (next && *next <= clock_.now()) return true;
        if (!wait) return false;
        if (!deadlines_.empty())
          next = std::min(next.value_or(Clock::TimePoint::max()), deadlines_.begin()->first);
        if (next) {
          clock_.wait_until(work_, mu_, *next);
        } else {
          work_.wait(mu_);
        }
      }
    }
    if (refills) refill();
  }
}

std::pair<std::shared_ptr<OffloadBatch>, std::vector<block::Hold>> OffloadTable::take() {
  auto batch = std::make_shared<OffloadBatch>();
  std::vector<block::Hold> holds;
  Aftermath after;
  const MutexLock lock(mu_);
  expire(after);
  Clock::TimePoint latest = Clock::TimePoint::min();
  List& deck = list(Stage::kOnDeck);
  while (holds.size() < largest_batch_ && !deck.empty()) {
    const SequenceHash hash = deck.begin()->second;
    const auto at = entries_.find(hash);
    Entry& entry = at->second;
    batch->members.push_back({hash, static_cast<std::uint8_t>(255 - entry.rank.below)});
    holds.push_back(*std::exchange(entry.hold, std::nullopt));
    entry.batch = batch;
    move(at, Stage::kInFlight);
    if (entry.permanently) latest = Clock::TimePoint::max();
    for (const std::shared_ptr<OffloadCall>& call : entry.calls)
      latest = std::max(latest, call->deadline.value_or(Clock::TimePoint::max()));
  }
  if (latest != Clock::TimePoint::max()) batch->deadline = latest;
  counters_.queue.taken += holds.size();
  oldest_.reset();
  if (count(Stage::kWaiting) + count(Stage::kUpgrading) + count(Stage::kOnDeck) != 0) oldest_ = clock_.now();
  changed_.notify_all();
  return {std::move(batch), std::move(holds)};
}

namespace {

std::size_t OffloadProgress::* outcome_of(Moved moved) {
  switch (moved) {
    case Moved::kArrived:
      return &OffloadProgress::arrived;
    case Moved::kPresent:
      return &OffloadProgress::present;
    case Moved::kGone:
      return &OffloadProgress::gone;
    case Moved::kDamaged:
    case Moved::kFailed:
    case Moved::kStopped:
    case Moved::kOtherShards:
    case Moved::kRefused:
    case Moved::kUnreachable:
    case Moved::kUnwritten:
    case Moved::kNoRoom:
      break;
  }
  return &OffloadProgress::failed;
}

}  // namespace

void OffloadTable::finish(const std::shared_ptr<OffloadBatch>& batch, const MoveReport& report) {
  ASHLAR_CHECK(report.blocks.size() == batch->members.size(), "a batch of %zu blocks ends with %zu outcomes",
               batch->members.size(), report.blocks.size());
  {
    Aftermath after;
    const MutexLock lock(mu_);
    expire(after);
    ++counters_.batches;
    counters_.arrived += report.count(Moved::kArrived);
    counters_.present += report.count(Moved::kPresent);
    counters_.damaged += report.count(Moved::kDamaged);
    counters_.failed += report.count(Moved::kFailed);
    counters_.stopped += report.count(Moved::kStopped);
    counters_.bytes += report.bytes;
    if (options_.bytes_per_second != 0)
      not_before_ =
          std::max(not_before_, clock_.now()) +
          std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(report.bytes) /
                                                             static_cast<double>(options_.bytes_per_second)));
    for (std::size_t i = 0; i < batch->members.size(); ++i) {
      const auto at = entries_.find(batch->members[i].hash);
      ASHLAR_CHECK(at != entries_.end() && at->second.batch == batch,
                   "block %s left its batch before its end", batch->members[i].hash.to_string().c_str());
      Entry& entry = at->second;
      entry.batch = nullptr;
      const Moved moved = report.blocks[i];
      if (moved != Moved::kStopped) {
        const auto outcome = outcome_of(moved);
        end(at, outcome, after, outcome == &OffloadProgress::failed ? report.error : std::nullopt);
      } else if (entry.withdrawn || !entry.wanted() || refusing_) {
        end(at, &OffloadProgress::cancelled, after);
      } else {
        block(at, after);  // from where unblock() queues it again
      }
    }
    unblock(after);
  }
  refill();
}

}  // namespace ashlar::tiers
