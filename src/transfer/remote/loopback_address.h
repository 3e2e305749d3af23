// LoopbackAddress: names one process of this machine, and its registration table (registration_table.h).
//
// A process is named by its pid and the time it started, so a pid that was given to another process is not
// taken for it; and by the boot and the pid namespace in which that pid means something.
//
// Thread safety: immutable value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "base/owned_fd.h"

namespace ashlar::transfer {

// A file that a process has open.
struct ProcessFile {
  std::int32_t descriptor = -1;  // of that process
  std::uint64_t device_id = 0;
  std::uint64_t inode = 0;

  friend bool operator==(const ProcessFile&, const ProcessFile&) = default;
};

struct LoopbackAddress {
  std::int32_t pid = 0;
  std::uint64_t started = 0;  // in ticks since the boot
  std::array<std::byte, 16> boot = {};
  std::uint64_t pid_namespace = 0;
  std::uint32_t user = 0;
  ProcessFile table = {};

  // Of this process. Errors: kUnsupported: no /proc.
  static Result<LoopbackAddress> of_this_process();
  std::vector<std::byte> encode() const;
  // Errors: kInvalidArgument: not such bytes.
  static Result<LoopbackAddress> decode(std::span<const std::byte> bytes);

  friend bool operator==(const LoopbackAddress&, const LoopbackAddress&) = default;
};

// When a process started. Errors: kUnavailable: there is none of that pid.
Result<std::uint64_t> process_start(std::int32_t pid);
// Passes when the process has ended. Errors: kUnavailable: it has, or is not the one of the address, or lives
// elsewhere.
Result<OwnedFd> open_process(const LoopbackAddress& address);
// Whether the process of such a descriptor has ended.
bool process_ended(const OwnedFd& process) noexcept;
// Opens a sealed memory file of another process again: a description of its own. Errors: kUnsupported: the
// system forbids it; kUnavailable: no such descriptor there; kInvalidArgument: another file, one that is not
// memory, or one shorter than `bytes`.
Result<OwnedFd> open_memory_file(std::int32_t pid, const ProcessFile& file, std::uint64_t bytes, int flags);

}  // namespace ashlar::transfer
