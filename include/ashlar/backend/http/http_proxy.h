// HttpProxy: the sockets of a service::Gateway: a server for clients, pooled connections to workers, and the
// bytes between them.
//
// Bodies pass unchanged and unbuffered, with their framing. A client that leaves ends the request at the
// worker too. Each thread has its own listening socket, connections and pool.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/backend/http/http_server.h"
#include "ashlar/service/passage.h"

namespace ashlar::backend::http {

struct HttpProxyOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 8080;  // 0: any free one
  unsigned threads = 2;
  HttpLimits limits = {};
  TlsFiles tls = {};  // for clients; empty: none
  // PEM file of authorities that workers' certificates are checked against; empty: the system's.
  std::string worker_authorities = {};
  std::size_t idle_connections = 512;  // to one worker, per thread
};

struct HttpProxyCounters {
  std::uint64_t accepted = 0;      // connections
  std::uint64_t refused = 0;       // connections beyond the limit
  std::uint64_t bad_requests = 0;  // requests that are no HTTP or break a limit
  std::uint64_t requests = 0;
  std::uint64_t worker_connections = 0;  // made
  std::uint64_t client_aborts = 0;
  std::int64_t open_connections = 0;
  std::int64_t open_passages = 0;
  std::size_t body_bytes = 0;        // of requests, in memory now
  std::uint64_t refused_bodies = 0;  // for want of such memory
  std::size_t reply_bytes = 0;       // of large replies of the gateway, in memory now
  std::uint64_t refused_replies = 0;
  std::size_t answer_bytes = 0;  // of workers' answers to the gateway's questions, in memory now
};

class HttpProxy {
 public:
  // The gateway must outlive the proxy. Errors: as HttpServer::create().
  static Result<std::unique_ptr<HttpProxy>> create(const HttpProxyOptions& options,
                                                   service::Gateway& gateway);
  // Whether the certificates can be used. Errors: kInvalidArgument, with the file.
  static Result<void> check(const HttpProxyOptions& options);
  virtual ~HttpProxy() = default;

  virtual std::uint16_t port() const noexcept = 0;
  virtual HttpProxyCounters counters() const = 0;
  // Tells the gateway to drain, takes no more connections, waits for open passages until `until`, then ends
  // them.
  virtual void drain(Clock::TimePoint until) = 0;
};

}  // namespace ashlar::backend::http
