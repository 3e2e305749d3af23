// From the socket of an inference engine to a router's index. A recording stands in for the socket.
#include <chrono>
#include <cstdio>
#include <utility>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/flash_index.h"

using namespace ashlar;

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: engine_to_index RECORDING\n");
    return 1;
  }
  const events::WorkerId worker(7);
  // Of an engine that runs: backend::zmq::ZmqEngineSource::create(options).value()
  auto source = feed::RecordingSource::create({.path = arguments[1]}).value();
  auto session = feed::EngineSession::create(std::move(source), {.ingest = {.worker = worker}}).value();

  index::FlashIndex index;
  index::SinkOf sink(index);
  feed::IndexFeeder feeder(sink, worker);
  feed::IndexChanges changes;
  while (session.step(std::chrono::milliseconds(100), changes)) {  // fails at the end of the recording
    feeder.apply(changes);
    changes.clear();
  }
  std::printf("%llu blocks stored, %llu removed, %zu in the index\n",
              static_cast<unsigned long long>(feeder.counters().stored_blocks),
              static_cast<unsigned long long>(feeder.counters().removed_blocks), index.sizes().blocks);
}
