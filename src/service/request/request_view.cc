// A body is read key by key (JsonReader); values that nobody asks for are skipped. What several fields decide
// together (messages and `system`, media anywhere) is kept per field and joined at the end, so that a key
// that stands twice leaves nothing of its first value behind.
#include "service/request/request_view.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/base/check.h"
#include "events/json_reader.h"

namespace ashlar::service {
namespace {

using events::JsonReader;

constexpr std::string_view kReportMode = "kv_cache_report_mode";

struct EndpointPath {
  Endpoint endpoint;
  std::string_view method;
  std::string_view path;
  std::string_view name;
};

constexpr std::array<EndpointPath, 8> kEndpointPaths = {{
    {Endpoint::kChat, "POST", "/v1/chat/completions", "chat"},
    {Endpoint::kCompletions, "POST", "/v1/completions", "completions"},
    {Endpoint::kResponses, "POST", "/v1/responses", "responses"},
    {Endpoint::kMessages, "POST", "/v1/messages", "messages"},
    {Endpoint::kEmbeddings, "POST", "/v1/embeddings", "embeddings"},
    {Endpoint::kModels, "GET", "/v1/models", "models"},
    {Endpoint::kTokenize, "POST", "/tokenize", "tokenize"},
    {Endpoint::kDetokenize, "POST", "/detokenize", "detokenize"},
}};
static_assert(kEndpointPaths.size() == static_cast<std::size_t>(Endpoint::kOther),
              "every endpoint but kOther has a path");

// What a field with messages or a prompt holds.
struct PromptField {
  std::vector<JsonSlice> messages = {};
  bool has_media = false;
  bool is_rewritten = false;
};

class RequestBodyReader {
 public:
  RequestBodyReader(Endpoint endpoint, std::string_view body) : in_(body) { view_.endpoint = endpoint; }

  Result<RequestView> read() {
    if ((!read_object() || !in_.at_end()) && !view_.is_too_long) {
      in_.fail("something stands behind the object");
      return make_error(ErrorCode::kInvalidArgument,
                        "the body is no request that can be read: %s, at byte %zu", in_.fault(),
                        in_.fault_offset());
    }
    view_.max_tokens = max_output_tokens_ != 0 ? max_output_tokens_ : max_tokens_;
    std::vector<JsonSlice>& messages = view_.messages;
    if (!system_.messages.empty()) messages = std::move(system_.messages);
    view_.has_system = !messages.empty();
    messages.insert(messages.end(), conversation_.messages.begin(), conversation_.messages.end());
    view_.has_media = has_embeds_ || system_.has_media || conversation_.has_media;
    // A chat has top_logprobs of 0 where it does not say.
    view_.skips_cache =
        has_prompt_logprobs_ || (echoes_ && (view_.endpoint == Endpoint::kChat || has_logprobs_));
    view_.is_opaque = has_embeds_ || (rewritten_ & kEarlierAnswer) != 0;
    view_.is_rewritten = rewritten_ != 0 || system_.is_rewritten || conversation_.is_rewritten;
    const bool has_other_tools =
        view_.endpoint == Endpoint::kMessages || view_.endpoint == Endpoint::kResponses;
    if (has_other_tools && !view_.tools.empty()) view_.is_rewritten = true;
    return std::move(view_);
  }

 private:
  // Fields that change the prompt in a way that /tokenize does not know: bits of rewritten_.
  enum RewritingField : unsigned { kDocuments = 1, kTruncation = 2, kEarlierAnswer = 4 };

  bool has_prompt() const { return view_.endpoint <= Endpoint::kEmbeddings; }

  bool read_object() {
    if (in_.at_end()) return true;
    if (!in_.begin_object("an object should be here")) return false;
    bool more = false;
    while (in_.next_key(key_, more) && more)
      if (!read_field()) return false;
    return in_.fault() == nullptr;
  }

  bool read_field() {
    if (!has_prompt() && key_ != "model" && key_ != "stream") return in_.skip();
    if (key_ == "model") return read_nullable_text(view_.model, "`model` should be a text");
    if (key_ == "cache_salt") return read_nullable_text(view_.cache_salt, "`cache_salt` should be a text");
    if (key_ == "stream") return read_flag(view_.stream, "`stream` should be true or false");
    if (key_ == "stream_options") return read_stream_options();
    if (key_ == "max_tokens") return read_limit(max_tokens_);
    if (key_ == "max_completion_tokens" || key_ == "max_output_tokens") return read_limit(max_output_tokens_);
    if (key_ == "chat_template_kwargs")
      return read_slice(view_.template_arguments, JsonReader::Type::kObject,
                        "`chat_template_kwargs` should be an object");
    if (key_ == "reasoning_effort")
      return read_slice(view_.reasoning_effort, JsonReader::Type::kText,
                        "`reasoning_effort` should be a text");
    if (key_ == "chat_template")
      return read_slice(view_.chat_template, JsonReader::Type::kText, "`chat_template` should be a text");
    if (key_ == "tools") return read_tools();
    if (key_ == "add_generation_prompt") return read_choice(view_.add_generation_prompt);
    if (key_ == "continue_final_message") return read_choice(view_.continue_final_message);
    if (key_ == "add_special_tokens") return read_choice(view_.add_special_tokens);
    if (key_ == "documents") return read_rewriting(kDocuments);
    if (key_ == "truncate_prompt_tokens") return read_rewriting(kTruncation);
    if (key_ == "previous_response_id" && in_.peek() == JsonReader::Type::kText) {
      rewritten_ |= kEarlierAnswer;
      return in_.read_text(view_.previous_response, "");
    }
    if (key_ == "previous_response_id" || key_ == "conversation") return read_rewriting(kEarlierAnswer);
    if (key_ == "vllm_xargs") return read_engine_arguments();
    if (key_ == "prompt_logprobs") return read_presence(has_prompt_logprobs_);
    if (view_.endpoint == Endpoint::kCompletions && key_ == "logprobs") return read_presence(has_logprobs_);
    if (view_.endpoint <= Endpoint::kCompletions && key_ == "echo")
      return in_.peek() == JsonReader::Type::kBool ? in_.read_bool(echoes_, "") : read_presence(echoes_);
    if (key_ == "prompt_embeds") return read_presence(has_embeds_);
    return read_prompt_field();
  }

  // The fields that differ by endpoint.
  bool read_prompt_field() {
    const Endpoint endpoint = view_.endpoint;
    const bool is_responses = endpoint == Endpoint::kResponses;
    if (key_ == "messages" && !is_responses && endpoint != Endpoint::kCompletions) return read_messages();
    if (key_ == "system" && endpoint == Endpoint::kMessages) return read_system();
    if (key_ == "instructions" && is_responses) return read_system();
    if (key_ == "input" && is_responses)
      return in_.peek() == JsonReader::Type::kText ? read_bare_message() : read_messages();
    if (key_ == "prompt" && endpoint == Endpoint::kCompletions) return read_prompt();
    if (key_ == "input" && endpoint == Endpoint::kEmbeddings) return read_prompt();
    return in_.skip();
  }

  bool read_nullable_text(std::string& out, const char* what) {
    out.clear();
    return in_.take_null() || in_.read_text(out, what);
  }

  bool read_flag(bool& out, const char* what) {
    out = false;
    return in_.take_null() || in_.read_bool(out, what);
  }

  bool read_engine_arguments() {
    view_.asks_full_report = false;
    if (in_.peek() != JsonReader::Type::kObject) return in_.skip();
    if (!in_.begin_object("an object should be here")) return false;
    bool more = false;
    while (in_.next_key(key_, more) && more) {
      if (key_ == kReportMode) view_.asks_full_report = true;
      if (!in_.skip()) return false;
    }
    return in_.fault() == nullptr;
  }

  bool read_presence(bool& out) {
    out = in_.peek() != JsonReader::Type::kNull;
    return in_.skip();
  }

  bool read_choice(std::optional<bool>& out) {
    out.reset();
    if (in_.take_null()) return true;
    bool value = false;
    if (!in_.read_bool(value, "true or false should be here")) return false;
    out = value;
    return true;
  }

  // Whether a limit makes sense is for the engine to say: one that is no integer counts as none.
  bool read_limit(std::uint64_t& out) {
    out = 0;
    if (in_.take_null()) return true;
    if (in_.peek() != JsonReader::Type::kNumber) return in_.fail("a number of tokens should be here");
    JsonReader ahead = in_;
    if (!ahead.read_unsigned(out, UINT64_MAX, "")) return in_.skip();
    in_ = ahead;
    return true;
  }

  bool read_slice(JsonSlice& out, JsonReader::Type type, const char* what) {
    out = {};
    if (in_.take_null()) return true;
    return in_.peek() == type ? skip_into(out) : in_.fail(what);
  }

  bool skip_into(JsonSlice& out) {
    in_.peek();
    const std::size_t begin = in_.offset();
    if (!in_.skip()) return false;
    out = {begin, in_.offset()};
    return true;
  }

  // An empty list is no tools.
  bool read_tools() {
    view_.tools = {};
    if (in_.take_null()) return true;
    if (in_.peek() != JsonReader::Type::kArray) return in_.fail("`tools` should be a list");
    JsonReader ahead = in_;
    bool more = false;
    if (ahead.begin_array("") && ahead.next_item(more) && !more) {
      in_ = ahead;
      return true;
    }
    return skip_into(view_.tools);
  }

  bool read_rewriting(RewritingField field) {
    rewritten_ = in_.peek() == JsonReader::Type::kNull ? rewritten_ & ~field : rewritten_ | field;
    return in_.skip();
  }

  bool read_stream_options() {
    view_.stream_usage = false;
    if (in_.take_null()) return true;
    if (!in_.begin_object("`stream_options` should be an object")) return false;
    bool more = false;
    while (in_.next_key(key_, more) && more) {
      const bool is_usage = key_ == "include_usage";
      if (is_usage ? !read_flag(view_.stream_usage, "`include_usage` should be true or false") : !in_.skip())
        return false;
    }
    return in_.fault() == nullptr;
  }

  bool read_system() {
    system_ = {};
    if (in_.take_null()) return true;
    JsonSlice content;
    if (!read_content(system_, content)) return false;
    system_.messages.push_back(content);
    return true;
  }

  bool read_bare_message() {
    conversation_ = {};
    return skip_into(conversation_.messages.emplace_back());
  }

  bool read_messages() {
    conversation_ = {};
    if (in_.take_null()) return true;
    if (!in_.begin_array("a list of messages should be here")) return false;
    bool more = false;
    while (in_.next_item(more) && more)
      if (!read_message()) return false;
    return in_.fault() == nullptr;
  }

  bool read_message() {
    in_.peek();
    const std::size_t begin = in_.offset();
    if (!in_.begin_object("a message should be an object")) return false;
    PromptField content;
    bool has_role = false;
    bool has_type = false;  // other than "message"
    bool more = false;
    while (in_.next_key(key_, more) && more) {
      bool good = true;
      if (key_ == "content") {
        content = {};
        JsonSlice unused;
        good = in_.take_null() || read_content(content, unused);
      } else if (key_ == "type" && in_.peek() == JsonReader::Type::kText) {
        good = in_.read_text(text_, "");
        has_type = text_ != "message";
      } else {
        if (key_ == "role") has_role = true;
        good = in_.skip();
      }
      if (!good) return false;
    }
    if (in_.fault() != nullptr) return false;
    conversation_.messages.push_back({begin, in_.offset()});
    if (content.has_media) conversation_.has_media = true;
    if (content.is_rewritten) conversation_.is_rewritten = true;
    // Items of /v1/responses that are no messages: calls, their outputs, reasoning, references.
    if (view_.endpoint == Endpoint::kResponses && (has_type || !has_role)) conversation_.is_rewritten = true;
    return true;
  }

  // A text, or a list of parts.
  bool read_content(PromptField& field, JsonSlice& slice) {
    if (in_.peek() == JsonReader::Type::kText) return skip_into(slice);
    slice.begin = in_.offset();
    if (!in_.begin_array("content should be a text or a list of parts")) return false;
    std::size_t parts = 0;
    bool more = false;
    for (; in_.next_item(more) && more; ++parts)
      if (!read_part(field)) return false;
    slice.end = in_.offset();
    // The engine joins the parts of /v1/messages in its own way; a single one stays what it is.
    if (view_.endpoint == Endpoint::kMessages && parts != 1) field.is_rewritten = true;
    return in_.fault() == nullptr;
  }

  // Nested content, as of tool results, is read by recursion, which the depth of the reader bounds.
  bool read_part(PromptField& field) {
    if (in_.peek() == JsonReader::Type::kText) return in_.skip();
    if (!in_.begin_object("a part of a message should be an object or a text")) return false;
    PromptField inner;
    std::string type;
    bool has_text = false;
    bool has_media_key = false;
    bool more = false;
    while (in_.next_key(key_, more) && more) {
      bool good = true;
      if (key_ == "type") {
        good = read_nullable_text(type, "`type` of a part should be a text");
      } else if (key_ == "content") {
        inner = {};
        const JsonReader::Type next = in_.peek();
        JsonSlice unused;
        good = next == JsonReader::Type::kArray ? read_content(inner, unused) : in_.skip();
      } else {
        has_text = has_text || key_ == "text";
        has_media_key = has_media_key || is_media(key_);
        good = in_.skip();
      }
      if (!good) return false;
    }
    if (in_.fault() != nullptr) return false;
    const bool is_text = type == "text" || type == "input_text" || type == "output_text" ||
                         type == "refusal" || (type.empty() && has_text && !has_media_key);
    const bool is_block = type == "tool_use" || type == "tool_result" || type == "thinking" ||
                          type == "redacted_thinking" || type == "tool_reference";
    if (is_block) field.is_rewritten = true;
    if (inner.has_media || (!is_text && !is_block)) field.has_media = true;
    return true;
  }

  static bool is_media(std::string_view key) {
    constexpr std::array<std::string_view, 7> kKeys = {
        "image_url", "audio_url", "video_url", "input_audio", "image_embeds", "image", "source"};
    return std::ranges::find(kKeys, key) != kKeys.end();
  }

  // A text, a list of token ids, a list of texts, or a list of lists of token ids.
  bool read_prompt() {
    view_.prompt = {};
    view_.prompt_tokens.reset();
    view_.prompts = 1;
    if (in_.take_null()) return true;
    if (in_.peek() == JsonReader::Type::kText) return skip_into(view_.prompt);
    if (!in_.begin_array("a prompt should be a text or a list")) return false;
    const JsonReader::Type type = in_.peek();
    if (type != JsonReader::Type::kText && type != JsonReader::Type::kArray) {
      return read_tokens(view_.prompt_tokens.emplace());
    }
    std::uint32_t prompts = 0;
    bool more = false;
    for (; in_.next_item(more) && more; ++prompts) {
      if (in_.peek() != type) return in_.fail("the prompts of a list should all be texts, or all be lists");
      if (type == JsonReader::Type::kText) {
        if (!skip_into(view_.prompt)) return false;
      } else {
        std::vector<tokens::Token>& ids = prompts == 0 ? view_.prompt_tokens.emplace() : other_tokens_;
        ids.clear();
        if (!in_.begin_array("") || !read_tokens(ids)) return false;
      }
    }
    view_.prompts = std::max(1u, prompts);
    if (prompts > 1) {
      view_.prompt = {};
      view_.prompt_tokens.reset();
    }
    return in_.fault() == nullptr;
  }

  // Requires: the array is open.
  bool read_tokens(std::vector<tokens::Token>& out) {
    if (in_.read_numbers(out, "a token id, from 0 to 4294967295, should be here", kMostTokenIds)) return true;
    view_.is_too_long = out.size() >= kMostTokenIds;
    if (view_.is_too_long) {
      view_.prompt_tokens.reset();
      other_tokens_ = {};
    }
    return false;
  }

  JsonReader in_;
  std::string key_;
  std::string text_;
  std::uint64_t max_tokens_ = 0;
  std::uint64_t max_output_tokens_ = 0;
  PromptField system_;
  PromptField conversation_;
  bool has_embeds_ = false;
  bool has_prompt_logprobs_ = false;
  bool has_logprobs_ = false;
  bool echoes_ = false;
  unsigned rewritten_ = 0;
  std::vector<tokens::Token> other_tokens_;
  RequestView view_;
};

}  // namespace

std::string_view render_path(Endpoint endpoint) noexcept {
  switch (endpoint) {
    case Endpoint::kChat:
      return "/v1/chat/completions/render";
    case Endpoint::kCompletions:
      return "/v1/completions/render";
    case Endpoint::kResponses:
      return "/v1/responses/render";
    case Endpoint::kMessages:
      return "/v1/messages/render";
    default:
      return {};
  }
}

Endpoint endpoint_of(std::string_view method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  for (const EndpointPath& known : kEndpointPaths)
    if (known.method == method && known.path == path) return known.endpoint;
  return Endpoint::kOther;
}

std::string_view to_string(Endpoint endpoint) noexcept {
  for (const EndpointPath& known : kEndpointPaths)
    if (known.endpoint == endpoint) return known.name;
  return "other";
}

Result<RequestView> read_request(Endpoint endpoint, std::string_view body) {
  Result<RequestView> view = RequestBodyReader(endpoint, body).read();
  // Of other endpoints the fields are not known.
  if (view && endpoint == Endpoint::kOther) view->asks_full_report = body.find(kReportMode) != body.npos;
  ASHLAR_DCHECK(!view || !view->asks_full_report || body.size() > kReportMode.size(),
                "a body of %zu bytes asks for a report", body.size());
  return view;
}

}  // namespace ashlar::service
