// Volume: storage that an operator provisioned, as a flat space of objects. G4 consists of volumes.
//
// A volume stores and returns whole objects under a key. It knows nothing of blocks, and never mounts,
// formats or configures anything. Calls take batches, and every object has its own result: one that fails
// does not affect the others.
//
// Every call has limits: a deadline and a stop token. A volume obeys them as far as the system lets it. What
// it cannot interrupt (a read from a hung file system, a name lookup) it finishes; the library stops waiting
// for such calls.
//
// Keys have at most kMaxKey characters of [A-Za-z0-9._-], with '/' between parts. No part is empty, "." or
// "..".
//
// A backend is one class that implements Volume and one line that registers it (volume_registry.h);
// docs/writing_a_volume.md shows how.
//
// Thread safety: thread-safe; several batches may run at once.
// Invariant:     after a call has returned, the volume does not touch the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::tiers {

// An object to write: the concatenation of all parts. The caller keeps key and parts until the call returns.
struct ObjectWrite {
  std::string_view key;
  std::span<const std::span<const std::byte>> parts;

  std::uint64_t size() const noexcept {
    std::uint64_t sum = 0;
    for (const std::span<const std::byte>& part : parts) sum += part.size();
    return sum;
  }
};

// An object to read into all parts, one after the other. An object of another size than size() fails with
// kCorruption.
struct ObjectRead {
  std::string_view key;
  std::span<const std::span<std::byte>> parts;

  std::uint64_t size() const noexcept {
    std::uint64_t sum = 0;
    for (const std::span<std::byte>& part : parts) sum += part.size();
    return sum;
  }
};

// How long a call may run. Once the deadline has passed or a stop was requested, the call ends soon: finished
// objects keep their results, the others fail with kTimeout or kCancelled.
struct CallLimits {
  std::optional<Clock::TimePoint> deadline = {};  // volumes get it by Clock::real()
  std::stop_token stop = {};

  // Errors: kCancelled, kTimeout: the call must end.
  Result<void> check(const Clock& clock = Clock::real()) const;
};

class Volume {
 public:
  static constexpr std::size_t kMaxKey = 512;

  virtual ~Volume() = default;

  // For messages and metrics: "directory /data/kv". Never contains credentials.
  virtual std::string describe() const = 0;

  // All four calls return one result per object, in order. Besides the errors below, an object can fail with
  // kTimeout or kCancelled by the limits. A put or remove that was stopped may have happened, or may still
  // happen.

  // Writes objects. An existing object is kept or replaced as a whole: readers see one or the other. When
  // this returns, the object is as durable as the backend makes it. Errors per object: kCapacity: no space;
  // kUnavailable: the service cannot be reached, after bounded retries; kInvalidArgument: the key; kIo.
  virtual std::vector<Result<void>> put(std::span<const ObjectWrite> objects,
                                        const CallLimits& limits = {}) = 0;
  // Reads objects. Errors per object: kNotFound; kCorruption: another size; kUnavailable; kInvalidArgument;
  // kIo.
  virtual std::vector<Result<void>> get(std::span<const ObjectRead> objects,
                                        const CallLimits& limits = {}) = 0;
  // Tells which objects exist, without reading them. Errors per object: kUnavailable; kInvalidArgument; kIo.
  virtual std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                             const CallLimits& limits = {}) = 0;
  // Removes objects; a missing object is not an error. Errors per object: as contains().
  virtual std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                           const CallLimits& limits = {}) = 0;
};

// Errors: kInvalidArgument with the key.
Result<void> check_key(std::string_view key);

}  // namespace ashlar::tiers
