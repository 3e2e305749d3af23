#include "ashlar/backend/http/http_proxy.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/log.h"
#include "backend/http/proxy_session.h"
#include "backend/http/server_loops.h"

namespace ashlar::backend::http {

namespace {

// A body beyond what all may have would be refused only once it is read that far.
HttpProxyOptions with_reachable_bodies(HttpProxyOptions options) {
  options.limits.body_bytes =
      std::min(options.limits.body_bytes, BodyBudget::largest_body(options.limits.all_body_bytes));
  return options;
}

// Null: clients speak without TLS.
Result<std::shared_ptr<const TlsContext>> server_context(const HttpProxyOptions& options) {
  if (options.tls.certificate.empty() && options.tls.key.empty()) return std::shared_ptr<const TlsContext>();
  return TlsContext::for_server(options.tls);
}

class AsioHttpProxy final : public HttpProxy {
 public:
  AsioHttpProxy(const HttpProxyOptions& options, service::Gateway& gateway,
                std::unique_ptr<ServerLoops> loops, std::shared_ptr<const TlsContext> server_tls,
                const std::shared_ptr<WorkerTls>& worker_tls)
      : options_(with_reachable_bodies(options)),
        gateway_(gateway),
        tls_(std::move(server_tls)),
        budget_(options.limits.all_body_bytes),
        replies_(options.limits.all_reply_bytes),
        check_([&gateway](const MessageHead& head) {
          return gateway.refuse_head(
              {.method = head.method, .target = head.target, .headers = head.headers, .body = {}});
        }),
        loops_(std::move(loops)) {
    for (unsigned i = 0; i < loops_->size(); ++i)
      shared_.push_back(
          std::make_unique<ProxyLoop>(loops_->loop(i), replies_, answers_, options_, worker_tls));
  }
  ~AsioHttpProxy() override { stop(); }

  Result<void> start() {
    loops_->loop(0).post([this] { run_errands(); });
    return loops_->start([this](unsigned loop, int fd) { serve(*shared_[loop], fd); });
  }

  std::uint16_t port() const noexcept override { return loops_->port(); }

  HttpProxyCounters counters() const override {
    HttpProxyCounters out;
    out.accepted = loops_->accepted_connections();
    out.refused = loops_->refused_connections();
    out.open_connections = static_cast<std::int64_t>(loops_->open_connections());
    out.open_passages = loops_->open_answers();
    out.body_bytes = budget_.held();
    out.refused_bodies = budget_.refusals();
    out.reply_bytes = replies_.held();
    out.refused_replies = replies_.refusals();
    out.answer_bytes = answers_.held();
    for (const auto& one : shared_) {
      out.bad_requests += one->bad_requests.load(std::memory_order_relaxed);
      out.requests += one->requests.load(std::memory_order_relaxed);
      out.worker_connections += one->worker_connections.load(std::memory_order_relaxed);
      out.client_aborts += one->client_aborts.load(std::memory_order_relaxed);
    }
    return out;
  }

  void drain(Clock::TimePoint until) override {
    gateway_.drain();
    loops_->stop_accepting();
    loops_->wait_idle(until);
    stop();
  }

 private:
  void stop() {
    loops_->stop([this](unsigned loop) { shared_[loop]->pool.close(); });
  }

  Detached serve(ProxyLoop& shared, int fd) {
    try {
      ProxySession session(shared, *loops_, gateway_, fd, {options_.limits, &budget_, &check_}, tls_.get());
      co_await session.run();
    } catch (const std::exception& error) {
      ASHLAR_LOG(LogLevel::kError, "http", "a connection is closed: %s", error.what());
    }
    loops_->connection_closed();
  }

  // On the first loop, until it stops.
  Detached run_errands() {
    EventWaiter waiter(loops_->loop(0));
    for (;;) {
      Clock::Duration pause = service::Gateway::Due().pause;
      try {
        service::Gateway::Due due = gateway_.due();
        pause = due.pause;
        for (service::Errand& errand : due.errands) start_errand(std::move(errand));
      } catch (const std::exception& error) {
        ASHLAR_LOG(LogLevel::kError, "http", "errands are put off: %s", error.what());
      }
      if ((co_await waiter.wait(0, IoLoop::after(pause)) & kStopped) != 0) co_return;
    }
  }

  // The gateway is told of every errand: it asks nothing twice before.
  void start_errand(service::Errand errand) {
    const std::uint64_t number = errand.number;
    try {
      run_errand(std::move(errand));
    } catch (const std::exception& error) {
      ASHLAR_LOG(LogLevel::kError, "http", "an errand cannot be started: %s", error.what());
      tell(number, std::nullopt);
    }
  }

  Detached run_errand(service::Errand errand) {
    ProxyLoop& shared = *shared_[0];
    std::optional<Result<service::Answer>> answer;
    try {
      EventWaiter waiter(shared.loop);
      Asked asked = co_await ask_worker(shared.loop, shared.pool, waiter, 0, errand.ask);
      answer = std::move(asked.answer);
    } catch (const std::exception& error) {
      ASHLAR_LOG(LogLevel::kError, "http", "an errand fails: %s", error.what());
    }
    tell(errand.number, std::move(answer));
  }

  // Nothing: it could not be asked.
  void tell(std::uint64_t number, std::optional<Result<service::Answer>> answer) noexcept {
    try {
      if (!answer) answer = make_error(ErrorCode::kIo, "the question could not be asked");
      gateway_.told(number, *std::move(answer));
    } catch (const std::exception& error) {
      ASHLAR_LOG(LogLevel::kError, "http", "an answer is dropped: %s", error.what());
    }
  }

  const HttpProxyOptions options_;
  service::Gateway& gateway_;
  const std::shared_ptr<const TlsContext> tls_;
  BodyBudget budget_;
  ReplyBudget replies_;
  HeldBytes answers_;
  const HeadCheck check_;
  const std::unique_ptr<ServerLoops> loops_;
  std::vector<std::unique_ptr<ProxyLoop>> shared_;  // one per loop
};

}  // namespace

Result<void> HttpProxy::check(const HttpProxyOptions& options) {
  ASHLAR_RETURN_IF_ERROR(server_context(options));
  ASHLAR_RETURN_IF_ERROR(WorkerTls::create(options.worker_authorities));
  return {};
}

Result<std::unique_ptr<HttpProxy>> HttpProxy::create(const HttpProxyOptions& options,
                                                     service::Gateway& gateway) {
  ASHLAR_TRY(const std::shared_ptr<const TlsContext> server_tls, server_context(options));
  ASHLAR_TRY(const auto worker_tls, WorkerTls::create(options.worker_authorities));
  ASHLAR_TRY(auto loops, ServerLoops::create({.address = options.address,
                                              .port = options.port,
                                              .threads = options.threads,
                                              .connections = options.limits.connections,
                                              .write_timeout = options.limits.write_timeout}));
  auto proxy = std::make_unique<AsioHttpProxy>(options, gateway, std::move(loops), server_tls, worker_tls);
  ASHLAR_RETURN_IF_ERROR(proxy->start());
  return std::unique_ptr<HttpProxy>(std::move(proxy));
}

}  // namespace ashlar::backend::http
