#include "backend/nats/snapshot_request.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "ashlar/events/event_codec.h"
#include "backend/nats/handles.h"
#include "backend/nats/nats_error.h"
#include "backend/nats/snapshot_parts.h"

namespace ashlar::backend::nats {

Result<std::optional<std::vector<events::OwnedBatch>>> request_snapshot(NatsConnection& connection,
                                                                        const std::string& subject,
                                                                        const events::StreamId& stream,
                                                                        std::chrono::milliseconds timeout,
                                                                        std::size_t max_bytes) {
  using Snapshot = std::optional<std::vector<events::OwnedBatch>>;
  if (!connection.is_connected()) return connection.unavailable();
  // Messages queued in the client are encoded, and smaller than when decoded.
  const int pending = static_cast<int>(std::min<std::size_t>(max_bytes, 1 << 30));
  Inbox inbox;
  Subscription answers;
  natsStatus status = natsInbox_Create(Out(inbox));
  if (status == NATS_OK) status = connection.subscribe(inbox.get(), answers);
  if (status == NATS_OK) status = natsSubscription_SetPendingLimits(answers.get(), -1, pending);
  if (status == NATS_OK)
    status = natsConnection_PublishRequest(connection.get(), subject.c_str(), inbox.get(), "", 0);
  if (status == NATS_OK) status = connection.flush(timeout);
  if (status != NATS_OK) return nats_error(status, "a request for a snapshot");

  SnapshotParts parts(max_bytes);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!parts.is_complete()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    Message message;
    status = left.count() <= 0 ? NATS_TIMEOUT
                               : natsSubscription_NextMsg(Out(message), answers.get(), left.count());
    if (status == NATS_TIMEOUT)
      return make_error(ErrorCode::kTimeout, "%s was not answered within %lld ms", subject.c_str(),
                        static_cast<long long>(timeout.count()));
    if (status == NATS_NO_RESPONDERS) return Snapshot();
    if (status != NATS_OK) return nats_error(status, "an answer with a snapshot");
    // There is no snapshot.
    if (natsMsg_GetDataLength(message.get()) == 0) return Snapshot();
    events::OwnedBatch batch;
    const std::span bytes(reinterpret_cast<const std::byte*>(natsMsg_GetData(message.get())),
                          static_cast<std::size_t>(natsMsg_GetDataLength(message.get())));
    ASHLAR_RETURN_IF_ERROR(events::decode_batch(bytes, batch, max_bytes));
    if (batch.head.stream != stream) return Snapshot();
    parts.add(std::move(batch));
    if (parts.is_too_large()) return parts.too_large_error();
  }
  return Snapshot(parts.take());
}

}  // namespace ashlar::backend::nats
