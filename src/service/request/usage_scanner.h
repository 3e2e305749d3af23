// UsageScanner: reads what an engine reports of a request from the bytes of its answer, as they pass.
//
// A JSON answer has "usage" at its top level; a stream of events has it in one of the last, at the top level
// or inside "message" (Anthropic's message_start) or "response" (the end of a Responses stream). Nothing is
// kept but the usage itself and where in the JSON the next byte stands: memory is O(1), whatever the answer
// is.
//
// How the bytes are split makes no difference. A JSON value counts when it is whole; of two the later one
// wins, field by field, as a stream reports its input first and its output last.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes); events that have nothing of it are passed over at the speed of memchr().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ashlar::service {

struct Usage {
  // All of the prompt: also input_tokens, to which what stands beside it as cache_read_input_tokens and
  // cache_creation_input_tokens is added.
  std::optional<std::uint64_t> prompt_tokens = {};
  std::optional<std::uint64_t> completion_tokens = {};  // also output_tokens
  // prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens, cache_read_input_tokens.
  std::optional<std::uint64_t> cached_tokens = {};

  friend bool operator==(const Usage&, const Usage&) = default;
};

class UsageScanner {
 public:
  // `content_type` of the answer: text/event-stream, or JSON; anything else is not read. `wants_id`: id() is
  // looked for too.
  explicit UsageScanner(std::string_view content_type, bool wants_id = true);

  void feed(std::string_view bytes);
  // The answer has ended. Nothing may be fed afterwards.
  void finish();
  // What was found so far. At the end of the answer call finish() first.
  const Usage& usage() const noexcept { return usage_; }
  // What the answer is called: the "id" of its top level, or in a stream of "response". Empty: not seen yet,
  // or longer than kMaxId.
  std::string_view id() const noexcept { return has_id_ ? std::string_view(id_) : std::string_view(); }
  // Events of a stream so far, [DONE] not counted.
  std::uint64_t events() const noexcept { return events_; }

 private:
  enum class Form : std::uint8_t { kJson, kEvents, kNeither };
  // Where the next byte of a JSON value stands.
  enum class At : std::uint8_t { kStart, kKey, kColon, kValue, kText, kEscape, kHex, kNumber, kAfter, kDone };
  // What an object on the way to the usage is.
  enum class Role : std::uint8_t { kTop, kEnvelope, kUsage, kDetails };
  // Where the next byte of a line of events stands.
  enum class Line : std::uint8_t { kName, kSpace, kData, kIgnored };
  static constexpr std::size_t kMaxKey = 32;  // longer keys are none of ours
  static constexpr std::size_t kMaxRoles = 4;
  static constexpr std::size_t kMaxId = 128;

  void feed_events(std::string_view bytes);
  std::size_t plain_event(std::string_view bytes);
  void end_line();
  void end_event();
  void data(std::string_view bytes);

  void json(std::string_view bytes);
  std::size_t skip_container(std::string_view bytes);
  void json_byte(char c);
  void text_byte(char c);
  void begin_text();
  void end_text();
  void begin_container(char c);
  void end_container();
  void end_number();
  void reset_json();
  void add_to_key(std::string_view text);
  std::string_view key() const { return {key_.data(), key_size_ <= kMaxKey ? key_size_ : 0}; }
  std::optional<std::uint64_t>* field_of_key();

  Form form_;
  const bool wants_id_;
  Usage usage_;
  std::uint64_t events_ = 0;

  // Of the JSON value.
  At at_ = At::kStart;
  Usage found_;               // in this value, which has not ended yet
  std::uint64_t beside_ = 0;  // of its usage: prompt tokens that input_tokens does not count
  bool has_input_ = false;    // its usage counts by input_tokens
  std::uint64_t depth_ = 0;   // open containers; the first `roles_size_` of them are on the way to the usage
  std::array<Role, kMaxRoles> roles_ = {};
  std::size_t roles_size_ = 0;
  std::array<char, kMaxKey> key_ = {};
  std::size_t key_size_ = 0;  // kMaxKey + 1: too long, or no key of ours
  bool is_key_ = false;       // the open text is a key of an object on the way
  bool is_id_ = false;        // the open text is the answer's id
  bool has_id_ = false;
  std::string id_;
  std::uint32_t code_ = 0;  // of \uXXXX, and how many digits of it are known
  unsigned digits_ = 0;
  std::uint64_t number_ = 0;
  bool is_number_good_ = false;

  // Of the stream of events.
  Line line_ = Line::kName;
  std::size_t name_size_ = 0;  // bytes of the line so far that agree with "data:"
  bool was_return_ = false;    // the last byte ended a line by CR: a line feed belongs to it
  bool has_data_ = false;
  bool has_line_ = false;      // the line has a byte
  std::size_t done_size_ = 0;  // bytes of the data that agree with "[DONE]"; one more if they do not
};

}  // namespace ashlar::service
