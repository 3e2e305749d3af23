// From the events of a worker to a router's index, in one process: EventManager, EventBus, StreamReceiver,
// IndexListener, FlashIndex.
#include <chrono>
#include <cstdio>
#include <vector>

#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/token_sequence.h"

using namespace ashlar;

int main() {
  const auto prompt = tokens::TokenSequence::create(std::vector<std::uint32_t>(64, 7), 16).value();

  // The router reads the bus.
  feed::EventBus bus;
  const auto subscription = bus.subscribe();
  index::FlashIndex index;
  index::SinkOf sink(index);
  feed::IndexListener listener(sink);
  feed::StreamReceiver receiver(*subscription, listener);

  // Worker 7 writes to it. It holds a block as long as it holds the block's handle.
  auto events = events::EventManager::create({.stream = {{events::WorkerId(7), 0}, 1}}).value();
  events->add_sink(bus.sink()).value();
  std::vector<events::PublishHandle> held;
  std::vector<tokens::LocalHash> request;
  for (const tokens::TokenBlock& block : prompt.blocks()) {
    events::KvEvent stored{.hash = block.sequence_hash()};
    stored.set_parent(block.parent());
    stored.set_local(block.local_hash());
    held.push_back(events->publish(stored));
    request.push_back(block.local_hash());
  }

  const auto ask = [&](const char* when) {
    events->flush(Clock::real().now() + std::chrono::seconds(10)).value();
    while (receiver.poll({}).value() != 0) continue;
    index::MatchScores scores;
    index.find_matches(request, scores);
    scores.for_each([&](const events::Worker& worker, const index::Score& score) {
      std::printf("%s: worker %u has %u of %zu blocks\n", when, static_cast<unsigned>(worker.id.value()),
                  score.depth, request.size());
    });
  };
  ask("after the prompt");
  held.pop_back();
  ask("after an eviction");
}
