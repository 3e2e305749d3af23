#include <memory>
#include <utility>

#include "apps/ashlar/engine_sources.h"
#include "ashlar/backend/zmq/zmq_engine_source.h"

namespace ashlar::apps {

service::EngineSourceFactory engine_sources() {
  return [](const service::EngineEndpoint& endpoint) -> Result<std::unique_ptr<feed::EngineSource>> {
    backend::zmq::SubscriberOptions options;
    options.endpoint = endpoint.events;
    options.replay_endpoint = endpoint.replay;
    options.topic = endpoint.topic;
    // An engine that restarts is back within a second; so is its stream.
    options.reconnect_max = std::chrono::milliseconds(500);
    ASHLAR_TRY(auto source, backend::zmq::ZmqEngineSource::create(std::move(options)));
    return std::unique_ptr<feed::EngineSource>(std::move(source));
  };
}

}  // namespace ashlar::apps
