// Connection: one connection to NATS that is made again when it breaks, for ever.
//
// Thread safety: thread-safe.
#pragma once

#include <nats/nats.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "backend/nats/handles.h"

namespace ashlar::backend::nats {

class Connection {
 public:
  // Errors: kInvalidArgument: options, files, or what the server thinks of our credentials; kUnavailable.
  static Result<std::unique_ptr<Connection>> connect(const NatsConnectionOptions& options);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  natsConnection* get() const noexcept { return connection_; }
  bool is_connected() const noexcept {
    return natsConnection_Status(connection_) == NATS_CONN_STATUS_CONNECTED;
  }
  // Whether it is connected, at the latest after `timeout`.
  bool wait_until_connected(std::chrono::milliseconds timeout);
  std::uint64_t reconnects() const noexcept { return reconnects_.load(std::memory_order_relaxed); }
  // Bytes that a message may have, its headers included.
  std::size_t max_payload() const noexcept { return max_payload_.load(std::memory_order_relaxed); }
  // Why nothing can be sent now.
  Error unavailable() const;

  // What NATS has to say of files and of us, before the first connection. Replaces nothing on failure.
  static Result<ClientOptions> client_options(const NatsConnectionOptions& options);

 private:
  explicit Connection(const NatsConnectionOptions& options) : options_(options) {}
  static void on_reconnected(natsConnection* connection, void* self);
  static void on_closed(natsConnection* connection, void* self);
  static std::int64_t reconnect_delay(natsConnection* connection, int attempts, void* self);

  const NatsConnectionOptions options_;
  natsConnection* connection_ = nullptr;
  std::minstd_rand random_{std::random_device{}()};  // of the thread that connects again
  std::atomic<std::uint64_t> reconnects_{0};
  std::atomic<std::size_t> max_payload_{0};
  Mutex mu_;
  CondVar changed_;
  bool closed_ ASHLAR_GUARDED_BY(mu_) = false;
};

}  // namespace ashlar::backend::nats
