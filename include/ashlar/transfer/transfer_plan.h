// TransferPlan: what one transfer moves: a copy plan per plane, and both block sets, which it keeps alive.
//
// Thread safety: immutable once made.
// Complexity:    plan() is that of copy_plan.h, per plane.
// Invariant:     all planes move the same blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/copy_plan.h"

namespace ashlar::transfer {

class TransferPlan {
 public:
  // Empty: it moves nothing and has no sets. plan() makes the others.
  TransferPlan() = default;

  bool empty() const noexcept { return from_ == nullptr; }
  const BlockSet& from() const noexcept { return *from_; }
  const BlockSet& to() const noexcept { return *to_; }
  const std::shared_ptr<const BlockSet>& shared_from() const noexcept { return from_; }
  const std::shared_ptr<const BlockSet>& shared_to() const noexcept { return to_; }
  // One per plane.
  std::span<const CopyPlan> copies() const noexcept { return copies_; }
  // The layers and heads of the model that move; both are set.
  const PlanSelection& selection() const noexcept { return selection_; }
  // The same copies between sets of the same layouts over other memory, such as what this process has mapped
  // of another's. O(blocks), without planning again. Requires: equal layouts and shards, plane by plane.
  TransferPlan between(std::shared_ptr<const BlockSet> from, std::shared_ptr<const BlockSet> to) const;
  std::uint64_t bytes() const noexcept;
  std::uint64_t pieces() const noexcept;

 private:
  friend Result<TransferPlan> plan(std::shared_ptr<const BlockSet>, std::span<const std::uint32_t>,
                                   std::shared_ptr<const BlockSet>, std::span<const std::uint32_t>,
                                   const PlanSelection&);

  std::shared_ptr<const BlockSet> from_;
  std::shared_ptr<const BlockSet> to_;
  std::vector<CopyPlan> copies_;
  PlanSelection selection_;
};

// Block i of `from_blocks` goes to block i of `to_blocks`, with all planes. A plane with one head for all
// others moves whole whatever heads are selected.
// Errors: those of plan() in copy_plan.h; kInvalidArgument: planes that do not match, memory that both sides
// share and that would be read and written, or a target that a peer offers for reading only; kUnsupported: a
// plane with one head for all where the destination keeps heads that do not move, since one value cannot hold
// for both.
Result<TransferPlan> plan(std::shared_ptr<const BlockSet> from, std::span<const std::uint32_t> from_blocks,
                          std::shared_ptr<const BlockSet> to, std::span<const std::uint32_t> to_blocks,
                          const PlanSelection& selection = {});

}  // namespace ashlar::transfer
