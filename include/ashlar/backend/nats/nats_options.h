// What an operator says about NATS: how to reach the servers, and where events are kept.
//
// Credentials are values of options: they are in no message of an error, in no log and in no describe().
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
  std::string ca_file = {};  // PEM; empty: the authorities of the system
  std::string certificate_file =
      {};  // PEM, of the client, where the server asks for one; comes with key_file
  std::string key_file = {};
  std::string server_name = {};  // that the server's certificate must have; empty: the host of the URL
  bool verify = true;            // false takes any certificate, of anybody

  // Whether a file or a name is given, which TLS alone would use.
  bool names_anything() const noexcept {
    return !ca_file.empty() || !certificate_file.empty() || !key_file.empty() || !server_name.empty();
  }
};

struct NatsConnectionOptions {
  std::vector<std::string> urls = {"nats://127.0.0.1:4222"};  // nats:// or tls://, without credentials
  std::string name = "ashlar";                                // as the server lists its clients

  // At most one of the four ways to say who we are.
  std::string user = {};
  std::string password = {};
  std::string token = {};
  std::string credentials_file = {};  // a JWT and its seed, as nsc writes them
  std::string nkey = {};              // the public key; comes with nkey_seed_file
  std::string nkey_seed_file = {};

  NatsTls tls = {};
  std::chrono::milliseconds connect_timeout{2000};  // per server
  std::chrono::milliseconds write_timeout{5000};    // a socket that takes nothing for so long is given up

  // Where no server is there at first: for how long it is tried again, with the waits below, while create()
  // waits. What the server refuses is not tried again.
  static constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();
  std::chrono::milliseconds connect_wait{0};  // 0: once
  // Asked every 20 ms, also during an attempt; true ends the wait. An attempt ends by itself when
  // connect_timeout has passed for each server, and once more for an answer. At most 8 attempts of a process
  // are left behind with servers that do not answer; each keeps a core busy until its server closes the
  // connection.
  std::function<bool()> stop_waiting = {};

  // A lost connection is made again, for ever. The waits double from min to max; `jitter` of each is by
  // chance.
  std::chrono::milliseconds reconnect_min{50};
  std::chrono::milliseconds reconnect_max{5000};
  double jitter = 0.5;
  std::size_t pending_bytes = std::size_t{8} << 20;  // what is kept for the server while it is away

  // Errors: kInvalidArgument.
  Result<void> validate() const;
  // "nats://a:4222,nats://b:4222".
  std::string describe() const;
};

// The stream of JetStream that keeps events. It is made where it is not there; one that is there stays as it
// is.
struct NatsStreamOptions {
  std::string name = "ASHLAR_KV";
  bool in_memory = false;                            // else in files
  std::chrono::seconds max_age{24 * 3600};           // 0: for ever
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // the oldest go first; 0: no limit
  std::uint32_t replicas = 1;
  std::chrono::seconds duplicate_window{120};  // how long a batch that was published twice is known

  Result<void> validate() const;
};

enum class NatsMode : std::uint8_t {
  kCore,       // who listens now gets it
  kJetStream,  // the server keeps it
};

}  // namespace ashlar::backend::nats
