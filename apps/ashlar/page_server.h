// PageServer: a gateway that only answers, such as the page of a journal, on loopback.
//
// Thread safety: thread-compatible; the gateway is called by a thread of the server.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/service/passage.h"

namespace ashlar::apps {

class PageServer {
 public:
  // Prints "listening on http://127.0.0.1:PORT" to `out` and serves as long as the object lives; so must the
  // gateway.
  // Errors: the port is taken; kUnsupported: this build has no HTTP.
  static Result<std::unique_ptr<PageServer>> start(service::Gateway& gateway, std::uint16_t port,
                                                   std::FILE* out = stdout);
  virtual ~PageServer() = default;
  // Until the program is asked to end.
  virtual void wait() = 0;
};

}  // namespace ashlar::apps
