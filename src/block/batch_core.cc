// A step over many requests. Requests inside a block are scheduled and advanced where they stand; those that need a
// block, or fill one, are collected, and the manager is visited once for all of them.
#include "ashlar/base/check.h"
#include "ashlar/block/sequence_batch.h"
#include "block/request_core.h"
#include "block/thread_scratch.h"

namespace ashlar::block::detail {

using Reason = SequenceError::Reason;

void BatchCore::add(RequestCore* request) {
  if (!requests_.empty() && !foreign_ && &request->tables().store() != &requests_.front()->tables().store()) {
    foreign_ = requests_.size();
  }
  requests_.push_back(request);
}

std::optional<BatchError> BatchCore::why_foreign() const {
  if (!foreign_) return std::nullopt;
  return BatchError{*foreign_, requests_[*foreign_]->refusal(Reason::kForeign)};
}

// Schedules the requests that crossing_ lists, over tokens_of(i) tokens each. All or none: on refusal the requests
// that this step scheduled are idle again.
template <class TokensOf>
Result<BatchPlan, BatchError> BatchCore::place_crossing(RequestState state, TokensOf&& tokens_of) {
  BatchPlan plan;
  if (crossing_.empty()) return plan;
  BlockStore& store = requests_[crossing_.front()]->tables().store();
  wanted_.clear();
  for (const std::uint32_t i : crossing_) {
    RequestCore& request = *requests_[i];
    wanted_.push_back(request.wanted(tokens_of(i)));
    plan.new_blocks += wanted_.back();
  }
  fresh_.clear();
  fresh_.reserve(plan.new_blocks);
  std::optional<AllocationRefusal> refused =
      plan.new_blocks > store.options().block_count
          ? store.why_not(plan.new_blocks)
          : store.allocate(plan.new_blocks, nullptr, [&](std::size_t, std::span<const SlotRef> slots) {
              fresh_.insert(fresh_.end(), slots.begin(), slots.end());
            });
  if (refused) {
    const std::uint32_t first = crossing_.front();
    SequenceError error =
        requests_[first]->refusal(Reason::kNoRoom, plan.new_blocks, refused->status.available());
    error.refusal = std::move(refused);
    error.state = to_string(RequestState::kIdle);  // which it is again when this is read
    return BatchError{first, std::move(error)};
  }
  std::span<const SlotRef> rest = fresh_;
  for (std::size_t k = 0; k < crossing_.size(); ++k) {
    RequestCore& request = *requests_[crossing_[k]];
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

void BatchCore::unschedule(std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) requests_[i]->set_scheduled(RequestState::kIdle, 0);
}

Result<BatchPlan, BatchError> BatchCore::schedule_decode() {
  if (auto foreign = why_foreign()) return *std::move(foreign);
  crossing_.clear();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    RequestCore& request = *requests_[i];
    if (!request.decodes_in_place()) {
      if (auto refused = request.why_not_decode()) {
        unschedule(i);
        return BatchError{i, *std::move(refused)};
      }
      crossing_.push_back(static_cast<std::uint32_t>(i));
    }
    request.set_scheduled(RequestState::kDecodeScheduled, 1);
  }
  auto plan = place_crossing(RequestState::kDecodeScheduled, [](std::size_t) { return std::size_t{1}; });
  if (!plan) unschedule(requests_.size());
  return plan;
}

Result<BatchPlan, BatchError> BatchCore::schedule_prefill(std::span<const std::size_t> chunks) {
  ASHLAR_CHECK(chunks.size() == requests_.size(), "%zu chunks for %zu requests", chunks.size(),
               requests_.size());
  if (auto foreign = why_foreign()) return *std::move(foreign);
  crossing_.clear();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (auto refused = requests_[i]->why_not_prefill(chunks[i])) {
      unschedule(i);
      return BatchError{i, *std::move(refused)};
    }
    crossing_.push_back(static_cast<std::uint32_t>(i));
    requests_[i]->set_scheduled(RequestState::kPrefillScheduled, chunks[i]);
  }
  auto plan = place_crossing(RequestState::kPrefillScheduled, [&](std::size_t i) { return chunks[i]; });
  if (!plan) unschedule(requests_.size());
  return plan;
}

// Takes every request out of `state`, so that one that is here twice is refused. All or none.
template <class WhyNot>
std::optional<BatchError> BatchCore::begin_apply(RequestState state, WhyNot&& why_not) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (auto refused = why_not(i)) {
      for (std::size_t before = 0; before < i; ++before) requests_[before]->set_state(state);
      return BatchError{i, *std::move(refused)};
    }
    requests_[i]->set_state(RequestState::kIdle);
  }
  return std::nullopt;
}

StepOutcome BatchCore::finish_crossing() {
  ThreadScratch<BlockTables::Publication> publications;
  for (const std::uint32_t i : crossing_) requests_[i]->collect(*publications);
  const BlockTables::Published published = BlockTables::publish(*publications);
  for (const std::uint32_t i : crossing_) requests_[i]->settle();
  return {published.registered, published.replaced, false};
}

Result<StepOutcome, BatchError> BatchCore::apply_decode(std::span<const tokens::Token> tokens) {
  ASHLAR_CHECK(tokens.size() == requests_.size(), "%zu tokens for %zu requests", tokens.size(),
               requests_.size());
  if (auto foreign = why_foreign()) return *std::move(foreign);
  const auto why_not = [&](std::size_t i) { return requests_[i]->why_not_apply_decode(); };
  if (auto refused = begin_apply(RequestState::kDecodeScheduled, why_not)) return *std::move(refused);
  crossing_.clear();
  bool at_limit = false;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    RequestCore& request = *requests_[i];
    if (request.advance(tokens[i])) crossing_.push_back(static_cast<std::uint32_t>(i));
    at_limit |= request.at_limit();
  }
  StepOutcome outcome = finish_crossing();
  outcome.at_limit = at_limit;
  return outcome;
}

Result<StepOutcome, BatchError> BatchCore::apply_prefill(
    std::span<const std::optional<tokens::Token>> tokens) {
  ASHLAR_CHECK(tokens.size() == requests_.size(), "%zu tokens for %zu requests", tokens.size(),
               requests_.size());
  if (auto foreign = why_foreign()) return *std::move(foreign);
  const auto why_not = [&](std::size_t i) {
    return requests_[i]->why_not_apply_prefill(tokens[i].has_value());
  };
  if (auto refused = begin_apply(RequestState::kPrefillScheduled, why_not)) return *std::move(refused);
  crossing_.clear();
  bool at_limit = false;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    RequestCore& request = *requests_[i];
    request.advance(request.scheduled(), tokens[i] ? std::span<const tokens::Token>(&*tokens[i], 1)
                                                   : std::span<const tokens::Token>());
    crossing_.push_back(static_cast<std::uint32_t>(i));
    at_limit |= request.at_limit();
  }
  StepOutcome outcome = finish_crossing();
  outcome.at_limit = at_limit;
  return outcome;
}

Result<void, BatchError> BatchCore::revert() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const RequestState state = requests_[i]->state();
    if (state != RequestState::kPrefillScheduled && state != RequestState::kDecodeScheduled &&
        state != RequestState::kSpeculativeScheduled) {
      return BatchError{i, requests_[i]->refusal(Reason::kWrongState)};
    }
  }
  for (std::size_t i = requests_.size(); i-- > 0;) {
    [[maybe_unused]] const auto reverted = requests_[i]->revert();
  }
  return {};
}

void BatchCore::release() noexcept {
  for (std::size_t i = requests_.size(); i-- > 0;) requests_[i]->release();
}

}  // namespace ashlar::block::detail
