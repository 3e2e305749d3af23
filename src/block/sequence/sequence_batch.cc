// A step over many requests. Requests that stay inside a block are scheduled and advanced in place; those
// that need or fill a block are collected and handled in one visit to the manager.
#include "ashlar/block/sequence_batch.h"
#include "ashlar/base/check.h"
#include "block/sequence/untyped_request.h"
#include "block/store/thread_scratch.h"

namespace ashlar::block::detail {

using Reason = SequenceError::Reason;

void UntypedBatch::add(UntypedRequest* request) {
  requests_.push_back(request);
  if (!other_manager_ && &request->tables().store() != &requests_.front()->tables().store()) {
    other_manager_ = requests_.size() - 1;
  }
}

BatchError UntypedBatch::out_of_memory(std::size_t request) const {
  return BatchError{request, requests_[request]->refusal(Reason::kOutOfMemory)};
}

Result<void, BatchError> UntypedBatch::check_managers() const {
  if (!other_manager_) return {};
  return BatchError{*other_manager_, requests_[*other_manager_]->refusal(Reason::kOtherManager)};
}

// Schedules the requests in crossing_, over tokens_of(i) tokens each. All or none, even without memory: all
// memory is reserved before the blocks are taken.
template <class TokensOf>
Result<BatchPlan, BatchError> UntypedBatch::place_crossing(RequestState state, TokensOf&& tokens_of) {
  BatchPlan plan;
  if (crossing_.empty()) return plan;
  BlockStore& store = requests_[crossing_.front()]->tables().store();
  wanted_.clear();
  for (const std::uint32_t i : crossing_) {
    UntypedRequest& request = *requests_[i];
    wanted_.push_back(request.wanted(tokens_of(i)));
    plan.new_blocks += wanted_.back();
  }
  fresh_.clear();
  fresh_.reserve(plan.new_blocks);
  Result<void, AllocationRefusal> taken =
      plan.new_blocks > store.options().block_count
          ? store.can_allocate(plan.new_blocks)
          : store.allocate(plan.new_blocks, nullptr, [&](std::size_t, std::span<const SlotRef> slots) {
              fresh_.insert(fresh_.end(), slots.begin(), slots.end());
            });
  if (!taken) {
    const std::uint32_t first = crossing_.front();
    SequenceError error =
        requests_[first]->refusal(Reason::kNoRoom, plan.new_blocks, taken.error().status.available());
    error.refusal = std::move(taken).error();
    error.state = to_string(RequestState::kIdle);  // its state again by the time the caller reads this
    return BatchError{first, error};
  }
  std::span<const SlotRef> rest = fresh_;
  for (std::size_t k = 0; k < crossing_.size(); ++k) {
    UntypedRequest& request = *requests_[crossing_[k]];
    ASHLAR_CHECK(request.state() == state,
                 "a callback changed request %u while its batch was being scheduled", crossing_[k]);
    const std::size_t tokens = tokens_of(crossing_[k]);
    request.place(tokens, rest.first(wanted_[k]));
    rest = rest.subspan(wanted_[k]);
    request.placed();
    request.set_scheduled(state, tokens);
    plan.copies += request.tables().copies().size();
  }
  return plan;
}

void UntypedBatch::unschedule(std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) requests_[i]->set_scheduled(RequestState::kIdle, 0);
}

Result<BatchPlan, BatchError> UntypedBatch::schedule_decode() {
  ASHLAR_RETURN_IF_ERROR(check_managers());
  crossing_.clear();
  std::size_t scheduled = 0;
  try {
    for (; scheduled < requests_.size(); ++scheduled) {
      UntypedRequest& request = *requests_[scheduled];
      if (!request.decodes_in_place()) {
        if (auto allowed = request.can_decode(); !allowed) {
          unschedule(scheduled);
          return BatchError{scheduled, std::move(allowed).error()};
        }
        crossing_.push_back(static_cast<std::uint32_t>(scheduled));
      }
      request.set_scheduled(RequestState::kDecodeScheduled, 1);
    }
    auto plan = place_crossing(RequestState::kDecodeScheduled, [](std::size_t) { return std::size_t{1}; });
    if (!plan) unschedule(requests_.size());
    return plan;
  } catch (const std::bad_alloc&) {
    unschedule(scheduled);
    return out_of_memory(0);
  }
}

Result<BatchPlan, BatchError> UntypedBatch::schedule_prefill(std::span<const std::size_t> chunks) {
  ASHLAR_CHECK(chunks.size() == requests_.size(), "%zu chunks for %zu requests", chunks.size(),
               requests_.size());
  ASHLAR_RETURN_IF_ERROR(check_managers());
  crossing_.clear();
  std::size_t scheduled = 0;
  try {
    for (; scheduled < requests_.size(); ++scheduled) {
      const std::size_t tokens = chunks[scheduled];
      if (auto allowed = requests_[scheduled]->can_prefill(tokens); !allowed) {
        unschedule(scheduled);
        return BatchError{scheduled, std::move(allowed).error()};
      }
      crossing_.push_back(static_cast<std::uint32_t>(scheduled));
      requests_[scheduled]->set_scheduled(RequestState::kPrefillScheduled, tokens);
    }
    auto plan = place_crossing(RequestState::kPrefillScheduled, [&](std::size_t i) { return chunks[i]; });
    if (!plan) unschedule(requests_.size());
    return plan;
  } catch (const std::bad_alloc&) {
    unschedule(scheduled);
    return out_of_memory(0);
  }
}

// Takes every request out of `state`, so that a request listed twice is refused. All or none.
template <class MayApply>
Result<void, BatchError> UntypedBatch::begin_apply(RequestState state, MayApply&& may_apply) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (auto allowed = may_apply(i); !allowed) {
      for (std::size_t before = 0; before < i; ++before) requests_[before]->set_state(state);
      return BatchError{i, std::move(allowed).error()};
    }
    requests_[i]->set_state(RequestState::kIdle);
  }
  return {};
}

// Applies a step that begin_apply() accepted. advance(i) is true when request i has something to collect;
// retreat(i) undoes it. All or none.
template <class Advance, class Retreat>
Result<StepOutcome, BatchError> UntypedBatch::apply(RequestState state, Advance&& advance,
                                                    Retreat&& retreat) {
  ThreadScratch<BlockTables::Publication> publications;
  std::size_t advanced = 0;
  crossing_.clear();
  try {
    crossing_.reserve(requests_.size());
    StepOutcome outcome;
    for (; advanced < requests_.size(); ++advanced) {
      if (advance(advanced)) crossing_.push_back(static_cast<std::uint32_t>(advanced));
      outcome.at_limit |= requests_[advanced]->at_limit();
    }
    for (const std::uint32_t i : crossing_) requests_[i]->collect(*publications);
    const BlockTables::Published published = BlockTables::publish(*publications);
    outcome.registered = published.registered;
    outcome.replaced = published.replaced;
    for (const std::uint32_t i : crossing_) requests_[i]->settle();
    return outcome;
  } catch (const std::bad_alloc&) {
    BlockTables::uncollect(*publications);
    for (std::size_t i = 0; i < advanced; ++i) retreat(i);
    for (UntypedRequest* const request : requests_) request->set_state(state);
    return out_of_memory(0);
  }
}

Result<StepOutcome, BatchError> UntypedBatch::apply_decode(std::span<const tokens::Token> tokens) {
  ASHLAR_CHECK(tokens.size() == requests_.size(), "%zu tokens for %zu requests", tokens.size(),
               requests_.size());
  ASHLAR_RETURN_IF_ERROR(check_managers());
  const auto may_apply = [&](std::size_t i) { return requests_[i]->can_apply_decode(); };
  ASHLAR_RETURN_IF_ERROR(begin_apply(RequestState::kDecodeScheduled, may_apply));
  return apply(
      RequestState::kDecodeScheduled, [&](std::size_t i) { return requests_[i]->advance(tokens[i]); },
      [&](std::size_t i) { requests_[i]->retreat(RequestState::kDecodeScheduled, 1, 1); });
}

Result<StepOutcome, BatchError> UntypedBatch::apply_prefill(
    std::span<const std::optional<tokens::Token>> tokens) {
  ASHLAR_CHECK(tokens.size() == requests_.size(), "%zu tokens for %zu requests", tokens.size(),
               requests_.size());
  ASHLAR_RETURN_IF_ERROR(check_managers());
  const auto may_apply = [&](std::size_t i) {
    return requests_[i]->can_apply_prefill(tokens[i].has_value());
  };
  ASHLAR_RETURN_IF_ERROR(begin_apply(RequestState::kPrefillScheduled, may_apply));
  return apply(
      RequestState::kPrefillScheduled,
      [&](std::size_t i) {
        requests_[i]->advance(requests_[i]->scheduled(), tokens[i]
                                                             ? std::span<const tokens::Token>(&*tokens[i], 1)
                                                             : std::span<const tokens::Token>());
        return true;
      },
      [&](std::size_t i) {
        requests_[i]->retreat(RequestState::kPrefillScheduled, requests_[i]->scheduled(),
                              tokens[i].has_value() ? 1 : 0);
      });
}

void UntypedBatch::set_written_after(const Fence& fence) {
  for (UntypedRequest* const request : requests_) request->tables().make_waiting();
  for (UntypedRequest* const request : requests_) request->tables().set_written_after(fence);
}

Result<void, BatchError> UntypedBatch::revert() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const RequestState state = requests_[i]->state();
    if (state != RequestState::kPrefillScheduled && state != RequestState::kDecodeScheduled &&
        state != RequestState::kSpeculativeScheduled) {
      return BatchError{i, requests_[i]->wrong_state("scheduled")};
    }
  }
  for (std::size_t i = requests_.size(); i-- > 0;) {
    [[maybe_unused]] const auto reverted = requests_[i]->revert();
  }
  return {};
}

void UntypedBatch::release() noexcept {
  for (std::size_t i = requests_.size(); i-- > 0;) requests_[i]->release();
}

}  // namespace ashlar::block::detail
