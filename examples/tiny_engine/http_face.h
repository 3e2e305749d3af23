// HttpFace: the tiny engine behind HTTP, as `vllm serve` looks to a router: the endpoints of OpenAI and
// Anthropic, /tokenize, /metrics, data-parallel ranks, and KV events over ZeroMQ with replay.
//
//   HTTP threads ─▶ read the request ─▶ EngineLoop of a rank ─▶ tokens, as they are computed
//
// FaceFaults make it misbehave as engines do, for tests of routers.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ashlar/backend/http/http_server.h"
#include "ashlar/base/metrics.h"
#include "tiny_engine/api_forms.h"
#include "tiny_engine/engine_loop.h"

namespace tiny_engine {

// 0 or false: none. Streams and messages are counted from 1.
struct FaceFaults {
  std::uint64_t die_after = 0;         // the process ends in the middle of this stream
  std::uint64_t stall_after = 0;       // this stream says no more from its middle on
  std::uint64_t drop_event_every = 0;  // every so many messages one is not sent, though replay has it
  bool lie_usage = false;              // the cached tokens are wrong by a block
  bool no_tokenize = false;            // there is no /tokenize
};

struct FaceOptions {
  std::string host = "127.0.0.1";
  // 0: any free one. A data-parallel rank r has the ports of its events at + r.
  std::uint16_t port = 0;
  std::uint16_t events_port = 0;
  std::uint16_t replay_port = 0;
  std::size_t buffer_steps = 10'000;
  std::chrono::milliseconds late_events{0};
  std::uint32_t data_parallel = 1;  // engines, each with a cache of its own
  EngineOptions engine = {};        // of each; the model is set by the face
  std::uint64_t seed = 1;           // of the model
  std::uint32_t layers = 0;         // of the model; 0: as byte_model() says
  std::uint32_t hidden = 0;         // likewise
  ModelCard card = {};
  bool shows_cached_tokens = true;  // in usage
  bool renders = false;             // its render endpoints answer; else they are forbidden
  FaceFaults faults = {};
};

class HttpFace {
 public:
  // Errors: those of the engine and of the sockets.
  static Result<std::unique_ptr<HttpFace>> create(FaceOptions options);
  // Answers that are not sent yet are dropped; see drain().
  ~HttpFace();

  // Takes no more connections, and lets the answers in flight end, at most until then.
  void drain(ashlar::Clock::TimePoint until);

  std::uint16_t port() const noexcept { return server_->port(); }
  // By rank.
  std::vector<std::string> event_endpoints() const;
  std::vector<std::string> replay_endpoints() const;

 private:
  using Exchange = std::shared_ptr<ashlar::backend::http::HttpExchange>;
  struct Route;
  class Answer;
  class PromptClient;

  explicit HttpFace(FaceOptions options);
  Result<void> start();
  void handle(const Exchange& exchange);
  void generate(ApiForm form, const Exchange& exchange);
  void render(ApiForm form, const Exchange& exchange);
  void tokenize(const Exchange& exchange);
  void detokenize(const Exchange& exchange);
  void show_models(const Exchange& exchange);
  void show_metrics(const Exchange& exchange);
  void reset_prefix_cache(const Exchange& exchange);
  // The rank that the request names, or the least busy one. Errors: kInvalidArgument.
  Result<EngineLoop*> choose_rank(const Exchange& exchange);
  void keep_stalled(Exchange exchange);

  const FaceOptions options_;
  ashlar::MetricRegistry tier_metrics_;
  std::vector<std::unique_ptr<EngineLoop>> loops_;         // by rank
  std::vector<ashlar::MetricRegistration> registrations_;  // of their tiers
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> streams_{0};
  std::mutex stalled_mu_;
  std::vector<Exchange> stalled_;
  std::unique_ptr<ashlar::backend::http::HttpServer> server_;
};

}  // namespace tiny_engine
