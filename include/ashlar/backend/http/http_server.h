// HttpServer: HTTP/1.1 for programs that answer requests themselves: the engine of the examples, and tests.
// `ashlar serve` uses HttpProxy, which passes requests on.
//
// A handler gets each whole request and answers it now or later, from any thread, in one piece or as a
// stream:
//
//   auto server = HttpServer::create({.port = 8000}, [](std::shared_ptr<HttpExchange> exchange) {
//     exchange->reply(200, "application/json", "{}");
//   });
//
// Thread safety: thread-safe. Handlers run on the server's threads and must not block.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::http {

struct TlsFiles {
  std::string certificate;  // PEM
  std::string key;          // PEM
};

// What a server allows a client.
struct HttpLimits {
  std::size_t head_bytes = 64 << 10;
  std::size_t body_bytes = std::size_t{64} << 20;
  // Of all requests of a proxy at a time; one that goes beyond is answered 503.
  std::size_t all_body_bytes = std::size_t{1} << 30;
  // Of the gateway's own large replies at a time, until they are sent; one that goes beyond is answered 503.
  // As many bytes again may workers' answers to its questions have; one that goes beyond fails with kIo.
  std::size_t all_reply_bytes = std::size_t{256} << 20;
  std::size_t connections = 16'384;
  Clock::Duration head_timeout = std::chrono::seconds(10);   // from the first byte of a request to its head
  Clock::Duration body_timeout = std::chrono::seconds(60);   // and to its last byte
  Clock::Duration idle_timeout = std::chrono::seconds(75);   // between two requests
  Clock::Duration write_timeout = std::chrono::seconds(60);  // a client that does not read
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free one
  unsigned threads = 1;
  HttpLimits limits = {};
  TlsFiles tls = {};  // empty: none
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual std::string_view method() const noexcept = 0;
  virtual std::string_view target() const noexcept = 0;
  // The value of a header, by any case of its name; empty if there is none.
  virtual std::string_view header(std::string_view name) const noexcept = 0;
  virtual std::string_view body() const noexcept = 0;

  using Headers = std::vector<std::pair<std::string, std::string>>;
  // The whole answer. Requires, here and for begin(): no answer was begun.
  virtual void reply(unsigned status, std::string_view content_type, std::string body,
                     const Headers& headers = {}) = 0;
  // An answer in pieces (chunked); end() closes it. Each write() is sent at once.
  virtual void begin(unsigned status, std::string_view content_type, const Headers& headers = {}) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end() = 0;
  // Ends the connection without an orderly end, as a process that dies does.
  virtual void abort() = 0;
  // Whether the client has left; what is written then is dropped.
  virtual bool is_gone() const noexcept = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;
  // Errors: kUnavailable: the address cannot be bound; kInvalidArgument: an option, or TLS files that cannot
  // be read.
  static Result<std::unique_ptr<HttpServer>> create(const HttpServerOptions& options, Handler handler);
  virtual ~HttpServer() = default;

  virtual std::uint16_t port() const noexcept = 0;
  // Takes no more connections, and waits until the open answers are sent, at most until `until`.
  virtual void drain(Clock::TimePoint until) = 0;
};

}  // namespace ashlar::backend::http
