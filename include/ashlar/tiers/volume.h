// Volume: storage that an operator provisioned, as a flat space of objects: what G4 consists of.
//
// A volume stores and returns bytes under a key, whole, and knows nothing of blocks; what the bytes are says
// their own header (volume_object.h). It never mounts, formats or configures anything. Calls are in batches,
// and every object has an answer of its own: one that fails does not harm the others.
//
// Every call has limits: a deadline and a stop. A volume obeys them as far as the system lets it. What it
// cannot interrupt (a read from a file system that hangs, the resolution of a name) it finishes; VolumePool
// leaves such calls behind.
//
// Keys are at most kMaxKey characters of [A-Za-z0-9._-] with '/' between parts that are not empty, "." or
// "..".
//
// A backend is one class that implements this and one line that registers it (volume_registry.h);
// docs/writing_a_volume.md shows how.
//
// Thread safety: thread-safe; several batches may run at once.
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

// The bytes are those of all parts, one after the other.
struct ObjectWrite {
  std::string_view key;
  std::span<const std::span<const std::byte>> parts;

  std::uint64_t size() const noexcept {
    std::uint64_t sum = 0;
    for (const std::span<const std::byte>& part : parts) sum += part.size();
    return sum;
  }
};

// The bytes go to all parts, one after the other. An object that has not exactly size() bytes is an error:
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

// How long a call may go on. When the deadline has come, or a stop was requested, the call ends soon: objects
// that were done keep their answers, the others fail with kTimeout or kCancelled.
struct CallLimits {
  std::optional<Clock::TimePoint> deadline = {};  // of a volume: by Clock::real()
  std::stop_token stop = {};

  // Errors: kCancelled, kTimeout: the call is to end.
  Result<void> check(const Clock& clock = Clock::real()) const;
};

class Volume {
 public:
  static constexpr std::size_t kMaxKey = 512;

  virtual ~Volume() = default;

  // For messages and metrics: "directory /data/kv". Never holds credentials.
  virtual std::string describe() const = 0;

  // All four: errors per object besides those below: kTimeout, kCancelled, by the limits. When a call has
  // returned, nothing touches the caller's memory any more. A put or remove that was stopped may have
  // happened, or may happen yet.

  // An object that is there already under the same key is kept or replaced, never mixed; readers see one or
  // the other, whole. It survives what the backend survives when this returns. Errors per object: kCapacity:
  // no space; kUnavailable: the service cannot be reached, after bounded retries; kInvalidArgument: the key;
  // kIo.
  virtual std::vector<Result<void>> put(std::span<const ObjectWrite> objects,
                                        const CallLimits& limits = {}) = 0;
  // Errors per object: kNotFound; kCorruption: another size; kUnavailable; kInvalidArgument; kIo.
  virtual std::vector<Result<void>> get(std::span<const ObjectRead> objects,
                                        const CallLimits& limits = {}) = 0;
  // Errors per object: kUnavailable; kInvalidArgument; kIo.
  virtual std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                             const CallLimits& limits = {}) = 0;
  // An object that is not there is no error.
  virtual std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                           const CallLimits& limits = {}) = 0;
};

// Errors: kInvalidArgument with the key.
Result<void> check_key(std::string_view key);

}  // namespace ashlar::tiers
