// RequestThread: hands the requests under one subject to a handler, on a thread of its own.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "ashlar/base/result.h"
#include "backend/nats/handles.h"
#include "backend/nats/nats_connection.h"

namespace ashlar::backend::nats {

class RequestThread {
 public:
  // Gets the subject to answer to, null if the request names none, and what the request says.
  using Handler = std::function<void(const char* reply, std::span<const std::byte> request)>;

  // The connection outlives the thread.
  static Result<std::unique_ptr<RequestThread>> create(NatsConnection& connection, const std::string& subject,
                                                       Handler handler);
  RequestThread(const RequestThread&) = delete;
  RequestThread& operator=(const RequestThread&) = delete;
  // Waits for a running handler.
  ~RequestThread();

 private:
  explicit RequestThread(Handler handler) : handler_(std::move(handler)) {}
  void work();

  const Handler handler_;
  Subscription requests_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ashlar::backend::nats
