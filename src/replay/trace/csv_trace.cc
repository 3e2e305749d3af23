// Tables of lengths and times: Azure's and BurstGPT's. They name no blocks, so there is nothing to reuse.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "replay/trace/json_fields.h"
#include "replay/trace/line_trace.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {
namespace {

std::string_view trimmed(std::string_view cell) {
  while (!cell.empty() && (cell.front() == ' ' || cell.front() == '"')) cell.remove_prefix(1);
  while (!cell.empty() && (cell.back() == ' ' || cell.back() == '"')) cell.remove_suffix(1);
  return cell;
}

void split(std::string_view line, std::vector<std::string_view>& cells) {
  cells.clear();
  std::size_t begin = 0;
  bool is_quoted = false;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') is_quoted = !is_quoted;
    if (i < line.size() && (line[i] != ',' || is_quoted)) continue;
    cells.push_back(trimmed(line.substr(begin, i - begin)));
    begin = i + 1;
  }
}

std::optional<double> real_in(std::string_view cell) {
  double value = 0;
  const auto parsed = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (cell.empty() || parsed.ec != std::errc() || parsed.ptr != cell.data() + cell.size())
    return std::nullopt;
  if (value < 0 || !(value < 0x1.0p43)) return std::nullopt;
  return value;
}

// Days since 1970-01-01 in the Gregorian calendar: years begin in March, so that the leap day ends them.
std::int64_t days_of(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2;
  const std::int64_t era = year / 400;
  const std::int64_t of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146'097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719'468;
}

// "2023-11-16 18:15:46.6805900", also with a T and with an offset of +00:00 behind it.
std::optional<double> date_in(std::string_view cell) {
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  int used = 0;
  const std::string text(cell);
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[ T]%2d:%2d:%n", &year, &month, &day, &hour, &minute, &used) !=
          5 ||
      used == 0 || year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 || hour > 23 ||
      minute < 0 || minute > 59)
    return std::nullopt;
  std::string_view rest = std::string_view(text).substr(static_cast<std::size_t>(used));
  rest = rest.substr(0, rest.find_first_not_of("0123456789."));
  const auto seconds = real_in(rest);
  if (!seconds || *seconds >= 61) return std::nullopt;
  return static_cast<double>(days_of(year, month, day)) * 86'400 + hour * 3'600 + minute * 60 + *seconds;
}

// Where the columns are that a form needs.
struct Columns {
  std::string_view time;
  std::string_view input;
  std::string_view output;
  std::string_view session;  // empty: none
  bool has_dates = false;
};
constexpr Columns kAzureColumns = {"TIMESTAMP", "ContextTokens", "GeneratedTokens", "", true};
constexpr Columns kBurstColumns = {"Timestamp", "Request tokens", "Response tokens", "Session ID", false};

class CsvTrace final : public LineTrace {
 public:
  CsvTrace(LineSource lines, const TraceOptions& options, TraceFormat format, const Columns& columns)
      : LineTrace(std::move(lines), options, format), columns_(columns) {
    facts_.has_reuse = false;
  }

 private:
  static constexpr std::size_t kMissing = SIZE_MAX;

  Result<void> parse(std::string_view line) override {
    split(line, cells_);
    if (!is_begun_) return read_head();
    const auto time = columns_.has_dates ? date_in(cell(time_)) : real_in(cell(time_));
    if (!time)
      return expected(columns_.has_dates ? "a date and time such as 2023-11-16 18:15:46.680" : "seconds",
                      columns_.time, cell(time_));
    const auto input = real_in(cell(input_));
    if (!input) return expected("a number of tokens", columns_.input, cell(input_));
    const auto output = real_in(cell(output_));
    if (!output) return expected("a number of tokens", columns_.output, cell(output_));
    TraceRequest& request = add();
    request.arrival_ms = static_cast<std::uint64_t>(std::llround(*time * 1'000));
    request.input_tokens = static_cast<std::uint64_t>(*input);
    request.output_tokens = static_cast<std::uint64_t>(*output);
    if (!cell(session_).empty()) request.session = hash_text(cell(session_));
    return {};
  }

  Result<void> read_head() {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (cells_[i] == columns_.time) time_ = i;
      if (cells_[i] == columns_.input) input_ = i;
      if (cells_[i] == columns_.output) output_ = i;
      if (!columns_.session.empty() && cells_[i] == columns_.session) session_ = i;
    }
    is_begun_ = true;
    if (time_ != kMissing && input_ != kMissing && output_ != kMissing) return {};
    return Error(ErrorCode::kCorruption, "expected a header with the columns " + std::string(columns_.time) +
                                             ", " + std::string(columns_.input) + " and " +
                                             std::string(columns_.output));
  }

  std::string_view cell(std::size_t at) const { return at < cells_.size() ? cells_[at] : std::string_view(); }
  static Error expected(const char* what, std::string_view column, std::string_view found) {
    return Error(ErrorCode::kCorruption, std::string("expected ") + what + " under " + std::string(column) +
                                             ", found \"" + std::string(found.substr(0, 40)) + "\"");
  }

  const Columns columns_;
  std::vector<std::string_view> cells_;
  std::size_t time_ = kMissing;
  std::size_t input_ = kMissing;
  std::size_t output_ = kMissing;
  std::size_t session_ = kMissing;
  bool is_begun_ = false;
};

}  // namespace

Result<std::unique_ptr<TraceSource>> open_azure(LineSource lines, const TraceOptions& options) {
  return std::unique_ptr<TraceSource>(
      std::make_unique<CsvTrace>(std::move(lines), options, TraceFormat::kAzure, kAzureColumns));
}

Result<std::unique_ptr<TraceSource>> open_burst_gpt(LineSource lines, const TraceOptions& options) {
  return std::unique_ptr<TraceSource>(
      std::make_unique<CsvTrace>(std::move(lines), options, TraceFormat::kBurstGpt, kBurstColumns));
}

}  // namespace ashlar::replay
