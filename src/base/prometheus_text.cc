#include "base/prometheus_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <type_traits>

namespace ashlar::prometheus {
namespace {

bool is_name(std::string_view name, bool colon_allowed) {
  const auto starts = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon_allowed && c == ':');
  };
  const auto continues = [&](char c) { return starts(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && starts(name.front()) && std::all_of(name.begin(), name.end(), continues);
}

void append_escaped(std::string& out, std::string_view text, bool quotes_too) {
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes_too) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

// Integers in full, doubles in the shortest form that round-trips.
template <class Number>
void append_number(std::string& out, Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) {
      out += std::isnan(number) ? "NaN" : number > 0 ? "+Inf" : "-Inf";
      return;
    }
  }
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  out.append(buffer.data(), end);
}

template <class Number>
void append_line(std::string& out, std::string_view name, std::string_view suffix, std::string_view labels,
                 Number value) {
  out += name;
  out += suffix;
  if (!labels.empty()) {
    out += '{';
    out += labels;
    out += '}';
  }
  out += ' ';
  append_number(out, value);
  out += '\n';
}

}  // namespace

bool is_metric_name(std::string_view name) {
  return is_name(name, true);
}
bool is_label_name(std::string_view name) {
  return is_name(name, false) && !name.starts_with("__");
}

void append_label(std::string& out, std::string_view name, std::string_view value) {
  if (!out.empty()) out += ',';
  out += name;
  out += "=\"";
  append_escaped(out, value, true);
  out += '"';
}

void append_header(std::string& out, std::string_view name, std::string_view help, std::string_view type) {
  out += "# HELP ";
  out += name;
  out += ' ';
  append_escaped(out, help, false);
  out += "\n# TYPE ";
  out += name;
  out += ' ';
  out += type;
  out += '\n';
}

void append_sample(std::string& out, std::string_view name, std::string_view labels, std::uint64_t value) {
  append_line(out, name, "", labels, value);
}
void append_sample(std::string& out, std::string_view name, std::string_view labels, std::int64_t value) {
  append_line(out, name, "", labels, value);
}
void append_sample(std::string& out, std::string_view name, std::string_view labels, double value) {
  append_line(out, name, "", labels, value);
}

void append_histogram(std::string& out, std::string_view name, std::string_view labels,
                      const Histogram& histogram) {
  const Histogram::Snapshot snapshot = histogram.snapshot();
  const auto divisor = static_cast<double>(histogram.divisor());
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < snapshot.buckets.size(); ++i) {
    cumulative += snapshot.buckets[i];
    std::string bound;
    if (i < histogram.bounds().size()) {
      append_number(bound, static_cast<double>(histogram.bounds()[i]) / divisor);
    } else {
      bound = "+Inf";
    }
    std::string bucket(labels);
    append_label(bucket, "le", bound);
    append_line(out, name, "_bucket", bucket, cumulative);
  }
  if (histogram.divisor() == 1) {
    append_line(out, name, "_sum", labels, snapshot.sum);
  } else {
    append_line(out, name, "_sum", labels, static_cast<double>(snapshot.sum) / divisor);
  }
  append_line(out, name, "_count", labels, snapshot.count);
}

}  // namespace ashlar::prometheus
