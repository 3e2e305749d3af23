// Volumes in a cache server that speaks the protocol of Redis: Redis, Valkey, KeyDB, … through hiredis.
//
//   registry.add("redis", backend::redis::attach);
//   auto volume = registry.attach({.name = "shared", .kind = "redis", .location = "cache7:6379", .options =
//   {…}});
//
// The location is "host", "host:port", "[address]:port" or "unix:PATH". An object is a string under prefix
// and key. Nothing is sent before the first call.
//
// | option | default | |
// |---|---|---|
// | username, password | none | a password alone is that of the default user |
// | db | 0 | |
// | prefix | | before every key: "ashlar:" |
// | ttl_seconds | 0: none | an object goes so long after it was last put |
// | max_object_bytes | 536870912 | larger ones are refused: kCapacity; the server's own limit is
// proto-max-bulk-len | | pipeline | 64 | commands on their way at once, within 64 MiB of expected bytes | |
// idle_connections | 8 | kept for the next batches | | retries | 3 | of connecting, or of a connection that
// broke before anything was answered on it | | backoff_ms | 50 | before the first retry; doubles to 64 times
// that, half of it by chance | | connect_timeout_ms | 3000 | | | timeout_ms | 5000 | a connection on which no
// byte moves for so long is given up | | deadline_ms | 60000 | so is one on which no object is answered for
// so long |
//
// put() replaces what is there, and begins its time to live anew. There is no TLS: the hiredis of Debian 12
// has none; a tunnel, or a unix socket, does.
//
// Thread safety: of the volume: thread-safe; a batch has a connection of its own.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::backend::redis {

// Errors: kInvalidArgument: the location or an option, never with the value of one.
Result<std::unique_ptr<tiers::Volume>> attach(const tiers::VolumeDescriptor& descriptor);

}  // namespace ashlar::backend::redis
