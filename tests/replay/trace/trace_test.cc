// Every form of a trace is recognised and read; what cannot be read is named by its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ashlar/replay/trace.h"
#include "ashlar/service/journal.h"
#include "service/request/trace_recorder.h"
#include "support/scratch_folder.h"

namespace ashlar::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TraceTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = scratch_.file(name);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // All requests of a trace; facts_ afterwards.
  std::vector<TraceRequest> read(const std::string& path, const TraceOptions& options = {}) {
    auto source = open_trace(path, options);
    EXPECT_TRUE(source) << source.error();
    std::vector<TraceRequest> requests;
    TraceRequest request;
    while (source) {
      const auto more = (*source)->next(request);
      EXPECT_TRUE(more) << more.error();
      if (!more || !*more) break;
      requests.push_back(request);
    }
    if (source) facts_ = (*source)->facts();
    return requests;
  }
  std::string error_of(const std::string& path, const TraceOptions& options = {}) {
    auto source = open_trace(path, options);
    if (!source) return source.error().message();
    TraceRequest request;
    for (;;) {
      const auto more = (*source)->next(request);
      if (!more) return more.error().message();
      if (!*more) return "";
    }
  }

  ScratchFolder scratch_;
  TraceFacts facts_;
};

TEST_F(TraceTest, ReadsMooncake) {
  const auto requests = read(write("a.jsonl",
                                   "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 50, "
                                   "\"hash_ids\": [0, 1, 2]}\r\n\n"
                                   "{\"timestamp\": 27.6, \"input_length\": 600, \"output_length\": 5, "
                                   "\"hash_ids\": [0, 18446744073709551615]}"));
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(
      requests[0],
      (TraceRequest{.input_tokens = 1100, .output_tokens = 50, .block_size = 512, .blocks = {0, 1, 2}}));
  EXPECT_EQ(requests[1].arrival_ms, 28u);
  EXPECT_THAT(requests[1].blocks, ElementsAre(0u, UINT64_MAX));
  EXPECT_EQ(facts_.format, TraceFormat::kMooncake);
  EXPECT_EQ(facts_.requests, 2u);
  EXPECT_TRUE(facts_.has_reuse);
}

TEST_F(TraceTest, FindsTheBlockSizeInTheLengths) {
  read(write("a.jsonl",
             "{\"timestamp\":0,\"input_length\":100,\"hash_ids\":[1,2,3,4,5,6,7]}\n"
             "{\"timestamp\":0,\"input_length\":33,\"hash_ids\":[1,2,3]}\n"));
  EXPECT_EQ(facts_.block_size, 16u);
  read(write("b.jsonl", "{\"timestamp\":0,\"input_length\":100,\"hash_ids\":[1,2,3,4,5,6,7]}\n"),
       {.block_size = 64});
  EXPECT_EQ(facts_.block_size, 64u);
  // Nothing fits both lines.
  read(write("c.jsonl",
             "{\"timestamp\":0,\"input_length\":100,\"hash_ids\":[1,2,3,4,5,6,7]}\n"
             "{\"timestamp\":0,\"input_length\":1000,\"hash_ids\":[1,2,3]}\n"));
  EXPECT_EQ(facts_.block_size, 512u);
}

TEST_F(TraceTest, ReadsTheFieldsOfAiperfAndDynamo) {
  const auto requests =
      read(write("a.jsonl",
                 "{\"session_id\": \"s\", \"timestamp\": 100, \"input_length\": 10, \"output_length\": 1, "
                 "\"extra\": {\"x\": [1]}}\n"
                 "{\"session_id\": \"s\", \"delay\": 50, \"input_length\": 20, \"hash_ids\": null}\n"
                 "{\"session_id\": 7, \"created_time\": 120, \"input_tokens\": 30, \"output_tokens\": 2, "
                 "\"delay_ms\": 5, \"priority\": 1}\n"));
  ASSERT_THAT(requests, SizeIs(3));
  EXPECT_EQ(requests[1].arrival_ms, 150u);  // after its session's, not after the line before
  EXPECT_EQ(requests[1].session, requests[0].session);
  EXPECT_NE(requests[2].session, requests[0].session);
  EXPECT_EQ(requests[2].arrival_ms, 120u);
  EXPECT_EQ(requests[2].input_tokens, 30u);
  EXPECT_EQ(requests[2].delay_ms, 5u);
  EXPECT_EQ(facts_.without_blocks, 3u);
}

TEST_F(TraceTest, TextsThatBeginAlikeShareBlocks) {
  const std::string shared(64, 'x');
  const auto requests =
      read(write("a.jsonl", "{\"timestamp\": 0, \"text_input\": \"" + shared + "one\"}\n" +
                                "{\"timestamp\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"" +
                                shared + "\"}]}\n" +
                                "{\"timestamp\": 2, \"messages\": [{\"role\": \"user\", \"content\": \"" +
                                shared + "\"}, {\"role\": \"user\", \"content\": \"more\"}]}\n"),
           {.block_size = 4});
  ASSERT_THAT(requests, SizeIs(3));
  EXPECT_EQ(facts_.from_text, 3u);
  ASSERT_THAT(requests[0].blocks, SizeIs(5));
  EXPECT_EQ(requests[0].input_tokens, 17u);
  // The second turn begins as the first, in whole blocks.
  const std::size_t whole = requests[1].blocks.size() - 1;
  ASSERT_GT(requests[2].blocks.size(), whole);
  EXPECT_TRUE(std::equal(requests[1].blocks.begin(),
                         requests[1].blocks.begin() + static_cast<std::ptrdiff_t>(whole),
                         requests[2].blocks.begin()));
  EXPECT_NE(requests[0].blocks[0], requests[1].blocks[0]);
}

// Engines put tools before the messages.
TEST_F(TraceTest, ToolsAreTheHeadOfAPrompt) {
  const std::string messages = R"("messages": [{"role": "user", "content": "the same question of all"}])";
  const auto requests =
      read(write("a.jsonl", "{\"timestamp\": 0, " + messages + "}\n{\"timestamp\": 1, " + messages +
                                R"(, "tools": [{"name": "search"}]})" + "\n" +
                                R"({"timestamp": 2, "tools": [{"name": "search"}], )" + messages + "}\n" +
                                R"({"timestamp": 3, "tools": [{"name": "delete"}], )" + messages + "}\n" +
                                R"({"timestamp": 4, "tools": [], )" + messages + "}\n"),
           {.block_size = 4});
  ASSERT_THAT(requests, SizeIs(5));
  EXPECT_EQ(facts_.from_text, 5u);
  EXPECT_EQ(requests[1].input_tokens, requests[0].input_tokens + 5) << "20 bytes of tools";
  EXPECT_NE(requests[1].blocks[0], requests[0].blocks[0]);
  EXPECT_EQ(requests[2].blocks, requests[1].blocks) << "in any order of fields";
  EXPECT_EQ(requests[3].blocks.size(), requests[1].blocks.size());
  EXPECT_NE(requests[3].blocks.back(), requests[1].blocks.back());
  EXPECT_EQ(requests[4].blocks, requests[0].blocks);
}

TEST_F(TraceTest, ReadsBailianChatsAsSessions) {
  const auto requests = read(write("a.jsonl",
                                   "{\"chat_id\": 5, \"parent_chat_id\": -1, \"timestamp\": 61.114, "
                                   "\"input_length\": 20, \"output_length\": "
                                   "3, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [9, 10]}\n"
                                   "{\"chat_id\": 6, \"parent_chat_id\": 5, \"timestamp\": 70, "
                                   "\"input_length\": 40, \"output_length\": 3, "
                                   "\"type\": \"text\", \"turn\": 2, \"hash_ids\": [9, 10, 11]}\n"
                                   "{\"chat_id\": 7, \"parent_chat_id\": 6, \"timestamp\": 80, "
                                   "\"input_length\": 40, \"output_length\": 3, "
                                   "\"type\": \"text\", \"turn\": 3, \"hash_ids\": [9]}\n"
                                   "{\"chat_id\": 8, \"parent_chat_id\": -1, \"timestamp\": 81, "
                                   "\"input_length\": 40, \"output_length\": 3, "
                                   "\"type\": \"file\", \"turn\": 1, \"hash_ids\": [1]}\n"));
  ASSERT_THAT(requests, SizeIs(4));
  EXPECT_EQ(facts_.format, TraceFormat::kBailian);
  EXPECT_EQ(facts_.block_size, 16u);
  EXPECT_EQ(requests[0].arrival_ms, 61'114u);
  EXPECT_EQ(requests[1].session, requests[0].session);
  EXPECT_EQ(requests[2].session, requests[0].session);
  EXPECT_NE(requests[3].session, requests[0].session);
  EXPECT_NE(requests[0].session, 0u);
}

const std::string kWekaSession =
    "{\"id\": \"NAME\", \"models\": [\"m\"], \"block_size\": 64, \"hash_id_scope\": \"local\", "
    "\"tool_tokens\": "
    "9, \"requests\": [{\"t\": 0.0, \"type\": \"n\", \"in\": 130, \"out\": 7, \"hash_ids\": [1, 2, 3], "
    "\"stop\": "
    "\"tool_use\"}, {\"t\": 2.0, \"type\": \"subagent\", \"agent_id\": \"a\", \"requests\": [{\"t\": 0.5, "
    "\"type\": \"s\", \"in\": 64, \"out\": 1, \"hash_ids\": [1]}]}, {\"t\": 2.1, \"type\": \"s\", \"in\": "
    "130, "
    "\"out\": 7, \"hash_ids\": [1, 2, 4], \"think_time\": 0.25}]}";

std::string weka_session(const std::string& name) {
  std::string text = kWekaSession;
  return text.replace(text.find("NAME"), 4, name);
}

TEST_F(TraceTest, WekaBlocksAreOfTheirModel) {
  const auto session = [](const char* id, const char* scope, const char* models, const char* first,
                          const char* second) {
    return std::string(R"({"id":")") + id + R"(","models":)" + models +
           R"(,"block_size":64,"hash_id_scope":")" + scope +
           R"(","requests":[{"t":0,"in":64,"hash_ids":[1])" + first + R"(},{"t":1,"in":64,"hash_ids":[1])" +
           second + "}]}\n";
  };
  const char* large = R"(,"model":"large")";
  const char* small = R"(,"model":"small")";
  const auto requests =
      read(write("a.jsonl", session("x", "local", R"(["large","small"])", large, small) +
                                session("y", "local", R"(["large"])", "", large) +
                                session("z", "local", "null", "", large) +
                                session("g", "global", R"(["large","small"])", large, small) +
                                session("h", "global", R"(["small"])", large, "")));
  ASSERT_THAT(requests, SizeIs(10));
  const auto name = [&](std::size_t i) { return requests[i].blocks.at(0); };
  // Sessions begin a second apart, and have their requests in order.
  EXPECT_NE(name(0), name(1));
  EXPECT_EQ(name(2), name(3)) << "the session has one model";
  EXPECT_NE(name(4), name(5)) << "what model the first is of is not known";
  EXPECT_NE(name(6), name(7));
  EXPECT_EQ(name(6), name(8)) << "sessions share names, and a model";
  EXPECT_EQ(name(7), name(9));
}

TEST_F(TraceTest, WekaBlocksOfAnotherSizeAreLeftOutAndCounted) {
  std::string other = weka_session("y");
  const std::size_t at = other.find("\"block_size\": 64");
  ASSERT_NE(at, std::string::npos);
  other.replace(at, 16, "\"block_size\": 16");
  const auto both = read(write("a.jsonl", weka_session("x") + "\n" + other + "\n"));
  EXPECT_EQ(facts_.block_size, 64u);
  ASSERT_EQ(both.size() % 2, 0u);
  std::uint64_t named = 0;
  for (std::size_t i = 0; i < both.size(); ++i) {
    EXPECT_EQ(both[i].block_size, 64u);
    named += both[i].blocks.empty() ? 0 : 1;
  }
  EXPECT_EQ(facts_.other_size, named) << "as many as the session of this size has";
  EXPECT_EQ(facts_.without_blocks, both.size() - named);
}

TEST_F(TraceTest, ReadsWekaSessionsFromLinesAnObjectAndAFolder) {
  const auto lines = read(write("a.jsonl", weka_session("x") + "\n" + weka_session("y") + "\n"));
  ASSERT_THAT(lines, SizeIs(6));
  EXPECT_EQ(facts_.format, TraceFormat::kWeka);
  EXPECT_EQ(facts_.block_size, 64u);
  EXPECT_EQ(lines[1].arrival_ms, 2'100u);  // before the subagent's request, which began at 2 s
  EXPECT_EQ(lines[2].arrival_ms, 2'500u);
  EXPECT_EQ(lines[1].delay_ms, 250u);
  EXPECT_EQ(lines[1].session, lines[0].session);
  EXPECT_NE(lines[2].session, lines[0].session);
  EXPECT_EQ(lines[2].blocks[0], lines[0].blocks[0]);
  EXPECT_NE(lines[3].blocks[0], lines[0].blocks[0]);  // another session's block 1
  EXPECT_EQ(lines[3].arrival_ms, 1'000u);

  std::string pretty = weka_session("x");
  pretty.insert(1, "\n  ");
  write("one.json", pretty + "\n");
  EXPECT_THAT(read(scratch_.file("one.json")), SizeIs(3));

  std::filesystem::create_directory(scratch_.file("folder"));
  write("folder/b.json", weka_session("y"));
  write("folder/a.json", pretty);
  const auto folder = read(scratch_.file("folder"));
  EXPECT_EQ(folder, lines);
}

TEST_F(TraceTest, ReadsTablesAndSaysThatNothingCanBeReused) {
  const auto azure =
      read(write("a.csv",
                 "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
                 "2024-02-29T00:00:01.5+00:00,1,2\n"));
  ASSERT_THAT(azure, SizeIs(2));
  EXPECT_EQ(azure[0].arrival_ms, 1'700'158'546'681u);
  EXPECT_EQ(azure[1].arrival_ms, 1'709'164'801'500u);
  EXPECT_EQ(azure[0].input_tokens, 374u);
  EXPECT_EQ(facts_.format, TraceFormat::kAzure);
  EXPECT_FALSE(facts_.has_reuse);

  const auto burst =
      read(write("b.csv",
                 "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total "
                 "tokens,Log Type\n5,,1.2,\"ChatGPT, 4\",472,18,490,API log\n6.5,abc,1,m,1,2,3,x\n"));
  ASSERT_THAT(burst, SizeIs(2));
  EXPECT_EQ(burst[0].arrival_ms, 5'000u);
  EXPECT_EQ(burst[0].input_tokens, 472u);
  EXPECT_EQ(burst[0].session, 0u);
  EXPECT_NE(burst[1].session, 0u);
  EXPECT_FALSE(facts_.has_reuse);
}

TEST_F(TraceTest, ReadsWhatServeRecords) {
  const std::string path = scratch_.file("trace.jsonl");
  const std::vector<tokens::LocalHash> locals = {tokens::LocalHash(1), tokens::LocalHash(2)};
  {
    auto recorder = service::TraceRecorder::create({.path = path}).value();
    recorder->add({.arrived = Clock::real().now(),
                   .input_tokens = 33,
                   .output_tokens = 4,
                   .block_size = 16,
                   .locals = locals,
                   .session = 9});
    recorder->add({.arrived = Clock::real().now(), .input_tokens = 32, .block_size = 16, .locals = locals});
  }
  const auto requests = read(path);
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(facts_.block_size, 16u);
  ASSERT_THAT(requests[0].blocks, SizeIs(3));
  EXPECT_THAT(requests[1].blocks, ElementsAre(requests[0].blocks[0], requests[0].blocks[1]));
  EXPECT_NE(requests[0].session, 0u);
  EXPECT_EQ(requests[1].output_tokens, 0u) << "not known";
}

TEST_F(TraceTest, BlocksOfAnotherSizeAreLeftOut) {
  const std::string path = write("a.jsonl",
                                 "{\"input_length\":600,\"block_size\":512,\"hash_ids\":[1,2]}\n"
                                 "{\"input_length\":20,\"block_size\":512}\n"
                                 "{\"input_length\":32,\"block_size\":16,\"hash_ids\":[3,4]}\n"
                                 "{\"input_length\":48,\"block_size\":16,\"hash_ids\":[3,4,5]}\n"
                                 "{\"block_size\":512,\"hash_ids\":[1,2]}\n"
                                 "{\"input_length\":16,\"hash_ids\":[3]}\n"
                                 "{\"input_length\":160,\"block_size\":16,\"hash_ids\":[3,4]}\n");
  const auto requests = read(path);
  ASSERT_THAT(requests, SizeIs(7));
  EXPECT_EQ(facts_.block_size, 16u);
  EXPECT_EQ(facts_.other_size, 2u);
  EXPECT_EQ(facts_.contradicting, 1u);
  EXPECT_THAT(requests[0].blocks, SizeIs(0));
  EXPECT_EQ(requests[0].input_tokens, 600u);
  EXPECT_THAT(requests[3].blocks, ElementsAre(3u, 4u, 5u));
  EXPECT_EQ(requests[4].input_tokens, 1024u);
  EXPECT_THAT(requests[5].blocks, ElementsAre(3u));
  // Who asks for a size gets it, and hears what contradicts it.
  EXPECT_THAT(read(path, {.block_size = 512})[3].blocks, SizeIs(3));
  EXPECT_EQ(facts_.other_size, 0u);
  EXPECT_EQ(facts_.contradicting, 3u);
  // The first line is longer than what is looked at before.
  std::string line = "{\"input_length\": 9000000, \"block_size\": 100, \"hash_ids\": [0";
  for (int i = 1; i < 90'000; ++i) line += ", " + std::to_string(i);
  read(write("b.jsonl", line + "]}\n"));
  EXPECT_EQ(facts_.block_size, 100u);
  EXPECT_EQ(facts_.contradicting, 0u);
}

TEST_F(TraceTest, ReadsTheRequestsOfAJournal) {
  const std::string folder = scratch_.path();
  const auto key = service::load_journal_key(folder + "/key", true).value();
  const std::vector<tokens::LocalHash> locals = {tokens::LocalHash(1), tokens::LocalHash(2)};
  {
    auto journal = service::JournalWriter::create({.path = folder + "/a.journal", .key = key}).value();
    service::Router router({}, journal.get());
    router.add_worker({.id = events::WorkerId(1), .group = "m"});
    const auto first =
        router.choose({.group = "m", .locals = locals, .prompt_tokens = 40, .block_size = 16, .session = 3});
    ASSERT_TRUE(first);
    // Tried again: the same request.
    const std::vector<events::Worker> tried = {first->choice().worker};
    EXPECT_FALSE(router.choose(
        {.group = "m", .locals = locals, .prompt_tokens = 40, .block_size = 16, .tried = tried}));
    EXPECT_FALSE(router.choose({.group = "absent", .prompt_tokens = 40, .block_size = 16}));
    ASSERT_TRUE(router.choose(
        {.group = "m", .locals = std::span(locals).first(1), .prompt_tokens = 16, .block_size = 16}));
    ASSERT_TRUE(journal->flush());
  }
  for (const std::string& path : {folder, folder + "/a.journal"}) {
    const auto requests = read(path);
    ASSERT_THAT(requests, SizeIs(2)) << path;
    EXPECT_EQ(facts_.format, TraceFormat::kJournal);
    EXPECT_EQ(facts_.block_size, 16u);
    EXPECT_EQ(requests[0].input_tokens, 40u);
    EXPECT_NE(requests[0].session, 0u);
    ASSERT_THAT(requests[0].blocks, SizeIs(2));
    EXPECT_THAT(requests[1].blocks, ElementsAre(requests[0].blocks[0]));
    EXPECT_LE(requests[0].arrival_ms, requests[1].arrival_ms);
  }
  EXPECT_THAT(error_of(folder, {.journal_key = folder + "/absent"}), HasSubstr("absent"));
}

// The first request may come before a worker's size is known.
TEST_F(TraceTest, AJournalHasTheSizeOfMostOfItsRequests) {
  const std::string folder = scratch_.path();
  const auto key = service::load_journal_key(folder + "/key", true).value();
  const std::vector<tokens::LocalHash> locals = {tokens::LocalHash(1), tokens::LocalHash(2)};
  {
    auto journal = service::JournalWriter::create({.path = folder + "/a.journal", .key = key}).value();
    service::Router router({}, journal.get());
    router.add_worker({.id = events::WorkerId(1), .group = "m"});
    ASSERT_TRUE(router.choose({.group = "m", .prompt_tokens = 40, .block_size = 64}));
    ASSERT_TRUE(router.choose({.group = "m", .locals = locals, .prompt_tokens = 64, .block_size = 32}));
    for (int i = 0; i < 2; ++i)
      ASSERT_TRUE(router.choose({.group = "m", .locals = locals, .prompt_tokens = 40, .block_size = 16}));
    ASSERT_TRUE(journal->flush());
  }
  const auto requests = read(folder);
  ASSERT_THAT(requests, SizeIs(4));
  EXPECT_EQ(facts_.block_size, 16u);
  EXPECT_EQ(facts_.other_size, 1u);
  EXPECT_THAT(requests[1].blocks, SizeIs(0));
  EXPECT_THAT(requests[3].blocks, SizeIs(2));
}

TEST_F(TraceTest, NamesThePlaceOfALineThatCannotBeRead) {
  const std::string good = "{\"timestamp\": 0, \"input_length\": 10, \"hash_ids\": [1]}\n";
  const std::string path = write("a.jsonl", good + "{\"timestamp\": 0, \"hash_ids\": [1, x]}\n" + good);
  EXPECT_THAT(error_of(path),
              testing::AllOf(HasSubstr("a.jsonl, line 2: column 34"), HasSubstr("array of integers")));
  EXPECT_THAT(read(path, {.is_lenient = true}), SizeIs(2));
  EXPECT_EQ(facts_.skipped_lines, 1u);
  EXPECT_THAT(facts_.first_skipped, HasSubstr("line 2"));

  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {"{\"timestamp\": -1, \"input_length\": 10}", "time in milliseconds"},
           {"{\"timestamp\": 1e300, \"input_length\": 10}", "time in milliseconds"},
           {"{\"timestamp\": 0, \"input_length\": \"x\"}", "prompt tokens"},
           {"{\"timestamp\": 0}", "input_length"},
           {"{\"timestamp\": 0, \"input_length\": 1} x", "nothing behind"},
           {"[]", "JSON object"},
           {"{\"timestamp\": 0, \"input_length\": 1", "ends within"}}) {
    EXPECT_THAT(error_of(write("b.jsonl", good + line)), testing::AllOf(HasSubstr("line 2"), HasSubstr(part)))
        << line;
  }
  EXPECT_THAT(error_of(write("c.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n")),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("date and time"), HasSubstr("yesterday")));
  EXPECT_THAT(error_of(write("d.csv", "Timestamp,Request tokens\n1,2\n")), HasSubstr("Response tokens"));
  EXPECT_THAT(error_of(write("e.jsonl", weka_session("x") +
                                            "\n{\"id\": \"y\", \"block_size\": 64, \"requests\": [{}]}\n")),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("tokens of the prompt")));
}

TEST_F(TraceTest, RefusesWhatIsNoTraceAndSaysWhatToDo) {
  EXPECT_THAT(error_of(scratch_.file("absent")), HasSubstr("cannot open the trace"));
  EXPECT_THAT(error_of(write("empty", "\n")), HasSubstr("empty"));
  EXPECT_THAT(error_of(write("events", "ASHLFEED....")), HasSubstr("--record"));
  EXPECT_THAT(error_of(write("zip", "\x1F\x8B...")), HasSubstr("zcat"));
  EXPECT_THAT(error_of(write("parquet", "PAR1....")), HasSubstr("Parquet"));
  EXPECT_THAT(error_of(write("text", "hello\n")), HasSubstr("mooncake, bailian, weka"));
  EXPECT_THAT(error_of(scratch_.path()), HasSubstr("folder"));
  EXPECT_THAT(parse_trace_format("moon").error().message(), HasSubstr("mooncake"));
  for (const char* name : {"detect", "mooncake", "bailian", "weka", "azure", "burstgpt", "journal"})
    EXPECT_EQ(to_string(parse_trace_format(name).value()), name);
}

}  // namespace
}  // namespace ashlar::replay
