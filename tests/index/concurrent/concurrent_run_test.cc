// The checker itself: an index that breaks the rule in one way or another is caught.
#include "index/concurrent/concurrent_run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/index/locked_index.h"
#include "ashlar/testing/index_oracle.h"

namespace ashlar::index::concurrent {
namespace {

using testing::IndexOracle;

enum class Fault {
  kNone,
  kCountsOneTooMany,
  kMissesOne,
  kMissesAWorker,
  kCallsADiskADevice,
  kNamesTheWrongWorker,
  kAnswersLate,
  kLosesARemoval,
  kLosesAStore,
  kLosesAClear,
  kCountsARemovalTwice,
};

// The oracle behind a lock, with a fault in some of the calls.
class Faulty {
 public:
  explicit Faulty(Fault fault) : fault_(fault) {}

  StoreVerdict store(const BlocksStored& event) {
    if (happens(Fault::kLosesAStore, 50)) return StoreVerdict::kApplied;
    return index_.store(event);
  }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
    if (happens(Fault::kLosesARemoval, 50)) return names.size();
    return index_.remove(worker, tier, names) + (happens(Fault::kCountsARemovalTwice, 50) ? 1 : 0);
  }
  void clear(const Worker& worker) {
    if (!happens(Fault::kLosesAClear, 1)) index_.clear(worker);
  }
  void remove_worker(WorkerId worker) {
    if (!happens(Fault::kLosesAClear, 1)) index_.remove_worker(worker);
  }

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options) const {
    // An answer to the query before last, more or less.
    if (happens(Fault::kAnswersLate, 2)) locals = locals.first(locals.size() / 2);
    index_.find_matches(locals, scores, options);
    for (std::size_t slot = 0; slot < scores.slots(); ++slot) {
      Score score = scores.score(slot);
      if (score.depth == 0) continue;
      if (score.depth < locals.size() && happens(Fault::kCountsOneTooMany, 100)) {
        ++score.depth;
        ++score.blocks[0];
      } else if (score.blocks[0] > 0 && happens(Fault::kMissesOne, 10)) {
        --score.depth;
        --score.blocks[0];
        score.device_depth = std::min(score.device_depth, score.depth);
      } else if (happens(Fault::kMissesAWorker, 10)) {
        score = {};
      } else if (score.blocks[2] > 0 && happens(Fault::kCallsADiskADevice, 5)) {
        ++score.blocks[0];
        --score.blocks[2];
      } else if (slot > 0 && happens(Fault::kNamesTheWrongWorker, 10)) {
        scores.set(slot - 1, score);
        score = {};
      }
      scores.set(slot, score);
    }
  }
  void dump(IndexSink& sink) const { index_.dump(sink); }
  IndexSizes sizes() const { return index_.sizes(); }
  IndexCounters counters() const { return index_.counters(); }

 private:
  bool happens(Fault fault, unsigned once_in) const {
    return fault_ == fault && calls_.fetch_add(1) % once_in == 0;
  }

  Fault fault_;
  mutable std::atomic<unsigned> calls_{1};
  LockedIndex<IndexOracle> index_;
};

std::string problem_with(Fault fault, std::uint64_t seed) {
  for (const Load& load : loads()) {
    if (load.name != "Everything") continue;
    ConcurrentRun run(conformance::index_case<Faulty>("Faulty", fault), load,
                      {.seed = seed, .calls = 250, .seconds = 0.02});
    return run.problem();
  }
  return "no such load";
}

// Runs until one of them finds the fault: what threads do beside each other is not always what shows it.
void expect_found(Fault fault, std::string_view words) {
  std::string problem;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    problem = problem_with(fault, seed);
    if (!problem.empty() && problem.find(words) != std::string::npos) return;
  }
  ADD_FAILURE() << "not found: " << words << "; the last problem was: " << problem;
}

TEST(ConcurrencyChecker, FindsNothingWhereNothingIsWrong) {
  EXPECT_EQ(problem_with(Fault::kNone, 1), "");
}

TEST(ConcurrencyChecker, FindsABlockThatIsCountedAndNotHeld) {
  expect_found(Fault::kCountsOneTooMany, "counted that was not held");
}

TEST(ConcurrencyChecker, FindsABlockThatIsHeldAndNotCounted) {
  expect_found(Fault::kMissesOne, "held throughout is not counted");
}

TEST(ConcurrencyChecker, FindsAWorkerThatIsLeftOut) {
  expect_found(Fault::kMissesAWorker, "held throughout is not counted");
}

TEST(ConcurrencyChecker, FindsABlockInTheWrongTier) {
  expect_found(Fault::kCallsADiskADevice, "in a tier than were there");
}

TEST(ConcurrencyChecker, FindsAScoreOfAnotherWorker) {
  expect_found(Fault::kNamesTheWrongWorker, "");
}

TEST(ConcurrencyChecker, FindsAnAnswerToAnotherQuery) {
  expect_found(Fault::kAnswersLate, "held throughout is not counted");
}

TEST(ConcurrencyChecker, FindsARemovalThatIsLost) {
  expect_found(Fault::kLosesARemoval, "");
}

TEST(ConcurrencyChecker, FindsAStoreThatIsLost) {
  expect_found(Fault::kLosesAStore, "");
}

TEST(ConcurrencyChecker, FindsAClearThatIsLost) {
  expect_found(Fault::kLosesAClear, "");
}

TEST(ConcurrencyChecker, FindsAWrongAnswerToACall) {
  expect_found(Fault::kCountsARemovalTwice, "instead of");
}

}  // namespace
}  // namespace ashlar::index::concurrent
