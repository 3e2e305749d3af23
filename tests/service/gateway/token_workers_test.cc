// Where tokens are asked for, and what happens where they cannot be had.
#include "service/gateway/token_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/gateway/fake_workers.h"

namespace ashlar::service {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::string_view kTokenize = "/tokenize";
constexpr std::string_view kRender = "/v1/chat/completions/render";
const std::string kChat = R"({"model":"m","messages":[{"role":"user","content":"hello"}]})";
const std::string kTools =
    R"({"model":"m","messages":[{"role":"user","content":"hello"}],"tools":[{"name":"t"}]})";

TEST(TokenWorkers, AnEndpointThatIsNotThereRestsLongerEachTime) {
  TokenWorkers workers;
  const events::WorkerId one(1);
  Clock::TimePoint now{};
  EXPECT_TRUE(workers.may_ask(one, kTokenize, now));
  for (Clock::Duration pause = TokenWorkers::kAbsentPause; pause < TokenWorkers::kLongestPause; pause *= 2) {
    workers.note(one, kTokenize, TokenAnswer::kAbsent, 1, now);
    workers.note(one, kTokenize, TokenAnswer::kAbsent, 1, now);  // asked at the same time: counts once
    EXPECT_EQ(workers.resting(now), 1u);
    EXPECT_FALSE(workers.may_ask(one, kTokenize, now + pause - 1ns));
    EXPECT_TRUE(workers.may_ask(one, kTokenize, now + pause));
    now += pause;
  }
  workers.note(one, kTokenize, TokenAnswer::kAbsent, 1, now);
  EXPECT_TRUE(workers.may_ask(one, kTokenize, now + TokenWorkers::kLongestPause));
  EXPECT_TRUE(workers.may_ask(one, kRender, now)) << "another endpoint";
  EXPECT_TRUE(workers.may_ask(events::WorkerId(2), kTokenize, now)) << "another worker";
  workers.note(one, kTokenize, TokenAnswer::kGood, 1, now);
  EXPECT_TRUE(workers.may_ask(one, kTokenize, now));
  EXPECT_EQ(workers.resting(now), 0u);
}

TEST(TokenWorkers, AWorkerThatFailsRestsAsAWhole) {
  TokenWorkers workers;
  const Clock::TimePoint now{};
  for (const std::uint64_t id : {1, 2}) {
    workers.note(events::WorkerId(id), kTokenize, TokenAnswer::kFailed, 1, now);
    EXPECT_FALSE(workers.may_ask(events::WorkerId(id), kRender, now));
    EXPECT_TRUE(workers.may_ask(events::WorkerId(id), kRender, now + TokenWorkers::kFailedPause));
  }
  workers.forget(events::WorkerId(1));
  EXPECT_TRUE(workers.may_ask(events::WorkerId(1), kTokenize, now));
  EXPECT_FALSE(workers.may_ask(events::WorkerId(2), kTokenize, now));
  workers.forget_all();
  EXPECT_TRUE(workers.may_ask(events::WorkerId(2), kTokenize, now));
}

TEST(TokenWorkers, OnePromptSaysNothingAboutTheWorker) {
  TokenWorkers workers;
  const events::WorkerId one(1);
  const Clock::TimePoint now{};
  const auto refuse = [&](std::uint64_t prompt) {
    workers.note(one, kTokenize, TokenAnswer::kRefused, prompt, now);
    return workers.may_ask(one, kTokenize, now);
  };
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(refuse(7));
  EXPECT_TRUE(refuse(8));
  workers.note(one, kTokenize, TokenAnswer::kGood, 9, now);
  EXPECT_TRUE(refuse(10));
  EXPECT_TRUE(refuse(11));
  EXPECT_EQ(workers.resting(now), 0u);
  EXPECT_FALSE(refuse(12)) << "it does badly by every prompt";
  EXPECT_TRUE(workers.may_ask(one, kTokenize, now + TokenWorkers::kFailedPause));
}

TEST(TokenWorkers, AStatusSaysWhoseFaultItIs) {
  for (const unsigned status : {404u, 405u, 501u})
    EXPECT_EQ(token_answer(status, false), TokenAnswer::kAbsent) << status;
  EXPECT_EQ(token_answer(403, true), TokenAnswer::kAbsent);
  EXPECT_EQ(token_answer(403, false), TokenAnswer::kGood);
  for (const unsigned status : {500u, 502u, 503u, 429u, 408u})
    EXPECT_EQ(token_answer(status, false), TokenAnswer::kRefused) << status;
  for (const unsigned status : {200u, 400u, 401u, 422u})
    EXPECT_EQ(token_answer(status, true), TokenAnswer::kGood) << status;
}

// A passage whose questions are answered by `answer`, by the port of the worker; the targets that were asked.
struct Asked {
  std::vector<std::pair<std::uint16_t, std::string>> targets;
  bool is_forwarded = false;
  std::string receipt;
};
Asked pass(ServiceUnderTest& service, const std::string& target, const std::string& body,
           const std::function<Result<Answer>(const Ask&)>& answer) {
  Asked asked;
  auto open = service.begin(target, body);
  while (const Ask* ask = std::get_if<Ask>(&open->step)) {
    asked.targets.emplace_back(ask->address.port, ask->target);
    EXPECT_LE(asked.targets.size(), 8u);
    open->step = open->passage->answered(answer(*ask));
  }
  asked.is_forwarded = std::holds_alternative<Forward>(open->step);
  if (!asked.is_forwarded) return asked;
  for (const auto& [name, value] : open->passage->head(200, kJsonHead).added)
    if (name == "x-ashlar-decision-id") asked.receipt = service.get("/decisions/" + value).body;
  open->passage->ended(PassageEnd::kComplete);
  return asked;
}

Answer tokens_answer() {
  return {.status = 200, .body = R"({"count":3,"tokens":[5,6,7]})"};
}
Answer render_answer() {
  return {.status = 200, .body = R"({"token_ids":[5,6,7]})"};
}

TEST(TokenQuestions, AnotherWorkerIsAskedAndTheFirstIsLeftAlone) {
  for (const int kind : {404, 405, 500, 0}) {
    ServeOptions options = ServiceUnderTest::options_of(2);
    options.tokenize_timeout = 1h;
    ServiceUnderTest service(options);
    std::uint16_t bad = 0;
    const auto answer = [&](const Ask& ask) -> Result<Answer> {
      if (bad == 0) bad = ask.address.port;
      if (ask.address.port != bad) return tokens_answer();
      if (kind == 0) return Error(ErrorCode::kUnavailable, "refused");
      return Answer{.status = static_cast<unsigned>(kind), .body = "{}"};
    };
    const Asked first = pass(service, "/v1/chat/completions", kChat, answer);
    ASSERT_EQ(first.targets.size(), 2u) << kind;
    EXPECT_NE(first.targets[1].first, bad);
    EXPECT_THAT(first.receipt, HasSubstr(R"("tokens":"asked")"));
    EXPECT_EQ(service.metric("ashlar_serve_tokenize_failed_total"), 1);
    if (kind != 404) continue;  // failures rest too short for what follows
    EXPECT_EQ(service.metric("ashlar_serve_tokenize_resting"), 1);
    for (int i = 0; i < 3; ++i) {
      const Asked next =
          pass(service, "/v1/completions", R"({"model":"m","prompt":"t)" + std::to_string(i) + "\"}", answer);
      ASSERT_EQ(next.targets.size(), 1u);
      EXPECT_NE(next.targets[0].first, bad);
    }
    // A reload forgets it.
    ASSERT_TRUE(service->set_workers(ServiceUnderTest::options_of(2).workers));
    EXPECT_EQ(service.metric("ashlar_serve_tokenize_resting"), 0);
  }
}

TEST(TokenQuestions, AnAnswerThatCannotBeReadIsAFailure) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const Asked asked = pass(service, "/v1/chat/completions", kChat, [](const Ask&) -> Result<Answer> {
    return Answer{.status = 200, .body = "<html>"};
  });
  EXPECT_EQ(asked.targets.size(), 1u);
  EXPECT_TRUE(asked.is_forwarded);
  EXPECT_THAT(asked.receipt, HasSubstr("cannot be read"));
  EXPECT_EQ(service.metric("ashlar_serve_tokenize_failed_total"), 1);
}

TEST(TokenQuestions, ARestartIsAskedAgain) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.token_source = "tokenize";
  options.health_interval = 1ms;
  ServiceUnderTest service(options);
  const auto absent = [](const Ask&) -> Result<Answer> { return Answer{.status = 404, .body = "{}"}; };
  EXPECT_EQ(pass(service, "/v1/chat/completions", kChat, absent).targets.size(), 1u);
  const Asked by_load = pass(service, "/v1/chat/completions", kChat, absent);
  EXPECT_TRUE(by_load.targets.empty());
  EXPECT_TRUE(by_load.is_forwarded);
  service.down = {{9001, true}};
  while (service.get("/ready").status == 200) service.answer_errands();
  service.down.clear();
  while (service.get("/ready").status != 200) service.answer_errands();
  EXPECT_EQ(pass(service, "/v1/chat/completions", kChat, absent).targets.size(), 1u);
}

TEST(TokenQuestions, RenderIsAskedWhereItIsAllowed) {
  const auto answer = [](const Ask& ask) -> Result<Answer> {
    return ask.target == kTokenize ? tokens_answer() : render_answer();
  };
  const auto targets = [&](const char* source, const std::string& target, const std::string& body) {
    ServeOptions options = ServiceUnderTest::options_of(1);
    options.token_source = source;
    ServiceUnderTest service(options);
    const Asked asked = pass(service, target, body, answer);
    EXPECT_TRUE(asked.is_forwarded);
    return asked.targets.empty() ? "" : asked.targets[0].second;
  };
  EXPECT_EQ(targets("auto", "/v1/chat/completions", kChat), kTokenize);
  EXPECT_EQ(targets("tokenize", "/v1/chat/completions", kChat), kTokenize);
  EXPECT_EQ(targets("render", "/v1/chat/completions", kChat), kRender);
  EXPECT_EQ(targets("render", "/v1/completions", R"({"model":"m","prompt":"a"})"), "/v1/completions/render");
  EXPECT_EQ(targets("auto", "/v1/messages", kTools), "/v1/messages/render");
  EXPECT_EQ(targets("tokenize", "/v1/messages", kTools), "");
}

TEST(TokenQuestions, WithoutTokenizeAWorkerMayStillRender) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.tokenize_timeout = 1h;
  ServiceUnderTest service(options);
  const Asked asked = pass(service, "/v1/chat/completions", kChat, [](const Ask& ask) -> Result<Answer> {
    return ask.target == kTokenize ? Answer{.status = 404, .body = "{}"} : render_answer();
  });
  ASSERT_EQ(asked.targets.size(), 2u);
  EXPECT_EQ(asked.targets[1].second, kRender);
  EXPECT_THAT(asked.receipt, HasSubstr(R"("tokens":"asked")"));
  // vLLM without --enable-scale-out.
  const auto off = [](const Ask&) -> Result<Answer> { return Answer{.status = 403, .body = "{}"}; };
  EXPECT_EQ(pass(service, "/v1/messages", kTools, off).targets.size(), 1u);
  EXPECT_TRUE(pass(service, "/v1/messages", kTools, off).targets.empty());
  const Asked rendered = pass(service, "/v1/responses", R"({"model":"m","input":"a","tools":[{}]})",
                              [](const Ask&) -> Result<Answer> { return render_answer(); });
  EXPECT_THAT(rendered.receipt, HasSubstr(R"("tokens":"rendered")"));
}

TEST(TokenQuestions, APromptThatNoTokenizerTakesIsAskedOfTwoWorkersAndHarmsNoOther) {
  ServeOptions options = ServiceUnderTest::options_of(4);
  options.tokenize_timeout = 1h;
  ServiceUnderTest service(options);
  const auto answer = [](const Ask& ask) -> Result<Answer> {
    if (ask.body.find("poison") == std::string::npos) return tokens_answer();
    if (ask.body.find("slow") != std::string::npos) return Error(ErrorCode::kTimeout, "late");
    return Answer{.status = 500, .body = "{}"};
  };
  for (const char* prompt : {"poison", "poison", "slow poison", "poison"}) {
    const Asked bad =
        pass(service, "/v1/completions", R"({"model":"m","prompt":")" + std::string(prompt) + "\"}", answer);
    ASSERT_EQ(bad.targets.size(), 2u);
    EXPECT_NE(bad.targets[0].first, bad.targets[1].first);
    EXPECT_TRUE(bad.is_forwarded);
    EXPECT_THAT(bad.receipt, HasSubstr("the workers that were asked for its tokens failed"));
    EXPECT_EQ(service.metric("ashlar_serve_tokenize_resting"), 0);
  }
  const Asked good = pass(service, "/v1/completions", R"({"model":"m","prompt":"good"})", answer);
  EXPECT_THAT(good.receipt, HasSubstr(R"("tokens":"asked")"));
}

}  // namespace
}  // namespace ashlar::service
