// NatsConnection: one connection to NATS, reconnected forever.
//
// The client's reading thread looks up a message's subscription and uses it without holding it. So dropping a
// Subscription only ends and retires it: it is destroyed after the answer to a later ping, when the reading
// thread is past all earlier look-ups, or when the connection is closed.
//
// Thread safety: thread-safe. flush() and subscribe() wait; do not call them from callbacks of the client.
// Invariant:     at most kMostRetired subscriptions are kept, give or take one per thread.
#pragma once

#include <nats/nats.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "backend/nats/handles.h"

namespace ashlar::backend::nats {

class NatsConnection;

struct RetireSubscription {
  NatsConnection* connection = nullptr;
  void operator()(natsSubscription* subscription) const noexcept;
};
// Dropping one never waits. The connection outlives it.
using Subscription = std::unique_ptr<natsSubscription, RetireSubscription>;

class NatsConnection {
 public:
  static constexpr std::size_t kMostRetired = 64;

  // Retries for options.connect_wait. Errors: kInvalidArgument: options, files or refused credentials;
  // kUnavailable; kCancelled.
  static Result<std::unique_ptr<NatsConnection>> create(const NatsConnectionOptions& options);
  NatsConnection(const NatsConnection&) = delete;
  NatsConnection& operator=(const NatsConnection&) = delete;
  ~NatsConnection();

  natsConnection* get() const noexcept { return connection_; }
  bool is_connected() const noexcept {
    return natsConnection_Status(connection_) == NATS_CONN_STATUS_CONNECTED;
  }
  // Waits up to `timeout` for a connection; returns whether it is connected.
  bool wait_until_connected(std::chrono::milliseconds timeout);
  std::uint64_t reconnects() const noexcept { return reconnects_.load(std::memory_order_relaxed); }
  // Maximum message size, headers included.
  std::size_t max_payload() const noexcept { return max_payload_.load(std::memory_order_relaxed); }
  // Replaces `out` on success. NATS_TIMEOUT: kMostRetired are kept, and the server does not answer.
  natsStatus subscribe(const std::string& subject, Subscription& out);
  // Waits until the server has read everything sent.
  natsStatus flush(std::chrono::milliseconds timeout);
  // Number of reconnects, up to date; reconnects() lags a little.
  std::uint64_t generation() const;
  // Whether it was reconnected less than `age` ago.
  bool is_new(std::chrono::milliseconds age) const;
  // Destroys retired subscriptions, if the server answers.
  void sweep();
  std::size_t retired() const;
  // Why nothing can be sent now.
  Error unavailable() const;

  // Checks files and options with NATS before the first connection. Replaces nothing on failure.
  static Result<ClientOptions> client_options(const NatsConnectionOptions& options);

 private:
  friend RetireSubscription;
  explicit NatsConnection(const NatsConnectionOptions& options) : options_(options) {}
  void retire(natsSubscription* subscription) noexcept;
  struct Attempt;
  // Ends within connect_timeout, per server, or when stop_waiting says so. An attempt that has not returned
  // by then is left to its thread.
  static Result<std::unique_ptr<NatsConnection>> connect_once(const NatsConnectionOptions& options,
                                                              natsStatus& status);
  static Result<std::unique_ptr<NatsConnection>> connect_with(ClientOptions client,
                                                              const NatsConnectionOptions& options,
                                                              natsStatus& status);
  static void on_reconnected(natsConnection* connection, void* self);
  static void on_closed(natsConnection* connection, void* self);
  static std::int64_t reconnect_delay(natsConnection* connection, int attempts, void* self);

  const NatsConnectionOptions options_;
  natsConnection* connection_ = nullptr;
  std::minstd_rand random_{std::random_device{}()};  // used by the reconnecting thread
  std::atomic<std::uint64_t> reconnects_{0};
  std::atomic<std::size_t> max_payload_{0};
  mutable Mutex mu_;
  CondVar changed_;
  bool closed_ ASHLAR_GUARDED_BY(mu_) = false;
  std::chrono::steady_clock::time_point reconnected_at_ ASHLAR_GUARDED_BY(mu_);
  std::vector<natsSubscription*> retired_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::backend::nats
