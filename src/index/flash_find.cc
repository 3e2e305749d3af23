// find(): walks queries, and what early_exit makes of their scores.
#include <algorithm>
#include <array>

#include "index/flash_walk.h"

namespace ashlar::index::detail {

namespace {

// Queries that take turns in find_batch().
constexpr std::size_t kTurns = 8;

// The walks of a thread keep their memory from query to query.
std::array<FlashWalk, kTurns>& walks() {
  static thread_local std::array<FlashWalk, kTurns> walks;
  return walks;
}

// The depth after which a walk that goes block by block has at most one worker left, where that comes before the end;
// else 0.
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

void FlashCore::find(std::span<const LocalHash> locals, MatchScores& scores, bool early_exit,
                     EraDomain::Guard& guard) const {
  FlashWalk& walk = walks()[0];
  const auto run = [&](std::span<const LocalHash> query) {
    for (;;) {
      FlashWalk::Step step = walk.start(*this, query, scores, early_exit, guard);
      while (step == FlashWalk::Step::kOn) step = walk.step(guard);
      if (step == FlashWalk::Step::kDone) return;
      guard.renew();
    }
  };
  run(locals);
  if (!early_exit) return;
  // The walk goes node by node and may have gone too far for the worker that is left: a walk over the shorter query
  // gives the others the same scores, and that one the scores at the depth where it stops.
  const std::uint32_t depth = early_depth(scores);
  if (depth == 0 || depth >= locals.size()) return;
  early_exit = false;
  run(locals.first(depth));
  scores.set_inexact();
}

void FlashCore::find_batch(std::span<const std::span<const LocalHash>> queries, std::span<MatchScores> scores,
                           bool early_exit, EraDomain::Guard& guard) const {
  if (early_exit) {
    for (std::size_t i = 0; i < queries.size(); ++i) find(queries[i], scores[i], true, guard);
    return;
  }
  for (std::size_t first = 0; first < queries.size(); first += kTurns) {
    const std::size_t count = std::min(kTurns, queries.size() - first);
    std::array<FlashWalk, kTurns>& turns = walks();
    std::array<FlashWalk::Step, kTurns> steps{};
    for (std::size_t i = 0; i < count; ++i)
      steps[i] = turns[i].start(*this, queries[first + i], scores[first + i], false, guard);
    for (bool on = true; on;) {
      on = false;
      for (std::size_t i = 0; i < count; ++i) {
        if (steps[i] == FlashWalk::Step::kOn) steps[i] = turns[i].step(guard);
        on |= steps[i] == FlashWalk::Step::kOn;
      }
    }
    // An era that ended does so for all walks that were on their way.
    for (std::size_t i = 0; i < count; ++i)
      if (steps[i] == FlashWalk::Step::kEraOver) {
        guard.renew();
        find(queries[first + i], scores[first + i], false, guard);
      }
  }
}

}  // namespace ashlar::index::detail
