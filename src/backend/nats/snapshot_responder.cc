#include "backend/nats/snapshot_responder.h"

#include <chrono>
#include <span>
#include <vector>

#include "backend/nats/batch_pieces.h"
#include "backend/nats/nats_error.h"

namespace ashlar::backend::nats {
namespace {

constexpr std::chrono::milliseconds kFlush(5000);

}  // namespace

Result<std::unique_ptr<SnapshotResponder>> SnapshotResponder::create(NatsConnection& connection,
                                                                     const std::string& subject,
                                                                     events::SnapshotSource& source) {
  std::unique_ptr<SnapshotResponder> self(new SnapshotResponder(connection, source));
  SnapshotResponder* me = self.get();
  ASHLAR_TRY(self->thread_,
             RequestThread::create(connection, subject, [me](const char* reply, std::span<const std::byte>) {
               if (reply != nullptr) me->answer(reply);
             }));
  return self;
}

void SnapshotResponder::answer(const char* reply) {
  const events::OwnedBatch snapshot = source_.snapshot();
  std::vector<std::byte> buffer;
  const Result<void> sent =
      for_each_piece(snapshot.view(), connection_.max_payload(), buffer,
                     [&](const events::EventBatch&, std::span<const std::byte> bytes) -> Result<void> {
                       const natsStatus status = natsConnection_Publish(
                           connection_.get(), reply, bytes.data(), static_cast<int>(bytes.size()));
                       if (status != NATS_OK) return nats_error(status, "an answer");
                       return {};
                     });
  // Tells the requester of a failure at once if possible, otherwise by timeout.
  if (!sent) static_cast<void>(natsConnection_Publish(connection_.get(), reply, "", 0));
  if (connection_.flush(kFlush) == NATS_OK && sent) answered_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ashlar::backend::nats
