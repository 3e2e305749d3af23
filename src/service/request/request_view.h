// read_request(): what routing needs to know of a client's request, read from its body without changing it.
//
// Thread safety: free functions.
// Complexity:    O(body), one pass; texts of messages are not copied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::service {

// What a path asks for. kOther passes through.
enum class Endpoint : std::uint8_t {
  kChat,
  kCompletions,
  kResponses,
  kMessages,
  kEmbeddings,
  kModels,
  kTokenize,
  kDetokenize,
  kOther,
};

// By the path of a target, without its query; a path prefix such as /v1 is part of the match.
Endpoint endpoint_of(std::string_view method, std::string_view target);
std::string_view to_string(Endpoint endpoint) noexcept;

// Byte range of a value inside the body, brackets or quotes included.
struct JsonSlice {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool empty() const noexcept { return begin == end; }
  std::string_view of(std::string_view body) const { return body.substr(begin, end - begin); }
};

struct RequestView {
  Endpoint endpoint = Endpoint::kOther;
  std::string model;
  std::string cache_salt;
  bool stream = false;
  bool stream_usage = false;     // stream_options.include_usage
  std::uint64_t max_tokens = 0;  // 0: not said
  std::uint32_t prompts = 1;     // of a batch of prompts in one body
  bool has_media = false;        // images, audio, video, embeddings: their tokens cannot be asked for
  // The prompt of /v1/completions as token ids; nullopt if it is text.
  std::optional<std::vector<tokens::Token>> prompt_tokens = {};
  JsonSlice prompt = {};                 // a text
  std::vector<JsonSlice> messages = {};  // one per message
  JsonSlice tools = {};
  JsonSlice template_arguments = {};  // chat_template_kwargs
  JsonSlice chat_template = {};
  std::optional<bool> add_generation_prompt = {};
  std::optional<bool> continue_final_message = {};
  std::optional<bool> add_special_tokens = {};
};

// Errors: kInvalidArgument: not JSON, or a field of another type; the message says which and at which byte. An
// empty body is an empty object.
Result<RequestView> read_request(Endpoint endpoint, std::string_view body);

}  // namespace ashlar::service
