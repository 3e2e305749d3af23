// A connection is one coroutine: read a request, call the handler, send what it answers. Answers come from
// any thread into the exchange's outbox, and the connection's loop is woken once for all that came meanwhile.
#include "ashlar/backend/http/http_server.h"

#include <atomic>
#include <cstdio>
#include <exception>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"
#include "backend/http/client_connection.h"
#include "backend/http/server_loops.h"

namespace ashlar::backend::http {

namespace {

// Shared by the handler, which may keep it as long as it likes, and the connection.
class ServerExchange final : public HttpExchange, public std::enable_shared_from_this<ServerExchange> {
 public:
  ServerExchange(IoLoop& loop, EventWaiter& waiter, std::unique_ptr<WholeRequest> request, bool keeps_alive)
      : request_(std::move(request)), keeps_alive_(keeps_alive), loop_(loop), waiter_(&waiter) {}

  std::string_view method() const noexcept override { return request_->head.method; }
  std::string_view target() const noexcept override { return request_->head.target; }
  std::string_view header(std::string_view name) const noexcept override {
    return request_->head.header(name);
  }
  std::string_view body() const noexcept override { return request_->body; }

  void reply(unsigned status, std::string_view content_type, std::string body,
             const Headers& headers) override {
    std::string text = head_text(status, content_type, headers);
    if (status != 204 && status != 304) append_header(text, "Content-Length", std::to_string(body.size()));
    text += "\r\n";
    if (has_body(status)) text += body;
    MutexLock lock(mu_);
    ASHLAR_CHECK(!begun_, "an exchange is answered once");
    begun_ = ended_ = true;
    put_locked(text);
  }

  void begin(unsigned status, std::string_view content_type, const Headers& headers) override {
    std::string text = head_text(status, content_type, headers);
    const bool chunked = has_body(status) && request_->head.minor_version == 1;
    if (chunked) append_header(text, "Transfer-Encoding", "chunked");
    text += "\r\n";
    MutexLock lock(mu_);
    ASHLAR_CHECK(!begun_, "an exchange is answered once");
    begun_ = true;
    chunked_ = chunked;
    drops_body_ = !has_body(status);
    put_locked(text);
  }

  void write(std::string_view bytes) override {
    if (bytes.empty()) return;  // a chunk of no bytes would be the end
    MutexLock lock(mu_);
    if (aborted_) return;
    ASHLAR_CHECK(begun_ && !ended_, "write() comes between begin() and end()");
    if (drops_body_) return;
    if (!chunked_) return put_locked(bytes);
    char size[24];
    const int length = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    put_locked({size, static_cast<std::size_t>(length)});
    put_locked(bytes);
    put_locked("\r\n");
  }

  void end() override {
    MutexLock lock(mu_);
    if (aborted_) return;
    ASHLAR_CHECK(begun_ && !ended_, "end() comes once, after begin()");
    ended_ = true;
    put_locked(chunked_ ? "0\r\n\r\n" : "");
  }

  void abort() override {
    MutexLock lock(mu_);
    begun_ = ended_ = aborted_ = true;
    put_locked("");
  }

  bool is_gone() const noexcept override { return gone_.load(std::memory_order_relaxed); }

  // ---- For the connection, on its thread.

  struct Taken {
    std::string bytes;
    bool ended = false;
    bool aborted = false;
  };
  Taken take() {
    MutexLock lock(mu_);
    woken_ = false;
    return {std::exchange(outbox_, {}), ended_, aborted_};
  }
  // No more bytes are wanted. `gone`: because the client left.
  void detach(bool gone) {
    // relaxed: a hint for the handler.
    if (gone) gone_.store(true, std::memory_order_relaxed);
    MutexLock lock(mu_);
    waiter_ = nullptr;
    outbox_ = {};
  }

 private:
  bool has_body(unsigned status) const noexcept {
    return method() != "HEAD" && status != 204 && status != 304;
  }

  std::string head_text(unsigned status, std::string_view content_type, const Headers& headers) const {
    std::string text;
    append_status_line(text, status, reason_of(status));
    if (!content_type.empty()) append_header(text, "Content-Type", content_type);
    for (const auto& [name, value] : headers) append_header(text, name, value);
    if (!keeps_alive_) append_header(text, "Connection", "close");
    return text;
  }

  void put_locked(std::string_view bytes) ASHLAR_REQUIRES(mu_) {
    if (waiter_ == nullptr) return;
    outbox_.append(bytes);
    if (woken_) return;
    woken_ = true;
    loop_.post([self = shared_from_this()] {
      EventWaiter* waiter = nullptr;
      {
        MutexLock lock(self->mu_);
        waiter = self->waiter_;
      }
      // Only this thread detaches.
      if (waiter != nullptr) waiter->fire(kWoken);
    });
  }

  const std::unique_ptr<WholeRequest> request_;
  const bool keeps_alive_;
  std::atomic<bool> gone_{false};
  IoLoop& loop_;  // gone when there is no waiter
  Mutex mu_;
  EventWaiter* waiter_ ASHLAR_GUARDED_BY(mu_);
  std::string outbox_ ASHLAR_GUARDED_BY(mu_);
  bool begun_ ASHLAR_GUARDED_BY(mu_) = false;
  bool ended_ ASHLAR_GUARDED_BY(mu_) = false;
  bool aborted_ ASHLAR_GUARDED_BY(mu_) = false;
  bool chunked_ ASHLAR_GUARDED_BY(mu_) = false;
  bool drops_body_ ASHLAR_GUARDED_BY(mu_) = false;
  bool woken_ ASHLAR_GUARDED_BY(mu_) = true;  // the connection looks once by itself, after the handler
};

class AsioHttpServer final : public HttpServer {
 public:
  AsioHttpServer(const HttpServerOptions& options, Handler handler, std::unique_ptr<ServerLoops> loops,
                 std::shared_ptr<const TlsContext> tls)
      : options_(options), handler_(std::move(handler)), tls_(std::move(tls)), loops_(std::move(loops)) {}
  ~AsioHttpServer() override { loops_->stop(); }

  Result<void> start() {
    return loops_->start([this](unsigned loop, int fd) { serve(loops_->loop(loop), fd); });
  }
  std::uint16_t port() const noexcept override { return loops_->port(); }
  void drain(Clock::TimePoint until) override {
    loops_->stop_accepting();
    loops_->wait_idle(until);
  }

 private:
  Detached serve(IoLoop& loop, int fd) {
    try {
      EventWaiter waiter(loop);
      ClientConnection client(loop, waiter, fd, {.limits = options_.limits}, tls_.get());
      if (co_await client.handshake()) {
        while (co_await serve_request(loop, waiter, client)) {
        }
      }
    } catch (const std::exception& error) {
      ASHLAR_LOG(LogLevel::kError, "http", "a connection is closed: %s", error.what());
    }
    loops_->connection_closed();
  }

  // Whether another request may follow.
  Task<bool> serve_request(IoLoop& loop, EventWaiter& waiter, ClientConnection& client) {
    const ClientConnection::Next next = co_await client.read_request();
    if (next == ClientConnection::Next::kRefused) co_await client.refuse();
    if (next != ClientConnection::Next::kRequest) co_return false;
    const MessageHead& head = client.request().head;
    const bool keeps_alive = head.keeps_alive() && head.minor_version == 1 && !loop.is_draining();
    // Counts the answer, and frees the exchange of this connection, however it ends.
    struct Open {
      ServerLoops& loops;
      ClientConnection& client;
      std::shared_ptr<ServerExchange> exchange;
      ~Open() {
        exchange->detach(client.is_gone());
        loops.answer_ended();
      }
    };
    auto exchange = std::make_shared<ServerExchange>(loop, waiter, client.release_request(), keeps_alive);
    loops_->answer_began();
    bool sent = false;
    {
      const Open open{*loops_, client, exchange};
      handler_(exchange);
      sent = co_await send_answer(waiter, client, *exchange);
    }
    if (sent && keeps_alive) co_return true;
    if (sent) co_await client.close_gently();
    co_return false;
  }

  Task<bool> send_answer(EventWaiter& waiter, ClientConnection& client, ServerExchange& exchange) {
    for (;;) {
      const ServerExchange::Taken taken = exchange.take();
      if (!taken.bytes.empty() && !client.send({taken.bytes})) co_return false;
      if (client.has_unsent() && !co_await client.flush()) co_return false;
      if (taken.ended) co_return !taken.aborted;
      client.watch();
      const IoEvents events = co_await waiter.wait(kWoken | kClientGone, kNoDeadline);
      if ((events & (kClientGone | kStopped)) != 0) co_return false;
    }
  }

  const HttpServerOptions options_;
  const Handler handler_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::unique_ptr<ServerLoops> loops_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpServerOptions& options, Handler handler) {
  if (handler == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "a server needs a handler of requests");
  std::shared_ptr<const TlsContext> tls;
  if (!options.tls.certificate.empty() || !options.tls.key.empty()) {
    ASHLAR_TRY(tls, TlsContext::for_server(options.tls));
  }
  ASHLAR_TRY(auto loops, ServerLoops::create({.address = options.address,
                                              .port = options.port,
                                              .threads = options.threads,
                                              .connections = options.limits.connections,
                                              .write_timeout = options.limits.write_timeout}));
  auto server =
      std::make_unique<AsioHttpServer>(options, std::move(handler), std::move(loops), std::move(tls));
  ASHLAR_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace ashlar::backend::http
