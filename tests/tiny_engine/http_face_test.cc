// tiny_server answers as `vllm serve` does: the shapes of its endpoints, streams, usage, and texts that are
// the model's without a cache.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "support/until_seen.h"
#include "tiny_engine/face_fixture.h"

namespace tiny_engine::testing {
namespace {

const std::string kHello = R"([{"role":"user","content":"hello"}])";

// One process for all cases.
class HttpFaceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = std::make_unique<EngineProcess>(); }
  static void TearDownTestSuite() { engine_.reset(); }
  void SetUp() override { ASSERT_TRUE(engine_->is_ready()); }

  static std::unique_ptr<EngineProcess> engine_;
  HttpClient client_{engine_->port()};
};
std::unique_ptr<EngineProcess> HttpFaceTest::engine_;

TEST_F(HttpFaceTest, SaysWhatItIs) {
  const Json models = answered(client_.get("/v1/models"));
  ASSERT_EQ(models["data"].items.size(), 1u);
  EXPECT_EQ(models["object"].text, "list");
  EXPECT_EQ(models["data"].items[0]["id"].text, "tiny");
  EXPECT_EQ(models["data"].items[0]["owned_by"].text, "vllm");
  EXPECT_EQ(number(models["data"].items[0]["max_model_len"]), 2048u);
  EXPECT_EQ(client_.get("/health").status, 200);
  EXPECT_NE(answered(client_.get("/version"))["version"].text, "");
  EXPECT_EQ(client_.get("/metrics").header("content-type").substr(0, 10), "text/plain");
  EXPECT_EQ(metric(client_, "vllm:cache_config_info", "num_gpu_blocks=\"512\""), 1u);
  EXPECT_EQ(metric(client_, "vllm:cache_config_info", "block_size=\"8\""), 1u);
  EXPECT_EQ(metric(client_, "vllm:num_requests_running"), 0u);
  EXPECT_EQ(metric(client_, "vllm:num_requests_waiting"), 0u);
}

TEST_F(HttpFaceTest, TokenizesBytesAndRoles) {
  const Json text = answered(client_.post("/tokenize", R"({"prompt":"aé\n"})"));
  EXPECT_EQ(number(text["count"]), 4u);
  EXPECT_EQ(number(text["max_model_len"]), 2048u);
  std::string list;
  text["tokens"].write(list);
  EXPECT_EQ(list, "[97,195,169,10]");
  EXPECT_EQ(answered(client_.post("/detokenize", R"({"tokens":[97,195,169,10]})"))["prompt"].text, "aé\n");

  const auto tokens_of_chat = [&](const std::string& more) {
    const Json json = answered(client_.post("/tokenize", "{\"messages\":" + kHello + more + "}"));
    EXPECT_EQ(number(json["count"]), json["tokens"].items.size());
    std::vector<Token> tokens;
    for (const Json& id : json["tokens"].items)
      tokens.push_back(Token(static_cast<std::uint32_t>(number(id))));
    return byte_text(tokens);
  };
  EXPECT_EQ(tokens_of_chat(""), "<|user|>hello<|assistant|>");
  EXPECT_EQ(tokens_of_chat(R"(,"add_generation_prompt":false)"), "<|user|>hello");
  // Spaces between the members do not count.
  EXPECT_EQ(tokens_of_chat(R"(,"tools":[{"type": "function", "n": 1.50}])"),
            R"(<|tools|>[{"type":"function","n":1.50}]<|user|>hello<|assistant|>)");
}

TEST_F(HttpFaceTest, RendersIfItIsToldTo) {
  const std::string chat = R"({"model":"tiny","max_tokens":9,"cache_salt":"s","messages":)" + kHello + "}";
  EXPECT_EQ(client_.post("/v1/chat/completions/render", chat).status, 403);
  EngineProcess engine({"--enable-scale-out", "--no-tokenize"});
  HttpClient client(engine.port());
  EXPECT_EQ(client.post("/tokenize", R"({"prompt":"a"})").status, 404);
  const Json rendered = answered(client.post("/v1/chat/completions/render", chat));
  std::string list;
  answered(client_.post("/tokenize", "{\"messages\":" + kHello + "}"))["tokens"].write(list);
  std::string ids;
  rendered["token_ids"].write(ids);
  EXPECT_EQ(ids, list);
  EXPECT_EQ(rendered["model"].text, "tiny");
  EXPECT_EQ(rendered["cache_salt"].text, "s");
  EXPECT_EQ(number(rendered["sampling_params"]["max_tokens"]), 9u);
  const Json two = answered(client.post("/v1/completions/render", R"({"prompt":[[97,98],[99]]})"));
  ASSERT_EQ(two.items.size(), 2u);
  EXPECT_EQ(two.items[0]["token_ids"].items.size(), 2u);
  EXPECT_EQ(number(two.items[1]["token_ids"].items.at(0)), 99u);
  for (const char* path : {"/v1/responses", "/v1/messages"}) {
    const std::string body = R"({"max_tokens":1,"input":"hello","messages":)" + kHello + "}";
    const Json answer = answered(client.post(std::string(path) + "/render", body));
    const Json usage = answered(client.post(path, body))["usage"];
    EXPECT_EQ(answer["token_ids"].items.size(), number(usage["input_tokens"])) << path;
  }
  EXPECT_EQ(client.post("/v1/chat/completions/render", "{}").status, 400);
}

TEST_F(HttpFaceTest, RefusesInOpenAisForm) {
  const auto refused = [&](const HttpAnswer& answer, int status) {
    const Json error = answered(answer, status)["error"];
    EXPECT_NE(error["message"].text, "");
    EXPECT_NE(error["type"].text, "");
    EXPECT_EQ(number(error["code"]), static_cast<std::uint64_t>(status));
  };
  const auto chat = [&](const std::string& body) { return client_.post("/v1/chat/completions", body); };
  refused(chat("{"), 400);
  refused(chat("[]"), 400);
  refused(chat("{}"), 400);
  refused(chat(R"({"messages":[]})"), 400);
  refused(chat(R"({"messages":[{"role":"king","content":"a"}]})"), 400);
  refused(chat(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"), 400);
  refused(chat(R"({"max_tokens":0,"messages":)" + kHello + "}"), 400);
  refused(chat(R"({"max_tokens":"9","messages":)" + kHello + "}"), 400);
  refused(chat(R"({"max_tokens":2048,"messages":)" + kHello + "}"), 400);
  refused(chat(R"({"n":17,"messages":)" + kHello + "}"), 400);
  refused(client_.post("/v1/completions", completion_body(std::string(2048, 'a'), 1)), 400);
  refused(client_.post("/v1/completions", R"({"prompt":[1,261]})"), 400);
  refused(client_.post("/v1/completions", R"({"prompt":""})"), 400);
  refused(client_.post("/v1/completions", R"({"prompt":"a"})", {{"X-data-parallel-rank", "1"}}), 400);
  refused(chat(R"({"model":"large","messages":)" + kHello + "}"), 404);
  refused(client_.get("/v1/nothing"), 404);
  refused(client_.get("/v1/completions"), 405);
  EXPECT_EQ(client_.get("/v1/completions").header("allow"), "POST");
  const Json error = answered(client_.post("/v1/messages", "{"), 400);
  EXPECT_EQ(error["type"].text, "error");
  EXPECT_NE(error["error"]["message"].text, "");
}

TEST_F(HttpFaceTest, AChatGoesOnWhereItWas) {
  const std::string first =
      R"({"model":"tiny","temperature":0.5,"logit_bias":{},"max_tokens":20,"messages":)";
  const Json answer = answered(client_.post("/v1/chat/completions", first + kHello + "}"));
  EXPECT_EQ(answer["object"].text, "chat.completion");
  EXPECT_EQ(answer["model"].text, "tiny");
  const Json& choice = answer["choices"].items.at(0);
  EXPECT_EQ(choice["finish_reason"].text, "length");
  EXPECT_EQ(choice["message"]["role"].text, "assistant");
  const std::string said = choice["message"]["content"].text;
  const Json messages = parsed(kHello);
  EXPECT_EQ(said, oracle(chat_tokens({.messages = &messages}).value(), 20));
  EXPECT_EQ(number(answer["usage"]["prompt_tokens"]), 7u);
  EXPECT_EQ(number(answer["usage"]["completion_tokens"]), 20u);
  EXPECT_EQ(number(answer["usage"]["total_tokens"]), 27u);

  const std::string then = R"([{"role":"user","content":[{"type":"text","text":"hello"}]},)"
                           R"({"role":"assistant","content":)" +
                           json_quoted(said) + R"(},{"role":"user","content":"go on"}])";
  const Json next = answered(client_.post("/v1/chat/completions", first + then + "}"));
  const Json all = parsed(then);
  EXPECT_EQ(next["choices"].items.at(0)["message"]["content"].text,
            oracle(chat_tokens({.messages = &all}).value(), 20));
  // What was computed: the prompt, and the reply but for its last token.
  EXPECT_EQ(number(next["usage"]["prompt_tokens_details"]["cached_tokens"]), (7 + 20 - 1) / kBlock * kBlock);
}

TEST_F(HttpFaceTest, CompletesTextAndTokenIds) {
  const std::string prompt = "Complete text, and complete token ids.";
  EXPECT_EQ(complete(client_, prompt), 0u);
  std::string ids;
  for (const char letter : prompt) ids += (ids.empty() ? "" : ",") + std::to_string(int{letter});
  const Json same = answered(client_.post(
      "/v1/completions", "{\"prompt\":[" + ids + R"(],"max_tokens":4,"return_token_ids":true})"));
  EXPECT_EQ(same["object"].text, "text_completion");
  EXPECT_EQ(same["choices"].items.at(0)["text"].text, oracle(byte_tokens(prompt), 4));
  EXPECT_EQ(same["choices"].items[0]["prompt_token_ids"].items.size(), prompt.size());
  EXPECT_EQ(same["choices"].items[0]["token_ids"].items.size(), 4u);
  EXPECT_EQ(number(same["usage"]["prompt_tokens_details"]["cached_tokens"]), reusable(prompt.size()));

  const Json many =
      answered(client_.post("/v1/completions", R"({"prompt":["several","prompts"],"n":2,"max_tokens":5})"));
  ASSERT_EQ(many["choices"].items.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(number(many["choices"].items[i]["index"]), i);
    EXPECT_EQ(many["choices"].items[i]["text"].text,
              oracle(byte_tokens(i < 2 ? "several" : "prompts"), 5, i % 2));
  }
  EXPECT_EQ(number(many["usage"]["prompt_tokens"]), 14u);
  EXPECT_EQ(number(many["usage"]["completion_tokens"]), 20u);
}

TEST_F(HttpFaceTest, SpeaksTheOtherForms) {
  const Json messages = parsed(kHello);
  const Json system = parsed("\"be brief\"");
  const std::string said = oracle(chat_tokens({.system = &system, .messages = &messages}).value(), 9);

  const Json response = answered(
      client_.post("/v1/responses", R"({"input":"hello","instructions":"be brief","max_output_tokens":9})"));
  EXPECT_EQ(response["object"].text, "response");
  EXPECT_EQ(response["output"].items.at(0)["content"].items.at(0)["text"].text, said);
  EXPECT_EQ(number(response["usage"]["input_tokens"]), 16u);
  EXPECT_EQ(number(response["usage"]["output_tokens"]), 9u);
  EXPECT_EQ(number(response["usage"]["input_tokens_details"]["cached_tokens"]), 0u);

  const Json message = answered(client_.post(
      "/v1/messages",
      R"({"system":[{"type":"text","text":"be brief"}],"max_tokens":9,"messages":)" + kHello + "}"));
  EXPECT_EQ(message["type"].text, "message");
  EXPECT_EQ(message["content"].items.at(0)["text"].text, said);
  EXPECT_EQ(message["stop_reason"].text, "max_tokens");
  EXPECT_EQ(number(message["usage"]["input_tokens"]), 16u - reusable(16));
  EXPECT_EQ(number(message["usage"]["output_tokens"]), 9u);
  EXPECT_EQ(number(message["usage"]["cache_read_input_tokens"]), reusable(16));
}

TEST_F(HttpFaceTest, EmbedsTheSameTextTheSameWay) {
  const std::string body = R"({"input":["one text","another","one text"]})";
  const Json answer = answered(client_.post("/v1/embeddings", body));
  ASSERT_EQ(answer["data"].items.size(), 3u);
  std::vector<std::string> vectors(3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer["data"].items[i]["embedding"].items.size(), 8u);
    answer["data"].items[i]["embedding"].write(vectors[i]);
  }
  EXPECT_EQ(vectors[0], vectors[2]);
  EXPECT_NE(vectors[0], vectors[1]);
  EXPECT_EQ(number(answer["usage"]["prompt_tokens"]), 23u);
}

// ---- streams

TEST_F(HttpFaceTest, StreamsAChatTokenByToken) {
  const std::string start = R"({"stream":true,"max_tokens":12,"messages":)" + kHello;
  const HttpAnswer answer =
      client_.post("/v1/chat/completions", start + R"(,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(answer.header("content-type").substr(0, 17), "text/event-stream");
  EXPECT_TRUE(answer.is_complete);
  const std::vector<std::string> events = events_of(answer.body);
  ASSERT_EQ(events.size(), 1u + 12 + 1 + 1);  // the role, the tokens, usage, the end
  std::string said;
  for (std::size_t i = 0; i < 13; ++i) {
    const Json event = parsed(events[i]);
    EXPECT_EQ(event["object"].text, "chat.completion.chunk");
    const Json& choice = event["choices"].items.at(0);
    EXPECT_EQ(choice["delta"]["role"].text, i == 0 ? "assistant" : "");
    EXPECT_EQ(choice["delta"]["content"].text.size(), i == 0 ? 0u : 1u);
    EXPECT_EQ(choice["finish_reason"].text, i == 12 ? "length" : "");
    said += choice["delta"]["content"].text;
  }
  const Json messages = parsed(kHello);
  EXPECT_EQ(said, oracle(chat_tokens({.messages = &messages}).value(), 12));
  const Json last = parsed(events[13]);
  EXPECT_TRUE(last["choices"].items.empty());
  EXPECT_EQ(number(last["usage"]["completion_tokens"]), 12u);
  EXPECT_EQ(number(last["usage"]["prompt_tokens"]), 7u);
  EXPECT_EQ(events[14], "[DONE]");

  EXPECT_EQ(events_of(client_.post("/v1/chat/completions", start + "}").body).size(), 14u);
}

TEST_F(HttpFaceTest, StreamsTheOtherForms) {
  const std::vector<std::string> completion =
      events_of(client_.post("/v1/completions", completion_body("stream", 6, ",\"stream\":true")).body);
  ASSERT_EQ(completion.size(), 7u);
  std::string said;
  for (std::size_t i = 0; i < 6; ++i) said += parsed(completion[i])["choices"].items.at(0)["text"].text;
  EXPECT_EQ(said, oracle(byte_tokens("stream"), 6));
  EXPECT_EQ(completion[6], "[DONE]");

  const Json messages = parsed(kHello);
  const std::string right = oracle(chat_tokens({.messages = &messages}).value(), 6);
  said.clear();
  Json usage;
  for (const std::string& event :
       events_of(client_.post("/v1/messages", R"({"stream":true,"max_tokens":6,"messages":)" + kHello + "}")
                     .body)) {
    const Json json = parsed(event);
    said += json["delta"]["text"].text;
    if (json["type"].text == "message_delta") usage = json["usage"];
  }
  EXPECT_EQ(said, right);
  EXPECT_EQ(number(usage["output_tokens"]), 6u);

  said.clear();
  for (const std::string& event : events_of(
           client_.post("/v1/responses", R"({"stream":true,"max_output_tokens":6,"input":"hello"})").body)) {
    const Json json = parsed(event);
    if (json["type"].text == "response.output_text.delta") said += json["delta"].text;
    if (json["type"].text == "response.completed") usage = json["response"]["usage"];
  }
  EXPECT_EQ(said, right);
  EXPECT_EQ(number(usage["output_tokens"]), 6u);
  EXPECT_EQ(number(usage["input_tokens"]), 7u);
}

// Each client on a thread and a connection of its own.
TEST_F(HttpFaceTest, ServesManyAtOnce) {
  std::vector<std::thread> clients;
  for (int user = 0; user < 8; ++user)
    clients.emplace_back([user] {
      HttpClient client(engine_->port());
      std::string said = "One of many users, number " + std::to_string(user) + ": ";
      for (int turn = 0; turn < 4; ++turn) {
        const std::vector<Token> prompt = byte_tokens(said);
        const std::string body = completion_body(said, 12, turn % 2 == 0 ? ",\"stream\":true" : "");
        const HttpAnswer answer = client.post("/v1/completions", body);
        ASSERT_EQ(answer.status, 200);
        std::string text;
        if (turn % 2 != 0) {
          text = parsed(answer.body)["choices"].items.at(0)["text"].text;
        } else {
          for (const std::string& event : events_of(answer.body))
            if (event != "[DONE]") text += parsed(event)["choices"].items.at(0)["text"].text;
        }
        EXPECT_EQ(text, oracle(prompt, 12));
        said += text + " More: ";
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(metric(client_, "vllm:num_requests_running"), 0u);
}

// ---- the cache

TEST_F(HttpFaceTest, ARepeatIsCachedButForItsLastToken) {
  for (const std::size_t length : {1u, 7u, 8u, 9u, 40u, 41u, 300u}) {
    const std::string prompt(length, static_cast<char>('A' + length % 23));
    complete(client_, prompt);
    EXPECT_EQ(complete(client_, prompt), reusable(length)) << length;
  }
}

TEST_F(HttpFaceTest, SaltsShareNothing) {
  const std::string prompt = "A prompt that tenants have in common, word by word.";
  EXPECT_EQ(complete(client_, prompt), 0u);
  EXPECT_EQ(complete(client_, prompt, 4, R"(,"cache_salt":"a")"), 0u);
  EXPECT_EQ(complete(client_, prompt, 4, R"(,"cache_salt":"b")"), 0u);
  EXPECT_EQ(complete(client_, prompt, 4, R"(,"cache_salt":"a")"), reusable(prompt.size()));
  EXPECT_EQ(complete(client_, prompt), reusable(prompt.size()));
}

// It may be answered before the server knows that its client has gone; then another one leaves.
TEST_F(HttpFaceTest, ARequestEndsWhenItsClientLeaves) {
  const std::string labels = "finished_reason=\"abort\"";
  const std::uint64_t before = metric(client_, "vllm:request_success_total", labels);
  const ashlar::testing::UntilSeen until(0);
  const auto aborted = [&] { return metric(client_, "vllm:request_success_total", labels) > before; };
  for (int i = 0; !until.over(aborted); ++i) {
    HttpClient leaves(engine_->port());
    leaves.request("POST", "/v1/completions",
                   completion_body("left " + std::to_string(i), 2000, ",\"stream\":true"), {},
                   [](std::string_view) { return false; });
    EXPECT_FALSE(leaves.is_connected());
    const ashlar::testing::UntilSeen ended(0);
    while (!ended.over([&] {
      return metric(client_, "vllm:num_requests_running") + metric(client_, "vllm:num_requests_waiting") == 0;
    }))
      continue;
  }
  EXPECT_TRUE(aborted());
  EXPECT_EQ(metric(client_, "vllm:num_requests_running"), 0u);
  EXPECT_EQ(complete(client_, "and others go on"), 0u);
}

}  // namespace
}  // namespace tiny_engine::testing
