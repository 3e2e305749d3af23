// The checker itself: an index that breaks the rule in one way or another is caught.
#include "index/concurrent/concurrent_run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

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

std::string problem_with(Fault fault) {
  for (const Load& load : loads()) {
    if (load.name != "Everything") continue;
    ConcurrentRun run(conformance::index_case<Faulty>("Faulty", fault), load,
                      {.calls = 250, .seconds = 0.02});
    return run.problem();
  }
  return "no such load";
}

TEST(ConcurrencyChecker, FindsNothingWhereNothingIsWrong) {
  EXPECT_EQ(problem_with(Fault::kNone), "");
}

TEST(ConcurrencyChecker, FindsABlockThatIsCountedAndNotHeld) {
  EXPECT_NE(problem_with(Fault::kCountsOneTooMany).find("counted that was not held"), std::string::npos);
}

TEST(ConcurrencyChecker, FindsABlockThatIsHeldAndNotCounted) {
  EXPECT_NE(problem_with(Fault::kMissesOne).find("held throughout is not counted"), std::string::npos);
}

TEST(ConcurrencyChecker, FindsAWorkerThatIsLeftOut) {
  EXPECT_NE(problem_with(Fault::kMissesAWorker).find("held throughout is not counted"), std::string::npos);
}

TEST(ConcurrencyChecker, FindsABlockInTheWrongTier) {
  EXPECT_NE(problem_with(Fault::kCallsADiskADevice).find("in a tier than were there"), std::string::npos);
}

TEST(ConcurrencyChecker, FindsAScoreOfAnotherWorker) {
  EXPECT_NE(problem_with(Fault::kNamesTheWrongWorker), "");
}

TEST(ConcurrencyChecker, FindsAnAnswerToAnotherQuery) {
  EXPECT_NE(problem_with(Fault::kAnswersLate).find("held throughout is not counted"), std::string::npos);
}

TEST(ConcurrencyChecker, FindsARemovalThatIsLost) {
  EXPECT_NE(problem_with(Fault::kLosesARemoval), "");
}

TEST(ConcurrencyChecker, FindsAStoreThatIsLost) {
  EXPECT_NE(problem_with(Fault::kLosesAStore), "");
}

TEST(ConcurrencyChecker, FindsAClearThatIsLost) {
  EXPECT_NE(problem_with(Fault::kLosesAClear), "");
}

TEST(ConcurrencyChecker, FindsAWrongAnswerToACall) {
  EXPECT_NE(problem_with(Fault::kCountsARemovalTwice).find("instead of"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::index::concurrent
