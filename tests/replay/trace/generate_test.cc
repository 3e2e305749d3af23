// The generator: the same requests for the same seed, in order, with the reuse that its kinds promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "ashlar/replay/generate.h"
#include "support/scratch_folder.h"

namespace ashlar::replay {
namespace {

using ::testing::HasSubstr;

std::vector<TraceRequest> drain(TraceSource& source) {
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (source.next(request).value()) requests.push_back(request);
  return requests;
}

std::vector<TraceRequest> generated(const std::string& text) {
  return drain(*generate_trace(parse_generator(text).value()));
}

// Share of blocks that an earlier request named as well.
double reuse(const std::vector<TraceRequest>& requests) {
  std::set<std::uint64_t> known;
  double asked = 0;
  double found = 0;
  for (const TraceRequest& request : requests) {
    for (const std::uint64_t name : request.blocks) {
      ++asked;
      found += known.insert(name).second ? 0 : 1;
    }
  }
  return found / asked;
}

TEST(GenerateTest, OneSeedGivesOneWorkload) {
  for (const char* kind : {"chat", "prompts", "agents", "documents", "mix"}) {
    const std::string text = std::string(kind) + ",requests=100,seed=";
    const auto first = generated(text + "7");
    EXPECT_EQ(first, generated(text + "7")) << kind;
    EXPECT_NE(first, generated(text + "8")) << kind;
    ASSERT_EQ(first.size(), 100u);
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i].block_size, 16u);
      EXPECT_EQ(first[i].blocks.size(), (first[i].input_tokens + 15) / 16);
      if (i > 0) {
        EXPECT_GE(first[i].arrival_ms, first[i - 1].arrival_ms);
      }
    }
    // A block stands for everything before it: it has one predecessor and one position.
    std::map<std::uint64_t, std::pair<std::size_t, std::uint64_t>> place;
    for (const TraceRequest& request : first) {
      for (std::size_t i = 0; i < request.blocks.size(); ++i) {
        const std::pair<std::size_t, std::uint64_t> own(i, i == 0 ? 0 : request.blocks[i - 1]);
        EXPECT_EQ(place.try_emplace(request.blocks[i], own).first->second, own);
      }
    }
  }
}

TEST(GenerateTest, TurnsBeginAsTheOneBefore) {
  std::map<std::uint64_t, TraceRequest> last;
  std::size_t later = 0;
  for (const TraceRequest& request : generated("chat,requests=500")) {
    const auto before = last.find(request.session);
    if (before != last.end()) {
      ++later;
      const auto& old = before->second;
      EXPECT_GT(request.input_tokens, old.input_tokens + old.output_tokens);
      EXPECT_GE(request.arrival_ms, old.arrival_ms + request.delay_ms);
      const std::size_t whole = old.input_tokens / 16;
      EXPECT_TRUE(std::equal(old.blocks.begin(), old.blocks.begin() + static_cast<std::ptrdiff_t>(whole),
                             request.blocks.begin()));
    }
    last[request.session] = request;
  }
  EXPECT_GT(later, 100u);
}

TEST(GenerateTest, KindsHaveTheReuseOfTheirName) {
  EXPECT_GT(reuse(generated("prompts,requests=250")), 0.6);    // only questions are new
  EXPECT_GT(reuse(generated("agents,requests=250")), 0.7);     // every step repeats the ones before
  EXPECT_GT(reuse(generated("documents,requests=250")), 0.6);  // documents are asked about again
  EXPECT_GT(reuse(generated("chat,requests=250")), 0.4);
}

// Many sessions begin in one millisecond.
TEST(GenerateTest, RatesUpToTheLargestAreKept) {
  for (const char* kind : {"chat", "prompts", "agents", "documents", "mix"})
    EXPECT_EQ(generated(std::string(kind) + ",requests=50,rate=1000000").size(), 50u) << kind;
  const auto fast = generated("prompts,requests=1000,rate=10000");
  EXPECT_GT(fast.back().arrival_ms, 90u);
  EXPECT_LT(fast.back().arrival_ms, 110u);
}

TEST(GenerateTest, WhatIsWrittenIsReadAgain) {
  ScratchFolder folder;
  const auto options = parse_generator("mix,requests=100,seed=3").value();
  const auto source = generate_trace(options);
  ASSERT_EQ(write_trace(*source, folder.file("a.jsonl")).value(), 100u);
  const auto back = open_trace(folder.file("a.jsonl")).value();
  const auto read = drain(*back);
  const auto original = drain(*generate_trace(options));
  EXPECT_EQ(back->facts().block_size, 16u);
  ASSERT_EQ(read.size(), original.size());
  std::map<std::uint64_t, std::uint64_t> names;
  std::map<std::uint64_t, std::uint64_t> sessions;
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].arrival_ms, original[i].arrival_ms);
    EXPECT_EQ(read[i].input_tokens, original[i].input_tokens);
    EXPECT_EQ(read[i].output_tokens, original[i].output_tokens);
    EXPECT_EQ(sessions.try_emplace(original[i].session, read[i].session).first->second, read[i].session);
    ASSERT_EQ(read[i].blocks.size(), original[i].blocks.size());
    for (std::size_t k = 0; k < read[i].blocks.size(); ++k)
      EXPECT_EQ(names.try_emplace(original[i].blocks[k], read[i].blocks[k]).first->second, read[i].blocks[k]);
  }
  std::set<std::uint64_t> distinct;
  for (const auto& [name, number] : names) EXPECT_TRUE(distinct.insert(number).second);
  EXPECT_THAT(write_trace(*source, folder.file("absent/a")).error().message(), HasSubstr("cannot write"));
}

// Lengths would not show these: one block per prompt, or no power of two.
TEST(GenerateTest, WhatIsWrittenKeepsTheSizeOfItsBlocks) {
  const ScratchFolder folder;
  for (const char* spec : {"documents,requests=60,block=65536", "chat,requests=60,block=100"}) {
    const auto options = parse_generator(spec).value();
    const std::string path = folder.file("a.jsonl");
    ASSERT_EQ(write_trace(*generate_trace(options), path).value(), 60u);
    const auto original = drain(*generate_trace(options));
    const auto back = open_trace(path).value();
    const auto read = drain(*back);
    EXPECT_EQ(back->facts().block_size, options.block_size) << spec;
    EXPECT_EQ(back->facts().other_size + back->facts().contradicting, 0u) << spec;
    ASSERT_EQ(read.size(), original.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].block_size, original[i].block_size);
      EXPECT_EQ(read[i].blocks.size(), original[i].blocks.size());
    }
  }
}

TEST(GenerateTest, ATraceMayBeWrittenOverItself) {
  const ScratchFolder folder;
  const std::string path = folder.file("a.jsonl");
  const auto options = parse_generator("chat,requests=900").value();  // more than is read at once
  ASSERT_EQ(write_trace(*generate_trace(options), path).value(), 900u);
  const auto files = [&] {
    const std::filesystem::directory_iterator all(std::filesystem::path(path).parent_path());
    return std::distance(std::filesystem::begin(all), std::filesystem::end(all));
  };
  const auto before = drain(*open_trace(path).value());
  ASSERT_EQ(write_trace(*open_trace(path).value(), path).value(), 900u);
  EXPECT_EQ(drain(*open_trace(path).value()).size(), before.size());
  EXPECT_EQ(files(), 1);
  // Stopped half way, or by a line that cannot be read, it stays as it was.
  const auto stopped =
      write_trace(*open_trace(path).value(), path, [](std::uint64_t requests) { return requests < 128; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(drain(*open_trace(path).value()).size(), 900u);
  std::ofstream(path, std::ios::app) << "not a request\n";
  const auto size = std::filesystem::file_size(path);
  EXPECT_FALSE(write_trace(*open_trace(path).value(), path));
  EXPECT_EQ(std::filesystem::file_size(path), size);
  EXPECT_EQ(files(), 1);
}

TEST(GenerateTest, SaysWhatItKnows) {
  EXPECT_EQ(parse_generator("agents,block=64,rate=9").value().block_size, 64u);
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"", "missing"},
                                                        {"seed=1", "missing"},
                                                        {"talk", "chat, prompts"},
                                                        {"chat,chat", "no workload"},
                                                        {"chat,speed=1", "seed, requests"},
                                                        {"chat,seed=x", "whole number"},
                                                        {"chat,requests=0", "1 or more"},
                                                        {"chat,block=0", "65536"},
                                                        {"chat,rate=0", "1000000"},
                                                        {"chat,seed=", "whole number"}}) {
    const auto parsed = parse_generator(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message(), HasSubstr(part)) << text;
  }
}

}  // namespace
}  // namespace ashlar::replay
