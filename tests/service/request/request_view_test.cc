#include "service/request/request_view.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ashlar::service {
namespace {

RequestView read(Endpoint endpoint, std::string_view body) {
  Result<RequestView> view = read_request(endpoint, body);
  EXPECT_TRUE(view.has_value()) << body << ": " << (view ? "" : view.error().message());
  return view ? *view : RequestView{};
}

std::string refusal(Endpoint endpoint, std::string_view body) {
  const Result<RequestView> view = read_request(endpoint, body);
  EXPECT_FALSE(view.has_value()) << body;
  if (view) return {};
  EXPECT_EQ(view.error().code(), ErrorCode::kInvalidArgument);
  return view.error().message();
}

std::vector<std::string> texts(const RequestView& view, std::string_view body) {
  std::vector<std::string> out;
  for (const JsonSlice& message : view.messages) out.emplace_back(message.of(body));
  return out;
}

using Texts = std::vector<std::string>;

TEST(RequestView, EndpointsAreToldByMethodAndPath) {
  EXPECT_EQ(endpoint_of("POST", "/v1/chat/completions"), Endpoint::kChat);
  EXPECT_EQ(endpoint_of("POST", "/v1/chat/completions?api-version=2"), Endpoint::kChat);
  EXPECT_EQ(endpoint_of("POST", "/v1/completions"), Endpoint::kCompletions);
  EXPECT_EQ(endpoint_of("POST", "/v1/responses"), Endpoint::kResponses);
  EXPECT_EQ(endpoint_of("POST", "/v1/messages"), Endpoint::kMessages);
  EXPECT_EQ(endpoint_of("POST", "/v1/embeddings"), Endpoint::kEmbeddings);
  EXPECT_EQ(endpoint_of("GET", "/v1/models"), Endpoint::kModels);
  EXPECT_EQ(endpoint_of("POST", "/tokenize"), Endpoint::kTokenize);
  EXPECT_EQ(endpoint_of("POST", "/detokenize"), Endpoint::kDetokenize);
  for (const char* target : {"/v1/chat/completions/", "/v1/chat", "/chat/completions", "", "/",
                             "/v2/messages", "/v1/messages/count_tokens", "/V1/messages"})
    EXPECT_EQ(endpoint_of("POST", target), Endpoint::kOther) << target;
  EXPECT_EQ(endpoint_of("GET", "/v1/completions"), Endpoint::kOther);
  EXPECT_EQ(endpoint_of("POST", "/v1/models"), Endpoint::kOther);
  EXPECT_EQ(to_string(Endpoint::kChat), "chat");
  EXPECT_EQ(to_string(Endpoint::kOther), "other");
}

TEST(RequestView, ReadsAConversation) {
  const std::string_view body =
      R"( {"model": "tiny\u0041", "messages": [{"role":"system","content":"be \"brief\""} ,
      {"role": "user", "content": [{"type":"text","text":"hello"}, "and"]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}],
      "stream": true, "stream_options": {"other": [1], "include_usage": true}, "temperature": 0.70,
      "max_tokens": 5, "max_completion_tokens": 77, "cache_salt": "s", "tools": [ {"a": 1} ],
      "chat_template_kwargs": {"enable_thinking": false}, "chat_template": "{{x}}",
      "reasoning_effort": "low", "add_generation_prompt": false, "continue_final_message": true,
      "add_special_tokens": null} )";
  const RequestView view = read(Endpoint::kChat, body);
  EXPECT_EQ(view.endpoint, Endpoint::kChat);
  EXPECT_EQ(view.model, "tinyA");
  EXPECT_EQ(view.cache_salt, "s");
  EXPECT_TRUE(view.stream);
  EXPECT_TRUE(view.stream_usage);
  EXPECT_EQ(view.max_tokens, 77u);
  EXPECT_EQ(view.prompts, 1u);
  EXPECT_FALSE(view.has_media);
  EXPECT_FALSE(view.is_rewritten);
  EXPECT_FALSE(view.has_system);
  EXPECT_EQ(texts(view, body),
            (Texts{R"({"role":"system","content":"be \"brief\""})",
                   R"({"role": "user", "content": [{"type":"text","text":"hello"}, "and"]})",
                   R"({"role":"assistant","content":null,"tool_calls":[{"id":"1"}]})"}));
  EXPECT_EQ(view.tools.of(body), R"([ {"a": 1} ])");
  EXPECT_EQ(view.template_arguments.of(body), R"({"enable_thinking": false})");
  EXPECT_EQ(view.chat_template.of(body), R"("{{x}}")");
  EXPECT_EQ(view.reasoning_effort.of(body), R"("low")");
  EXPECT_EQ(view.add_generation_prompt, false);
  EXPECT_EQ(view.continue_final_message, true);
  EXPECT_EQ(view.add_special_tokens, std::nullopt);
  EXPECT_FALSE(view.prompt_tokens);
}

TEST(RequestView, AnEmptyBodyIsAnEmptyObject) {
  for (const char* body : {"", " \n", "{}"}) {
    const RequestView view = read(Endpoint::kChat, body);
    EXPECT_TRUE(view.model.empty());
    EXPECT_TRUE(view.messages.empty());
    EXPECT_TRUE(view.tools.empty());
    EXPECT_EQ(view.prompts, 1u);
  }
}

TEST(RequestView, NullIsAsIfNotSaid) {
  const RequestView view = read(Endpoint::kChat,
                                R"({"model":null,"cache_salt":null,"stream":null,"stream_options":null,
      "max_tokens":null,"messages":null,"tools":null,"chat_template_kwargs":null,"chat_template":null})");
  EXPECT_TRUE(view.model.empty());
  EXPECT_EQ(view.max_tokens, 0u);
  EXPECT_FALSE(view.stream);
}

TEST(RequestView, TheLastOfEqualKeysCounts) {
  const std::string_view body =
      R"({"model":"a","stream":true,"messages":[{"content":[{"type":"image_url"}]},{"role":"user"}],
      "max_tokens":9,"tools":[1],"model":"b","stream":false,"messages":[{"content":"x"}],"max_tokens":null,
      "tools":[],"documents":[1],"documents":null})";
  const RequestView view = read(Endpoint::kChat, body);
  EXPECT_EQ(view.model, "b");
  EXPECT_FALSE(view.stream);
  EXPECT_EQ(texts(view, body), (Texts{R"({"content":"x"})"}));
  EXPECT_FALSE(view.has_media);
  EXPECT_FALSE(view.is_rewritten);
  EXPECT_EQ(view.max_tokens, 0u);
  EXPECT_TRUE(view.tools.empty());
  EXPECT_FALSE(
      read(Endpoint::kChat, R"({"messages":[{"content":[{"type":"image_url"}],"content":"x"}]})").has_media);
  EXPECT_TRUE(
      read(Endpoint::kChat, R"({"messages":[{"content":"x","content":[{"type":"image_url"}]}]})").has_media);
  const RequestView prompt =
      read(Endpoint::kCompletions, R"({"prompt":[[1,2],[3]],"prompt":"x","prompt":[4]})");
  EXPECT_EQ(prompt.prompts, 1u);
  EXPECT_TRUE(prompt.prompt.empty());
  EXPECT_EQ(prompt.prompt_tokens, std::vector{tokens::Token(4)});
}

TEST(RequestView, PartsOtherThanTextAreMedia) {
  const auto has_media = [](std::string part) {
    return read(Endpoint::kChat,
                R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)" + part + "]}]}")
        .has_media;
  };
  for (const char* type : {"image_url", "input_audio", "audio_url", "video_url", "image_embeds", "file",
                           "input_image", "image", "document", "something_new"})
    EXPECT_TRUE(has_media(R"({"type":")" + std::string(type) + R"(","x":{}})")) << type;
  EXPECT_TRUE(has_media(R"({"image_url":{"url":"x"}})"));
  EXPECT_TRUE(has_media(R"({"text":"x","image_url":"y"})"));
  EXPECT_TRUE(has_media("{}"));
  for (const char* part :
       {R"({"text":"x"})", R"({"type":"text","text":"x"})", R"({"text":"x","type":"input_text"})",
        R"({"type":"output_text","text":"x"})", R"({"type":"refusal","refusal":"x"})", R"("x")"})
    EXPECT_FALSE(has_media(part)) << part;
  EXPECT_TRUE(read(Endpoint::kCompletions, R"({"prompt_embeds":"AAAA"})").has_media);
  EXPECT_FALSE(read(Endpoint::kCompletions, R"({"prompt":"a","prompt_embeds":null})").has_media);
}

TEST(RequestView, PromptsAreTextsOrTokensAndOneOrMany) {
  const std::string_view text = R"({"prompt": "once \u00e9" })";
  RequestView view = read(Endpoint::kCompletions, text);
  EXPECT_EQ(view.prompt.of(text), R"("once \u00e9")");
  EXPECT_FALSE(view.prompt_tokens);

  view = read(Endpoint::kCompletions, R"({"prompt": [ 1, 4294967295 , 0 ]})");
  EXPECT_TRUE(view.prompt.empty());
  EXPECT_EQ(view.prompt_tokens, (std::vector{tokens::Token(1), tokens::Token(UINT32_MAX), tokens::Token(0)}));
  view = read(Endpoint::kCompletions, R"({"prompt": []})");
  EXPECT_EQ(view.prompt_tokens, std::vector<tokens::Token>{});

  const std::string_view one = R"({"prompt": ["a"]})";
  view = read(Endpoint::kCompletions, one);
  EXPECT_EQ(view.prompt.of(one), R"("a")");
  EXPECT_EQ(view.prompts, 1u);
  view = read(Endpoint::kCompletions, R"({"prompt": [[7]]})");
  EXPECT_EQ(view.prompt_tokens, std::vector{tokens::Token(7)});
  EXPECT_EQ(view.prompts, 1u);

  for (const char* many : {R"({"prompt": ["a","b","c"]})", R"({"prompt": [[1],[],[2,3]]})"}) {
    view = read(Endpoint::kCompletions, many);
    EXPECT_EQ(view.prompts, 3u);
    EXPECT_TRUE(view.prompt.empty());
    EXPECT_FALSE(view.prompt_tokens);
  }
  EXPECT_EQ(read(Endpoint::kEmbeddings, R"({"input": ["a","b"]})").prompts, 2u);
  for (const char* bad : {R"({"prompt": [1,"a"]})", R"({"prompt": ["a",1]})", R"({"prompt": [[1],"a"]})",
                          R"({"prompt": [4294967296]})", R"({"prompt": [-1]})", R"({"prompt": [1.5]})",
                          R"({"prompt": 1})", R"({"prompt": {}})", R"({"prompt": [[1],[[2]]]})"})
    refusal(Endpoint::kCompletions, bad);
}

TEST(RequestView, SystemAndInstructionsAreTheFirstMessage) {
  const std::string_view anthropic =
      R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}],"system":"s"})";
  RequestView view = read(Endpoint::kMessages, anthropic);
  EXPECT_EQ(texts(view, anthropic), (Texts{R"("s")", R"({"role":"user","content":"a"})"}));
  EXPECT_TRUE(view.has_system);
  EXPECT_FALSE(view.is_rewritten);
  const std::string_view parts =
      R"({"system":[{"type":"text","text":"s","cache_control":{}}],"messages":[]})";
  view = read(Endpoint::kMessages, parts);
  EXPECT_EQ(texts(view, parts), (Texts{R"([{"type":"text","text":"s","cache_control":{}}])"}));
  EXPECT_FALSE(view.is_rewritten);
  const std::string_view responses = R"({"input":"hi","instructions":"be brief","max_output_tokens":3})";
  view = read(Endpoint::kResponses, responses);
  EXPECT_EQ(texts(view, responses), (Texts{R"("be brief")", R"("hi")"}));
  EXPECT_TRUE(view.has_system);
  EXPECT_EQ(view.max_tokens, 3u);
  view = read(Endpoint::kResponses, R"({"input":"hi"})");
  EXPECT_EQ(view.messages.size(), 1u);
  EXPECT_FALSE(view.has_system);
}

TEST(RequestView, SaysWhatAnEngineRewrites) {
  for (const char* body :
       {R"({"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text"}]}]}]})",
        R"({"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{}}]}]})",
        R"({"messages":[{"role":"user","content":[{"type":"text"},{"type":"text"}]}]})",
        R"({"messages":[],"tools":[{"name":"a"}]})"}) {
    const RequestView view = read(Endpoint::kMessages, body);
    EXPECT_TRUE(view.is_rewritten) << body;
    EXPECT_FALSE(view.has_media) << body;
  }
  EXPECT_TRUE(read(Endpoint::kMessages, R"({"messages":[{"content":[{"type":"tool_result",
      "content":[{"type":"image"}]}]}]})")
                  .has_media);
  for (const char* body : {R"({"input":[{"type":"function_call","name":"f"}]})", R"({"input":[{"id":"x"}]})",
                           R"({"input":"a","previous_response_id":"r"})", R"({"input":"a","tools":[{}]})"})
    EXPECT_TRUE(read(Endpoint::kResponses, body).is_rewritten) << body;
  EXPECT_FALSE(read(Endpoint::kResponses,
                    R"({"input":[{"type":"message","role":"user","content":[{"type":"input_text"}]},
      {"role":"assistant","content":"x"}],"previous_response_id":null,"tools":[]})")
                   .is_rewritten);
  EXPECT_TRUE(read(Endpoint::kChat, R"({"messages":[],"documents":[{}]})").is_rewritten);
  EXPECT_TRUE(read(Endpoint::kCompletions, R"({"prompt":"a","truncate_prompt_tokens":5})").is_rewritten);
}

TEST(RequestView, RefusalsSayWhatAndWhere) {
  EXPECT_EQ(refusal(Endpoint::kChat, R"({"model": 5})"),
            "the body is no request that can be read: `model` should be a text, at byte 10");
  for (const char* body : {"[]",
                           "1",
                           "{",
                           "{}x",
                           R"({"stream":1})",
                           R"({"stream":"true"})",
                           R"({"messages":{}})",
                           R"({"messages":[1]})",
                           R"({"messages":[{"content":5}]})",
                           R"({"messages":[{"content":[5]}]})",
                           R"({"max_tokens":"5"})",
                           R"({"tools":{}})",
                           R"({"chat_template_kwargs":[]})",
                           R"({"chat_template":1})",
                           R"({"stream_options":1})",
                           R"({"stream_options":{"include_usage":0}})",
                           R"({"a":nul})",
                           "\xff",
                           "{'a':1}",
                           R"({"add_generation_prompt":"x"})"})
    EXPECT_NE(refusal(Endpoint::kChat, body).find("at byte"), std::string::npos) << body;
}

TEST(RequestView, LimitsThatMakeNoSenseAreLeftToTheEngine) {
  for (const char* limit : {"-5", "1.5", "1e3", "99999999999999999999999", "0"})
    EXPECT_EQ(read(Endpoint::kChat, R"({"max_tokens":)" + std::string(limit) + "}").max_tokens, 0u) << limit;
  EXPECT_EQ(read(Endpoint::kChat, R"({"max_completion_tokens":7,"max_tokens":9})").max_tokens, 7u);
}

TEST(RequestView, AFullReportIsAskedForByAnArgumentOfTheEngine) {
  const auto asks = [](Endpoint endpoint, const std::string& fields) {
    return read(endpoint, "{" + fields + "}").asks_full_report;
  };
  EXPECT_TRUE(asks(Endpoint::kChat, R"("vllm_xargs":{"x":[1],"kv_cache_report_mode":"full"})"));
  EXPECT_TRUE(asks(Endpoint::kCompletions, R"("vllm_xargs":{"kv\u005fcache_report_mode":"full"})"));
  EXPECT_FALSE(asks(Endpoint::kChat, R"("vllm_xargs":{"x":"kv_cache_report_mode"})"));
  EXPECT_FALSE(asks(Endpoint::kChat, R"("vllm_xargs":null,"kv_cache_report_mode":"full")"));
  EXPECT_FALSE(
      asks(Endpoint::kChat, R"("vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":{"x":true})"));
  EXPECT_TRUE(asks(Endpoint::kOther, R"("sampling_params":{"extra_args":{"kv_cache_report_mode":"full"}})"));
  EXPECT_FALSE(asks(Endpoint::kOther, R"("sampling_params":{})"));
}

TEST(RequestView, LogprobsOfThePromptSkipTheCache) {
  const auto skips = [](Endpoint endpoint, const std::string& fields) {
    return read(endpoint, "{" + fields + "}").skips_cache;
  };
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    EXPECT_TRUE(skips(endpoint, R"("prompt_logprobs":0)"));
    EXPECT_FALSE(skips(endpoint, R"("prompt_logprobs":null)"));
    EXPECT_FALSE(skips(endpoint, R"("prompt_logprobs":1,"prompt_logprobs":null)"));
    EXPECT_FALSE(skips(endpoint, R"("echo":false,"logprobs":1)"));
    EXPECT_TRUE(skips(endpoint, R"("echo":true,"logprobs":1)"));
  }
  EXPECT_TRUE(skips(Endpoint::kChat, R"("echo":true)"));
  EXPECT_FALSE(skips(Endpoint::kCompletions, R"("echo":true)"));
  EXPECT_FALSE(skips(Endpoint::kCompletions, R"("echo":true,"logprobs":null)"));
  EXPECT_FALSE(skips(Endpoint::kCompletions, R"("logprobs":5)"));
  EXPECT_FALSE(skips(Endpoint::kMessages, R"("echo":true)"));
}

TEST(RequestView, OtherPathsAreReadForTheirModelOnly) {
  const RequestView view =
      read(Endpoint::kTokenize, R"({"messages":5,"prompt":{},"model":"m","tokens":[1,"a"],"stream":true})");
  EXPECT_EQ(view.model, "m");
  EXPECT_TRUE(view.messages.empty());
  EXPECT_EQ(read(Endpoint::kOther, R"({"tools":1,"model":"m"})").model, "m");
}

TEST(RequestView, DeepNestingIsRefusedNotFollowed) {
  std::string body = R"({"messages":[{"content":)";
  for (int i = 0; i < 100'000; ++i) body += R"([{"type":"tool_result","content":)";
  EXPECT_NE(refusal(Endpoint::kMessages, body).find("nested too deep"), std::string::npos);
}

TEST(RequestView, ReadsNoMoreTokenIdsThanContextsHave) {
  std::string body = R"({"model":"m","prompt":[7)";
  for (std::size_t i = 1; i < kMostTokenIds; ++i) body += i % 1000 == 0 ? ",12345678" : ",7";
  const Result<RequestView> longest =
      read_request(Endpoint::kCompletions, body.substr(0, body.size() - 2) + "]}");
  ASSERT_TRUE(longest) << longest.error();
  EXPECT_EQ(longest->prompt_tokens->size(), kMostTokenIds - 1);
  EXPECT_FALSE(longest->is_too_long);
  // What follows is not even looked at.
  const Result<RequestView> longer = read_request(Endpoint::kCompletions, body + ",7,,,");
  ASSERT_TRUE(longer) << longer.error();
  EXPECT_TRUE(longer->is_too_long);
  EXPECT_FALSE(longer->prompt_tokens);
  EXPECT_EQ(longer->model, "m");
}

}  // namespace
}  // namespace ashlar::service
