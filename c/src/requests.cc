// Requests of the C interface.
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "c/src/objects.h"

namespace ashlar::c_interface {

block::RetentionPlan retention_plan(std::uint8_t priority, std::uint64_t priority_ns) {
  block::RetentionPlan plan;
  block::RetentionPlan::TokenRange all;
  all.priority = plan.decode_priority = priority;
  if (priority_ns != 0) all.duration = plan.decode_duration = duration_of(priority_ns);
  plan.prompt.push_back(all);
  return plan;
}

Outcome<block::PrefixBudget> prefix_budget(std::uint64_t max_blocks, std::uint64_t time_ns,
                                           double compute_tokens_per_second) {
  block::PrefixBudget budget;
  if (max_blocks == ASHLAR_FOREVER) {
    budget.max_blocks = 0;
  } else if (max_blocks != 0) {
    budget.max_blocks = max_blocks;
  }
  if (time_ns != 0) budget.time = duration_of(time_ns);
  if (!(compute_tokens_per_second >= 0))
    return invalid_argument("compute_tokens_per_second is %f; it must not be negative",
                            compute_tokens_per_second);
  if (compute_tokens_per_second > 0) budget.compute_tokens_per_second = compute_tokens_per_second;
  return budget;
}

namespace {

using Request = block::RequestSequence<events::G1>;

struct RequestObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kRequest;
  RequestObject(PoolTicket its_ticket, Request its_request)
      : ticket(std::move(its_ticket)), request(std::move(its_request)) {}
  const PoolTicket ticket;
  Mutex mu;
  bool gone ASHLAR_GUARDED_BY(mu) = false;  // its handle was taken away
  std::optional<block::Fence> written_after ASHLAR_GUARDED_BY(mu);
  Request request ASHLAR_GUARDED_BY(mu);
};

static_assert(sizeof(ashlar_block_copy) == sizeof(block::BlockCopy) &&
              sizeof(std::uint32_t) == sizeof(block::BlockId));
static_assert(ASHLAR_REQUEST_RELEASED == static_cast<int>(block::RequestState::kReleased) &&
              ASHLAR_REQUEST_ONBOARDING == static_cast<int>(block::RequestState::kOnboarding));

// body(request) while no other call uses it.
template <class F>
ashlar_status with_request(ashlar_request handle, F&& body) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<RequestObject>(handle.id));
    const MutexLock lock(object->mu);
    if (object->gone) return invalid_handle(HandleKind::kRequest, handle.id);
    return body(object->request);
  });
}

Outcome<block::RequestOptions> request_options(const PoolLife& life, const ashlar_request_options& given) {
  block::RequestOptions options;
  ASHLAR_TRY(options.hasher, hasher_of(given.hasher, life));
  ASHLAR_TRY(options.runs, runs_of(given.runs, given.run_count));
  options.max_tokens = given.max_tokens;
  options.reuse_last_token = given.reuse_last_token != 0;
  options.metadata = given.metadata;
  if (given.set_priority != 0) options.retention = retention_plan(given.priority, given.priority_ns);
  constexpr std::size_t kMostGroups = 1024;
  if (given.window_count > kMostGroups)
    return invalid_argument("window_count is %zu; a request has at most %zu groups", given.window_count,
                            kMostGroups);
  ASHLAR_TRY(const auto windows, elements<const std::uint32_t>(given.windows, given.window_count, "windows"));
  for (const std::uint32_t window : windows)
    options.groups.push_back(window == 0 ? block::CacheGroup::full_attention()
                                         : block::CacheGroup::sliding_window(window));
  ASHLAR_TRY(options.onboard,
             prefix_budget(given.onboard_max_blocks, given.onboard_ns, given.compute_tokens_per_second));
  options.onboard.by_layer = given.onboard_by_layer != 0;
  return options;
}

Outcome<> tell_step(Result<block::StepPlan, block::SequenceError> plan, ashlar_step* step) {
  if (!plan) return Refusal(plan.error());
  if (step != nullptr) *step = {plan->new_blocks, plan->copies.size()};
  return {};
}

Outcome<> tell_outcome(Result<block::StepOutcome, block::SequenceError> done, ashlar_step_outcome* outcome) {
  if (!done) return Refusal(done.error());
  if (outcome != nullptr) *outcome = {done->registered, done->replaced, done->at_limit ? 1 : 0, 0};
  return {};
}

Outcome<> tell_cached(Result<std::size_t, block::SequenceError> found, std::size_t* cached) {
  if (!found) return Refusal(found.error());
  if (cached != nullptr) *cached = *found;
  return {};
}

// Takes the handle away, so that later calls are refused. The blocks go with the object.
Outcome<std::shared_ptr<RequestObject>> end_request(ashlar_request handle, const block::Fence* after) {
  ASHLAR_TRY(auto object, object_of<RequestObject>(handle.id));
  const MutexLock lock(object->mu);
  if (object->gone) return invalid_handle(HandleKind::kRequest, handle.id);
  if (after == nullptr && object->written_after && !object->written_after->ended())
    after = &*object->written_after;
  if (after != nullptr) keep_until(*after, object);
  object->gone = true;
  ASHLAR_RETURN_IF_ERROR(close_handle<RequestObject>(handle.id));
  return object;
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;
namespace block = ashlar::block;

ashlar_status ashlar_request_create(ashlar_manager manager, const uint32_t* prompt, size_t n,
                                    const ashlar_request_options* options, ashlar_request* request) {
  return call([&]() -> Outcome<> {
    if (request == nullptr) return null_pointer("request");
    ASHLAR_TRY(const auto tokens, elements<const ashlar::tokens::Token>(prompt, n, "prompt"));
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_request_options"));
    ASHLAR_TRY(auto ticket, ticket_of(manager));
    ASHLAR_TRY(auto its, request_options(ticket.life(), given));
    ASHLAR_TRY(auto made, Request::create(ticket.life().manager(),
                                          std::vector<ashlar::tokens::Token>(tokens.begin(), tokens.end()),
                                          std::move(its)));
    request->id = open_handle(std::make_shared<RequestObject>(std::move(ticket), std::move(made)));
    return {};
  });
}

ashlar_status ashlar_request_destroy(ashlar_request request) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_RETURN_IF_ERROR(end_request(request, nullptr));
    return {};
  });
}

ashlar_status ashlar_request_destroy_after(ashlar_request request, ashlar_fence fence) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto its, fence_of(fence));
    ASHLAR_RETURN_IF_ERROR(end_request(request, &its));
    return {};
  });
}

ashlar_status ashlar_request_release(ashlar_request request) {
  const NoCancellation held;
  return with_request(request, [](Request& its) -> Outcome<> {
    its.release();
    return {};
  });
}

ashlar_status ashlar_request_get_info(ashlar_request request, ashlar_request_info* info) {
  return with_request(request, [&](Request& its) -> Outcome<> {
    ashlar_request_info told = {};
    told.state = static_cast<int32_t>(its.state());
    told.tokens = its.size();
    told.prompt_tokens = its.prompt_size();
    told.computed_tokens = its.computed_tokens();
    told.cached_tokens = its.cached_tokens();
    told.group_count = its.group_count();
    const auto left = its.tokens_left();
    told.tokens_left = left ? *left : ASHLAR_FOREVER;
    return write_answer(told, info, "ashlar_request_info");
  });
}

ashlar_status ashlar_request_tokens(ashlar_request request, uint32_t* out, size_t capacity, size_t* count) {
  return with_request(request, [&](Request& its) { return write_list(its.tokens(), out, capacity, count); });
}

ashlar_status ashlar_request_block_table(ashlar_request request, size_t group, uint32_t* out, size_t capacity,
                                         size_t* count) {
  return with_request(request, [&](Request& its) -> Outcome<> {
    if (group >= its.group_count())
      return invalid_argument("group %zu; the request has %zu", group, its.group_count());
    return write_list(its.block_table(group), out, capacity, count);
  });
}

ashlar_status ashlar_request_hashes(ashlar_request request, ashlar_hash* out, size_t capacity,
                                    size_t* count) {
  return with_request(request,
                      [&](Request& its) { return write_list(its.sequence_hashes(), out, capacity, count); });
}

ashlar_status ashlar_request_match(ashlar_request request, size_t* cached) {
  const NoCancellation held;
  return with_request(request, [&](Request& its) { return tell_cached(its.match_prefix(), cached); });
}

ashlar_status ashlar_request_begin_match(ashlar_request request, size_t* cached, int* pending) {
  const NoCancellation held;
  return with_request(request, [&](Request& its) -> Outcome<> {
    if (pending == nullptr) return null_pointer("pending");
    auto start = its.begin_match([] {});
    if (!start) return Refusal(start.error());
    if (cached != nullptr) *cached = start->cached;
    *pending = start->pending ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_request_match_ready(ashlar_request request, int* ready) {
  return with_request(request, [&](Request& its) -> Outcome<> {
    if (ready == nullptr) return null_pointer("ready");
    if (its.state() != block::RequestState::kOnboarding)
      return not_ready("the request is %s: no match was begun, or it has ended",
                       std::string(block::to_string(its.state())).c_str());
    *ready = its.match_ready() ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_request_wait_layer(ashlar_request request, uint32_t layer, uint64_t timeout_ns,
                                        uint32_t* out, size_t capacity, size_t* count) {
  const NoCancellation held;
  return with_request(request, [&](Request& its) -> Outcome<> {
    ASHLAR_RETURN_IF_ERROR(check_list(out, capacity, count));
    ASHLAR_TRY(const auto ids, its.wait_layer(layer, deadline_of(timeout_ns)));
    return write_list(std::span<const block::BlockId>(ids), out, capacity, count);
  });
}

ashlar_status ashlar_request_finish_match(ashlar_request request, size_t* cached) {
  const NoCancellation held;
  return with_request(request, [&](Request& its) { return tell_cached(its.finish_match(), cached); });
}

ashlar_status ashlar_request_schedule_prefill(ashlar_request request, size_t n, ashlar_step* step) {
  return with_request(request, [&](Request& its) { return tell_step(its.schedule_prefill(n), step); });
}

ashlar_status ashlar_request_apply_prefill(ashlar_request request, const uint32_t* next,
                                           ashlar_step_outcome* outcome) {
  return with_request(request, [&](Request& its) {
    std::optional<ashlar::tokens::Token> token;
    if (next != nullptr) token = ashlar::tokens::Token(*next);
    return tell_outcome(its.apply_prefill(token), outcome);
  });
}

ashlar_status ashlar_request_schedule_decode(ashlar_request request, ashlar_step* step) {
  return with_request(request, [&](Request& its) { return tell_step(its.schedule_decode(), step); });
}

ashlar_status ashlar_request_apply_decode(ashlar_request request, uint32_t next,
                                          ashlar_step_outcome* outcome) {
  return with_request(request, [&](Request& its) {
    return tell_outcome(its.apply_decode(ashlar::tokens::Token(next)), outcome);
  });
}

ashlar_status ashlar_request_schedule_speculative(ashlar_request request, size_t drafts, ashlar_step* step) {
  return with_request(request,
                      [&](Request& its) { return tell_step(its.schedule_speculative(drafts), step); });
}

ashlar_status ashlar_request_apply_speculative(ashlar_request request, const uint32_t* accepted, size_t n,
                                               ashlar_step_outcome* outcome) {
  return with_request(request, [&](Request& its) -> Outcome<> {
    ASHLAR_TRY(const auto tokens, elements<const ashlar::tokens::Token>(accepted, n, "accepted"));
    return tell_outcome(its.apply_speculative(tokens), outcome);
  });
}

ashlar_status ashlar_request_copies(ashlar_request request, ashlar_block_copy* out, size_t capacity,
                                    size_t* count) {
  return with_request(request, [&](Request& its) { return write_list(its.copies(), out, capacity, count); });
}

ashlar_status ashlar_request_set_written_after(ashlar_request request, ashlar_fence fence) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<RequestObject>(request.id));
    ASHLAR_TRY(const auto one, fence_of(fence));
    auto pool = pool_until_fence(object->ticket);
    const ashlar::MutexLock lock(object->mu);
    if (object->gone) return invalid_handle(HandleKind::kRequest, request.id);
    object->request.set_written_after(one);
    object->written_after = one;
    one.keep(std::move(pool));
    return {};
  });
}

ashlar_status ashlar_request_revert(ashlar_request request) {
  return with_request(request, [](Request& its) -> Outcome<> {
    ASHLAR_RETURN_IF_ERROR(its.revert());
    return {};
  });
}

ashlar_status ashlar_request_preempt(ashlar_request request) {
  const NoCancellation held;
  return with_request(request, [](Request& its) -> Outcome<> {
    ASHLAR_RETURN_IF_ERROR(its.preempt());
    return {};
  });
}

ashlar_status ashlar_request_resume(ashlar_request request, size_t* cached) {
  const NoCancellation held;
  return with_request(request, [&](Request& its) { return tell_cached(its.resume(), cached); });
}

ashlar_status ashlar_request_fork(ashlar_request request, const uint32_t* last, ashlar_request* forked) {
  return call([&]() -> Outcome<> {
    if (forked == nullptr) return null_pointer("forked");
    ASHLAR_TRY(const auto object, object_of<RequestObject>(request.id));
    const ashlar::MutexLock lock(object->mu);
    if (object->gone || !object->ticket.life().enter())
      return invalid_handle(HandleKind::kRequest, request.id);
    PoolTicket ticket(object->ticket.shared());
    std::optional<ashlar::tokens::Token> token;
    if (last != nullptr) token = ashlar::tokens::Token(*last);
    ASHLAR_TRY(auto second, object->request.fork(token));
    forked->id = open_handle(std::make_shared<RequestObject>(std::move(ticket), std::move(second)));
    return {};
  });
}
