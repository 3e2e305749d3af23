// The table of settings: one row each, with its place in ServeOptions. Files, flags, variables, help,
// describe() and validate() are made of it.
//
// Thread safety: free functions; the table is immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ashlar/service/serve_options.h"
#include "service/config/toml_reader.h"

namespace ashlar::service {

// How a value is written. kWorkers has no place: it is a list (ServeConfig).
enum class SettingForm : std::uint8_t {
  kText,
  kSecret,
  kNumber,
  kBytes,
  kDuration,
  kWeight,
  kFlag,
  kPolicy,
  kWorkers
};

using SettingPlace = std::variant<std::string*, std::uint16_t*, std::uint32_t*, std::uint64_t*, std::int32_t*,
                                  bool*, Policy*, Clock::Duration*>;

struct SettingRow {
  std::string_view name;
  SettingForm form;
  SettingPlace (*place)(ServeOptions& options);
  std::uint64_t least;  // of numbers, bytes, nanoseconds and thousandths
  std::uint64_t most;
  std::string_view help;
};

std::span<const SettingRow> setting_rows();
// By the name of the table; nullptr: none.
const SettingRow* find_setting(std::string_view name);

// Sets a value out of a text (of a flag or variable) or out of a file. Returns what is wrong with it, if
// anything is, without the value.
std::optional<std::string> set_value(const SettingRow& row, ServeOptions& options, std::string_view text);
std::optional<std::string> set_value(const SettingRow& row, ServeOptions& options, const TomlValue& value);
// Whether the value is one that is allowed; else what is.
std::optional<std::string> complaint_about(const SettingRow& row, const ServeOptions& options);

// The value as text, without quotes; secrets as "(hidden)".
std::string show_value(const SettingRow& row, const ServeOptions& options);
// The same as a value of TOML.
std::string show_toml_value(const SettingRow& row, const ServeOptions& options);

}  // namespace ashlar::service
