#include "apps/ashlar/feed_address.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace ashlar::apps {
namespace {

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

}  // namespace

Result<FeedAddress> FeedAddress::parse(std::string_view text) {
  FeedAddress out;
  out.text_ = text;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "'%s' is no feed; write kind:place, for example file:events.ashlar", out.text_.c_str());
  out.kind_ = text.substr(0, colon);
  text.remove_prefix(colon + 1);
  if (text.starts_with("//")) text.remove_prefix(2);
  const std::size_t question = text.find('?');
  out.place_ = text.substr(0, question);
  if (out.place_.empty())
    return make_error(ErrorCode::kInvalidArgument, "'%s' says no place behind '%s:'", out.text_.c_str(),
                      out.kind_.c_str());
  if (question == std::string_view::npos) return out;
  text.remove_prefix(question + 1);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('&'), text.size());
    const std::string_view one = text.substr(0, end);
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0)
      return make_error(ErrorCode::kInvalidArgument, "'%s': '%s' is no option=value", out.text_.c_str(),
                        std::string(one).c_str());
    out.options_[std::string(one.substr(0, equals))] = one.substr(equals + 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string FeedAddress::text(const std::string& option, std::string fallback) const {
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
    return make_error(ErrorCode::kInvalidArgument, "%s: %s=%s is no number", text_.c_str(), option.c_str(),
                      value.c_str());
  return out;
}

Result<double> FeedAddress::seconds(const std::string& option, double fallback) const {
  const std::string value = text(option);
  if (value.empty()) return fallback;
  char* end = nullptr;
  const double out = std::strtod(value.c_str(), &end);
  if (*end != '\0' || !(out >= 0))
    return make_error(ErrorCode::kInvalidArgument, "%s: %s=%s is no time in seconds", text_.c_str(),
                      option.c_str(), value.c_str());
  return out;
}

Result<void> FeedAddress::all_used() const {
  for (const auto& [option, value] : options_)
    if (!used_.contains(option))
      return make_error(ErrorCode::kInvalidArgument, "%s: '%s' is no option of '%s' feeds here",
                        text_.c_str(), option.c_str(), kind_.c_str());
  return {};
}

void hide_secrets(std::string& message, const std::string& address) {
  std::string shown = address;
  for (std::size_t from = shown.find('?'); from < shown.size(); from = shown.find('&', from + 1)) {
    const std::size_t equals = std::min(shown.find('=', from), shown.size());
    const std::string option = shown.substr(from, equals - from);
    for (const char* part : {"key", "seed", "pass", "token", "secret", "creds"})
      if (option.find(part) != std::string::npos && equals < shown.size())
        shown.replace(equals + 1, shown.npos, "...");
  }
  const std::size_t slashes = shown.find("//");
  const std::size_t place = slashes == shown.npos ? shown.find(':') + 1 : slashes + 2;
  if (const std::size_t at = address.rfind('@'); at != address.npos && at >= place) {
    const std::size_t kept = std::min(at, shown.size());
    shown.replace(place, kept - place, "...");
  }
  if (shown == address) return;
  replace_all(message, address, shown);
  // An option without a value is quoted by itself.
  for (std::size_t from = address.find('?'); from < address.size(); from = address.find('&', from + 1)) {
    const std::size_t end = std::min(address.find('&', from + 1), address.size());
    const std::string piece = address.substr(from + 1, end - from - 1);
    if (piece.find('=') == piece.npos) replace_all(message, "'" + piece + "'", "'...'");
  }
}

}  // namespace ashlar::apps
