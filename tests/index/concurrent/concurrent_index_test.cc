// Every index that threads may share, under every load: the answers keep the rule of index/indexer.h, nothing crashes,
// and the end is the oracle's. With ASHLAR_TEST_SECONDS the runs go on with other seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "ashlar/testing/time_box.h"
#include "index/concurrent/concurrent_cases.h"
#include "index/concurrent/concurrent_run.h"

namespace ashlar::index::concurrent {
namespace {

class ConcurrentIndex : public ::testing::TestWithParam<std::tuple<ConcurrentCase, Load>> {
 protected:
  void run(const RunOptions& options) {
    const auto& [tested, load] = GetParam();
    ConcurrentRun run(tested.index, load, options, tested.find_many);
    ASSERT_EQ(run.problem(), "") << "seed " << options.seed;
    EXPECT_GT(run.worth().required, 0u);
    worth_.queries += run.worth().queries;
    worth_.overlapping += run.worth().overlapping;
    worth_.required += run.worth().required;
  }

  ConcurrentRun::Worth worth_;
};

TEST_P(ConcurrentIndex, KeepsTheRuleAndEndsLikeTheOracle) {
  const testing::TimeBox box(0.1);
  RunOptions options;
  if (box.seconds() > 10 * options.seconds) {
    options.seconds = box.seconds() / 10;
    options.enough = 20'000;
    options.most_rounds = 10'000;
  }
  do {
    run(options);
    ++options.seed;
  } while (!box.over() && !HasFatalFailure());
  RecordProperty("queries", static_cast<int>(worth_.queries));
  RecordProperty("overlapping", static_cast<int>(worth_.overlapping));
  RecordProperty("required", static_cast<int>(worth_.required));
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<ConcurrentCase, Load>>& tested) {
  return std::get<0>(tested.param).index.name + std::get<1>(tested.param).name;
}

INSTANTIATE_TEST_SUITE_P(Indexes, ConcurrentIndex,
                         ::testing::Combine(::testing::ValuesIn(concurrent_cases()),
                                            ::testing::ValuesIn(loads())),
                         name_of);

}  // namespace
}  // namespace ashlar::index::concurrent
