#include "replay/report/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ashlar/base/check.h"
#include "replay/report/number_text.h"

namespace ashlar::replay {
namespace {

constexpr double kWidth = 640;
constexpr double kPlotHeight = 180;
constexpr double kLeft = 56;
constexpr double kTop = 8;
constexpr double kRight = 8;
constexpr double kMostAbove = 1 + 1e-9;  // of the axis, by rounding

// 1, 2 or 5 times a power of ten, not below the value.
double round_up(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0, 10.0})
    if (value <= step * power * (1 + 1e-9)) return step * power;
  return 10 * power;
}

std::string rectangle(double x, double y, double width, double height, std::size_t series,
                      const std::string& tip) {
  return formatted("<rect class=\"s%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">", series, x, y,
                   width, height) +
         "<title>" + escaped(tip) + "</title></rect>";
}

std::string words(double x, double y, const char* anchor, const std::string& text) {
  return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) + escaped(text) +
         "</text>";
}

std::string line(const char* name, double x1, double y1, double x2, double y2) {
  return formatted("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", name, x1, y1, x2,
                   y2);
}

// The end of a column that goes on above the axis, pointing there.
std::string triangle(double x, double y) {
  return formatted("<path class=\"cut\" d=\"M%.1f %.1fh9l-4.5 -7z\"/>", x - 4.5, y + 6);
}

std::string begin_figure(const ChartText& text, const std::vector<ChartSeries>& series, double height,
                         bool is_cut = false) {
  std::string out = "<figure><figcaption>" + escaped(text.title);
  if (!text.unit.empty()) out += " <small>" + escaped(text.unit) + "</small>";
  out += "</figcaption><div class=\"legend\">";
  if (series.size() > 1)
    for (std::size_t i = 0; i < series.size(); ++i)
      out += formatted("<span><i class=\"k%zu\"></i>", i) + escaped(series[i].name) + "</span>";
  if (text.mark) out += "<span><i class=\"dash\"></i>" + escaped(text.mark->first) + "</span>";
  if (!text.marks.empty()) out += "<span><i class=\"dash\"></i>" + escaped(text.marks_name) + "</span>";
  if (is_cut) out += "<span>&#9650; goes on above</span>";
  out += "</div>";
  return out + formatted("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", kWidth, height) +
         escaped(text.title) + "\">";
}

double total_of(const std::vector<ChartSeries>& series, std::size_t at) {
  double total = 0;
  for (const ChartSeries& one : series) total += one.values[at];
  return total;
}

double largest(const ChartText& text, const std::vector<ChartSeries>& series) {
  if (text.most > 0) return text.most;
  double most = text.mark ? text.mark->second : 0;
  for (std::size_t i = 0; i < series.front().values.size(); ++i) most = std::max(most, total_of(series, i));
  return round_up(most);
}

std::string tip_of(const ChartText& text, const ChartSeries& series, std::size_t at) {
  return text.label(at) + " " + series.name + ": " + text.number(series.values[at]);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // A control character has no place in HTML.
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
    }
  }
  return out;
}

std::string column_chart(const ChartText& text, const std::vector<ChartSeries>& series) {
  ASHLAR_CHECK(series.size() > 0 && series.size() <= 6, "a chart has one to six series");
  const std::size_t count = series.front().values.size();
  for (const ChartSeries& one : series)
    ASHLAR_CHECK(one.values.size() == count, "every series has %zu values", count);
  const double most = largest(text, series);
  const double bottom = kTop + kPlotHeight;
  const double step = (kWidth - kLeft - kRight) / static_cast<double>(std::max<std::size_t>(1, count));
  ASHLAR_CHECK(text.marks.empty() || text.marks.size() == count, "a mark for each of %zu columns", count);
  bool is_cut = false;
  for (std::size_t i = 0; i < count; ++i) is_cut |= total_of(series, i) > most * kMostAbove;
  std::string out = begin_figure(text, series, bottom + 22, is_cut);
  for (int i = 0; i <= 4; ++i) {
    const double y = bottom - kPlotHeight * i / 4;
    out += line("grid", kLeft, y, kWidth - kRight, y) +
           words(kLeft - 6, y + 4, "end", text.number(most * i / 4));
  }
  for (std::size_t i = 0; i < count; ++i) {
    double y = bottom;
    for (std::size_t k = 0; k < series.size(); ++k) {
      const double height = std::min(kPlotHeight, kPlotHeight * series[k].values[i] / most);
      if (height < 0.05) continue;
      y -= height;
      out += rectangle(kLeft + step * static_cast<double>(i), y, std::max(0.5, step - 1), height, k,
                       tip_of(text, series[k], i));
    }
    if (total_of(series, i) > most * kMostAbove)
      out += triangle(kLeft + step * (static_cast<double>(i) + 0.5), kTop);
  }
  if (!text.marks.empty()) {
    out += "<polyline class=\"mark\" points=\"";
    for (std::size_t i = 0; i < count; ++i) {
      const double y = bottom - kPlotHeight * std::min(1.0, text.marks[i] / most);
      const double x = kLeft + step * static_cast<double>(i);
      out += formatted("%.1f,%.1f %.1f,%.1f ", x, y, x + step, y);
    }
    out += "\"/>";
  }
  if (text.mark) {
    const double y = bottom - kPlotHeight * std::min(1.0, text.mark->second / most);
    out += line("mark", kLeft, y, kWidth - kRight, y);
  }
  // The label of the first column may be as wide as half of the chart.
  if (count > 0) out += words(kLeft, bottom + 16, "start", text.label(0));
  if (count > 2)
    out += words(kLeft + step * static_cast<double>(count) / 2, bottom + 16, "middle", text.label(count / 2));
  if (count > 1) out += words(kWidth - kRight, bottom + 16, "end", text.label(count - 1));
  return out + "</svg></figure>\n";
}

std::string row_chart(const ChartText& text, const std::vector<ChartSeries>& series) {
  ASHLAR_CHECK(series.size() > 0 && series.size() <= 6, "a chart has one to six series");
  constexpr std::size_t kMostLabels = 24;
  const std::size_t count = series.front().values.size();
  const double most = largest(text, series);
  const double left = 84;
  const bool is_dense = count > kMostLabels;
  const double row = is_dense ? std::max(1.0, 240.0 / static_cast<double>(count)) : 20;
  const double height = kTop + row * static_cast<double>(count) + 22;
  std::string out = begin_figure(text, series, height);
  for (int i = 0; i <= 4; ++i) {
    const double x = left + (kWidth - left - 24) * i / 4;
    out += line("grid", x, kTop, x, height - 20) + words(x, height - 6, "middle", text.number(most * i / 4));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double y = kTop + row * static_cast<double>(i);
    double x = left;
    for (std::size_t k = 0; k < series.size(); ++k) {
      const double width = (kWidth - left - 24) * series[k].values[i] / most;
      if (width < 0.05) continue;
      out += rectangle(x, y + (is_dense ? 0 : 3), width, is_dense ? row : row - 6, k,
                       tip_of(text, series[k], i));
      x += width;
    }
    if (!is_dense) out += words(left - 6, y + row / 2 + 4, "end", text.label(i));
  }
  return out + "</svg></figure>\n";
}

}  // namespace ashlar::replay
