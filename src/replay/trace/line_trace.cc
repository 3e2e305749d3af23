#include "replay/trace/line_trace.h"

#include "ashlar/base/check.h"

namespace ashlar::replay {

TraceRequest& LineTrace::add() {
  if (filled_ == batch_.size()) batch_.emplace_back();
  TraceRequest& request = batch_[filled_++];
  std::vector<std::uint64_t> blocks = std::move(request.blocks);
  blocks.clear();
  request = TraceRequest{};
  request.blocks = std::move(blocks);
  return request;
}

Result<bool> LineTrace::next(TraceRequest& out) {
  ASHLAR_CHECK(!has_failed_, "a trace was read behind an error");
  while (taken_ == filled_) {
    taken_ = filled_ = 0;
    std::string_view line;
    auto more = lines_.next(line);
    if (more && !*more) {
      more = open_next();
      if (more && *more) continue;
    }
    if (!more || !*more) {
      has_failed_ = !more.has_value();
      return more;
    }
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const auto parsed = parse(line);
    if (parsed) continue;
    filled_ = 0;
    std::string where =
        lines_.name() + ", line " + std::to_string(lines_.line_number()) + ": " + parsed.error().message();
    if (!is_lenient_) {
      has_failed_ = true;
      return Error(parsed.error().code(), std::move(where));
    }
    if (facts_.skipped_lines++ == 0) facts_.first_skipped = std::move(where);
  }
  ASHLAR_CHECK(taken_ < filled_ && filled_ <= batch_.size(), "a request beyond those of its line");
  std::swap(out, batch_[taken_++]);
  ++facts_.requests;
  if (out.blocks.empty()) ++facts_.without_blocks;
  return true;
}

}  // namespace ashlar::replay
