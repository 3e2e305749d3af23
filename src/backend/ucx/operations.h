// OperationCursor: the one-sided operations of a transfer, in the order of its plan.
//
// Pieces that follow each other on both sides become one operation, up to strip_bytes.
//
// Thread safety: thread-compatible. The plan outlives the cursor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::backend::ucx {

class UcxAccess;

struct Operation {
  std::byte* local = nullptr;
  std::uint64_t remote = 0;
  const UcxAccess* access = nullptr;
  std::uint64_t bytes = 0;
};

class OperationCursor {
 public:
  // Requires: the remote side is storage of this transport.
  OperationCursor(const transfer::TransferPlan& plan, std::uint64_t strip_bytes);

  // Whether the local side is read.
  bool puts() const noexcept { return puts_; }
  // False when none is left.
  bool next(Operation* out);

 private:
  bool next_piece(Operation* out);

  const transfer::TransferPlan* plan_;
  std::uint64_t strip_bytes_;
  bool puts_;
  std::vector<std::vector<const UcxAccess*>> accesses_;  // by plane and region
  std::size_t plane_ = 0;
  std::optional<transfer::CopyCursor> cursor_;
  std::optional<Operation> ahead_;
};

}  // namespace ashlar::backend::ucx
