#include "block/sequence/untyped_request.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"
#include "block/store/thread_scratch.h"

namespace ashlar::block::detail {

using Reason = SequenceError::Reason;

namespace {
// A limit above this is not taken as an expectation: memory beyond it is allocated on demand.
constexpr std::size_t kReservedTokens = std::size_t{1} << 20;
}  // namespace

UntypedRequest::UntypedRequest(SequenceText text, BlockTables tables, std::size_t max_tokens,
                               bool reuse_last_token, const PrefixBudget& onboard)
    : reuse_last_token_(reuse_last_token),
      block_size_(text.rules->block_size),
      next_event_(block_size_),
      max_tokens_(max_tokens),
      text_(std::move(text)),
      prompt_size_(text_.tokens.size()),
      tables_(std::move(tables)),
      onboard_(onboard) {
  reserve();
}

void UntypedRequest::reserve() {
  if (max_tokens_ == 0) return;
  const std::size_t tokens = std::max(std::min(max_tokens_, kReservedTokens), size());
  const std::size_t blocks = (tokens + block_size_ - 1) / block_size_;
  text_.reserve(tokens, blocks);
  tables_.reserve(blocks);
}

SequenceError UntypedRequest::refusal(Reason reason, std::size_t asked, std::size_t limit) const {
  return {reason, to_string(state_), asked, limit, std::nullopt};
}

SequenceError UntypedRequest::wrong_state(std::string_view needed) const {
  SequenceError error = refusal(Reason::kWrongState);
  error.needed = needed;
  return error;
}

// ---- the cache

std::size_t UntypedRequest::match_limit() const noexcept {
  const bool whole = reuse_last_token_ && size() == prompt_size_;
  return (whole ? size() : size() - 1) / block_size_;
}

Result<std::size_t, SequenceError> UntypedRequest::begin_with_cache() {
  try {
    return matched(tables_.match_with_source(text_, match_limit(), onboard_));
  } catch (const std::bad_alloc&) {
    tables_.release();
    return refusal(Reason::kOutOfMemory);
  }
}

std::size_t UntypedRequest::matched(std::size_t blocks) noexcept {
  cached_ = computed_ = blocks * block_size_;
  state_ = RequestState::kIdle;
  settle();
  return cached_;
}

bool UntypedRequest::may_match() const noexcept {
  if (state_ == RequestState::kPreempted) return true;
  return state_ == RequestState::kIdle && tables_.size() == 0 && computed_ == 0;
}

Result<MatchStart, SequenceError> UntypedRequest::begin_match(std::function<void()> on_ready) {
  if (!may_match()) return wrong_state("preempted, or idle and has no blocks");
  try {
    const std::size_t blocks = tables_.match(text_, match_limit());
    arriving_ = tables_.bring(text_, blocks, match_limit(), onboard_, std::move(on_ready));
    if (arriving_ == nullptr) return MatchStart{matched(blocks), false};
    cached_ = computed_ = blocks * block_size_;
    state_ = RequestState::kOnboarding;
    return MatchStart{cached_, true};
  } catch (const std::bad_alloc&) {
    tables_.release();
    return refusal(Reason::kOutOfMemory);
  }
}

Result<std::size_t, SequenceError> UntypedRequest::finish_match() {
  if (state_ != RequestState::kOnboarding) return wrong_state(to_string(RequestState::kOnboarding));
  std::size_t blocks = cached_ / block_size_;
  try {
    if (arriving_->wait() != 0) blocks = tables_.match_further(text_, blocks, match_limit());
  } catch (const std::bad_alloc&) {
    return refusal(Reason::kOutOfMemory);  // still Onboarding: it may be called again
  }
  arriving_.reset();
  return matched(blocks);
}

Result<std::vector<BlockId>> UntypedRequest::wait_layer(std::uint32_t layer,
                                                        std::optional<Clock::TimePoint> until) {
  if (state_ != RequestState::kOnboarding)
    return make_error(ErrorCode::kNotReady,
                      "the request is %s; layers arrive between begin_match() and "
                      "finish_match()",
                      std::string(to_string(state_)).c_str());
  return arriving_->wait_layer(layer, until);
}

Result<std::size_t, SequenceError> UntypedRequest::match_prefix() {
  if (state_ != RequestState::kIdle || tables_.size() != 0 || computed_ != 0)
    return wrong_state("idle and has no blocks");
  return begin_with_cache();
}

Result<void, SequenceError> UntypedRequest::preempt() {
  if (state_ != RequestState::kIdle && state_ != RequestState::kOnboarding)
    return wrong_state("idle or onboarding");
  arriving_.reset();
  tables_.leave_for(text_);
  tables_.release();
  computed_ = cached_ = room_ = 0;
  next_event_ = block_size_;
  state_ = RequestState::kPreempted;
  return {};
}

Result<std::size_t, SequenceError> UntypedRequest::resume() {
  if (state_ != RequestState::kPreempted) return wrong_state(to_string(RequestState::kPreempted));
  return begin_with_cache();
}

void UntypedRequest::release() noexcept {
  arriving_.reset();
  tables_.release();
  computed_ = cached_ = room_ = 0;
  state_ = RequestState::kReleased;
}

void UntypedRequest::release_after(const Fence& fence) {
  tables_.release_after(fence);
  release();
}

Result<std::unique_ptr<UntypedRequest>, SequenceError> UntypedRequest::fork(
    std::optional<tokens::Token> last) {
  if (state_ != RequestState::kIdle) return wrong_state(to_string(RequestState::kIdle));
  if (last && size() != computed_ + 1) return refusal(Reason::kPrefillIncomplete, 1, size() - computed_);
  std::unique_ptr<UntypedRequest> other;
  try {
    other = std::make_unique<UntypedRequest>(text_, tables_.fork(), max_tokens_, reuse_last_token_, onboard_);
  } catch (const std::bad_alloc&) {
    tables_.take_back_shares();
    return refusal(Reason::kOutOfMemory);
  }
  other->prompt_size_ = prompt_size_;
  other->computed_ = computed_;
  other->cached_ = cached_;
  if (last) {
    other->text_.tokens.back() = *last;
    other->text_.forget_names_from((size() - 1) / block_size_);
  }
  // The last block is shared now; a writer checks that first.
  settle();
  other->settle();
  if (computed_ % block_size_ != 0) room_ = other->room_ = computed_;
  return other;
}

// ---- scheduling

Result<void, SequenceError> UntypedRequest::can_prefill(std::size_t tokens) const {
  if (state_ != RequestState::kIdle) return wrong_state(to_string(RequestState::kIdle));
  const std::size_t left = size() - computed_;
  if (tokens == 0) return refusal(Reason::kNothingToCompute, 0, left);
  if (tokens > left) return refusal(Reason::kPrefillOverrun, tokens, left);
  if (tokens == left && at_limit()) return refusal(Reason::kTooLong, size() + 1, max_tokens_);
  return {};
}

Result<void, SequenceError> UntypedRequest::can_decode() const {
  if (state_ != RequestState::kIdle) return wrong_state(to_string(RequestState::kIdle));
  if (size() != computed_ + 1) return refusal(Reason::kPrefillIncomplete, 1, size() - computed_);
  if (at_limit()) return refusal(Reason::kTooLong, size() + 1, max_tokens_);
  return {};
}

Result<StepPlan, SequenceError> UntypedRequest::schedule(Result<void, SequenceError> allowed,
                                                         RequestState state, std::size_t tokens) {
  if (!allowed) return allowed.error();
  auto taken = unless_out_of_memory(
      [&]() -> std::optional<Result<std::size_t, AllocationRefusal>> {
        return tables_.extend(computed_, blocks_for(tokens));
      },
      [] { return std::nullopt; });
  if (!taken) return refusal(Reason::kOutOfMemory);
  if (!*taken) {
    const AllocationRefusal& why = taken->error();
    SequenceError error = refusal(Reason::kNoRoom, why.requested, why.status.available());
    error.refusal = why;
    return error;
  }
  placed();
  set_scheduled(state, tokens);
  return StepPlan{**taken, tables_.copies()};
}

Result<void, SequenceError> UntypedRequest::revert() {
  switch (state_) {
    case RequestState::kPrefillScheduled:
    case RequestState::kDecodeScheduled:
    case RequestState::kSpeculativeScheduled:
      break;
    default:
      return wrong_state("scheduled");
  }
  tables_.truncate(blocks_for(0));
  const bool shared = !tables_.copies().empty();
  tables_.undo_copies(computed_);
  state_ = RequestState::kIdle;
  scheduled_ = 0;
  settle();
  if (shared) room_ = computed_;
  return {};
}

// ---- applying

Result<void, SequenceError> UntypedRequest::can_apply_prefill(bool with_token) const {
  if (state_ != RequestState::kPrefillScheduled)
    return wrong_state(to_string(RequestState::kPrefillScheduled));
  const bool last = computed_ + scheduled_ == size();
  if (last && !with_token) return refusal(Reason::kTokenMissing);
  if (!last && with_token) return refusal(Reason::kTokenNotExpected);
  return {};
}

Result<void, SequenceError> UntypedRequest::can_apply_decode() const {
  if (state_ != RequestState::kDecodeScheduled) return wrong_state(to_string(RequestState::kDecodeScheduled));
  return {};
}

Result<void, SequenceError> UntypedRequest::can_apply_speculative(std::size_t accepted) const {
  if (state_ != RequestState::kSpeculativeScheduled)
    return wrong_state(to_string(RequestState::kSpeculativeScheduled));
  if (accepted == 0 || accepted > scheduled_) return refusal(Reason::kTooManyAccepted, accepted, scheduled_);
  if (max_tokens_ != 0 && accepted > max_tokens_ - size()) {
    return refusal(Reason::kTooLong, size() + accepted, max_tokens_);
  }
  return {};
}

void UntypedRequest::settle() noexcept {
  tables_.settle(blocks_for(0), computed_);
  room_ = tables_.size() * block_size_;
  next_event_ = std::min((computed_ / block_size_ + 1) * block_size_, tables_.next_leaving());
}

void UntypedRequest::retreat(RequestState state, std::size_t computed, std::size_t next) noexcept {
  computed_ -= computed;
  text_.tokens.erase(text_.tokens.end() - static_cast<std::ptrdiff_t>(next), text_.tokens.end());
  text_.forget_names_from(text_.full_blocks());
  state_ = state;
}

Result<StepOutcome, SequenceError> UntypedRequest::apply(std::size_t computed,
                                                         std::span<const tokens::Token> next) {
  ThreadScratch<BlockTables::Publication> publications;
  const RequestState before = state_;
  try {
    advance(computed, next);
    collect(*publications);
    const BlockTables::Published published = BlockTables::publish(*publications);
    settle();
    return StepOutcome{published.registered, published.replaced, at_limit()};
  } catch (const std::bad_alloc&) {
    BlockTables::uncollect(*publications);
    if (state_ != before) retreat(before, computed, next.size());
    return refusal(Reason::kOutOfMemory);
  }
}

}  // namespace ashlar::block::detail
