// A router that listens to vLLM listens to the tiny engine: over sockets, in vLLM's format, to an index whose
// depths are what the engine holds in each tier.
#include <gtest/gtest.h>

#include <chrono>

#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/token_sequence.h"
#include "tiny_engine/engine_fixture.h"
#include "tiny_engine/vllm_events.h"

namespace tiny_engine::testing {
namespace {

using namespace std::chrono_literals;
using Depths = std::array<std::uint32_t, events::kStorageTiers>;

// A router that begins to listen when it is made.
class Router {
 public:
  explicit Router(backend::zmq::EnginePublisher& publisher)
      : session_(feed::EngineSession::create(
                     backend::zmq::ZmqEngineSource::create(
                         {.endpoint = publisher.endpoint(), .replay_endpoint = publisher.replay_endpoint()})
                         .value(),
                     {.ingest = {.worker = kWorker}})
                     .value()) {}

  // Listens until it has applied every message that was published.
  void catch_up(const backend::zmq::EnginePublisher& publisher) {
    const auto last = Clock::real().now() + 60s;
    while (session_.counters().applied < publisher.stats().published) {
      ASSERT_LT(Clock::real().now(), last)
          << session_.counters().applied << " of " << publisher.stats().published << " messages";
      std::vector<events::KvEvent> events;
      (void)session_.step(10ms, events);  // not connected yet, perhaps
      feeder_.apply(events);
    }
  }
  // The blocks of a prompt, each counted in its fastest tier.
  Depths depths(const std::vector<Token>& prompt) {
    std::vector<tokens::LocalHash> locals;
    const auto text = tokens::TokenSequence::create(prompt, 8).value();
    for (const tokens::TokenBlock& block : text.blocks()) locals.push_back(block.local_hash());
    index::MatchScores scores;
    index_.find_matches(locals, scores);
    Depths found{};
    scores.for_each([&](const events::Worker&, const index::Score& score) { found = score.blocks; });
    return found;
  }

 private:
  static constexpr events::WorkerId kWorker{7};
  feed::EngineSession session_;
  index::FlashIndex index_;
  index::SinkOf<index::FlashIndex> sink_{index_};
  feed::IndexFeeder feeder_{sink_, kWorker};
};

// The same from the tiers themselves.
Depths held(Engine& engine, const std::vector<Token>& prompt) {
  const auto text = tokens::TokenSequence::create(prompt, 8).value();
  std::vector<tokens::SequenceHash> hashes;
  for (const tokens::TokenBlock& block : text.blocks()) hashes.push_back(block.sequence_hash());
  Depths found{};
  for (const tiers::TierRun& run : engine.kv().find(hashes))
    found[run.tier.value()] += static_cast<std::uint32_t>(run.count);
  return found;
}

TEST(VllmEventsTest, ARouterKnowsWhatTheEngineHolds) {
  const ScratchFolder folder;
  EngineOptions options = engine_down_to(events::kTierId<events::G3>, folder.path(), 40);
  options.kv.event_capacity = 4096;
  const auto engine = make_engine(options);
  const auto events = VllmEvents::create(*engine, {.endpoint = "ipc://" + folder.file("events"),
                                                   .replay_endpoint = "ipc://" + folder.file("replay")})
                          .value();
  Router router(events->publisher());
  const std::vector<Request> requests = conversations(20, 12);
  const auto expect_all_known = [&](Router& by) {
    ASSERT_TRUE(engine->kv().drain());
    ASSERT_TRUE(events->flush(Clock::real().now() + 30s));
    ASSERT_TRUE(events->publisher().flush(30s));
    by.catch_up(events->publisher());
    for (const Request& request : requests)
      EXPECT_EQ(by.depths(request.prompt), held(*engine, request.prompt)) << text_of(request.prompt);
  };
  serve(*engine, requests);
  expect_all_known(router);
  EXPECT_GT(engine->kv().status().g1.evictions, 0u);
  engine->kv().reset(events::kTierId<events::G1>).value();
  expect_all_known(router);
  serve(*engine, requests);
  expect_all_known(router);
  Router late(events->publisher());
  expect_all_known(late);
}

}  // namespace
}  // namespace tiny_engine::testing
