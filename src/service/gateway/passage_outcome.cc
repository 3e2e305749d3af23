// What a passage writes down at its end: what its engine found beside what was expected, its receipt, its
// trace.
#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "service/gateway/proxy_passage.h"

namespace ashlar::service {

namespace {

constexpr std::uint64_t kTemplateTokens = 1024;

// Whether its answers have tokens that an engine made one after another.
bool generates(Endpoint endpoint) {
  return endpoint == Endpoint::kChat || endpoint == Endpoint::kCompletions ||
         endpoint == Endpoint::kResponses || endpoint == Endpoint::kMessages;
}

}  // namespace

// An engine's own count of a prompt may differ from ours by what its template adds, not by several times.
bool ProxyPassage::is_plausible(const RequestOutcome& outcome) const {
  const bool is_counted = known_ && view_.prompts == 1;
  if (is_counted && outcome.prompt_tokens && *outcome.prompt_tokens / 2 > prompt_tokens_ + kTemplateTokens)
    return false;
  const std::uint64_t most =
      outcome.prompt_tokens.value_or(is_counted ? prompt_tokens_ : std::uint64_t{UINT64_MAX});
  return outcome.delivered_tokens.value_or(0) <= most;
}

// False: its events may still be on their way, and it is judged later.
bool ProxyPassage::settle_misroute(RequestOutcome& outcome, bool has_other_tokens) {
  ASHLAR_DCHECK(decision_ && !decision_->is_estimate && outcome.delivered_tokens, "nothing was expected");
  const Candidate& choice = decision_->choice();
  RouteVerdict verdict{.id = decision_->id,
                       .worker = choice.worker,
                       .state = choice.state,
                       .then = decision_->changes,
                       .expected = decision_->cached_tokens,
                       .delivered = *outcome.delivered_tokens,
                       .reported = std::uint64_t{choice.depth} * model_.block_size,
                       .group = model_.group,
                       .block_size = model_.block_size,
                       .outcome = outcome};
  if (verdict.delivered > verdict.expected && known_) {
    const std::uint64_t kept = prompt_tokens_ + outcome.output_tokens.value_or(0);
    // Before the first event of a model the size of its blocks is a guess.
    verdict.refresh = [fleet = parts_.fleet.get(), kept, tokens = known_->tokens, items = known_->items,
                       hasher = model_.hashing.hasher(model_.adapter, view_.cache_salt)](RouteVerdict& its) {
      const std::uint32_t size = fleet->block_size_of(its.group).value_or(its.block_size);
      const std::uint64_t blocks = kept / size;
      its.block_size = size;
      its.own_blocks = blocks - std::min(blocks, its.delivered / size);
      its.blocks = hash_prompt(*tokens, items, hasher, size);
      its.blocks.resize(std::min<std::uint64_t>(its.blocks.size(), (its.delivered + size - 1) / size));
      its.agreed = its.reported / size;
    };
    verdict.refresh(verdict);
  } else if (verdict.delivered < verdict.expected) {
    const std::size_t expected = verdict.expected / model_.block_size;
    ASHLAR_DCHECK(expected <= locals_.size(), "%zu blocks of %zu", expected, locals_.size());
    verdict.blocks.assign(locals_.begin(), locals_.begin() + static_cast<std::ptrdiff_t>(expected));
    verdict.agreed = verdict.delivered / model_.block_size;
  }
  outcome.misroute = judge(verdict, evidence_for(verdict, *parts_.router));
  if (has_other_tokens && outcome.misroute != Misroute::kNone) outcome.misroute = Misroute::kOtherTokens;
  if (outcome.misroute == Misroute::kUnexplained &&
      parts_.late_verdicts.add(std::move(verdict), Clock::real().now()))
    return false;
  parts_.counters.count(outcome.misroute);
  return true;
}

void ProxyPassage::settle_outcome(PassageEnd end) {
  ServiceCounters& counters = parts_.counters;
  RequestOutcome outcome{.is_over = true, .end = end, .status = status_};
  if (scanner_) {
    scanner_->finish();
    outcome.delivered_tokens = scanner_->usage().cached_tokens;
    outcome.prompt_tokens = scanner_->usage().prompt_tokens;
    outcome.output_tokens = scanner_->usage().completion_tokens;
  }
  if (!is_plausible(outcome)) {
    counters.delivered_implausible.add();
    outcome.delivered_tokens.reset();
    outcome.prompt_tokens.reset();
  }
  const bool is_answered = end == PassageEnd::kComplete && status_ == 200;
  bool has_other_tokens = false;
  bool is_open = false;  // its receipt is written later
  if (is_answered && known_ && outcome.prompt_tokens && view_.prompts == 1)
    has_other_tokens = !parts_.prompts->check(view_.model, *known_, *outcome.prompt_tokens);
  if (is_answered && !is_estimate_) {
    if (!outcome.delivered_tokens) counters.delivered_unknown.add();
    TokenCounters& tokens = outcome.delivered_tokens ? counters.tokens : counters.unknown_tokens;
    tokens.prompt.add(prompt_tokens_);
    tokens.available.add(decision_->available_tokens);
    tokens.captured.add(decision_->cached_tokens);
    for (std::size_t tier = 0; tier < counters.hit_blocks.size(); ++tier)
      counters.hit_blocks[tier].add(decision_->choice().blocks[tier]);
    for (std::size_t reason = 0; reason < counters.missed_blocks.size(); ++reason)
      counters.missed_blocks[reason].add(decision_->missed[reason]);
    if (outcome.delivered_tokens) {
      counters.delivered_tokens.add(*outcome.delivered_tokens);
      if (*outcome.delivered_tokens % model_.block_size != 0 && !has_other_tokens)
        parts_.fleet->check_answer(decision_->choice().worker, *outcome.delivered_tokens,
                                   outcome.prompt_tokens.value_or(prompt_tokens_));
      is_open = !settle_misroute(outcome, has_other_tokens);
    }
    // More full blocks than the worker had: an event of them is owed.
    if (decision_->choice().state == WorkerState::kExact &&
        prompt_tokens_ / model_.block_size > decision_->choice().depth)
      parts_.fleet->expect_event(decision_->choice().worker, decision_->changes);
    // The last token of a reply is not in its cache.
    const std::uint64_t kept = prompt_tokens_ + std::max<std::uint64_t>(1, outcome.output_tokens.value_or(0));
    if (decision_->choice().state != WorkerState::kFallback && view_.prompts == 1 && !has_other_tokens &&
        (kept - 1) / model_.block_size > locals_.size())
      parts_.recent.add(locals_,
                        {.worker = decision_->choice().worker,
                         .blocks = (kept - 1) / model_.block_size,
                         .cleared = decision_->changes.cleared},
                        Clock::real().now());
  }
  if (!is_open) parts_.receipts.set_outcome(decision_->id, outcome);
  // What the engine counted is known better than what is guessed from the size of a body.
  const bool is_ours = known_ && !has_other_tokens;
  if (parts_.trace && is_answered && generates(view_.endpoint))
    parts_.trace->add(
        {.arrived = arrived_,
         .input_tokens = is_ours ? prompt_tokens_ : outcome.prompt_tokens.value_or(prompt_tokens_),
         .output_tokens = outcome.output_tokens,
         .block_size = is_ours ? model_.block_size : 0,
         .locals = is_ours ? std::span(locals_) : std::span<tokens::LocalHash>(),
         .session = session_});
}

}  // namespace ashlar::service
