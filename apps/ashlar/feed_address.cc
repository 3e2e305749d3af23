#include "apps/ashlar/feed_address.h"

#include <charconv>
#include <cstdlib>

namespace ashlar::apps {

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

}  // namespace ashlar::apps
