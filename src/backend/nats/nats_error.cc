#include "backend/nats/nats_error.h"

namespace ashlar::backend::nats {

ErrorCode error_code(natsStatus status) noexcept {
  switch (status) {
    case NATS_TIMEOUT:
      return ErrorCode::kTimeout;
    case NATS_NOT_FOUND:
      return ErrorCode::kNotFound;
    case NATS_NO_MEMORY:
    case NATS_MAX_PAYLOAD:
      return ErrorCode::kCapacity;
    case NATS_ADDRESS_MISSING:
    case NATS_INVALID_ARG:
    case NATS_INVALID_SUBJECT:
    case NATS_CONNECTION_AUTH_FAILED:
    case NATS_NOT_PERMITTED:
    case NATS_SSL_ERROR:
    case NATS_SECURE_CONNECTION_WANTED:
    case NATS_SECURE_CONNECTION_REQUIRED:
      return ErrorCode::kInvalidArgument;
    case NATS_NO_SERVER_SUPPORT:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kUnavailable;
  }
}

Error nats_error(natsStatus status, const char* what) {
  natsStatus last = NATS_OK;
  const char* text = nats_GetLastError(&last);
  const bool said = last == status && text != nullptr && text[0] != '\0';
  return make_error(error_code(status), "%s: %s%s%s", what, natsStatus_GetText(status), said ? ": " : "",
                    said ? text : "");
}

}  // namespace ashlar::backend::nats
