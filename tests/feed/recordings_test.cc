// What real engines sent (tests/data/vllm), through ingest and feeder into an index: it must predict what the
// engine then found in its cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "ashlar/base/random.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "feed/batch_builder.h"
#include "support/kvrec.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar::feed {
namespace {

using namespace std::chrono_literals;
using testing::Json;

constexpr events::WorkerId kRecordedWorker{7};
const std::string kFolder = std::string(ASHLAR_TEST_DATA) + "/vllm/";

// An index as a sink.
template <class Index>
class Indexed final : public events::IndexSink {
 public:
  events::StoreVerdict store(const events::BlocksStored& event) override { return index.store(event); }
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const BlockName> names) override {
    return index.remove(worker, tier, names);
  }
  void clear(const events::Worker& worker) override { index.clear(worker); }
  void remove_worker(events::WorkerId worker) override { index.remove_worker(worker); }

  index::Score score(std::span<const tokens::LocalHash> locals) const {
    index::MatchScores scores;
    index.find_matches(locals, scores);
    return scores.of({kRecordedWorker, 0}).value_or(index::Score{});
  }

  Index index;
};

std::vector<Token> tokens_of(const Json& ids) {
  std::vector<Token> tokens;
  for (const Json& id : ids.list) tokens.emplace_back(static_cast<std::uint32_t>(id.number));
  return tokens;
}

std::vector<tokens::LocalHash> locals_of(const std::vector<Token>& prompt, std::uint32_t block_size,
                                         const std::string& salt) {
  const tokens::SequenceHasher hasher{tokens::Salt("", salt)};
  std::vector<tokens::BlockHashes> hashes(prompt.size() / block_size);
  (void)hasher.hash_blocks(std::nullopt, prompt, block_size, hashes).value();
  std::vector<tokens::LocalHash> locals;
  for (const tokens::BlockHashes& hash : hashes) locals.push_back(hash.local);
  return locals;
}

class Recordings : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream file(kFolder + GetParam() + ".json");
    notes_ =
        Json::parse(std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>()));
    block_size_ = static_cast<std::uint32_t>(notes_["block_size"].number);
    ASSERT_GT(block_size_, 0u);
    payloads_ = testing::kvrec_payloads(kFolder + GetParam() + ".kvrec");
    ASSERT_FALSE(payloads_.empty());
  }

  Json notes_;
  std::uint32_t block_size_ = 0;
  std::vector<std::vector<std::byte>> payloads_;
};

// The engine tells a reset with the next batch only; here the listener hears of it at once, and then a second
// time.
TEST_P(Recordings, PredictWhatTheEngineFindsInItsCache) {
  auto ingest = EngineIngest::create({.worker = kRecordedWorker, .block_size = block_size_});
  ASSERT_TRUE(ingest);
  Indexed<index::RadixTree> sink;
  IndexFeeder feeder(sink, kRecordedWorker);
  PresenceBook book;
  std::size_t at = 0;
  std::size_t compared = 0;
  const auto apply = [&](const EngineBatch& batch) {
    std::vector<KvEvent> out;
    ingest->apply(batch, out);
    book.apply(out);
    feeder.apply(out);
    ASSERT_EQ(book.problem(), "");
  };
  for (const Json& step : notes_["steps"].list) {
    const std::string& what = step["op"].text;
    if (what == "reset_prefix_cache") {
      BatchBuilder clear;
      clear.cleared();
      apply(clear.batch());
    } else {
      // Of prompts that ran together the first one found what was there.
      const bool batch = what == "generate_batch";
      const std::vector<Token> prompt =
          tokens_of(batch ? step["prompts"].list.at(0) : step["prompt_token_ids"]);
      const double cached =
          batch ? step["num_cached_tokens"].list.at(0).number : step["num_cached_tokens"].number;
      ASSERT_FALSE(prompt.empty()) << what;
      const auto depth = sink.score(locals_of(prompt, block_size_, step["cache_salt"].text)).depth;
      const auto usable =
          static_cast<std::uint32_t>((prompt.size() - 1) / block_size_);  // the last token is computed
      EXPECT_EQ(std::min(depth, usable) * block_size_, cached) << step["note"].text;
      ++compared;
    }
    const auto end = static_cast<std::size_t>(step["messages"].list.at(1).number);
    for (; at < end; ++at) {
      EngineBatch batch;
      ASSERT_TRUE(events::decode_engine_batch(payloads_.at(at), batch));
      apply(batch);
    }
  }
  EXPECT_GT(compared, 1u);
  const EngineIngestCounters& counters = ingest->counters();
  EXPECT_EQ(counters.collisions + counters.ambiguous_parents + counters.short_tokens +
                counters.wrong_block_sizes + counters.unknown_removals + counters.unknown_mediums +
                counters.external + counters.overflowed,
            0u);
  EXPECT_EQ(ingest->waiting(), 0u);
  EXPECT_EQ(feeder.counters().refused(), 0u);
  EXPECT_EQ(feeder.counters().missing_removals, 0u);
  EXPECT_EQ(feeder.counters().without_local, 0u);
  EXPECT_EQ(sink.index.sizes().blocks, book.present().size());
}

TEST_P(Recordings, FillAnIndexThroughASession) {
  auto source = RecordingSource::create({.path = kFolder + GetParam() + ".kvrec"});
  ASSERT_TRUE(source) << source.error();
  auto session = EngineSession::create(*std::move(source),
                                       {.ingest = {.worker = kRecordedWorker, .block_size = block_size_}});
  ASSERT_TRUE(session);
  Indexed<index::FlashIndex> sink;
  IndexFeeder feeder(sink, kRecordedWorker);
  PresenceBook book;
  for (;;) {
    std::vector<KvEvent> out;
    const auto stepped = session->step(0ms, out);
    book.apply(out);
    feeder.apply(out);
    if (stepped) continue;
    ASSERT_EQ(stepped.error().code(), ErrorCode::kNotFound) << stepped.error();
    break;
  }
  EXPECT_EQ(book.problem(), "");
  EXPECT_EQ(session->counters().applied, payloads_.size());
  EXPECT_EQ(session->counters().resyncs + session->counters().gaps + session->counters().undecodable, 0u);
  EXPECT_EQ(sink.index.sizes().blocks, book.present().size());
  EXPECT_EQ(feeder.counters().refused(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Vllm, Recordings,
                         ::testing::Values("algo-sha256-noseed", "algo-sha256-seed0",
                                           "algo-sha256_cbor-seed0-bytes", "algo-sha256_cbor-seed0",
                                           "algo-xxhash-seed0", "algo-xxhash_cbor-seed0", "default", "dup",
                                           "evict", "fullreport", "offload-placeholder",
                                           "offload-selfdescribing", "reset", "salt", "serialdup"),
                         [](const auto& recording) {
                           std::string name = recording.param;
                           std::ranges::replace_if(name, [](char c) { return c == '-' || c == '_'; }, 'X');
                           return name;
                         });

// The device tier of an engine of N blocks never holds more than N, and what is evicted was counted right.
TEST(RecordingCounts, AreThoseOfTheRecordings) {
  struct Case {
    const char* name;
    std::uint64_t repeated, released, reannounced, placeholders;
  };
  for (const Case& want : {Case{"dup", 6, 6, 0, 0}, Case{"serialdup", 2, 2, 0, 0},
                           Case{"fullreport", 0, 0, 20, 0}, Case{"offload-placeholder", 0, 0, 0, 28}}) {
    auto ingest = EngineIngest::create({});
    std::vector<KvEvent> out;
    EngineBatch batch;
    for (const auto& payload : testing::kvrec_payloads(kFolder + want.name + ".kvrec")) {
      ASSERT_TRUE(events::decode_engine_batch(payload, batch));
      ingest->apply(batch, out);
    }
    EXPECT_EQ(ingest->counters().repeated, want.repeated) << want.name;
    EXPECT_EQ(ingest->counters().released, want.released) << want.name;
    EXPECT_EQ(ingest->counters().reannounced, want.reannounced) << want.name;
    EXPECT_EQ(ingest->counters().placeholders, want.placeholders) << want.name;
  }
}

TEST(RecordingReplay, FillsAGapOfTheLiveRecording) {
  // The live recording without its messages 25 to 28, which the replay file has.
  const ScratchFolder folder;
  const std::string path = folder.file("gap.kvrec");
  const auto messages = testing::parse_kvrec(testing::read_test_file(kFolder + "default.kvrec"));
  ASSERT_TRUE(messages);
  {
    std::ofstream file(path, std::ios::binary);
    const auto number = [&file](std::uint32_t value) {
      for (int i = 0; i < 4; ++i) file.put(static_cast<char>(value >> (8 * i)));
    };
    for (std::size_t i = 0; i < messages->size(); ++i) {
      if (i > 25 && i < 29) continue;
      number(static_cast<std::uint32_t>((*messages)[i].size()));
      for (const auto& frame : (*messages)[i]) {
        number(static_cast<std::uint32_t>(frame.size()));
        for (const std::byte b : frame) file.put(static_cast<char>(b));
      }
    }
  }
  const auto run = [&](const std::string& live, const std::string& replay, EngineSessionCounters& counters) {
    PresenceBook book;
    auto source = RecordingSource::create({.path = live, .replay_path = replay});
    auto session = EngineSession::create(*std::move(source), {});
    for (std::vector<KvEvent> out; session->step(0ms, out); out.clear()) book.apply(out);
    counters = session->counters();
    return book.keys();
  };
  EngineSessionCounters whole, filled, lost;
  const auto expected = run(kFolder + "default.kvrec", "", whole);
  EXPECT_EQ(run(path, kFolder + "default.replay.kvrec", filled), expected);
  EXPECT_EQ(filled.gaps, 1u);
  EXPECT_EQ(filled.resyncs, 0u);
  const auto left = run(path, "", lost);
  EXPECT_EQ(lost.resyncs, 1u);
  EXPECT_EQ(lost.lost, 3u);
  EXPECT_TRUE(std::ranges::includes(expected, left));
}

// Whatever bytes arrive: no event that does not fit, and no block twice.
TEST(RecordingDamage, NeverConfusesTheBook) {
  Random random(11);
  for (const char* name : {"default", "evict", "offload-selfdescribing", "salt"}) {
    const auto payloads = testing::kvrec_payloads(kFolder + name + ".kvrec");
    for (int round = 0; round < 5; ++round) {
      auto ingest = EngineIngest::create({.max_waiting = 50});
      Indexed<index::RadixTree> sink;
      IndexFeeder feeder(sink, kRecordedWorker);
      PresenceBook book;
      book.strict_parents = false;
      for (std::vector<std::byte> payload : payloads) {
        const std::uint64_t flips = random.below(4);
        for (std::uint64_t i = 0; i < flips; ++i)
          payload[random.below(payload.size())] = static_cast<std::byte>(random.below(256));
        EngineBatch batch;
        if (!events::decode_engine_batch(payload, batch)) continue;
        std::vector<KvEvent> out;
        ingest->apply(batch, out);
        book.apply(out);
        feeder.apply(out);
        feeder.check_invariants();
        ASSERT_EQ(book.problem(), "") << name;
        ASSERT_EQ(book.present().size(), ingest->present());
        ASSERT_LE(sink.index.sizes().blocks, book.present().size());
        ASSERT_LE(ingest->waiting(), 100u * 4);
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::feed
