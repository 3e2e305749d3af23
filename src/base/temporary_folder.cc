#include "base/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace ashlar {

Result<TemporaryFolder> TemporaryFolder::create(std::string_view prefix, const std::string& parent) {
  std::error_code failed;
  const std::filesystem::path base =
      parent.empty() ? std::filesystem::temp_directory_path(failed) : std::filesystem::path(parent);
  if (failed || !std::filesystem::is_directory(base, failed))
    return make_error(ErrorCode::kNotFound, "there is no folder %s", base.c_str());
  std::string path = (base / (std::string(prefix) + "_XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr)
    return make_error(ErrorCode::kIo, "no folder can be made at %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  return TemporaryFolder(path);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace ashlar
