// find(): runs the walks and applies early_exit to their scores.
#include <algorithm>
#include <array>

#include "index/flash/flash_walk.h"

namespace ashlar::index::detail {

namespace {

// Queries interleaved in find_batch().
constexpr std::size_t kTurns = 8;
// Eras that may end during a query before it gives up.
constexpr int kTries = 8;

// A thread's walks keep their memory between queries.
std::array<FlashWalk, kTurns>& walks() {
  static thread_local std::array<FlashWalk, kTurns> walks;
  return walks;
}

// The depth at which a block-by-block walk would have at most one worker left, if before the end; else 0.
std::uint32_t early_depth(const MatchScores& scores) noexcept {
  std::uint32_t best = 0;
  std::uint32_t second = 0;
  for (const std::uint32_t depth : scores.depths()) {
    second = std::max(second, std::min(best, depth));
    best = std::max(best, depth);
  }
  return best > second ? second + 1 : 0;
}

}  // namespace

bool FlashTree::is_unknown(std::span<const LocalHash> locals, MatchScores& scores) const {
  const std::uint64_t assignment = slots_.assignment();
  // Scores of another assignment need its workers, from the roster.
  if (locals.empty() || scores.assignment() != assignment || edges_.may_have_root(locals[0].value()))
    return false;
  scores.begin(assignment, scores.slots());
  return true;
}

bool FlashTree::find(std::span<const LocalHash> locals, MatchScores& scores, bool early_exit,
                     EraDomain::Guard& guard) const {
  FlashWalk& walk = walks()[0];
  const auto run = [&](std::span<const LocalHash> query) {
    for (int tries = 0; tries < kTries; ++tries) {
      FlashWalk::Step step = walk.start(*this, query, scores, early_exit, guard);
      while (step == FlashWalk::Step::kOn) step = walk.step(guard);
      if (step == FlashWalk::Step::kDone) return true;
      guard.renew();
    }
    return false;
  };
  if (!run(locals)) return false;
  if (!early_exit) return true;
  // The walk goes node by node and may overshoot for the last worker: a walk over the shorter query gives the
  // others the same scores, and that worker its score at the stop depth.
  const std::uint32_t depth = early_depth(scores);
  if (depth == 0 || depth >= locals.size()) return true;
  early_exit = false;
  if (!run(locals.first(depth))) return false;
  scores.set_inexact();
  return true;
}

bool FlashTree::find_batch(std::span<const std::span<const LocalHash>> queries, std::span<MatchScores> scores,
                           bool early_exit, EraDomain::Guard& guard) const {
  if (early_exit) {
    for (std::size_t i = 0; i < queries.size(); ++i)
      if (!find(queries[i], scores[i], true, guard)) return false;
    return true;
  }
  for (std::size_t first = 0; first < queries.size(); first += kTurns) {
    const std::size_t count = std::min(kTurns, queries.size() - first);
    std::array<FlashWalk, kTurns>& turns = walks();
    std::array<FlashWalk::Step, kTurns> steps{};
    for (std::size_t i = 0; i < count; ++i)
      steps[i] = is_unknown(queries[first + i], scores[first + i])
                     ? FlashWalk::Step::kDone
                     : turns[i].start(*this, queries[first + i], scores[first + i], false, guard);
    for (bool on = true; on;) {
      on = false;
      for (std::size_t i = 0; i < count; ++i) {
        if (steps[i] == FlashWalk::Step::kOn) steps[i] = turns[i].step(guard);
        on |= steps[i] == FlashWalk::Step::kOn;
      }
    }
    // An era that ended has ended for all unfinished walks.
    for (std::size_t i = 0; i < count; ++i)
      if (steps[i] == FlashWalk::Step::kEraOver) {
        guard.renew();
        if (!find(queries[first + i], scores[first + i], false, guard)) return false;
      }
  }
  return true;
}

}  // namespace ashlar::index::detail
