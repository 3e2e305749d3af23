// What the C library has beyond the core where that was built in. Each function is in one of two files of
// backend/: the part itself, or the answer that it is not built in (kUnsupported).
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/transfer/remote_transport.h"
#include "ashlar/transfer/transfer_engine.h"

namespace ashlar::c_interface {

// Errors: kUnsupported: no CUDA; kUnavailable: no driver or no such device.
Result<transfer::DeviceSupport> device_support(std::int32_t device);

// Remote memory between machines, over UCX's transports of these names. Errors: kUnsupported: no UCX; those
// of UCX.
Result<std::shared_ptr<transfer::RemoteTransport>> ucx_transport(const char* transports);

// The kinds "s3" and "redis".
void add_s3_volumes(tiers::VolumeRegistry& kinds);
void add_redis_volumes(tiers::VolumeRegistry& kinds);

}  // namespace ashlar::c_interface
