// FeedAddress: a feed as a person writes it: kind:place?option=value&option=value.
//
// Thread safety: plain value.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"

namespace ashlar::apps {

class FeedAddress {
 public:
  // Errors: kInvalidArgument with what is missing.
  static Result<FeedAddress> parse(std::string_view text);

  const std::string& kind() const noexcept { return kind_; }
  const std::string& place() const noexcept { return place_; }
  const std::string& text() const noexcept { return text_; }

  // The value of an option, or the fallback.
  std::string text(const std::string& option, std::string fallback = {}) const;
  Result<std::uint64_t> number(const std::string& option, std::uint64_t fallback) const;
  // Of a duration in seconds, possibly with a fraction.
  Result<double> seconds(const std::string& option, double fallback) const;
  bool flag(const std::string& option) const { return text(option, "0") != "0"; }

  // Errors: kInvalidArgument naming an option that nobody asked for.
  Result<void> all_used() const;

 private:
  std::string text_;
  std::string kind_;
  std::string place_;
  std::map<std::string, std::string> options_;
  mutable std::set<std::string> used_;
};

// Shows an address in a message without who logs in, and up to the first option that may be a secret: what follows that may be
// the rest of it.
void hide_secrets(std::string& message, const std::string& address);

}  // namespace ashlar::apps
