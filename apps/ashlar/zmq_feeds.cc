// ZeroMQ feeds: the engines' own format (engine:) and Ashlar's (zmq:).
#include <cstdlib>

#include "apps/ashlar/feed_kinds.h"
#include "ashlar/backend/zmq/zmq_batch_sink.h"
#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/backend/zmq/zmq_source.h"

namespace ashlar::apps {
namespace {

using backend::zmq::EnginePublisherOptions;
using backend::zmq::SubscriberOptions;
using backend::zmq::ZmqBatchSink;

// A host and port, or an address as ZeroMQ has it, such as ipc:///tmp/x.
std::string endpoint_of(const std::string& place) {
  return place.empty() || place.find("://") != std::string::npos ? place : "tcp://" + place;
}

SubscriberOptions subscriber_of(const FeedAddress& address) {
  SubscriberOptions options;
  options.endpoint = endpoint_of(address.place());
  options.replay_endpoint = endpoint_of(address.text("replay"));
  options.topic = address.text("topic");
  return options;
}

// A rank has ports of its own, as with engines: the one that is named, plus the rank.
std::string for_rank(std::string endpoint, std::uint32_t rank) {
  const std::size_t colon = endpoint.rfind(':');
  if (rank == 0 || !endpoint.starts_with("tcp://")) return endpoint;
  const unsigned long port = std::strtoul(endpoint.c_str() + colon + 1, nullptr, 10);
  if (port == 0) return endpoint;
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

EnginePublisherOptions publisher_of(const FeedAddress& address, const events::StreamId& stream) {
  EnginePublisherOptions options;
  options.endpoint = for_rank(endpoint_of(address.place()), stream.worker.rank);
  options.attach = backend::zmq::Attach::kBind;
  options.replay_endpoint = for_rank(endpoint_of(address.text("replay")), stream.worker.rank);
  return options;
}

}  // namespace

void add_zmq_feeds(FeedKinds& kinds) {
  // Streams have no tokens, and who listens to engines knows blocks by their tokens: nothing is written in that format here.
  kinds.add(
      "engine",
      "engine://HOST:PORT   an inference engine's ZeroMQ events (source only); ?replay=HOST:PORT ?topic=",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        auto source = backend::zmq::ZmqEngineSource::create(subscriber_of(address));
        if (!source) return source.error();
        return OpenedSource{.engine = *std::move(source)};
      },
      {});
  kinds.add(
      "zmq",
      "zmq://HOST:PORT      Ashlar's own batches over ZeroMQ; ?replay=HOST:PORT; written for one worker, "
      "whose rank\n"
      "                       is added to the ports",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        auto source = backend::zmq::ZmqSource::create({.publishers = {subscriber_of(address)}});
        if (!source) return source.error();
        return OpenedSource{.stream = *std::move(source)};
      },
      [](const FeedAddress& address, const events::StreamId& stream,
         events::SnapshotSource& state) -> Result<std::shared_ptr<events::BatchSink>> {
        auto sink = ZmqBatchSink::create({.publisher = publisher_of(address, stream)});
        if (!sink) return sink.error();
        (*sink)->serve_snapshots(&state);
        return std::shared_ptr<events::BatchSink>(*std::move(sink));
      });
}

}  // namespace ashlar::apps
