// SnapshotResponder: answers requests for the snapshot of one worker, on its own thread.
//
// An answer is the parts of a snapshot, each a message, to the subject that the request names. An empty
// message says that there is none.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "backend/nats/nats_connection.h"
#include "backend/nats/request_thread.h"

namespace ashlar::backend::nats {

class SnapshotResponder {
 public:
  // The connection and the source outlive the responder.
  static Result<std::unique_ptr<SnapshotResponder>> create(NatsConnection& connection,
                                                           const std::string& subject,
                                                           events::SnapshotSource& source);
  SnapshotResponder(const SnapshotResponder&) = delete;
  SnapshotResponder& operator=(const SnapshotResponder&) = delete;

  std::uint64_t answered() const noexcept { return answered_.load(std::memory_order_relaxed); }

 private:
  SnapshotResponder(NatsConnection& connection, events::SnapshotSource& source) noexcept
      : connection_(connection), source_(source) {}
  void answer(const char* reply);

  NatsConnection& connection_;
  events::SnapshotSource& source_;
  std::atomic<std::uint64_t> answered_{0};
  std::unique_ptr<RequestThread> thread_;  // last: it calls answer()
};

}  // namespace ashlar::backend::nats
