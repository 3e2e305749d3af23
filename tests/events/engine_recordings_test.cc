// Decodes what real engines sent (tests/data/vllm).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "ashlar/events/engine_codec.h"
#include "ashlar/tokens/engine_hash.h"
#include "support/kvrec.h"

namespace ashlar::events {
namespace {

using Payload = std::vector<std::byte>;

std::vector<Payload> payloads(const std::string& name) {
  return testing::kvrec_payloads(std::string(ASHLAR_TEST_DATA) + "/vllm/" + name + ".kvrec");
}

struct Counts {
  std::size_t messages = 0;
  std::size_t stored = 0;
  std::size_t removed = 0;
  std::size_t cleared = 0;
  bool operator==(const Counts&) const = default;
};

TEST(EngineRecordings, HaveTheEventsThatWereSeen) {
  const std::map<std::string, Counts> expected = {
      {"algo-sha256-noseed", {4, 4, 0, 0}},
      {"algo-sha256-seed0", {4, 4, 0, 0}},
      {"algo-sha256_cbor-seed0-bytes", {4, 4, 0, 0}},
      {"algo-sha256_cbor-seed0", {4, 4, 0, 0}},
      {"algo-xxhash-seed0", {4, 4, 0, 0}},
      {"algo-xxhash_cbor-seed0", {4, 4, 0, 0}},
      {"default", {30, 31, 0, 0}},
      {"dup", {11, 14, 27, 0}},
      {"evict", {35, 37, 195, 0}},
      {"fullreport", {3, 4, 0, 0}},
      {"offload-placeholder", {10, 34, 0, 1}},
      {"offload-selfdescribing", {10, 34, 0, 1}},
      {"reset", {3, 3, 0, 3}},
      {"salt", {4, 4, 0, 0}},
      {"serialdup", {5, 5, 8, 0}},
  };
  EngineBatch batch;
  for (const auto& [name, want] : expected) {
    Counts got;
    for (const Payload& payload : payloads(name)) {
      const Result<void> decoded = decode_engine_batch(payload, batch);
      ASSERT_TRUE(decoded) << name << ": " << decoded.error();
      ++got.messages;
      EXPECT_EQ(batch.rank, 0u);
      EXPECT_GT(batch.timestamp, 1.7e9);
      for (const EngineEvent& event : batch.events) {
        got.stored += event.kind == EngineEventKind::kStored;
        got.removed += event.kind == EngineEventKind::kRemoved;
        got.cleared += event.kind == EngineEventKind::kCleared;
        if (event.kind == EngineEventKind::kStored && event.medium == "GPU") {
          EXPECT_EQ(event.tokens.count, event.names.count * event.block_size) << name;
          EXPECT_EQ(event.extra_key_blocks, event.names.count) << name;
        }
      }
    }
    EXPECT_EQ(got, want) << name;
  }
}

TEST(EngineRecordings, AReplayHasTheBatchesOfTheLiveStream) {
  const std::vector<Payload> live = payloads("default");
  const std::vector<Payload> replay = payloads("default.replay");
  ASSERT_EQ(replay.size(), 5u);
  for (std::size_t i = 0; i < replay.size(); ++i) EXPECT_EQ(replay[i], live[25 + i]);
}

TEST(EngineRecordings, NamesOfDigestsAreTheIntegersOfTheOtherForm) {
  const std::vector<Payload> digests = payloads("algo-sha256_cbor-seed0-bytes");
  const std::vector<Payload> integers = payloads("algo-sha256_cbor-seed0");
  EngineBatch a;
  EngineBatch b;
  // The second prompts of the two recordings differ; the first ones do not.
  ASSERT_TRUE(decode_engine_batch(digests.at(0), a));
  ASSERT_TRUE(decode_engine_batch(integers.at(0), b));
  EXPECT_EQ(a.names, b.names);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.events[0].digest_size, 32u);
  EXPECT_EQ(a.digests.size(), a.names.size() * 32);
  EXPECT_EQ(b.events[0].digest_size, 0u);
}

TEST(EngineRecordings, AreWrittenAgainByteForByte) {
  EngineBatch batch;
  Payload again;
  for (const std::string name : testing::kVllmRecordings) {
    const std::vector<Payload> recorded = payloads(name);
    ASSERT_FALSE(recorded.empty()) << name;
    for (const Payload& payload : recorded) {
      ASSERT_TRUE(decode_engine_batch(payload, batch));
      encode_engine_batch(batch, again);
      EXPECT_EQ(again, payload) << name;
    }
  }
}

// The hasher of the engine that made a recording.
tokens::VllmHasher hasher_of(const std::string& name) {
  tokens::VllmHashOptions options;
  if (name.starts_with("algo-")) {
    const std::size_t dash = name.find('-', 5);
    options.algorithm = tokens::vllm_algorithm(name.substr(5, dash - 5)).value();
    if (name.find("seed0") != std::string::npos) options.hash_seed = "0";
  }
  return tokens::VllmHasher::create(options).value();
}

TEST(EngineRecordings, EveryHashOfTheGpuIsComputedFromTokens) {
  std::size_t total = 0;
  EngineBatch batch;
  for (const std::string name : testing::kVllmRecordings) {
    if (name.ends_with(".replay")) continue;
    const tokens::VllmHasher hasher = hasher_of(name);
    std::map<BlockName, tokens::VllmDigest> known;
    for (const Payload& payload : payloads(name)) {
      ASSERT_TRUE(decode_engine_batch(payload, batch));
      for (const EngineEvent& event : batch.events) {
        if (event.kind != EngineEventKind::kStored || event.medium != "GPU") continue;
        std::optional<tokens::VllmDigest> parent;
        if (event.parent) {
          ASSERT_TRUE(known.contains(*event.parent)) << name;
          parent = known.at(*event.parent);
        }
        for (std::uint32_t i = 0; i < event.names.count; ++i) {
          tokens::VllmExtraKeys extra;
          for (const EngineExtraKey& key : batch.extra_keys_of(event)) {
            if (key.block != i) continue;
            ASSERT_EQ(key.kind, EngineExtraKey::Kind::kText);
            extra.cache_salt = key.value;
          }
          const auto block =
              batch.tokens_of(event).subspan(std::size_t{i} * event.block_size, event.block_size);
          parent = hasher.hash_block(parent, block, extra).value();
          const BlockName wanted = batch.names_of(event)[i];
          ASSERT_EQ(tokens::external_name(*parent), wanted.value()) << name << " block " << i;
          if (event.digest_size != 0) {
            const auto digest = batch.digest_of(event, i);
            EXPECT_TRUE(std::ranges::equal(std::as_bytes(parent->bytes()), digest));
          }
          known[wanted] = *parent;
          ++total;
        }
      }
    }
  }
  EXPECT_EQ(total, 914u);
}

}  // namespace
}  // namespace ashlar::events
