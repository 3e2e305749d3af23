// ServiceClient and the C interface ask a real `ashlar serve`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "ashlar/client/service_client.h"
#include "serve/serve_process.h"

namespace ashlar::testing {
namespace {

using ::testing::HasSubstr;

TEST(ServeClient, AsksARealService) {
  const EngineProcess engine;
  ServeProcess serve({"--worker", worker_text(engine)});
  serve.wait_until_exact();
  const std::string url = "http://127.0.0.1:" + std::to_string(serve.port());
  const auto client = client::ServiceClient::create({.url = url, .timeout = std::chrono::minutes(2)}).value();
  EXPECT_TRUE(client.check_health());
  EXPECT_EQ(client.is_ready().value(), true);

  HttpClient asking = serve.client();
  const std::string prompt(200, 'a');
  const HttpAnswer done =
      asking.post("/v1/completions", R"({"model":"tiny","max_tokens":1,"prompt":")" + prompt + "\"}");
  ASSERT_EQ(done.status, 200) << done.body;
  // The question of a router that knows the tokens; the engine's events may still be on their way.
  const Json tokens =
      Json::parse(asking.post("/tokenize", R"({"model":"tiny","prompt":")" + prompt + "\"}").body);
  std::vector<tokens::Token> ids;
  for (const Json& token : tokens["tokens"].list) ids.emplace_back(static_cast<std::uint32_t>(token.number));
  ASSERT_FALSE(ids.empty());
  std::vector<client::RouteScore> scores;
  do {
    scores = client.query({.model = "tiny", .tokens = ids}).value();
  } while (scores.empty() || scores[0].longest == 0);
  EXPECT_LE(scores[0].longest, ids.size());
  EXPECT_GE(scores[0].instance, std::uint64_t{1} << 52);

  const auto receipt = client.decision(done.header("x-ashlar-decision-id"));
  ASSERT_TRUE(receipt) << receipt.error();
  EXPECT_THAT(*receipt, HasSubstr("\"worker\""));
  EXPECT_EQ(client.decision("0123456789abcdef-1").error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(client.workers("tiny"));

#ifdef C_WALK_PROGRAM
  EXPECT_EQ(std::system((std::string(C_WALK_PROGRAM) + " " + url + " tiny").c_str()), 0);
#endif
  EXPECT_EQ(serve.process().terminate(), 0);
  const auto gone = client.check_health();
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace ashlar::testing
