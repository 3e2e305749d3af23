#include "apps/ashlar/incarnation.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>

namespace ashlar::apps {
namespace {

Error failed(const char* what, const std::string& path) {
  return make_error(ErrorCode::kIo, "%s %s: %s", what, path.c_str(),
                    std::generic_category().message(errno).c_str());
}

// The stored number, 0 if there is none yet.
Result<std::uint64_t> read_number(int file, const std::string& path) {
  std::array<char, 32> text{};
  const ssize_t size = pread(file, text.data(), text.size(), 0);
  if (size < 0) return failed("cannot read", path);
  if (size == 0) return std::uint64_t{0};
  std::uint64_t number = 0;
  const char* end = text.data() + size;
  if (end[-1] == '\n') --end;
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  const bool is_all = static_cast<std::size_t>(size) < text.size();
  if (is_all && error == std::errc() && stopped == end && number != std::numeric_limits<std::uint64_t>::max())
    return number;
  return make_error(ErrorCode::kCorruption,
                    "%s holds no number; put the last --incarnation into it, or remove it", path.c_str());
}

}  // namespace

std::optional<std::string> incarnation_file() {
  // NOLINTBEGIN(concurrency-mt-unsafe): no thread sets them
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return std::string(state) + "/ashlar/incarnation";
  const char* home = std::getenv("HOME");
  // NOLINTEND(concurrency-mt-unsafe)
  if (home != nullptr && *home != '\0') return std::string(home) + "/.local/state/ashlar/incarnation";
  return std::nullopt;
}

Result<std::uint64_t> next_incarnation(const std::string& path, std::uint64_t now_ms) {
  std::error_code unmade;
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, unmade);  // open() reports a missing folder
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
  if (file < 0) return failed("cannot open", path);
  struct Close {
    int file;
    ~Close() { ::close(file); }
  } const close{file};
  if (flock(file, LOCK_EX) != 0) return failed("cannot lock", path);
  ASHLAR_TRY(const std::uint64_t last, read_number(file, path));
  const std::uint64_t next = std::max(now_ms, last + 1);
  const std::string text = std::to_string(next) + "\n";
  // Truncated last: a crash between the two leaves a file that is refused, not a smaller number.
  if (pwrite(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ftruncate(file, static_cast<off_t>(text.size())) != 0 || fsync(file) != 0)
    return failed("cannot write", path);
  return next;
}

}  // namespace ashlar::apps
