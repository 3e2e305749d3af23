// request_snapshot: asks a worker for its snapshot (snapshot_responder.h answers).
//
// Thread safety: free function.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "backend/nats/nats_connection.h"

namespace ashlar::backend::nats {

// All parts; nullopt if there is no responder, or it has no snapshot of that stream. Errors: kTimeout: no
// whole answer arrived in time; kUnavailable; kCapacity: it takes more than `max_bytes` of memory.
Result<std::optional<std::vector<events::OwnedBatch>>> request_snapshot(NatsConnection& connection,
                                                                        const std::string& subject,
                                                                        const events::StreamId& stream,
                                                                        std::chrono::milliseconds timeout,
                                                                        std::size_t max_bytes);

}  // namespace ashlar::backend::nats
