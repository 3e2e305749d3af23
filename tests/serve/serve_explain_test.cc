// `ashlar explain`: from a checkpoint where old files are gone; `--page` of a folder with several runs: the
// last, or the one that --run names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "serve/serve_process.h"

namespace ashlar::testing {
namespace {

// What a command says, and its status at the end.
std::string said_by(const std::string& command) {
  ServerProcess shell({"/bin/sh", "-c", command + " 2>&1; echo status $?"});
  std::string said;
  while (const std::optional<std::string> line = shell.read_line()) said += *line + "\n";
  return said;
}

TEST(ServeExplain, OldFilesCanBeDeletedAndTheRestReplays) {
  const ScratchFolder folder;
  const EngineProcess a;
  const EngineProcess b;
  std::vector<std::string> decisions;
  {
    ServeProcess serve({"--worker", worker_text(a), "--worker", worker_text(b), "--journal",
                        folder.file("journal"), "--journal-file-bytes", "4KiB"});
    serve.wait_until_exact();
    HttpClient client = serve.client();
    for (int i = 0; i < 40; ++i) {
      const HttpAnswer answer =
          client.request("POST", "/v1/completions",
                         R"({"model":"tiny","max_tokens":8,"prompt":"a prefix of several blocks, then )" +
                             std::to_string(i % 7) + "\"}",
                         {{"x-session-id", std::to_string(i % 3)}});
      EXPECT_EQ(answer.status, 200);
      decisions.push_back(answer.header("x-ashlar-decision-id"));
    }
    EXPECT_EQ(serve.process().terminate(), 0);
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("journal")))
    if (entry.path().extension() == ".journal") files.push_back(entry.path());
  std::ranges::sort(files);
  ASSERT_GT(files.size(), 4u);
  const std::string explain = std::string(ASHLAR_PROGRAM) + " explain " + folder.file("journal");
  // A request is put off while events of its prefix are on their way: how often is the machine's affair.
  EXPECT_THAT(said_by(explain), ::testing::ContainsRegex(
                                    " 40 decisions( \\([0-9]+ more put off\\))?, 0 not the same\nstatus 0"));
  // The last name without a number is the first file.
  const auto first =
      std::ranges::find_if(files, [](const auto& file) { return file.stem().extension().empty(); });
  ASSERT_NE(first, files.end());
  std::filesystem::remove(*first);
  files.erase(first);
  std::filesystem::remove(files.front());
  const std::string said = said_by(explain);
  EXPECT_THAT(said, ::testing::HasSubstr(", 0 not the same"));
  EXPECT_THAT(said, ::testing::HasSubstr("the 2 files before"));
  EXPECT_THAT(said, ::testing::HasSubstr("status 0"));
  EXPECT_THAT(
      said_by(explain + " --decision " + decisions.back()),
      ::testing::AllOf(::testing::HasSubstr("the same, byte for byte"), ::testing::HasSubstr("status 0")));
  EXPECT_THAT(said_by(explain + " --decision " + decisions.front()),
              ::testing::HasSubstr("no journal there has the decision"));
}

TEST(ServeExplain, ThePageShowsTheRunThatIsNamed) {
  const ScratchFolder folder;
  const EngineProcess engine;
  std::vector<std::string> runs;
  for (int i = 0; i < 2; ++i) {
    ServeProcess serve({"--worker", worker_text(engine), "--journal", folder.file("journal")});
    serve.wait_until_exact();
    HttpClient client = serve.client();
    for (int k = 0; k <= i; ++k)
      EXPECT_EQ(client.post("/v1/completions", R"({"model":"tiny","prompt":"stone","max_tokens":1})").status,
                200);
    runs.push_back(serve.get("/live")["run"].text);
    EXPECT_EQ(serve.process().terminate(), 0);
  }
  ASSERT_NE(runs[0], runs[1]);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ServerProcess explain(
        {ASHLAR_PROGRAM, "explain", folder.file("journal"), "--page", "--port", "0", "--run", runs[i]});
    const std::optional<std::string> line = explain.read_line();
    ASSERT_TRUE(line && line->starts_with("listening on http://127.0.0.1:")) << line.value_or("");
    HttpClient client(std::stoi(line->substr(line->rfind(':') + 1)));
    const Json live = Json::parse(client.get("/live").body);
    EXPECT_EQ(live["run"].text, runs[i]);
    EXPECT_EQ(live["journal"]["decisions"].number, static_cast<double>(i + 1));
    EXPECT_EQ(explain.terminate(), 0);
  }
  ServerProcess unknown({"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ASHLAR_PROGRAM, "explain",
                         folder.file("journal"), "--page", "--run", "none"});
  EXPECT_THAT(unknown.read_line().value_or(""), ::testing::HasSubstr("no journal there is of that run"));
}

TEST(ServeExplain, TheRunsOfAReplayAreOnThePageBesideItsReport) {
  ServerProcess replay({ASHLAR_PROGRAM, "replay", "--generate", "chat,requests=200", "--policy", "lru,lfu",
                        "--quiet", "--page", "--port", "0"});
  const std::optional<std::string> line = replay.read_line();
  ASSERT_TRUE(line && line->starts_with("listening on http://127.0.0.1:")) << line.value_or("");
  HttpClient client(std::stoi(line->substr(line->rfind(':') + 1)));
  // The table is printed when the last run is on the page.
  std::optional<std::string> row;
  do row = replay.read_line();
  while (row && !row->starts_with("lfu"));
  ASSERT_TRUE(row);
  const auto page = client.get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, ::testing::HasSubstr("Time travel"));
  EXPECT_THAT(client.get("/report").body, ::testing::HasSubstr("Hit rate by tier over time"));
  EXPECT_EQ(Json::parse(client.get("/report.json").body)["runs"].list.size(), 2u);
  EXPECT_EQ(client.get("/else").status, 404);
  EXPECT_EQ(replay.terminate(), 0);
}

}  // namespace
}  // namespace ashlar::testing
