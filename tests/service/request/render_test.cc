// Prompts that only a render endpoint can say.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "feed/block_content.h"
#include "service/request/prompt_tokens.h"
#include "service/request/tokenize_question.h"

namespace ashlar::service {
namespace {

using Source = KnownPrompt::Source;

std::string_view target_of(PromptTokens& prompts, Endpoint endpoint, const std::string& body) {
  const PromptTokens::Lookup lookup = prompts.look_up(*read_request(endpoint, body), body);
  const auto* const question = std::get_if<TokenQuestion>(&lookup);
  if (question == nullptr) return "none";
  EXPECT_TRUE(question->tokenize_target.empty());
  return question->render_target;
}

TEST(Render, IsAskedForWhatTokenizeCannotSay) {
  PromptTokens prompts({});
  EXPECT_EQ(target_of(prompts, Endpoint::kResponses, R"({"input":"a","tools":[{"type":"function"}]})"),
            "/v1/responses/render");
  EXPECT_EQ(target_of(prompts, Endpoint::kResponses, R"({"input":[{"type":"reasoning","summary":[]}]})"),
            "/v1/responses/render");
  EXPECT_EQ(
      target_of(prompts, Endpoint::kMessages, R"({"messages":[{"role":"user","content":"a"}],"tools":[{}]})"),
      "/v1/messages/render");
  EXPECT_EQ(target_of(prompts, Endpoint::kChat,
                      R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
            "/v1/chat/completions/render");
  EXPECT_EQ(target_of(prompts, Endpoint::kCompletions, R"({"prompt":[1,2],"truncate_prompt_tokens":1})"),
            "/v1/completions/render");
  // Only the engine knows these.
  EXPECT_EQ(target_of(prompts, Endpoint::kResponses, R"({"input":"a","previous_response_id":"r"})"), "none");
  EXPECT_EQ(target_of(prompts, Endpoint::kCompletions, R"({"prompt_embeds":"x","prompt":"a"})"), "none");
  EXPECT_EQ(target_of(prompts, Endpoint::kEmbeddings, R"({"input":"a","truncate_prompt_tokens":1})"), "none");
  // Not allowed.
  PromptTokens none({.renders = false});
  EXPECT_EQ(target_of(none, Endpoint::kResponses, R"({"input":"a","tools":[{}]})"), "none");
}

TEST(Render, TakesTheRequestItself) {
  EXPECT_EQ(ask_render(R"({"input":"a" } )"), R"({"input":"a" ,"mm_payload":"none"})");
  EXPECT_EQ(ask_render("{ }"), R"({ "mm_payload":"none"})");
  EXPECT_EQ(ask_render("{}"), R"({"mm_payload":"none"})");
  // What /tokenize can say is asked in the same words at either endpoint.
  PromptTokens prompts({});
  const std::string body = R"({"messages":[{"role":"user","content":"a"}]})";
  const PromptTokens::Lookup lookup = prompts.look_up(*read_request(Endpoint::kMessages, body), body);
  const auto& question = std::get<TokenQuestion>(lookup);
  EXPECT_EQ(question.tokenize_target, "/tokenize");
  EXPECT_EQ(question.render_target, "/v1/chat/completions/render");
  const auto learned = prompts.learn(question, TokenEndpoint::kRender, 200, R"({"token_ids":[1,2]})");
  EXPECT_EQ(std::get<KnownPrompt>(*learned).source, Source::kAsked);
}

TEST(Render, IsRememberedUnlessItHasImages) {
  PromptTokens prompts({});
  const auto ask = [&](const std::string& body) {
    return prompts.look_up(*read_request(Endpoint::kChat, body), body);
  };
  const std::string text = R"({"model":"m","messages":[{"role":"user","content":"a"}],"documents":[{}]})";
  auto known = prompts.learn(std::get<TokenQuestion>(ask(text)), TokenEndpoint::kRender, 200,
                             R"({"request_id":"x","token_ids":[7,8],"features":null})");
  EXPECT_EQ(std::get<KnownPrompt>(*known).source, Source::kRendered);
  EXPECT_EQ(std::get<KnownPrompt>(ask(text)).source, Source::kRemembered);
  // The engine counts others: it is not trusted longer.
  EXPECT_FALSE(prompts.check("m", std::get<KnownPrompt>(*known), 3));
  EXPECT_TRUE(std::holds_alternative<TokenQuestion>(ask(text)));

  const std::string image = R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})";
  known = prompts.learn(std::get<TokenQuestion>(ask(image)), TokenEndpoint::kRender, 200,
                        R"([{"features":{"mm_hashes":{"image":["00000000000000ff","aa"],"audio":["b"]},)"
                        R"("mm_placeholders":{"image":[{"offset":4,"length":2},{"offset":0,"length":1}],)"
                        R"("audio":[{"offset":1,"length":3}]},"kwargs_data":null},)"
                        R"("token_ids":[1,2,3,4,5,6]}])");
  ASSERT_TRUE(known) << known.error();
  const std::vector<PromptItem>& items = std::get<KnownPrompt>(*known).items;
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0], (PromptItem{feed::item_number("aa"), 0, 1}));
  EXPECT_EQ(items[1], (PromptItem{feed::item_number("b"), 1, 3}));
  EXPECT_EQ(items[2], (PromptItem{255, 4, 2}));
  EXPECT_TRUE(std::holds_alternative<TokenQuestion>(ask(image)));
  EXPECT_EQ(prompts.counters().rendered, 2u);
  // Nothing can be said of images without their places.
  const auto blind = prompts.learn(std::get<TokenQuestion>(ask(image)), TokenEndpoint::kRender, 200,
                                   R"({"token_ids":[1,2],"features":null})");
  EXPECT_TRUE(std::holds_alternative<NoTokens>(*blind));
}

TEST(Render, AnswersAreChecked) {
  for (const char* answer :
       {"", "{}", "[]", R"({"token_ids":[]})", R"({"token_ids":[-1]})", R"({"token_ids":[4294967296]})",
        R"([{"token_ids":[1]},{"token_ids":[2]}])", R"([{"token_ids":[1]}] x)", R"({"tokens":[1]})",
        R"({"token_ids":[1],"features":{"mm_hashes":{"image":["a"]}}})",
        R"({"token_ids":[1],"features":{"mm_placeholders":{"image":[{"offset":0,"length":1}]}}})",
        R"({"token_ids":[1],"features":{"mm_hashes":{"i":["a"]},"mm_placeholders":{"i":[{"offset":0}]}}})",
        R"({"token_ids":[1],"features":{"mm_hashes":{"i":["a"]},
            "mm_placeholders":{"i":[{"offset":1,"length":1}]}}})",
        R"({"token_ids":[1],"features":{"mm_hashes":{"i":["a"]},
            "mm_placeholders":{"i":[{"offset":0,"length":2}]}}})",
        R"({"token_ids":[1,2],"features":{"mm_hashes":{"i":["a","b"]},
            "mm_placeholders":{"i":[{"offset":0,"length":2},{"offset":1,"length":1}]}}})"}) {
    const Result<RenderedPrompt> read = read_render_answer(answer);
    ASSERT_FALSE(read) << answer;
    EXPECT_EQ(read.error().code(), ErrorCode::kCorruption);
  }
}

// A prompt with items leads to the blocks that the engine's events lead to.
TEST(Render, BlocksAreThoseOfTheEvents) {
  constexpr std::uint32_t kBlock = 4;
  std::vector<tokens::Token> prompt;
  for (std::uint32_t i = 0; i < 18; ++i) prompt.emplace_back(i * 7 + 1);
  const std::vector<PromptItem> items = {{feed::item_number("image-a"), 2, 5},
                                         {feed::item_number("b"), 7, 1}};
  const tokens::Salt salt("adapter", "tenant");
  const std::vector<tokens::LocalHash> locals =
      hash_prompt(prompt, items, tokens::SequenceHasher(salt), kBlock);
  ASSERT_EQ(locals.size(), 4u);

  using Key = events::EngineExtraKey;
  const std::vector<Key> keys = {{0, Key::Kind::kMultimodal, "image-a", 2},
                                 {1, Key::Kind::kMultimodal, "image-a", -2},
                                 {1, Key::Kind::kMultimodal, "b", 3}};
  const std::vector<events::BlockName> names = {events::BlockName(1), events::BlockName(2),
                                                events::BlockName(3), events::BlockName(4)};
  feed::EngineRun run;
  run.names = names;
  run.tokens = prompt;
  run.block_size = kBlock;
  run.window = kBlock;
  run.keys = keys;
  run.has_keys = true;
  feed::RunContent content;
  ASSERT_TRUE(feed::ContentHasher(tokens::HashScheme(), salt).hash(run, nullptr, content));
  ASSERT_EQ(content.blocks.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(content.blocks[i].local, locals[i]) << i;
  EXPECT_NE(hash_prompt(prompt, {}, tokens::SequenceHasher(salt), kBlock)[1], locals[1]);
  EXPECT_EQ(hash_prompt(prompt, {}, tokens::SequenceHasher(salt), kBlock)[2], locals[2]);
}

}  // namespace
}  // namespace ashlar::service
