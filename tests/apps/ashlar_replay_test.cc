// ashlar replay as a person runs it: tables, JSON, reports, traces that are written, and how it ends.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/run_program.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar {
namespace {

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(AshlarReplay, WritesATraceAndReplaysIt) {
  const ScratchFolder folder;
  const std::string trace = folder.file("chat.jsonl");
  const Ended written = run("replay --generate chat,requests=300,seed=4 --write '" + trace + "'");
  EXPECT_EQ(written.status, 0) << written.output;
  const Ended told =
      run("replay '" + trace + "' --write '" + folder.file("copy.jsonl") + "' --json 2>/dev/null");
  EXPECT_EQ(testing::Json::parse(told.output)["requests"].number, 300) << told.output;
  EXPECT_EQ(testing::Json::parse(told.output)["written"].text, folder.file("copy.jsonl"));
  const Ended table = run("replay '" + trace +
                          "' --workers 2 --g1 200,400 --policy lru,fifo --router prefix,random "
                          "--report '" +
                          folder.file("r.html") + "'");
  EXPECT_EQ(table.status, 0) << table.output;
  EXPECT_TRUE(says(table, "300 requests")) << table.output;
  EXPECT_TRUE(says(table, "bound"));
  EXPECT_FALSE(says(table, "\x1B")) << "no progress where there is no terminal";
  EXPECT_NE(text_of(folder.file("r.html")).find("</html>"), std::string::npos);
  const std::string before = text_of(trace);
  const Ended itself = run("replay '" + trace + "' --report '" + trace + "'");
  EXPECT_EQ(itself.status, 1);
  EXPECT_TRUE(says(itself, "--report names the trace itself")) << itself.output;
  EXPECT_EQ(text_of(trace), before);

  const Ended json = run("replay '" + trace +
                         "' --workers 2 --g1 200,400 --policy lru,fifo --router prefix,random "
                         "--json 2>/dev/null");
  EXPECT_EQ(json.status, 0);
  const auto parsed = testing::Json::parse(json.output);
  EXPECT_EQ(parsed["runs"].list.size(), 8u);
  // Generated and read back, the requests are the same.
  const Ended again =
      run("replay --generate chat,requests=300,seed=4 --workers 2 --g1 200,400 --policy lru,fifo "
          "--router prefix,random --json 2>/dev/null");
  const auto direct = testing::Json::parse(again.output);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(parsed["runs"].list[i]["hit_blocks"].number, direct["runs"].list[i]["hit_blocks"].number) << i;
}

// It takes the place of a plain file alone, and only when it is whole.
TEST(AshlarReplay, AReportReplacesNothingElse) {
  const ScratchFolder folder;
  const std::string base = "replay --generate prompts,requests=20 --report ";
  const std::string report = folder.file("r.html");
  std::ofstream(report + ".part") << "of somebody";
  std::filesystem::create_symlink(report, folder.file("link"));
  std::ofstream(report) << "old";
  EXPECT_EQ(run(base + "'" + folder.file("link") + "'").status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_NE(text_of(report).find("</html>"), std::string::npos);
  EXPECT_EQ(text_of(report + ".part"), "of somebody");
  std::filesystem::create_symlink("/dev/null", folder.file("device"));
  EXPECT_EQ(run(base + "'" + folder.file("device") + "'").status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("device")));

  const Ended nowhere = run(base + "'" + folder.file("absent/r.html") + "'");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_TRUE(says(nowhere, "cannot write the report")) << nowhere.output;
  EXPECT_FALSE(says(nowhere, "TTFT")) << "known before the runs: " << nowhere.output;
  // A trace that turns out to be bad leaves the report as it was, and nothing beside it.
  std::ofstream(folder.file("bad.jsonl")) << "{\"timestamp\": 0, \"input_length\": 5}\n{broken\n";
  const std::string before = text_of(report);
  EXPECT_EQ(run("replay '" + folder.file("bad.jsonl") + "' --report '" + report + "'").status, 1);
  EXPECT_EQ(text_of(report), before);
  const std::filesystem::directory_iterator all(folder.path());
  EXPECT_EQ(std::distance(std::filesystem::begin(all), std::filesystem::end(all)), 5);
}

TEST(AshlarReplay, TakesListsOfWorkersAndPoliciesOfTiers) {
  const std::string base = "replay --generate chat,requests=200 --g1 100 --g2 300 --no-bound --json ";
  const auto fleets = testing::Json::parse(run(base + "--workers 1,2 2>/dev/null").output);
  ASSERT_EQ(fleets["runs"].list.size(), 2u);
  EXPECT_EQ(fleets["runs"].list[1]["config"]["workers"].number, 2);
  const auto own = testing::Json::parse(run(base + "--g2-policy lfu 2>/dev/null").output);
  const testing::Json& only = own["runs"].list.at(0);
  EXPECT_EQ(only["config"]["policy"].text, "lru");
  EXPECT_EQ(only["config"]["g2_policy"].text, "lfu");
  EXPECT_GE(run(base + "--g3-policy best").status, 100);
}

// On a terminal: one line that is written over, and is gone at the end.
TEST(AshlarReplay, ShowsItsProgressOnATerminal) {
  const std::string command = std::string("'") + ASHLAR_PROGRAM + "' replay --generate chat,requests=200";
  const auto on_a_terminal = [](const std::string& words) {
    Ended ended;
    const std::string all = "script --quiet --return --command \"" + words + "\" /dev/null </dev/null";
    FILE* pipe = popen(all.c_str(), "r");
    std::array<char, 4096> some{};
    while (std::size_t n = std::fread(some.data(), 1, some.size(), pipe)) ended.output.append(some.data(), n);
    ended.status = WEXITSTATUS(pclose(pipe));
    return ended;
  };
  const Ended shown = on_a_terminal(command);
  EXPECT_EQ(shown.status, 0) << shown.output;
  EXPECT_TRUE(says(shown, "\r\x1B[Kreading 64 requests")) << shown.output;
  const std::size_t last = shown.output.rfind("\r\x1B[K");
  ASSERT_NE(last, std::string::npos);
  EXPECT_NE(shown.output.find("lru", last), std::string::npos) << "the table comes behind it";
  EXPECT_FALSE(says(on_a_terminal(command + " --quiet"), "\x1B"));
}

TEST(AshlarReplay, TakesSizesInBytesOfAModel) {
  const std::string base = "replay --generate chat,requests=200 --no-bound --json ";
  // 16 tokens of 131,072 bytes: 2 MiB.
  const auto model =
      testing::Json::parse(run(base + "--model Llama-3.1-8B --g1 1.5GiB,600 --g2 4GiB 2>/dev/null").output);
  ASSERT_EQ(model["runs"].list.size(), 2u);
  EXPECT_EQ(model["runs"].list[0]["config"]["blocks"]["g1"].number, 768);
  EXPECT_EQ(model["runs"].list[0]["config"]["blocks"]["g2"].number, 2048);
  EXPECT_EQ(model["runs"].list[1]["config"]["blocks"]["g1"].number, 600);
  const auto small = testing::Json::parse(run(base + "--model Qwen2.5-0.5B --g1 1GiB 2>/dev/null").output);
  EXPECT_EQ(small["runs"].list.at(0)["config"]["bytes_per_token"].number, 2 * 24 * 2 * 64 * 2);
  EXPECT_EQ(small["runs"].list.at(0)["config"]["blocks"]["g1"].number, (1 << 30) / (16 * 12'288));
  EXPECT_TRUE(says(run(base + "--g1 1MiB"), "0 blocks of 2097152 bytes"));
  for (const char* wrong : {"--g1 5XiB", "--g1 -5", "--g1 1.5", "--g2 GiB", "--g1 0", "--model none",
                            "--model Llama-3.1-8B --bytes-per-token 5"})
    EXPECT_GE(run(base + wrong).status, 100) << wrong;
}

TEST(AshlarReplay, ReplaysWithBytes) {
  const Ended real =
      run("replay --generate prompts,requests=60 --real --g1 600 --g2 800 --g3 2000 --json 2>/dev/null");
  ASSERT_EQ(real.status, 0) << real.output;
  const auto parsed = testing::Json::parse(real.output);
  const testing::Json& only = parsed["runs"].list.at(0);
  EXPECT_EQ(only["mode"].text, "real");
  EXPECT_GT(only["verified_blocks"].number, 0);
  EXPECT_EQ(only["verified_blocks"].number, only["hit_blocks"].number);
  EXPECT_GE(run("replay --generate chat --real --simulate").status, 100);
  EXPECT_TRUE(says(run("replay --generate chat --real --folder /absent"), "/absent"));
}

TEST(AshlarReplay, SaysWhatIsWrongAndHowItEnded) {
  const ScratchFolder folder;
  const std::string bad = folder.file("bad.jsonl");
  std::ofstream(bad) << "{\"timestamp\": 0, \"input_length\": 600, \"hash_ids\": [1, 2]}\n{broken\n";
  const Ended strict = run("replay '" + bad + "'");
  EXPECT_EQ(strict.status, 1);
  EXPECT_TRUE(says(strict, "line 2")) << strict.output;
  const Ended lenient = run("replay '" + bad + "' --lenient");
  EXPECT_EQ(lenient.status, 3);
  EXPECT_TRUE(says(lenient, "1 lines were skipped; the first")) << lenient.output;
  const Ended copied = run("replay '" + bad + "' --lenient --write '" + bad + "'");
  EXPECT_EQ(copied.status, 3);
  EXPECT_TRUE(says(copied, "1 lines were skipped; the first")) << copied.output;
  EXPECT_TRUE(says(copied, "line 2")) << copied.output;
  EXPECT_EQ(run("replay '" + bad + "'").status, 0) << "written over itself, it has what could be read";
  std::ofstream(folder.file("a.csv"))
      << "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n";
  const Ended azure = run("replay '" + folder.file("a.csv") + "'");
  EXPECT_EQ(azure.status, 0);
  EXPECT_TRUE(says(azure, "carries no reuse")) << azure.output;

  std::ofstream(folder.file("none.csv")) << "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  std::ofstream(folder.file("none.jsonl")) << "\n";
  const std::string copy = folder.file("copy.jsonl");
  for (const std::string& empty : {std::string("none.csv"), std::string("none.jsonl --format mooncake"),
                                   std::string("none.jsonl --format weka"),
                                   std::string("none.jsonl --format azure"), "none.csv --write " + copy}) {
    const Ended nothing = run("replay " + folder.file(empty));
    EXPECT_EQ(nothing.status, 1) << empty << ": " << nothing.output;
    EXPECT_TRUE(says(nothing, "the trace has no requests")) << empty << ": " << nothing.output;
  }
  EXPECT_FALSE(std::filesystem::exists(copy));
  std::ofstream(folder.file("none.jsonl")) << "{broken\n";
  const Ended unread = run("replay " + folder.file("none.jsonl") + " --format mooncake --lenient");
  EXPECT_EQ(unread.status, 1);
  EXPECT_TRUE(says(unread, "none of the trace's 1 lines could be read; the first: ")) << unread.output;

  EXPECT_TRUE(says(run("replay"), "--generate"));
  for (const auto& [arguments, expected] :
       {std::pair<std::string, std::string>{"'" + bad + "' --policy best", "lru"},
        {"'" + bad + "' --policy lru,best", "s3_fifo"},
        {"'" + bad + "' --g1 5 --g2 5 --g2-policy best", "lru"},
        {"'" + bad + "' --router best", "round_robin"},
        {"'" + bad + "' --format best", "bailian"},
        {"--generate best", "documents"}}) {
    const Ended wrong = run("replay " + arguments);
    EXPECT_GE(wrong.status, 100) << arguments << ": " << wrong.output;
    EXPECT_TRUE(says(wrong, expected)) << arguments << ": " << wrong.output;
  }
  std::ofstream(folder.file("long.jsonl"))
      << "{\"timestamp\": 0, \"input_length\": 5, \"x\": \"" << std::string(17 << 20, 'x');
  const Ended too_long = run("replay '" + folder.file("long.jsonl") + "'");
  EXPECT_EQ(too_long.status, 1);
  EXPECT_TRUE(says(too_long, "line 1: longer than 16 MiB")) << too_long.output.substr(0, 300);
  EXPECT_TRUE(says(run("replay '" + bad + "' --g3 5"), "G2"));
  EXPECT_TRUE(says(run("replay /absent"), "cannot open"));
  EXPECT_EQ(run("replay /absent").status, 1);
  EXPECT_GE(run("replay x --workers 0").status, 100);
  const Ended help = run("replay --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(says(help, "examples:"));
  EXPECT_TRUE(says(help, "exit status:"));
}

}  // namespace
}  // namespace ashlar
