// Every index in lockstep with the oracle over random streams of calls (testing/index_call_generator.h).
//
// A failure prints the case, the seed, the step and the calls that it takes; the seed goes into kSeeds, which
// always run.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "ashlar/testing/index_call_generator.h"
#include "ashlar/testing/time_box.h"
#include "index/conformance_suite.h"
#include "index/lockstep.h"
#include "support/rounds.h"

namespace ashlar::index::conformance {
namespace {

using testing::CallGeneratorOptions;
using testing::IndexCall;
using testing::IndexCallGenerator;

constexpr std::uint64_t kSeeds = 16;  // 1 … kSeeds always run
constexpr std::size_t kSteps = 600;

// Says where a run is when a check of the library stops the process.
class PlaceOnAbort {
 public:
  PlaceOnAbort() : before_(std::signal(SIGABRT, &print)) {}
  PlaceOnAbort(const PlaceOnAbort&) = delete;
  PlaceOnAbort& operator=(const PlaceOnAbort&) = delete;
  ~PlaceOnAbort() { std::signal(SIGABRT, before_); }

  static inline unsigned long long seed = 0;
  static inline std::size_t step = 0;

 private:
  static void print(int) { std::fprintf(stderr, "stopped with seed %llu at step %zu\n", seed, step); }
  void (*before_)(int);
};

class IndexPropertyTest : public ::testing::TestWithParam<IndexCase> {
 protected:
  using Queries = std::vector<std::vector<LocalHash>>;

  // Nothing when index and oracle agree after these calls.
  static std::string problem_after(std::span<const IndexCall> calls, const Queries& queries) {
    Lockstep lockstep(GetParam());
    std::string problem;
    for (const IndexCall& call : calls) {
      problem = lockstep.apply(call);
      if (problem.empty()) problem = lockstep.compare_state();
      if (!problem.empty()) return problem;
    }
    for (const auto& query : queries)
      if (problem.empty()) problem = lockstep.compare_answers(query);
    if (problem.empty()) problem = lockstep.compare_dumps(queries);
    if (problem.empty()) problem = lockstep.remove_everything(true);
    return problem;
  }

  static std::string report(std::uint64_t seed, const std::string& problem,
                            const std::vector<IndexCall>& calls, const Queries& queries) {
    std::string text = GetParam().name + ", seed " + std::to_string(seed) + ", step " +
                       std::to_string(calls.size()) + ": " + problem + "\n";
    const auto fails = [&](std::span<const IndexCall> some) { return !problem_after(some, queries).empty(); };
    if (!fails(calls)) return text + "the calls alone do not show it again";
    const std::vector<IndexCall> needed = shrink(calls, fails);
    text += "these calls are enough for: " + problem_after(needed, queries) + "\n";
    for (const IndexCall& call : needed) text += "  " + to_string(call) + "\n";
    return text;
  }

  // True when index and oracle agreed to the end.
  static bool run(std::uint64_t seed) {
    IndexCallGenerator generator(seed, CallGeneratorOptions::varied(seed));
    Lockstep lockstep(GetParam());
    std::vector<IndexCall> calls;
    Queries queries;
    std::string problem;
    PlaceOnAbort::seed = seed;
    for (std::size_t step = 1; step <= kSteps && problem.empty(); ++step) {
      PlaceOnAbort::step = step;
      calls.push_back(generator.next());
      problem = lockstep.apply(calls.back());
      if (!problem.empty()) problem = to_string(calls.back()) + ": " + problem;
      if (problem.empty() && step % 4 == 0) problem = lockstep.compare_state();
      if (problem.empty() && step % 8 == 0) {
        queries.clear();
        for (int i = 0; i < 6; ++i) queries.push_back(generator.next_query());
        for (const auto& query : queries)
          if (problem.empty()) problem = lockstep.compare_answers(query);
      }
      if (problem.empty() && step % 200 == 0) problem = lockstep.compare_dumps(queries);
    }
    if (problem.empty()) problem = lockstep.remove_everything(seed % 2 == 0);
    if (problem.empty()) return true;
    ADD_FAILURE() << report(seed, problem, calls, queries);
    return false;
  }

 private:
  PlaceOnAbort place_on_abort_;
};

TEST_P(IndexPropertyTest, IndexAndOracleAgreeOnKnownSeeds) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(kSeeds); ++seed) ASSERT_TRUE(run(seed));
}

TEST_P(IndexPropertyTest, IndexAndOracleAgreeOnNewSeeds) {
  const testing::TimeBox box(0.5);
  std::uint64_t seed = kSeeds;
  while (!box.over()) ASSERT_TRUE(run(++seed));
  RecordProperty("seeds", std::to_string(seed));
}

INSTANTIATE_TEST_SUITE_P(Indexes, IndexPropertyTest, ::testing::ValuesIn(all_index_cases()), name_of_case);

}  // namespace
}  // namespace ashlar::index::conformance
