// VllmEvents: publishes what an engine holds as vLLM does: msgpack batches on a PUB socket, and the last ones
// again from a replay socket. Any router that listens to vLLM can listen to it.
//
// The first rank speaks for all, as the scheduler of vLLM does.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/backend/zmq/zmq_event_sink.h"
#include "ashlar/events/event_manager.h"
#include "tiny_engine/engine.h"

namespace tiny_engine {

struct VllmEventOptions {
  std::uint32_t data_parallel_rank = 0;
  std::chrono::milliseconds delay{0};  // of every message, for tests of routers
};

class VllmEvents {
 public:
  // The engine must have been made with KvOptions::event_capacity, and must outlive this. Errors: those of
  // the sockets; kNotReady: no event_capacity.
  static Result<std::unique_ptr<VllmEvents>> create(Engine& engine,
                                                    ashlar::backend::zmq::EnginePublisherOptions sockets,
                                                    const VllmEventOptions& options = {}) {
    namespace zmq = ashlar::backend::zmq;
    ASHLAR_TRY(std::shared_ptr<zmq::EnginePublisher> publisher,
               zmq::EnginePublisher::create(std::move(sockets)));
    ashlar::events::EventManagerOptions manager;
    manager.stream.worker.rank = options.data_parallel_rank;
    manager.keys.block_size = engine.block_size();
    ASHLAR_TRY(auto events, ashlar::events::EventManager::create(manager));
    auto sink = std::make_shared<Sink>(
        std::make_unique<zmq::ZmqEventSink>(
            publisher, zmq::ZmqEventSink::Options{
                           .tokens_of = [&engine](const auto& hash) { return engine.tokens_of_block(hash); },
                           .salt_of = [&engine](const auto& hash) { return engine.tenant_of_block(hash); }}),
        manager.stream, options.delay);
    ASHLAR_RETURN_IF_ERROR(events->add_sink(sink));
    ASHLAR_RETURN_IF_ERROR(engine.kv().attach_events(*events));
    return std::unique_ptr<VllmEvents>(
        new VllmEvents(engine, std::move(publisher), std::move(sink), std::move(events)));
  }
  VllmEvents(const VllmEvents&) = delete;
  VllmEvents& operator=(const VllmEvents&) = delete;
  ~VllmEvents() { engine_.kv().detach_events(); }

  ashlar::backend::zmq::EnginePublisher& publisher() noexcept { return *publisher_; }
  // Waits until everything so far is published; with a delay, until it is handed to the wait. Errors:
  // kTimeout.
  Result<void> flush(ashlar::Clock::TimePoint until) { return events_->flush(until); }

  // Calls `reset`, which empties G1, and announces it as vLLM does: by one AllBlocksCleared in place of a
  // removal for every block. Returns what `reset` does; false: it changed nothing. Errors: kTimeout.
  template <class Reset>
  Result<bool> clear(ashlar::Clock::TimePoint until, const Reset& reset) {
    ASHLAR_RETURN_IF_ERROR(flush(until));
    sink_->hide_removals(true);
    const bool done = reset();
    Result<void> flushed = flush(until);
    sink_->hide_removals(false);
    if (!flushed) return flushed.error();
    if (done) ASHLAR_RETURN_IF_ERROR(sink_->announce_clear());
    return done;
  }

 private:
  // Between the manager and the socket: leaves out the removals of a clear, and lets messages wait.
  class Sink final : public ashlar::events::BatchSink {
   public:
    Sink(std::unique_ptr<ashlar::backend::zmq::ZmqEventSink> next, const ashlar::events::StreamId& stream,
         std::chrono::milliseconds delay)
        : next_(std::move(next)), delay_(delay) {
      last_.stream = stream;
      if (delay_.count() > 0) thread_ = std::thread([this] { send_when_due(); });
    }
    ~Sink() override {
      {
        const std::lock_guard lock(mu_);
        stopping_ = true;
      }
      changed_.notify_one();
      if (thread_.joinable()) thread_.join();
    }

    Result<void> publish(const ashlar::events::EventBatch& batch) override {
      const std::lock_guard lock(mu_);
      auto owned = ashlar::events::OwnedBatch::of(batch);
      if (hides_removals_)
        std::erase_if(owned.events, [](const ashlar::events::KvEvent& event) {
          return event.kind == ashlar::events::KvEventKind::kRemoved &&
                 event.tier == ashlar::events::kTierId<G1>;
        });
      last_ = owned.head;
      return pass_on(std::move(owned));
    }
    std::string describe() const override { return next_->describe(); }

    void hide_removals(bool hides) {
      const std::lock_guard lock(mu_);
      hides_removals_ = hides;
    }
    Result<void> announce_clear() {
      const std::lock_guard lock(mu_);
      ashlar::events::OwnedBatch cleared{.head = last_, .events = {}, .locations = {}};
      cleared.head.kind = ashlar::events::BatchKind::kEvents;
      cleared.head.published_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                      std::chrono::system_clock::now().time_since_epoch())
                                      .count();
      cleared.events.emplace_back();
      cleared.events.back().kind = ashlar::events::KvEventKind::kCleared;
      cleared.events.back().tier = ashlar::events::kTierId<G1>;
      return pass_on(std::move(cleared));
    }

   private:
    using Time = std::chrono::steady_clock::time_point;

    Result<void> pass_on(ashlar::events::OwnedBatch batch) {
      if (delay_.count() == 0) return next_->publish(batch.view());
      waiting_.emplace_back(std::chrono::steady_clock::now() + delay_, std::move(batch));
      changed_.notify_one();
      return {};
    }
    void send_when_due() {
      std::unique_lock lock(mu_);
      while (!stopping_) {
        if (waiting_.empty()) {
          changed_.wait(lock);
        } else if (const Time due = waiting_.front().first; std::chrono::steady_clock::now() < due) {
          changed_.wait_until(lock, due);
        } else if (next_->publish(waiting_.front().second.view())) {
          waiting_.pop_front();
        }
      }
    }

    const std::unique_ptr<ashlar::backend::zmq::ZmqEventSink> next_;
    const std::chrono::milliseconds delay_;
    std::mutex mu_;
    std::condition_variable changed_;
    bool hides_removals_ = false;
    bool stopping_ = false;
    ashlar::events::EventBatch last_ = {};  // the head of the last batch
    std::deque<std::pair<Time, ashlar::events::OwnedBatch>> waiting_;
    std::thread thread_;
  };

  VllmEvents(Engine& engine, std::shared_ptr<ashlar::backend::zmq::EnginePublisher> publisher,
             std::shared_ptr<Sink> sink, std::unique_ptr<ashlar::events::EventManager> events)
      : engine_(engine),
        publisher_(std::move(publisher)),
        sink_(std::move(sink)),
        events_(std::move(events)) {}

  Engine& engine_;
  std::shared_ptr<ashlar::backend::zmq::EnginePublisher> publisher_;
  std::shared_ptr<Sink> sink_;
  std::unique_ptr<ashlar::events::EventManager> events_;
};

}  // namespace tiny_engine
