// PlainHttp: one request after the other to a service of HTTP/1.1, for programs that look at it.
//
// Blocking, a connection per request, without TLS. The answer is untrusted: its length is limited.
//
// Thread safety: thread-compatible.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"

namespace ashlar::apps {

struct PlainHttp {
  std::string host;
  std::string port = "80";
  std::string token = {};  // sent in x-ashlar-token where there is one
  // Whatever is asked, looking for the address included, ends by then.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  std::size_t most_bytes = std::size_t{64} << 20;

  // "http://host:port", with or without a slash behind it. Errors: kUnsupported: https; kInvalidArgument: no
  // such address, or one with a user or a path.
  static Result<PlainHttp> parse(const std::string& url);
  // "http://host:port".
  std::string shown() const;
  // The body of the answer. Errors: kUnavailable: no connection; kTimeout; kCorruption: no answer of HTTP;
  // kInvalidArgument: any status but 200, with it; kCapacity: longer than most_bytes.
  Result<std::string> get(const std::string& target) const;
};

// Appends the chunks of a chunked body to `out`. False: the form is not kept, or the end is missing.
bool join_chunks(std::string_view in, std::string& out);

}  // namespace ashlar::apps
