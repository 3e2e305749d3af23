#include "backend/nats/snapshot_responder.h"

#include <chrono>
#include <span>
#include <vector>

#include "backend/nats/batch_pieces.h"
#include "backend/nats/nats_error.h"
#include "base/start_thread.h"

namespace ashlar::backend::nats {
namespace {

constexpr std::int64_t kResponderTickMs = 100;
constexpr std::chrono::milliseconds kFlush(5000);
// Requests beyond this many queued ones must be repeated.
constexpr int kWaitingRequests = 1024;

}  // namespace

Result<std::unique_ptr<SnapshotResponder>> SnapshotResponder::create(NatsConnection& connection,
                                                                     const std::string& subject,
                                                                     events::SnapshotSource& source) {
  std::unique_ptr<SnapshotResponder> self(new SnapshotResponder(connection, source));
  natsStatus status = connection.subscribe(subject, self->requests_);
  if (status == NATS_OK)
    status = natsSubscription_SetPendingLimits(self->requests_.get(), kWaitingRequests, 1 << 20);
  if (status != NATS_OK) return nats_error(status, subject.c_str());
  SnapshotResponder* me = self.get();
  ASHLAR_RETURN_IF_ERROR(start_thread(&self->thread_, [me] { me->work(); }));
  return self;
}

SnapshotResponder::~SnapshotResponder() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void SnapshotResponder::work() {
  while (!stop_.load()) {
    Message request;
    const natsStatus status = natsSubscription_NextMsg(Out(request), requests_.get(), kResponderTickMs);
    if (status == NATS_OK) {
      if (const char* reply = natsMsg_GetReply(request.get()); reply != nullptr) answer(reply);
    } else if (status != NATS_TIMEOUT) {
      nats_Sleep(kResponderTickMs);
    }
  }
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
