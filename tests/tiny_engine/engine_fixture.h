// What the tests of the tiny engine share: its options by tier, conversations with common beginnings, and the
// comparison of every reply with the same model without a cache.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "support/scratch_folder.h"
#include "tiny_engine/engine.h"

namespace tiny_engine::testing {

using namespace ashlar;
using events::TierId;

// G1 alone.
inline EngineOptions small_engine(std::uint32_t blocks = 128) {
  EngineOptions options;
  options.kv.g1.block_count = blocks;
  return options;
}

// The tiers from G1 down to `lowest`; G4 stands on G2. Files and objects lie in `folder`.
inline EngineOptions engine_down_to(TierId lowest, const std::string& folder, std::uint32_t blocks = 128) {
  EngineOptions options = small_engine(blocks);
  if (lowest == events::kTierId<events::G1>) return options;
  options.kv.g2 = tiers::TierShape{.block_count = 256};
  if (lowest == events::kTierId<events::G3>)
    options.kv.g3 = tiers::DiskShape{.block_count = 512, .paths = {folder + "/g3"}};
  if (lowest == events::kTierId<events::G4>) {
    std::filesystem::create_directories(folder + "/volume");
    options.kv.g4 = tiers::VolumeShape{
        .block_count = 1024,
        .volumes = {{.name = "shared", .kind = "directory", .location = folder + "/volume"}}};
  }
  return options;
}

inline std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  return Engine::create(options).value();
}

// Requests that begin alike: a few system prompts, then what a user says.
inline std::vector<Request> conversations(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    Request request;
    const std::uint64_t system = random.below(3);
    Random shared(system + 100);
    for (std::size_t n = 20 + 13 * system; n > 0; --n)
      request.prompt.push_back(Token(static_cast<std::uint32_t>(shared.below(TinyModel::kVocabulary))));
    for (std::uint64_t n = 1 + random.below(40); n > 0; --n)
      request.prompt.push_back(Token(static_cast<std::uint32_t>(random.below(TinyModel::kVocabulary))));
    request.new_tokens = 1 + random.below(24);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Every text and every logit is what the model says without a cache.
inline void expect_what_the_model_says(const Engine& engine, const Request& request,
                                       const std::vector<Reply>& replies) {
  ASSERT_EQ(replies.size(), request.samples);
  for (std::size_t i = 0; i < replies.size(); ++i) {
    const TinyModel::Speech right = engine.model().say(request.prompt, request.new_tokens, i);
    EXPECT_EQ(replies[i].error, "");
    EXPECT_EQ(text_of(replies[i].tokens), text_of(right.tokens));
    EXPECT_EQ(replies[i].logits, right.logits) << "sample " << i;
  }
}

// Serves them together and compares; returns the first reply of each.
inline std::vector<Reply> serve(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Engine::RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine.submit(request).value());
  engine.run();
  std::vector<Reply> first;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<Reply> replies = engine.take(ids[i]);
    expect_what_the_model_says(engine, requests[i], replies);
    if (!replies.empty()) first.push_back(std::move(replies[0]));
  }
  return first;
}

inline std::size_t cached_tokens(const std::vector<Reply>& replies) {
  std::size_t sum = 0;
  for (const Reply& reply : replies) sum += reply.cached_tokens;
  return sum;
}

}  // namespace tiny_engine::testing
