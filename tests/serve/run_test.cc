// `ashlar run` as a newcomer runs it: engines, tiers, router and workload, and what it says in the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/client/service_client.h"
#include "support/small_json.h"

namespace ashlar {
namespace {

using ::testing::HasSubstr;
using testing::Json;
using ::testing::MatchesRegex;

// What it printed, and its exit status.
std::pair<std::string, int> ashlar_run(const std::string& arguments) {
  std::string said;
  FILE* pipe = popen((std::string(ASHLAR_PROGRAM) + " run " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> some{};
  while (std::size_t n = std::fread(some.data(), 1, some.size(), pipe)) said.append(some.data(), n);
  const int status = pclose(pipe);
  return {said, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

// From some length of the run on, blocks of every tier are asked for, by every way of routing.
TEST(AshlarRun, CachedAnswersAreThoseOfTheModelWithBlocksOfEveryTier) {
  bool is_seen = false;
  // All rounds, of 1,800 requests together, fit into the time limit of a test on a busy machine.
  for (int requests = 120; !is_seen; requests *= 2) {
    ASSERT_LT(requests, 1'000) << "some tier had no block that was asked for";
    const auto [said, status] = ashlar_run("--workers 2 --hidden 32 --requests " + std::to_string(requests) +
                                           " --json --engine " TINY_SERVER_PROGRAM);
    ASSERT_EQ(status, 0) << said;
    const Json result = Json::parse(said);
    const std::vector<Json>& phases = result["phases"].list;
    ASSERT_EQ(phases.size(), 3u) << said;
    for (const Json& phase : phases) {
      EXPECT_EQ(phase["requests"].number, requests);
      EXPECT_EQ(phase["prompt_tokens"].number, phases[0]["prompt_tokens"].number);
      EXPECT_EQ(phase["different_answers"].number, 0);
    }
    EXPECT_EQ(phases[0]["cached_tokens"].number, 0) << "no cache";
    EXPECT_GT(phases[2]["cached_tokens"].number, 0) << "prefix";
    is_seen = true;
    for (const char* tier : {"g1", "g2", "g3", "g4"}) {
      EXPECT_EQ(phases[0]["hit_blocks"][tier].number, 0) << "no cache";
      for (const std::size_t phase : {1u, 2u}) is_seen &= phases[phase]["hit_blocks"][tier].number > 0;
    }
  }
}

TEST(AshlarRun, PrintsThePageAndASummary) {
  const auto [said, status] =
      ashlar_run("--workers 1 --requests 4 --hidden 32 --engine " TINY_SERVER_PROGRAM);
  ASSERT_EQ(status, 0) << said;
  EXPECT_THAT(said, HasSubstr("the page: http://127.0.0.1:"));
  EXPECT_THAT(said, HasSubstr("with --stay (make run STAY=1) it goes on"));
  EXPECT_THAT(said, HasSubstr("8 of 8 answers from cached blocks are those of the model without a cache"));
}

// As `make run` does it, with the page at the printed address afterwards.
TEST(AshlarRun, SumsUpARunOfADurationAndKeepsThePage) {
  const std::string command = "echo $$; exec " ASHLAR_PROGRAM
                              " run --duration 3 --workers 2 --stay --engine " TINY_SERVER_PROGRAM " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  std::array<char, 4096> line{};
  const auto read_until = [&](const char* last) {
    while (said.find(last) == std::string::npos && std::fgets(line.data(), line.size(), pipe) != nullptr)
      said += line.data();
  };
  read_until("Ctrl-C ends it");
  const auto pid = static_cast<pid_t>(std::atol(said.c_str()));
  ASSERT_GT(pid, 1) << said;
  const std::string page = "the page: ";
  const std::size_t at = said.find(page);
  EXPECT_NE(at, std::string::npos) << said;
  if (at != std::string::npos) {
    const std::size_t from = at + page.size();
    const std::string url = said.substr(from, said.find('\n', from) - from);
    EXPECT_THAT(url, MatchesRegex("http://127\\.0\\.0\\.1:[0-9]+/"));
    EXPECT_THAT(said, HasSubstr("the page stays at " + url + " with traffic"));
    auto client = client::ServiceClient::create({.url = url.substr(0, url.size() - 1)});
    ASSERT_TRUE(client) << client.error().message();
    const auto live = client->get("/live");
    ASSERT_TRUE(live) << live.error().message();
    const Json fleet = Json::parse(*live);
    ASSERT_EQ(fleet["workers"].list.size(), 2u) << *live;
    EXPECT_EQ(fleet["title"].text, "3 of 3: by prefix");
    const auto past = client->get("/past/live");
    ASSERT_TRUE(past) << past.error().message();
    EXPECT_GT(Json::parse(*past)["journal"]["decisions"].number, 0);
    for (const Json& worker : fleet["workers"].list)
      EXPECT_EQ(worker["ranks"].list.at(0)["tiers"]["device"]["size"].number, 256) << *live;
    const auto shown = client->get("/");
    ASSERT_TRUE(shown) << shown.error().message();
    EXPECT_THAT(*shown, HasSubstr("<!doctype html>"));
  }
  ASSERT_EQ(kill(pid, SIGINT), 0);
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) said += line.data();
  const int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << said;

  EXPECT_THAT(said, HasSubstr("2 engines, each with G1, G2 and a file (G3), and a volume (G4); 4 clients"));
  std::size_t requests[3] = {};
  const char* const ways[] = {"\nno cache ", "\nround robin ", "\nprefix "};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t row = said.find(ways[i], said.find("TTFT p50"));
    ASSERT_NE(row, std::string::npos) << said;
    requests[i] = std::stoul(said.substr(row + std::string(ways[i]).size()));
    EXPECT_EQ(requests[i], requests[0]) << said;
  }
  const std::string all = std::to_string(requests[1] + requests[2]);
  EXPECT_THAT(said, HasSubstr(all + " of " + all + " answers from cached blocks are those of the model"));
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
