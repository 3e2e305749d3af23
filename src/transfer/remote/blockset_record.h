// BlockSetRecord: a block set as its owner describes it to other agents: who and where the owner is, how the
// blocks are named, the registered memory, and every plane as a layout descriptor over that memory.
//
// docs/formats/blockset.md has every byte. The bytes are untrusted: deserialize() returns a record that
// validate() accepts, or an error, and never reads outside them.
//
// Thread safety: plain value; thread-compatible.
// Complexity:    linear in the bytes; validate() sorts the regions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout_descriptor.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/remote_agent.h"
#include "transfer/remote/handshake.h"

namespace ashlar::transfer {

struct BlockSetRecord {
  static constexpr std::uint16_t kVersion = 3;
  static constexpr std::size_t kMaxBytes = std::size_t{8} << 20;
  static constexpr std::size_t kMaxPlanes = 64;
  static constexpr std::size_t kMaxMemories = 4096;

  // A registration.
  struct Memory {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::vector<std::byte> key = {};
    storage::AccessMode mode = storage::AccessMode::kRead;

    friend bool operator==(const Memory&, const Memory&) = default;
  };
  struct RecordPlane {
    layout::LayoutDescriptor descriptor;
    std::vector<std::uint32_t> memories;  // of each region: which registration it lies in

    friend bool operator==(const RecordPlane&, const RecordPlane&) = default;
  };

  AgentIdentity owner = {};
  std::string name = {};
  std::string address = {};
  std::string transport = {};
  std::vector<std::byte> transport_address = {};
  std::uint64_t id = 0;
  BlockSetNames names = {};
  // Grows with every set that this incarnation offers: of two sets with one id the larger is the later one.
  std::uint64_t generation = 0;
  std::vector<Memory> memories = {};
  std::vector<RecordPlane> planes = {};

  // Errors: kInvalidArgument: a field out of its bounds; planes that disagree in set, names, storage or
  // process; a region outside its registration, or regions that overlap.
  Result<void> validate() const;
  // Requires: validate().
  std::vector<std::byte> serialize() const;
  // Errors: kInvalidArgument: not a block set, or one that does not hold together; kUnsupported: a newer
  // version; kCorruption: truncated or altered bytes.
  static Result<BlockSetRecord> deserialize(std::span<const std::byte> bytes);

  // Memory `at` for a transport.
  storage::RemoteMemory memory(std::size_t at) const;
  // The planes over opened memory, one storage for each of `memories`.
  Result<std::shared_ptr<const BlockSet>> build(
      std::span<const std::shared_ptr<storage::RemoteStorage>> opened) const;

  friend bool operator==(const BlockSetRecord&, const BlockSetRecord&) = default;
};

}  // namespace ashlar::transfer
