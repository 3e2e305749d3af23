// cnats errors as Ashlar errors.
//
// Thread safety: free functions; they read cnats' per-thread state of its last failure.
#pragma once

#include <nats/nats.h>

#include "ashlar/base/result.h"

namespace ashlar::backend::nats {

ErrorCode error_code(natsStatus status) noexcept;
// "what: reason". Requires: `status` comes from this thread's last call.
Error nats_error(natsStatus status, const char* what);

}  // namespace ashlar::backend::nats
