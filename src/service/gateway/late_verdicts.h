// LateVerdicts: differences that nothing explains yet.
//
// An engine may answer a moment before its events of the same step arrive. A difference between what was
// expected and what was found is therefore judged again for a while before it counts as unexplained.
//
// Thread safety: thread-safe. Verdicts are judged without the lock that add() takes.
// Complexity:    settle() is O(open verdicts), of which there are `capacity` at most. The index is asked
//                about one only if its worker has stored or dropped something since the last time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/router.h"
#include "service/gateway/receipts.h"

namespace ashlar::service {

// What a request was expected to find where, and what it found.
struct RouteVerdict {
  DecisionId id;
  events::Worker worker;
  WorkerState state = WorkerState::kExact;
  WorkerChanges then = {};  // as the worker was chosen
  std::uint64_t expected = 0;
  std::uint64_t delivered = 0;
  std::uint64_t reported = 0;  // tokens of the prompt that the worker had reported as it was chosen
  std::uint64_t own_blocks =
      0;  // that the request itself may have stored: what it did not find, and its reply
  std::string group = {};
  // The blocks that were expected, or that were delivered, if these are more; the two differ after `agreed`.
  std::vector<tokens::LocalHash> blocks = {};
  std::size_t agreed = 0;
  std::uint32_t block_size = 1;
  RequestOutcome outcome = {};  // but for the misroute
  // Cuts what was delivered into blocks again, where the size of blocks has been learned since; may be empty.
  std::function<void(RouteVerdict&)> refresh = {};
};

// What is known of the worker when a verdict is judged.
struct WorkerEvidence {
  WorkerChanges changes;
  std::uint64_t reported = 0;         // tokens of what was delivered that the worker reports now
  BlockFate fate = BlockFate::kKept;  // of the blocks in which the two differ, since then
};
WorkerEvidence evidence_for(const RouteVerdict& verdict, const Router& router);

// What an engine found may differ from what was expected because something happened in between; the changes
// that its events reported since the decision say what.
//
// A request that found less than expected must have met a worker without one of the blocks after those that
// it found: one of these was dropped since. Other removals explain nothing.
//
// A request that found more than expected did not store those blocks itself, since it found them: if the
// worker reports them now and did not then, another request stored them first. They may be evicted again by
// now; then one of them was dropped since, and more was stored than the request's own blocks. Its own stores
// alone explain nothing.
Misroute judge(const RouteVerdict& verdict, const WorkerEvidence& now) noexcept;

class LateVerdicts {
 public:
  // At most `capacity` wait, each as long as events may be late before their worker is DEGRADED.
  LateVerdicts(std::size_t capacity, Clock::Duration patience);

  // False: too many are open already.
  bool add(RouteVerdict verdict, Clock::TimePoint now);
  // What settle() asks the router.
  struct Questions {
    std::function<WorkerChanges(const events::Worker&)> changes;
    std::function<WorkerEvidence(const RouteVerdict&)> evidence;  // walks the index
  };
  // Those that are explained now, or have waited long enough, with their misroutes.
  std::vector<RouteVerdict> settle(Clock::TimePoint now, const Questions& ask);

 private:
  struct Open {
    RouteVerdict verdict;
    Clock::TimePoint until;
    std::optional<WorkerChanges> asked = {};  // of the worker, when the index was last asked
    bool is_settled = false;
  };

  static void judge_again(Open& open, Clock::TimePoint now, const Questions& ask);

  const std::size_t capacity_;
  const Clock::Duration patience_;
  Mutex judging_mu_;  // before mu_
  std::vector<Open> judged_ ASHLAR_GUARDED_BY(judging_mu_);
  Mutex mu_;
  std::vector<Open> fresh_ ASHLAR_GUARDED_BY(mu_);
  std::size_t open_ ASHLAR_GUARDED_BY(mu_) = 0;  // fresh and judged
};

}  // namespace ashlar::service
