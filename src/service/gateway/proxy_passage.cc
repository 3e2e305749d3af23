#include "service/gateway/proxy_passage.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "service/gateway/api.h"
#include "service/gateway/refusals.h"
#include "tokens/siphash128.h"

namespace ashlar::service {

namespace {

// Of requests that another thread answers.
constexpr std::size_t kMaxChoreBody = 1 << 20;
constexpr Clock::Duration kChoreTime = std::chrono::minutes(10);

constexpr std::size_t kMaxReason = 200;  // bytes of a header

constexpr std::string_view kWeightsHeader = "x-ashlar-weights";
constexpr std::string_view kPolicyHeader = "x-ashlar-policy";
constexpr std::string_view kRankHeader = "x-data-parallel-rank";
// In the order of preference.
constexpr std::string_view kSessionHeaders[] = {"x-session-id", "x-dynamo-session-id",
                                                "x-claude-code-session-id", "session-id", "thread-id"};

// "name=1.5,…" over the weights, in blocks. Errors: kInvalidArgument.
Result<CostWeights> parse_weights(std::string_view text, CostWeights weights) {
  const std::pair<std::string_view, std::int32_t*> names[] = {
      {"device", &weights.credit[0]},       {"host", &weights.credit[1]},   {"disk", &weights.credit[2]},
      {"external", &weights.credit[3]},     {"remote", &weights.credit[4]}, {"prefill", &weights.prefill},
      {"decode", &weights.decode},          {"request", &weights.request},  {"session", &weights.session},
      {"temperature", &weights.temperature}};
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    const std::size_t sign = item.find('=');
    const auto name =
        std::ranges::find(names, item.substr(0, sign), [](const auto& entry) { return entry.first; });
    double value = -1;
    if (sign != std::string_view::npos) {
      const std::string_view number = item.substr(sign + 1);
      const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
      if (read.ec != std::errc() || read.ptr != number.data() + number.size()) value = -1;
    }
    if (name == std::end(names) || !(value >= 0 && value <= 1000))
      return Error(ErrorCode::kInvalidArgument, std::string(kWeightsHeader) +
                                                    " is a list such as prefill=1,decode=0.25,temperature=0, "
                                                    "with numbers from 0 to 1000");
    *name->second = static_cast<std::int32_t>(value * 1000 + 0.5);
  }
  return weights;
}

// A reason may have words of an engine in it: visible ASCII stays, and not too much of it.
std::string header_text(std::string_view text) {
  std::string out(text.substr(0, kMaxReason));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  if (text.size() > kMaxReason) out.replace(kMaxReason - 3, 3, "...");
  return out;
}

// The id in /v1/responses/{id} and what follows it; empty: another path.
std::string_view response_of(std::string_view target) {
  constexpr std::string_view kPath = "/v1/responses/";
  if (!target.starts_with(kPath)) return {};
  return target.substr(kPath.size(), target.find_first_of("/?", kPath.size()) - kPath.size());
}

std::string_view describe(ForwardFailure failure) {
  switch (failure) {
    case ForwardFailure::kConnect:
      return "could not be reached";
    case ForwardFailure::kBroken:
      return "ended the connection without an answer";
    case ForwardFailure::kLate:
      return "did not answer in time";
    case ForwardFailure::kInvalid:
      return "gave an answer that is not HTTP";
    case ForwardFailure::kExhausted:
      return "was not asked";
  }
  return "failed";
}

}  // namespace

ProxyPassage::~ProxyPassage() {
  if (chore_) chore_->leave();
  release();
  leave_line();
}

Result<void> ProxyPassage::read_headers(std::span<const HeaderView> headers) {
  authorization_ = header_of(headers, "authorization");
  weights_ = parts_.options.weights;
  policy_ = parts_.options.policy;
  if (const auto text = header_of(headers, kWeightsHeader); !text.empty()) {
    ASHLAR_TRY(weights_, parse_weights(text, weights_));
  }
  if (const auto text = header_of(headers, kPolicyHeader); !text.empty()) {
    ASHLAR_TRY(policy_, parse_policy(text));
  }
  if (const auto text = header_of(headers, kRankHeader); !text.empty()) {
    std::uint32_t rank = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), rank);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size())
      return Error(ErrorCode::kInvalidArgument, std::string(kRankHeader) + " is a number");
    rank_ = rank;
  }
  for (const std::string_view name : kSessionHeaders) {
    const std::string_view value = header_of(headers, name);
    if (value.empty()) continue;
    tokens::SipHash128 hash(parts_.session_key);
    hash.update(value.data(), value.size());
    session_ = hash.digest().lo | 1;
    break;
  }
  return {};
}

Step ProxyPassage::refuse(unsigned status, std::string_view type, std::string_view message, bool can_retry) {
  leave_line();
  parts_.counters.refused.add();
  Reply reply = openai_error(status, type, message, can_retry);
  if (decision_) add_receipt(reply.headers);
  return reply;
}

void ProxyPassage::add_receipt(Headers& headers) const {
  const Candidate& choice = decision_->choice();
  headers.reserve(headers.size() + 6);
  headers.emplace_back("x-ashlar-worker", worker_name_);
  headers.emplace_back("x-ashlar-dp-rank", std::to_string(choice.worker.rank));
  headers.emplace_back("x-ashlar-state", to_string(choice.state));
  if (!state_reason_.empty()) headers.emplace_back("x-ashlar-state-reason", header_text(state_reason_));
  headers.emplace_back("x-ashlar-decision-id", decision_name(parts_.run, decision_->id));
  if (!decision_->is_estimate)
    headers.emplace_back("x-ashlar-cached-tokens", std::to_string(decision_->cached_tokens));
}

Step ProxyPassage::begin(const ClientRequest& request, Wake wake) {
  request_ = request;
  request_.headers = {};  // not valid after this call
  wake_ = std::move(wake);
  arrived_ = Clock::real().now();
  if (std::optional<Reply> refusal = refuse_stranger(parts_, request)) return *std::move(refusal);
  if (is_slow_api(request)) return start_chore();
  if (std::optional<Reply> own = answer_api(parts_, request)) return *std::move(own);
  parts_.counters.requests.add();
  is_counted_ = false;
  if (parts_.is_draining.load(std::memory_order_relaxed))
    return refuse(503, "service_unavailable", "this router stops; another takes requests", true);
  if (const auto read = read_headers(request.headers); !read)
    return refuse(400, "invalid_request_error", read.error().message());
  const Endpoint endpoint = endpoint_of(request.method, request.target);
  view_.endpoint = endpoint;
  const std::size_t start = request.body.find_first_not_of(" \t\r\n");
  if (endpoint != Endpoint::kOther || (start != std::string_view::npos && request.body[start] == '{')) {
    // What cannot be read here is the engine's to refuse; it is routed by its size.
    if (Result<RequestView> view = read_request(endpoint, request.body)) view_ = *std::move(view);
  }
  if (view_.asks_full_report) parts_.fleet->expect_full_reports();
  home_ = parts_.homes.find(endpoint == Endpoint::kResponses ? std::string_view(view_.previous_response)
                                                             : response_of(request.target));
  // A path with an id names no model.
  if (home_ && view_.model.empty()) view_.model = parts_.fleet->group_of(*home_);
  Result<ResolvedModel> model = parts_.fleet->resolve(view_.model);
  if (!model && model.error().code() == ErrorCode::kNotFound && view_.model.empty())
    return refuse(400, "invalid_request_error",
                  "several models are served here: the request must name one. " + model.error().message());
  if (!model && model.error().code() == ErrorCode::kNotFound)
    return refuse(404, "not_found_error", model.error().message());
  if (!model) return refuse(503, "service_unavailable", model.error().message(), true);
  model_ = *std::move(model);
  return find_tokens();
}

Step ProxyPassage::start_chore() {
  if (request_.body.size() > kMaxChoreBody)
    return refuse(413, "invalid_request_error",
                  "this body has more than " + std::to_string(kMaxChoreBody) + " bytes");
  chore_ = std::make_shared<ChoreReply>(wake_);
  // The request is gone by then if its client is.
  const bool is_taken =
      parts_.chores->add([&parts = parts_, to = chore_, method = std::string(request_.method),
                          target = std::string(request_.target), body = std::string(request_.body)] {
        if (to->is_left() && method != "POST") return;  // nobody reads it
        std::optional<Reply> reply;
        try {
          reply = answer_api(parts, {.method = method, .target = target, .headers = {}, .body = body});
        } catch (const std::exception& error) {  // its client waits for it
          ASHLAR_LOG(LogLevel::kError, "serve", "%s failed: %s", target.c_str(), error.what());
          reply = openai_error(500, "internal_error", "this failed here; the log says why");
        }
        ASHLAR_CHECK(reply.has_value(), "a chore is for an answer of our own");
        to->set(*std::move(reply));
      });
  if (is_taken) return Wait{.until = arrived_ + kChoreTime};
  chore_.reset();
  return refuse(503, "service_unavailable", "too many such requests wait", true);
}

// Before the first event of a model it is a guess; events may come while a request asks for its tokens, or
// waits. In blocks of another size nothing is ever found, nor what is waited for.
void ProxyPassage::follow_block_size() {
  const std::uint64_t changes = parts_.fleet->block_size_changes();
  if (std::exchange(model_.sizes_then, changes) == changes) return;
  const std::uint32_t size = parts_.fleet->block_size_of(model_.group).value_or(model_.block_size);
  if (size == model_.block_size) return;
  model_.block_size = size;
  owed_.reset();
  new_blocks_ = 0;
  if (known_) take_tokens(*std::exchange(known_, std::nullopt));
}

Step ProxyPassage::route() {
  follow_block_size();
  // Whoever waits goes first.
  if (line_ == nullptr) line_ = &parts_.lines.of(model_.group);
  if (place_ == 0 && hesitation_ == 0 && !is_choosy() && !line_->empty()) return wait();
  const Clock::TimePoint before = Clock::real().now();
  // Other policies do not go by what workers report.
  const bool may_hesitate =
      policy_ == Policy::kPrefix && !is_estimate_ && (!has_hesitated_ || before < hesitates_until_);
  if (may_hesitate && !view_.skips_cache) {
    if (const auto owed = owed_reply(before)) {
      const bool waits = owed_ || parts_.recent.is_worth_waiting(model_.group);
      if (waits) owed_ = owed;
      if (waits) return hesitate(before, owed->until);
    }
  }
  if (owed_) parts_.recent.judge(model_.group, has_reply(*std::exchange(owed_, std::nullopt)));
  if (home_) keep_to_home();
  std::vector<events::Worker> left_out;
  if (!model_.unlisted.empty() || home_) {
    left_out = tried_;
    left_out.insert(left_out.end(), model_.unlisted.begin(), model_.unlisted.end());
    if (home_) left_out.insert(left_out.end(), elsewhere_.begin(), elsewhere_.end());
  }
  RouteRequest request{.group = model_.group,
                       .locals = view_.skips_cache ? std::span<const tokens::LocalHash>() : locals_,
                       .prompt_tokens = std::max<std::uint64_t>(1, prompt_tokens_),
                       .is_estimate = is_estimate_,
                       .block_size = model_.block_size,
                       .session = session_,
                       .policy = policy_,
                       .weights = weights_,
                       .tried = left_out.empty() ? tried_ : left_out,
                       .rank = rank_,
                       .hesitates = may_hesitate};
  Result<Decision> decision = parts_.router->choose(request);
  parts_.counters.route_time.observe(static_cast<std::uint64_t>((Clock::real().now() - before).count()));
  if (!decision) {
    if (decision.error().code() == ErrorCode::kCapacity) return wait();
    if (decision.error().code() == ErrorCode::kNotReady) return hesitate(before, Clock::TimePoint::max());
    return refuse(tried_.empty() ? 503 : 502, "service_unavailable", decision.error().message(), true);
  }
  decision_ = *std::move(decision);
  is_reserved_ = true;
  recall_new_blocks();
  leave_line();
  const events::Worker worker = decision_->choice().worker;
  const std::optional<RouteTarget> target = parts_.fleet->target(worker);
  if (!target) {  // it left in between
    release();
    decision_.reset();
    tried_.push_back(worker);
    return route();
  }
  worker_name_ = target->name;
  keep_receipt(*target);
  // It will have the blocks all the same, and nobody else says so.
  if (view_.skips_cache && decision_->choice().state == WorkerState::kFallback && !locals_.empty())
    parts_.router->expect(worker, locals_);
  Forward forward{.address = target->address};
  forward.is_sent_once = !may_repeat();
  forward.dropped = {kTokenHeader, kWeightsHeader, kPolicyHeader, kRankHeader};
  if (target->has_ranks) {
    forward.added.emplace_back("X-data-parallel-rank", std::to_string(worker.rank));
  } else if (rank_) {
    forward.added.emplace_back("X-data-parallel-rank", std::to_string(*rank_));
  }
  forward.connect_timeout = parts_.options.connect_timeout;
  forward.head_timeout = parts_.options.head_timeout;
  forward.idle_timeout = parts_.options.idle_timeout;
  return forward;
}

void ProxyPassage::recall_new_blocks() {
  auto& missed = decision_->missed;
  std::uint32_t& never_seen = missed[static_cast<std::size_t>(MissReason::kNeverSeen)];
  std::uint32_t& evicted = missed[static_cast<std::size_t>(MissReason::kEvicted)];
  const std::uint32_t own = std::min(new_blocks_, evicted);
  evicted -= own;
  never_seen += own;
  new_blocks_ = std::max(new_blocks_, never_seen);
}

void ProxyPassage::keep_to_home() {
  elsewhere_.clear();
  bool is_there = false;
  for (const WorkerLoad& load : parts_.router->loads()) {
    if (load.group != model_.group) continue;
    if (load.worker.id != *home_) elsewhere_.push_back(load.worker);
    is_there |=
        load.worker.id == *home_ && load.is_up && std::ranges::find(tried_, load.worker) == tried_.end();
  }
  // What it kept may be lost: any other says so.
  if (!is_there) home_.reset();
}

std::optional<RecentEnds::End> ProxyPassage::owed_reply(Clock::TimePoint now) const {
  const std::optional<RecentEnds::End> end = parts_.recent.expected(locals_, now);
  // Only events of a worker that is EXACT are sure to come, and of one that was not cleared meanwhile.
  if (!end || parts_.router->changes(end->worker).cleared != end->cleared || has_reply(*end))
    return std::nullopt;
  return end;
}

bool ProxyPassage::has_reply(const RecentEnds::End& end) const {
  const std::uint64_t wanted = std::min<std::uint64_t>(end.blocks, locals_.size());
  for (const Candidate& candidate : parts_.router->look_up(model_.group, locals_))
    if (candidate.worker == end.worker)
      return candidate.depth >= wanted || candidate.state != WorkerState::kExact;
  return true;
}

Step ProxyPassage::hesitate(Clock::TimePoint now, Clock::TimePoint until) {
  if (!std::exchange(has_hesitated_, true)) {
    hesitates_until_ = now + parts_.options.event_patience;
    parts_.counters.hesitated.add();
  }
  if (hesitation_ == 0) {
    hesitation_ = parts_.fleet->hesitating().enter(wake_);
    if (hesitation_ == 0) {  // too many hesitate
      hesitates_until_ = now;
      owed_.reset();
      return route();
    }
    hesitates_since_ = now;
    // The events may have come between the choice and the place.
    wake_();
  }
  return Wait{.until = std::min(hesitates_until_, until)};
}

Step ProxyPassage::wait() {
  const Clock::TimePoint now = Clock::real().now();
  stop_hesitating();
  // One that only some workers can take does not hold up those behind it.
  if (place_ != 0 && is_choosy()) line_->leave(std::exchange(place_, 0));
  if (place_ == 0) {
    place_ = line_->enter(wake_);
    if (place_ == 0)
      return refuse(
          429, "rate_limit_error",
          "every worker is busy and " + std::to_string(parts_.options.max_queued) + " requests wait already",
          true);
    if (waits_until_ == Clock::TimePoint{}) {
      waits_until_ = now + parts_.options.queue_timeout;
      parts_.counters.queued.add();
    }
    // Room may have come between the choice and the place.
    if (line_->is_first(place_)) line_->wake_first();
  }
  if (now >= waits_until_) return refuse(429, "rate_limit_error", "no worker had room in time", true);
  return Wait{.until = waits_until_};
}

Step ProxyPassage::resumed() {
  if (chore_) {
    if (std::optional<Reply> reply = chore_->take()) return *std::move(reply);
    if (Clock::real().now() < arrived_ + kChoreTime) return Wait{.until = arrived_ + kChoreTime};
    return refuse(503, "service_unavailable", "the answer did not come in time", true);
  }
  ASHLAR_CHECK(place_ != 0 || has_hesitated_, "it did not wait");
  ASHLAR_DCHECK(!is_reserved_, "it waits for room that it has");
  if (parts_.is_draining.load(std::memory_order_relaxed))
    return refuse(503, "service_unavailable", "this router stops; another takes requests", true);
  if (hesitation_ != 0) return route();
  if (Clock::real().now() >= waits_until_)
    return refuse(429, "rate_limit_error", "no worker had room in time", true);
  if (place_ == 0) return route();
  if (!line_->is_first(place_)) return Wait{.until = waits_until_};
  return route();
}

void ProxyPassage::stop_hesitating() {
  if (hesitation_ == 0) return;
  parts_.fleet->hesitating().leave_quietly(std::exchange(hesitation_, 0));
  const Clock::Duration time = Clock::real().now() - hesitates_since_;
  parts_.counters.hesitation_time.observe(static_cast<std::uint64_t>(time.count()));
}

void ProxyPassage::leave_line() {
  stop_hesitating();
  if (place_ == 0) return;
  line_->leave(std::exchange(place_, 0));
}

void ProxyPassage::keep_receipt(const RouteTarget& target) {
  ASHLAR_DCHECK(is_reserved_ && decision_, "a receipt of no decision");
  const Candidate& choice = decision_->choice();
  state_reason_.clear();
  if (choice.state != WorkerState::kExact) state_reason_ = parts_.fleet->state_reason(choice.worker);
  parts_.counters.states[static_cast<std::size_t>(choice.state)].add();
  parts_.receipts.add(decision_->id, [&](Receipt& receipt) {
    receipt.decision = *decision_;
    for (Candidate& candidate : receipt.decision.candidates)
      if (std::ranges::find(model_.unlisted, candidate.worker) != model_.unlisted.end())
        candidate.exclusion = Exclusion::kOtherModel;
    for (Candidate& candidate : receipt.decision.candidates)
      if (home_ && candidate.exclusion == Exclusion::kTried && candidate.worker.id != *home_)
        candidate.exclusion = Exclusion::kNotHome;
    receipt.group = model_.group;
    receipt.worker_name = target.name;
    receipt.state_reason = state_reason_;
    receipt.claim_reason = claim_reason_;
    receipt.token_source = known_ ? to_string(known_->source) : std::string_view();
  });
}

void ProxyPassage::release() {
  if (!std::exchange(is_reserved_, false)) return;
  parts_.router->release(decision_->id);
  line_->wake_first();
}

bool ProxyPassage::may_repeat() const noexcept {
  return view_.endpoint != Endpoint::kOther || request_.method == "GET" || request_.method == "HEAD" ||
         request_.method == "OPTIONS";
}

bool ProxyPassage::has_other_worker() const {
  const std::vector<WorkerLoad> loads = parts_.router->loads();
  return std::ranges::any_of(decision_->candidates, [&](const Candidate& candidate) {
    const auto load = std::ranges::find(loads, candidate.worker, &WorkerLoad::worker);
    return candidate.worker.id != decision_->choice().worker.id && load != loads.end() && load->is_up &&
           (candidate.exclusion == Exclusion::kNone || candidate.exclusion == Exclusion::kFull);
  });
}

void ProxyPassage::note_failure(std::string_view message) {
  if (judges_worker()) parts_.fleet->note(decision_->choice().worker.id, true, message);
}

Step ProxyPassage::try_another(unsigned status, std::string_view message) {
  const events::Worker worker = decision_->choice().worker;
  RequestOutcome outcome{.is_over = true, .end = PassageEnd::kWorkerBroke, .status = status_};
  parts_.receipts.set_outcome(decision_->id, outcome);
  release();
  // Its other ranks listen at the same address.
  for (const Candidate& candidate : decision_->candidates)
    if (candidate.worker.id == worker.id) tried_.push_back(candidate.worker);
  ++attempts_;
  status_ = 0;
  if (attempts_ >= parts_.options.max_attempts)
    return refuse(status, "service_unavailable",
                  std::to_string(attempts_) + " workers were tried; the last, " + worker_name_ + ", " +
                      std::string(message),
                  true);
  parts_.counters.retries.add();
  return route();
}

Step ProxyPassage::failed(ForwardFailure failure, std::string_view detail) {
  ASHLAR_CHECK(is_reserved_, "a failure of no worker");
  ASHLAR_DCHECK(!has_bytes_, "bytes were passed on: nothing can be tried again");
  if (failure == ForwardFailure::kExhausted) {
    if (const auto left_out = parts_.shortages.next(Clock::real().now()))
      ASHLAR_LOG(LogLevel::kWarn, "serve",
                 "requests cannot be sent: %s (%llu such lines were left out); see Files in docs/serve.md",
                 printable(detail).c_str(), static_cast<unsigned long long>(*left_out));
    parts_.counters.unsent.add();
    status_ = 503;
    settle_outcome(PassageEnd::kComplete);
    release();
    return refuse(503, "service_unavailable", "this router has no connections left for its workers", true);
  }
  ASHLAR_LOG(LogLevel::kWarn, "serve", "worker %s %s: %s", worker_name_.c_str(), describe(failure).data(),
             printable(detail).c_str());
  const bool is_unsent = failure == ForwardFailure::kConnect;
  if (is_unsent && !judges_worker()) {
    parts_.fleet->note_unreachable(decision_->choice().worker.id, describe(failure));
  } else {
    note_failure(describe(failure));
  }
  // The engine may still compute what it was slow with: the same again elsewhere would double the load.
  if (failure != ForwardFailure::kLate && (is_unsent || may_repeat()))
    return try_another(502, describe(failure));
  settle_outcome(PassageEnd::kWorkerBroke);
  release();
  const std::string message = worker_name_ + " " + std::string(describe(failure));
  if (failure == ForwardFailure::kLate) return refuse(504, "timeout_error", message);
  return refuse(502, "service_unavailable", message + "; it may have done what was asked for");
}

HeadVerdict ProxyPassage::head(unsigned status, std::span<const HeaderView> headers) {
  ASHLAR_CHECK(decision_.has_value(), "an answer of no worker");
  ASHLAR_DCHECK(!has_bytes_, "a head after its body");
  status_ = status;
  HeadVerdict verdict;
  if (status == 502 || status == 503 || status == 504) {
    const std::string message = "answered " + std::to_string(status);
    note_failure(message);
    // Where no other can be had, the worker's own answer is the better one.
    if (attempts_ + 1 < parts_.options.max_attempts && may_repeat() && has_other_worker()) {
      verdict.instead = try_another(status, message);
      return verdict;
    }
    has_failed_ = true;
  }
  add_receipt(verdict.added);
  if (status == 200)
    scanner_.emplace(header_of(headers, "content-type"), view_.endpoint == Endpoint::kResponses);
  return verdict;
}

void ProxyPassage::bytes(std::string_view part) {
  if (!std::exchange(has_bytes_, true) && is_reserved_) parts_.router->first_byte(decision_->id);
  if (!scanner_) return;
  scanner_->feed(part);
  if (view_.endpoint != Endpoint::kResponses || has_home_ || scanner_->id().empty()) return;
  has_home_ = true;
  parts_.homes.add(scanner_->id(), decision_->choice().worker.id);
}

void ProxyPassage::ended(PassageEnd end) {
  if (!is_counted_) {
    is_counted_ = true;
    parts_.counters.ended[static_cast<std::size_t>(end)].add();
  }
  if (is_reserved_) {
    settle_outcome(end);
    if (end == PassageEnd::kWorkerBroke) note_failure("broke off its answer");
    // A head proves nothing: an engine may die in every answer.
    if (end == PassageEnd::kComplete && !has_failed_ && judges_worker())
      parts_.fleet->note(decision_->choice().worker.id, false);
  }
  release();
  leave_line();
}

}  // namespace ashlar::service
