// OperationCursor: the gets or puts of a transfer, in the order of its plan.
//
// Pieces that follow each other on both sides become one operation, up to what the link allows.
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

class Link;
class UcxAccess;

struct Operation {
  std::byte* local = nullptr;
  std::uint64_t remote = 0;
  const UcxAccess* access = nullptr;
  std::uint64_t bytes = 0;
};

class OperationCursor {
 public:
  // Requires: the remote side is storage of this transport, behind `link`.
  OperationCursor(const transfer::TransferPlan& plan, const Link& link);

  // Whether the local side is read.
  bool puts() const noexcept { return puts_; }
  // Whether no byte travels in messages.
  bool is_mapped() const noexcept { return is_mapped_; }
  // False when none is left.
  bool next(Operation* out);

 private:
  bool next_piece(Operation* out);

  const transfer::TransferPlan* plan_;
  bool puts_;
  bool is_mapped_ = true;
  std::vector<std::vector<const UcxAccess*>> accesses_;  // by plane and region
  std::uint64_t strip_bytes_ = 0;
  std::size_t plane_ = 0;
  std::optional<transfer::CopyCursor> cursor_;
  std::optional<Operation> ahead_;
};

}  // namespace ashlar::backend::ucx
