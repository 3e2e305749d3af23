// Volumes in a cache server that speaks the protocol of Redis: Redis, Valkey, KeyDB, … through hiredis.
//
//   registry.add("redis", backend::redis::attach);
//   auto volume = registry.attach(
//       {.name = "shared", .kind = "redis", .location = "cache7:6379", .options = {…}});
//
// The location is "host", "host:port", "[address]:port" or "unix:PATH". An object is a string under prefix
// and key. Nothing is sent before the first call.
//
// | option | default | |
// |---|---|---|
// | username, password | none | a password alone belongs to the default user |
// | db | 0 | |
// | prefix | | before every key: "ashlar:" |
// | ttl_seconds | 0: none | an object expires this long after its last put |
// | max_object_bytes | 536870912 | larger: kCapacity; the server's limit is proto-max-bulk-len |
// | pipeline | 64 | commands in flight, within 64 MiB of expected bytes |
// | idle_connections | 8 | kept for the next batches |
// | retries | 3 | of connecting, or of a connection that broke before any answer |
// | backoff_ms | 50 | before the first retry; doubles up to 64 times, half of it random |
// | connect_timeout_ms | 3000 | |
// | timeout_ms | 5000 | a connection without traffic for this long is closed |
// | deadline_ms | 60000 | so is one without an answered object for this long |
//
// put() replaces an existing object, and restarts its time to live. There is no TLS: the hiredis of Debian 12
// has none; use a tunnel, or a unix socket.
//
// Thread safety: of the volume: thread-safe; a batch has its own connection.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::backend::redis {

// Errors: kInvalidArgument: the location or an option, never with an option's value.
Result<std::unique_ptr<tiers::Volume>> attach(const tiers::VolumeDescriptor& descriptor);

}  // namespace ashlar::backend::redis
