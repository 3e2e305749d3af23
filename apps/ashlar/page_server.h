// Serves a gateway that only answers, such as the page of a journal, on loopback.
#pragma once

#include <cstdint>

#include "ashlar/base/result.h"
#include "ashlar/service/passage.h"

namespace ashlar::apps {

// Prints "listening on http://127.0.0.1:PORT" and serves until the program is asked to end. Errors: the port
// is taken; kUnsupported: this build has no HTTP.
Result<void> serve_page(service::Gateway& gateway, std::uint16_t port);

}  // namespace ashlar::apps
