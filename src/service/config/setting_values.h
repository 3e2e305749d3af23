// Texts of settings: durations, sizes and weights, read and written.
//
// Reading returns nullopt for what is no such value, or does not fit; messages are the caller's.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/base/clock.h"

namespace ashlar::service {

// A decimal number without sign, "12" or "0.75", times `scale`; nullopt if digits are left.
std::optional<std::uint64_t> read_decimal(std::string_view text, std::uint64_t scale);
// Digits only, up to `limit`.
std::optional<std::uint64_t> read_number(std::string_view text, std::uint64_t limit);
// "250ms", "5s", "2m", "1h", or a number of seconds.
std::optional<Clock::Duration> read_duration(std::string_view text);
// "64MiB", "512KiB", "1GiB", or a number of bytes.
std::optional<std::uint64_t> read_bytes(std::string_view text);

// In the largest unit that is exact.
std::string show_duration(Clock::Duration duration);
std::string show_bytes(std::uint64_t bytes);
// Thousandths as a decimal: 750 is "0.75".
std::string show_thousandths(std::int32_t thousandths);

}  // namespace ashlar::service
