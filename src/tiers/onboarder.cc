#include "tiers/onboarder.h"

#include <algorithm>
#include <utility>

#include "base/start_thread.h"

namespace ashlar::tiers {

using events::G1;
using events::G2;
using events::G3;
using events::G4;
using events::kTierId;
using tokens::SequenceHash;

namespace {

// What comes up at a time: enough for the disk, little enough to leave G2 to others.
constexpr std::size_t kBatchBlocks = 64;
constexpr std::uint64_t kBatchBytes = std::uint64_t{64} << 20;
// A call that waits for another's copy looks this often whether it was cancelled.
constexpr Clock::Duration kLookAgain = std::chrono::milliseconds(20);

double seconds_of(Clock::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Miss why_not(Moved moved, const std::optional<Error>& error) {
  if (moved == Moved::kArrived || moved == Moved::kThere) return Miss::kNone;
  if (moved == Moved::kDamaged) return Miss::kDamaged;
  if (moved == Moved::kGone) return Miss::kGone;
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

void Onboarder::stop() {
  std::vector<std::shared_ptr<OnboardCall>> calls;
  std::vector<std::thread> threads;
  {
    const MutexLock lock(queue_mu_);
    stopping_ = true;
    calls.assign(queue_.begin(), queue_.end());
    calls.insert(calls.end(), running_.begin(), running_.end());
    threads = std::move(threads_);
    queued_.notify_all();
  }
  for (const std::shared_ptr<OnboardCall>& call : calls) call->cancel();
  for (std::thread& thread : threads) thread.join();
}

Result<void> Onboarder::start(std::shared_ptr<OnboardCall> call) {
  const MutexLock lock(queue_mu_);
  if (stopping_) return make_error(ErrorCode::kCancelled, "the manager was shut down");
  if (threads_.size() < options_.threads && queue_.size() + running_.size() >= threads_.size()) {
    std::thread thread;
    const Result<void> started = start_thread(&thread, [this] { work(); });
    if (!started && threads_.empty()) return started;
    if (started) threads_.push_back(std::move(thread));
  }
  queue_.push_back(std::move(call));
  queued_.notify_one();
  return {};
}

void Onboarder::work() {
  for (;;) {
    std::shared_ptr<OnboardCall> call;
    {
      const MutexLock lock(queue_mu_);
      while (queue_.empty() && !stopping_) queued_.wait(queue_mu_);
      if (queue_.empty()) return;
      call = std::move(queue_.front());
      queue_.pop_front();
      running_.push_back(call);
    }
    run(call);
    const MutexLock lock(queue_mu_);
    std::erase(running_, call);
  }
}

// As far as it was measured.
bool Onboarder::volumes_are_faster() const {
  if (stack_.g3 == nullptr || stack_.g4 == nullptr) return false;
  const std::uint64_t bytes = stack_.g1->block_bytes();
  const double g4 = stack_.costs.seconds(kTierId<G4>, bytes);
  return g4 > 0 && g4 < stack_.costs.seconds(kTierId<G3>, bytes);
}

std::vector<TierRun> Onboarder::find(std::span<const SequenceHash> hashes) {
  const std::uint64_t bytes = stack_.g1->block_bytes();
  std::vector<TierPool*> tiers = stack_.pools();
  if (volumes_are_faster()) std::swap(tiers[tiers.size() - 1], tiers[tiers.size() - 2]);
  std::vector<TierRun> runs;
  std::size_t probed = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    auto found = std::ranges::find_if(tiers, [&](TierPool* pool) { return pool->has(hashes[i]); });
    if (found == tiers.end() && options_.probe && stack_.g4 != nullptr && i >= probed) {
      // Once for each stretch that nobody here knows.
      probed = i + std::max<std::size_t>(1, stack_.g4->probe(hashes.subspan(i)));
      found = std::ranges::find_if(tiers, [&](TierPool* pool) { return pool->has(hashes[i]); });
    }
    if (found == tiers.end()) break;
    if (!runs.empty() && runs.back().tier == (*found)->tier()) {
      ++runs.back().count;
    } else {
      runs.push_back({(*found)->tier(), i, 1});
    }
  }
  for (TierRun& run : runs) {
    if (run.tier == kTierId<G1>) continue;
    const std::uint64_t all = run.count * bytes;
    run.seconds = stack_.costs.seconds(kTierId<G2>, all);
    if (run.tier != kTierId<G2>) run.seconds += stack_.costs.seconds(run.tier, all);
  }
  return runs;
}

void Onboarder::run(const std::shared_ptr<OnboardCall>& call) {
  const std::vector<TierRun> runs = find(call->hashes);
  std::size_t known = 0;
  for (const TierRun& run : runs) {
    known += run.count;
    stack_.metrics.of(run.tier).hits.add(run.count);
    for (std::size_t i = run.first; i < run.first + run.count; ++i) call->found_in(i, run.tier);
  }
  std::size_t wanted = known;
  if (call->options.compute_tokens_per_second)
    wanted = worth_bringing(runs, options_.block_size / *call->options.compute_tokens_per_second);
  if (known < call->hashes.size()) call->miss(known, Miss::kUnknown);
  if (wanted < known) call->miss_range(wanted, known, Miss::kDeclined);
  if (call->to_g2) {
    run_prefetch(*call, wanted);
  } else {
    run_up(*call, wanted);
  }
  for (const BlockOutcome& block : call->blocks())
    if (block.state == BlockState::kMiss) stack_.metrics.missed(block.miss).add();
}

std::size_t Onboarder::batch_size(const OnboardCall& call, std::size_t left) const {
  std::size_t most = std::max<std::size_t>(1, stack_.g2_manager->total_blocks() / 2);
  if (!call.options.by_layer)
    most = std::min<std::size_t>(
        most, std::max<std::uint64_t>(kBatchBlocks, kBatchBytes / stack_.g1->block_bytes()));
  if (!call.to_g2) most = std::min(most, stack_.g1_manager->available_blocks());
  return std::min(left, most);
}

void Onboarder::run_up(OnboardCall& call, std::size_t wanted) {
  OnboardTable table;
  const std::span<const SequenceHash> hashes = std::span(call.hashes).first(wanted);
  Miss why = Miss::kNone;
  // References to what is up already keep it there while the rest comes.
  const auto match = [&](std::size_t most) {
    const std::size_t before = table.size();
    std::size_t count = 0;
    while (count < most && !foreign(call, *stack_.g1, hashes[before + count])) ++count;
    stack_.g1_manager->match_blocks(hashes.subspan(before, count), table);
    for (std::size_t i = before; i < table.size(); ++i) {
      stack_.g1->records().hit(table[i].block_id());
      call.hit(i);
    }
    if (count < most && table.size() - before == count) why = Miss::kForeign;
  };
  while (why == Miss::kNone) {
    match(wanted - table.size());
    if (table.size() >= wanted || why != Miss::kNone) break;
    if (call.stopped() || call.late()) {
      why = call.stopped() ? Miss::kCancelled : Miss::kLate;
      break;
    }
    const std::size_t batch = stack_.g2 == nullptr ? 0 : batch_size(call, wanted - table.size());
    if (batch == 0) {
      why = stack_.g2 == nullptr ? Miss::kGone : Miss::kNoRoom;
      break;
    }
    const std::span<const SequenceHash> next = hashes.subspan(table.size(), batch);
    if (!claim(call, next)) continue;
    const Batch came = bring_up(call, next, table);
    const std::size_t before = table.size();
    match(came.arrived);
    release(next);
    if (why != Miss::kNone) break;
    if (came.why != Miss::kNone) {
      why = came.why;
    } else if (table.size() == before) {
      why = Miss::kGone;  // evicted between its arrival and the match
    }
  }
  if (table.size() < wanted) call.miss(table.size(), why);
  if (options_.arrived && !table.empty()) options_.arrived();
  call.finish(std::move(table));
}

void Onboarder::run_prefetch(OnboardCall& call, std::size_t wanted) {
  std::size_t done = 0;
  while (done < wanted && stack_.g2 != nullptr) {
    if (call.stopped() || call.late()) break;
    const std::size_t batch = batch_size(call, wanted - done);
    const std::span<const SequenceHash> next = std::span(call.hashes).subspan(done, batch);
    if (!claim(call, next)) break;
    std::vector<SequenceHash> below;
    for (const SequenceHash& hash : next)
      if (!stack_.g1->has(hash) && !stack_.g2->has(hash)) below.push_back(hash);
    const std::vector<Miss> missing = bring_to_host(call, below);
    release(next);
    std::size_t asked = 0;
    for (const SequenceHash& hash : next) {
      const Miss why = asked < below.size() && below[asked] == hash ? missing[asked++] : Miss::kNone;
      if (why == Miss::kNone) {
        call.hit(done++);
      } else {
        call.miss_range(done, done + 1, why);
        ++done;
      }
    }
  }
  if (done < wanted)
    call.miss(done, call.stopped() ? Miss::kCancelled : call.late() ? Miss::kLate : Miss::kNoRoom);
  if (options_.arrived) options_.arrived();
  call.finish({});
}

MoveOptions Onboarder::move_options(OnboardCall& call) const {
  return {.deadline = call.options.deadline, .control = &call.control};
}

bool Onboarder::foreign(const OnboardCall& call, TierPool& pool, const SequenceHash& hash) const {
  const SaltFingerprint unknown;
  if (call.options.salt == unknown) return false;
  const std::optional<block::Hold> hold = pool.hold(hash);
  if (!hold) return false;
  const SaltFingerprint salt = pool.record(*hold).salt;
  return salt != unknown && salt != call.options.salt;
}

std::vector<Miss> Onboarder::bring_to_host(OnboardCall& call, std::span<const SequenceHash> hashes) {
  std::vector<Miss> missing(hashes.size(), Miss::kGone);
  const auto bring = [&](TierPool& pool, auto&& move) {
    std::vector<SequenceHash> wanted;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (missing[i] == Miss::kNone || !pool.has(hashes[i])) continue;
      if (foreign(call, pool, hashes[i])) {
        missing[i] = Miss::kForeign;
        continue;
      }
      if (const std::optional<block::Hold> hold = pool.hold(hashes[i])) pool.records().hit(hold->block_id());
      wanted.push_back(hashes[i]);
      places.push_back(i);
    }
    if (wanted.empty()) return;
    const MoveReport report = move(wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      missing[places[i]] = why_not(report.blocks[i], report.error);
    KvMetrics::Tier& counters = stack_.metrics.of(pool.tier());
    counters.onboarded.add(report.count(Moved::kArrived));
    counters.damaged.add(report.count(Moved::kDamaged));
    counters.failed.add(report.count(Moved::kFailed));
    if (!report.error) stack_.costs.observe(pool.tier(), report.bytes, seconds_of(report.copying));
  };
  const auto from_g3 = [&] {
    if (stack_.g3 != nullptr)
      bring(*stack_.g3, [&](std::span<const SequenceHash> some) {
        return stack_.mover->move(*stack_.g3, *stack_.g2, some, move_options(call));
      });
  };
  const auto from_g4 = [&] {
    if (stack_.g4 != nullptr && !call.stopped())
      bring(*stack_.g4, [&](std::span<const SequenceHash> some) {
        return stack_.g4->get(some, *stack_.g2, move_options(call));
      });
  };
  // What one cannot give, the other may.
  if (volumes_are_faster()) {
    from_g4();
    from_g3();
  } else {
    from_g3();
    from_g4();
  }
  return missing;
}

Onboarder::Batch Onboarder::bring_up(OnboardCall& call, std::span<const SequenceHash> hashes,
                                     const OnboardTable& table) {
  // What G1 and G2 have is held before others are brought there and could push it out.
  std::vector<std::optional<block::Hold>> here(hashes.size());
  std::vector<std::optional<block::Hold>> in_host(hashes.size());
  std::vector<SequenceHash> below;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    here[i] = stack_.g1->hold(hashes[i]);  // somebody else brought it, or it never left
    if (here[i]) continue;
    in_host[i] = stack_.g2->hold(hashes[i]);
    if (in_host[i]) {
      stack_.g2->records().hit(in_host[i]->block_id());
      continue;
    }
    below.push_back(hashes[i]);
    places.push_back(i);
  }
  std::vector<Miss> missing(hashes.size(), Miss::kNone);
  if (!below.empty()) {
    const std::vector<Miss> brought = bring_to_host(call, below);
    for (std::size_t i = 0; i < below.size(); ++i) {
      missing[places[i]] = brought[i];
      in_host[places[i]] = stack_.g2->hold(below[i]);
    }
  }
  // No further than to the first that is missing.
  std::size_t end = 0;
  Miss why = Miss::kNone;
  for (; end < hashes.size(); ++end) {
    if (here[end]) continue;
    if (in_host[end] && foreign(call, *stack_.g2, hashes[end])) {
      why = Miss::kForeign;
      break;
    }
    if (in_host[end]) continue;
    why = missing[end] == Miss::kNone ? Miss::kGone : missing[end];
    break;
  }
  std::vector<block::Hold> moving;
  std::vector<std::size_t> moved_places;
  for (std::size_t i = 0; i < end; ++i)
    if (!here[i]) {
      moving.push_back(*std::move(in_host[i]));
      moved_places.push_back(i);
    }
  if (moving.empty()) return {end, why};
  MoveOptions options = move_options(call);
  options.by_layer = call.options.by_layer;
  if (options.by_layer) {
    options.on_reserved = [&](std::span<const std::optional<block::BlockId>> reserved) {
      std::vector<block::BlockId> ids;
      for (const auto& block : table) ids.push_back(block.block_id());
      std::size_t next = 0;
      for (std::size_t i = 0; i < end; ++i) {
        std::optional<block::BlockId> id;
        if (here[i]) id = here[i]->block_id();
        if (!here[i]) id = reserved[next++];
        if (!id) break;  // it came up some other way; the end tells where it is
        ids.push_back(*id);
      }
      call.places(std::move(ids));
    };
    options.on_layer = [&](std::uint32_t layer) { call.layer_arrived(layer); };
  }
  const MoveReport up = stack_.mover->move(*stack_.g2, *stack_.g1, std::move(moving), options);
  if (!up.error) stack_.costs.observe(kTierId<G2>, up.bytes, seconds_of(up.copying));
  std::size_t arrived = 0;
  while (arrived < end && stack_.g1->has(hashes[arrived])) ++arrived;
  std::uint64_t from_host = 0;
  for (std::size_t i = 0; i < moved_places.size(); ++i) {
    const bool was_below = std::ranges::binary_search(places, moved_places[i]);
    if (!was_below && up.blocks[i] == Moved::kArrived) ++from_host;
    if (moved_places[i] == arrived) why = why_not(up.blocks[i], up.error);
  }
  stack_.metrics.of(kTierId<G2>).onboarded.add(from_host);
  return {arrived, arrived == hashes.size() ? Miss::kNone : why};
}

bool Onboarder::claim(const OnboardCall& call, std::span<const SequenceHash> hashes) {
  const MutexLock lock(mu_);
  // All at once, so that two calls cannot each wait for what the other has.
  while (std::ranges::any_of(
      hashes, [&](const SequenceHash& hash) ASHLAR_REQUIRES(mu_) { return coming_.contains(hash); })) {
    if (call.stopped() || call.late()) return false;
    stack_.clock->wait_until(released_, mu_, stack_.clock->now() + kLookAgain);
  }
  coming_.insert(hashes.begin(), hashes.end());
  return true;
}

void Onboarder::release(std::span<const SequenceHash> hashes) {
  const MutexLock lock(mu_);
  for (const SequenceHash& hash : hashes) coming_.erase(hash);
  released_.notify_all();
}

}  // namespace ashlar::tiers
