// FeedAddress: a feed as a user writes it: kind:place?option=value&option=value.
//
// Its errors show shown(), never an option value that may be a secret.
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
  // Errors: kInvalidArgument, naming the missing part.
  static Result<FeedAddress> parse(std::string_view text);

  const std::string& kind() const noexcept { return kind_; }
  // The kind as errors may show it: an address without one may begin with a login.
  std::string shown_kind() const { return kind_.find('@') == std::string::npos ? kind_ : "..."; }
  const std::string& place() const noexcept { return place_; }
  // Kind and place, as errors may show them: without login and options.
  const std::string& shown() const noexcept { return shown_; }

  // The value of an option, or the fallback.
  std::string text(const std::string& option, const std::string& fallback = {}) const;
  Result<std::uint64_t> number(const std::string& option, std::uint64_t fallback) const;
  // A duration in seconds, possibly with a fraction. Errors: kInvalidArgument: not from 0 to kLongestSeconds.
  static constexpr double kLongestSeconds = 1e8;  // some three years
  Result<double> seconds(const std::string& option, double fallback) const;
  // Errors: kInvalidArgument: neither 0, 1, true nor false, nor `also`.
  Result<bool> flag(const std::string& option, std::string_view also = {}) const;

  // Errors: kInvalidArgument: the place holds a user or a password. For feeds on a network.
  Result<void> names_nobody() const;
  // Errors: kInvalidArgument naming an unknown option.
  Result<void> all_used() const;

 private:
  std::string shown_;
  std::string kind_;
  std::string place_;
  std::map<std::string, std::string> options_;
  mutable std::set<std::string> used_;
};

// Removes secrets of an address from a message: the whole address becomes its shown() form, and so do its
// place and its options where they are quoted alone.
void hide_secrets(std::string& message, const std::string& address);
// An argument that may be an address: without a login and without options.
std::string shown_argument(const std::string& argument);

}  // namespace ashlar::apps
