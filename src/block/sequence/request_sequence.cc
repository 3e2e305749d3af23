#include <cstdint>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/block/request_sequence.h"
#include "block/sequence/untyped_request.h"

namespace ashlar::block {

std::string_view to_string(RequestState state) noexcept {
  switch (state) {
    case RequestState::kIdle:
      return "idle";
    case RequestState::kPrefillScheduled:
      return "prefill scheduled";
    case RequestState::kDecodeScheduled:
      return "decode scheduled";
    case RequestState::kSpeculativeScheduled:
      return "speculative scheduled";
    case RequestState::kOnboarding:
      return "onboarding";
    case RequestState::kPreempted:
      return "preempted";
    case RequestState::kReleased:
      return "released";
  }
  return "unknown";
}

namespace detail {

void UntypedRequestDelete::operator()(UntypedRequest* request) const noexcept {
  delete request;
}

Result<UntypedRequestPtr> RequestCalls::create(std::shared_ptr<BlockStore> store,
                                               std::vector<tokens::Token> prompt,
                                               std::vector<tokens::SequenceHash> hashes,
                                               RequestOptions options) {
  return unless_out_of_memory(
      [&] { return make(std::move(store), std::move(prompt), std::move(hashes), std::move(options)); });
}

Result<UntypedRequestPtr> RequestCalls::make(std::shared_ptr<BlockStore> store,
                                             std::vector<tokens::Token> prompt,
                                             std::vector<tokens::SequenceHash> hashes,
                                             RequestOptions options) {
  if (prompt.empty())
    return make_error(ErrorCode::kInvalidArgument, "the prompt is empty; a request needs a token");
  if (options.max_tokens != 0 && prompt.size() > options.max_tokens) {
    return make_error(ErrorCode::kInvalidArgument, "a prompt of %zu tokens, max_tokens is %zu", prompt.size(),
                      options.max_tokens);
  }
  const std::size_t most =
      (std::size_t{tokens::SequenceHash::kMaxPosition} + 1) * store->options().block_size;
  if (options.max_tokens > most) {
    return make_error(ErrorCode::kInvalidArgument,
                      "max_tokens is %zu; blocks of %u tokens have positions for %zu", options.max_tokens,
                      store->options().block_size, most);
  }
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    if (options.groups[g].window == 0u) {
      return make_error(ErrorCode::kInvalidArgument,
                        "cache group %zu has a window of 0 tokens; a token sees at least itself", g);
    }
  }
  ASHLAR_RETURN_IF_ERROR(options.retention.validate());
  ASHLAR_RETURN_IF_ERROR(tokens::validate_runs(options.runs, 0, prompt.size()));
  ASHLAR_TRY(tokens::SequenceHasher hasher, bind_hasher(options.hasher, store->options().prefix_key));
  auto rules = std::make_shared<const TextRules>(
      TextRules{std::move(hasher), std::move(options.runs), store->options().block_size, options.metadata});
  std::shared_ptr<const BlockWorth> worth;
  if (!options.retention.empty()) {
    worth = std::make_shared<const BlockWorth>(BlockWorth{std::move(options.retention), prompt.size()});
  }
  ASHLAR_TRY(auto text, SequenceText::create(std::move(prompt), std::move(hashes), std::move(rules)));
  return UntypedRequestPtr(new UntypedRequest(std::move(text),
                                              BlockTables(std::move(store), options.groups, std::move(worth)),
                                              options.max_tokens, options.reuse_last_token, options.onboard));
}

RequestState RequestCalls::state(const UntypedRequest& request) noexcept {
  return request.state();
}
std::span<const tokens::Token> RequestCalls::tokens(const UntypedRequest& request) noexcept {
  return request.text().tokens;
}
std::size_t RequestCalls::prompt_size(const UntypedRequest& request) noexcept {
  return request.prompt_size();
}
std::size_t RequestCalls::computed(const UntypedRequest& request) noexcept {
  return request.computed();
}
std::size_t RequestCalls::cached(const UntypedRequest& request) noexcept {
  return request.cached();
}
std::size_t RequestCalls::max_tokens(const UntypedRequest& request) noexcept {
  return request.max_tokens();
}
std::size_t RequestCalls::group_count(const UntypedRequest& request) noexcept {
  return request.tables().group_count();
}
std::span<const BlockId> RequestCalls::table(const UntypedRequest& request, std::size_t group) {
  ASHLAR_CHECK(group < request.tables().group_count(), "cache group %zu; the request has %zu", group,
               request.tables().group_count());
  return request.tables().ids(group);
}
std::span<const tokens::SequenceHash> RequestCalls::hashes(UntypedRequest& request) {
  return request.text().names(request.text().full_blocks());
}
SequenceBlock RequestCalls::block(UntypedRequest& request, std::size_t i, std::size_t group) {
  return request.tables().block(request.text(), group, i);
}
std::size_t RequestCalls::use_count(const UntypedRequest& request, std::size_t i, std::size_t group) {
  ASHLAR_CHECK(group < request.tables().group_count(), "group %zu of %zu", group,
               request.tables().group_count());
  return request.tables().use_count(group, i);
}
std::span<const BlockCopy> RequestCalls::copies(const UntypedRequest& request) noexcept {
  return request.tables().copies();
}

Result<std::size_t, SequenceError> RequestCalls::match_prefix(UntypedRequest& request) {
  return request.match_prefix();
}

Result<MatchStart, SequenceError> RequestCalls::begin_match(UntypedRequest& request,
                                                            std::function<void()> on_ready) {
  return request.begin_match(std::move(on_ready));
}
Result<std::size_t, SequenceError> RequestCalls::finish_match(UntypedRequest& request) {
  return request.finish_match();
}
bool RequestCalls::match_ready(const UntypedRequest& request) {
  return request.match_ready();
}
Result<std::vector<BlockId>> RequestCalls::wait_layer(UntypedRequest& request, std::uint32_t layer,
                                                      std::optional<Clock::TimePoint> until) {
  return request.wait_layer(layer, until);
}

Result<StepPlan, SequenceError> RequestCalls::schedule_prefill(UntypedRequest& request, std::size_t tokens) {
  return request.schedule(request.can_prefill(tokens), RequestState::kPrefillScheduled, tokens);
}
Result<StepOutcome, SequenceError> RequestCalls::apply_prefill(UntypedRequest& request,
                                                               std::optional<tokens::Token> next) {
  ASHLAR_RETURN_IF_ERROR(request.can_apply_prefill(next.has_value()));
  return request.apply(request.scheduled(),
                       next ? std::span<const tokens::Token>(&*next, 1) : std::span<const tokens::Token>());
}

Result<StepPlan, SequenceError> RequestCalls::schedule_decode(UntypedRequest& request) {
  if (request.decodes_in_place()) [[likely]] {
    request.set_scheduled(RequestState::kDecodeScheduled, 1);
    return StepPlan{};
  }
  return request.schedule(request.can_decode(), RequestState::kDecodeScheduled, 1);
}
Result<StepOutcome, SequenceError> RequestCalls::apply_decode(UntypedRequest& request, tokens::Token next) {
  ASHLAR_RETURN_IF_ERROR(request.can_apply_decode());
  return request.apply_decode(next);
}

Result<StepPlan, SequenceError> RequestCalls::schedule_speculative(UntypedRequest& request,
                                                                   std::size_t drafts) {
  return request.schedule(request.can_decode(), RequestState::kSpeculativeScheduled,
                          drafts == SIZE_MAX ? drafts : drafts + 1);
}
Result<StepOutcome, SequenceError> RequestCalls::apply_speculative(UntypedRequest& request,
                                                                   std::span<const tokens::Token> accepted) {
  ASHLAR_RETURN_IF_ERROR(request.can_apply_speculative(accepted.size()));
  return request.apply(accepted.size(), accepted);
}

void RequestCalls::set_written_after(UntypedRequest& request, Fence fence) {
  request.tables().set_written_after(std::move(fence));
}

Result<void, SequenceError> RequestCalls::revert(UntypedRequest& request) {
  return request.revert();
}
Result<void, SequenceError> RequestCalls::preempt(UntypedRequest& request) {
  return request.preempt();
}
Result<std::size_t, SequenceError> RequestCalls::resume(UntypedRequest& request) {
  return request.resume();
}
Result<UntypedRequestPtr, SequenceError> RequestCalls::fork(UntypedRequest& request,
                                                            std::optional<tokens::Token> last) {
  ASHLAR_TRY(auto forked, request.fork(last));
  return UntypedRequestPtr(forked.release());
}
void RequestCalls::release(UntypedRequest& request) noexcept {
  request.release();
}
void RequestCalls::release_after(UntypedRequest& request, const Fence& fence) {
  request.release_after(fence);
}

}  // namespace detail
}  // namespace ashlar::block
