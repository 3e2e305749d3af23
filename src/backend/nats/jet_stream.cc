#include "backend/nats/jet_stream.h"

#include <array>
#include <utility>

#include "backend/nats/nats_error.h"

namespace ashlar::backend::nats {

Result<JetStream> JetStream::create(const NatsConnection& connection, std::chrono::milliseconds timeout) {
  jsOptions options;
  jsOptions_Init(&options);
  options.Wait = timeout.count();
  JetStreamContext context;
  const natsStatus status = natsConnection_JetStream(Out(context), connection.get(), &options);
  if (status != NATS_OK) return nats_error(status, "JetStream");
  return JetStream(std::move(context));
}

Error JetStream::error(natsStatus status, jsErrCode code, const std::string& what) {
  Error error = nats_error(status, what.c_str());
  if (status == NATS_NO_RESPONDERS || code == JSNotEnabledErr || code == JSNotEnabledForAccountErr)
    return Error(ErrorCode::kUnsupported,
                 error.message() + "; the server has no JetStream: start it with -js");
  if (code != 0 && status != NATS_NOT_FOUND && status != NATS_TIMEOUT)
    return Error(code == JSClusterNotAvailErr || code == JSInsufficientResourcesErr
                     ? ErrorCode::kUnavailable
                     : ErrorCode::kInvalidArgument,
                 error.message());
  return error;
}

Result<void> JetStream::ensure_stream(const NatsStreamOptions& options, const std::string& subjects) const {
  StreamInfo info;
  jsErrCode code = static_cast<jsErrCode>(0);
  natsStatus status = js_GetStreamInfo(Out(info), get(), options.name.c_str(), nullptr, &code);
  if (status == NATS_OK) return {};
  const std::string what = "stream '" + options.name + "'";
  if (status != NATS_NOT_FOUND) return error(status, code, what);
  std::array<const char*, 1> subject{subjects.c_str()};
  jsStreamConfig config;
  jsStreamConfig_Init(&config);
  config.Name = options.name.c_str();
  config.Subjects = subject.data();
  config.SubjectsLen = 1;
  config.Storage = options.in_memory ? js_MemoryStorage : js_FileStorage;
  config.MaxAge = std::chrono::nanoseconds(options.max_age).count();
  config.MaxBytes = options.max_bytes == 0 ? -1 : static_cast<std::int64_t>(options.max_bytes);
  config.Replicas = options.replicas;
  config.Duplicates = std::chrono::nanoseconds(options.duplicate_window).count();
  config.AllowDirect = true;
  status = js_AddStream(Out(info), get(), &config, nullptr, &code);
  // Another process may have created it meanwhile.
  if (status == NATS_OK || code == JSStreamNameExistErr) return {};
  return error(status, code, what);
}

}  // namespace ashlar::backend::nats
