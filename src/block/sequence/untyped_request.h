// UntypedRequest: the untyped implementation of one RequestSequence. Batches work on these directly.
//
// Scheduling and applying a decode step inside a block touches only the first fields; all other work happens
// when `computed` reaches `next_event`, or `room` runs out.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "block/sequence/block_tables.h"
#include "block/sequence/sequence_text.h"

namespace ashlar::block::detail {

class UntypedRequest {
 public:
  UntypedRequest(SequenceText text, BlockTables tables, std::size_t max_tokens, bool reuse_last_token,
                 const PrefixBudget& onboard);

  RequestState state() const noexcept { return state_; }
  const SequenceText& text() const noexcept { return text_; }
  SequenceText& text() noexcept { return text_; }
  BlockTables& tables() noexcept { return tables_; }
  const BlockTables& tables() const noexcept { return tables_; }
  std::size_t size() const noexcept { return text_.tokens.size(); }
  std::size_t prompt_size() const noexcept { return prompt_size_; }
  std::size_t computed() const noexcept { return computed_; }
  std::size_t cached() const noexcept { return cached_; }
  std::size_t max_tokens() const noexcept { return max_tokens_; }

  Result<std::size_t, SequenceError> match_prefix();
  Result<MatchStart, SequenceError> begin_match(std::function<void()> on_ready);
  Result<std::size_t, SequenceError> finish_match();
  bool match_ready() const { return arriving_ == nullptr || arriving_->done(); }
  Result<std::vector<BlockId>> wait_layer(std::uint32_t layer, std::optional<Clock::TimePoint> until);
  Result<std::size_t, SequenceError> resume();
  Result<void, SequenceError> preempt();
  Result<void, SequenceError> revert();
  Result<std::unique_ptr<UntypedRequest>, SequenceError> fork(std::optional<tokens::Token> last);
  void release() noexcept;
  void release_after(const Fence& fence);

  // ---- a step in three parts: check, blocks, state. Batches do each part for all requests.

  Result<void, SequenceError> can_prefill(std::size_t tokens) const;
  Result<void, SequenceError> can_decode() const;
  // A decode step that needs no blocks and no checks: inside a block that only this request owns.
  bool decodes_in_place() const noexcept {
    return state_ == RequestState::kIdle && size() == computed_ + 1 && computed_ < room_ &&
           size() != max_tokens_;
  }
  // Blocks that a step over `tokens` tokens needs. Reserves memory for them; throws std::bad_alloc.
  std::size_t wanted(std::size_t tokens) {
    const std::size_t count = tables_.wanted(computed_, blocks_for(tokens));
    if (count <= tables_.store().options().block_count) tables_.make_room(computed_, blocks_for(tokens));
    return count;
  }
  void place(std::size_t tokens, std::span<const SlotRef> fresh) {
    tables_.place(computed_, blocks_for(tokens), fresh);
  }
  void set_scheduled(RequestState state, std::size_t tokens) noexcept {
    state_ = state;
    scheduled_ = tokens;
  }
  // In the middle of a batch: marks the step as being applied, so that it is not applied twice. The scheduled
  // tokens stay.
  void set_state(RequestState state) noexcept { state_ = state; }
  // After place().
  void placed() noexcept {
    room_ = tables_.size() * block_size_;
    if (!tables_.copies().empty()) next_event_ = 0;
  }
  // Checks, takes the blocks, and schedules.
  Result<StepPlan, SequenceError> schedule(Result<void, SequenceError> allowed, RequestState state,
                                           std::size_t tokens);

  Result<void, SequenceError> can_apply_prefill(bool with_token) const;
  Result<void, SequenceError> can_apply_decode() const;
  Result<void, SequenceError> can_apply_speculative(std::size_t accepted) const;
  // The first `computed` of the scheduled tokens have KV now, and the step produced `next`. collect() comes
  // next. Throws std::bad_alloc without changing anything.
  void advance(std::size_t computed, std::span<const tokens::Token> next) {
    text_.tokens.insert(text_.tokens.end(), next.begin(), next.end());
    computed_ += computed;
    state_ = RequestState::kIdle;
  }
  // The same for a decode step. Returns false when there is nothing to collect or settle.
  bool advance(tokens::Token next) {
    text_.tokens.push_back(next);
    ++computed_;
    state_ = RequestState::kIdle;
    return computed_ >= next_event_;
  }
  // Undoes advance(): the step is scheduled again, as before it computed `computed` tokens and produced
  // `next`.
  void retreat(RequestState state, std::size_t computed, std::size_t next) noexcept;
  std::size_t scheduled() const noexcept { return scheduled_; }
  // Lists the blocks that became complete; after publish(), settle() releases blocks no longer needed.
  void collect(std::vector<BlockTables::Publication>& out) {
    tables_.collect(text_, computed_ / block_size_, out);
  }
  void settle() noexcept;
  // advance(), collect(), publish() and settle(). Errors: kOutOfMemory; the step remains scheduled.
  Result<StepOutcome, SequenceError> apply(std::size_t computed, std::span<const tokens::Token> next);
  Result<StepOutcome, SequenceError> apply_decode(tokens::Token next) {
    if (computed_ + 1 >= next_event_) return apply(1, {&next, 1});
    try {
      advance(next);
    } catch (const std::bad_alloc&) {
      return refusal(SequenceError::Reason::kOutOfMemory);
    }
    return StepOutcome{0, 0, at_limit()};
  }
  bool at_limit() const noexcept { return size() == max_tokens_; }

  SequenceError refusal(SequenceError::Reason reason, std::size_t asked = 0, std::size_t limit = 0) const;
  // `needed`: the state that the call is for.
  SequenceError wrong_state(std::string_view needed) const;

 private:
  // Saturates: a number too large for any pool stays too large.
  std::size_t blocks_for(std::size_t tokens) const noexcept {
    constexpr std::size_t kTooMany = std::size_t{1} << 48;
    return (computed_ + std::min(tokens, kTooMany) + block_size_ - 1) / block_size_;
  }
  std::size_t match_limit() const noexcept;
  Result<std::size_t, SequenceError> begin_with_cache();
  bool may_match() const noexcept;
  // The first `blocks` blocks are cached.
  std::size_t matched(std::size_t blocks) noexcept;
  void reserve();

  RequestState state_ = RequestState::kIdle;
  bool reuse_last_token_;
  std::uint32_t block_size_;
  std::size_t computed_ = 0;
  std::size_t room_ = 0;        // tokens that fit in the tables, while no block is shared
  std::size_t next_event_ = 0;  // finish() has work once this many tokens are computed
  std::size_t max_tokens_;      // 0: no limit
  std::size_t scheduled_ = 0;   // tokens of the scheduled step
  SequenceText text_;  // a decode step needs the fields above, and the tokens, which come first in it
  std::size_t cached_ = 0;
  std::size_t prompt_size_;
  BlockTables tables_;
  PrefixBudget onboard_;
  BlockTables::Arrival arriving_;  // from below; null unless Onboarding
};

}  // namespace ashlar::block::detail
