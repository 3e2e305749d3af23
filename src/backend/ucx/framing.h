// Frames around what UCX packs: worker addresses and remote keys.
//
// UCX parses both without looking at their length. A frame has a version, lengths and a checksum, which are
// verified before UCX sees a byte; what it then sees is followed by zeros, so that a length inside cannot
// lead it beyond the buffer. The checksum finds accidents, not forgers: see ucx_transport.h.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/storage/remote_storage.h"

namespace ashlar::backend::ucx {

struct WorkerAddress {
  std::uint64_t machine = 0;    // equal on processes that share a system, its network and process ids
  std::uint32_t process = 0;    // its id
  std::string transports = {};  // of the options
  std::string hosts = {};       // where TCP connections are accepted: "10.0.0.2,10.0.1.2"
  std::uint16_t port = 0;
  std::vector<std::byte> packed = {};  // UCX's own; empty without shared memory
};

struct MemoryKey {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t region = 0;  // in the owner's RegionTable, with its token
  std::uint64_t token = 0;
  StorageKind kind = StorageKind::kSystem;
  std::int32_t device = storage::Storage::kNoDevice;
  storage::AccessMode mode = storage::AccessMode::kRead;  // for this side; the owner looks at its own table
  std::vector<std::byte> packed = {};                     // UCX's own; empty where messages are used
};

std::vector<std::byte> encode(const WorkerAddress& address);
std::vector<std::byte> encode(const MemoryKey& key);
// Errors: kInvalidArgument with what is wrong. `packed` is followed by kPadding zeros, which are not part of
// its length in the frame.
Result<WorkerAddress> decode_address(std::span<const std::byte> bytes);
Result<MemoryKey> decode_key(std::span<const std::byte> bytes);

// More than 64 domains of 255 bytes each, which is the most that a packed key names.
inline constexpr std::size_t kPadding = std::size_t{32} << 10;

}  // namespace ashlar::backend::ucx
