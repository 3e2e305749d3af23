#include "tiny_engine/api_forms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace tiny_engine {
namespace {

using ashlar::Error;
using ashlar::ErrorCode;
using ashlar::Result;

constexpr std::size_t kEmbeddingSize = 8;
constexpr std::size_t kChatTokens = 64;        // of a chat that does not say how many
constexpr std::size_t kCompletionTokens = 16;  // of a completion
constexpr std::size_t kMaxSamples = 16;

Error refusal(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

Result<std::size_t> read_count(const Json& body, std::string_view name, std::size_t missing) {
  const Json& field = body[name];
  if (field.is(Json::Kind::kNull)) return missing;
  const auto number = field.whole_number();
  if (!number || *number == 0) return refusal(std::string(name) + " must be a whole number of at least 1");
  return static_cast<std::size_t>(*number);
}

bool read_flag(const Json& field, bool missing) {
  return field.is(Json::Kind::kBool) ? field.truth : missing;
}

bool is_list_of(const Json& json, Json::Kind kind) {
  return json.is(Json::Kind::kList) && !json.items.empty() &&
         std::all_of(json.items.begin(), json.items.end(), [&](const Json& item) { return item.is(kind); });
}

// A text, token ids, or a list of either.
Result<std::vector<std::vector<Token>>> read_prompts(std::string_view name, const Json& json) {
  std::vector<std::vector<Token>> prompts;
  if (json.is(Json::Kind::kText)) {
    prompts.push_back(byte_tokens(json.text));
  } else if (is_list_of(json, Json::Kind::kNumber)) {
    ASHLAR_TRY(prompts.emplace_back(), read_token_ids(json));
  } else if (is_list_of(json, Json::Kind::kText)) {
    for (const Json& item : json.items) prompts.push_back(byte_tokens(item.text));
  } else if (is_list_of(json, Json::Kind::kList)) {
    for (const Json& item : json.items) {
      ASHLAR_TRY(prompts.emplace_back(), read_token_ids(item));
    }
  } else {
    return refusal(std::string(name) + " must be a text, a list of token ids, or a list of either");
  }
  return prompts;
}

Result<std::vector<Token>> read_input(const Json& body) {
  Chat chat{.system = &body["instructions"], .messages = &body["input"], .tools = &body["tools"]};
  Json said;
  if (body["input"].is(Json::Kind::kText)) {
    Json message{.kind = Json::Kind::kObject};
    message.names = {"role", "content"};
    message.items = {{.kind = Json::Kind::kText, .text = "user"}, body["input"]};
    said = {.kind = Json::Kind::kList, .items = {std::move(message)}};
    chat.messages = &said;
  }
  return chat_tokens(chat);
}

bool asks_for_generation(const Json& body) {
  return read_flag(body["add_generation_prompt"], true) && !read_flag(body["continue_final_message"], false);
}

Result<void> read_prompt_of(ApiForm form, const Json& body, ApiCall& call) {
  switch (form) {
    case ApiForm::kCompletions: {
      ASHLAR_TRY(call.prompts, read_prompts("prompt", body["prompt"]));
      return {};
    }
    case ApiForm::kEmbeddings: {
      ASHLAR_TRY(call.prompts, read_prompts("input", body["input"]));
      return {};
    }
    case ApiForm::kResponses: {
      ASHLAR_TRY(call.prompts.emplace_back(), read_input(body));
      return {};
    }
    case ApiForm::kChat:
    case ApiForm::kMessages: {
      const Json* system = form == ApiForm::kMessages ? &body["system"] : nullptr;
      ASHLAR_TRY(call.prompts.emplace_back(),
                 chat_tokens({.system = system,
                              .messages = &body["messages"],
                              .tools = &body["tools"],
                              .add_generation_prompt = asks_for_generation(body)}));
      return {};
    }
  }
  return {};
}

Result<std::size_t> read_max_tokens(ApiForm form, const Json& body, std::size_t missing) {
  if (form == ApiForm::kResponses) return read_count(body, "max_output_tokens", missing);
  if (form == ApiForm::kChat && !body["max_completion_tokens"].is(Json::Kind::kNull))
    return read_count(body, "max_completion_tokens", missing);
  return read_count(body, "max_tokens", missing);
}

std::string number_text(std::size_t number) {
  return std::to_string(number);
}

std::string choice_text(const ApiChoice& choice) {
  return json_quoted(byte_text(choice.tokens));
}

std::string event_text(std::string_view name, const std::string& data) {
  return "event: " + std::string(name) + "\ndata: " + data + "\n\n";
}

std::string data_text(const std::string& data) {
  return "data: " + data + "\n\n";
}

// A direction that the reply of the model gives: its tokens, around zero, of length 1.
std::string embedding_of(const ApiChoice& choice) {
  constexpr float kMiddle = (' ' + '~') / 2.0F;
  float squares = 0;
  for (const Token token : choice.tokens) {
    const float value = static_cast<float>(token.value()) - kMiddle;
    squares += value * value;
  }
  std::string out = "[";
  for (const Token token : choice.tokens) {
    std::array<char, 32> digits{};
    const float value = (static_cast<float>(token.value()) - kMiddle) / std::sqrt(squares);
    std::snprintf(digits.data(), digits.size(), "%.6f", static_cast<double>(value));
    if (out.size() > 1) out += ',';
    out += digits.data();
  }
  return out + "]";
}

}  // namespace

Result<std::vector<Token>> read_token_ids(const Json& list) {
  const std::uint32_t vocabulary = byte_model().vocabulary;
  if (!list.is(Json::Kind::kList)) return refusal("token ids must be a list of numbers");
  std::vector<Token> tokens;
  for (const Json& item : list.items) {
    const auto id = item.whole_number();
    if (!id || *id >= vocabulary)
      return refusal("a token id must be a whole number below " + std::to_string(vocabulary));
    tokens.push_back(Token(static_cast<std::uint32_t>(*id)));
  }
  return tokens;
}

std::string token_list(const std::vector<Token>& tokens) {
  std::string out = "[";
  for (const Token token : tokens) {
    if (out.size() > 1) out += ',';
    out += std::to_string(token.value());
  }
  return out + "]";
}

Result<void> check_model(const Json& body, const ModelCard& card) {
  if (!body.is(Json::Kind::kObject)) return refusal("the body must be a JSON object");
  const Json& model = body["model"];
  if (model.is(Json::Kind::kNull) || model.text == card.name) return {};
  return Error(ErrorCode::kNotFound, "The model `" + model.text + "` does not exist.");
}

Result<std::vector<Token>> read_tokenize(const Json& body) {
  if (body["messages"].is(Json::Kind::kNull)) {
    if (!body["prompt"].is(Json::Kind::kText))
      return refusal("/tokenize needs a prompt, which is a text, or messages");
    return byte_tokens(body["prompt"].text);
  }
  return chat_tokens({.messages = &body["messages"],
                      .tools = &body["tools"],
                      .add_generation_prompt = asks_for_generation(body)});
}

Result<ApiCall> read_call(ApiForm form, const Json& body, const ModelCard& card) {
  ASHLAR_RETURN_IF_ERROR(check_model(body, card));
  ApiCall call;
  call.form = form;
  ASHLAR_RETURN_IF_ERROR(read_prompt_of(form, body, call));
  std::size_t longest = 0;
  for (const std::vector<Token>& prompt : call.prompts) {
    if (prompt.empty()) return refusal("a prompt must have at least one token");
    longest = std::max(longest, prompt.size());
  }
  if (longest >= card.max_model_len)
    return refusal("This model's maximum context length is " + std::to_string(card.max_model_len) +
                   " tokens, but the prompt has " + std::to_string(longest) + ".");
  const std::size_t room = card.max_model_len - longest;
  if (form == ApiForm::kEmbeddings) {
    call.max_tokens = std::min(kEmbeddingSize, room);
    return call;
  }
  const std::size_t usual = form == ApiForm::kCompletions ? kCompletionTokens : kChatTokens;
  ASHLAR_TRY(call.max_tokens, read_max_tokens(form, body, std::min(usual, room)));
  if (call.max_tokens > room)
    return refusal("This model's maximum context length is " + std::to_string(card.max_model_len) +
                   " tokens. You requested " + std::to_string(call.max_tokens) +
                   " output tokens and the prompt has " + std::to_string(longest) + ".");
  ASHLAR_TRY(call.samples, read_count(body, "n", 1));
  if (call.samples > kMaxSamples ||
      (call.samples > 1 && form != ApiForm::kChat && form != ApiForm::kCompletions))
    return refusal("n must be at most " + std::to_string(kMaxSamples) + ", and 1 for responses and messages");
  call.stream = read_flag(body["stream"], false);
  call.stream_usage = read_flag(body["stream_options"]["include_usage"], false);
  call.token_ids = read_flag(body["return_token_ids"], false);
  if (body["cache_salt"].is(Json::Kind::kText)) call.tenant = body["cache_salt"].text;
  return call;
}

std::string render_body(const ApiCall& call, const ModelCard& card, std::string_view request_id) {
  const bool is_list = call.form == ApiForm::kCompletions;
  std::string out;
  for (std::size_t i = 0; i < call.prompts.size(); ++i) {
    std::string id((is_list ? "cmpl-" : "chatcmpl-") + std::string(request_id));
    if (call.prompts.size() > 1) id += "-" + std::to_string(i);
    out += (i > 0 ? ",{\"request_id\":" : "{\"request_id\":") + json_quoted(id) +
           ",\"token_ids\":" + token_list(call.prompts[i]) +
           R"(,"token_offsets":null,"features":null,"sampling_params":{"n":)" + number_text(call.samples) +
           ",\"max_tokens\":" + number_text(call.max_tokens) + "},\"model\":" + json_quoted(card.name) +
           ",\"stream\":" + (call.stream ? "true" : "false") + ",\"stream_options\":null,\"cache_salt\":" +
           (call.tenant.empty() ? "null" : json_quoted(call.tenant)) + ",\"priority\":0}";
  }
  return is_list ? "[" + out + "]" : out;
}

std::string error_body(unsigned status, std::string_view message, bool as_anthropic) {
  const std::string_view kind = status == 404   ? "NotFoundError"
                                : status >= 500 ? "InternalServerError"
                                                : "BadRequestError";
  std::string inside = "\"message\":" + json_quoted(message) + ",\"type\":" + json_quoted(kind);
  if (as_anthropic) return R"({"type":"error","error":{)" + inside + "}}";
  return R"({"error":{)" + inside + R"(,"param":null,"code":)" + std::to_string(status) + "}}";
}

ApiAnswer::ApiAnswer(const ApiCall& call, const ModelCard& card, std::string_view request_id,
                     std::int64_t created)
    : form_(call.form),
      stream_usage_(call.stream_usage),
      token_ids_(call.token_ids),
      samples_(call.samples),
      model_(json_quoted(card.name)),
      created_(std::to_string(created)) {
  constexpr std::array<std::string_view, 5> kPrefixes = {"chatcmpl-", "cmpl-", "resp_", "msg_", "embd-"};
  id_ = json_quoted(std::string(kPrefixes[static_cast<std::size_t>(form_)]) + std::string(request_id));
  if (token_ids_) prompts_ = call.prompts;
}

// The first members of most objects.
std::string ApiAnswer::head(std::string_view object) const {
  return "{\"id\":" + id_ + ",\"object\":" + json_quoted(object) + ",\"created\":" + created_ +
         ",\"model\":" + model_;
}

std::string ApiAnswer::usage_of(const ApiUsage& usage) const {
  const bool is_messages = form_ == ApiForm::kMessages;
  const bool says_input = is_messages || form_ == ApiForm::kResponses;
  std::string out = says_input ? "{\"input_tokens\":" : "{\"prompt_tokens\":";
  // The input of messages is what was computed; what was cached stands beside it.
  const bool is_apart = is_messages && usage.has_cached;
  out += number_text(usage.prompt_tokens - (is_apart ? usage.cached_tokens : 0));
  if (form_ != ApiForm::kEmbeddings) {
    out += says_input ? ",\"output_tokens\":" : ",\"completion_tokens\":";
    out += number_text(usage.completion_tokens);
  }
  const std::size_t said = form_ == ApiForm::kEmbeddings ? 0 : usage.completion_tokens;
  if (!is_messages) out += ",\"total_tokens\":" + number_text(usage.prompt_tokens + said);
  if (usage.has_cached && form_ != ApiForm::kEmbeddings) {
    const std::string cached = number_text(usage.cached_tokens);
    out += is_messages                    ? ",\"cache_read_input_tokens\":" + cached
           : form_ == ApiForm::kResponses ? ",\"input_tokens_details\":{\"cached_tokens\":" + cached + "}"
                                          : ",\"prompt_tokens_details\":{\"cached_tokens\":" + cached + "}";
  }
  return out + "}";
}

// ---- whole answers

std::string ApiAnswer::response(const std::vector<ApiChoice>& choices, const ApiUsage& usage,
                                bool is_complete) const {
  std::string out =
      "{\"id\":" + id_ + R"(,"object":"response","created_at":)" + created_ + ",\"model\":" + model_;
  if (!is_complete) return out + R"(,"status":"in_progress","output":[],"usage":null})";
  // It ends when its tokens are used up.
  out += R"(,"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[)"
         R"({"type":"message","id":"msg_0","status":"completed","role":"assistant","content":)"
         R"([{"type":"output_text","annotations":[],"text":)";
  return out + choice_text(choices[0]) + "}]}],\"usage\":" + usage_of(usage) + "}";
}

std::string ApiAnswer::message(const std::vector<ApiChoice>& choices, const ApiUsage& usage,
                               bool is_complete) const {
  std::string out = "{\"id\":" + id_ + R"(,"type":"message","role":"assistant","model":)" + model_;
  out += is_complete ? R"(,"stop_reason":"max_tokens","content":[{"type":"text","text":)" +
                           choice_text(choices[0]) + "}]"
                     : std::string(R"(,"stop_reason":null,"content":[])");
  return out + ",\"stop_sequence\":null,\"usage\":" + usage_of(usage) + "}";
}

std::string ApiAnswer::whole(const std::vector<ApiChoice>& choices, const ApiUsage& usage) const {
  if (form_ == ApiForm::kResponses) return response(choices, usage, true);
  if (form_ == ApiForm::kMessages) return message(choices, usage, true);
  if (form_ == ApiForm::kEmbeddings) {
    std::string out = "{\"id\":" + id_ + R"(,"object":"list","created":)" + created_ +
                      ",\"model\":" + model_ + ",\"data\":[";
    for (std::size_t i = 0; i < choices.size(); ++i)
      out += (i > 0 ? "," : "") + std::string("{\"index\":") + number_text(i) +
             R"(,"object":"embedding","embedding":)" + embedding_of(choices[i]) + "}";
    return out + "],\"usage\":" + usage_of(usage) + "}";
  }
  const bool is_chat = form_ == ApiForm::kChat;
  std::string out = head(is_chat ? "chat.completion" : "text_completion") + ",\"choices\":[";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    out += (i > 0 ? "," : "") + std::string("{\"index\":") + number_text(i);
    out += is_chat ? R"(,"message":{"role":"assistant","content":)" + choice_text(choices[i]) + "}"
                   : ",\"text\":" + choice_text(choices[i]);
    if (token_ids_) out += ",\"token_ids\":" + token_list(choices[i].tokens);
    if (token_ids_ && !is_chat) out += ",\"prompt_token_ids\":" + token_list(prompts_[i / samples_]);
    out += R"(,"logprobs":null,"finish_reason":"length"})";
  }
  if (token_ids_ && is_chat)
    out += "],\"prompt_token_ids\":" + token_list(prompts_[0]) + ",\"usage\":";
  else
    out += "],\"usage\":";
  return out + usage_of(usage) + "}";
}

// ---- streams

std::string ApiAnswer::begin(const ApiUsage& usage) const {
  if (form_ == ApiForm::kMessages)
    return event_text("message_start",
                      R"({"type":"message_start","message":)" + message({}, usage, false) + "}") +
           event_text(
               "content_block_start",
               R"({"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})");
  if (form_ == ApiForm::kResponses)
    return event_text("response.created",
                      R"({"type":"response.created","response":)" + response({}, usage, false) + "}");
  return {};
}

std::string ApiAnswer::token(std::size_t index, const ApiChoice& choice) const {
  const std::string said = json_quoted(byte_text(std::span(choice.tokens).last(1)));
  if (form_ == ApiForm::kMessages)
    return event_text(
        "content_block_delta",
        R"({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":)" + said + "}}");
  if (form_ == ApiForm::kResponses)
    return event_text("response.output_text.delta",
                      R"({"type":"response.output_text.delta","item_id":"msg_0","output_index":0,)"
                      R"("content_index":0,"delta":)" +
                          said + "}");
  const bool is_chat = form_ == ApiForm::kChat;
  const std::string start = head(is_chat ? "chat.completion.chunk" : "text_completion") +
                            ",\"choices\":[{\"index\":" + number_text(index);
  const std::string finish =
      choice.is_complete ? R"(,"finish_reason":"length"}]})" : R"(,"finish_reason":null}]})";
  if (!is_chat) return data_text(start + ",\"text\":" + said + ",\"logprobs\":null" + finish);
  std::string out;
  if (choice.tokens.size() == 1)
    out = data_text(start +
                    R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})");
  return out + data_text(start + ",\"delta\":{\"content\":" + said + "},\"logprobs\":null" + finish);
}

std::string ApiAnswer::end(const std::vector<ApiChoice>& choices, const ApiUsage& usage) const {
  if (form_ == ApiForm::kMessages)
    return event_text("content_block_stop", R"({"type":"content_block_stop","index":0})") +
           event_text("message_delta", R"({"type":"message_delta","delta":{"stop_reason":"max_tokens",)"
                                       R"("stop_sequence":null},"usage":)" +
                                           usage_of(usage) + "}") +
           event_text("message_stop", R"({"type":"message_stop"})");
  if (form_ == ApiForm::kResponses)
    return event_text("response.output_text.done",
                      R"({"type":"response.output_text.done","item_id":"msg_0","output_index":0,)"
                      R"("content_index":0,"text":)" +
                          choice_text(choices[0]) + "}") +
           event_text("response.completed",
                      R"({"type":"response.completed","response":)" + response(choices, usage, true) + "}");
  std::string out;
  if (stream_usage_)
    out = data_text(head(form_ == ApiForm::kChat ? "chat.completion.chunk" : "text_completion") +
                    ",\"choices\":[],\"usage\":" + usage_of(usage) + "}");
  return out + data_text("[DONE]");
}

}  // namespace tiny_engine
