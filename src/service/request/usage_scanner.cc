// A machine that takes byte after byte. JSON is followed only as far as the way to the usage needs it:
//
//   {"usage": {"prompt_tokens": n, "prompt_tokens_details": {"cached_tokens": n}}}
//   {"message" or "response": {"usage": …}}                                        in events only
//
// Objects on that way have a role; inside any other container only depth and texts are followed. So a "usage"
// inside a text, a list or another object is never taken for one.
#include "service/request/usage_scanner.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::service {
namespace {

constexpr std::string_view kDataField = "data:";
constexpr std::string_view kDoneMark = "[DONE]";

// Where the first of two bytes stands, or the end. Eight bytes at a time: a byte of x is zero where
// (x - ones) & ~x has its high bit; a borrow may mark one above such a byte too, never without one.
std::size_t find_either(std::string_view text, char one, char other) {
  constexpr std::uint64_t kOnes = 0x0101'0101'0101'0101u;
  std::size_t at = 0;
  for (; text.size() - at >= 8; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof(word));
    const std::uint64_t first = word ^ (kOnes * static_cast<unsigned char>(one));
    const std::uint64_t second = word ^ (kOnes * static_cast<unsigned char>(other));
    if (((((first - kOnes) & ~first) | ((second - kOnes) & ~second)) & (kOnes * 0x80)) != 0) break;
  }
  while (at < text.size() && text[at] != one && text[at] != other) ++at;
  return at;
}

// Whether a JSON value without escapes cannot have a usage but null.
bool has_no_usage(std::string_view json) {
  constexpr std::string_view kKey = "usage";
  for (std::size_t at = 0; (at = json.find(kKey, at)) != std::string_view::npos;) {
    at += kKey.size();
    std::string_view value = json.substr(at);
    if (!value.starts_with("\":")) return false;
    value.remove_prefix(2);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (!value.starts_with("null")) return false;
  }
  return true;
}

bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

UsageScanner::UsageScanner(std::string_view content_type, bool wants_id)
    : form_(Form::kNeither), wants_id_(wants_id) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  if (type == "text/event-stream") form_ = Form::kEvents;
  if (type.ends_with("/json") || type.ends_with("+json")) form_ = Form::kJson;
}

void UsageScanner::feed(std::string_view bytes) {
  if (form_ == Form::kJson) json(bytes);
  if (form_ == Form::kEvents) feed_events(bytes);
}

void UsageScanner::finish() {
  if (form_ != Form::kEvents) return;
  if (has_line_) end_line();
  end_event();
}

// ---- events
// ------------------------------------------------------------------------------------------------

void UsageScanner::feed_events(std::string_view bytes) {
  while (!bytes.empty()) {
    if (const std::size_t event = plain_event(bytes); event != 0) {
      bytes.remove_prefix(event);
      continue;
    }
    const char c = bytes.front();
    if (c == '\n' || c == '\r') {
      // The line feed of CR LF ends nothing: the CR did.
      if (c == '\r' || !was_return_) has_line_ ? end_line() : end_event();
      was_return_ = c == '\r';
      bytes.remove_prefix(1);
      continue;
    }
    was_return_ = false;
    has_line_ = true;
    std::size_t taken = 1;
    switch (line_) {
      case Line::kName:
        if (c != kDataField[name_size_]) {
          line_ = Line::kIgnored;
        } else if (++name_size_ == kDataField.size()) {
          line_ = Line::kSpace;
        }
        break;
      case Line::kSpace:
        line_ = Line::kData;
        if (c != ' ') taken = 0;
        break;
      case Line::kData:
        taken = find_either(bytes, '\r', '\n');
        data(bytes.substr(0, taken));
        break;
      case Line::kIgnored:
        taken = find_either(bytes, '\r', '\n');
        break;
    }
    bytes.remove_prefix(taken);
  }
}

// Most events have nothing that is looked for, and come whole: one line of data, without escapes, in which
// no usage can be. Returns the bytes of such an event, which is counted; 0: another one, or a part.
std::size_t UsageScanner::plain_event(std::string_view bytes) {
  constexpr std::string_view kStart = "data: ";
  const bool is_between = line_ == Line::kName && !has_line_ && !has_data_ && !was_return_;
  if (!is_between || (wants_id_ && !has_id_) || !bytes.starts_with(kStart)) return 0;
  const std::size_t end = bytes.find('\n');
  if (end >= bytes.size() - 1 || bytes[end + 1] != '\n') return 0;
  const std::string_view text = bytes.substr(kStart.size(), end - kStart.size());
  if (text.find('\r') != std::string_view::npos || text.find('\\') != std::string_view::npos ||
      !has_no_usage(text))
    return 0;
  ASHLAR_DCHECK(at_ == At::kStart && name_size_ == 0 && done_size_ == 0, "an event begins anew");
  if (text != kDoneMark) ++events_;
  return end + 2;
}

void UsageScanner::data(std::string_view bytes) {
  for (const char c : bytes.substr(0, kDoneMark.size() + 1)) {
    if (done_size_ > kDoneMark.size()) break;
    const bool agrees = done_size_ < kDoneMark.size() && c == kDoneMark[done_size_];
    done_size_ = agrees ? done_size_ + 1 : kDoneMark.size() + 1;
  }
  json(bytes);
}

// Lines of data of one event are one text, with a line feed between them.
void UsageScanner::end_line() {
  if (line_ == Line::kData || line_ == Line::kSpace) {
    if (has_data_) done_size_ = kDoneMark.size() + 1;
    has_data_ = true;
    json("\n");
  }
  line_ = Line::kName;
  name_size_ = 0;
  has_line_ = false;
}

void UsageScanner::end_event() {
  if (has_data_ && done_size_ != kDoneMark.size()) ++events_;
  has_data_ = false;
  done_size_ = 0;
  reset_json();
}

// ---- JSON
// --------------------------------------------------------------------------------------------------

void UsageScanner::reset_json() {
  at_ = At::kStart;
  found_ = {};
  depth_ = 0;
  roles_size_ = 0;
  is_key_ = false;
  is_id_ = false;
}

void UsageScanner::json(std::string_view bytes) {
  while (!bytes.empty() && at_ != At::kDone) {
    if (at_ == At::kText && !is_id_) {  // most of an answer
      const std::size_t plain = find_either(bytes, '"', '\\');
      if (is_key_) add_to_key(bytes.substr(0, plain));
      bytes.remove_prefix(plain);
    } else if (at_ == At::kAfter && depth_ != roles_size_) {
      bytes.remove_prefix(skip_container(bytes));
    }
    if (bytes.empty()) return;
    json_byte(bytes.front());
    bytes.remove_prefix(1);
  }
}

// Inside a container that is not on the way: up to its end, or to a text that does not end here. Returns how
// many bytes were read; the next one is json_byte()'s.
std::size_t UsageScanner::skip_container(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const char c = bytes[at];
    if (c == '"') {
      const std::size_t end = at + 1 + find_either(bytes.substr(at + 1), '"', '\\');
      if (end == bytes.size() || bytes[end] != '"') return at;
      at = end;
    } else if ((c | 0x20) == '{') {  // and [
      ++depth_;
    } else if ((c | 0x20) == '}') {  // and ]
      if (depth_ - 1 == roles_size_) return at;
      --depth_;
    }
    ++at;
  }
  return at;
}

void UsageScanner::json_byte(char c) {
  const bool is_followed = depth_ == roles_size_;  // the innermost container is on the way
  switch (at_) {
    case At::kText:
    case At::kEscape:
    case At::kHex:
      return text_byte(c);
    case At::kNumber:
      if (c >= '0' && c <= '9') {
        const auto digit = static_cast<std::uint64_t>(c - '0');
        is_number_good_ = is_number_good_ && number_ <= (UINT64_MAX - digit) / 10;
        number_ = number_ * 10 + digit;
        return;
      }
      if (c != ',' && c != '}' && c != ']' && !is_json_space(c)) {
        is_number_good_ = false;  // a fraction, an exponent, or no number at all
        return;
      }
      end_number();
      break;
    default:
      break;
  }
  if (is_json_space(c)) return;
  switch (c) {
    case '{':
    case '[':
      return begin_container(c);
    case '}':
    case ']':
      return end_container();
    case '"':
      return begin_text();
    case ':':
      if (is_followed && at_ == At::kColon) at_ = At::kValue;
      return;
    case ',':
      if (is_followed) {
        at_ = At::kKey;
        key_size_ = 0;
      }
      return;
    default:
      break;
  }
  if (depth_ == 0) {
    at_ = At::kDone;  // a bare value has no usage
    return;
  }
  if (!is_followed || at_ != At::kValue) return;  // true, null, or a number of nobody
  at_ = At::kNumber;
  is_number_good_ = c >= '0' && c <= '9';
  number_ = is_number_good_ ? static_cast<std::uint64_t>(c - '0') : 0;
}

void UsageScanner::begin_text() {
  is_key_ = depth_ == roles_size_ && at_ == At::kKey;
  if (depth_ == 0) {
    at_ = At::kDone;
    return;
  }
  if (is_key_) key_size_ = 0;
  is_id_ = wants_id_ && !has_id_ && at_ == At::kValue && depth_ == roles_size_ && key() == "id" &&
           roles_[roles_size_ - 1] == (form_ == Form::kJson ? Role::kTop : Role::kEnvelope);
  if (is_id_) id_.clear();
  at_ = At::kText;
}

void UsageScanner::text_byte(char c) {
  if (at_ == At::kHex) {
    const int value = std::isxdigit(static_cast<unsigned char>(c)) == 0 ? -1
                      : c <= '9'                                        ? c - '0'
                                                                        : (c | 0x20) - 'a' + 10;
    // Characters beyond ASCII are in no key of ours.
    code_ = value < 0 ? 0xFFFF : code_ << 4 | static_cast<std::uint32_t>(value);
    if (++digits_ < 4) return;
    at_ = At::kText;
    const char known = code_ < 0x80 ? static_cast<char>(code_) : '\xFF';
    if (is_key_) add_to_key({&known, 1});
    return;
  }
  if (at_ == At::kEscape) {
    at_ = At::kText;
    if (c == 'u') {
      at_ = At::kHex;
      code_ = 0;
      digits_ = 0;
    } else if (is_key_) {
      add_to_key("\xFF");  // no key of ours has a quote, a slash or a control character
    }
    is_id_ = false;  // nor has an id
    return;
  }
  if (c == '"') return end_text();
  if (c == '\\') {
    at_ = At::kEscape;
  } else if (is_key_) {
    add_to_key({&c, 1});
  } else if (is_id_) {
    id_ += c;
    is_id_ = id_.size() <= kMaxId;
  }
}

void UsageScanner::add_to_key(std::string_view text) {
  if (key_size_ + text.size() <= kMaxKey) std::ranges::copy(text, key_.begin() + key_size_);
  key_size_ = std::min(key_size_ + text.size(), kMaxKey + 1);
}

void UsageScanner::end_text() {
  if (std::exchange(is_id_, false)) has_id_ = true;
  at_ = is_key_ ? At::kColon : At::kAfter;
  is_key_ = false;
}

void UsageScanner::begin_container(char c) {
  std::optional<Role> role;
  if (c == '{' && depth_ == 0) role = Role::kTop;
  if (c == '{' && depth_ != 0 && depth_ == roles_size_ && at_ == At::kValue) {
    const Role outer = roles_[roles_size_ - 1];
    const bool holds_usage = outer == Role::kTop || outer == Role::kEnvelope;
    if (holds_usage && key() == "usage") role = Role::kUsage;
    if (outer == Role::kTop && form_ == Form::kEvents && (key() == "message" || key() == "response"))
      role = Role::kEnvelope;
    if (outer == Role::kUsage && (key() == "prompt_tokens_details" || key() == "input_tokens_details"))
      role = Role::kDetails;
  }
  if (depth_ == 0 && !role) {
    at_ = At::kDone;
    return;
  }
  ++depth_;
  at_ = At::kAfter;
  if (!role) return;
  ASHLAR_DCHECK(roles_size_ < kMaxRoles, "the way to the details of a usage has four objects");
  roles_[roles_size_++] = *role;
  if (role == Role::kUsage) {
    beside_ = 0;
    has_input_ = false;
  }
  at_ = At::kKey;
  key_size_ = 0;
}

void UsageScanner::end_container() {
  if (depth_ == 0) {
    at_ = At::kDone;
    return;
  }
  if (depth_ == roles_size_ && roles_[--roles_size_] == Role::kUsage && has_input_) {
    ASHLAR_DCHECK(found_.prompt_tokens.has_value(), "input tokens are prompt tokens");
    *found_.prompt_tokens += beside_;
  }
  --depth_;
  at_ = At::kAfter;
  if (depth_ != 0) return;
  // The value is whole.
  at_ = At::kDone;
  if (found_.prompt_tokens) usage_.prompt_tokens = found_.prompt_tokens;
  if (found_.completion_tokens) usage_.completion_tokens = found_.completion_tokens;
  if (found_.cached_tokens) usage_.cached_tokens = found_.cached_tokens;
}

std::optional<std::uint64_t>* UsageScanner::field_of_key() {
  const Role role = roles_[roles_size_ - 1];
  if (role == Role::kDetails) return key() == "cached_tokens" ? &found_.cached_tokens : nullptr;
  if (role != Role::kUsage) return nullptr;
  if (key() == "prompt_tokens" || key() == "input_tokens") return &found_.prompt_tokens;
  if (key() == "completion_tokens" || key() == "output_tokens") return &found_.completion_tokens;
  return key() == "cache_read_input_tokens" ? &found_.cached_tokens : nullptr;
}

void UsageScanner::end_number() {
  at_ = At::kAfter;
  ASHLAR_DCHECK(roles_size_ > 0, "numbers are read only in objects on the way to the usage");
  if (!is_number_good_) return;
  if (roles_[roles_size_ - 1] == Role::kUsage) {
    if (key() == "input_tokens" || key() == "prompt_tokens") has_input_ = key() == "input_tokens";
    if (key() == "cache_read_input_tokens" || key() == "cache_creation_input_tokens") beside_ += number_;
  }
  if (std::optional<std::uint64_t>* const field = field_of_key()) *field = number_;
}

}  // namespace ashlar::service
