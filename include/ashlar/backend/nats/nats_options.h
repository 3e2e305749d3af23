// Options of NATS: how to reach the servers, and where events are kept.
//
// Credentials appear in no error message, log or describe().
//
// Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::backend::nats {

struct NatsTls {
  bool enabled = false;
  std::string ca_file = {};           // PEM; empty: the authorities of the system
  std::string certificate_file = {};  // PEM, of the client, if the server asks for one; requires key_file
  std::string key_file = {};
  std::string server_name = {};  // expected in the server's certificate; empty: the host of the URL
  bool verify = true;            // false accepts any certificate

  // Whether any file or name is set; they have an effect only with TLS.
  bool names_anything() const noexcept {
    return !ca_file.empty() || !certificate_file.empty() || !key_file.empty() || !server_name.empty();
  }
};

struct NatsConnectionOptions {
  std::vector<std::string> urls = {"nats://127.0.0.1:4222"};  // nats:// or tls://, without credentials
  std::string name = "ashlar";                                // as the server lists its clients

  // At most one of the four ways to authenticate.
  std::string user = {};
  std::string password = {};
  std::string token = {};
  std::string credentials_file = {};  // a JWT and its seed, as nsc writes them
  std::string nkey = {};              // the public key; requires nkey_seed_file
  std::string nkey_seed_file = {};

  NatsTls tls = {};
  std::chrono::milliseconds connect_timeout{2000};  // per server
  std::chrono::milliseconds write_timeout{5000};    // a socket that accepts nothing for this long is closed

  // How long create() retries while no server answers, with the waits below. A refusal by the server is not
  // retried.
  static constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();
  std::chrono::milliseconds connect_wait{0};  // 0: once
  // Polled every 20 ms, also during an attempt; true ends the wait. An attempt ends by itself after
  // connect_timeout per server, and once more for an answer. At most 8 abandoned attempts per process may
  // remain with servers that do not answer; each keeps a core busy until its server closes the connection.
  std::function<bool()> stop_waiting = {};

  // A lost connection is retried forever. The waits double from min to max; a `jitter` share of each is
  // random.
  std::chrono::milliseconds reconnect_min{50};
  std::chrono::milliseconds reconnect_max{5000};
  double jitter = 0.5;
  std::size_t pending_bytes = std::size_t{8} << 20;  // buffered while the server is unreachable

  // Errors: kInvalidArgument.
  Result<void> validate() const;
  // "nats://a:4222,nats://b:4222".
  std::string describe() const;
};

// The JetStream stream that keeps events. Created if missing; an existing one is not changed.
struct NatsStreamOptions {
  std::string name = "ASHLAR_KV";
  bool in_memory = false;                            // else in files
  std::chrono::seconds max_age{24 * 3600};           // 0: forever
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // the oldest go first; 0: no limit
  std::uint32_t replicas = 1;
  std::chrono::seconds duplicate_window{120};  // how long the server recognises duplicates

  Result<void> validate() const;
};

enum class NatsMode : std::uint8_t {
  kCore,       // delivered to current listeners only
  kJetStream,  // kept by the server
};

}  // namespace ashlar::backend::nats
