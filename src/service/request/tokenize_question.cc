#include "service/request/tokenize_question.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "events/json_reader.h"
#include "events/json_writer.h"
#include "feed/block_content.h"

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

bool read_ids(JsonReader& in, std::vector<tokens::Token>& out) {
  return in.begin_array("token ids should be a list") && in.read_numbers(out, "a token id should be here");
}

Error unreadable(std::string_view whose, const JsonReader& in) {
  return make_error(ErrorCode::kCorruption, "the answer of %.*s cannot be read: %s, at byte %zu",
                    static_cast<int>(whose.size()), whose.data(),
                    in.fault() != nullptr ? in.fault() : "it ends too early", in.fault_offset());
}

// {"token_ids": […], "features": {"mm_hashes": {"image": ["…"]}, "mm_placeholders": {"image": [{"offset",
// "length"}]}}, …}
class RenderReader {
 public:
  RenderReader(JsonReader& in, RenderedPrompt& out) : in_(in), out_(out) {}

  bool read() {
    bool has_tokens = false;
    bool more = false;
    if (!in_.begin_object("an object should be here")) return false;
    while (in_.next_key(key_, more) && more) {
      bool good = true;
      if (key_ == "token_ids") {
        has_tokens = true;
        out_.tokens.clear();
        good = read_ids(in_, out_.tokens);
      } else if (key_ == "features") {
        good = in_.take_null() || read_features();
      } else {
        good = in_.skip();
      }
      if (!good) return false;
    }
    if (in_.fault() != nullptr) return false;
    if (!has_tokens || out_.tokens.empty()) return in_.fail("`token_ids` are missing");
    return true;
  }

 private:
  // Of one modality.
  struct Items {
    std::vector<std::uint64_t> numbers;
    std::vector<PromptItem> places;
  };

  bool read_features() {
    std::map<std::string, Items> kinds;
    bool more = false;
    out_.items.clear();
    if (!in_.begin_object("`features` should be an object")) return false;
    while (in_.next_key(key_, more) && more) {
      const bool is_hashes = key_ == "mm_hashes";
      if (!is_hashes && key_ != "mm_placeholders") {
        if (!in_.skip()) return false;
        continue;
      }
      if (!in_.begin_object("an object of modalities should be here")) return false;
      while (in_.next_key(key_, more) && more) {
        Items& items = kinds[key_];
        if (!(is_hashes ? read_hashes(items) : read_places(items))) return false;
      }
      if (in_.fault() != nullptr) return false;
    }
    if (in_.fault() != nullptr) return false;
    for (auto& [kind, items] : kinds) {
      if (items.numbers.size() != items.places.size())
        return in_.fail("every item should have a hash and a place");
      for (std::size_t i = 0; i < items.places.size(); ++i) {
        items.places[i].number = items.numbers[i];
        out_.items.push_back(items.places[i]);
      }
    }
    return true;
  }

  bool read_hashes(Items& items) {
    bool more = false;
    items.numbers.clear();
    if (!in_.begin_array("hashes should be a list")) return false;
    while (in_.next_item(more) && more) {
      if (!in_.read_text(text_, "a hash should be here")) return false;
      items.numbers.push_back(feed::item_number(text_));
    }
    return in_.fault() == nullptr;
  }

  bool read_places(Items& items) {
    bool more = false;
    items.places.clear();
    if (!in_.begin_array("placeholders should be a list")) return false;
    while (in_.next_item(more) && more) {
      PromptItem& place = items.places.emplace_back();
      if (!in_.begin_object("a placeholder should be an object")) return false;
      while (in_.next_key(text_, more) && more) {
        std::uint64_t* const number = text_ == "offset"   ? &place.offset
                                      : text_ == "length" ? &place.length
                                                          : nullptr;
        if (number == nullptr ? !in_.skip() : !in_.read_unsigned(*number, UINT32_MAX, "a number of tokens"))
          return false;
      }
      if (in_.fault() != nullptr) return false;
    }
    return in_.fault() == nullptr;
  }

  JsonReader& in_;
  RenderedPrompt& out_;
  std::string key_;
  std::string text_;
};

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
                         std::size_t second, bool add_generation_prompt, bool continue_final_message,
                         std::string_view stand_in) {
  ASHLAR_CHECK(first <= second && second <= view.messages.size(), "messages are left out of the middle only");
  ASHLAR_DCHECK(stand_in.empty() || first > 0, "a stand-in takes the place of a message that is asked");
  std::string messages = "[";
  messages += stand_in;
  for (std::size_t i = stand_in.empty() ? 0 : 1; i < first; ++i) append_message(messages, view, body, i);
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

std::string ask_render(std::string_view body) {
  const std::size_t end = body.find_last_of('}');
  ASHLAR_CHECK(end != std::string_view::npos, "a request with a prompt is an object");
  const std::size_t before = body.find_last_not_of(" \t\r\n", end == 0 ? 0 : end - 1);
  const bool is_empty = before == std::string_view::npos || body[before] == '{';
  constexpr std::string_view kNoTensors = R"("mm_payload":"none"})";
  std::string out;
  out.reserve(end + 1 + kNoTensors.size());
  out += body.substr(0, end);
  if (!is_empty) out += ',';
  return out += kNoTensors;
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
      if (key == "count") {
        std::uint64_t number = 0;
        if (!in.read_unsigned(number, UINT64_MAX, "`count` should be a number")) return false;
        count = number;
      } else if (key != "tokens") {
        if (!in.skip()) return false;
      } else {
        // Each has two characters at least, whatever the count says.
        tokens.emplace().reserve(std::min<std::uint64_t>(count.value_or(0), answer.size() / 2));
        if (!read_ids(in, *tokens)) return false;
      }
    }
    if (in.fault() != nullptr || !in.at_end()) return in.fail("something stands behind the object");
    if (!tokens) return in.fail("`tokens` is missing");
    if (count && *count != tokens->size()) return in.fail("`count` is not the number of tokens");
    return true;
  };
  if (!read()) return unreadable("/tokenize", in);
  tokens->shrink_to_fit();
  return std::move(*tokens);
}

Result<RenderedPrompt> read_render_answer(std::string_view answer) {
  JsonReader in(answer);
  RenderedPrompt prompt;
  bool more = false;
  const auto read = [&] {
    const bool is_list = in.peek() == JsonReader::Type::kArray;
    if (is_list) {
      if (!in.begin_array("") || !in.next_item(more)) return false;
      if (!more) return in.fail("a prompt should be here");
    }
    if (!RenderReader(in, prompt).read()) return false;
    if (is_list) {
      if (!in.next_item(more)) return false;
      if (more) return in.fail("one prompt should be here");
    }
    return in.at_end() || in.fail("something stands behind the prompt");
  };
  if (!read()) return unreadable("a render endpoint", in);
  std::ranges::sort(prompt.items, {}, &PromptItem::offset);
  std::uint64_t end = 0;
  for (const PromptItem& item : prompt.items) {
    if (item.length == 0 || item.offset < end || item.offset > prompt.tokens.size() ||
        item.length > prompt.tokens.size() - item.offset)
      return Error(ErrorCode::kCorruption,
                   "a worker's rendered prompt has items that overlap or lie outside of it");
    end = item.offset + item.length;
  }
  prompt.tokens.shrink_to_fit();
  return prompt;
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

std::uint64_t tail_kind_of(const RequestView& view, std::string_view body, std::size_t prefix) {
  static_assert(kMessageKinds <= 16, "a set of kinds has sixteen bits");
  std::uint64_t middle = 0;
  std::uint64_t tail = 0;
  unsigned last = 0;
  for (std::size_t i = 1; i < view.messages.size(); ++i) {
    last = message_kind(view, body, i);
    (i < prefix ? middle : tail) |= std::uint64_t{1} << last;
  }
  return message_kind(view, body, 0) | middle << 8 | tail << 24 | std::uint64_t{last} << 40;
}

std::string_view stand_in_of(unsigned kind) noexcept {
  if (kind == 0) return R"({"role":"system","content":"."})";
  return kind == 1 ? R"({"role":"user","content":"."})" : std::string_view();
}

}  // namespace ashlar::service
