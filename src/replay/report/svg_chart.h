// Charts as SVG: stacked columns over time, and rows of bars.
//
// Colours are classes (s0 to s5, axis, mark), which the page's style gives a light and a dark value.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ashlar::replay {

struct ChartSeries {
  std::string name;
  std::vector<double> values;  // one per column or row
};

struct ChartText {
  std::string title;
  std::string unit;                                         // of the axis
  std::function<std::string(double)> number;                // of the axis and of tips
  std::function<std::string(std::size_t)> label;            // of a column or row
  std::optional<std::pair<std::string, double>> mark = {};  // a dashed line
  // A dashed line with a step per column; its name stands in the legend. Empty: none.
  std::string marks_name = {};
  std::vector<double> marks = {};
  double most = 0;  // of the axis; 0: as the values are
};

// Text for HTML and SVG.
std::string escaped(std::string_view text);

// Columns, the series stacked on each other; one that goes on above the axis ends in a triangle. Requires:
// series of one length, and marks of the same or none.
std::string column_chart(const ChartText& text, const std::vector<ChartSeries>& series);
// Rows, one below the other, the series side by side along each.
std::string row_chart(const ChartText& text, const std::vector<ChartSeries>& series);

}  // namespace ashlar::replay
