// JetStream: what the server keeps, seen from one connection.
//
// Thread safety: thread-safe.
#pragma once

#include <nats/nats.h>

#include <chrono>
#include <string>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/result.h"
#include "backend/nats/handles.h"
#include "backend/nats/nats_connection.h"

namespace ashlar::backend::nats {

class JetStream {
 public:
  // Asks nobody. `timeout` is that of requests.
  static Result<JetStream> create(const NatsConnection& connection, std::chrono::milliseconds timeout);

  jsCtx* get() const noexcept { return context_.get(); }
  // Makes the stream for `subjects` where it is not there. Errors: kUnsupported: the server has no JetStream;
  // kInvalidArgument: it does not want such a stream; kUnavailable.
  Result<void> ensure_stream(const NatsStreamOptions& options, const std::string& subjects) const;
  // Errors: as those of requests to JetStream; kUnsupported: nobody answers them here.
  static Error error(natsStatus status, jsErrCode code, const std::string& what);

 private:
  explicit JetStream(JetStreamContext context) noexcept : context_(std::move(context)) {}
  JetStreamContext context_;
};

}  // namespace ashlar::backend::nats
