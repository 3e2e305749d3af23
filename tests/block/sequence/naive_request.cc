#include "block/sequence/naive_request.h"

#include <algorithm>
#include <utility>

namespace ashlar::block::support {

NaiveRequest::NaiveRequest(std::vector<tokens::Token> prompt, NaiveRequestOptions options)
    : options_(std::move(options)),
      tokens_(std::move(prompt)),
      prompt_size_(tokens_.size()),
      pages_(options_.groups.size()) {}

std::size_t NaiveRequest::blocks_of(std::size_t tokens) const {
  return (tokens + options_.block_size - 1) / options_.block_size;
}

NaiveRequest::Refusal NaiveRequest::why_not_match() const {
  if (!is_idle() || computed_ != 0) return Reason::kWrongState;
  return std::nullopt;
}

NaiveRequest::Refusal NaiveRequest::why_not_resume() const {
  return state_ == RequestState::kPreempted ? std::nullopt : Refusal(Reason::kWrongState);
}

std::size_t NaiveRequest::begin_with_cache(const Present& present) {
  // Logits of the last token are wanted, always once there are generated tokens.
  const bool whole = options_.reuse_last_token && size() == prompt_size_;
  const std::size_t limit = (whole ? size() : size() - 1) / options_.block_size;
  std::size_t best = 0;
  for (std::size_t length = 1; length <= limit; ++length) {
    bool valid = true;
    for (std::size_t g = 0; g < pages_.size(); ++g) {
      const std::size_t first = length - options_.groups[g].blocks_needed(length, options_.block_size);
      for (std::size_t b = first; b < length; ++b) valid = valid && present(g, b);
    }
    if (valid) best = length;
  }
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    const std::size_t first = best - options_.groups[g].blocks_needed(best, options_.block_size);
    pages_[g].clear();
    for (std::size_t b = 0; b < best; ++b) {
      pages_[g].push_back(b < first ? nullptr : std::make_shared<Page>());
    }
  }
  state_ = RequestState::kIdle;
  computed_ = cached_ = best * options_.block_size;
  return computed_;
}

NaiveRequest::Refusal NaiveRequest::why_not_prefill(std::size_t tokens) const {
  if (!is_idle()) return Reason::kWrongState;
  if (tokens == 0) return Reason::kNothingToCompute;
  if (tokens > left_to_compute()) return Reason::kPrefillOverrun;
  if (tokens == left_to_compute() && at_limit()) return Reason::kTooLong;
  return std::nullopt;
}

NaiveRequest::Refusal NaiveRequest::why_not_decode() const {
  if (!is_idle()) return Reason::kWrongState;
  if (left_to_compute() != 1) return Reason::kPrefillIncomplete;
  if (at_limit()) return Reason::kTooLong;
  return std::nullopt;
}

NaiveRequest::Wanted NaiveRequest::wanted(std::size_t tokens) const {
  Wanted wanted;
  for (const std::vector<PagePtr>& pages : pages_) {
    wanted.blocks += blocks_of(computed_ + tokens) - pages.size();
    const bool begun = computed_ % options_.block_size != 0;
    if (begun && pages.back().use_count() > 1) ++wanted.copies;
  }
  wanted.blocks += wanted.copies;
  return wanted;
}

void NaiveRequest::schedule(RequestState state, std::size_t tokens) {
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    std::vector<PagePtr>& pages = pages_[g];
    if (computed_ % options_.block_size != 0 && pages.back().use_count() > 1) {
      sources_.push_back({g, std::exchange(pages.back(), std::make_shared<Page>())});
    }
    while (pages.size() < blocks_of(computed_ + tokens)) pages.push_back(std::make_shared<Page>());
  }
  state_ = state;
  scheduled_ = tokens;
}

NaiveRequest::Refusal NaiveRequest::why_not_apply_prefill(bool with_token) const {
  if (state_ != RequestState::kPrefillScheduled) return Reason::kWrongState;
  const bool last = scheduled_ == left_to_compute();
  if (last && !with_token) return Reason::kTokenMissing;
  if (!last && with_token) return Reason::kTokenNotExpected;
  return std::nullopt;
}

NaiveRequest::Refusal NaiveRequest::why_not_apply_decode() const {
  return state_ == RequestState::kDecodeScheduled ? std::nullopt : Refusal(Reason::kWrongState);
}

NaiveRequest::Refusal NaiveRequest::why_not_apply_speculative(std::size_t accepted) const {
  if (state_ != RequestState::kSpeculativeScheduled) return Reason::kWrongState;
  if (accepted == 0 || accepted > scheduled_) return Reason::kTooManyAccepted;
  if (options_.max_tokens != 0 && size() + accepted > options_.max_tokens) return Reason::kTooLong;
  return std::nullopt;
}

std::size_t NaiveRequest::apply(std::size_t computed, std::span<const tokens::Token> next) {
  const std::size_t full = computed_ / options_.block_size;
  computed_ += computed;
  tokens_.insert(tokens_.end(), next.begin(), next.end());
  state_ = RequestState::kIdle;
  scheduled_ = 0;
  sources_.clear();
  for (std::size_t g = 0; g < pages_.size(); ++g) {
    pages_[g].resize(blocks_of(computed_));
    const std::size_t outside = options_.groups[g].tokens_outside(computed_) / options_.block_size;
    for (std::size_t b = 0; b < outside; ++b) pages_[g][b] = nullptr;
  }
  return (computed_ / options_.block_size - full) * pages_.size();
}

NaiveRequest::Refusal NaiveRequest::why_not_revert() const {
  const bool scheduled = state_ == RequestState::kPrefillScheduled ||
                         state_ == RequestState::kDecodeScheduled ||
                         state_ == RequestState::kSpeculativeScheduled;
  return scheduled ? std::nullopt : Refusal(Reason::kWrongState);
}

void NaiveRequest::revert() {
  for (std::vector<PagePtr>& pages : pages_) pages.resize(blocks_of(computed_));
  for (Source& source : sources_) pages_[source.group].back() = std::move(source.page);
  sources_.clear();
  scheduled_ = 0;
  state_ = RequestState::kIdle;
}

NaiveRequest::Refusal NaiveRequest::why_not_preempt() const {
  return is_idle() ? std::nullopt : Refusal(Reason::kWrongState);
}

void NaiveRequest::let_go_of_everything() {
  for (std::vector<PagePtr>& pages : pages_) pages.clear();
  sources_.clear();
  computed_ = scheduled_ = 0;
}

void NaiveRequest::preempt() {
  let_go_of_everything();
  state_ = RequestState::kPreempted;
}

NaiveRequest::Refusal NaiveRequest::why_not_fork(bool with_last) const {
  if (!is_idle()) return Reason::kWrongState;
  if (with_last && left_to_compute() != 1) return Reason::kPrefillIncomplete;
  return std::nullopt;
}

NaiveRequest NaiveRequest::fork(std::optional<tokens::Token> last) const {
  NaiveRequest forked = *this;
  if (last) forked.tokens_.back() = *last;
  return forked;
}

void NaiveRequest::release() {
  let_go_of_everything();
  state_ = RequestState::kReleased;
}

}  // namespace ashlar::block::support
