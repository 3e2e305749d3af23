#include "service/config/setting_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ashlar/base/check.h"
#include "service/config/setting_values.h"
#include "service/config/worker_text.h"

namespace ashlar::service {
namespace {

using enum SettingForm;
using events::StorageTier;

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kDay = 86'400'000 * kMillisecond;
constexpr std::uint64_t kMaxWeight = 1'000'000;  // thousandths: 1000 blocks

template <auto Member>
SettingPlace member_of(ServeOptions& options) {
  return &(options.*Member);
}
template <auto Member>
SettingPlace weight_of(ServeOptions& options) {
  return &(options.weights.*Member);
}
template <StorageTier Tier>
SettingPlace credit_of(ServeOptions& options) {
  return &options.weights.credit[static_cast<std::size_t>(Tier)];
}
SettingPlace no_place(ServeOptions& options) {
  return &options.token;  // never used: kWorkers is handled apart
}

using O = ServeOptions;
constexpr std::array kRows = std::to_array<SettingRow>({
    {"address", kText, member_of<&O::address>, 0, 0,
     "address to listen on; other than loopback it needs a token"},
    {"port", kNumber, member_of<&O::port>, 0, 65'535, "port to listen on; 0: any that is free"},
    {"threads", kNumber, member_of<&O::threads>, 1, 256, "threads that serve connections"},
    {"token", kSecret, member_of<&O::token>, 0, 0,
     "clients and operators send it in x-ashlar-token; other users of the machine can see flags: prefer "
     "token_file"},
    {"token_file", kText, member_of<&O::token_file>, 0, 0, "file that holds the token"},
    {"tls_certificate", kText, member_of<&O::tls_certificate>, 0, 0,
     "PEM file with the certificates to show"},
    {"tls_key", kText, member_of<&O::tls_key>, 0, 0, "PEM file with the key of the certificate"},
    {"worker_authorities", kText, member_of<&O::worker_authorities>, 0, 0,
     "PEM file with the authorities that workers with https are checked against; empty: those of the system"},
    {"worker", kWorkers, no_place, 0, 0,
     "a worker: a URL, then after commas events=, replay=, topic=, dp=, name=, model=, block_size=, scheme=, "
     "salt=, g1=, g2=, g3=, key_file=, key_env="},
    {"worker_file", kText, member_of<&O::worker_file>, 0, 0,
     "TOML file with [[worker]] tables, read again on SIGHUP"},
    {"worker_key", kSecret, member_of<&O::worker_key>, 0, 0,
     "sent to workers with our own questions, as Authorization: Bearer; other users of the machine can see "
     "flags: prefer worker_key_file"},
    {"worker_key_file", kText, member_of<&O::worker_key_file>, 0, 0, "file that holds this key"},
    {"policy", kPolicy, member_of<&O::policy>, 0, 0, "how a worker is chosen"},
    {"credit_device", kWeight, credit_of<StorageTier::kDevice>, 0, kMaxWeight,
     "credit for a block that the worker has in device memory"},
    {"credit_host", kWeight, credit_of<StorageTier::kHost>, 0, kMaxWeight, "in host memory"},
    {"credit_disk", kWeight, credit_of<StorageTier::kDisk>, 0, kMaxWeight, "on a disk"},
    {"credit_external", kWeight, credit_of<StorageTier::kExternal>, 0, kMaxWeight, "in external storage"},
    {"credit_remote", kWeight, credit_of<StorageTier::kRemote>, 0, kMaxWeight, "in another node's memory"},
    {"weight_prefill", kWeight, weight_of<&CostWeights::prefill>, 0, kMaxWeight,
     "cost of a block that is left to compute"},
    {"weight_decode", kWeight, weight_of<&CostWeights::decode>, 0, kMaxWeight,
     "cost of a block of a running request"},
    {"weight_request", kWeight, weight_of<&CostWeights::request>, 0, kMaxWeight, "cost of a running request"},
    {"weight_session", kWeight, weight_of<&CostWeights::session>, 0, kMaxWeight,
     "bonus where the session's last request ran"},
    {"temperature", kWeight, weight_of<&CostWeights::temperature>, 0, kMaxWeight,
     "above 0: choice by chance, as a share of the spread of costs"},
    {"prediction_ttl", kDuration, member_of<&O::prediction_ttl>, 0, kDay,
     "how long a dispatched prompt counts as cached before the worker's events say so"},
    {"fallback_ttl", kDuration, member_of<&O::fallback_ttl>, 0, kDay, "the same at a worker without events"},
    {"max_predicted_blocks", kNumber, member_of<&O::max_predicted_blocks>, 0, 1 << 24,
     "blocks of one prompt that count so at most, from its start"},
    {"max_predictions", kNumber, member_of<&O::max_predictions>, 0, 1 << 28,
     "blocks of one model that count so at a time; the oldest end first"},
    {"seed", kNumber, member_of<&O::seed>, 0, UINT64_MAX, "seed of choices by chance; 0: drawn at the start"},
    {"max_body_bytes", kBytes, member_of<&O::max_body_bytes>, 1024, std::uint64_t{4} << 30,
     "longest body of a request"},
    {"max_all_body_bytes", kBytes, member_of<&O::max_all_body_bytes>, 1024, std::uint64_t{1} << 40,
     "memory for the bodies of all requests; one beyond it is answered 503"},
    {"max_all_reply_bytes", kBytes, member_of<&O::max_all_reply_bytes>, 1024, std::uint64_t{1} << 40,
     "memory for large answers of the router's own that clients have not read; one beyond it is answered "
     "503"},
    {"max_head_bytes", kBytes, member_of<&O::max_head_bytes>, 1024, std::uint64_t{16} << 20,
     "longest head of a request"},
    {"max_connections", kNumber, member_of<&O::max_connections>, 1, 1'000'000,
     "connections of clients at a time"},
    {"max_running", kNumber, member_of<&O::max_running>, 1, 1'000'000,
     "requests at one rank of a worker at a time"},
    {"max_queued", kNumber, member_of<&O::max_queued>, 0, 1'000'000, "requests that wait for a worker"},
    {"queue_timeout", kDuration, member_of<&O::queue_timeout>, 0, kDay, "longest wait for a worker"},
    {"event_patience", kDuration, member_of<&O::event_patience>, 0, kDay,
     "longest wait for events of a prefix that was just computed"},
    {"late_after", kDuration, member_of<&O::late_after>, 100 * kMillisecond, kDay,
     "how late events may be before their worker is DEGRADED"},
    {"full_reports", kFlag, member_of<&O::full_reports>, 0, 0,
     "requests by other ways ask engines for full reports (kv_cache_report_mode) too"},
    {"connect_timeout", kDuration, member_of<&O::connect_timeout>, kMillisecond, kDay,
     "longest wait for a connection to a worker"},
    {"head_timeout", kDuration, member_of<&O::head_timeout>, kMillisecond, kDay,
     "longest wait for the first byte of an answer"},
    {"idle_timeout", kDuration, member_of<&O::idle_timeout>, kMillisecond, kDay,
     "longest silence within an answer"},
    {"drain_timeout", kDuration, member_of<&O::drain_timeout>, 0, kDay,
     "how long running requests may take when the program stops"},
    {"max_attempts", kNumber, member_of<&O::max_attempts>, 1, 100, "workers tried for one request"},
    {"breaker_failures", kNumber, member_of<&O::breaker_failures>, 1, 1'000'000,
     "failures in a row that take a worker out"},
    {"breaker_rest", kDuration, member_of<&O::breaker_rest>, kMillisecond, kDay,
     "how long it stays out before it is tried again"},
    {"health_interval", kDuration, member_of<&O::health_interval>, kMillisecond, kDay,
     "time between two questions for a worker's health"},
    {"tokenize", kFlag, member_of<&O::tokenize>, 0, 0, "ask workers for the tokens of texts"},
    {"token_source", kText, member_of<&O::token_source>, 0, 0,
     "tokenize, render, or auto: /tokenize, and render endpoints for what it cannot say"},
    {"tokenize_timeout", kDuration, member_of<&O::tokenize_timeout>, kMillisecond, kDay,
     "longest wait for these tokens"},
    {"prompt_cache_bytes", kBytes, member_of<&O::prompt_cache_bytes>, 0, std::uint64_t{1} << 40,
     "memory for tokens of earlier prompts"},
    {"receipts", kNumber, member_of<&O::receipts>, 1, 100'000'000, "decisions that can be asked for later"},
    {"receipt_bytes", kBytes, member_of<&O::receipt_bytes>, 64 << 10, std::uint64_t{1} << 40,
     "memory for these decisions: where there are many workers it holds fewer"},
    {"journal", kText, member_of<&O::journal>, 0, 0, "folder for the journal of decisions; empty: none"},
    {"journal_file_bytes", kBytes, member_of<&O::journal_file_bytes>, 4096, std::uint64_t{1} << 40,
     "a file of the journal ends when it is as long, and the next begins"},
    {"journal_kept_bytes", kBytes, member_of<&O::journal_kept_bytes>, 0, std::uint64_t{1} << 50,
     "of all journals in the folder: beyond it the oldest files are removed; 0: all are kept"},
    {"journal_key", kText, member_of<&O::journal_key>, 0, 0,
     "file with the key of its hashes; empty: drawn, and kept in the folder"},
    {"record", kText, member_of<&O::record>, 0, 0, "file for a trace of the traffic; empty: none"},
    {"snapshot", kText, member_of<&O::snapshot>, 0, 0,
     "a dump to start from: a file, or the URL of a peer's /dump"},
    {"log_level", kText, member_of<&O::log_level>, 0, 0, "trace, debug, info, warn, error or off"},
    {"title", kText, member_of<&O::title>, 0, 0,
     "what the page shows at its top, such as the name of a fleet"},
});

std::string_view unit_of(SettingForm form) {
  switch (form) {
    case kText:
    case kSecret:
      return "text";
    case kNumber:
      return "number";
    case kBytes:
      return "bytes: a number, or as 64MiB";
    case kDuration:
      return "duration: seconds, or as 250ms, 5s, 2m, 1h";
    case kWeight:
      return "blocks, with up to three decimals";
    case kFlag:
      return "true or false";
    case kPolicy:
      return "one of prefix, least_loaded, round_robin, random";
    case kWorkers:
      return "worker, as often as there are workers";
  }
  return "";
}

std::string complaint_of(SettingForm form) {
  return "should be " + std::string(unit_of(form));
}

// The number behind a place; 0 for what is none.
std::uint64_t number_at(const SettingPlace& place) {
  return std::visit(
      [](const auto* value) -> std::uint64_t {
        using T = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, Clock::Duration>) {
          return static_cast<std::uint64_t>(value->count());
        } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, bool> ||
                             std::is_same_v<T, Policy>) {
          return 0;
        } else {
          return static_cast<std::uint64_t>(*value);
        }
      },
      place);
}

// Returns whether the number fits.
bool put_number(const SettingPlace& place, std::uint64_t number) {
  return std::visit(
      [number](auto* value) {
        using T = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, Clock::Duration>) {
          *value = Clock::Duration(static_cast<std::int64_t>(number));
        } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, bool> ||
                             std::is_same_v<T, Policy>) {
          return false;
        } else {
          if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return false;
          *value = static_cast<T>(number);
        }
        return true;
      },
      place);
}

std::optional<std::uint64_t> read_number_of(SettingForm form, std::string_view text) {
  switch (form) {
    case kNumber:
      return read_number(text, UINT64_MAX);
    case kBytes:
      return read_bytes(text);
    case kWeight:
      return read_decimal(text, 1000);
    case kDuration: {
      const std::optional<Clock::Duration> duration = read_duration(text);
      if (!duration) return std::nullopt;
      return static_cast<std::uint64_t>(duration->count());
    }
    default:
      return std::nullopt;
  }
}

std::string show_number(SettingForm form, std::uint64_t number) {
  switch (form) {
    case kBytes:
      return show_bytes(number);
    case kDuration:
      return show_duration(Clock::Duration(static_cast<std::int64_t>(number)));
    case kWeight:
      return show_thousandths(static_cast<std::int32_t>(number));
    default:
      return std::to_string(number);
  }
}

bool is_numeric(SettingForm form) {
  return form == kNumber || form == kBytes || form == kDuration || form == kWeight;
}

std::optional<std::string> range_complaint(const SettingRow& row, std::uint64_t number) {
  if (number >= row.least && number <= row.most) return std::nullopt;
  return "should be from " + show_number(row.form, row.least) + " to " + show_number(row.form, row.most);
}

// An address with a user in it, also where its scheme is missing or mistyped. A path from the root is a file.
bool may_have_password(std::string_view text) {
  const std::size_t at = text.find('@');
  if (at == std::string_view::npos || text.starts_with('/') || text.starts_with("./")) return false;
  return text.substr(0, at).find(':') != std::string_view::npos;
}

std::optional<std::string> put_value(const SettingRow& row, ServeOptions& options, std::uint64_t number) {
  if (auto complaint = range_complaint(row, number)) return complaint;
  ASHLAR_CHECK(put_number(row.place(options), number), "the range of a setting fits its place");
  return std::nullopt;
}

}  // namespace

std::span<const SettingRow> setting_rows() {
  return kRows;
}

const SettingRow* find_setting(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &SettingRow::name);
  return found == kRows.end() ? nullptr : &*found;
}

std::optional<std::string> set_value(const SettingRow& row, ServeOptions& options, std::string_view text) {
  ASHLAR_CHECK(row.form != kWorkers, "workers are read as a list");
  if (is_numeric(row.form)) {
    const std::optional<std::uint64_t> number = read_number_of(row.form, text);
    if (!number) return complaint_of(row.form);
    return put_value(row, options, *number);
  }
  const SettingPlace place = row.place(options);
  if (row.form == kPolicy) {
    const Result<Policy> policy = parse_policy(text);
    if (!policy) return complaint_of(row.form);
    *std::get<Policy*>(place) = *policy;
    return std::nullopt;
  }
  if (row.form == kFlag) {
    if (text != "true" && text != "false") return complaint_of(row.form);
    *std::get<bool*>(place) = text == "true";
    return std::nullopt;
  }
  *std::get<std::string*>(place) = text;
  return complaint_about(row, options);
}

std::optional<std::string> set_value(const SettingRow& row, ServeOptions& options, const TomlValue& value) {
  if (const auto* const text = std::get_if<std::string>(&value.value)) {
    if (row.form == kFlag) return complaint_of(row.form) + ", without quotes";
    return set_value(row, options, *text);
  }
  if (const auto* const flag = std::get_if<bool>(&value.value); flag != nullptr && row.form == kFlag) {
    *std::get<bool*>(row.place(options)) = *flag;
    return std::nullopt;
  }
  if (const auto* const number = std::get_if<std::int64_t>(&value.value);
      number != nullptr && is_numeric(row.form))
    return set_value(row, options, std::to_string(*number));
  const auto* const number = std::get_if<double>(&value.value);
  if (number != nullptr && (row.form == kWeight || row.form == kDuration)) {
    const double scaled = *number * (row.form == kWeight ? 1e3 : 1e9);
    if (!(scaled >= 0 && scaled < 9e18) ||
        (row.form == kWeight && std::abs(scaled - std::round(scaled)) > 1e-6))
      return complaint_of(row.form);
    return put_value(row, options, static_cast<std::uint64_t>(std::llround(scaled)));
  }
  return complaint_of(row.form) + ", not " + std::string(value.kind());
}

std::optional<std::string> complaint_about(const SettingRow& row, const ServeOptions& options) {
  // The places of a table of rows are those of changeable options; this only reads.
  const SettingPlace place = row.place(const_cast<ServeOptions&>(options));
  if (is_numeric(row.form)) return range_complaint(row, number_at(place));
  if (row.name == "log_level") {
    constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warn", "error", "off"};
    if (std::ranges::find(kLevels, options.log_level) == kLevels.end())
      return "should be " + std::string(row.help);
  }
  if (row.name == "token_source" && options.token_source != "tokenize" && options.token_source != "render" &&
      options.token_source != "auto")
    return "should be tokenize, render or auto";
  const auto* const text = std::get_if<std::string*>(&place);
  if (text == nullptr || row.form == kWorkers) return std::nullopt;
  if (row.form == kSecret) {
    const auto is_visible = [](char c) { return c > ' ' && c < 0x7F; };
    if (!std::ranges::all_of(**text, is_visible) || (*text)->size() > 4096)
      return "should be at most 4096 visible ASCII characters, without spaces";
    return std::nullopt;
  }
  if ((*text)->find('\0') != std::string::npos) return "should have no zero bytes";
  if (row.name == "snapshot" && may_have_password(**text)) return "should have no user or password";
  return std::nullopt;
}

std::string show_value(const SettingRow& row, const ServeOptions& options) {
  if (row.form == kWorkers) return "";
  const SettingPlace place = row.place(const_cast<ServeOptions&>(options));
  if (is_numeric(row.form)) return show_number(row.form, number_at(place));
  if (row.form == kFlag) return *std::get<bool*>(place) ? "true" : "false";
  if (row.form == kPolicy) return std::string(to_string(*std::get<Policy*>(place)));
  const std::string& text = *std::get<std::string*>(place);
  return row.form == kSecret && !text.empty() ? "(hidden)" : text;
}

std::string show_toml_value(const SettingRow& row, const ServeOptions& options) {
  const std::string text = show_value(row, options);
  const bool is_bare = row.form == kFlag || row.form == kNumber || row.form == kWeight;
  // TOML has no integers above 2^63 - 1; a seed may be one.
  return is_bare && text.size() < 19 ? text : quote_toml(text);
}

std::span<const Setting> serve_settings() {
  static const std::vector<Setting> settings = [] {
    static const std::vector<std::string> standards = [] {
      std::vector<std::string> out;
      for (const SettingRow& row : kRows) out.push_back(show_value(row, ServeOptions{}));
      return out;
    }();
    std::vector<Setting> out;
    for (std::size_t i = 0; i < kRows.size(); ++i)
      out.push_back(
          {kRows[i].name, unit_of(kRows[i].form), standards[i], kRows[i].help, kRows[i].form == kSecret});
    return out;
  }();
  return settings;
}

}  // namespace ashlar::service
