#include "apps/ashlar/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "ashlar/tokens/hash_scheme.h"

namespace ashlar::apps {

Result<std::vector<std::uint8_t>> read_key_file(const std::string& path) {
  const auto reason = [] { return std::generic_category().message(errno); };
  // Do not wait for a pipe's writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0)
    return make_error(ErrorCode::kNotFound, "cannot read the key file %s: %s", path.c_str(),
                      reason().c_str());
  struct Close {
    int file;
    ~Close() { ::close(file); }
  } const close{file};
  struct stat about{};
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode))
    return make_error(ErrorCode::kInvalidArgument, "the key file %s is no plain file", path.c_str());
  std::vector<std::uint8_t> key(tokens::HashScheme::kKeySize + 1);
  std::size_t size = 0;
  while (size < key.size()) {
    const ssize_t got = ::read(file, key.data() + size, key.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return make_error(ErrorCode::kIo, "cannot read the key file %s: %s", path.c_str(), reason().c_str());
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size == 0 || size == key.size())
    return make_error(ErrorCode::kInvalidArgument, "the key file %s %s; a key has %zu bytes", path.c_str(),
                      size == 0 ? "is empty" : "is longer than a key", key.size() - 1);
  key.resize(size);
  return key;
}

}  // namespace ashlar::apps
