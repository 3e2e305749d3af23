// The JSON of the endpoints that generate: what a request asks for, and the texts of its answer, whole and as
// a stream, in the forms of OpenAI (chat, completions, responses, embeddings) and Anthropic (messages).
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "tiny_engine/byte_tokens.h"
#include "tiny_engine/json.h"

namespace tiny_engine {

enum class ApiForm : std::uint8_t { kChat, kCompletions, kResponses, kMessages, kEmbeddings };

// The model as its clients see it.
struct ModelCard {
  std::string name = "tiny";
  std::size_t max_model_len = 2048;  // tokens of a prompt and its reply
  std::int64_t created = 0;          // Unix seconds
};

// What a request asks for; fields that this engine does not know are ignored.
struct ApiCall {
  ApiForm form = ApiForm::kChat;
  std::vector<std::vector<Token>> prompts = {};
  std::size_t max_tokens = 0;  // of each reply
  std::size_t samples = 1;     // of each prompt
  bool stream = false;
  bool stream_usage = false;
  bool token_ids = false;   // the answer names the tokens of prompt and reply
  std::string tenant = {};  // cache_salt

  std::size_t choices() const noexcept { return prompts.size() * samples; }
};

// Errors: kInvalidArgument: a field has no sense; kNotFound: another model.
ashlar::Result<ApiCall> read_call(ApiForm form, const Json& body, const ModelCard& card);
// The tokens of a body of /tokenize. Errors: kInvalidArgument.
ashlar::Result<std::vector<Token>> read_tokenize(const Json& body);
// Errors: kNotFound unless the body names this model, or none.
ashlar::Result<void> check_model(const Json& body, const ModelCard& card);
// A list of numbers. Errors: kInvalidArgument: another value, or a token beyond the vocabulary.
ashlar::Result<std::vector<Token>> read_token_ids(const Json& list);
std::string token_list(const std::vector<Token>& tokens);

// What a render endpoint answers: the prompt as token ids, with how it is to be sampled; a list of them for
// completions, which may have several prompts.
std::string render_body(const ApiCall& call, const ModelCard& card, std::string_view request_id);

std::string error_body(unsigned status, std::string_view message, bool as_anthropic);

struct ApiUsage {
  std::size_t prompt_tokens = 0;
  std::size_t completion_tokens = 0;
  std::size_t cached_tokens = 0;
  bool has_cached = true;  // the answer names the cached tokens
};

// A reply so far.
struct ApiChoice {
  std::vector<Token> tokens;
  bool is_complete = false;
};

// The texts of one answer. A stream is begin(), then a token() for each, then end(): whole events.
class ApiAnswer {
 public:
  ApiAnswer(const ApiCall& call, const ModelCard& card, std::string_view request_id, std::int64_t created);

  std::string whole(const std::vector<ApiChoice>& choices, const ApiUsage& usage) const;

  std::string begin(const ApiUsage& usage) const;
  // The last token of a choice.
  std::string token(std::size_t index, const ApiChoice& choice) const;
  std::string end(const std::vector<ApiChoice>& choices, const ApiUsage& usage) const;

 private:
  std::string head(std::string_view object) const;
  std::string usage_of(const ApiUsage& usage) const;
  std::string response(const std::vector<ApiChoice>& choices, const ApiUsage& usage, bool is_complete) const;
  std::string message(const std::vector<ApiChoice>& choices, const ApiUsage& usage, bool is_complete) const;

  ApiForm form_;
  bool stream_usage_;
  bool token_ids_;
  std::vector<std::vector<Token>> prompts_;  // if token_ids_
  std::size_t samples_;
  std::string model_;  // quoted, as id_
  std::string id_;
  std::string created_;
};

}  // namespace tiny_engine
