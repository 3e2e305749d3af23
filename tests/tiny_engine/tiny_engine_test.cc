// No wrong KV is ever served: the texts and logits of an engine over Ashlar are those of its model without a
// cache, bit for bit, wherever the blocks were meanwhile. As a control, one flipped bit changes the text.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <utility>

#include "support/rounds.h"
#include "tiny_engine/engine_fixture.h"

namespace tiny_engine::testing {
namespace {

using ashlar::ScratchFolder;

TEST(TinyEngineTest, SaysWhatTheModelSays) {
  EngineOptions options = small_engine();
  options.prefix_caching = false;
  const auto engine = make_engine(options);
  EXPECT_EQ(cached_tokens(serve(*engine, conversations(1, 12))), 0u);
  EXPECT_GT(engine->counters().computed_tokens, 600u);
}

// Each request alone, and all in one batch, in chunks of every size.
TEST(TinyEngineTest, LogitsDependNeitherOnBatchNorOnChunks) {
  for (const std::size_t step_tokens : {1u, 2u, 3u, 7u, 8u, 9u, 64u, 1000u}) {
    SCOPED_TRACE(step_tokens);
    if (!ashlar::testing::all_rounds() && step_tokens != 3 && step_tokens != 64) continue;
    for (const std::size_t together : {1u, 3u, 16u}) {
      EngineOptions options = small_engine(256);
      options.step_tokens = step_tokens;
      options.max_running = together;
      serve(*make_engine(options), conversations(2, 6));
    }
  }
}

TEST(TinyEngineTest, ReusesPrefixesOfFinishedAndRunningRequests) {
  const auto engine = make_engine(small_engine());
  const std::vector<Request> requests = conversations(3, 10);
  serve(*engine, requests);
  const std::uint64_t computed = engine->counters().computed_tokens;
  const std::vector<Reply> again = serve(*engine, requests);
  for (std::size_t i = 0; i < again.size(); ++i)
    EXPECT_EQ(again[i].cached_tokens, (requests[i].prompt.size() - 1) / 8 * 8)
        << "all full blocks but the last token";
  EXPECT_LT(engine->counters().computed_tokens - computed, computed);
}

TEST(TinyEngineTest, SurvivesEviction) {
  const auto engine = make_engine(small_engine(24));
  for (std::uint64_t round = 0; round < 4; ++round) serve(*engine, conversations(round % 2 + 4, 10));
  EXPECT_GT(engine->kv().status().g1.evictions, 20u);
}

// G1 holds two or three requests; eight want to run.
TEST(TinyEngineTest, PreemptedRequestsGoOnWhereTheyStopped) {
  for (const TierId lowest : {events::kTierId<events::G1>, events::kTierId<events::G2>}) {
    const ScratchFolder folder;
    const auto engine = make_engine(engine_down_to(lowest, folder.path(), 20));
    std::vector<Request> requests = conversations(6, 8);
    for (Request& request : requests) request.new_tokens = 60;
    serve(*engine, requests);
    EXPECT_GT(engine->counters().preemptions, 0u);
  }
}

TEST(TinyEngineTest, ForksShareWhatTheyHaveAndWriteTheirOwn) {
  const auto engine = make_engine(small_engine());
  std::vector<Request> requests = conversations(7, 4);
  for (Request& request : requests) request.samples = 4;
  requests[0].new_tokens = 1;
  serve(*engine, requests);
  EXPECT_GT(engine->counters().block_copies, 0u);
}

TEST(TinyEngineTest, TellsEveryTokenWhenItIsComputed) {
  const auto engine = make_engine(small_engine(20));
  std::vector<Request> requests = conversations(15, 8);
  for (Request& request : requests) request.samples = 2;
  std::map<std::pair<Engine::RequestId, std::size_t>, std::vector<Token>> said;
  std::vector<Engine::RequestId> ids;
  for (const Request& request : requests) ids.push_back(engine->submit(request).value());
  while (engine->step())
    for (const NewToken& token : engine->new_tokens())
      said[{token.request, token.sample}].push_back(token.token);
  EXPECT_GT(engine->counters().preemptions, 0u);
  for (const Engine::RequestId id : ids) {
    const std::vector<Reply> replies = engine->take(id);
    ASSERT_EQ(replies.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(text_of(said[{id, i}]), text_of(replies[i].tokens));
  }
}

// Between any two steps, whatever the request does at that time.
TEST(TinyEngineTest, AnAbortedRequestGivesItsBlocksBack) {
  const ScratchFolder folder;
  for (const TierId lowest : {events::kTierId<events::G1>, events::kTierId<events::G2>}) {
    const auto engine = make_engine(engine_down_to(lowest, folder.path(), 20));
    const std::size_t available = engine->kv().g1().status().available();
    for (int steps = 0; steps < 24; steps += 4) {
      std::vector<Request> requests = conversations(16, 6);
      std::vector<Engine::RequestId> ids;
      for (const Request& request : requests) ids.push_back(engine->submit(request).value());
      for (int i = 0; i < steps; ++i) engine->step();
      for (std::size_t i = 0; i < ids.size(); i += 2) engine->abort(ids[i]);
      engine->run();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::vector<Reply> replies = engine->take(ids[i]);
        if (i % 2 == 0) {
          EXPECT_TRUE(replies.empty());
        } else {
          expect_what_the_model_says(*engine, requests[i], replies);
        }
      }
      EXPECT_EQ(engine->running() + engine->waiting(), 0u);
      ASSERT_TRUE(engine->kv().drain());
      EXPECT_EQ(engine->kv().g1().status().available(), available);
    }
  }
}

TEST(TinyEngineTest, AResetWaitsForNoneOrPreemptsAll) {
  const ScratchFolder folder;
  for (const TierId lowest : {events::kTierId<events::G1>, events::kTierId<events::G2>}) {
    const auto engine = make_engine(engine_down_to(lowest, folder.path()));
    const std::vector<Request> requests = conversations(17, 6);
    std::vector<Engine::RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine->submit(request).value());
    for (int i = 0; i < 5; ++i) engine->step();
    ASSERT_GT(engine->running(), 0u);
    EXPECT_FALSE(engine->reset_prefix_cache());
    EXPECT_TRUE(engine->reset_prefix_cache(true));
    EXPECT_EQ(engine->kv().g1().status().reset, engine->kv().g1().status().total);
    engine->run();
    for (std::size_t i = 0; i < ids.size(); ++i)
      expect_what_the_model_says(*engine, requests[i], engine->take(ids[i]));
    EXPECT_TRUE(engine->reset_prefix_cache());
    EXPECT_EQ(cached_tokens(serve(*engine, {requests[0]})) > 0, lowest != events::kTierId<events::G1>);
  }
}

TEST(TinyEngineTest, TenantsShareNothing) {
  const auto engine = make_engine(small_engine());
  std::vector<Request> requests = conversations(8, 1);
  serve(*engine, requests);
  requests[0].tenant = "another";
  EXPECT_EQ(cached_tokens(serve(*engine, requests)), 0u);
  EXPECT_GT(cached_tokens(serve(*engine, requests)), 0u);
}

TEST(TinyEngineTest, RefusesWhatItCannotDo) {
  const auto engine = make_engine(small_engine(4));
  EXPECT_FALSE(engine->submit({.prompt = {}}));
  EXPECT_FALSE(engine->submit({.prompt = {Token(64)}}));
  EXPECT_FALSE(engine->submit({.prompt = {Token(1)}, .new_tokens = 0}));
  EXPECT_FALSE(engine->submit({.prompt = {Token(1)}, .samples = 0}));
  EngineOptions options = small_engine();
  options.ranks = 3;
  EXPECT_NE(Engine::create(options).error().to_string().find("4 heads"), std::string::npos);

  // Four blocks of eight tokens are too few for this one, and enough for the next.
  const auto too_long =
      engine->submit({.prompt = tokens_of("a prompt of 26 characters."), .new_tokens = 20}).value();
  const Request fits{.prompt = tokens_of("short"), .new_tokens = 20};
  const auto id = engine->submit(fits).value();
  engine->run();
  EXPECT_NE(engine->take(too_long).at(0).error.find("more blocks than G1 has"), std::string::npos);
  expect_what_the_model_says(*engine, fits, engine->take(id));
}

// ---- tiers

class TinyEngineTierTest : public ::testing::TestWithParam<TierId> {
 protected:
  // Everything above the tier is gone.
  static void empty_above(Engine& engine, TierId lowest) {
    for (std::uint32_t rank = 0; rank < engine.rank_count(); ++rank) {
      ASSERT_TRUE(engine.kv(rank).drain());
      ASSERT_TRUE(engine.kv(rank).reset(events::kTierId<events::G1>));
      if (lowest != events::kTierId<events::G2>) {
        ASSERT_TRUE(engine.kv(rank).reset(events::kTierId<events::G2>));
      }
    }
  }
  static std::uint64_t brought_up(Engine& engine, TierId tier, std::uint32_t rank = 0) {
    const tiers::KvStatus status = engine.kv(rank).status();
    return (tier == events::kTierId<events::G2>   ? status.g2
            : tier == events::kTierId<events::G3> ? status.g3
                                                  : status.g4)
        ->onboarded;
  }

  const ScratchFolder folder_;
};

TEST_P(TinyEngineTierTest, BlocksComeBackWhole) {
  const auto engine = make_engine(engine_down_to(GetParam(), folder_.path()));
  const std::vector<Request> requests = conversations(9, 10);
  serve(*engine, requests);
  empty_above(*engine, GetParam());
  EXPECT_GT(cached_tokens(serve(*engine, requests)), 0u);
  EXPECT_GT(brought_up(*engine, GetParam()), 0u);
}

TEST_P(TinyEngineTierTest, TwoRanksDoTheSame) {
  EngineOptions options = engine_down_to(GetParam(), folder_.path());
  options.ranks = 2;
  const auto engine = make_engine(options);
  const std::vector<Request> requests = conversations(10, 10);
  serve(*engine, requests);
  empty_above(*engine, GetParam());
  EXPECT_GT(cached_tokens(serve(*engine, requests)), 0u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_GT(brought_up(*engine, GetParam(), rank), 0u);
}

// One rank has lost its blocks, the other has not: the engine computes from where the poorer one ends.
TEST_P(TinyEngineTierTest, RanksNeedNotAgree) {
  EngineOptions options = engine_down_to(GetParam(), folder_.path());
  options.ranks = 2;
  const auto engine = make_engine(options);
  std::vector<Request> requests = conversations(11, 6);
  serve(*engine, requests);
  ASSERT_TRUE(engine->kv(1).drain());
  std::vector<tokens::SequenceHash> lost;
  for (const Request& request : requests) {
    const auto sequence = block::RequestSequence<G1>::create(engine->kv(1).g1(), request.prompt).value();
    if (!sequence.sequence_hashes().empty()) lost.push_back(sequence.sequence_hashes().back());
  }
  ASSERT_TRUE(engine->kv(1).reset_blocks(lost));
  EXPECT_GT(cached_tokens(serve(*engine, requests)), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tiers, TinyEngineTierTest,
                         ::testing::Values(events::kTierId<events::G2>, events::kTierId<events::G3>,
                                           events::kTierId<events::G4>),
                         [](const auto& tier) { return "G" + std::to_string(tier.param.value() + 1); });

TEST(TinyEngineTest, StartsWarmFromItsFile) {
  const ScratchFolder folder;
  const std::vector<Request> requests = conversations(12, 10);
  for (const std::uint32_t ranks : {1u, 2u}) {
    EngineOptions options =
        engine_down_to(events::kTierId<events::G3>, folder.path() + std::to_string(ranks));
    std::filesystem::create_directories(folder.path() + std::to_string(ranks));
    options.ranks = ranks;
    for (int life = 0; life < 3; ++life) {
      const auto engine = make_engine(options);
      serve(*engine, requests);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(engine->kv(rank).status().g3->onboarded > 0, life > 0);
        ASSERT_TRUE(engine->kv(rank).shutdown());
      }
    }
    std::filesystem::remove_all(folder.path() + std::to_string(ranks));
  }
}

// A fleet computes and goes; another, that has never seen the prompts, finds them on the volume.
TEST(TinyEngineTest, FleetsShareAVolume) {
  const ScratchFolder folder;
  EngineOptions options = engine_down_to(events::kTierId<events::G4>, folder.path());
  options.ranks = 2;
  const std::vector<Request> requests = conversations(13, 10);
  {
    const auto first = make_engine(options);
    serve(*first, requests);
    for (std::uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(first->kv(rank).shutdown());
  }
  const auto second = make_engine(options);
  EXPECT_GT(cached_tokens(serve(*second, requests)), 0u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_GT(second->kv(rank).status().g4->onboarded, 0u);
}

// The same among fleets that divide the model in different ways: a rank cuts its heads out of an object, or
// puts several together.
TEST(TinyEngineTest, FleetsOfDifferentDegreesShareAVolume) {
  const std::vector<Request> requests = conversations(14, 6);
  for (const std::uint32_t writers : {1u, 2u, 4u})
    for (const std::uint32_t readers : {1u, 2u, 4u}) {
      if (writers == readers) continue;
      SCOPED_TRACE(std::to_string(writers) + " to " + std::to_string(readers));
      const ScratchFolder folder;
      EngineOptions options = engine_down_to(events::kTierId<events::G4>, folder.path());
      options.ranks = writers;
      {
        const auto first = make_engine(options);
        serve(*first, requests);
        for (std::uint32_t rank = 0; rank < writers; ++rank) ASSERT_TRUE(first->kv(rank).shutdown());
      }
      options.ranks = readers;
      options.kv.g4->other_shards =
          layout::Shard::tensor_ranks(writers, options.model.heads, {0, options.model.layers}).value();
      const auto second = make_engine(options);
      EXPECT_GT(cached_tokens(serve(*second, requests)), 0u);
      for (std::uint32_t rank = 0; rank < readers; ++rank)
        EXPECT_GT(second->kv(rank).status().g4->onboarded, 0u);
    }
}

// ---- control

// One bit of one value of the first block in G1.
TEST(TinyEngineTest, OneFlippedBitChangesTheText) {
  const auto engine = make_engine(small_engine());
  const Request request{.prompt = tokens_of("One flipped bit changes what it says."), .new_tokens = 24};
  serve(*engine, {request});
  {
    auto reader = block::RequestSequence<G1>::create(engine->kv().g1(), request.prompt).value();
    ASSERT_EQ(reader.match_prefix().value(), 32u);
    *engine->tensors().row(1, reader.block_table()[0].value(), 1, 3, 2) ^= 0x4000;  // a bit of the exponent
  }
  const auto id = engine->submit(request).value();
  engine->run();
  const Reply reply = engine->take(id).at(0);
  EXPECT_EQ(reply.cached_tokens, 32u);
  EXPECT_NE(text_of(reply.tokens), text_of(engine->model().say(request.prompt, request.new_tokens).tokens));
}

// The same bit below G1 is a miss: the blocks are computed again.
TEST(TinyEngineTest, ABitFlippedOnAVolumeIsAMiss) {
  const ScratchFolder folder;
  const EngineOptions options = engine_down_to(events::kTierId<events::G4>, folder.path());
  const Request request{.prompt = tokens_of("A flipped bit below is found before it is read."),
                        .new_tokens = 24};
  {
    const auto engine = make_engine(options);
    serve(*engine, {request});
    ASSERT_TRUE(engine->kv().shutdown());
  }
  std::size_t flipped = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() + "/volume")) {
    if (!entry.is_regular_file() || entry.file_size() < 1000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(entry.file_size()) - 101;
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x40));
    ++flipped;
  }
  ASSERT_GT(flipped, 0u);
  const auto engine = make_engine(options);
  EXPECT_EQ(cached_tokens(serve(*engine, {request})), 0u);
  EXPECT_GT(engine->kv().status().g4->damaged, 0u);
}

}  // namespace
}  // namespace tiny_engine::testing
