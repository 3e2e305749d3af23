// PlainExchange: one request to a server of HTTP/1.1, and its answer, over a connection of its own.
//
// The deadline counts for all of it: connecting, sending, and every byte of the answer. Where a name has
// several addresses, each that does not answer uses up its share. The answer is
// untrusted: no more than max_bytes are kept, and its form is checked. It ends with its content-length, its
// last chunk, or the connection.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/client/service_client.h"

namespace ashlar::client {

struct PlainExchange {
  std::string host;
  std::string port;
  std::string service;  // "http://host:port", for messages
  std::string shown;    // the same with the target
  std::chrono::steady_clock::time_point deadline;
  std::size_t max_bytes = 0;
  bool has_body = true;  // false: the answer to HEAD

  // Errors: as ServiceClient::request().
  Result<ServiceAnswer> run(std::string_view request) const;
};

}  // namespace ashlar::client
