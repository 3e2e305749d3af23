// `ashlar run` as a newcomer runs it: engines, tiers, router and workload, and what it says in the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "support/small_json.h"

namespace ashlar {
namespace {

using ::testing::HasSubstr;
using testing::Json;

// What it printed, and its exit status.
std::pair<std::string, int> ashlar_run(const std::string& arguments) {
  std::string said;
  FILE* pipe = popen((std::string(ASHLAR_PROGRAM) + " run " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> some{};
  while (std::size_t n = std::fread(some.data(), 1, some.size(), pipe)) said.append(some.data(), n);
  const int status = pclose(pipe);
  return {said, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

TEST(AshlarRun, CachedAnswersAreThoseOfTheModelAndRoutingFindsThem) {
  const auto [said, status] = ashlar_run("--workers 2 --requests 60 --json --engine " TINY_SERVER_PROGRAM);
  ASSERT_EQ(status, 0) << said;
  const Json result = Json::parse(said);
  ASSERT_EQ(result["phases"].list.size(), 3u) << said;
  for (const Json& phase : result["phases"].list) {
    EXPECT_EQ(phase["requests"].number, 60);
    EXPECT_EQ(phase["prompt_tokens"].number, result["phases"].list[0]["prompt_tokens"].number);
    EXPECT_EQ(phase["different_answers"].number, 0);
  }
  EXPECT_EQ(result["phases"].list[0]["cached_tokens"].number, 0) << "no cache";
  EXPECT_GT(result["phases"].list[2]["cached_tokens"].number, 0) << "prefix";
}

TEST(AshlarRun, PrintsThePageAndASummary) {
  const auto [said, status] = ashlar_run("--workers 1 --requests 4 --engine " TINY_SERVER_PROGRAM);
  ASSERT_EQ(status, 0) << said;
  EXPECT_THAT(said, HasSubstr("the page: http://127.0.0.1:"));
  EXPECT_THAT(said, HasSubstr("8 of 8 answers from cached blocks are those of the model without a cache"));
}

TEST(AshlarRun, SaysWhatIsMissing) {
  const auto [said, status] = ashlar_run("--engine /nowhere/tiny_server");
  EXPECT_EQ(status, 1);
  EXPECT_THAT(said, HasSubstr("ashlar run: the engine /nowhere/tiny_server cannot be run: No such file"));
  const auto [silent, silent_status] = ashlar_run("--engine /bin/true");
  EXPECT_EQ(silent_status, 1);
  EXPECT_THAT(silent, HasSubstr("/bin/true did not say where it listens"));
}

}  // namespace
}  // namespace ashlar
