#include "apps/ashlar/feed_address.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <system_error>

#include "ashlar/base/log.h"

namespace ashlar::apps {
namespace {

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  if (what.empty()) return;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

bool may_be_secret(std::string option) {
  std::ranges::transform(option, option.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(std::initializer_list<const char*>{"key", "seed", "pass", "pwd", "token",
                                                                "secret", "cred", "auth", "jwt"},
                             [&](const char* part) { return option.find(part) != std::string::npos; });
}

// An address split into its parts. Anything after '?' may be a secret not written as an option.
struct Cut {
  std::string_view kind;
  std::string_view slashes;
  std::string_view place;
  std::string_view options;
};

Cut cut(std::string_view text) {
  Cut out;
  const std::size_t question = std::min(text.find('?'), text.size());
  out.options = text.substr(question);
  text = text.substr(0, question);
  const std::size_t colon = std::min(text.find(':'), text.size());
  out.kind = text.substr(0, colon);
  text.remove_prefix(std::min(colon + 1, text.size()));
  if (text.starts_with("//")) {
    out.slashes = text.substr(0, 2);
    text.remove_prefix(2);
  }
  out.place = text;
  return out;
}

bool is_path(std::string_view kind) {
  return kind == "file" || kind == "kvrec";
}

// Whether the address may contain a login, even one with a '?' in its password. Paths keep their '@'.
bool may_hold_login(std::string_view text) {
  return !is_path(cut(text).kind) && text.find('@') != std::string_view::npos;
}

// Kind and place without a login and without options.
std::string shown_form(std::string_view text) {
  const Cut parts = cut(text);
  if (!may_hold_login(text)) {
    const std::string_view shown = text.substr(0, text.size() - parts.options.size());
    return printable(shown);
  }
  const std::string_view behind = text.substr(text.rfind('@'));
  const std::string kind = parts.kind.find('@') == std::string_view::npos && parts.kind.size() < text.size()
                               ? std::string(parts.kind) + ":" + std::string(parts.slashes)
                               : std::string();
  return printable(kind + "..." + std::string(behind.substr(0, behind.find('?'))));
}

}  // namespace

Result<FeedAddress> FeedAddress::parse(std::string_view text) {
  const Cut parts = cut(text);
  const std::string shown = shown_form(text);
  if (parts.kind.empty() || parts.kind.size() == text.size() || text[parts.kind.size()] != ':')
    return make_error(ErrorCode::kInvalidArgument,
                      "'%s' is no feed; write kind:place, for example file:events.ashlar", shown.c_str());
  if (parts.place.empty())
    return make_error(ErrorCode::kInvalidArgument, "'%s' has no address after its kind", shown.c_str());
  FeedAddress out;
  out.shown_ = shown;
  out.kind_ = parts.kind;
  out.place_ = parts.place;
  std::string_view left = parts.options;
  while (!left.empty()) {
    left.remove_prefix(1);  // '?' or '&'
    const std::string_view one = left.substr(0, left.find('&'));
    left.remove_prefix(one.size());
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0)
      return make_error(ErrorCode::kInvalidArgument, "%s: option %zu is not option=value", shown.c_str(),
                        out.options_.size() + 1);
    out.options_[std::string(one.substr(0, equals))] = one.substr(equals + 1);
  }
  return out;
}

std::string FeedAddress::text(const std::string& option, const std::string& fallback) const {
  used_.insert(option);
  const auto at = options_.find(option);
  return at == options_.end() ? fallback : at->second;
}

Result<std::uint64_t> FeedAddress::number(const std::string& option, std::uint64_t fallback) const {
  const std::string value = text(option);
  if (value.empty()) return fallback;
  std::uint64_t out = 0;
  const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (failed != std::errc() || end != value.data() + value.size())
    return make_error(ErrorCode::kInvalidArgument, "%s: '%s' of %s is no number", shown().c_str(),
                      printable(value).c_str(), option.c_str());
  return out;
}

Result<double> FeedAddress::seconds(const std::string& option, double fallback) const {
  const std::string value = text(option);
  if (value.empty()) return fallback;
  double out = 0;
  const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (failed != std::errc() || end != value.data() + value.size() || !(out >= 0 && out <= kLongestSeconds))
    return make_error(ErrorCode::kInvalidArgument, "%s: '%s' of %s is no time from 0 to %.0f seconds",
                      shown().c_str(), printable(value).c_str(), option.c_str(), kLongestSeconds);
  return out;
}

Result<bool> FeedAddress::flag(const std::string& option, std::string_view also) const {
  const std::string value = text(option, "0");
  if (value == "1" || value == "true" || (!also.empty() && value == also)) return true;
  if (value == "0" || value == "false") return false;
  return make_error(ErrorCode::kInvalidArgument, "%s: '%s' of %s is neither 0 nor 1%s%.*s", shown().c_str(),
                    printable(value).c_str(), option.c_str(), also.empty() ? "" : " nor ",
                    static_cast<int>(also.size()), also.data());
}

Result<void> FeedAddress::names_nobody() const {
  if (place_.find('@') == std::string::npos) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "%s: an address takes no user and no password, which others may read; '%s' feeds that have "
      "a login say in --help where it goes",
      shown().c_str(), kind_.c_str());
}

Result<void> FeedAddress::all_used() const {
  for (const auto& [option, value] : options_)
    if (!used_.contains(option))
      return make_error(ErrorCode::kInvalidArgument, "%s: '%s' is not an option of '%s' feeds here",
                        shown().c_str(), printable(option).c_str(), kind_.c_str());
  return {};
}

std::string shown_argument(const std::string& argument) {
  return shown_form(argument);
}

void hide_secrets(std::string& message, const std::string& address) {
  const Cut parts = cut(address);
  const std::string shown = shown_form(address);
  if (shown != address) replace_all(message, address, shown + (parts.options.empty() ? "" : "?..."));
  if (may_hold_login(address)) replace_all(message, std::string(parts.place), "...");
  std::string_view left = parts.options;
  while (!left.empty()) {
    left.remove_prefix(1);
    const std::string_view one = left.substr(0, left.find('&'));
    left.remove_prefix(one.size());
    const std::size_t equals = std::min(one.find('='), one.size());
    const std::string value(one.substr(std::min(equals + 1, one.size())));
    if (equals == one.size()) {
      replace_all(message, "'" + std::string(one) + "'", "'...'");
    } else if (value.size() > 3 && may_be_secret(std::string(one.substr(0, equals)))) {
      replace_all(message, value, "...");
    }
  }
}

}  // namespace ashlar::apps
