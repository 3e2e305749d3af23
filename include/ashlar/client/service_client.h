// ServiceClient: asks an `ashlar serve` over plain HTTP/1.1 (docs/http.md): which workers hold a prefix, why
// a request was routed as it was, whether the service is well.
//
//   auto client = ServiceClient::create({.url = "http://127.0.0.1:8080"}).value();
//   auto scores = client.query({.model = "tiny", .tokens = prompt}).value();
//
// Blocking, a connection per call, without TLS. The service is not trusted: `timeout` limits a whole call,
// from the look-up of a name to the last byte, and `max_bytes` its answer, whatever the other side does.
//
// Thread safety: immutable after create(); any number of calls at once.
// Complexity:    O(bytes sent and received).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::client {

struct ServiceClientOptions {
  std::string url;                                // "http://host:port", with or without a slash behind it
  std::string token = {};                         // sent in x-ashlar-token where there is one
  std::chrono::milliseconds timeout{5000};        // of a whole call
  std::size_t max_bytes = std::size_t{64} << 20;  // of an answer with its headers
};

struct ServiceAnswer {
  int status = 0;
  std::string body;
};

// A question without a proxy: who holds the prefix of these tokens?
struct RouteQuery {
  std::string_view model;
  std::span<const tokens::Token> tokens;
  std::string_view routing_group = {};
  std::string_view lora = {};
  std::string_view cache_salt = {};
};

// What one instance holds of the prefix, in tokens. Tiers are cumulative.
struct RouteScore {
  std::uint64_t instance = 0;
  std::uint64_t longest = 0;  // in any tier
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t disk = 0;

  friend bool operator==(const RouteScore&, const RouteScore&) = default;
};

class ServiceClient {
 public:
  // Connects to nothing yet. Errors: kUnsupported: https; kInvalidArgument: no such address, one with a user
  // or a path, a token with line breaks, a limit of 0.
  static Result<ServiceClient> create(ServiceClientOptions options);

  // "http://host:port".
  std::string shown() const;

  // Any request; `target` begins with '/'. The answer may have any status. Errors: kUnavailable: no
  // connection; kTimeout; kCorruption: no answer of HTTP, or one that was cut off; kCapacity: longer than
  // max_bytes, or names are looked up that no resolver answers; kInvalidArgument: the method or target.
  Result<ServiceAnswer> request(std::string_view method, std::string_view target,
                                std::string_view body = {}) const;
  // The body of an answer with status 200. Errors: also kNotFound (404), kUnavailable (429, 5xx),
  // kInvalidArgument (others), with the status.
  Result<std::string> get(std::string_view target) const;

  // GET /health: the process lives.
  Result<void> check_health() const;
  // GET /ready: a worker is up.
  Result<bool> is_ready() const;
  // GET /workers, as JSON; an empty model: all.
  Result<std::string> workers(std::string_view model = {}) const;
  // GET /decisions/{id}, as JSON: why a request went where it went.
  Result<std::string> decision(std::string_view id) const;
  // POST /query. Instances that hold nothing may be left out. Errors: also kCorruption: an answer in another
  // form.
  Result<std::vector<RouteScore>> query(const RouteQuery& query) const;

 private:
  ServiceClient() = default;

  std::string host_;
  std::string port_;
  std::string token_;
  std::chrono::milliseconds timeout_{0};
  std::size_t max_bytes_ = 0;
};

// Appends the chunks of a chunked body to `out`. False: the form is not kept, or the end is missing.
bool join_chunks(std::string_view in, std::string& out);

}  // namespace ashlar::client
