#include "replay/trace/line_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::replay {

Result<LineSource> LineSource::open(const std::string& path) {
  if (path == "-") return LineSource(stdin, "standard input");
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr)
    return make_error(ErrorCode::kNotFound, "cannot open the trace %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  return LineSource(file, path);
}

Result<bool> LineSource::fill() {
  if (is_done_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  ASHLAR_CHECK(begin_ <= end_ && end_ <= buffer_.size(), "what was not read lies in the buffer");
  if (buffer_.size() - end_ < kPeekBytes) buffer_.resize(std::max(2 * buffer_.size(), 2 * kPeekBytes));
  const std::size_t read = std::fread(buffer_.data() + end_, 1, buffer_.size() - end_, file_.get());
  end_ += read;
  if (read > 0) return true;
  is_done_ = true;
  if (std::ferror(file_.get()) != 0)
    return make_error(ErrorCode::kIo, "cannot read %s behind line %llu: %s", name_.c_str(),
                      static_cast<unsigned long long>(lines_),
                      std::generic_category().message(errno).c_str());
  return false;
}

Result<std::string_view> LineSource::peek() {
  ASHLAR_CHECK(lines_ == 0 && begin_ == 0, "a line was read already");
  while (end_ < kPeekBytes) {
    ASHLAR_TRY(const bool more, fill());
    if (!more) break;
  }
  return std::string_view(buffer_.data(), std::min(end_, kPeekBytes));
}

Error LineSource::too_long() const {
  return make_error(ErrorCode::kCorruption,
                    "%s, line %llu: longer than %zu MiB; a trace has one request, or one session, per line",
                    name_.c_str(), static_cast<unsigned long long>(lines_ + 1), kMaxLine >> 20);
}

Result<bool> LineSource::next(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t left = end_ - begin_ - searched;
    const void* end = left == 0 ? nullptr : std::memchr(buffer_.data() + begin_ + searched, '\n', left);
    if (end != nullptr) {
      const auto length = static_cast<std::size_t>(static_cast<const char*>(end) - buffer_.data()) - begin_;
      line = std::string_view(buffer_.data() + begin_, length);
      if (length > kMaxLine) return too_long();
      begin_ += length + 1;
      break;
    }
    searched = end_ - begin_;
    if (searched > kMaxLine) return too_long();
    ASHLAR_TRY(const bool more, fill());
    if (more) continue;
    if (searched == 0) return false;
    line = std::string_view(buffer_.data() + begin_, searched);
    begin_ = end_;
    break;
  }
  ++lines_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (lines_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  return true;
}

Result<std::string_view> LineSource::rest() {
  for (;;) {
    if (end_ - begin_ > kMaxRest)
      return make_error(ErrorCode::kCorruption, "%s: one object longer than %zu bytes; write one per line",
                        name_.c_str(), kMaxRest);
    ASHLAR_TRY(const bool more, fill());
    if (!more) break;
  }
  const std::string_view text(buffer_.data() + begin_, end_ - begin_);
  begin_ = end_;
  return text;
}

}  // namespace ashlar::replay
