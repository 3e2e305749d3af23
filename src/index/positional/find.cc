// find_matches() of PositionalTables.
//
// The workers that hold the first block are the candidates, as bits over slots. Nested ones are found by
// jumps: at every jump_size-th position the candidates still present stay, and for the others the window
// since the last jump is bisected; each lookup serves all workers it can decide. A lookup at the last
// position comes first: workers present there are done, and a position without an entry, as for requests that
// end in new content, does not even need the chain. The rest is walked block by block, with tiers.
//
// A jump concludes from one block that all before it are held, in the device tier. positional_nesting.h
// explains why this is right for workers nested when the query begins, and for which ones it may be wrong by
// the end; these are walked too. A walk concludes nothing: it counts only blocks that it saw.
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "index/positional/positional_tables.h"

namespace ashlar::index::detail {
namespace {

constexpr std::size_t kFindAhead = 16;  // lookups between prefetch and use

// Scratch memory of a query, reused by the thread.
struct QueryScratch {
  std::vector<Chain> chains;
  std::vector<std::uint64_t> planes;
  std::vector<std::uint64_t> words;
  std::vector<std::uint32_t> tier_blocks;
  std::size_t lookups = 0;  // of the last query
};

QueryScratch& scratch_of_thread() {
  static thread_local QueryScratch scratch;
  return scratch;
}

// Computes the chains of positions `from` to `end` after `chain`. Returns the last. Takes half the time of a
// long query; out of line, it keeps its state in registers.
[[gnu::noinline]] Chain extend_chains(Chain chain, const LocalHash* locals, Chain* chains, std::size_t from,
                                      std::size_t end) noexcept {
  for (std::size_t at = from; at < end; ++at) chains[at] = chain = extended(chain, locals[at]);
  return chain;
}

bool any(const std::uint64_t* set, std::size_t words) noexcept {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < words; ++i) all |= set[i];
  return all != 0;
}

std::size_t count_bits(const std::uint64_t* set, std::size_t words) noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < words; ++i) count += static_cast<std::size_t>(std::popcount(set[i]));
  return count;
}

template <class F>
void for_each_bit(const std::uint64_t* set, std::size_t words, F&& fn) {
  for (std::size_t i = 0; i < words; ++i)
    for (std::uint64_t left = set[i]; left != 0; left &= left - 1)
      fn(i * 64 + static_cast<std::size_t>(std::countr_zero(left)));
}

}  // namespace

// One call. All sets are `words_` words for the slots from 64 x `first_` on, the range of the candidates.
class PositionalQuery {
 public:
  PositionalQuery(const PositionalTables& tables, std::span<const LocalHash> locals, MatchScores& scores,
                  bool early_exit, QueryScratch& scratch)
      : tables_(tables), locals_(locals), scores_(scores), early_exit_(early_exit), scratch_(scratch) {}

  // Requires: the gate is held, `scores` begun, and `locals` not empty.
  void run(const WorkerSlots& slots) {
    if (scratch_.chains.size() < locals_.size()) scratch_.chains.resize(locals_.size());
    prefetch(locals_.size() - 1);
    const std::uint64_t number = tables_.board_.number();
    if (!find_candidates(slots)) return;
    std::uint64_t* nested = set(kNested);
    std::uint64_t* walked = set(kWalked);
    for (std::size_t i = 0; i < words_; ++i) {
      nested[i] &= ~tables_.board_.posted(first_ + i);
      walked[i] = set(kCandidates)[i] & ~nested[i];
    }
    // An early exit depends on all candidates together.
    if (early_exit_ && any(walked, words_)) return walk(set(kCandidates));
    jump(nested);
    if (tables_.board_.number() != number) {
      for_each_bit(nested, words_, [&](std::size_t at) {
        if (tables_.board_.drew_since(static_cast<std::uint32_t>(first_ * 64 + at), number))
          walked[at / 64] |= std::uint64_t{1} << (at % 64);
      });
    }
    if (!any(walked, words_)) return;
    if (early_exit_) {
      scores_.begin(scores_.assignment(), {});
      return walk(set(kCandidates));
    }
    walk(walked);
  }

 private:
  // Sets by number; from kWindows on, one for each level of bisection.
  enum : std::size_t {
    kCandidates,
    kNested,
    kWalked,
    kActive,
    kSeen,
    kPlanes,
    kDevice = kPlanes + kStorageTiers,
    kWindows
  };
  static constexpr std::size_t kLevels = 34;  // more than the halvings of a window of 2^32

  std::uint64_t* set(std::size_t number) noexcept { return scratch_.words.data() + number * words_; }

  std::uint64_t key_at(std::size_t position) const noexcept {
    return entry_key(static_cast<std::uint32_t>(position), locals_[position], tables_.seed_);
  }
  [[gnu::always_inline]] void prefetch(std::size_t position) const noexcept {
    const std::uint64_t key = key_at(position);
    tables_.map_of(key).prefetch_to_find(key);
  }
  // Positions come in any order; the chain is computed once, as far as needed.
  const Chain& chain_at(std::size_t position) noexcept {
    if (chains_done_ <= position) {
      last_chain_ =
          extend_chains(last_chain_, locals_.data(), scratch_.chains.data(), chains_done_, position + 1);
      chains_done_ = position + 1;
    }
    return scratch_.chains[position];
  }
  // fn(the workers of the query's content at that position), under the lock.
  template <class F>
  void look(std::size_t position, F&& fn) {
    ++scratch_.lookups;
    const Chain& chain = chain_at(position);
    const std::uint64_t key = key_at(position);
    PositionalTables::Shard& shard = tables_.shard_of(key);
    const SharedHold hold(shard.lock);
    fn(shard.map.find(key, chain));
  }
  void look_for(const std::uint64_t* among, std::uint64_t* out, std::size_t position) {
    look(position, [&](const WorkerSet& workers) { workers.intersect_device(among, out, first_, words_); });
  }

  // Finds the holders of the first block in any tier, and into set kNested those in the device tier. False
  // without any.
  bool find_candidates(const WorkerSlots& slots);
  void jump(const std::uint64_t* workers);
  // Finishes those of set kActive that hold the last block. True when none is left.
  bool jump_to_the_end();
  void end_between(std::size_t held, std::size_t missing);
  void stop_early(const std::uint64_t* workers, const std::uint64_t* left);
  void walk(const std::uint64_t* workers);
  void finish_walk(const std::uint64_t* workers, std::uint32_t depth);
  void finish(const std::uint64_t* workers, std::uint32_t depth);

  const PositionalTables& tables_;
  const std::span<const LocalHash> locals_;
  MatchScores& scores_;
  const bool early_exit_;
  QueryScratch& scratch_;
  std::size_t first_ = 0;
  std::size_t words_ = 0;
  std::size_t chains_done_ = 0;
  Chain last_chain_;
};

bool PositionalQuery::find_candidates(const WorkerSlots& slots) {
  // All words at first; then only those between the first and the last candidate.
  const std::size_t all = (slots.capacity() + 63) / 64;
  std::vector<std::uint64_t>& planes = scratch_.planes;
  if (planes.size() < kStorageTiers * all) planes.resize(kStorageTiers * all);
  look(0, [&](const WorkerSet& workers) { workers.copy_planes(planes.data(), 0, all); });
  // Cleared workers whose blocks are being removed.
  const std::span<const std::uint64_t> retired = slots.retired();
  for (std::size_t word = 0; word < retired.size(); ++word)
    for (std::size_t tier = 0; tier < kStorageTiers; ++tier) planes[tier * all + word] &= ~retired[word];
  const auto held = [&](std::size_t word) {
    std::uint64_t any_tier = 0;
    for (std::size_t tier = 0; tier < kStorageTiers; ++tier) any_tier |= planes[tier * all + word];
    return any_tier;
  };
  std::size_t end = all;
  while (end != 0 && held(end - 1) == 0) --end;
  if (end == 0) return false;
  first_ = 0;
  while (held(first_) == 0) ++first_;
  words_ = end - first_;
  const std::size_t sets = kWindows + kLevels;
  if (scratch_.words.size() < sets * words_) scratch_.words.resize(sets * words_);
  for (std::size_t i = 0; i < words_; ++i) {
    set(kCandidates)[i] = held(first_ + i);
    set(kNested)[i] = planes[first_ + i];
  }
  return true;
}

void PositionalQuery::jump(const std::uint64_t* workers) {
  const std::size_t n = locals_.size();
  const std::size_t step = tables_.jump_size_;
  std::uint64_t* active = set(kActive);
  std::uint64_t* seen = set(kSeen);
  std::copy_n(workers, words_, active);
  if (!any(active, words_)) return;

  if (!early_exit_ && n - 1 > step && jump_to_the_end()) return;
  // Jump points are 0, step, 2 x step, … and n - 1.
  std::size_t fetched = 0;
  const auto fetch_next = [&] {
    if (fetched == n - 1) return;
    fetched = std::min(fetched + step, n - 1);
    prefetch(fetched);
  };
  for (std::size_t i = 0; i < kFindAhead; ++i) fetch_next();

  std::size_t at = 0;
  bool stopped = early_exit_ && count_bits(active, words_) == 1;
  while (!stopped && at != n - 1) {
    fetch_next();
    const std::size_t next = std::min(at + step, n - 1);
    look_for(active, seen, next);
    std::uint64_t* ended = set(kWindows);
    for (std::size_t i = 0; i < words_; ++i) ended[i] = active[i] & ~seen[i];
    if (any(ended, words_)) end_between(at, next);
    std::copy_n(seen, words_, active);
    at = next;
    if (!any(active, words_)) break;
    stopped = early_exit_ && count_bits(active, words_) == 1;
  }
  if (!stopped) finish(active, static_cast<std::uint32_t>(n));
  if (early_exit_) stop_early(workers, stopped ? active : nullptr);
}

bool PositionalQuery::jump_to_the_end() {
  const std::size_t last = locals_.size() - 1;
  {
    ++scratch_.lookups;
    const std::uint64_t key = key_at(last);
    PositionalTables::Shard& shard = tables_.shard_of(key);
    const SharedHold hold(shard.lock);
    if (!shard.map.has_entry(key)) return false;
  }
  std::uint64_t* active = set(kActive);
  std::uint64_t* seen = set(kSeen);
  look_for(active, seen, last);
  finish(seen, static_cast<std::uint32_t>(locals_.size()));
  for (std::size_t i = 0; i < words_; ++i) active[i] &= ~seen[i];
  return !any(active, words_);
}

// Cuts the answer to the depth at which a block-by-block walk would be down to one worker. All depths are
// known except that of the worker in `left`, if any, which lies beyond all others.
void PositionalQuery::stop_early(const std::uint64_t* workers, const std::uint64_t* left) {
  std::uint32_t deepest = 0;
  std::uint32_t second = 0;
  std::size_t whose = 0;
  for_each_bit(workers, words_, [&](std::size_t at) {
    const bool behind_all = left != nullptr && (left[at / 64] >> (at % 64) & 1) != 0;
    const std::uint32_t depth = behind_all ? ~std::uint32_t{0} : scores_.depths()[first_ * 64 + at];
    second = std::max(second, std::min(deepest, depth));
    if (depth > deepest) whose = at;
    deepest = std::max(deepest, depth);
  });
  if (deepest == second) return;
  scores_.set_device(first_ * 64 + whose, second + 1);
  if (locals_.size() > second + 1) scores_.set_inexact();
}

// The workers in set kWindows were seen at position `held` and not at `missing`. Each lookup in the middle
// splits them: those that end before it stay in their set, those that end after it get the next set and go
// first.
void PositionalQuery::end_between(std::size_t held, std::size_t missing) {
  struct Window {
    std::size_t held;
    std::size_t missing;
    std::size_t level;
  };
  std::array<Window, kLevels> open;
  std::size_t count = 0;
  open[count++] = {held, missing, 0};
  while (count != 0) {
    const Window window = open[--count];
    std::uint64_t* here = set(kWindows + window.level);
    if (window.missing - window.held == 1) {
      finish(here, static_cast<std::uint32_t>(window.missing));
      continue;
    }
    const std::size_t middle = window.held + (window.missing - window.held) / 2;
    std::uint64_t* behind = set(kWindows + window.level + 1);
    look_for(here, behind, middle);
    for (std::size_t i = 0; i < words_; ++i) here[i] &= ~behind[i];
    if (any(here, words_)) open[count++] = {window.held, middle, window.level};
    if (any(behind, words_)) open[count++] = {middle, window.missing, window.level + 1};
  }
}

void PositionalQuery::finish(const std::uint64_t* workers, std::uint32_t depth) {
  for (std::size_t i = 0; i < words_; ++i)
    if (workers[i] != 0) scores_.set_device((first_ + i) * 64, workers[i], depth);
}

void PositionalQuery::walk(const std::uint64_t* workers) {
  const std::size_t n = locals_.size();
  std::uint64_t* left = set(kActive);
  std::uint64_t* ended = set(kSeen);
  std::uint64_t* planes = set(kPlanes);
  std::uint64_t* device = set(kDevice);  // all blocks up to here are in the device tier
  std::copy_n(workers, words_, left);
  std::copy_n(workers, words_, device);
  scratch_.tier_blocks.assign(kStorageTiers * words_ * 64, 0);
  std::uint32_t* device_depths = scratch_.tier_blocks.data();  // in the place of the device tier's blocks

  for (std::size_t i = 1; i < std::min(kFindAhead, n); ++i) prefetch(i);
  std::uint32_t depth = 0;
  while (depth < n) {
    if (depth + kFindAhead < n) prefetch(depth + kFindAhead);
    look(depth, [&](const WorkerSet& set) { set.copy_planes(planes, first_, words_); });
    for (std::size_t i = 0; i < words_; ++i) {
      std::uint64_t faster = left[i] & planes[i];
      for (std::uint64_t gone = device[i] & ~faster; gone != 0; gone &= gone - 1)
        device_depths[i * 64 + static_cast<std::size_t>(std::countr_zero(gone))] = depth;
      device[i] &= faster;
      for (const StorageTier each : std::span(kAllStorageTiers).subspan<1>()) {
        const auto tier = static_cast<std::size_t>(each);
        const std::uint64_t here = left[i] & planes[tier * words_ + i] & ~faster;
        for (std::uint64_t bits = here; bits != 0; bits &= bits - 1)
          ++scratch_.tier_blocks[(tier * words_ + i) * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
        faster |= here;
      }
      ended[i] = left[i] & ~faster;
      left[i] = faster;
    }
    finish_walk(ended, depth);
    if (!any(left, words_)) return;
    ++depth;
    if (early_exit_ && count_bits(left, words_) == 1) {
      if (depth < n) scores_.set_inexact();
      break;
    }
  }
  finish_walk(left, depth);
}

void PositionalQuery::finish_walk(const std::uint64_t* workers, std::uint32_t depth) {
  for_each_bit(workers, words_, [&](std::size_t at) {
    const bool all_device = (set(kDevice)[at / 64] >> (at % 64) & 1) != 0;
    Score score{all_device ? depth : scratch_.tier_blocks[at], depth, {}};
    score.blocks[0] = depth;
    for (std::size_t tier = 1; tier < kStorageTiers; ++tier) {
      score.blocks[tier] = scratch_.tier_blocks[tier * words_ * 64 + at];
      score.blocks[0] -= score.blocks[tier];
    }
    scores_.set(first_ * 64 + at, score);
  });
}

void PositionalTables::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                                    const FindOptions& options) const {
  QueryScratch& scratch = scratch_of_thread();
  scratch.lookups = 0;
  const StripeHold hold(gate_);
  scores.begin(slots_.assignment(), slots_.workers());
  if (locals.empty() || slots_.capacity() == 0) return;
  // No block is held at greater depth.
  const std::size_t n = std::min<std::size_t>(locals.size(), kMaxDepth);
  PositionalQuery(*this, locals.first(n), scores, options.early_exit, scratch).run(slots_);
}

std::size_t PositionalTables::lookups_of_last_find() noexcept {
  return scratch_of_thread().lookups;
}

}  // namespace ashlar::index::detail
