// LineSource: the lines of a file or of standard input, and a look at its beginning before the first.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes). Memory: the larger of the longest line and kPeekBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::replay {

class LineSource {
 public:
  static constexpr std::size_t kPeekBytes = std::size_t{1} << 18;
  static constexpr std::size_t kMaxLine = std::size_t{16} << 20;
  static constexpr std::size_t kMaxRest = std::size_t{1} << 30;

  // "-" is standard input. Errors: kNotFound.
  static Result<LineSource> open(const std::string& path);

  // The first bytes, up to kPeekBytes. Requires: no line was read.
  Result<std::string_view> peek();
  // The next line without its end; valid until the next call. False: there are no more.
  // Errors: kIo; kCorruption: a line longer than kMaxLine.
  Result<bool> next(std::string_view& line);
  // Everything from here on as one text. Errors: kIo; kCorruption: longer than kMaxRest.
  Result<std::string_view> rest();

  const std::string& name() const noexcept { return name_; }
  // Of the line that was read last, from 1.
  std::uint64_t line_number() const noexcept { return lines_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  LineSource(std::FILE* file, std::string name) : file_(file), name_(std::move(name)) {}

  Error too_long() const;
  // Reads more behind what is there. False: nothing is left.
  Result<bool> fill();

  std::unique_ptr<std::FILE, CloseFile> file_;
  std::string name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what was not read yet
  std::size_t end_ = 0;
  std::uint64_t lines_ = 0;
  bool is_done_ = false;
};

}  // namespace ashlar::replay
