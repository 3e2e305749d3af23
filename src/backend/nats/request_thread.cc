#include "backend/nats/request_thread.h"

#include <cstdint>

#include "backend/nats/nats_error.h"
#include "base/start_thread.h"

namespace ashlar::backend::nats {
namespace {

constexpr std::int64_t kRequestTickMs = 100;
// Requests beyond this many queued ones must be repeated.
constexpr int kWaitingRequests = 1024;

}  // namespace

Result<std::unique_ptr<RequestThread>> RequestThread::create(NatsConnection& connection,
                                                             const std::string& subject, Handler handler) {
  std::unique_ptr<RequestThread> self(new RequestThread(std::move(handler)));
  natsStatus status = connection.subscribe(subject, self->requests_);
  if (status == NATS_OK)
    status = natsSubscription_SetPendingLimits(self->requests_.get(), kWaitingRequests, 1 << 20);
  if (status != NATS_OK) return nats_error(status, subject.c_str());
  RequestThread* me = self.get();
  ASHLAR_RETURN_IF_ERROR(start_thread(&self->thread_, [me] { me->work(); }));
  return self;
}

RequestThread::~RequestThread() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void RequestThread::work() {
  while (!stop_.load()) {
    Message request;
    const natsStatus status = natsSubscription_NextMsg(Out(request), requests_.get(), kRequestTickMs);
    if (status == NATS_OK) {
      handler_(natsMsg_GetReply(request.get()),
               {reinterpret_cast<const std::byte*>(natsMsg_GetData(request.get())),
                static_cast<std::size_t>(natsMsg_GetDataLength(request.get()))});
    } else if (status != NATS_TIMEOUT) {
      nats_Sleep(kRequestTickMs);
    }
  }
}

}  // namespace ashlar::backend::nats
