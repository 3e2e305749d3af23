// VllmEvents: publishes what an engine holds as vLLM does: msgpack batches on a PUB socket, and the last ones
// again from a replay socket. Any router that listens to vLLM can listen to it.
//
// The first rank speaks for all, as the scheduler of vLLM does.
//
// Thread safety: thread-compatible.
#pragma once

#include <memory>
#include <utility>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/backend/zmq/zmq_event_sink.h"
#include "ashlar/events/event_manager.h"
#include "tiny_engine/engine.h"

namespace tiny_engine {

class VllmEvents {
 public:
  // The engine must have been made with KvOptions::event_capacity, and must outlive this. Errors: those of
  // the sockets; kNotReady: no event_capacity.
  static Result<std::unique_ptr<VllmEvents>> create(Engine& engine,
                                                    ashlar::backend::zmq::EnginePublisherOptions sockets) {
    namespace zmq = ashlar::backend::zmq;
    ASHLAR_TRY(std::shared_ptr<zmq::EnginePublisher> publisher,
               zmq::EnginePublisher::create(std::move(sockets)));
    ashlar::events::StreamKeys keys;
    keys.block_size = engine.block_size();
    ASHLAR_TRY(auto events, ashlar::events::EventManager::create({.keys = keys}));
    ASHLAR_RETURN_IF_ERROR(events->add_sink(std::make_shared<zmq::ZmqEventSink>(
        publisher, zmq::ZmqEventSink::Options{
                       .tokens_of = [&engine](const auto& hash) { return engine.tokens_of_block(hash); }})));
    ASHLAR_RETURN_IF_ERROR(engine.kv().attach_events(*events));
    return std::unique_ptr<VllmEvents>(new VllmEvents(engine, std::move(publisher), std::move(events)));
  }
  VllmEvents(const VllmEvents&) = delete;
  VllmEvents& operator=(const VllmEvents&) = delete;
  ~VllmEvents() { engine_.kv().detach_events(); }

  ashlar::backend::zmq::EnginePublisher& publisher() noexcept { return *publisher_; }
  // Waits until everything so far is published. Errors: kTimeout.
  Result<void> flush(ashlar::Clock::TimePoint until) { return events_->flush(until); }

 private:
  VllmEvents(Engine& engine, std::shared_ptr<ashlar::backend::zmq::EnginePublisher> publisher,
             std::unique_ptr<ashlar::events::EventManager> events)
      : engine_(engine), publisher_(std::move(publisher)), events_(std::move(events)) {}

  Engine& engine_;
  std::shared_ptr<ashlar::backend::zmq::EnginePublisher> publisher_;
  std::unique_ptr<ashlar::events::EventManager> events_;
};

}  // namespace tiny_engine
