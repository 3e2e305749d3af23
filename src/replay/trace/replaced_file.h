// ReplacedFile: a file that takes the place of another when it is whole.
//
// It is written beside the file that is wanted, under a name of this process, and renamed by finish();
// without finish() it goes, and what was there stays. Of a link the file that it names is replaced, not the
// link. What is no plain file (a pipe, a terminal, a link to nothing yet) is written as it is.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace ashlar::replay {

class ReplacedFile {
 public:
  // Opens at once, so that a path that cannot be written is known before there is anything to write.
  explicit ReplacedFile(const std::string& path);
  ~ReplacedFile();
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  // Each returns false with errno set.
  bool is_open() const { return file_ != nullptr; }
  bool put(std::string_view text);
  // Requires: is_open(), and not called before.
  bool finish();

 private:
  std::string path_;
  std::string written_;  // empty: nothing is to be removed
  bool is_beside_ = false;
  std::FILE* file_ = nullptr;
};

}  // namespace ashlar::replay
