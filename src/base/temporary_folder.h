// TemporaryFolder: a new folder that is removed, with all that is in it, when the object goes.
//
// Thread safety: thread-compatible.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "ashlar/base/result.h"

namespace ashlar {

class TemporaryFolder {
 public:
  // A folder "prefix_XXXXXX", readable by its owner only, in `parent`, or in the system's temporary folder
  // where that is empty. Errors: kNotFound: there is no such parent; kIo.
  static Result<TemporaryFolder> create(std::string_view prefix, const std::string& parent = {});
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const noexcept { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved away
};

}  // namespace ashlar
