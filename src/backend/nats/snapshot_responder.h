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
#include <thread>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "backend/nats/handles.h"
#include "backend/nats/nats_connection.h"

namespace ashlar::backend::nats {

class SnapshotResponder {
 public:
  // The connection and the source outlive the responder.
  static Result<std::unique_ptr<SnapshotResponder>> create(NatsConnection& connection,
                                                           const std::string& subject,
                                                           events::SnapshotSource& source);
  SnapshotResponder(const SnapshotResponder&) = delete;
  SnapshotResponder& operator=(const SnapshotResponder&) = delete;
  ~SnapshotResponder();

  std::uint64_t answered() const noexcept { return answered_.load(std::memory_order_relaxed); }

 private:
  SnapshotResponder(NatsConnection& connection, events::SnapshotSource& source) noexcept
      : connection_(connection), source_(source) {}
  void work();
  void answer(const char* reply);

  NatsConnection& connection_;
  events::SnapshotSource& source_;
  Subscription requests_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> answered_{0};
  std::thread thread_;
};

}  // namespace ashlar::backend::nats
