// CanonicalBlock: the elements of one block in canonical form, in memory of its own, to compare them with
// their checksum.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout_config.h"
#include "ashlar/layout/shard.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"

namespace ashlar::inspect {

class CanonicalBlock {
 public:
  struct PlanePart {
    layout::LayoutConfig config;  // its block count and alignment do not matter
    layout::Shard shard;
  };
  // Errors: kUnsupported: larger than kMostBytes; kInvalidArgument: planes that do not hold together.
  static Result<CanonicalBlock> create(std::span<const PlanePart> planes);
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

  // Of all planes, one after the other.
  std::span<std::byte> bytes() noexcept { return {bytes_->data(), bytes_->size()}; }
  const transfer::BlockSet& set() const noexcept { return *set_; }
  Result<transfer::BlockChecksum> checksum(const transfer::ChecksumKey& key) const {
    return transfer::checksum_block(*set_, 0, key);
  }

 private:
  CanonicalBlock() = default;

  std::shared_ptr<std::vector<std::byte>> bytes_;
  std::shared_ptr<const transfer::BlockSet> set_;
};

}  // namespace ashlar::inspect
