// The command line as a whole: what every command has, what the page about it says, and errors that help.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apps/run_program.h"
#include "support/small_json.h"

namespace ashlar {
namespace {

using ::ashlar::testing::Json;

std::string text_in(const std::string& path) {
  std::ifstream file(std::string(ASHLAR_SOURCE) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// As --help lists them.
std::vector<std::string> all_commands() {
  std::vector<std::string> commands;
  bool is_list = false;
  for (const std::string& line : lines_of(run("--help").output)) {
    if (line.empty()) is_list = false;
    if (is_list && line.starts_with("  ") && line[2] != ' ')
      commands.push_back(line.substr(2, line.find(' ', 2) - 2));
    if (line == "Subcommands:") is_list = true;
  }
  return commands;
}

// "--json" and others of a command's help.
std::set<std::string> flags_in(const std::string& help) {
  std::set<std::string> flags;
  for (const std::string& line : lines_of(help.substr(0, help.find("exit status:")))) {
    const std::size_t at = line.find("--");
    if (!line.starts_with("  -") || at == std::string::npos) continue;
    flags.insert(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  return flags;
}

TEST(AshlarCommandLine, EveryCommandEndsItsHelpWithStatusesAndExamples) {
  const std::vector<std::string> commands = all_commands();
  ASSERT_GE(commands.size(), 8u);
  for (const std::string& command : commands) {
    const Ended ended = run(command + " --help");
    EXPECT_EQ(ended.status, 0) << command;
    const std::size_t examples = ended.output.find("\nexamples:\n");
    ASSERT_NE(examples, std::string::npos) << command;
    EXPECT_LT(ended.output.find("\nexit status:\n"), examples) << command;
    EXPECT_NE(ended.output.find("ashlar " + command, examples), std::string::npos)
        << command << ": an example names the command";
    EXPECT_NE(text_in("docs/cli.md").find("| `ashlar " + command + "` |"), std::string::npos)
        << "docs/cli.md does not know " << command;
  }
}

TEST(AshlarCommandLine, ThePageSaysTheStatusesThatHelpSays) {
  const std::string help = run("inspect --help").output;
  std::istringstream part(help.substr(help.find("exit status:\n") + 13));
  const std::string page = text_in("docs/cli.md");
  int statuses = 0;
  for (std::string line; std::getline(part, line) && line.starts_with("  "); ++statuses) {
    const bool is_number = line[3] == ' ';
    const std::size_t end = is_number ? 3 : line.find(':');
    const std::string row =
        "| " + line.substr(2, end - 2) + " | " + line.substr(is_number ? 5 : end + 2) + " |\n";
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
  EXPECT_EQ(statuses, 4);
}

TEST(AshlarCommandLine, SaysItsVersion) {
  const Ended ended = run("--version");
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.output, std::string("ashlar ") + ASHLAR_VERSION + "\n");
}

TEST(AshlarCommandLine, SuggestsWhatWasMeant) {
  for (const auto& [wrong, meant] : {std::pair<std::string, std::string>{"inspct x", "inspect"},
                                     {"insp x", "inspect"},
                                     {"sevre", "serve"},
                                     {"inspect --jsn x", "--json"},
                                     {"relay --form a --to b", "--from"},
                                     {"explain j --decisoin=1-2", "--decision"},
                                     {"bench blok", "block"}}) {
    const Ended ended = run(wrong);
    EXPECT_NE(ended.status, 0) << wrong;
    EXPECT_TRUE(says(ended, "did you mean " + meant + "?")) << wrong << "\n" << ended.output;
  }
  const Ended far = run("weather");
  EXPECT_GE(far.status, 100);
  EXPECT_FALSE(says(far, "did you mean")) << far.output;
  EXPECT_TRUE(says(far, "there is no such command")) << far.output;
}

// As the page says: 100 and above, and what to do.
TEST(AshlarCommandLine, ArgumentsThatDoNotGoTogetherAreRefused) {
  const std::string chat = "replay --generate chat,requests=9 ";
  for (const auto& [wrong, expected] :
       {std::pair<std::string, std::string>{"replay", "a trace is needed, or --generate"},
        {"replay x --generate chat", "leave out the trace or --generate"},
        {chat + "--policy all,lru", "leave out the others"},
        {chat + "--g3 5", "blocks reach G3 through G2"},
        {chat + "--folder /tmp", "--real"},
        {chat + "--block-bytes 8192", "--real"},
        {chat + "--g3-policy lfu", "give --g3"},
        {chat + "--block-size 32", "--generate"},
        {chat + "--write /dev/null --report /dev/null", "--report"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --sample 0.1", "--trace"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --key x", "--trace"},
        {"bench nosuch", "--list names them"},
        {chat + "--real --block-bytes 5000", "multiple of 4096"},
        {chat + "--policy lru,lru", "--policy has lru twice"},
        {chat + "--g1 50,60,50", "--g1 has 50 twice"},
        {chat + "--seed 7", "--router random"},
        {chat + "--g3-gb 9", "give --g3"},
        {chat + "--g2-gb 9", "give --g2"},
        {"man nosuch", "there is no such command"},
        {"--json", "a command is needed before --json"},
        {"-v", "a command is needed before -v"},
        {"--json bench --list", "did you mean --json behind the command?"}}) {
    const Ended ended = run(wrong);
    EXPECT_GE(ended.status, 100) << wrong << "\n" << ended.output;
    EXPECT_TRUE(says(ended, expected)) << wrong << "\n" << ended.output;
  }
}

TEST(AshlarCommandLine, SaysWhatAFileOrAddressIs) {
  const ScratchFolder folder;
  std::ofstream(folder.file("text")) << "no journal at all";
  for (const char* command : {"explain ", "replay --format journal "}) {
    const Ended ended = run(command + folder.file("text"));
    EXPECT_EQ(ended.status, 1) << ended.output;
    EXPECT_TRUE(says(ended, "is no journal of Ashlar")) << ended.output;
  }
  EXPECT_TRUE(says(run("inspect localhost:8080"), "named with http:// before it"));
  EXPECT_FALSE(says(run("inspect localhost:8080"), "https"));
  std::ofstream(folder.file("weka.gz")) << "\x1F\x8B and more";
  EXPECT_TRUE(says(run("replay " + folder.file("weka.gz")), "not Weka sessions and journals"));
  std::ofstream(folder.file("weka.json"))
      << R"({"id":"s","block_size":64,"hash_id_scope":"local","requests":[)"
         R"({"t":0,"type":"n","in":128,"out":5,"hash_ids":[1,2]}]})";
  const Ended sized = run("replay --block-size 16 " + folder.file("weka.json"));
  EXPECT_EQ(sized.status, 1);
  EXPECT_TRUE(says(sized, "the form weka says its own")) << sized.output;
  EXPECT_EQ(run("replay " + folder.file("weka.json")).status, 0);
  EXPECT_FALSE(says(run("inspect absent"), "http://"));
}

TEST(AshlarCommandLine, ListsTheBenchmarksThatAreBuilt) {
  const Ended ended = run("bench --list --json");
  ASSERT_EQ(ended.status, 0) << ended.output;
  std::set<std::string> listed;
  const Json list = Json::parse(ended.output);
  EXPECT_FALSE(list["folder"].text.empty());
  for (const Json& entry : list["benchmarks"].list) {
    listed.insert(entry["name"].text);
    EXPECT_FALSE(entry["measures"].text.empty());
    EXPECT_TRUE(says(run("bench --list"), " " + entry["name"].text + " "));
  }
  std::set<std::string> made;
  const std::string start = "ashlar_benchmark(NAME ";
  const std::string page = text_in("bench/CMakeLists.txt");
  for (std::size_t at = page.find(start); at != std::string::npos; at = page.find(start, at + 1)) {
    const std::size_t from = at + start.size();
    made.insert(page.substr(from, page.find_first_of(" )\n", from) - from));
  }
  EXPECT_EQ(listed, made) << "apps/ashlar/benchmark_table.h is the table of them";
  const Ended absent = run("bench block_bench --folder /nowhere");
  EXPECT_EQ(absent.status, 1);
  EXPECT_TRUE(says(absent, "run: cmake --build --preset release --target block_bench")) << absent.output;
}

TEST(AshlarCommandLine, RunsABenchmarkWithItsArguments) {
  const ScratchFolder folder;
  {
    std::ofstream program(folder.file("block_bench"));
    program << "#!/bin/sh\necho \"ran $# $1 $2\"\nexit 7\n";
  }
  ASSERT_EQ(::chmod(folder.file("block_bench").c_str(), 0700), 0);
  const Ended ended = run("bench --folder " + folder.path() + " block -- --scaling 4");
  EXPECT_EQ(ended.status, 7) << ended.output;
  EXPECT_EQ(ended.output, "ran 2 --scaling 4\n");
  const Ended told = run("bench --json --folder " + folder.path() + " block -- --scaling 4");
  EXPECT_EQ(told.status, 7) << told.output;
  const Json json = Json::parse(told.output);
  EXPECT_EQ(json["name"].text, "block_bench");
  EXPECT_EQ(json["status"].number, 7);
  EXPECT_FALSE(json["measures"].text.empty());
  ASSERT_EQ(json["output"].list.size(), 1u);
  EXPECT_EQ(json["output"].list[0].text, "ran 2 --scaling 4");
}

TEST(AshlarCommandLine, CompletionAndManualPagesKnowEveryFlag) {
  const std::string bash = run("completion bash").output;
  const std::string zsh = run("completion zsh").output;
  const std::string fish = run("completion fish").output;
  for (const std::string& command : all_commands()) {
    const std::set<std::string> flags = flags_in(run(command + " --help").output);
    EXPECT_FALSE(flags.empty()) << command;
    std::string page = run("man " + command).output;
    for (std::size_t at = page.find("\\-"); at != std::string::npos; at = page.find("\\-", at))
      page.erase(at, 1);
    for (const std::string& flag : flags) {
      EXPECT_NE(bash.find(flag), std::string::npos) << command << " " << flag;
      EXPECT_NE(zsh.find(flag + "["), std::string::npos) << command << " " << flag;
      EXPECT_NE(fish.find("-l " + flag.substr(2) + " "), std::string::npos) << command << " " << flag;
      EXPECT_NE(page.find(flag), std::string::npos) << command << " " << flag;
    }
    EXPECT_NE(page.find(".SH EXAMPLES"), std::string::npos) << command;
  }
  // Names are offered rather than files.
  for (const auto& [flag, words] :
       {std::pair<std::string, std::string>{"--router", "round_robin random prefix least_loaded sticky"},
        {"--format", "detect mooncake bailian weka azure burstgpt journal"},
        {"--dtype", "fp8 bf16 fp16 fp32"},
        {"--policy", "s3_fifo"}}) {
    const std::size_t command = bash.find(flag == "--dtype" ? "\n  plan)\n" : "\n  replay)\n");
    const std::size_t at = bash.find("    " + flag + ")\n", command);
    ASSERT_NE(at, std::string::npos) << flag;
    const std::string line = bash.substr(at, bash.find("return ;;", at) - at);
    EXPECT_NE(line.find("compgen -W"), std::string::npos) << line;
    EXPECT_NE(line.find(words), std::string::npos) << line;
  }
  EXPECT_TRUE(says(run("man inspct"), "did you mean inspect?"));
  EXPECT_GE(run("completion tcsh").status, 100);
}

}  // namespace
}  // namespace ashlar
