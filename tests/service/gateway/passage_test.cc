// Passages of a service, step by step, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "service/gateway/fake_workers.h"
#include "service/request/request_view.h"
#include "support/scratch_folder.h"

namespace ashlar::service {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr HeaderView kJson[] = {{.name = "Content-Type", .value = "application/json"}};

Forward& forward_of(ServiceUnderTest::Open& open) {
  auto* forward = std::get_if<Forward>(&open.step);
  EXPECT_NE(forward, nullptr);
  static Forward none;
  return forward == nullptr ? none : *forward;
}

unsigned status_of(const Step& step) {
  const auto* reply = std::get_if<Reply>(&step);
  return reply == nullptr ? 0 : reply->status;
}

TEST(Passage, ATokenPromptIsForwardedAndItsReceiptKept) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  const auto open = service.begin("/v1/completions", tokens_body(40));
  const Forward forward = forward_of(*open);
  EXPECT_EQ(service->router().running(), 1u);
  EXPECT_THAT(forward.dropped, Contains("x-ashlar-token"));
  const HeadVerdict verdict = open->passage->head(200, kJson);
  EXPECT_FALSE(verdict.instead);
  EXPECT_THAT(verdict.added, Contains(Pair("x-ashlar-state", "FALLBACK")));
  EXPECT_THAT(verdict.added, Contains(Pair("x-ashlar-cached-tokens", "0")));
  std::string id;
  for (const auto& [name, value] : verdict.added)
    if (name == "x-ashlar-decision-id") id = value;
  open->passage->bytes(usage_answer(40, 0));
  open->passage->ended(PassageEnd::kComplete);
  EXPECT_EQ(service->router().running(), 0u);
  const Reply receipt = service.get("/decisions/" + id);
  EXPECT_EQ(receipt.status, 200u) << receipt.body;
  EXPECT_THAT(receipt.body, HasSubstr(R"("delivered_tokens":0)"));
  EXPECT_THAT(receipt.body, HasSubstr(R"("tokens":"given")"));
  EXPECT_THAT(service.get("/decisions").body, HasSubstr(id));
  EXPECT_EQ(service.get("/decisions/0000000000000000-1").status, 404u);
  EXPECT_EQ(service.get("/decisions/x").status, 400u);
}

// A source that cannot connect, and says so in words that no header may have.
class BrokenEngine final : public feed::EngineSource {
 public:
  Result<std::optional<feed::EngineMessage>> receive(Clock::Duration) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Error(ErrorCode::kUnavailable, "caf\xC3\xA9\r\nX-Evil: 1\t" + std::string(5000, 'x'));
  }
  Result<feed::EngineReplay> replay(std::uint64_t) override { return Error(ErrorCode::kUnsupported, "none"); }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "broken"; }
};

TEST(Passage, TheReasonOfAStateIsAHeader) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.workers[1].name = "quiet";
  options.workers[0].events = "tcp://127.0.0.1:1";
  ServiceUnderTest service(options, {}, [](const EngineEndpoint&) {
    return Result<std::unique_ptr<feed::EngineSource>>(std::make_unique<BrokenEngine>());
  });
  const auto reason_at = [&](const std::string& worker) {
    const auto open = service.begin("/v1/completions", tokens_body(40), {{"x-ashlar-policy", "round_robin"}});
    std::string name;
    std::string reason;
    for (const auto& [header, value] : open->passage->head(200, kJson).added) {
      if (header == "x-ashlar-worker") name = value;
      if (header == "x-ashlar-state-reason") reason = value;
    }
    return name == worker ? reason : std::string();
  };
  std::string reason;
  while (reason.find("Evil") == std::string::npos) reason = reason_at("w0");
  EXPECT_EQ(reason.size(), 200u);
  EXPECT_THAT(reason, HasSubstr("caf????X-Evil: 1?xxx"));
  EXPECT_TRUE(reason.ends_with("...")) << reason;
  while (reason != "it has no events") reason = reason_at("quiet");
}

TEST(Passage, APredictionIsComparedWithWhatTheEngineFound) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  for (const std::uint64_t found : {0, 32, 16}) {
    const auto open = service.begin("/v1/completions", tokens_body(40));
    open->passage->head(200, kJson);
    open->passage->bytes(usage_answer(40, found));
    open->passage->ended(PassageEnd::kComplete);
  }
  EXPECT_EQ(service.metric("ashlar_serve_predictions_right_total"), 2);
  EXPECT_EQ(service.metric(R"(ashlar_serve_misroute_total{reason="not_exact"})"), 1);
  EXPECT_EQ(service.metric("ashlar_serve_captured_tokens_total"), 64);
  EXPECT_EQ(service.metric("ashlar_serve_delivered_tokens_total"), 48);
  const auto open = service.begin("/v1/completions", tokens_body(40));
  open->passage->head(200, kJson);
  open->passage->bytes(R"({"usage":{"prompt_tokens":40}})");
  open->passage->ended(PassageEnd::kComplete);
  EXPECT_EQ(service.metric("ashlar_serve_delivered_unknown_total"), 1);
  EXPECT_EQ(service.metric("ashlar_serve_prompt_tokens_total"), 120);
  EXPECT_EQ(service.metric("ashlar_serve_captured_tokens_total"), 64) << "only where delivered is known";
  EXPECT_EQ(service.metric(R"(ashlar_serve_unknown_tokens_total{kind="prompt"})"), 40);
  EXPECT_EQ(service.metric(R"(ashlar_serve_unknown_tokens_total{kind="available"})"), 32);
  EXPECT_EQ(service.metric(R"(ashlar_serve_unknown_tokens_total{kind="captured"})"), 32);
}

TEST(Passage, TextIsTokenizedByAWorkerOnce) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":"hello"}]})";
  auto open = service.begin("/v1/chat/completions", body, {{"Authorization", "Bearer k"}});
  const Ask* ask = std::get_if<Ask>(&open->step);
  ASSERT_NE(ask, nullptr);
  EXPECT_EQ(ask->target, "/tokenize");
  EXPECT_THAT(ask->headers, Contains(Pair("Authorization", "Bearer k")));
  Step step = open->passage->answered(Answer{.status = 200, .body = R"({"count":3,"tokens":[5,6,7]})"});
  while (std::holds_alternative<Ask>(step))
    step = open->passage->answered(Answer{.status = 200, .body = R"({"count":3,"tokens":[5,6,7]})"});
  EXPECT_TRUE(std::holds_alternative<Forward>(step));
  open->passage->ended(PassageEnd::kClientGone);
  const auto again = service.begin("/v1/chat/completions", body);
  EXPECT_TRUE(std::holds_alternative<Forward>(again->step)) << "remembered";
}

TEST(Passage, WithoutTokensItIsRoutedByLoadAndClaimsNothing) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  auto open =
      service.begin("/v1/chat/completions", R"({"model":"m","messages":[{"role":"user","content":"a"}]})");
  ASSERT_TRUE(std::holds_alternative<Ask>(open->step));
  const Step step = open->passage->answered(Error(ErrorCode::kTimeout, "late"));
  ASSERT_TRUE(std::holds_alternative<Forward>(step));
  EXPECT_THAT(open->passage->head(200, kJson).added, Not(Contains(Key("x-ashlar-cached-tokens"))));
}

// A request passed to its end; its receipt.
std::string receipt_of(ServiceUnderTest& service, const std::string& target, const std::string& body,
                       const std::string& answer) {
  const auto open = service.begin(target, body);
  EXPECT_TRUE(std::holds_alternative<Forward>(open->step)) << body;
  std::string id;
  for (const auto& [name, value] : open->passage->head(200, kJson).added)
    if (name == "x-ashlar-decision-id") id = value;
  open->passage->bytes(answer);
  open->passage->ended(PassageEnd::kComplete);
  return service.get("/decisions/" + id).body;
}

TEST(Passage, LogprobsOfThePromptAreComputedAnew) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const auto pass = [&](std::string_view extra, std::uint64_t found) {
    return receipt_of(service, "/v1/completions", tokens_body(40, 1, extra), usage_answer(40, found));
  };
  // The first stores the prompt, though it reads nothing.
  std::string receipt = pass(R"(,"prompt_logprobs":1)", 0);
  EXPECT_THAT(receipt, HasSubstr("logprobs are asked for"));
  EXPECT_THAT(receipt, HasSubstr(R"("cached_tokens":0)"));
  receipt = pass("", 32);
  EXPECT_THAT(receipt, HasSubstr(R"("cached_tokens":32)"));
  EXPECT_THAT(receipt, Not(HasSubstr("claim_reason")));
  for (const char* extra : {R"(,"echo":true,"logprobs":0)", R"(,"prompt_logprobs":0)"})
    EXPECT_THAT(pass(extra, 0), HasSubstr(R"("cached_tokens":0)")) << extra;
  EXPECT_THAT(pass(R"(,"echo":true)", 32), HasSubstr(R"("cached_tokens":32)"));
  EXPECT_EQ(service.metric("ashlar_serve_predictions_right_total"), 5);
}

TEST(Passage, AReceiptSaysWhyNothingIsClaimed) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.token_source = "tokenize";
  ServiceUnderTest service(options);
  // Items of reasoning become parts of other messages, which /tokenize is not told.
  EXPECT_THAT(receipt_of(service, "/v1/responses",
                         R"({"model":"m","input":[{"type":"reasoning","summary":[],"content":[]}]})", "{}"),
              HasSubstr("in a way that /tokenize does not"));
  EXPECT_THAT(
      receipt_of(service, "/v1/responses", R"({"model":"m","input":"a","previous_response_id":"r"})", "{}"),
      HasSubstr("an answer that only its engine has"));
  auto open = service.begin("/v1/completions", R"({"model":"m","prompt":"a"})");
  open->step = open->passage->answered(Error(ErrorCode::kUnavailable, "refused"));
  ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
  EXPECT_THAT(service.get("/decisions").body, HasSubstr("no worker could be asked"));
}

TEST(Passage, AnotherWorkerIsTriedBeforeTheFirstByteOnly) {
  ServeOptions options = ServiceUnderTest::options_of(3);
  options.max_attempts = 2;
  ServiceUnderTest service(options);
  const auto open = service.begin("/v1/completions", tokens_body(40));
  const HttpAddress first = forward_of(*open).address;
  Step step = open->passage->failed(ForwardFailure::kConnect, "refused");
  ASSERT_TRUE(std::holds_alternative<Forward>(step));
  EXPECT_NE(std::get<Forward>(step).address, first);
  EXPECT_EQ(service->router().running(), 1u);
  step = open->passage->failed(ForwardFailure::kBroken, "reset");
  EXPECT_EQ(status_of(step), 502u);
  EXPECT_THAT(std::get<Reply>(step).body, HasSubstr("2 workers were tried"));
  EXPECT_EQ(service->router().running(), 0u);
  const auto late = service.begin("/v1/completions", tokens_body(40));
  EXPECT_EQ(status_of(late->passage->failed(ForwardFailure::kLate, "")), 504u) << "not computed twice";
  const auto busy = service.begin("/v1/completions", tokens_body(40));
  const HeadVerdict verdict = busy->passage->head(503, kJson);
  ASSERT_TRUE(verdict.instead);
  EXPECT_TRUE(std::holds_alternative<Forward>(*verdict.instead));
}

TEST(Passage, AWorkerThatFailsInARowRestsUntilItIsWell) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.breaker_failures = 2;
  options.breaker_rest = std::chrono::milliseconds(1);
  options.health_interval = std::chrono::milliseconds(1);
  ServiceUnderTest service(options);
  const auto has_rest = [&] {
    return service.get("/fleet").body.find("failures in a row") != std::string::npos;
  };
  while (!has_rest()) {
    const auto open = service.begin("/v1/completions", tokens_body(40));
    (void)open->passage->failed(ForwardFailure::kBroken, "reset");
  }
  while (has_rest()) service.answer_errands();
  service.down = {{9001, true}, {9002, true}};
  while (service.get("/ready").status == 200) service.answer_errands();
  const auto open = service.begin("/v1/completions", tokens_body(40));
  EXPECT_EQ(status_of(open->step), 503u);
  EXPECT_THAT(service.get("/fleet").body, HasSubstr("its /health cannot be reached: refused"));
}

TEST(Passage, RequestsWaitForRoomInOrder) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.max_running = 1;
  options.max_queued = 2;
  ServiceUnderTest service(options);
  auto running = service.begin("/v1/completions", tokens_body(40));
  ASSERT_TRUE(std::holds_alternative<Forward>(running->step));
  auto first = service.begin("/v1/completions", tokens_body(40));
  auto second = service.begin("/v1/completions", tokens_body(40));
  ASSERT_TRUE(std::holds_alternative<Wait>(first->step));
  ASSERT_TRUE(std::holds_alternative<Wait>(second->step));
  const auto third = service.begin("/v1/completions", tokens_body(40));
  EXPECT_EQ(status_of(third->step), 429u);
  EXPECT_THAT(std::get<Reply>(third->step).headers, Contains(Key("Retry-After")));
  EXPECT_TRUE(std::holds_alternative<Wait>(second->passage->resumed())) << "not its turn";
  const int before = *first->wakes;
  running->passage->ended(PassageEnd::kComplete);
  EXPECT_GT(*first->wakes, before);
  // The first leaves without using its turn: the second is woken.
  const int others = *second->wakes;
  first.reset();
  EXPECT_GT(*second->wakes, others);
  EXPECT_TRUE(std::holds_alternative<Forward>(second->passage->resumed()));
}

TEST(Passage, AWaitEndsInTimeAndWhenTheRouterStops) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.max_running = 1;
  options.queue_timeout = std::chrono::milliseconds(1);
  ServiceUnderTest service(options);
  const auto running = service.begin("/v1/completions", tokens_body(40));
  auto late = service.begin("/v1/completions", tokens_body(40));
  while (std::holds_alternative<Wait>(late->step)) late->step = late->passage->resumed();
  EXPECT_EQ(status_of(late->step), 429u);
  service->drain();
  EXPECT_EQ(status_of(service.begin("/v1/completions", tokens_body(40))->step), 503u);
  EXPECT_EQ(service.get("/ready").status, 503u);
  EXPECT_EQ(service.get("/health").status, 200u);
}

TEST(Passage, TheTokenGuardsEverythingButHealth) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.token = "s3cret";
  ServiceUnderTest service(options);
  EXPECT_EQ(status_of(service.begin("/v1/completions", tokens_body(4))->step), 401u);
  EXPECT_EQ(status_of(service.begin("/v1/completions", tokens_body(4), {{"x-ashlar-token", "s3cre"}})->step),
            401u);
  EXPECT_EQ(status_of(service.begin("/metrics", {}, {}, "GET")->step), 401u);
  EXPECT_EQ(service.get("/health").status, 200u);
  EXPECT_EQ(status_of(service.begin("/health", {}, {}, "HEAD")->step), 200u);
  EXPECT_EQ(status_of(service.begin("/metrics", {}, {}, "HEAD")->step), 401u);
  // The head alone tells, before a body is read.
  const std::vector<HeaderView> right = {{.name = "X-Ashlar-Token", .value = "s3cret"}};
  const auto refusal =
      service->refuse_head({.method = "POST", .target = "/v1/completions", .headers = {}, .body = {}});
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 401u);
  EXPECT_FALSE(
      service->refuse_head({.method = "POST", .target = "/v1/completions", .headers = right, .body = {}}));
  EXPECT_EQ(service.metric("ashlar_serve_refused_total"), 5);
  const auto open = service.begin("/v1/completions", tokens_body(4), {{"X-Ashlar-Token", "s3cret"}});
  EXPECT_TRUE(std::holds_alternative<Forward>(open->step));
}

TEST(Passage, ModelsDecideTheGroup) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.workers[0].model.clear();
  options.workers[1].model = "other";
  ServiceUnderTest service(options, R"({"object":"list","data":[{"id":"base","max_model_len":9},
                                       {"id":"adapter","parent":"base"}]})");
  EXPECT_EQ(status_of(service.begin("/v1/completions", R"({"model":"x","prompt":[1]})")->step), 404u);
  EXPECT_EQ(status_of(service.begin("/v1/completions", R"({"prompt":[1]})")->step), 400u);
  for (const char* model : {"base", "adapter", "other"}) {
    const auto open =
        service.begin("/v1/completions", R"({"model":")" + std::string(model) + R"(","prompt":[1]})");
    EXPECT_TRUE(std::holds_alternative<Forward>(open->step)) << model;
  }
}

TEST(Passage, AnAdapterGoesToWorkersThatListIt) {
  ServeOptions options = ServiceUnderTest::options_of(3);
  for (WorkerOptions& worker : options.workers) worker.model.clear();
  options.workers[2].dp = 2;
  options.max_running = 1;
  const std::string base = R"({"data":[{"id":"m"}]})";
  const std::string both = R"({"data":[{"id":"m"},{"id":"lora","parent":"m"}]})";
  ServiceUnderTest service(options, {}, {}, {{9001, base}, {9002, both}, {9003, base}});
  const std::string body = R"({"model":"lora","prompt":[1,2,3]})";
  const auto first = service.begin("/v1/completions", body);
  EXPECT_EQ(forward_of(*first).address.port, 9002);
  std::string id;
  for (const auto& [name, value] : first->passage->head(200, kJson).added)
    if (name == "x-ashlar-decision-id") id = value;
  const std::string receipt = service.get("/decisions/" + id).body;
  std::size_t left_out = 0;
  for (std::size_t at = 0; (at = receipt.find(R"("excluded":"other_model")", at)) != std::string::npos; ++at)
    ++left_out;
  EXPECT_EQ(left_out, 3u) << receipt;
  // It waits for that worker although others have room, and is not sent to them if it fails.
  auto second = service.begin("/v1/completions", body);
  ASSERT_TRUE(std::holds_alternative<Wait>(second->step));
  first->passage->ended(PassageEnd::kComplete);
  second->step = second->passage->resumed();
  EXPECT_EQ(forward_of(*second).address.port, 9002);
  EXPECT_EQ(status_of(second->passage->failed(ForwardFailure::kConnect, "refused")), 502u);
  // Its tokens are asked of a worker that knows it.
  const auto text = service.begin("/v1/completions", R"({"model":"lora","prompt":"a"})");
  ASSERT_TRUE(std::holds_alternative<Ask>(text->step));
  EXPECT_EQ(std::get<Ask>(text->step).address.port, 9002);
  // The base model is everywhere; a name that nobody lists is an error that says what there is.
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(std::holds_alternative<Forward>(
        service.begin("/v1/completions", R"({"model":"m","prompt":[1,2,3]})")->step));
  const auto unknown = service.begin("/v1/completions", R"({"model":"x","prompt":[1]})");
  EXPECT_EQ(status_of(unknown->step), 404u);
  EXPECT_THAT(std::get<Reply>(unknown->step).body, HasSubstr("there are 'lora', 'm'"));
}

TEST(Passage, HeadersChangeWeightsAndAreChecked) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  for (const char* bad : {"x", "prefill", "prefill=-1", "prefill=x", "colour=1", "prefill=1e9"})
    EXPECT_EQ(status_of(service.begin("/v1/completions", tokens_body(4), {{"x-ashlar-weights", bad}})->step),
              400u)
        << bad;
  EXPECT_EQ(status_of(service.begin("/v1/completions", tokens_body(4), {{"x-ashlar-policy", "best"}})->step),
            400u);
  const auto open = service.begin("/v1/completions", tokens_body(4),
                                  {{"x-ashlar-weights", "prefill=1, temperature=0.5"},
                                   {"x-ashlar-policy", "round_robin"},
                                   {"x-session-id", "abc"}});
  EXPECT_TRUE(std::holds_alternative<Forward>(open->step));
}

TEST(Passage, HostileBodiesGoToTheEngineOrAreRefused) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  for (const char* body : {"", "{", "[]", "null", R"({"model":1})", R"({"prompt":{"a":[]}})", "\xff\xfe"}) {
    const auto open = service.begin("/v1/completions", body);
    EXPECT_TRUE(std::holds_alternative<Forward>(open->step)) << body;
  }
}

TEST(Passage, NothingIsClaimedWhereTheEngineChoosesTheRank) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    ServeOptions options = ServiceUnderTest::options_of(1);
    options.workers[0].dp = ranks;
    ServiceUnderTest service(options);
    std::string tokens = "1";
    for (int i = 2; i <= 40; ++i) tokens += "," + std::to_string(i);
    std::vector<std::pair<std::string, std::string>> added;
    std::string receipt;
    for (int i = 0; i < 2 + static_cast<int>(ranks); ++i) {
      auto open = service.begin("/v1/responses", R"({"model":"m","input":"hello"})");
      while (std::holds_alternative<Ask>(open->step))
        open->step = open->passage->answered(
            Answer{.status = 200, .body = R"({"count":40,"tokens":[)" + tokens + "]}"});
      ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
      added = open->passage->head(200, kJson).added;
      for (const auto& [name, value] : added)
        if (name == "x-ashlar-decision-id") receipt = service.get("/decisions/" + value).body;
      open->passage->ended(PassageEnd::kComplete);
    }
    if (ranks == 1) {
      EXPECT_THAT(added, Contains(Pair("x-ashlar-cached-tokens", "32")));
      continue;
    }
    EXPECT_THAT(added, Not(Contains(Key("x-ashlar-cached-tokens"))));
    EXPECT_THAT(receipt, HasSubstr("the engine chooses the rank of /v1/responses itself"));
    EXPECT_THAT(receipt, HasSubstr(R"("cached_tokens":0)"));
  }
}

TEST(Passage, APromptBeyondEveryContextIsRoutedByItsStart) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.workers[0].block_size = 1;
  options.max_predicted_blocks = 100;
  ServiceUnderTest service(options);
  const auto long_one = service.begin("/v1/completions", tokens_body(70'000));
  ASSERT_TRUE(std::holds_alternative<Forward>(long_one->step));
  const auto added = long_one->passage->head(200, kJson).added;
  EXPECT_THAT(added, Not(Contains(Key("x-ashlar-cached-tokens"))));
  EXPECT_EQ(service.metric(R"(ashlar_serve_predictions_left_out_total{limit="max_predicted_blocks"})"),
            65'536 - 100);
  const auto next = service.begin("/v1/completions", tokens_body(200));
  EXPECT_THAT(next->passage->head(200, kJson).added, Contains(Pair("x-ashlar-cached-tokens", "100")));
}

TEST(Passage, CountsThatCannotBeSoAreNotUsed) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const std::pair<const char*, bool> answers[] = {
      {R"({"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":18446744073709551615}}})",
       false},
      {R"({"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":41}}})", false},
      {R"({"usage":{"prompt_tokens_details":{"cached_tokens":48}}})", false},
      {R"({"usage":{"prompt_tokens":99999999999,"prompt_tokens_details":{"cached_tokens":99999999}}})",
       false},
      {R"({"usage":{"input_tokens":5,"cache_read_input_tokens":18446744073709551615}})", false},
      {R"({"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}})", true}};
  double refused = 0;
  for (const auto& [answer, is_good] : answers) {
    const std::string receipt = receipt_of(service, "/v1/completions", tokens_body(40), answer);
    refused += is_good ? 0 : 1;
    EXPECT_EQ(service.metric("ashlar_serve_delivered_implausible_total"), refused) << answer;
    EXPECT_EQ(service.metric("ashlar_serve_delivered_unknown_total"), refused);
    EXPECT_EQ(receipt.find(R"("delivered_tokens":null)") == std::string::npos, is_good) << receipt;
  }
  EXPECT_EQ(service.metric("ashlar_serve_delivered_tokens_total"), 32);
}

TEST(Passage, EveryRunHasATraceOfItsOwn) {
  const ScratchFolder folder;
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.record = folder.file("trace.jsonl");
  for (const char* end : {"", ".1", ".2"}) {
    ServiceUnderTest service(options);
    receipt_of(service, "/v1/completions", tokens_body(40), usage_answer(40, 0));
    service.reset();
    std::ifstream in(options.record + end);
    const std::string trace((std::istreambuf_iterator<char>(in)), {});
    EXPECT_THAT(trace, HasSubstr(R"("input_length": 40)")) << end;
  }
}

TEST(Passage, ATraceHasWhatWasGeneratedAndWhatIsKnownOfIt) {
  const ScratchFolder folder;
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.record = folder.file("trace.jsonl");
  options.tokenize = false;
  ServiceUnderTest service(options);
  receipt_of(service, "/v1/completions", tokens_body(40), R"({"usage":{"prompt_tokens":40}})");
  receipt_of(service, "/v1/chat/completions", R"({"model":"m","messages":[]})", usage_answer(1234, 0));
  receipt_of(service, "/v1/completions", tokens_body(40), usage_answer(50, 0));  // other tokens than ours
  for (const char* path : {"/v1/embeddings", "/tokenize", "/detokenize", "/v1/other"})
    receipt_of(service, path, R"({"model":"m","input":"a","prompt":"a","tokens":[1]})", usage_answer(1, 0));
  const auto open = service.begin("/v1/completions", tokens_body(40), {{"x-session-id", "a"}});
  open->passage->head(200, kJson);
  open->passage->bytes(usage_answer(40, 0));
  open->passage->ended(PassageEnd::kComplete);
  service.reset();
  std::ifstream in(options.record);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line.substr(line.find("\"input_length")));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], R"("input_length": 40, "block_size": 16, "hash_ids": [0, 1, 2]})");
  EXPECT_EQ(lines[1], R"("input_length": 1234, "output_length": 5})");
  EXPECT_EQ(lines[2], R"("input_length": 50, "output_length": 5})");
  EXPECT_THAT(lines[3], HasSubstr(R"("hash_ids": [0, 1, 3], "session": ")"));
}

// A worker that lies must not fill the memory: an answer is bounded by what was asked.
TEST(Passage, AnswersToQuestionsAreBoundedByTheQuestion) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const auto bound_of = [&](const std::string& text) {
    const auto open = service.begin("/v1/completions", R"({"model":"m","prompt":")" + text + "\"}");
    const Ask* const ask = std::get_if<Ask>(&open->step);
    EXPECT_NE(ask, nullptr) << text.size();
    return ask == nullptr ? 0 : ask->max_bytes;
  };
  EXPECT_LE(bound_of("a short one"), 300'000u);
  EXPECT_GE(bound_of("a short one"), 200'000u) << "templates add to it";
  // Eight bytes for the id of each byte, as of an engine without merges.
  EXPECT_GE(bound_of(std::string(1'000'000, 'x')), 8'000'000u);
  EXPECT_LE(bound_of(std::string(1'000'000, 'x')), 20'000'000u);
  EXPECT_LE(bound_of(std::string(10'000'000, 'x')), std::size_t{64} << 20);
}

TEST(Passage, QueriesHaveNoMoreBlocksThanRequests) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const auto ask = [&](const char* path, const char* field, std::size_t count) {
    std::string body = R"({"model_name":"m",")" + std::string(field) + "\":[1";
    for (std::size_t i = 1; i < count; ++i) body += ",1";
    return service.post(path, body + "]}").status;
  };
  EXPECT_EQ(ask("/query_by_hash", "block_hashes", kMostPromptBlocks), 200u);
  EXPECT_EQ(ask("/query_by_hash", "block_hashes", kMostPromptBlocks + 1), 400u);
  EXPECT_EQ(ask("/query", "token_ids", (kMostPromptBlocks + 1) * 16 - 1), 200u);
  EXPECT_EQ(ask("/query", "token_ids", (kMostPromptBlocks + 1) * 16), 400u);
  EXPECT_EQ(ask("/query", "token_ids", kMostTokenIds + 1), 400u);
}

TEST(Passage, EachOfSeveralModelsIsFound) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  for (WorkerOptions& worker : options.workers) worker.model.clear();
  ServiceUnderTest service(
      options, {}, {},
      {{9001, R"({"data":[{"id":"org/m1","max_model_len":9}]})"}, {9002, R"({"data":[{"id":"m2"}]})"}});
  EXPECT_EQ(service.get("/v1/models/org/m1").body, R"({"id":"org/m1","max_model_len":9})");
  EXPECT_EQ(service.get("/v1/models/org%2Fm1").status, 200u);
  EXPECT_EQ(service.get("/v1/models/m2").body, R"({"id":"m2"})");
  EXPECT_EQ(service.get("/v1/models/m3").status, 404u);
  // The model of a path that is not known, too.
  for (const char* body : {R"({"model":"m2"})", " \r\n\t{\"model\":\"m2\"}"}) {
    const auto open = service.begin("/v1/other", body);
    EXPECT_EQ(forward_of(*open).address.port, 9002) << body;
  }
}

TEST(Passage, AReceiptNamesItsCandidates) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.workers[0].name = "alpha";
  ServiceUnderTest service(options);
  const std::string receipt = receipt_of(service, "/v1/completions", tokens_body(40), usage_answer(40, 0));
  EXPECT_THAT(receipt, HasSubstr(R"("name":"alpha","address":"127.0.0.1:9001")"));
  EXPECT_THAT(receipt, HasSubstr(R"("name":"w1","address":"127.0.0.1:9002")"));
}

TEST(Passage, ARequestGoesToTheWorkerThatHasTheEarlierAnswer) {
  ServeOptions options = ServiceUnderTest::options_of(6);
  options.workers[5].model = "other";
  options.tokenize = false;
  ServiceUnderTest service(options);
  const auto port_of = [&](const std::string& target, const std::string& body, const char* method = "POST") {
    const auto open = service.begin(target, body, {{"x-ashlar-policy", "round_robin"}}, method);
    return forward_of(*open).address.port;
  };
  const HeaderView events[] = {{.name = "content-type", .value = "text/event-stream"}};
  for (const bool is_stream : {false, true}) {
    const std::string id = is_stream ? "resp_b" : "resp_a";
    const auto open = service.begin("/v1/responses", R"({"model":"m","input":"a"})");
    const std::uint16_t home = forward_of(*open).address.port;
    open->passage->head(200, is_stream ? std::span<const HeaderView>(events) : kJson);
    // It can be asked for as soon as its client knows it.
    open->passage->bytes(is_stream
                             ? R"(data: {"type":"response.created","response":{"id":")" + id + "\",\"x\":"
                             : R"({"object":"response","id":")" + id + "\",");
    for (int i = 0; i < 7; ++i) {
      EXPECT_EQ(port_of("/v1/responses", R"({"model":"m","input":"b","previous_response_id":")" + id + "\"}"),
                home);
      EXPECT_EQ(port_of("/v1/responses/" + id + "?stream=true", "", "GET"), home);
      EXPECT_EQ(port_of("/v1/responses/" + id + "/cancel", ""), home);
    }
    EXPECT_THAT(service.get("/decisions").body, HasSubstr(R"("excluded":"not_home")"));
    open->passage->ended(PassageEnd::kComplete);
    // Where it is gone any other says that it has no such answer.
    const auto again = service.begin("/v1/responses/" + id, "", {}, "GET");
    const Step step = again->passage->failed(ForwardFailure::kConnect, "refused");
    ASSERT_TRUE(std::holds_alternative<Forward>(step));
    EXPECT_NE(std::get<Forward>(step).address.port, home);
  }
  std::set<std::uint16_t> ports;
  for (int i = 0; i < 10; ++i)
    ports.insert(port_of("/v1/responses", R"({"model":"m","input":"b","previous_response_id":"unknown"})"));
  EXPECT_EQ(ports.size(), 5u) << "any";
}

}  // namespace
}  // namespace ashlar::service
