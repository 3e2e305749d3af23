// EngineLoop: an engine that serves requests from other threads. A thread of its own computes step after step
// while there is work; requests join between two steps.
//
// The KV events of a step are published before its tokens reach the clients: a client that has its answer and
// asks again meets a router that knows. EngineLoopOptions::events.delay turns that round.
//
// Thread safety: thread-safe. Clients are called by the loop's thread, and must not block.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/metrics.h"
#include "tiny_engine/engine.h"
#include "tiny_engine/vllm_events.h"

namespace tiny_engine {

struct EngineLoopOptions {
  EngineOptions engine = {};
  ashlar::backend::zmq::EnginePublisherOptions sockets = {};
  VllmEventOptions events = {};
};

// Who waits for a reply.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  // Asked between steps: a request whose client is gone is aborted, and on_end() is not called.
  virtual bool is_gone() const = 0;
  virtual void on_token(std::size_t sample, Token token, std::size_t cached_tokens) = 0;
  // By sample, once.
  virtual void on_end(std::vector<Reply> replies) = 0;
};

// Of one engine, as of its last step.
struct LoopGauges {
  std::size_t running = 0;
  std::size_t waiting = 0;
  std::uint64_t prompt_tokens = 0;  // of all requests so far
  std::uint64_t cached_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t finished = 0;
  std::uint64_t aborted = 0;  // their clients had left
};

class EngineLoop {
 public:
  // Errors: those of Engine::create() and VllmEvents::create().
  static Result<std::unique_ptr<EngineLoop>> create(EngineLoopOptions options);
  ~EngineLoop();
  // Ends the thread. Requests that are not answered yet are dropped, and so are later ones; their clients
  // hear no more.
  void stop();

  // A request that the engine refuses ends with an error in its reply.
  void submit(Request request, std::shared_ptr<LoopClient> client);
  // Engine::reset_prefix_cache() between two steps; `done` hears what it returned, when it is announced.
  void reset_prefix_cache(bool preempt, std::function<void(bool)> done);

  // Requests that are not answered yet.
  std::size_t load() const noexcept { return load_.load(); }
  LoopGauges gauges() const;
  // The tiers of every rank (KvBlockManager::add_metrics()), labelled `engine`. Drop them before the loop.
  Result<std::vector<ashlar::MetricRegistration>> add_metrics(ashlar::MetricRegistry& metrics,
                                                              const std::string& engine) const;
  const std::string& events_endpoint() const noexcept { return events_->publisher().endpoint(); }
  const std::string& replay_endpoint() const noexcept { return events_->publisher().replay_endpoint(); }

 private:
  struct Reset {
    bool preempt;
    std::function<void(bool)> done;
  };
  struct Submitted {
    Request request;
    std::shared_ptr<LoopClient> client;
  };
  using Clients = std::unordered_map<Engine::RequestId, std::shared_ptr<LoopClient>>;

  EngineLoop(std::unique_ptr<Engine> engine, std::unique_ptr<VllmEvents> events);
  void run();
  // Takes what others asked for; waits for it while there is nothing to do. False: stop.
  bool take(std::vector<Submitted>& submitted, std::vector<Reset>& resets);
  void admit(Submitted& submitted);
  void drop_gone_clients();
  void publish_events();
  void collect_replies();
  void deliver();
  void note_gauges();

  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<VllmEvents> events_;
  // Of the loop's thread.
  Clients clients_;
  std::vector<std::pair<Engine::RequestId, std::vector<Reply>>> ended_;  // in the last step
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t aborted_ = 0;

  std::atomic<std::size_t> load_{0};
  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<Submitted> submitted_;
  std::vector<Reset> resets_;
  LoopGauges gauges_;
  std::thread thread_;
};

}  // namespace tiny_engine
