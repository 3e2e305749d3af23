// What routers hear of a tiny_server: events that are exact, replay, restarts, clears and ranks; and the
// faults that it has on demand.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "ashlar/base/random.h"
#include "tiny_engine/face_fixture.h"

namespace tiny_engine::testing {
namespace {

// Prompts that begin alike, more than a small G1 holds.
std::string some_prompt(Random& random) {
  const std::uint64_t family = random.below(6);
  std::string prompt = "The beginning of family " + std::to_string(family) + ", which its members share. ";
  prompt += std::string(8 * random.below(5), static_cast<char>('a' + random.below(3)));
  return prompt;
}

// Every prediction is what the engine then reports. Returns the tokens that were found.
std::size_t expect_exact(HttpClient& client, FaceRouter& router, std::uint64_t seed, int requests) {
  Random random(seed);
  std::size_t found = 0;
  for (int i = 0; i < requests; ++i) {
    const std::string prompt = some_prompt(random);
    router.catch_up();
    const std::size_t predicted = router.predicted(prompt);
    EXPECT_EQ(complete(client, prompt), predicted) << prompt;
    found += predicted;
  }
  return found;
}

TEST(FaceEventsTest, ARouterKnowsWhatTheEngineFinds) {
  const EngineProcess engine({"--g1", "40"});
  HttpClient client(engine.port());
  FaceRouter router(engine);
  EXPECT_GT(expect_exact(client, router, 1, 60), 0u);
  EXPECT_GT(router.session().ingest().counters().removed, 0u);
  FaceRouter late(engine);
  EXPECT_GT(expect_exact(client, late, 2, 10), 0u);
  EXPECT_EQ(late.session().counters().applied, *late.session().next()) << "from the first message on";
}

TEST(FaceEventsTest, EventsCarryTheSalt) {
  const EngineProcess engine;
  HttpClient client(engine.port());
  FaceRouter router(engine);
  const std::string prompt = "What one tenant says, another must not meet.";
  complete(client, prompt, 4, R"(,"cache_salt":"a")");
  router.catch_up();
  EXPECT_EQ(router.depth(prompt), 0u);
  EXPECT_EQ(router.depth(prompt, "b"), 0u);
  EXPECT_EQ(router.depth(prompt, "a"), prompt.size() / kBlock * kBlock);
}

TEST(FaceEventsTest, AClearIsAnnounced) {
  const EngineProcess engine;
  HttpClient client(engine.port());
  FaceRouter router(engine);
  const std::string prompt = "Here until the cache is cleared.";
  complete(client, prompt);
  router.catch_up();
  EXPECT_GT(router.depth(prompt), 0u);
  const std::uint64_t clears = router.session().ingest().counters().clears;
  const std::uint64_t published = router.published();
  EXPECT_EQ(client.post("/reset_prefix_cache", "").status, 200);
  EXPECT_EQ(router.published(), published + 1) << "one message, not a removal for every block";
  router.catch_up();
  EXPECT_EQ(router.session().ingest().counters().clears, clears + 1);
  EXPECT_EQ(router.depth(prompt), 0u);
  EXPECT_EQ(complete(client, prompt), 0u);
  EXPECT_EQ(complete(client, prompt), reusable(prompt.size()));
  expect_exact(client, router, 3, 10);
}

// With running requests it needs the word that preempts them; their texts are right all the same.
TEST(FaceEventsTest, AClearPreemptsWhatRuns) {
  const EngineProcess engine;
  HttpClient client(engine.port());
  FaceRouter router(engine);
  const std::string prompt = "A long answer that is cleared under way.";
  std::string said;
  int clears = 0;
  HttpClient other(engine.port());
  const HttpAnswer answer = client.request(
      "POST", "/v1/completions", completion_body(prompt, 300, ",\"stream\":true"), {}, [&](std::string_view) {
        if (++clears > 3) return true;
        const HttpAnswer reset = other.post("/reset_prefix_cache?reset_running_requests=true", "");
        EXPECT_TRUE(answered(reset)["success"].truth);
        return true;
      });
  EXPECT_TRUE(answer.is_complete);
  for (const std::string& event : events_of(answer.body))
    if (event != "[DONE]") said += parsed(event)["choices"].items.at(0)["text"].text;
  EXPECT_EQ(said, oracle(byte_tokens(prompt), 300));
  expect_exact(client, router, 4, 10);
}

TEST(FaceEventsTest, ARestartedEngineHasANewStream) {
  EngineProcess engine;
  FaceRouter router(engine);
  const std::string prompt = "Known before the crash, and not after it.";
  {
    HttpClient client(engine.port());
    complete(client, prompt);
    complete(client, prompt + " More of it.");
  }
  router.catch_up();
  EXPECT_GT(router.depth(prompt), 0u);
  engine.restart();
  HttpClient client(engine.port());
  EXPECT_EQ(complete(client, "Something else."), 0u);
  // Until it has noticed.
  std::size_t depth = router.depth(prompt);
  for (const auto last = Clock::real().now() + std::chrono::minutes(2);
       depth > 0 && Clock::real().now() < last; depth = router.depth(prompt))
    router.listen();
  EXPECT_EQ(depth, 0u);
  expect_exact(client, router, 5, 10);
  EXPECT_EQ(engine.terminate(), 0);
}

TEST(FaceEventsTest, RanksHaveCachesAndSocketsOfTheirOwn) {
  const EngineProcess engine({}, 2);
  HttpClient client(engine.port());
  FaceRouter first(engine, 0);
  FaceRouter second(engine, 1);
  const std::string prompt = "A prompt for the second rank alone.";
  const HttpClient::Headers to_second = {{"x-data-parallel-rank", "1"}};
  EXPECT_EQ(complete(client, prompt, 4, "", to_second), 0u);
  EXPECT_EQ(complete(client, prompt, 4, "", to_second), reusable(prompt.size()));
  first.catch_up();
  second.catch_up();
  EXPECT_EQ(first.depth(prompt), 0u);
  EXPECT_EQ(second.depth(prompt), prompt.size() / kBlock * kBlock);
  EXPECT_EQ(complete(client, prompt, 4, "", {{"X-data-parallel-rank", "0"}}), 0u);
  first.catch_up();
  EXPECT_EQ(first.depth(prompt), prompt.size() / kBlock * kBlock);
  // Without the header, the least busy one: both hold it now.
  EXPECT_EQ(complete(client, prompt), reusable(prompt.size()));
}

// ---- faults

TEST(FaceFaultsTest, ReplayFillsWhatWasNotSent) {
  const EngineProcess engine({"--g1", "40", "--drop-event-every", "3"});
  HttpClient client(engine.port());
  FaceRouter router(engine);
  Random random(6);
  for (int i = 0; i < 60 || router.session().counters().gaps < 3; ++i) {
    ASSERT_LT(i, 2000) << "no gap was seen";
    complete(client, some_prompt(random));
    // A router hears of a loss by the message after it.
    while (router.published() % 3 == 0) complete(client, some_prompt(random));
    router.catch_up();
    const std::string prompt = some_prompt(random);
    const std::size_t predicted = router.predicted(prompt);
    EXPECT_EQ(complete(client, prompt), predicted) << prompt;
  }
  EXPECT_GT(router.session().counters().replayed, 0u);
  EXPECT_EQ(router.session().counters().lost, 0u);
}

TEST(FaceFaultsTest, EventsMayComeLate) {
  const std::string prompt = "The answer is here before its events are.";
  {
    const EngineProcess engine({"--late-events", "3600000"});
    HttpClient client(engine.port());
    complete(client, prompt);
    EXPECT_EQ(complete(client, prompt), reusable(prompt.size()));
    FaceRouter router(engine);
    EXPECT_EQ(router.published(), 0u);
  }
  const EngineProcess engine({"--late-events", "20"});
  HttpClient client(engine.port());
  FaceRouter router(engine);
  complete(client, prompt);
  for (const auto last = Clock::real().now() + std::chrono::minutes(2);
       router.depth(prompt) == 0 && Clock::real().now() < last;)
    router.listen();
  EXPECT_EQ(router.depth(prompt), prompt.size() / kBlock * kBlock);
}

TEST(FaceFaultsTest, DiesInTheMiddleOfAStream) {
  EngineProcess engine({"--die-after", "2"});
  HttpClient client(engine.port());
  const std::string body = completion_body("The second stream breaks.", 40, ",\"stream\":true");
  EXPECT_TRUE(client.post("/v1/completions", body).is_complete);
  EXPECT_EQ(complete(client, "An answer in one piece does not count."), 0u);
  const HttpAnswer broken = client.post("/v1/completions", body);
  EXPECT_FALSE(broken.is_complete);
  EXPECT_LT(events_of(broken.body).size(), 40u);
  while (engine.is_running()) std::this_thread::yield();
  engine.restart(std::vector<std::string>());
  EXPECT_TRUE(HttpClient(engine.port()).post("/v1/completions", body).is_complete);
}

TEST(FaceFaultsTest, StallsInTheMiddleOfAStream) {
  EngineProcess engine({"--stall-after", "1"});
  HttpClient other(engine.port());
  std::string said;
  HttpClient client(engine.port());
  const HttpAnswer stalled =
      client.request("POST", "/v1/completions", completion_body("It stalls.", 20, ",\"stream\":true"), {},
                     [&](std::string_view piece) {
                       said += piece;
                       if (events_of(said).size() < 10 || !said.ends_with("\n\n")) return true;
                       // Others are served meanwhile, and the engine ends its work.
                       EXPECT_EQ(complete(other, "Not disturbed."), 0u);
                       while (metric(other, "vllm:num_requests_running") > 0) continue;
                       return false;
                     });
  EXPECT_EQ(events_of(said).size(), 10u);
  EXPECT_FALSE(stalled.is_complete);
  EXPECT_TRUE(
      other.post("/v1/completions", completion_body("It stalls.", 20, ",\"stream\":true")).is_complete);
  EXPECT_EQ(engine.terminate(), 0);
}

TEST(FaceFaultsTest, UsageMayLieOrSayNothing) {
  const std::string prompt = "How much of this was cached?";
  {
    const EngineProcess engine({"--lie-usage"});
    HttpClient client(engine.port());
    EXPECT_EQ(complete(client, prompt), kBlock);
    EXPECT_EQ(complete(client, prompt), reusable(prompt.size()) + kBlock);
  }
  const EngineProcess engine({"--no-cached-tokens"});
  HttpClient client(engine.port());
  const Json json = answered(client.post("/v1/completions", completion_body(prompt, 4)));
  EXPECT_EQ(number(json["usage"]["prompt_tokens"]), prompt.size());
  EXPECT_TRUE(json["usage"]["prompt_tokens_details"].is(Json::Kind::kNull));
}

TEST(FaceFaultsTest, ARequestThatCannotFitEndsWithAnError) {
  const EngineProcess engine({"--g1", "4", "--max-model-len", "1000"});
  HttpClient client(engine.port());
  const std::string large = completion_body("A prompt of 26 characters.", 20);
  EXPECT_NE(answered(client.post("/v1/completions", large), 500)["error"]["message"].text.find("more blocks"),
            std::string::npos);
  EXPECT_EQ(complete(client, "short"), 0u);
}

// ---- the process

TEST(FaceProcessTest, AnswersInFlightEndBeforeIt) {
  EngineProcess engine;
  HttpClient client(engine.port());
  bool asked = false;
  const HttpAnswer answer =
      client.request("POST", "/v1/completions", completion_body("The last answer.", 400, ",\"stream\":true"),
                     {}, [&](std::string_view) {
                       if (!std::exchange(asked, true)) ::kill(engine.pid(), SIGTERM);
                       return true;
                     });
  EXPECT_TRUE(answer.is_complete);
  EXPECT_EQ(events_of(answer.body).size(), 401u);
  EXPECT_EQ(engine.terminate(), 0);
}

TEST(FaceProcessTest, ChoosesFreePorts) {
  ashlar::ServerProcess process(
      {TINY_SERVER_PROGRAM, "--port", "0", "--events", "0", "--replay", "0", "--dp", "2"});
  const std::string line = process.read_line().value_or("");
  int http = 0;
  int events[2] = {};
  int replay[2] = {};
  ASSERT_EQ(std::sscanf(line.c_str(), "listening http=%d events=%d,%d replay=%d,%d", &http, &events[0],
                        &events[1], &replay[0], &replay[1]),
            5)
      << line;
  EXPECT_EQ(HttpClient(http).get("/health").status, 200);
  EXPECT_NE(events[0], events[1]);
  EXPECT_EQ(process.terminate(), 0);
}

}  // namespace
}  // namespace tiny_engine::testing
