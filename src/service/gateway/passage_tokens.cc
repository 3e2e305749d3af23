// How a passage comes to the tokens of its request: asked of workers, one after another.
#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/tokens/salt.h"
#include "service/gateway/proxy_passage.h"

namespace ashlar::service {

namespace {

// A request that needs more questions than this for its tokens goes without them.
constexpr std::uint32_t kMaxQuestions = 4;
// The answer to a question has an id for each token, which is at least a byte of the prompt, or what a
// template adds; rendered media come with features of their own.
constexpr std::size_t kAnswerBytesPerByte = 16;
constexpr std::size_t kMostTemplateBytes = 256 << 10;
constexpr std::size_t kMostMediaBytes = std::size_t{64} << 20;
// What a token of text is taken for where nobody says.
constexpr std::uint64_t kBytesPerToken = 4;

}  // namespace

Step ProxyPassage::find_tokens() {
  prompt_tokens_ = request_.body.size() / kBytesPerToken + 1;
  return take(parts_.prompts->look_up(view_, request_.body));
}

Step ProxyPassage::take(PromptTokens::Lookup lookup) {
  if (auto* known = std::get_if<KnownPrompt>(&lookup)) {
    take_tokens(std::move(*known));
    return route();
  }
  if (auto* none = std::get_if<NoTokens>(&lookup)) {
    claim_reason_ = std::move(none->reason);
    return route();
  }
  auto* question = std::get_if<TokenQuestion>(&lookup);
  if (!parts_.options.tokenize || questions_ >= kMaxQuestions) {
    claim_reason_ = "its tokens are not asked for";
    return route();
  }
  ++questions_;
  question_ = std::move(*question);
  return ask();
}

Step ProxyPassage::ask() {
  const Clock::TimePoint now = Clock::real().now();
  if (asks_until_ == Clock::TimePoint{}) asks_until_ = now + parts_.options.tokenize_timeout;
  std::string_view targets[2];
  std::size_t count = 0;
  const std::string& source = parts_.options.token_source;
  if (!question_->tokenize_target.empty() && source != "render")
    targets[count++] = question_->tokenize_target;
  if (!question_->render_target.empty() && source != "tokenize") targets[count++] = question_->render_target;
  const Result<QuestionTarget> target =
      parts_.fleet->target_for_question(model_, std::span(targets).first(count), refused_by_);
  if (!target || now >= asks_until_ || refused_by_.size() > 1) {
    question_.reset();
    claim_reason_ = refused_by_.empty() ? "no worker could be asked for its tokens"
                                        : "the workers that were asked for its tokens failed";
    return route();
  }
  parts_.counters.tokenized.add();
  asked_ = *target;
  Ask ask{.address = target->address, .target = std::string(target->target)};
  ask.headers = {{"Content-Type", "application/json"}};
  const std::string& authorization = target->authorization.empty() ? authorization_ : target->authorization;
  if (!authorization.empty()) ask.headers.emplace_back("Authorization", authorization);
  ask.body = question_->body;
  ask.timeout = asks_until_ - now;
  ask.max_bytes = view_.has_media
                      ? kMostMediaBytes
                      : std::min(kMostTemplateBytes + kAnswerBytesPerByte * ask.body.size(), kMostMediaBytes);
  return ask;
}

void ProxyPassage::take_tokens(KnownPrompt known) {
  ASHLAR_CHECK(known.tokens != nullptr, "a known prompt without tokens");
  ASHLAR_CHECK(model_.block_size > 0, "a model without a block size");
  known_ = std::move(known);
  const std::vector<tokens::Token>& all = *known_->tokens;
  prompt_tokens_ = all.size();
  is_estimate_ = false;
  claim_reason_.clear();
  if (view_.skips_cache) claim_reason_ = "the engine computes all of a prompt whose logprobs are asked for";
  if (view_.endpoint == Endpoint::kResponses && model_.has_ranks) {
    is_estimate_ = true;
    claim_reason_ = "the engine chooses the rank of /v1/responses itself";
  }
  const std::size_t most = kMostPromptBlocks * model_.block_size;
  if (all.size() >= most + model_.block_size) {
    is_estimate_ = true;
    claim_reason_ = "its prompt has more than " + std::to_string(kMostPromptBlocks) +
                    " blocks; it is routed by the first of them";
  }
  const tokens::SequenceHasher hasher = model_.hashing.hasher(model_.adapter, view_.cache_salt);
  if (!known_->items.empty() || all.size() > most) {
    locals_ = hash_prompt(std::span(all).first(std::min(all.size(), most)), known_->items, hasher,
                          model_.block_size);
    return;
  }
  locals_ = parts_.prompts->hash(*known_, hasher, model_.block_size)->locals;
}

Step ProxyPassage::answered(Result<Answer> answer) {
  ASHLAR_CHECK(question_.has_value(), "an answer without a question");
  if (!answer && answer.error().code() == ErrorCode::kIo) {  // not asked
    question_.reset();
    parts_.counters.tokenize_failed.add();
    claim_reason_ = "this router has no connection or memory left to ask for its tokens";
    return route();
  }
  const bool is_render = asked_.target == question_->render_target;
  const TokenAnswer kind = answer ? token_answer(answer->status, is_render)
                           : answer.error().code() == ErrorCode::kUnavailable ? TokenAnswer::kFailed
                                                                              : TokenAnswer::kRefused;
  const std::uint64_t prompt = std::hash<std::string_view>()(question_->body);
  const auto note = [&](TokenAnswer what) {
    parts_.fleet->token_workers().note(asked_.worker, asked_.target, what, prompt, Clock::real().now());
  };
  note(kind);
  if (kind != TokenAnswer::kGood) {
    parts_.counters.tokenize_failed.add();
    if (kind == TokenAnswer::kRefused) refused_by_.push_back(asked_.worker);
    return ask();  // another worker
  }
  const TokenQuestion question = *std::exchange(question_, std::nullopt);
  Result<PromptTokens::Lookup> next = parts_.prompts->learn(
      question, is_render ? TokenEndpoint::kRender : TokenEndpoint::kTokenize, answer->status, answer->body);
  if (!next) {
    note(TokenAnswer::kRefused);
    parts_.counters.tokenize_failed.add();
    claim_reason_ = next.error().message();
    return route();
  }
  return take(*std::move(next));
}

}  // namespace ashlar::service
