// JetStream: the JetStream context of one connection.
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
  // Sends nothing. `timeout` applies to requests.
  static Result<JetStream> create(const NatsConnection& connection, std::chrono::milliseconds timeout);

  jsCtx* get() const noexcept { return context_.get(); }
  // Creates the stream for `subjects` if missing. Errors: kUnsupported: the server has no JetStream;
  // kInvalidArgument: the server refuses such a stream; kUnavailable.
  Result<void> ensure_stream(const NatsStreamOptions& options, const std::string& subjects) const;
  // The error of a request to JetStream; kUnsupported: the server has no JetStream.
  static Error error(natsStatus status, jsErrCode code, const std::string& what);

 private:
  explicit JetStream(JetStreamContext context) noexcept : context_(std::move(context)) {}
  JetStreamContext context_;
};

}  // namespace ashlar::backend::nats
