// read_request(): what routing needs to know of a client's request, read from its body without changing it.
//
// Of a key that stands twice the last one counts, as in the engines. Depth is bounded by JsonReader; memory
// is O(body), whatever the body is.
//
// Thread safety: free functions.
// Complexity:    O(body), one pass; texts of messages are not copied.
#pragma once

#include <cstddef>
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

// The path that gives the prompt of a request of this endpoint as the engine makes it, for POST with the
// request's own body; empty: there is none. vLLM 0.32 has them with --enable-scale-out.
std::string_view render_path(Endpoint endpoint) noexcept;

// By the path of a target, without its query; a path prefix such as /v1 is part of the match.
Endpoint endpoint_of(std::string_view method, std::string_view target);
// "chat", "completions", … "other": for metrics and logs.
std::string_view to_string(Endpoint endpoint) noexcept;

// Byte range of a value inside the body, brackets or quotes included.
struct JsonSlice {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool empty() const noexcept { return begin == end; }
  std::string_view of(std::string_view body) const { return body.substr(begin, end - begin); }
};

// Token ids of a request beyond which they are not read.
inline constexpr std::size_t kMostTokenIds = std::size_t{2} << 20;
// More blocks than contexts have: one of several times as many must not hold up others while it is looked up.
inline constexpr std::size_t kMostPromptBlocks = 65'536;

struct RequestView {
  Endpoint endpoint = Endpoint::kOther;
  std::string model;
  std::string cache_salt;
  std::string previous_response;  // of /v1/responses: the answer that it goes on with
  bool stream = false;
  bool stream_usage = false;     // stream_options.include_usage
  std::uint64_t max_tokens = 0;  // 0: not said
  std::uint32_t prompts = 1;     // of a batch of prompts in one body
  bool has_media = false;        // images, audio, video, embeddings: their tokens cannot be asked for
  // The engine makes other messages out of these before its template sees them, or cuts the prompt: tool
  // blocks of /v1/messages, items and tools of /v1/responses, documents, truncate_prompt_tokens. /tokenize
  // does not do the same; a render endpoint does.
  bool is_rewritten = false;
  // No endpoint gives its tokens: it goes on with an answer that only its engine has, or has embeddings.
  bool is_opaque = false;
  // It has more token ids than any context: they are not kept, and what follows them is not read.
  bool is_too_long = false;
  // The engine computes the whole prompt, whatever it has cached: the request asks for the logprobs of prompt
  // tokens (prompt_logprobs, or echo with logprobs). What it computes it stores as always.
  bool skips_cache = false;
  // The engine announces the blocks that the request finds, as if they were stored again (vllm_xargs with
  // kv_cache_report_mode).
  bool asks_full_report = false;
  // The prompt as token ids; nullopt if it is text. Of a batch of one prompt, that one.
  std::optional<std::vector<tokens::Token>> prompt_tokens = {};
  JsonSlice prompt = {};  // a text
  // One per message: an object; or, as the first, the bare content of a system message (`system` of
  // /v1/messages, `instructions` of /v1/responses); or, of /v1/responses, the bare content of a user's
  // message.
  std::vector<JsonSlice> messages = {};
  bool has_system = false;  // the first of `messages` is such a bare content
  JsonSlice tools = {};
  JsonSlice template_arguments = {};  // chat_template_kwargs
  JsonSlice reasoning_effort = {};
  JsonSlice chat_template = {};
  std::optional<bool> add_generation_prompt = {};
  std::optional<bool> continue_final_message = {};
  std::optional<bool> add_special_tokens = {};
};

// Errors: kInvalidArgument: not JSON, or a field of another type; the message says which and at which byte.
// An empty body is an empty object.
Result<RequestView> read_request(Endpoint endpoint, std::string_view body);

}  // namespace ashlar::service
