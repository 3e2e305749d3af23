// The lines of the Prometheus text format, version 0.0.4. Every function appends to `out`.
//
// `labels` is a label set as append_label() renders it, without braces; empty means none.
//
// Thread safety: thread-safe; there is no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ashlar/base/metrics.h"

namespace ashlar::prometheus {

// [a-zA-Z_:][a-zA-Z0-9_:]*
bool is_metric_name(std::string_view name);
// [a-zA-Z_][a-zA-Z0-9_]*, without a leading "__", which Prometheus reserves.
bool is_label_name(std::string_view name);

// name="value", after a comma unless `out` is empty.
void append_label(std::string& out, std::string_view name, std::string_view value);

// The # HELP and # TYPE lines of a family.
void append_header(std::string& out, std::string_view name, std::string_view help, std::string_view type);

void append_sample(std::string& out, std::string_view name, std::string_view labels, std::uint64_t value);
void append_sample(std::string& out, std::string_view name, std::string_view labels, std::int64_t value);
void append_sample(std::string& out, std::string_view name, std::string_view labels, double value);

// The cumulative _bucket lines with +Inf last, then _sum and _count.
void append_histogram(std::string& out, std::string_view name, std::string_view labels,
                      const Histogram& histogram);

}  // namespace ashlar::prometheus
