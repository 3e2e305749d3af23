// ZeroMQ feeds: the engines' own format (engine:) and Ashlar's (zmq:).
#include "apps/ashlar/feed_kinds.h"
#include "ashlar/backend/zmq/zmq_batch_sink.h"
#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/backend/zmq/zmq_event_sink.h"
#include "ashlar/backend/zmq/zmq_source.h"

namespace ashlar::apps {
namespace {

using backend::zmq::EnginePublisher;
using backend::zmq::EnginePublisherOptions;
using backend::zmq::SubscriberOptions;
using backend::zmq::ZmqBatchSink;
using backend::zmq::ZmqEventSink;

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

EnginePublisherOptions publisher_of(const FeedAddress& address) {
  EnginePublisherOptions options;
  options.endpoint = endpoint_of(address.place());
  options.attach = backend::zmq::Attach::kBind;
  options.replay_endpoint = endpoint_of(address.text("replay"));
  return options;
}

}  // namespace

void add_zmq_feeds(FeedKinds& kinds) {
  kinds.add(
      "engine",
      "engine://HOST:PORT   an inference engine's ZeroMQ events; ?replay=HOST:PORT ?topic=; written: the "
      "same format",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        auto source = backend::zmq::ZmqEngineSource::create(subscriber_of(address));
        if (!source) return source.error();
        return OpenedSource{.engine = *std::move(source)};
      },
      [](const FeedAddress& address, const events::StreamId&,
         events::SnapshotSource&) -> Result<std::shared_ptr<events::BatchSink>> {
        const std::string topic = address.text("topic");
        auto publisher = EnginePublisher::create(publisher_of(address));
        if (!publisher) return publisher.error();
        return std::shared_ptr<events::BatchSink>(std::make_shared<ZmqEventSink>(
            std::shared_ptr<EnginePublisher>(*std::move(publisher)), ZmqEventSink::Options{.topic = topic}));
      });
  kinds.add(
      "zmq", "zmq://HOST:PORT      Ashlar's own batches over ZeroMQ; ?replay=HOST:PORT",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        auto source = backend::zmq::ZmqSource::create({.publishers = {subscriber_of(address)}});
        if (!source) return source.error();
        return OpenedSource{.stream = *std::move(source)};
      },
      [](const FeedAddress& address, const events::StreamId&,
         events::SnapshotSource& state) -> Result<std::shared_ptr<events::BatchSink>> {
        auto sink = ZmqBatchSink::create({.publisher = publisher_of(address)});
        if (!sink) return sink.error();
        (*sink)->serve_snapshots(&state);
        return std::shared_ptr<events::BatchSink>(*std::move(sink));
      });
}

}  // namespace ashlar::apps
