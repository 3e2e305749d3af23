// The operator's options of a Redis volume, parsed and validated. ashlar/backend/redis/redis_volume.h lists
// them.
//
// Thread safety: immutable after read().
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::backend::redis {

struct RedisOptions {
  std::string socket;  // a path; empty: host and port
  std::string host;
  int port = 0;
  std::string username;
  std::string password;
  std::string prefix;
  std::uint64_t db = 0;
  std::uint64_t ttl_seconds = 0;
  std::uint64_t max_object_bytes = 0;
  std::uint64_t pipeline = 0;
  std::uint64_t idle_connections = 0;
  std::uint64_t retries = 0;
  std::chrono::milliseconds backoff{};
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds deadline{};

  static Result<RedisOptions> read(const tiers::VolumeDescriptor& descriptor);

  // "redis host:port db 0 prefix".
  std::string describe() const;
};

}  // namespace ashlar::backend::redis
