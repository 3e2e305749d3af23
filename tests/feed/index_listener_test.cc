// IndexListener: from the events of managers, over a bus, to what an index answers.
#include "ashlar/feed/index_feeder.h"

#include <gtest/gtest.h>

#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/index/make_index.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/tokens/token_sequence.h"

namespace ashlar::feed {
namespace {

using events::EventManager;
using events::G1;
using events::Worker;
using events::WorkerId;

tokens::TokenSequence prompt(std::uint32_t first, std::size_t blocks) {
  std::vector<tokens::Token> tokens;
  for (std::size_t i = 0; i < blocks * 4; ++i)
    tokens.push_back(tokens::Token(first + static_cast<std::uint32_t>(i)));
  return tokens::TokenSequence::create(tokens, 4).value();
}

// An engine: a manager of blocks that tells its events.
struct Engine {
  Engine(EventBus& bus, const Worker& worker, std::uint64_t incarnation)
      : log(testing::make_event_log()),
        events(EventManager::create({.stream = {worker, incarnation}}).value()) {
    auto options = testing::manager_options(16);
    options.events = log;
    manager.emplace(testing::make_manager<G1>(options));
    EXPECT_TRUE(events->add_sink(bus.sink()));
    EXPECT_TRUE(events->add_source(
        log, [this](std::vector<events::KvEvent>& out) { return manager->list_stored(out); }));
  }
  ~Engine() { EXPECT_TRUE(events->remove_source(log)); }

  std::shared_ptr<events::EventLog> log;
  std::optional<block::BlockManager<G1>> manager;
  std::unique_ptr<EventManager> events;
};

TEST(IndexListenerTest, AnIndexAnswersWhatManagersHold) {
  EventBus bus;
  const auto subscription = bus.subscribe();
  const auto index = index::make_index({}).value();
  IndexListener listener(*index);
  StreamReceiver receiver(*subscription, listener);
  const Worker worker{WorkerId(3), 1};
  const auto depth_of = [&](const tokens::TokenSequence& sequence) {
    std::vector<tokens::LocalHash> locals;
    for (const tokens::TokenBlock& block : sequence.blocks()) locals.push_back(block.local_hash());
    index::MatchScores scores;
    index->find_matches(locals, scores, {});
    const auto score = scores.of(worker);
    return score ? score->depth : 0u;
  };
  const auto settle = [&](Engine& engine) {
    ASSERT_TRUE(engine.events->flush(Clock::real().now() + std::chrono::seconds(30)));
    while (*receiver.poll({}) != 0) {
    }
    listener.check_invariants();
  };
  auto engine = std::make_unique<Engine>(bus, worker, 1);
  {
    const auto held = testing::fill(*engine->manager, prompt(0, 6));
    settle(*engine);
    EXPECT_EQ(depth_of(prompt(0, 6)), 6u);
    EXPECT_EQ(depth_of(prompt(100, 3)), 0u);
  }
  {
    const auto held = testing::fill(*engine->manager, prompt(100, 12));  // evicts some of the first
    settle(*engine);
    EXPECT_EQ(depth_of(prompt(100, 12)), 12u);
    EXPECT_LT(depth_of(prompt(0, 6)), 6u);
  }
  ASSERT_NE(listener.counters(worker), nullptr);
  EXPECT_EQ(listener.counters(worker)->without_local, 0u);
  engine.reset();
  engine = std::make_unique<Engine>(bus, worker, 2);
  const auto held = testing::fill(*engine->manager, prompt(200, 2));
  settle(*engine);
  EXPECT_EQ(depth_of(prompt(100, 12)), 0u) << "of its old life";
  EXPECT_EQ(depth_of(prompt(200, 2)), 2u);
}

}  // namespace
}  // namespace ashlar::feed
