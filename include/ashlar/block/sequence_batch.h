// SequenceBatch<Tier>: the requests that run together, scheduled and applied as one. One visit to the manager
// per step, for any number of blocks.
//
//   batch.add(request);                     // for each; a request is in one step at a time
//   auto plan = batch.schedule_decode();    // all or none
//   … compute …
//   batch.apply_decode(tokens);             // one token per request, in the order of add()
//
// A step is refused as a whole: BatchError names the first request that refused it. add() does not check: the
// next step refuses a request of another manager.
//
// Thread safety: thread-compatible. The requests must outlive their membership in the batch.
// Complexity:    O(requests); nothing allocates from the heap once a batch has had as many requests before
//                and the requests have max_tokens, but for what the manager's observers do with its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_error.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block {

// Which request refused a step, and why. No request of the batch was changed.
struct [[nodiscard]] BatchError {
  std::size_t index;
  SequenceError error;

  std::string to_string() const { return "request " + std::to_string(index) + ": " + error.to_string(); }
};

// The total of a scheduled step over all requests.
struct BatchPlan {
  std::size_t new_blocks = 0;
  std::size_t copies = 0;  // the copies themselves: RequestSequence::copies()
};

namespace detail {
class UntypedBatch {
 public:
  void clear() noexcept {
    requests_.clear();
    other_manager_.reset();
  }
  void add(UntypedRequest* request);
  std::size_t size() const noexcept { return requests_.size(); }

  Result<BatchPlan, BatchError> schedule_decode();
  Result<StepOutcome, BatchError> apply_decode(std::span<const tokens::Token> tokens);
  Result<BatchPlan, BatchError> schedule_prefill(std::span<const std::size_t> chunks);
  Result<StepOutcome, BatchError> apply_prefill(std::span<const std::optional<tokens::Token>> tokens);
  void set_written_after(const Fence& fence);
  Result<void, BatchError> revert();
  void release() noexcept;

 private:
  // Errors: kOtherManager, for the first request of another manager than the first one's.
  Result<void, BatchError> check_managers() const;
  template <class TokensOf>
  Result<BatchPlan, BatchError> place_crossing(RequestState state, TokensOf&& tokens_of);
  // Makes the first `count` requests idle again.
  void unschedule(std::size_t count) noexcept;
  template <class MayApply>
  Result<void, BatchError> begin_apply(RequestState state, MayApply&& may_apply);
  template <class Advance, class Retreat>
  Result<StepOutcome, BatchError> apply(RequestState state, Advance&& advance, Retreat&& retreat);
  BatchError out_of_memory(std::size_t request) const;

  std::vector<UntypedRequest*> requests_;
  std::optional<std::size_t> other_manager_;
  // Reused from step to step.
  std::vector<std::uint32_t> crossing_;  // requests that need a block, or fill one
  std::vector<std::size_t> wanted_;      // blocks for each of these
  std::vector<SlotRef> fresh_;
};
}  // namespace detail

template <events::Tier Tier>
class SequenceBatch {
 public:
  // Removes all requests and keeps the memory. Their steps stay scheduled.
  void clear() noexcept { batch_.clear(); }
  void add(RequestSequence<Tier>& request) { batch_.add(&request.untyped()); }
  std::size_t size() const noexcept { return batch_.size(); }

  // Errors: those of RequestSequence, for the first request refused; kOtherManager for requests of different
  // managers; kNoRoom when there is not enough for all; kOutOfMemory, named at request 0. A refused batch has
  // changed nothing.
  Result<BatchPlan, BatchError> schedule_decode() { return batch_.schedule_decode(); }
  // One token per request. Requires: tokens.size() == size(). Errors: those of RequestSequence.
  Result<StepOutcome, BatchError> apply_decode(std::span<const tokens::Token> tokens) {
    return batch_.apply_decode(tokens);
  }
  // chunks[i] tokens of request i. Requires: chunks.size() == size().
  Result<BatchPlan, BatchError> schedule_prefill(std::span<const std::size_t> chunks) {
    return batch_.schedule_prefill(chunks);
  }
  // tokens[i] is the token that the last chunk of request i yields. Requires: tokens.size() == size().
  Result<StepOutcome, BatchError> apply_prefill(std::span<const std::optional<tokens::Token>> tokens) {
    return batch_.apply_prefill(tokens);
  }
  // As RequestSequence::set_written_after(), for every request.
  void set_written_after(const Fence& fence) { batch_.set_written_after(fence); }
  // Drops the scheduled step of every request. Errors: kWrongState, for the first request without one.
  Result<void, BatchError> revert() { return batch_.revert(); }
  // Releases every request.
  void release() noexcept { batch_.release(); }

 private:
  detail::UntypedBatch batch_;
};

}  // namespace ashlar::block
