// What a passage does when a worker fails, and what that says about the worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "service/gateway/fake_workers.h"
#include "support/small_json.h"

namespace ashlar::service {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

// Workers that rest for as long as a test takes, once they are taken out.
ServeOptions lasting_rests(std::size_t workers) {
  ServeOptions options = ServiceUnderTest::options_of(workers);
  options.breaker_rest = std::chrono::hours(1);
  options.health_interval = std::chrono::hours(1);
  return options;
}

unsigned reply_status(const Step& step) {
  const auto* reply = std::get_if<Reply>(&step);
  return reply == nullptr ? 0 : reply->status;
}

double workers_up(ServiceUnderTest& service) {
  return service.metric("ashlar_serve_workers_up");
}

// A request whose answer begins with this status, and ends so.
void pass_to_end(ServiceUnderTest& service, unsigned status, PassageEnd end) {
  const auto open = service.begin("/v1/completions", tokens_body(40));
  ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
  ASSERT_FALSE(open->passage->head(status, kJsonHead).instead);
  open->passage->ended(end);
}

TEST(PassageFaults, AWorkerThatDiesInEveryAnswerIsTakenOut) {
  ServiceUnderTest service(lasting_rests(1));
  for (int i = 0; i < 2; ++i) pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  pass_to_end(service, 200, PassageEnd::kComplete);  // not in a row
  pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  pass_to_end(service, 200, PassageEnd::kClientGone);  // says nothing
  pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  EXPECT_EQ(workers_up(service), 1);
  pass_to_end(service, 200, PassageEnd::kWorkerBroke);
  EXPECT_EQ(workers_up(service), 0);
  EXPECT_THAT(service.get("/fleet").body, HasSubstr("3 failures in a row, the last: broke off its answer"));
}

TEST(PassageFaults, AnAnswerToAnUnknownPathSaysNothingAboutItsWorker) {
  ServiceUnderTest service(lasting_rests(2));
  for (int i = 0; i < 6; ++i) {
    const auto open = service.begin("/special/op", R"({"model":"m"})");
    ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
    EXPECT_TRUE(std::get<Forward>(open->step).is_sent_once);
    const HeadVerdict verdict = open->passage->head(503, kJsonHead);
    EXPECT_FALSE(verdict.instead) << "the engine's own answer";
    open->passage->ended(i % 2 == 0 ? PassageEnd::kComplete : PassageEnd::kWorkerBroke);
  }
  for (const ForwardFailure failure :
       {ForwardFailure::kBroken, ForwardFailure::kInvalid, ForwardFailure::kLate}) {
    for (int i = 0; i < 6; ++i) {
      const auto open = service.begin("/special/op", R"({"model":"m"})");
      EXPECT_EQ(reply_status(open->passage->failed(failure, "")),
                failure == ForwardFailure::kLate ? 504u : 502u);
    }
  }
  EXPECT_EQ(service.metric("ashlar_serve_retries_total"), 0);
  EXPECT_EQ(workers_up(service), 2);
  EXPECT_EQ(service->router().running(), 0u);
}

TEST(PassageFaults, WhatWasNotSentOrChangesNothingIsTriedElsewhere) {
  ServiceUnderTest service(lasting_rests(2));
  auto open = service.begin("/special/op", "{}");
  open->step = open->passage->failed(ForwardFailure::kConnect, "refused");
  EXPECT_TRUE(std::holds_alternative<Forward>(open->step)) << "nobody has had it";
  const auto read = service.begin("/special/state", "", {}, "GET");
  ASSERT_TRUE(std::holds_alternative<Forward>(read->step));
  EXPECT_FALSE(std::get<Forward>(read->step).is_sent_once);
  EXPECT_TRUE(std::holds_alternative<Forward>(read->passage->failed(ForwardFailure::kBroken, "reset")));
  const auto tokens = service.begin("/tokenize", R"({"model":"m","prompt":"a"})");
  EXPECT_TRUE(tokens->passage->head(503, kJsonHead).instead) << "a question";
  EXPECT_EQ(workers_up(service), 2);
  EXPECT_EQ(service.metric("ashlar_serve_retries_total"), 3);
}

TEST(PassageFaults, WhatIsNewToARequestIsNewAtEveryAttempt) {
  ServiceUnderTest service(lasting_rests(2));
  for (const WorkerLoad& load : service->router().loads())
    service->router().set_state(load.worker, WorkerState::kExact);
  const auto missed = [&](const char* reason) {
    return service.metric("ashlar_serve_missed_blocks_total{reason=\"" + std::string(reason) + "\"}");
  };
  const auto finish = [](ServiceUnderTest::Open& open) {
    ASSERT_TRUE(std::holds_alternative<Forward>(open.step));
    ASSERT_FALSE(open.passage->head(200, kJsonHead).instead);
    open.passage->bytes(usage_answer(80, 0));
    open.passage->ended(PassageEnd::kComplete);
  };
  const auto open = service.begin("/v1/completions", tokens_body(80));
  ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
  open->step = open->passage->failed(ForwardFailure::kBroken, "reset");
  finish(*open);
  EXPECT_EQ(missed("never_seen"), 5);
  EXPECT_EQ(missed("evicted"), 0);
  const testing::Json live = testing::Json::parse(service.get("/live").body);
  ASSERT_EQ(live["decisions"].list.size(), 2u);
  for (const testing::Json& decision : live["decisions"].list) {
    const Reply receipt = service.get("/decisions/" + decision["id"].text);
    EXPECT_EQ(testing::Json::parse(receipt.body)["missed_blocks"]["never_seen"].number, 5);
  }
  // Another request that names them: nobody stored them. Only this policy does not wait for that.
  const auto other = service.begin("/v1/completions", tokens_body(80), {{"x-ashlar-policy", "least_loaded"}});
  finish(*other);
  EXPECT_EQ(missed("never_seen"), 5);
  EXPECT_EQ(missed("evicted"), 5);
}

TEST(PassageFaults, WorkersThatCannotBeReachedAreTakenOutWhateverThePath) {
  ServiceUnderTest service(lasting_rests(2));
  for (int i = 0; i < 3; ++i) {
    auto open = service.begin("/special/op", "{}");
    open->step = open->passage->failed(ForwardFailure::kConnect, "refused");
    (void)open->passage->failed(ForwardFailure::kConnect, "refused");
  }
  EXPECT_EQ(workers_up(service), 0);
}

TEST(PassageFaults, TheAnswerOfTheLastWorkerIsPassedOn) {
  ServiceUnderTest alone(lasting_rests(1));
  const auto only = alone.begin("/v1/completions", tokens_body(40));
  const HeadVerdict verdict = only->passage->head(503, kJsonHead);
  EXPECT_FALSE(verdict.instead);
  EXPECT_THAT(verdict.added, Contains(Pair("x-ashlar-worker", "w0")));
  only->passage->bytes("{}");
  only->passage->ended(PassageEnd::kComplete);
  EXPECT_EQ(alone->router().running(), 0u);

  ServiceUnderTest service(lasting_rests(2));
  const auto open = service.begin("/v1/completions", tokens_body(40));
  ASSERT_TRUE(open->passage->head(503, kJsonHead).instead);
  EXPECT_FALSE(open->passage->head(503, kJsonHead).instead) << "every worker was tried";
  open->passage->ended(PassageEnd::kComplete);
  // Three in a row take it out, although each was complete.
  for (int i = 0; i < 2; ++i) {
    const auto more = service.begin("/v1/completions", tokens_body(40));
    if (more->passage->head(503, kJsonHead).instead) (void)more->passage->head(503, kJsonHead);
    more->passage->ended(PassageEnd::kComplete);
  }
  EXPECT_EQ(workers_up(service), 0);
  // Another that is down is none.
  ServiceUnderTest half(lasting_rests(2));
  half.down = {{9002, true}};
  half->router().set_up(half->router().loads()[1].worker.id, false);
  const auto last = half.begin("/v1/completions", tokens_body(40));
  EXPECT_FALSE(last->passage->head(504, kJsonHead).instead);
}

TEST(PassageFaults, AnErrorAfterADecisionNamesIt) {
  ServiceUnderTest service(lasting_rests(1));
  const auto receipt_of = [&](const Step& step, unsigned status) {
    const auto* reply = std::get_if<Reply>(&step);
    EXPECT_NE(reply, nullptr);
    if (reply == nullptr) return std::string();
    EXPECT_EQ(reply->status, status);
    EXPECT_THAT(reply->headers, Contains(Pair("x-ashlar-worker", "w0")));
    EXPECT_THAT(reply->headers, Contains(Pair("x-ashlar-state", "FALLBACK")));
    EXPECT_THAT(reply->headers, Contains(Pair("x-ashlar-cached-tokens", "0")));
    for (const auto& [name, value] : reply->headers)
      if (name == "x-ashlar-decision-id") return service.get("/decisions/" + value).body;
    return std::string();
  };
  const auto broken = service.begin("/v1/completions", tokens_body(40, 1));
  EXPECT_THAT(receipt_of(broken->passage->failed(ForwardFailure::kBroken, "reset"), 502),
              HasSubstr("worker_broke"));
  const auto late = service.begin("/v1/completions", tokens_body(40, 2));
  EXPECT_THAT(receipt_of(late->passage->failed(ForwardFailure::kLate, ""), 504), HasSubstr("worker_broke"));
}

TEST(PassageFaults, WhatIsLackingHereIsNotBlamedOnWorkers) {
  ServeOptions options = lasting_rests(1);
  options.health_interval = std::chrono::milliseconds(1);
  ServiceUnderTest service(options);
  for (int i = 0; i < 6; ++i) {
    const auto open = service.begin("/v1/completions", tokens_body(40));
    const Step step = open->passage->failed(ForwardFailure::kExhausted, "Too many open files");
    EXPECT_EQ(reply_status(step), 503u);
    EXPECT_THAT(std::get<Reply>(step).headers, Contains(Pair("Retry-After", "1")));
    auto text = service.begin("/v1/completions", R"({"model":"m","prompt":"a"})");
    ASSERT_TRUE(std::holds_alternative<Ask>(text->step)) << "tokens are asked for again";
    text->step = text->passage->answered(Error(ErrorCode::kIo, "Too many open files"));
    EXPECT_TRUE(std::holds_alternative<Forward>(text->step));
  }
  EXPECT_EQ(service.metric("ashlar_serve_unsent_total"), 6);
  EXPECT_EQ(service.metric("ashlar_serve_tokenize_resting"), 0);
  EXPECT_EQ(service->router().running(), 0u);
  // Questions of our own neither.
  for (int asked = 0; asked < 6;) {
    for (const Errand& errand : service->due().errands) {
      service->told(errand.number, Error(ErrorCode::kIo, "Too many open files"));
      ++asked;
    }
  }
  EXPECT_EQ(workers_up(service), 1);
}

TEST(PassageFaults, OneHealthThatIsNotAnsweredIsOneFailure) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.health_interval = std::chrono::milliseconds(1);
  options.breaker_rest = std::chrono::hours(1);
  ServiceUnderTest service(options);
  const auto ask_health = [&](const Result<Answer>& answer) {
    for (;;) {
      bool is_asked = false;
      for (const Errand& errand : service->due().errands) {
        is_asked |= errand.ask.target == "/health";
        service->told(errand.number, errand.ask.target == "/health"
                                         ? answer
                                         : Result<Answer>(Answer{.status = 200, .body = {}}));
      }
      if (is_asked) return workers_up(service);
    }
  };
  const Error lost(ErrorCode::kTimeout, "late");
  const Answer well{.status = 200, .body = {}};
  EXPECT_EQ(ask_health(lost), 1);
  EXPECT_EQ(ask_health(lost), 1);
  EXPECT_EQ(ask_health(well), 1) << "not in a row";
  EXPECT_EQ(ask_health(lost), 1);
  EXPECT_EQ(ask_health(lost), 1);
  EXPECT_EQ(ask_health(lost), 0);
  EXPECT_THAT(service.get("/fleet").body, HasSubstr("3 failures in a row, the last: its /health cannot"));

  ServiceUnderTest ill(options);
  for (bool is_asked = false; !is_asked;) {
    for (const Errand& errand : ill->due().errands) {
      is_asked |= errand.ask.target == "/health";
      ill->told(errand.number, Answer{.status = 503, .body = {}});
    }
  }
  EXPECT_EQ(workers_up(ill), 0) << "it says itself that it is not well";
}

TEST(PassageFaults, AnEngineThatWasGoneForAMomentHoldsNothing) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.health_interval = std::chrono::milliseconds(1);
  ServiceUnderTest service(options);
  const auto ask_health = [&](const Result<Answer>& answer) {
    for (bool is_asked = false; !is_asked;)
      for (const Errand& errand : service->due().errands) {
        is_asked |= errand.ask.target == "/health";
        service->told(errand.number, errand.ask.target == "/health"
                                         ? answer
                                         : Result<Answer>(Answer{.status = 200, .body = {}}));
      }
  };
  const auto claimed = [&] {
    const auto open = service.begin("/v1/completions", tokens_body(40));
    for (const auto& [name, value] : open->passage->head(200, kJsonHead).added)
      if (name == "x-ashlar-cached-tokens") return value;
    return std::string("none");
  };
  EXPECT_EQ(claimed(), "0");
  EXPECT_EQ(claimed(), "32");
  ask_health(Error(ErrorCode::kTimeout, "late"));  // busy
  ask_health(Answer{.status = 200, .body = {}});
  EXPECT_EQ(claimed(), "32");
  ask_health(Error(ErrorCode::kUnavailable, "refused"));
  EXPECT_EQ(workers_up(service), 1);
  ask_health(Answer{.status = 200, .body = {}});
  EXPECT_EQ(claimed(), "0");
}

}  // namespace
}  // namespace ashlar::service
