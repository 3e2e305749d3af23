// Every index that threads may share, under every load: the answers keep the rule of index/indexer.h, nothing
// crashes, and the end is the oracle's. With ASHLAR_TEST_SECONDS the runs go on with other seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "ashlar/testing/time_box.h"
#include "index/concurrent/concurrent_cases.h"
#include "index/concurrent/concurrent_run.h"
#include "support/rounds.h"

namespace ashlar::index::concurrent {
namespace {

class ConcurrentIndex : public ::testing::TestWithParam<std::tuple<ConcurrentCase, Load>> {
 protected:
  void run(const RunOptions& options) {
    const auto& [tested, load] = GetParam();
    ConcurrentRun run(tested.index, load, options, tested.find_many);
    ASSERT_EQ(run.problem(), "") << "seed " << options.seed;
    worth_.queries += run.worth().queries;
    worth_.overlapping += run.worth().overlapping;
    worth_.required += run.worth().required;
  }

  ConcurrentRun::Worth worth_;
};

TEST_P(ConcurrentIndex, KeepsTheRuleAndEndsLikeTheOracle) {
  const testing::TimeBox box(0.1);
  RunOptions options;
  options.enough = testing::rounds(options.enough);
  if (testing::kSanitized) options.calls /= 4;
  if (box.seconds() > 10 * options.seconds) {
    options.seconds = box.seconds() / 10;
    options.enough = 20'000;
    options.most_rounds = 10'000;
  }
  // On a busy machine the threads of a run may not meet: more of them, then.
  constexpr std::uint64_t kMostSeeds = 100;
  const std::uint64_t last_resort = options.seed + kMostSeeds;
  do {
    run(options);
    ++options.seed;
  } while (!HasFatalFailure() && (!box.over() || (worth_.required == 0 && options.seed < last_resort)));
  EXPECT_GT(worth_.required, 0u);
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
