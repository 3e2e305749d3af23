#include "service/request/prompt_tokens.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/salt.h"
#include "service/request/prompt_blocks.h"
#include "service/request/prompt_cache.h"
#include "service/request/tokenize_question.h"
#include "support/small_json.h"
#include "support/until_seen.h"

namespace ashlar::service {
namespace {

using testing::Json;
using Source = KnownPrompt::Source;
using Ids = std::vector<std::uint32_t>;

struct Message {
  std::string role;
  std::string content;
};
using Conversation = std::vector<Message>;

// An engine's tokenizer: a token per word, and a template around messages.
class Engine {
 public:
  enum class Template {
    kAdditive,    // message after message
    kForgets,     // words that begin with ~ are left out of every user's message but the last
    kCounts,      // the number of messages comes first
    kAlternates,  // refuses an assistant right behind the system
    kNoPrompt,    // nothing stands behind the last message
    kObeys,       // where the system begins with "hush", words that begin with ~ are left out of answers
    kGreets,      // where it does, the generation prompt has a word more
  };

  explicit Engine(Template style) : style_(style) {}
  void set(Template style) { style_ = style; }

  // The answer to a question, with its status.
  std::pair<unsigned, std::string> answer(std::string_view body) {
    const Json request = Json::parse(body);
    const std::vector<Json>& messages = request["messages"].list;
    if (messages.empty()) return {200, write(words(request["prompt"].text))};
    if (style_ == Template::kAlternates && messages.size() > 1 && messages[0]["role"].text == "system" &&
        messages[1]["role"].text == "assistant")
      return {400, R"({"error":"roles must alternate"})"};
    const Json& flag = request["add_generation_prompt"];
    return {200, write(render(request, flag.kind == Json::Kind::kNull || flag.number != 0))};
  }
  // What the engine itself counts for a request.
  Ids tokens(std::string_view body) { return render(Json::parse(body), true); }

 private:
  static std::uint32_t word_id(std::string_view word) {
    std::uint32_t id = 2166136261u;
    for (const char c : word) id = (id ^ static_cast<unsigned char>(c)) * 16777619u;
    return 1000 + (id >> 1);
  }
  static Ids words(std::string_view text) {
    Ids out;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, text.find(' '));
      if (!word.empty()) out.push_back(word_id(word));
      text.remove_prefix(std::min(text.size(), word.size() + 1));
    }
    return out;
  }
  Ids render(const Json& request, bool add_generation_prompt) const {
    const std::vector<Json>& messages = request["messages"].list;
    Ids out = {1};
    if (style_ == Template::kCounts) out.push_back(static_cast<std::uint32_t>(messages.size()));
    if (messages[0]["role"].text != "system")
      out.insert(out.end(), {word_id("<system>"), word_id("default"), 2});
    for (const Json& tool : request["tools"].list) out.push_back(word_id(tool["name"].text));
    const bool is_hushed = messages[0]["content"].text.starts_with("hush");
    std::size_t last_user = 0;
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (messages[i]["role"].text == "user") last_user = i;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      out.push_back(word_id("<" + messages[i]["role"].text + ">"));
      std::string content = messages[i]["content"].text;
      const bool forgets =
          style_ == Template::kForgets && messages[i]["role"].text == "user" && i != last_user;
      const bool obeys = style_ == Template::kObeys && messages[i]["role"].text == "assistant" && is_hushed;
      if (forgets || obeys)
        for (std::size_t at; (at = content.find('~')) != std::string::npos;)
          content.erase(at, content.find(' ', at) - at);
      const Ids ids = words(content);
      out.insert(out.end(), ids.begin(), ids.end());
      out.push_back(2);
    }
    if (add_generation_prompt && style_ != Template::kNoPrompt)
      out.insert(out.end(),
                 {word_id("<assistant>"), word_id(request["chat_template_kwargs"]["effort"].text)});
    if (add_generation_prompt && style_ == Template::kGreets && is_hushed) out.push_back(word_id("<hush>"));
    return out;
  }
  static std::string write(const Ids& ids) {
    std::string out = R"({"count":)" + std::to_string(ids.size()) + R"(,"max_model_len":4096,"tokens":[)";
    for (const std::uint32_t& id : ids) out += std::to_string(id) + (&id == &ids.back() ? "" : ",");
    return out + R"(],"token_strs":null})";
  }

  std::atomic<Template> style_;
};

std::string chat_body(const Conversation& conversation, const std::string& more = "") {
  std::string out = R"({"model":"m","messages":[)";
  for (const Message& message : conversation) {
    if (&message != conversation.data()) out += ',';
    out += R"({"role":")" + message.role + R"(","content":")" + message.content + R"("})";
  }
  return out + "]" + more + "}";
}

constexpr std::uint32_t kBlock = 4;

struct Answered {
  KnownPrompt known;
  std::size_t questions = 0;
  std::size_t tokens = 0;  // in the answers
  std::size_t bytes = 0;   // of the questions
  std::shared_ptr<const HashedPrompt> blocks;
};

Answered resolve(PromptTokens& prompts, Engine& engine, const std::string& body,
                 Endpoint endpoint = Endpoint::kChat, std::uint32_t block_size = kBlock) {
  Answered out;
  PromptTokens::Lookup lookup = prompts.look_up(*read_request(endpoint, body), body);
  while (const auto* const question = std::get_if<TokenQuestion>(&lookup)) {
    EXPECT_EQ(question->tokenize_target, "/tokenize");
    const auto [status, answer] = engine.answer(question->body);
    ++out.questions;
    out.bytes += question->body.size();
    if (status == 200) out.tokens += Json::parse(answer)["tokens"].list.size();
    Result<PromptTokens::Lookup> next = prompts.learn(*question, TokenEndpoint::kTokenize, status, answer);
    EXPECT_TRUE(next.has_value()) << answer;
    lookup = std::move(*next);
  }
  EXPECT_LE(out.questions, 4u);
  const auto* const known = std::get_if<KnownPrompt>(&lookup);
  EXPECT_NE(known, nullptr);
  if (known == nullptr) return out;
  out.known = *known;
  out.blocks = prompts.hash(*known, {}, block_size);
  EXPECT_EQ(out.blocks->locals, hash_prompt(*known->tokens, {}, {}, block_size));
  return out;
}

Ids ids_of(const KnownPrompt& known) {
  Ids out;
  for (const tokens::Token token : *known.tokens) out.push_back(token.value());
  return out;
}

// Ten words, the third of them one that kForgets forgets.
std::string sentence(Random& random) {
  std::string out;
  for (int i = 0; i < 10; ++i)
    out += (i == 2 ? "~w" : "w") + std::to_string(random.below(1000)) + (i == 9 ? "" : " ");
  return out;
}

void next_turn(Conversation& conversation, Random& random) {
  conversation.push_back({"assistant", sentence(random)});
  conversation.push_back({"user", sentence(random)});
}

Conversation first_turn(Random& random, bool has_system) {
  Conversation out;
  if (has_system) out.push_back({"system", sentence(random)});
  out.push_back({"user", sentence(random)});
  return out;
}

TEST(PromptTokens, GivenTokensNeedNoQuestion) {
  PromptTokens prompts({});
  const std::string body = R"({"prompt":[1,2,3]})";
  const PromptTokens::Lookup lookup = prompts.look_up(*read_request(Endpoint::kCompletions, body), body);
  ASSERT_TRUE(std::holds_alternative<KnownPrompt>(lookup));
  EXPECT_EQ(ids_of(std::get<KnownPrompt>(lookup)), (Ids{1, 2, 3}));
  EXPECT_EQ(std::get<KnownPrompt>(lookup).source, Source::kGiven);
  EXPECT_EQ(prompts.counters().given, 1u);
}

TEST(PromptTokens, SomeRequestsHaveNoTokens) {
  PromptTokens prompts({.renders = false});
  const std::pair<Endpoint, std::string> bodies[] = {
      {Endpoint::kCompletions, R"({"prompt":["a","b"]})"},
      {Endpoint::kCompletions, R"({"prompt":[[1],[2]]})"},
      {Endpoint::kCompletions, "{}"},
      {Endpoint::kCompletions, R"({"prompt":[1],"truncate_prompt_tokens":1})"},
      {Endpoint::kChat, R"({"messages":[]})"},
      {Endpoint::kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"},
      {Endpoint::kMessages, R"({"messages":[{"role":"user","content":"a"}],"tools":[{}]})"},
      {Endpoint::kEmbeddings, R"({"input":"a"})"},
      {Endpoint::kModels, ""},
      {Endpoint::kOther, R"({"prompt":"a"})"},
  };
  for (const auto& [endpoint, body] : bodies) {
    const PromptTokens::Lookup lookup = prompts.look_up(*read_request(endpoint, body), body);
    ASSERT_TRUE(std::holds_alternative<NoTokens>(lookup)) << body;
    EXPECT_FALSE(std::get<NoTokens>(lookup).reason.empty());
  }
}

TEST(PromptTokens, QuestionsSayWhatTheRequestSays) {
  const auto question = [](Endpoint endpoint, const std::string& body) {
    PromptTokens prompts({});
    const PromptTokens::Lookup lookup = prompts.look_up(*read_request(endpoint, body), body);
    return std::string(std::get<TokenQuestion>(lookup).body);
  };
  EXPECT_EQ(
      question(Endpoint::kCompletions, R"({"prompt": "a \u00e9","model":"m\"","add_special_tokens":false})"),
      R"({"model":"m\"","prompt":"a \u00e9","add_special_tokens":false})");
  EXPECT_EQ(question(Endpoint::kChat, R"({"messages":[{"role":"user","content":"x"} ], "tools" : [1],
      "chat_template":"t","chat_template_kwargs":{"a": 1},"continue_final_message":true,
      "add_generation_prompt":false,"reasoning_effort":"low"})"),
            R"({"messages":[{"role":"user","content":"x"}],"tools":[1],"chat_template":"t",)"
            R"("chat_template_kwargs":{"reasoning_effort":"low","a": 1},"add_generation_prompt":false,)"
            R"("continue_final_message":true})");
  EXPECT_EQ(
      question(Endpoint::kChat, R"({"messages":[{}],"reasoning_effort":"low","chat_template_kwargs":{ }})"),
      R"({"messages":[{}],"chat_template_kwargs":{"reasoning_effort":"low" },"add_generation_prompt":true})");
  EXPECT_EQ(question(Endpoint::kMessages, R"({"messages":[{"role":"user","content":"x"}],"system":"s"})"),
            R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"x"}],)"
            R"("add_generation_prompt":true})");
  EXPECT_EQ(question(Endpoint::kResponses, R"({"input":"x"})"),
            R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true})");
}

TEST(PromptTokens, WhatWasAskedOnceIsRemembered) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kAdditive);
  Random random(1);
  const std::string body = chat_body(first_turn(random, true));
  EXPECT_EQ(resolve(prompts, engine, body).known.source, Source::kAsked);
  const Answered again = resolve(prompts, engine, body);
  EXPECT_EQ(again.known.source, Source::kRemembered);
  EXPECT_EQ(again.questions, 0u);
  EXPECT_EQ(ids_of(again.known), engine.tokens(body));
  // Everything that changes the tokens asks again; a salt or a limit does not.
  Conversation conversation = {{"user", "a"}};
  resolve(prompts, engine, chat_body(conversation));
  for (const char* more :
       {R"(,"tools":[{"name":"t"}])", R"(,"chat_template_kwargs":{"effort":"low"})",
        R"(,"chat_template":"x")", R"(,"add_generation_prompt":false)", R"(,"model":"other")",
        R"(,"add_special_tokens":true)", R"(,"reasoning_effort":"low")"})
    EXPECT_EQ(resolve(prompts, engine, chat_body(conversation, more)).questions, 1u) << more;
  EXPECT_EQ(
      resolve(prompts, engine, chat_body(conversation, R"(,"cache_salt":"s","max_tokens":7)")).questions, 0u);
  const std::string text = R"({"prompt":"a b c"})";
  EXPECT_EQ(resolve(prompts, engine, text, Endpoint::kCompletions).known.tokens->size(), 3u);
  EXPECT_EQ(resolve(prompts, engine, text, Endpoint::kCompletions).known.source, Source::kRemembered);
}

// Blocks that a turn completes, and blocks that many turns complete.
TEST(PromptTokens, BlocksAreHashedOnce) {
  for (const std::uint32_t block_size : {kBlock, 64u}) {
    PromptTokens prompts({});
    Engine engine(Engine::Template::kAdditive);
    Random random(13);
    Conversation conversation = first_turn(random, true);
    Answered last;
    for (int turn = 0; turn < 12; ++turn, next_turn(conversation, random)) {
      const std::string body = chat_body(conversation);
      const Answered asked = resolve(prompts, engine, body, Endpoint::kChat, block_size);
      EXPECT_EQ(resolve(prompts, engine, body, Endpoint::kChat, block_size).blocks, asked.blocks)
          << "as it is remembered";
      // A follow-up turn goes on where the one before ended, all but what stood behind its last message.
      if (asked.known.source == Source::kJoined) {
        EXPECT_EQ(asked.known.hashed, last.blocks);
        EXPECT_EQ(asked.known.shared, last.known.tokens->size() - 2);
      }
      last = asked;
    }
    ASSERT_EQ(last.known.source, Source::kJoined);
    // Other sizes and salts have blocks of their own.
    const std::vector<tokens::Token>& all = *last.known.tokens;
    const tokens::SequenceHasher salted(tokens::Salt("adapter", "tenant"));
    EXPECT_EQ(hash_from(last.blocks, all.size(), all, {}, 5)->locals, hash_prompt(all, {}, {}, 5));
    const auto with_salt = hash_from(last.blocks, all.size(), all, salted, block_size);
    EXPECT_EQ(with_salt->locals, hash_prompt(all, {}, salted, block_size));
    const tokens::SequenceHasher same(tokens::Salt("adapter", "tenant"));
    EXPECT_EQ(hash_from(with_salt, all.size(), all, same, block_size), with_salt);
    const tokens::SequenceHasher other(tokens::Salt("adaptert", "enant"));
    EXPECT_NE(hash_from(with_salt, all.size(), all, other, block_size), with_salt);
    EXPECT_EQ(hash_from(last.blocks, 9, std::span(all).first(30), {}, block_size)->locals,
              hash_prompt(std::span(all).first(30), {}, {}, block_size));
  }
}

TEST(PromptTokens, ATailIsAskedOnceTheTemplateIsKnown) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kAdditive);
  Random random(2);
  Conversation conversation = first_turn(random, true);
  resolve(prompts, engine, chat_body(conversation));
  std::size_t tokens_of_tails = 0;
  std::size_t tokens_of_wholes = 0;
  std::size_t tails = 0;
  for (int turn = 0; turn < 40; ++turn) {
    next_turn(conversation, random);
    const std::string body = chat_body(conversation);
    const Answered answered = resolve(prompts, engine, body);
    ASSERT_EQ(ids_of(answered.known), engine.tokens(body));
    // The first one has no answer between; the others are of another kind.
    if (turn < 1 + static_cast<int>(PromptTokens::kTrials)) {
      EXPECT_EQ(answered.known.source, Source::kAsked) << turn;
      continue;
    }
    if (answered.known.source != Source::kJoined) continue;  // a sample
    ++tails;
    EXPECT_EQ(answered.questions, 1u);
    tokens_of_tails += answered.tokens;
    tokens_of_wholes += answered.known.tokens->size();
    // The first message, two new ones and what stands around them, however long the conversation is.
    EXPECT_LE(answered.tokens, 40u);
  }
  const PromptTokensCounters counters = prompts.counters();
  EXPECT_EQ(counters.joined, tails);
  constexpr std::size_t kTrusted = 40 - 1 - PromptTokens::kTrials;
  EXPECT_EQ(tails, kTrusted - kTrusted / PromptTokens::kSample);
  EXPECT_GT(tokens_of_wholes, 10 * tokens_of_tails);
  EXPECT_EQ(counters.differences, 0u);
  EXPECT_EQ(counters.trials, 40 - tails);
}

Conversation agent_turn(Random& random, const std::string& begin) {
  std::string system = begin;
  while (system.size() < (8 << 10)) system += " " + sentence(random);
  return {{"system", system}, {"user", sentence(random)}};
}

TEST(PromptTokens, ALongFirstMessageIsNotAskedAgain) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kAdditive);
  Random random(11);
  Conversation conversation = agent_turn(random, "you are a mason");
  std::size_t wholes = 0;
  std::size_t tails = 0;
  for (int turn = 0; turn < 20; ++turn, next_turn(conversation, random)) {
    const std::string body = chat_body(conversation);
    const Answered answered = resolve(prompts, engine, body);
    ASSERT_EQ(ids_of(answered.known), engine.tokens(body));
    if (answered.known.source != Source::kJoined) {
      ++wholes;
      continue;
    }
    ++tails;
    // Two new messages, a short one before them and what stands around, in every turn.
    EXPECT_EQ(answered.questions, 1u);
    EXPECT_LE(answered.bytes, 400u) << turn;
  }
  // The first turn, the first tail, kTrials of the kind that follows, and a sample.
  EXPECT_LE(wholes, 2u + PromptTokens::kTrials + 1u);
  EXPECT_EQ(tails, 20u - wholes);
  EXPECT_EQ(prompts.counters().differences, 0u);
  // Another conversation need not even say its first message.
  Conversation other = agent_turn(random, "you are a carpenter");
  resolve(prompts, engine, chat_body(other));
  for (int turn = 0; turn < 2; ++turn) {
    next_turn(other, random);
    resolve(prompts, engine, chat_body(other));
  }
  next_turn(other, random);
  EXPECT_LE(resolve(prompts, engine, chat_body(other)).bytes, 400u);
}

// A template that writes messages otherwise for what the first one says: the first message is asked again.
TEST(PromptTokens, AStandInThatMakesADifferenceIsGivenUp) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kObeys);
  Random random(12);
  Conversation conversation = agent_turn(random, "hush");
  std::size_t joined = 0;
  for (int turn = 0; turn < 20; ++turn, next_turn(conversation, random)) {
    const std::string body = chat_body(conversation);
    const Answered answered = resolve(prompts, engine, body);
    ASSERT_EQ(ids_of(answered.known), engine.tokens(body));
    if (answered.known.source != Source::kJoined) continue;
    ++joined;
    EXPECT_GT(answered.bytes, std::size_t{8} << 10);
  }
  EXPECT_EQ(prompts.counters().differences, 1u);
  EXPECT_GE(joined, 10u);
}

// What a stand-in does for one first message says nothing of another.
TEST(PromptTokens, EveryFirstMessageIsTriedWithItsStandIn) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kObeys);
  Random random(14);
  const auto talk = [&](const std::string& begin) {
    Conversation conversation = agent_turn(random, begin);
    for (int turn = 0; turn < 12; ++turn, next_turn(conversation, random)) {
      const std::string body = chat_body(conversation);
      ASSERT_EQ(ids_of(resolve(prompts, engine, body).known), engine.tokens(body));
    }
  };
  for (int i = 0; i < 4; ++i) talk("you are a mason");  // each kind of tail is trusted
  const std::uint64_t before = prompts.counters().joined;
  EXPECT_GT(before, 20u);
  talk("hush");
  EXPECT_EQ(prompts.counters().differences, 1u);
  EXPECT_GE(prompts.counters().joined, before + 5) << "with its first message itself";
}

// The engine's count of a prompt that was joined with a stand-in, also when it is remembered.
TEST(PromptTokens, ACountThatDiffersEndsStandInsFirst) {
  for (const bool is_remembered : {false, true}) {
    PromptTokens prompts({});
    Engine engine(Engine::Template::kAdditive);
    Random random(15);
    Conversation conversation = agent_turn(random, "you are a mason");
    const auto joined = [&] {
      Answered answered;
      for (int turn = 0; turn < 8; ++turn, next_turn(conversation, random)) {
        answered = resolve(prompts, engine, chat_body(conversation));
        EXPECT_EQ(ids_of(answered.known), engine.tokens(chat_body(conversation)));
        if (is_remembered) answered.known = resolve(prompts, engine, chat_body(conversation)).known;
      }
      EXPECT_EQ(answered.known.source, is_remembered ? Source::kRemembered : Source::kJoined);
      return answered;
    };
    const Answered first = joined();
    EXPECT_TRUE(first.known.stood_in);
    EXPECT_FALSE(prompts.check("m", first.known, first.known.tokens->size() - 1));
    const std::uint64_t before = prompts.counters().joined;
    const Answered second = joined();
    EXPECT_GE(prompts.counters().joined, before + 3);
    EXPECT_FALSE(second.known.stood_in);
    EXPECT_GT(second.bytes, std::size_t{8} << 10) << "the first message itself";
    // What was found before changes nothing; what was joined without ends tails.
    EXPECT_FALSE(prompts.check("m", first.known, first.known.tokens->size() - 1));
    const Answered third = joined();
    EXPECT_GE(prompts.counters().joined, before + 10);
    EXPECT_FALSE(prompts.check("m", third.known, third.known.tokens->size() - 1));
    EXPECT_EQ(prompts.counters().differences, 3u);
    EXPECT_EQ(resolve(prompts, engine, chat_body(conversation)).known.source, Source::kAsked);
  }
}

// What was asked before a difference was seen is answered after it.
TEST(PromptTokens, TailsInFlightEndWithADifference) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kObeys);
  Random random(16);
  const auto ask = [&](const Conversation& conversation) {
    const std::string body = chat_body(conversation);
    return prompts.look_up(*read_request(Endpoint::kChat, body), body);
  };
  const auto answer = [&](const PromptTokens::Lookup& lookup) {
    const auto& question = std::get<TokenQuestion>(lookup);
    const auto [status, text] = engine.answer(question.body);
    return prompts.learn(question, TokenEndpoint::kTokenize, status, text).value();
  };
  Conversation early = agent_turn(random, "you are a mason");
  resolve(prompts, engine, chat_body(early));
  next_turn(early, random);
  // Behind the whole and the stand-in: the generation prompt.
  PromptTokens::Lookup early_lookup = answer(answer(ask(early)));
  Conversation late = agent_turn(random, "hush");
  for (int turn = 0; turn < 8; ++turn) {
    resolve(prompts, engine, chat_body(late));
    next_turn(late, random);
    std::string& said = late[late.size() - 2].content;
    if (turn < 7) std::erase(said, '~');  // until then nothing is left out
  }
  EXPECT_GT(prompts.counters().joined, 0u);
  PromptTokens::Lookup late_lookup = ask(late);
  ASSERT_LT(std::get<TokenQuestion>(late_lookup).body.size(), 400u) << "a tail with the stand-in";
  Conversation other = agent_turn(random, "hush, all");
  for (int turn = 0; turn < 8; ++turn, next_turn(other, random))
    ASSERT_EQ(ids_of(resolve(prompts, engine, chat_body(other)).known), engine.tokens(chat_body(other)));
  EXPECT_EQ(prompts.counters().differences, 1u);
  const auto finish = [&](PromptTokens::Lookup lookup, const Conversation& conversation) {
    while (std::holds_alternative<TokenQuestion>(lookup)) lookup = answer(lookup);
    EXPECT_EQ(std::get<KnownPrompt>(lookup).source, Source::kAsked);
    EXPECT_EQ(ids_of(std::get<KnownPrompt>(lookup)), engine.tokens(chat_body(conversation)));
  };
  early_lookup = answer(early_lookup);
  finish(late_lookup, late);
  finish(early_lookup, early);
  EXPECT_EQ(prompts.counters().differences, 1u);
}

// A template that writes the generation prompt otherwise for what the first message says.
TEST(PromptTokens, AGenerationPromptOfAStandInIsNotThatOfOthers) {
  for (const bool begins_hushed : {false, true}) {
    PromptTokens prompts({});
    Engine engine(Engine::Template::kGreets);
    Random random(17);
    for (const bool is_hushed : {begins_hushed, !begins_hushed}) {
      Conversation conversation = agent_turn(random, is_hushed ? "hush" : "you are a mason");
      std::size_t joined = 0;
      for (int turn = 0; turn < 12; ++turn, next_turn(conversation, random)) {
        const KnownPrompt known = resolve(prompts, engine, chat_body(conversation)).known;
        ASSERT_EQ(ids_of(known), engine.tokens(chat_body(conversation)));
        joined += known.source == Source::kJoined;
        EXPECT_EQ(known.stood_in, known.source == Source::kJoined && !is_hushed);
      }
      EXPECT_GE(joined, 5u) << is_hushed;
    }
    EXPECT_EQ(prompts.counters().differences, 0u);
  }
}

TEST(PromptTokens, AnotherConversationAsksForItsFirstMessageOnly) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kAdditive);
  Random random(3);
  for (int i = 0; i < 5; ++i) {
    Conversation conversation = first_turn(random, true);
    for (int turn = 0; turn < 3; ++turn, next_turn(conversation, random))
      resolve(prompts, engine, chat_body(conversation));
  }
  Conversation conversation = first_turn(random, true);
  resolve(prompts, engine, chat_body(conversation));
  next_turn(conversation, random);
  const Answered answered = resolve(prompts, engine, chat_body(conversation));
  EXPECT_EQ(answered.known.source, Source::kJoined);
  EXPECT_EQ(answered.questions, 2u);  // the first message, then the tail
  next_turn(conversation, random);
  EXPECT_EQ(resolve(prompts, engine, chat_body(conversation)).questions, 1u);
  // Another kind of tail is tried again, and other arguments too.
  next_turn(conversation, random);
  conversation.push_back({"tool", "result"});
  EXPECT_EQ(resolve(prompts, engine, chat_body(conversation)).known.source, Source::kAsked);
}

TEST(PromptTokens, ATemplateThatForgetsIsNoticed) {
  for (const bool has_system : {false, true}) {
    PromptTokens prompts({});
    Engine engine(Engine::Template::kForgets);
    Random random(4);
    for (int i = 0; i < 5; ++i) {
      Conversation conversation = first_turn(random, has_system);
      for (int turn = 0; turn < 10; ++turn) {
        const std::string body = chat_body(conversation);
        const Answered answered = resolve(prompts, engine, body);
        ASSERT_EQ(ids_of(answered.known), engine.tokens(body));
        ASSERT_NE(answered.known.source, Source::kJoined);
        next_turn(conversation, random);
      }
    }
    EXPECT_EQ(prompts.counters().differences, 1u);
    EXPECT_EQ(prompts.counters().joined, 0u);
  }
}

TEST(PromptTokens, TemplatesOfOtherFormsAreAskedWhole) {
  for (const auto style : {Engine::Template::kCounts, Engine::Template::kAlternates}) {
    PromptTokens prompts({});
    Engine engine(style);
    Random random(5);
    Conversation conversation = first_turn(random, true);
    std::size_t questions = 0;
    for (int turn = 0; turn < 20; ++turn, next_turn(conversation, random)) {
      const std::string body = chat_body(conversation);
      const Answered answered = resolve(prompts, engine, body);
      questions += answered.questions;
      ASSERT_EQ(ids_of(answered.known), engine.tokens(body));
      ASSERT_EQ(answered.known.source, Source::kAsked);
    }
    EXPECT_LE(questions, 20u + 4u);  // the first trial of each kind was the last
  }
  PromptTokens prompts({});
  Engine engine(Engine::Template::kNoPrompt);
  Random random(6);
  Conversation conversation = first_turn(random, false);
  for (int turn = 0; turn < 8; ++turn, next_turn(conversation, random))
    ASSERT_EQ(ids_of(resolve(prompts, engine, chat_body(conversation)).known),
              engine.tokens(chat_body(conversation)));
  EXPECT_GT(prompts.counters().joined, 0u);
}

// A model whose template changes after it was trusted: a sample notices it, or the engine's count.
TEST(PromptTokens, ADifferenceEndsTailsOfThatModelOnly) {
  PromptTokens prompts({});
  Engine engine(Engine::Template::kAdditive);
  Random random(7);
  Conversation conversation = first_turn(random, true);
  const auto turn = [&](const std::string& more) {
    const std::string body = chat_body(conversation, more);
    return std::pair(resolve(prompts, engine, body).known, engine.tokens(body));
  };
  for (int i = 0; i < 8; ++i, next_turn(conversation, random)) {
    turn("");
    turn(R"(,"model":"other")");
  }
  EXPECT_EQ(turn("").first.source, Source::kJoined);
  engine.set(Engine::Template::kForgets);
  bool was_wrong = false;
  std::uint32_t turns = 0;
  for (; prompts.counters().differences == 0; ++turns) {
    next_turn(conversation, random);
    const auto [known, expected] = turn("");
    was_wrong = was_wrong || ids_of(known) != expected;
    ASSERT_LE(turns, PromptTokens::kSample);
  }
  EXPECT_TRUE(was_wrong);
  for (int i = 0; i < 5; ++i) {
    next_turn(conversation, random);
    const auto [known, expected] = turn("");
    EXPECT_EQ(ids_of(known), expected);
    EXPECT_EQ(known.source, Source::kAsked);
  }
  // The other model is still trusted; the engine's count ends that.
  engine.set(Engine::Template::kAdditive);
  KnownPrompt known;
  for (std::uint32_t i = 0; i < PromptTokens::kSample && known.source != Source::kJoined; ++i) {
    next_turn(conversation, random);
    known = turn(R"(,"model":"other")").first;
  }
  ASSERT_EQ(known.source, Source::kJoined);
  EXPECT_TRUE(prompts.check("other", known, known.tokens->size()));
  EXPECT_FALSE(prompts.check("other", known, known.tokens->size() - 1));
  EXPECT_EQ(prompts.counters().differences, 2u);
  // What was joined is forgotten, and nothing is joined again.
  const auto [again, expected] = turn(R"(,"model":"other")");
  EXPECT_EQ(again.source, Source::kAsked);
  EXPECT_EQ(ids_of(again), expected);
}

TEST(PromptTokens, AnswersThatCannotBeReadAreCounted) {
  PromptTokens prompts({});
  const std::string body = chat_body({{"user", "a"}});
  const auto ask = [&] {
    return std::get<TokenQuestion>(prompts.look_up(*read_request(Endpoint::kChat, body), body));
  };
  for (const char* answer : {"", "{}", "[]", R"({"tokens":[1,-1]})", R"({"tokens":["a"]})",
                             R"({"tokens":[1],"count":2})", R"({"tokens":[4294967296]})",
                             R"({"tokens":[1]} x)", R"({"tokens":[[1]]})", R"({"tokens":5})", "<html>"}) {
    const Result<PromptTokens::Lookup> learned = prompts.learn(ask(), TokenEndpoint::kTokenize, 200, answer);
    ASSERT_FALSE(learned.has_value()) << answer;
    EXPECT_EQ(learned.error().code(), ErrorCode::kCorruption);
  }
  const Result<PromptTokens::Lookup> refused = prompts.learn(ask(), TokenEndpoint::kTokenize, 404, "{}");
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(std::get<NoTokens>(*refused).reason, "a worker answered 404 to /tokenize");
  EXPECT_EQ(prompts.counters().failed, 12u);
  EXPECT_EQ(prompts.counters().asked, 0u);
}

// A worker that fails at any question of a chain costs no more than the whole.
TEST(PromptTokens, AFailureWithinAChainFallsBackToTheWhole) {
  for (const unsigned status : {500u, 400u, 200u}) {
    for (int failing = 0; failing < 12; ++failing) {
      PromptTokens prompts({});
      Engine engine(Engine::Template::kAdditive);
      Random random(8);
      Conversation conversation = first_turn(random, true);
      resolve(prompts, engine, chat_body(conversation));
      int question_number = 0;
      bool has_failed = false;
      for (int turn = 0; turn < 8; ++turn) {
        next_turn(conversation, random);
        const std::string body = chat_body(conversation);
        PromptTokens::Lookup lookup = prompts.look_up(*read_request(Endpoint::kChat, body), body);
        bool is_whole_refused = false;
        while (const auto* const question = std::get_if<TokenQuestion>(&lookup)) {
          const bool fails = question_number++ == failing;
          const bool is_whole = Json::parse(question->body)["messages"].list.size() == conversation.size();
          has_failed = has_failed || fails;
          Result<PromptTokens::Lookup> next =
              fails ? prompts.learn(*question, TokenEndpoint::kTokenize, status, "no")
                    : prompts.learn(*question, TokenEndpoint::kTokenize, 200,
                                    engine.answer(question->body).second);
          if (fails && is_whole) {
            is_whole_refused = true;
            break;
          }
          ASSERT_TRUE(next.has_value());
          lookup = std::move(*next);
        }
        if (is_whole_refused) continue;
        ASSERT_TRUE(std::holds_alternative<KnownPrompt>(lookup));
        ASSERT_EQ(ids_of(std::get<KnownPrompt>(lookup)), engine.tokens(body));
      }
      EXPECT_TRUE(has_failed);
      EXPECT_EQ(prompts.counters().failed, 1u);
      EXPECT_EQ(prompts.counters().differences, 0u);
    }
  }
}

TEST(PromptTokens, MemoryIsBounded) {
  PromptTokens::Options options;
  options.max_bytes = 20'000;
  PromptTokens prompts(options);
  Engine engine(Engine::Template::kAdditive);
  Random random(9);
  std::vector<Conversation> conversations(8);
  while (prompts.counters().evicted < 100 || prompts.counters().joined < 10 ||
         prompts.counters().remembered < 5) {
    Conversation& conversation = conversations[random.below(random.below(8) + 1)];
    if (conversation.empty() || random.below(20) == 0) {
      conversation = first_turn(random, random.below(2) == 0);
    } else if (random.below(4) != 0) {
      next_turn(conversation, random);
    }
    const std::string body = chat_body(conversation);
    ASSERT_EQ(ids_of(resolve(prompts, engine, body).known), engine.tokens(body));
    ASSERT_LE(prompts.counters().bytes, options.max_bytes);
  }
  EXPECT_EQ(prompts.counters().differences, 0u);
  // Nothing fits at all.
  options.max_bytes = 0;
  PromptTokens none(options);
  Conversation conversation = first_turn(random, true);
  for (int turn = 0; turn < 4; ++turn, next_turn(conversation, random))
    EXPECT_EQ(resolve(none, engine, chat_body(conversation)).known.source, Source::kAsked);
  EXPECT_EQ(none.counters().bytes, 0u);
}

TEST(PromptTokens, TailsCanBeOff) {
  PromptTokens::Options options;
  options.tails = false;
  PromptTokens prompts(options);
  Engine engine(Engine::Template::kAdditive);
  Random random(10);
  Conversation conversation = first_turn(random, true);
  for (int turn = 0; turn < 8; ++turn, next_turn(conversation, random))
    EXPECT_EQ(resolve(prompts, engine, chat_body(conversation)).questions, 1u);
}

// Threads with conversations of their own and shared ones; one template forgets, from the start.
TEST(PromptTokens, ThreadsShareWhatIsKnown) {
  PromptTokens::Options options;
  options.max_bytes = 200'000;
  PromptTokens prompts(options);
  Engine additive(Engine::Template::kAdditive);
  Engine forgets(Engine::Template::kForgets);
  const testing::UntilSeen until(0.3);
  const auto has_seen = [&] {
    const PromptTokensCounters counters = prompts.counters();
    return counters.joined > 50 && counters.remembered > 10 && counters.differences > 0 &&
           counters.evicted > 0;
  };
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      for (std::uint64_t round = 0; !until.over(has_seen); ++round) {
        Random random(seed % 2 == 0 ? round : round * 4 + seed);  // two of them have the same conversations
        Conversation conversation = first_turn(random, random.below(2) == 0);
        for (int turn = 0; turn < 6; ++turn, next_turn(conversation, random)) {
          const std::string body = chat_body(conversation);
          EXPECT_EQ(ids_of(resolve(prompts, additive, body).known), additive.tokens(body));
          const std::string other = chat_body(conversation, R"(,"model":"forgets")");
          EXPECT_EQ(ids_of(resolve(prompts, forgets, other).known), forgets.tokens(other));
          const KnownPrompt known = resolve(prompts, additive, body).known;
          EXPECT_TRUE(prompts.check("m", known, known.tokens->size()));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(has_seen());
}

}  // namespace
}  // namespace ashlar::service
