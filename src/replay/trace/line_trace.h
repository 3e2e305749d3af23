// LineTrace: a trace that is read line by line; a form says what its lines mean.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/replay/trace.h"
#include "replay/trace/line_source.h"

namespace ashlar::replay {

class LineTrace : public TraceSource {
 public:
  Result<bool> next(TraceRequest& out) final;
  const TraceFacts& facts() const noexcept final { return facts_; }

 protected:
  LineTrace(LineSource lines, const TraceOptions& options, TraceFormat format)
      : lines_(std::move(lines)), is_lenient_(options.is_lenient) {
    facts_.format = format;
  }

  // Calls add() for each request of the line. Errors: what is wrong, without the place; what was added is
  // dropped.
  virtual Result<void> parse(std::string_view line) = 0;
  // A request to fill; its memory is that of an earlier one.
  TraceRequest& add();
  // When `lines_` has ended: whether it was given another file.
  virtual Result<bool> open_next() { return false; }
  // The line in the text that a fault of parse() is in, where a text is more than a line.
  void set_lines(LineSource lines) { lines_ = std::move(lines); }

  LineSource& lines() noexcept { return lines_; }
  TraceFacts facts_;

 private:
  LineSource lines_;
  std::vector<TraceRequest> batch_;
  std::size_t filled_ = 0;
  std::size_t taken_ = 0;
  const bool is_lenient_;
  bool has_failed_ = false;
};

}  // namespace ashlar::replay
