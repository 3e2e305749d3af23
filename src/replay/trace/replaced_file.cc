#include "replay/trace/replaced_file.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::replay {

ReplacedFile::ReplacedFile(const std::string& path) : path_(path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  const bool exists = std::filesystem::exists(status);
  is_beside_ = exists ? std::filesystem::is_regular_file(status)
                      : !std::filesystem::is_symlink(std::filesystem::symlink_status(path_, ignored));
  if (exists && is_beside_)
    if (const auto real = std::filesystem::canonical(path_, ignored); !ignored) path_ = real.string();
  written_ = is_beside_ ? path_ + ".part-" + std::to_string(getpid()) : path_;
  file_ = std::fopen(written_.c_str(), "wb");
}

ReplacedFile::~ReplacedFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (is_beside_ && !written_.empty()) std::remove(written_.c_str());
}

bool ReplacedFile::put(std::string_view text) {
  ASHLAR_DCHECK(file_ != nullptr, "a file that is not open is not written");
  return std::fwrite(text.data(), 1, text.size(), file_) == text.size();
}

bool ReplacedFile::finish() {
  ASHLAR_CHECK(file_ != nullptr, "a file is finished once");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) return false;
  if (is_beside_ && std::rename(written_.c_str(), path_.c_str()) != 0) return false;
  written_.clear();
  return true;
}

}  // namespace ashlar::replay
