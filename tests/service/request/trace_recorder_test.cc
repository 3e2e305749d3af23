#include "service/request/trace_recorder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar::service {
namespace {

using namespace std::chrono_literals;
using testing::Json;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> out;
  std::stringstream text(text_of(path));
  for (std::string line; std::getline(text, line);) out.push_back(line);
  return out;
}

std::vector<tokens::LocalHash> hashes(std::initializer_list<std::uint64_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

TraceRecorder::Options recording(const std::string& path) {
  TraceRecorder::Options options;
  options.path = path;
  return options;
}

TEST(TraceRecorder, WritesALinePerRequest) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  ManualClock clock;
  const Clock::TimePoint start = clock.now();
  auto recorder = std::move(*TraceRecorder::create(recording(path), clock));
  const auto first = hashes({70, 80});
  const auto second = hashes({70, 90, 80});
  recorder->add({start + 1234us, 40, 7, 16, first, 0xAB});
  recorder->add({start + 3s, 48, {}, 16, second, 0});  // an answer that nobody counted
  recorder->add({start - 1s, 5, 1, 16, {}, 0});        // from before the start, and shorter than a block
  recorder->add({start + 4s, 99, 1, 16, {}, 0});       // blocks that are not known
  recorder->add({start + 4s, 99, 1, 0, {}, 0});
  ASSERT_TRUE(recorder->flush().has_value());
  EXPECT_EQ(text_of(path), R"({"timestamp": 1, "input_length": 40, "output_length": 7, "block_size": 16, )"
                           R"("hash_ids": [0, 1, 2], )"
                           R"("session": "00000000000000ab"}
{"timestamp": 3000, "input_length": 48, "block_size": 16, "hash_ids": [0, 3, 4]}
{"timestamp": 0, "input_length": 5, "output_length": 1, "block_size": 16, "hash_ids": [5]}
{"timestamp": 4000, "input_length": 99, "output_length": 1}
{"timestamp": 4000, "input_length": 99, "output_length": 1}
)");
  EXPECT_EQ(recorder->written(), 5u);
  EXPECT_EQ(recorder->dropped(), 0u);
}

// The same block behind another prefix is another block.
TEST(TraceRecorder, EqualIdsMeanEqualPrefixes) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  auto recorder = std::move(*TraceRecorder::create(recording(path)));
  std::vector<std::vector<tokens::LocalHash>> prompts;
  for (std::uint64_t i = 0; i < 64; ++i)
    prompts.push_back(hashes({i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 3}));
  for (const auto& prompt : prompts) recorder->add({{}, 4, 1, 1, prompt, 0});
  ASSERT_TRUE(recorder->flush().has_value());
  std::map<std::uint64_t, std::vector<tokens::LocalHash>> known;
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), prompts.size());
  std::set<std::vector<tokens::LocalHash>> prefixes;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Json line = Json::parse(lines[i]);
    ASSERT_EQ(line["hash_ids"].list.size(), 4u);
    for (std::size_t depth = 0; depth < 4; ++depth) {
      const std::vector<tokens::LocalHash> prefix(prompts[i].begin(),
                                                  prompts[i].begin() + 1 + static_cast<long>(depth));
      prefixes.insert(prefix);
      const auto id = static_cast<std::uint64_t>(line["hash_ids"].list[depth].number);
      EXPECT_EQ(known.try_emplace(id, prefix).first->second, prefix);
    }
  }
  EXPECT_EQ(known.size(), prefixes.size());
}

TEST(TraceRecorder, TheOldestHashesGetNewNumbers) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  TraceRecorder::Options options = recording(path);
  options.max_ids = 2;
  auto recorder = std::move(*TraceRecorder::create(options));
  for (const std::uint64_t hash : {1, 2, 1, 3, 2, 1}) recorder->add({{}, 1, 1, 1, hashes({hash}), 0});
  ASSERT_TRUE(recorder->flush().has_value());
  std::string ids;
  for (const std::string& line : lines_of(path))
    ids += std::to_string(static_cast<int>(Json::parse(line)["hash_ids"].list[0].number)) + " ";
  EXPECT_EQ(ids, "0 1 0 2 1 3 ");
}

TEST(TraceRecorder, FilesAreNotOverwritten) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  {
    const auto recorder = TraceRecorder::create(recording(path));
  }
  EXPECT_EQ(TraceRecorder::create(recording(path)).error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(TraceRecorder::create(recording("/dev/full")).error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(TraceRecorder::create(recording(folder.file("no/such"))).error().code(), ErrorCode::kIo);
}

TEST(TraceRecorder, LinesWithoutRoomAreDropped) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  TraceRecorder::Options options = recording(path);
  options.max_waiting_bytes = 200;
  auto recorder = std::move(*TraceRecorder::create(options));
  const std::vector<tokens::LocalHash> many(100);
  recorder->add({{}, 100, 1, 1, many, 0});
  recorder->add({{}, 1, 1, 1, hashes({5}), 0});
  ASSERT_TRUE(recorder->flush().has_value());
  EXPECT_EQ(recorder->dropped(), 1u);
  EXPECT_EQ(recorder->written(), 1u);
  EXPECT_EQ(lines_of(path).size(), 1u);
}

// A file that cannot grow, as on a full disk: lines are lost and counted, and those that stay are whole.
TEST(TraceRecorder, AFullDiskLosesLinesOnly) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  auto recorder = std::move(*TraceRecorder::create(recording(path)));
  recorder->add({{}, 1, 1, 1, hashes({5}), 0});
  ASSERT_TRUE(recorder->flush().has_value());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (int i = 0; i < 100; ++i) recorder->add({{}, 1, 1, 1, hashes({5}), 0});
  const Result<void> flushed = recorder->flush();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().code(), ErrorCode::kIo);
  EXPECT_GT(recorder->dropped(), 0u);
  EXPECT_EQ(recorder->written() + recorder->dropped(), 101u);
  // With room again it goes on, and every line of the file is whole.
  recorder->add({{}, 1, 1, 1, hashes({5}), 0});
  EXPECT_TRUE(recorder->flush().has_value());
  const std::vector<std::string> lines = lines_of(path);
  EXPECT_EQ(lines.size(), recorder->written());
  for (const std::string& line : lines) EXPECT_TRUE(line.starts_with('{') && line.ends_with('}')) << line;
}

TEST(TraceRecorder, ThreadsWriteWholeLines) {
  const ScratchFolder folder;
  const std::string path = folder.file("trace.jsonl");
  TraceRecorder::Options options = recording(path);
  options.max_ids = 50;
  auto recorder = std::move(*TraceRecorder::create(options));
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kLines = 500;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < kLines; ++i) {
        recorder->add({{}, 3, i, 1, hashes({thread, i % 10, i}), thread + 1});
        if (i % 100 == 0) {
          EXPECT_TRUE(recorder->flush().has_value());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  recorder.reset();  // writes what is left
  std::map<std::string, std::uint64_t> next;
  for (const std::string& text : lines_of(path)) {
    const Json line = Json::parse(text);
    EXPECT_EQ(line["output_length"].number, static_cast<double>(next[line["session"].text]++));
    EXPECT_EQ(line["hash_ids"].list.size(), 3u);
  }
  ASSERT_EQ(next.size(), kThreads);
  for (const auto& [session, lines] : next) EXPECT_EQ(lines, kLines) << session;
}

}  // namespace
}  // namespace ashlar::service
