#include "tiers/onboard/onboarder.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include "ashlar/base/check.h"
#include "base/interleaving.h"
#include "base/start_thread.h"

namespace ashlar::tiers {

using events::G1;
using events::G2;
using events::kTierId;
using events::Remote;
using tokens::SequenceHash;

namespace {

// Blocks onboarded at a time: enough for the disk, few enough to leave G2 to others.
constexpr std::size_t kBatchBlocks = 64;
constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;
// Of blocks in G2. The first copy begins, and the last one ends, with few of them; those between are copied
// without a pause.
constexpr std::size_t kFewBlocks = 16;
constexpr std::uint64_t kFewBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kHostBatchBytes = std::uint64_t{64} << 20;

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
    threads.push_back(std::move(memory_thread_));
    threads.push_back(std::move(deadline_thread_));
    for (CondVar* const waiting : {&queued_, &in_memory_, &deadline_}) waiting->notify_all();
  }
  for (const std::shared_ptr<OnboardCall>& call : calls) call->cancel();
  for (std::thread& thread : threads)
    if (thread.joinable()) thread.join();
}

bool Onboarder::is_in_memory(const OnboardCall& call) const {
  return call.choose == nullptr && std::ranges::all_of(call.hashes(), [&](const SequenceHash& hash) {
           return stack_.g1->has(hash) || (stack_.g2 != nullptr && stack_.g2->has(hash));
         });
}

Result<void> Onboarder::start(std::shared_ptr<OnboardCall> call) {
  bool busy = false;
  {
    const MutexLock lock(queue_mu_);
    busy = threads_.size() >= options_.threads && all_busy_locked();
  }
  if (busy) call->in_memory = is_in_memory(*call);
  const MutexLock lock(queue_mu_);
  if (stopping_) return make_error(ErrorCode::kCancelled, "the manager was shut down");
  if (threads_.size() < options_.threads && all_busy_locked()) {
    std::thread thread;
    const Result<void> started = start_thread(&thread, [this] { work(Turn::kAny); });
    if (!started && threads_.empty()) return started;
    if (started) threads_.push_back(std::move(thread));
  }
  if (all_busy_locked()) {
    if (call->in_memory) start_locked(memory_thread_, Turn::kInMemory);
    if (call->options.deadline) start_locked(deadline_thread_, Turn::kLate);
  }
  queue_.push_back(std::move(call));
  queued_.notify_one();
  if (queue_.back()->in_memory) in_memory_.notify_one();
  if (queue_.back()->options.deadline) deadline_.notify_one();
  return {};
}

void Onboarder::start_locked(std::thread& thread, Turn turn) {
  if (thread.joinable()) return;
  static_cast<void>(start_thread(&thread, [this, turn] { work(turn); }));
}

void Onboarder::check_invariants() {
  const MutexLock lock(queue_mu_);
  ASHLAR_CHECK(threads_.size() <= options_.threads, "%zu threads onboard blocks; %u are allowed",
               threads_.size(), options_.threads);
  ASHLAR_CHECK(stopping_ || busy_ <= threads_.size(), "%zu calls run on %zu threads", busy_, threads_.size());
  ASHLAR_CHECK(running_.size() <= busy_ + 2, "%zu calls run, %zu of them on threads for all calls",
               running_.size(), busy_);
  ASHLAR_CHECK(stopping_ || queue_.empty() || !threads_.empty(), "%zu calls wait and no thread takes them",
               queue_.size());
}

std::shared_ptr<OnboardCall> Onboarder::next(Turn turn) {
  const MutexLock lock(queue_mu_);
  for (;;) {
    auto found = queue_.begin();
    if (turn == Turn::kAny) {
      while (queue_.empty() && !stopping_) queued_.wait(queue_mu_);
      if (queue_.empty()) return nullptr;  // those of a stop are ended here
      found = queue_.begin();
      ++busy_;
    } else if (stopping_) {
      return nullptr;
    } else if (turn == Turn::kInMemory) {
      found = std::ranges::find_if(queue_, [](const auto& one) { return one->in_memory; });
      if (found == queue_.end()) {
        in_memory_.wait(queue_mu_);
        continue;
      }
    } else {
      const auto deadline = [](const std::shared_ptr<OnboardCall>& call) {
        return call->options.deadline.value_or(Clock::TimePoint::max());
      };
      found = std::ranges::min_element(queue_, {}, deadline);
      if (found == queue_.end() || !(*found)->options.deadline) {
        deadline_.wait(queue_mu_);
        continue;
      }
      if (!(*found)->late()) {
        stack_.clock->wait_until(deadline_, queue_mu_, deadline(*found));
        continue;
      }
    }
    std::shared_ptr<OnboardCall> call = std::move(*found);
    queue_.erase(found);
    running_.push_back(call);
    return call;
  }
}

void Onboarder::work(Turn turn) {
  while (const std::shared_ptr<OnboardCall> call = next(turn)) {
    run(call);
    const MutexLock lock(queue_mu_);
    if (turn == Turn::kAny) --busy_;
    std::erase(running_, call);
    std::erase_if(done_, [](const std::weak_ptr<OnboardCall>& one) { return one.expired(); });
    if (!call->to_g2) done_.push_back(call);
  }
}

void Onboarder::drop_arrived() {
  std::vector<std::weak_ptr<OnboardCall>> done;
  {
    const MutexLock lock(queue_mu_);
    done.swap(done_);
  }
  for (const std::weak_ptr<OnboardCall>& one : done)
    if (const std::shared_ptr<OnboardCall> call = one.lock()) call->cancel();
}

double Onboarder::block_seconds(const TierPool& pool) const {
  return &pool == stack_.remote.get() ? stack_.remote->least_block_seconds()
                                      : stack_.costs.seconds(pool.tier(), stack_.g1->block_bytes());
}

std::vector<TierPool*> Onboarder::below_g2() const {
  const std::vector<TierPool*> pools = stack_.pools();
  std::vector<TierPool*> below;
  for (TierPool* const pool : pools)
    if (pool != stack_.g1.get() && pool != stack_.g2.get()) below.push_back(pool);
  // One that is measured goes before another that is measured and slower; the others stay.
  const auto faster = [&](const TierPool& a, const TierPool& b) {
    const double its = block_seconds(a);
    return its > 0 && its < block_seconds(b);
  };
  for (std::size_t i = 1; i < below.size(); ++i)
    for (std::size_t k = i; k > 0 && faster(*below[k], *below[k - 1]); --k) std::swap(below[k], below[k - 1]);
  return below;
}

Onboarder::BlockCosts Onboarder::block_costs() const {
  return {.g3 = stack_.g3 == nullptr ? 0 : block_seconds(*stack_.g3),
          .g4 = stack_.g4 == nullptr ? 0 : block_seconds(*stack_.g4)};
}

TierPool* Onboarder::best_below_g2(const SequenceHash& hash, BlockCosts& costs) const {
  TierPool* best = nullptr;
  double least = 0;
  const auto consider = [&](TierPool* pool, double seconds) {
    const bool is_faster = best == nullptr || (seconds > 0 && seconds < least);
    if (pool == nullptr || !is_faster || !pool->has(hash)) return;
    best = pool;
    least = seconds;
  };
  if (stack_.remote != nullptr && stack_.remote->has(hash))
    consider(stack_.remote.get(), stack_.remote->block_seconds(hash, costs.remote));
  consider(stack_.g3.get(), costs.g3);
  consider(stack_.g4.get(), costs.g4);
  return best;
}

std::vector<TierRun> Onboarder::find(std::span<const SequenceHash> hashes, const CallLimits& limits,
                                     const BlockLineage& first, Miss* why,
                                     std::span<const std::string> sources) {
  const bool named = !sources.empty() && stack_.remote != nullptr;
  if (!probes() && !named) return find_known(hashes);
  std::size_t probed = 0;
  std::size_t compared = 0;          // up to here peers were asked for blocks that are in a tier
  const TierPool* faster = nullptr;  // than peers
  std::optional<Error> refused;
  Miss at_peers = Miss::kNone;
  const auto question = [&](std::size_t i) {
    const BlockLineage lineage{.parent = i == 0 ? first.parent : hashes[i - 1],
                               .root = hashes[0].position() == 0 ? hashes[0] : first.root,
                               .locals = first.locals.subspan(std::min(i, first.locals.size())),
                               .group = first.group};
    return RemotePool::Question{.whole = {.hashes = hashes, .locals = first.locals, .first = i},
                                .first = lineage,
                                .sources = sources};
  };
  std::vector<TierRun> runs = find_where(hashes, [&](std::size_t i, const TierPool* best) {
    if (best != nullptr) {
      if (i < compared || best == faster) return;
      if (may_be_slower(*best, named)) {
        compared = ask_for_known(question(i), *best, limits);
      } else {
        faster = best;
      }
      return;
    }
    if (i < probed) {
      at_peers = Miss::kGone;  // it was found, and has left
      return;
    }
    // One probe per stretch unknown to this process.
    refused.reset();
    at_peers = Miss::kNone;
    const RemotePool::Question all = question(i);
    const BlockLineage& lineage = all.first;
    std::size_t found = 0;
    if (stack_.remote != nullptr)
      found = stack_.remote->probe(all, {.deadline = limits.deadline, .stop = limits.stop}, &at_peers);
    if (found == 0 && options_.probe && stack_.g4 != nullptr)
      found = stack_.g4->probe(hashes.subspan(i), limits, lineage, &refused);
    probed = i + std::max<std::size_t>(1, found);
  });
  const std::size_t found = runs.empty() ? 0 : runs.back().first + runs.back().count;
  if (why != nullptr && found < hashes.size()) *why = refused ? Miss::kOtherShards : at_peers;
  return runs;
}

bool Onboarder::may_be_slower(const TierPool& tier, bool if_unmeasured) const {
  const double its = block_seconds(tier);
  const double remote = block_seconds(*stack_.remote);
  return its > 0 && remote > 0 ? remote < its : if_unmeasured;
}

// In little time, since the blocks are here in any case, and as many at once as a request to a peer may name.
// Returns up to where.
std::size_t Onboarder::ask_for_known(RemotePool::Question question, const TierPool& best,
                                     const CallLimits& limits) {
  const std::span<const SequenceHash> hashes = question.whole.hashes;
  std::size_t end = question.whole.first;
  question.only_sources = !may_be_slower(best, false);
  const std::vector<TierPool*> pools = stack_.pools();
  const std::size_t most = std::min(hashes.size(), end + FindRequest::kMaxHashes);
  while (end < most && std::ranges::any_of(pools, [&](TierPool* pool) { return pool->has(hashes[end]); }))
    ++end;
  question.whole.hashes = hashes.first(end);
  const Clock::TimePoint until = stack_.clock->now() + stack_.remote->patience();
  stack_.remote->probe(question,
                       {.deadline = std::min(until, limits.deadline.value_or(until)), .stop = limits.stop});
  return end;
}

std::vector<TierRun> Onboarder::find_where(std::span<const SequenceHash> hashes, const Ask& ask) {
  const std::uint64_t bytes = stack_.g1->block_bytes();
  std::vector<TierRun> runs;
  BlockCosts costs = block_costs();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto look = [&]() -> TierPool* {
      if (stack_.g1->has(hashes[i])) return stack_.g1.get();
      if (stack_.g2 != nullptr && stack_.g2->has(hashes[i])) return stack_.g2.get();
      return best_below_g2(hashes[i], costs);
    };
    TierPool* found = look();
    if (found == nullptr || is_local_below_g2(*found)) {
      const TierPool* const best = found;
      interleaving_point("onboarder.seen");
      ask(i, best);
      found = look();
      // It was evicted meanwhile: then it is looked for as one that no tier has.
      if (found == nullptr && best != nullptr) {
        ask(i, nullptr);
        found = look();
      }
    }
    if (found == nullptr) break;
    if (!runs.empty() && runs.back().tier == found->tier()) {
      ++runs.back().count;
    } else {
      runs.push_back({found->tier(), i, 1});
    }
  }
  ASHLAR_DCHECK(runs.empty() || runs[0].first == 0, "a prefix begins at block %zu", runs[0].first);
  for (TierRun& run : runs) {
    if (run.tier == kTierId<G1>) continue;
    const std::uint64_t all = run.count * bytes;
    run.seconds = stack_.costs.seconds(kTierId<G2>, all);
    if (run.tier == kTierId<Remote>) {
      run.seconds += stack_.remote->seconds(hashes.subspan(run.first, run.count));
    } else if (run.tier != kTierId<G2>) {
      run.seconds += stack_.costs.seconds(run.tier, all);
    }
  }
  return runs;
}

void Onboarder::run(const std::shared_ptr<OnboardCall>& call) {
  std::vector<TierRun> runs;
  Miss why = Miss::kNone;
  const bool chosen = call->choose != nullptr;
  if (const auto choose = std::exchange(call->choose, nullptr); chosen && !call->stopped() && !call->late())
    choose(*call);
  interleaving_point("onboarder.chosen");
  if (!call->stopped() && !call->late())
    runs = chosen ? find_known(call->hashes())
                  : find(call->hashes(),
                         {.deadline = call->options.deadline, .stop = call->control.stop_token()},
                         {.parent = call->options.parent,
                          .root = call->options.root,
                          .locals = call->options.locals},
                         &why, call->options.sources);
  std::size_t known = 0;
  for (const TierRun& run : runs) {
    known += run.count;
    stack_.metrics.of(run.tier).hits.add(run.count);
    for (std::size_t i = run.first; i < run.first + run.count; ++i) call->found_in(i, run.tier);
  }
  std::size_t wanted = known;
  if (call->options.compute_tokens_per_second)
    wanted = worth_bringing(runs, options_.block_size / *call->options.compute_tokens_per_second);
  if (known < call->hashes().size())
    call->miss(known, call->stopped()      ? Miss::kCancelled
                      : call->late()       ? Miss::kLate
                      : why != Miss::kNone ? why
                      : chosen             ? Miss::kGone
                                           : Miss::kUnknown);
  if (wanted < known) call->miss_range(wanted, known, Miss::kDeclined);
  OnboardTable table;
  if (call->to_g2) {
    run_prefetch(*call, wanted);
  } else {
    table = run_up(*call, wanted);
    stack_.g1_manager->restore_tokens(std::span(call->text).first(std::min(call->text.size(), table.size())));
  }
  for (const BlockOutcome& block : call->blocks())
    if (block.state == OnboardState::kMiss) stack_.metrics.missed(block.tier, block.miss).add();
  call->finish(std::move(table));
}

std::size_t Onboarder::batch_size(const OnboardCall& call, std::size_t first, std::size_t end) const {
  const std::size_t left = end - first;
  // Two batches are in flight at once, unless layers must arrive together; offload workers hold blocks too.
  const std::size_t blocks = stack_.g2_manager->total_blocks();
  std::size_t most =
      call.options.by_layer ? blocks / 2 : std::max(std::min<std::size_t>(4, blocks / 2), blocks / 8);
  most = std::max<std::size_t>(1, most);
  if (!call.options.by_layer) {
    const std::uint64_t bytes = stack_.g1->block_bytes();
    const auto worth = [&](std::uint64_t batch) {
      return std::max<std::size_t>(kBatchBlocks, batch / bytes);
    };
    if (!call.to_g2 && left != 0 && stack_.g2->has(call.hashes()[first])) {
      const std::size_t few = std::max<std::size_t>(kFewBlocks, kFewBytes / bytes);
      most = std::min({most, worth(kHostBatchBytes), std::max(few, std::min(first, left / 2))});
    } else {
      most = std::min(most, worth(kBatchBytes));
    }
  }
  if (!call.to_g2) most = std::min(most, stack_.g1_manager->available_blocks());
  return std::min(left, most);
}

OnboardTable Onboarder::run_up(OnboardCall& call, std::size_t wanted) {
  OnboardTable table;
  const std::span<const SequenceHash> hashes = call.hashes().first(wanted);
  Miss why = Miss::kNone;
  // References keep arrived blocks in place while the rest is onboarded.
  const auto match = [&](std::size_t most) {
    // A part at a time: what lies behind the first block that is not in G1 need not be looked at.
    while (most != 0 && why == Miss::kNone) {
      const std::size_t part = std::min(most, kBatchBlocks);
      const std::size_t before = table.size();
      std::size_t count = 0;
      Miss other = Miss::kNone;
      while (count < part && other == Miss::kNone) {
        other = other_content(call, *stack_.g1, hashes[before + count]);
        if (other == Miss::kNone) ++count;
      }
      // With digests again: a block may have been replaced by another of its name since.
      std::vector<tokens::PrefixDigest> prefixes;
      for (const SequenceHash& hash : hashes.subspan(before, count)) prefixes.push_back(call.prefix_of(hash));
      stack_.g1_manager->match_blocks(hashes.subspan(before, count), prefixes, table);
      for (std::size_t i = before; i < table.size(); ++i) {
        stack_.g1->records().hit(table[i].block_id());
        call.hit(i);
      }
      const std::size_t matched = table.size() - before;
      if (matched < count) return;
      if (count < part) why = other;
      most -= matched;
    }
  };
  std::optional<Batch> next;
  bool alone = false;  // no room for two batches at once
  while (why == Miss::kNone) {
    std::optional<Batch> batch = std::exchange(next, std::nullopt);
    const bool second = batch.has_value();
    if (!batch) {
      match(wanted - table.size());
      if (table.size() >= wanted || why != Miss::kNone) break;
      if (call.stopped() || call.late()) {
        why = call.stopped() ? Miss::kCancelled : Miss::kLate;
        break;
      }
      const std::size_t size = stack_.g2 == nullptr ? 0 : batch_size(call, table.size(), wanted);
      if (size == 0) {
        why = stack_.g2 == nullptr ? Miss::kGone : Miss::kNoRoom;
        break;
      }
      if (!claim(&call, hashes.subspan(table.size(), size), true)) continue;
      batch = begin(call, hashes.subspan(table.size(), size), table.size() + size == wanted);
    }
    // The next batch is copied while this one finishes.
    const std::size_t after = table.size() + batch->hashes.size();
    if (!call.options.by_layer && !alone && after < wanted && !call.stopped() && !call.late()) {
      const std::size_t size = batch_size(call, after, wanted);
      if (size > 0 && claim(&call, hashes.subspan(after, size), false))
        next = begin(call, hashes.subspan(after, size), after + size == wanted);
    }
    const Arrived came = finish(call, *batch, table);
    const std::size_t before = table.size();
    match(came.count);
    release(batch->hashes);
    if (why != Miss::kNone) break;
    if (came.why == Miss::kNoRoom && second) {
      alone = true;  // the room taken by the previous batch is known now
      abandon(std::exchange(next, std::nullopt));
    } else if (came.why != Miss::kNone) {
      why = came.why;
    } else if (table.size() == before) {
      why = Miss::kGone;  // evicted between its arrival and the match
    } else if (next && table.size() < after) {
      abandon(std::exchange(next, std::nullopt));  // the rest of this one comes first
    }
  }
  abandon(std::move(next));
  ASHLAR_CHECK(table.size() == wanted || why != Miss::kNone,
               "%zu of %zu blocks were onboarded, and no reason is given", table.size(), wanted);
  if (table.size() < wanted) call.miss(table.size(), why);
  if (options_.arrived && !table.empty()) options_.arrived();
  return table;
}

void Onboarder::abandon(std::optional<Batch> batch) {
  if (!batch) return;
  batch->to_host.move.reset();  // waits
  batch->up.reset();
  release(batch->hashes);
}

void Onboarder::run_prefetch(OnboardCall& call, std::size_t wanted) {
  struct Part {
    std::span<const SequenceHash> hashes;
    ToHost to_host;
  };
  const auto begin_part = [&](std::size_t first, bool wait) -> std::optional<Part> {
    if (first >= wanted || call.stopped() || call.late()) return std::nullopt;
    const std::span<const SequenceHash> some = call.hashes().subspan(first, batch_size(call, first, wanted));
    if (!claim(&call, some, wait)) return std::nullopt;
    std::vector<SequenceHash> below;
    for (const SequenceHash& hash : some)
      if (!stack_.g1->has(hash) && !stack_.g2->has(hash)) below.push_back(hash);
    return Part{some, begin_to_host(call, std::move(below))};
  };
  std::size_t done = 0;
  std::optional<Part> next;
  while (done < wanted && stack_.g2 != nullptr) {
    std::optional<Part> part = next ? std::exchange(next, std::nullopt) : begin_part(done, true);
    if (!part) break;
    next = begin_part(done + part->hashes.size(), false);
    const std::vector<Miss> missing = finish_to_host(call, part->to_host);
    release(part->hashes);
    std::size_t asked = 0;
    for (const SequenceHash& hash : part->hashes) {
      const bool below = asked < missing.size() && part->to_host.hashes[asked] == hash;
      const Miss why = below ? missing[asked++] : Miss::kNone;
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
}

MoveOptions Onboarder::move_options(OnboardCall& call) const {
  return {.deadline = call.options.deadline, .control = &call.control, .keep = true};
}

Miss Onboarder::other_content(const OnboardCall& call, TierPool& pool, const SequenceHash& hash) {
  if (pool.has_other_salt(hash, call.salt())) return Miss::kSaltMismatch;
  return pool.has_other_prefix(hash, call.prefix_of(hash)) ? Miss::kOtherTokens : Miss::kNone;
}

bool Onboarder::claim(const OnboardCall* call, std::span<const SequenceHash> hashes, bool wait,
                      std::optional<Clock::TimePoint> until) {
  // Outlives the lock, which its callback takes.
  const auto wake = [this] {
    const MutexLock lock(mu_);
    released_.notify_all();
  };
  std::optional<std::stop_callback<decltype(wake)>> on_cancel;
  if (wait && call != nullptr) on_cancel.emplace(call->control.stop_token(), wake);
  const std::optional<Clock::TimePoint> deadline = call == nullptr ? std::nullopt : call->options.deadline;
  const Clock::TimePoint end =
      std::min(until.value_or(Clock::TimePoint::max()), deadline.value_or(Clock::TimePoint::max()));
  const MutexLock lock(mu_);
  // All at once, so that two calls cannot each wait for the other's blocks.
  while (std::ranges::any_of(
      hashes, [&](const SequenceHash& hash) ASHLAR_REQUIRES(mu_) { return coming_.contains(hash); })) {
    if (!wait || (call != nullptr && call->stopped()) || stack_.clock->now() >= end) return false;
    if (end != Clock::TimePoint::max()) {
      stack_.clock->wait_until(released_, mu_, end);
    } else {
      released_.wait(mu_);
    }
  }
  coming_.insert(hashes.begin(), hashes.end());
  return true;
}

Onboarder::Claim::Claim(Onboarder& onboarder, std::span<const SequenceHash> hashes,
                        std::optional<Clock::TimePoint> until)
    : onboarder_(onboarder),
      hashes_(hashes.begin(), hashes.end()),
      claimed_(onboarder.claim(nullptr, hashes, true, until)) {}

Onboarder::Claim::~Claim() {
  if (claimed_) onboarder_.release(hashes_);
}

void Onboarder::release(std::span<const SequenceHash> hashes) {
  const MutexLock lock(mu_);
  for (const SequenceHash& hash : hashes) coming_.erase(hash);
  released_.notify_all();
}

}  // namespace ashlar::tiers
