#include "service/request/tokenize_question.h"

#include <array>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "events/json_reader.h"
#include "events/json_writer.h"

namespace ashlar::service {
namespace {

using events::JsonReader;

void append_field(std::string& out, std::string_view name, std::string_view json) {
  out += out.empty() ? "{\"" : ",\"";
  out += name;
  out += "\":";
  out += json;
}

void append_slice(std::string& out, std::string_view name, const JsonSlice& slice, std::string_view body) {
  if (!slice.empty()) append_field(out, name, slice.of(body));
}

void append_model(std::string& out, const RequestView& view) {
  if (view.model.empty()) return;
  std::string quoted;
  events::append_quoted(quoted, view.model);
  append_field(out, "model", quoted);
}

std::string_view json_of(bool flag) {
  return flag ? "true" : "false";
}

// The template's arguments; the effort is one of them, which an argument of its name outdoes.
std::string template_arguments_of(const RequestView& view, std::string_view body) {
  std::string_view given = view.template_arguments.of(body);
  if (view.reasoning_effort.empty()) return std::string(given);
  std::string out = "{\"reasoning_effort\":";
  out += view.reasoning_effort.of(body);
  if (given.empty()) return out + "}";
  given.remove_prefix(1);
  if (given.find_first_not_of(" \t\r\n") != given.size() - 1) out += ',';
  return out += given;
}

void append_message(std::string& out, const RequestView& view, std::string_view body, std::size_t i) {
  const std::string_view text = view.messages[i].of(body);
  if (out.back() != '[') out += ',';
  if (text.front() == '{') {
    out += text;
    return;
  }
  out += i == 0 && view.has_system ? R"({"role":"system","content":)" : R"({"role":"user","content":)";
  out += text;
  out += '}';
}

}  // namespace

std::string ask_text(const RequestView& view, std::string_view body) {
  ASHLAR_CHECK(!view.prompt.empty() && view.prompts == 1, "a question is for the text of one prompt");
  std::string out;
  append_model(out, view);
  append_slice(out, "prompt", view.prompt, body);
  if (view.add_special_tokens) append_field(out, "add_special_tokens", json_of(*view.add_special_tokens));
  return out += '}';
}

std::string ask_messages(const RequestView& view, std::string_view body, std::size_t first,
                         std::size_t second, bool add_generation_prompt, bool continue_final_message) {
  ASHLAR_CHECK(first <= second && second <= view.messages.size(), "messages are left out of the middle only");
  std::string messages = "[";
  for (std::size_t i = 0; i < first; ++i) append_message(messages, view, body, i);
  for (std::size_t i = second; i < view.messages.size(); ++i) append_message(messages, view, body, i);
  messages += ']';
  std::string out;
  append_model(out, view);
  append_field(out, "messages", messages);
  append_slice(out, "tools", view.tools, body);
  append_slice(out, "chat_template", view.chat_template, body);
  if (const std::string arguments = template_arguments_of(view, body); !arguments.empty())
    append_field(out, "chat_template_kwargs", arguments);
  append_field(out, "add_generation_prompt", json_of(add_generation_prompt));
  if (continue_final_message) append_field(out, "continue_final_message", "true");
  if (view.add_special_tokens) append_field(out, "add_special_tokens", json_of(*view.add_special_tokens));
  return out += '}';
}

Result<std::vector<tokens::Token>> read_tokenize_answer(std::string_view answer) {
  JsonReader in(answer);
  std::optional<std::vector<tokens::Token>> tokens;
  std::optional<std::uint64_t> count;
  std::string key;
  bool more = false;
  const auto read = [&] {
    if (!in.begin_object("an object should be here")) return false;
    while (in.next_key(key, more) && more) {
      std::uint64_t number = 0;
      if (key == "count") {
        if (!in.read_unsigned(number, UINT64_MAX, "`count` should be a number")) return false;
        count = number;
      } else if (key == "tokens") {
        tokens.emplace();
        if (!in.begin_array("`tokens` should be a list")) return false;
        while (in.next_item(more) && more) {
          if (!in.read_unsigned(number, UINT32_MAX, "a token id should be here")) return false;
          tokens->emplace_back(static_cast<std::uint32_t>(number));
        }
      } else if (!in.skip()) {
        return false;
      }
    }
    if (in.fault() != nullptr || !in.at_end()) return in.fail("something stands behind the object");
    if (!tokens) return in.fail("`tokens` is missing");
    if (count && *count != tokens->size()) return in.fail("`count` is not the number of tokens");
    return true;
  };
  if (!read())
    return make_error(ErrorCode::kCorruption,
                      "a worker's answer to /tokenize cannot be read: %s, at byte %zu", in.fault(),
                      in.fault_offset());
  tokens->shrink_to_fit();
  return std::move(*tokens);
}

unsigned message_kind(const RequestView& view, std::string_view body, std::size_t message) {
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  static_assert(kMessageKinds == 2 * (kRoles.size() + 1), "a role or another, with a plain text or more");
  const std::string_view text = view.messages[message].of(body);
  if (text.front() == '"') return message == 0 && view.has_system ? 0 : 1;
  unsigned role = kRoles.size();
  bool is_plain = text.front() == '{';
  JsonReader in(text);
  std::string key;
  std::string name;
  bool more = false;
  if (is_plain && in.begin_object("")) {
    while (in.next_key(key, more) && more) {
      if (key == "role" && in.peek() == JsonReader::Type::kText && in.read_text(name, "")) {
        role = 0;
        while (role < kRoles.size() && kRoles[role] != name) ++role;
        continue;
      }
      if (key != "content" || in.peek() != JsonReader::Type::kText) is_plain = false;
      if (!in.skip()) break;
    }
  }
  return is_plain ? role : role + static_cast<unsigned>(kRoles.size()) + 1;
}

}  // namespace ashlar::service
