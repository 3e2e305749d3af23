#include "service/config/setting_values.h"

#include <array>
#include <utility>

namespace ashlar::service {
namespace {

constexpr std::uint64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr std::array<std::pair<std::string_view, std::uint64_t>, 4> kTimeUnits = {
    {{"h", 3600 * kNanosecondsPerSecond},
     {"m", 60 * kNanosecondsPerSecond},
     {"ms", kNanosecondsPerSecond / 1000},
     {"s", kNanosecondsPerSecond}}};
constexpr std::array<std::pair<std::string_view, std::uint64_t>, 3> kByteUnits = {
    {{"GiB", std::uint64_t{1} << 30}, {"MiB", std::uint64_t{1} << 20}, {"KiB", std::uint64_t{1} << 10}}};
// The longest duration that is read, and that a clock reading can be added to: 10 years.
constexpr std::uint64_t kMaxNanoseconds = 10 * 366 * 24 * 3600 * kNanosecondsPerSecond;
static_assert(kMaxNanoseconds < INT64_MAX / 2, "a clock reading and a duration have a sum");

}  // namespace

std::optional<std::uint64_t> read_decimal(std::string_view text, std::uint64_t scale) {
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  std::string_view rest = point == std::string_view::npos ? std::string_view() : text.substr(point + 1);
  if (whole.empty() || (point != std::string_view::npos && rest.empty())) return std::nullopt;
  const std::optional<std::uint64_t> units = read_number(whole, UINT64_MAX / scale);
  if (!units) return std::nullopt;
  std::uint64_t value = *units * scale;
  std::uint64_t place = scale;
  for (const char c : rest) {
    if (c < '0' || c > '9') return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (place % 10 != 0 && digit != 0) return std::nullopt;  // finer than the scale
    place /= 10;
    if (value > UINT64_MAX - digit * place) return std::nullopt;
    value += digit * place;
  }
  return value;
}

std::optional<std::uint64_t> read_number(std::string_view text, std::uint64_t limit) {
  if (text.empty()) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (value > UINT64_MAX / 10 || value * 10 > UINT64_MAX - digit) return std::nullopt;
    value = value * 10 + digit;
  }
  return value <= limit ? std::optional(value) : std::nullopt;
}

std::optional<Clock::Duration> read_duration(std::string_view text) {
  std::uint64_t scale = kNanosecondsPerSecond;
  for (const auto& [unit, nanoseconds] : kTimeUnits) {
    if (!text.ends_with(unit)) continue;
    scale = nanoseconds;
    text.remove_suffix(unit.size());
    break;
  }
  const std::optional<std::uint64_t> value = read_decimal(text, scale);
  if (!value || *value > kMaxNanoseconds) return std::nullopt;
  return Clock::Duration(static_cast<std::int64_t>(*value));
}

std::optional<std::uint64_t> read_bytes(std::string_view text) {
  for (const auto& [unit, bytes] : kByteUnits)
    if (text.ends_with(unit)) return read_decimal(text.substr(0, text.size() - unit.size()), bytes);
  return read_number(text, UINT64_MAX);
}

std::string show_duration(Clock::Duration duration) {
  if (duration.count() < 0) return std::to_string(duration.count()) + "ns";  // for refusals only
  const auto nanoseconds = static_cast<std::uint64_t>(duration.count());
  if (nanoseconds == 0) return "0s";
  for (const std::string_view name : {"h", "m", "s", "ms"})
    for (const auto& [unit, length] : kTimeUnits)
      if (unit == name && nanoseconds % length == 0)
        return std::to_string(nanoseconds / length) + std::string(unit);
  std::string fraction = std::to_string(nanoseconds % kNanosecondsPerSecond);
  fraction.insert(0, 9 - fraction.size(), '0');
  while (fraction.back() == '0') fraction.pop_back();
  return std::to_string(nanoseconds / kNanosecondsPerSecond) + "." + fraction + "s";
}

std::string show_bytes(std::uint64_t bytes) {
  for (const auto& [unit, size] : kByteUnits)
    if (bytes != 0 && bytes % size == 0) return std::to_string(bytes / size) + std::string(unit);
  return std::to_string(bytes);
}

std::string show_thousandths(std::int32_t thousandths) {
  if (thousandths < 0) return std::to_string(thousandths) + "/1000";  // for refusals only
  std::string out = std::to_string(thousandths / 1000);
  if (thousandths % 1000 == 0) return out;
  std::string fraction = std::to_string(thousandths % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  while (fraction.back() == '0') fraction.pop_back();
  return out + "." + fraction;
}

}  // namespace ashlar::service
