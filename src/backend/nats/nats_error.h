// Errors of cnats as Ashlar's errors.
//
// Thread safety: free functions; they read what cnats keeps per thread about its last failure.
#pragma once

#include <nats/nats.h>

#include "ashlar/base/result.h"

namespace ashlar::backend::nats {

ErrorCode error_code(natsStatus status) noexcept;
// "what: reason". Requires: `status` is of the last call of this thread.
Error nats_error(natsStatus status, const char* what);

}  // namespace ashlar::backend::nats
