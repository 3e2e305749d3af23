// What a path holds is told by its first bytes; recordings have no magic and come last.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/wide.h"
#include "inspect/inspected_file.h"

namespace ashlar::inspect {
namespace {

Error unreadable(const std::string& path, int error) {
  return make_error(error == ENOENT || error == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
                    "cannot read %s: %s", path.c_str(), std::generic_category().message(error).c_str());
}

constexpr std::string_view kWrittenByUs =
    "a G3 file, a file volume, a volume object, an event file, a recording (.kvrec), a journal, a block set "
    "or "
    "a layout descriptor";

Result<void> inspect_file(const InspectedFile& file, const InspectOptions& options, Inspection& seen) {
  std::array<std::byte, 16> first{};
  ASHLAR_TRY(const std::size_t count, file.read_some(0, first));
  if (count == 0)
    return make_error(ErrorCode::kInvalidArgument, "%s is empty; nothing of Ashlar is", file.path().c_str());
  const std::string_view magic(reinterpret_cast<const char*>(first.data()), std::min<std::size_t>(count, 8));
  if (magic == "ASHLARG3") return inspect_g3(file, options, seen);
  if (magic == "ASHLARFV") return inspect_file_volume(file, options, seen);
  if (magic == "ASHLAROB") return inspect_object(file, options, seen);
  if (magic == "ASHLFEED") return inspect_events(file, seen);
  if (magic.starts_with("ASHLARJ")) return inspect_journal(file.path(), options, seen);
  if (magic == std::string_view("ASHBSET\0", 8)) return inspect_block_set(file, seen);
  if (magic == std::string_view("ASHLAYT\0", 8)) return inspect_layout(file, seen);
  if (file.path().ends_with(".kvrec") || looks_like_recording(std::span(first).first(count), file.size()))
    return inspect_recording(file, seen);
  if (magic.starts_with('{'))
    return make_error(ErrorCode::kInvalidArgument,
                      "%s is JSON, as traces of requests are: ashlar replay reads traces, and ashlar plan "
                      "--trace",
                      file.path().c_str());
  return make_error(ErrorCode::kInvalidArgument,
                    "%s does not begin like %s; if it was one, its first bytes are damaged",
                    file.path().c_str(), std::string(kWrittenByUs).c_str());
}

}  // namespace

Result<InspectedFile> InspectedFile::open(const std::string& path) {
  // Without waiting for the other end of a pipe.
  OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about{};
  if (!fd.valid() || fstat(fd.get(), &about) != 0) return unreadable(path, errno);
  if (!S_ISREG(about.st_mode) && !S_ISBLK(about.st_mode))
    return make_error(ErrorCode::kUnsupported,
                      "%s is neither a file, a folder nor a block device; name one, or a service as "
                      "http://HOST:PORT",
                      path.c_str());
  const off_t size = S_ISREG(about.st_mode) ? about.st_size : lseek(fd.get(), 0, SEEK_END);
  if (size < 0) return unreadable(path, errno);
  return InspectedFile(path, std::move(fd), static_cast<std::uint64_t>(size));
}

Result<std::size_t> InspectedFile::read_some(std::uint64_t at, std::span<std::byte> into) const {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        pread(fd_.get(), into.data() + done, into.size() - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(path_, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Result<void> InspectedFile::read(std::uint64_t at, std::span<std::byte> into) const {
  ASHLAR_TRY(const std::size_t got, read_some(at, into));
  if (got == into.size()) return {};
  return make_error(ErrorCode::kCorruption, "%s ends at byte %llu, and %zu bytes from byte %llu are needed",
                    path_.c_str(), wide(at + got), into.size(), wide(at));
}

Result<std::vector<std::byte>> InspectedFile::read_all(std::uint64_t most) const {
  if (size_ > most)
    return make_error(ErrorCode::kInvalidArgument, "%s has %llu bytes; one of its kind has at most %llu",
                      path_.c_str(), wide(size_), wide(most));
  std::vector<std::byte> bytes(size_);
  ASHLAR_RETURN_IF_ERROR(read(0, bytes));
  return bytes;
}

std::string hex_of(std::uint64_t number) {
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", wide(number));
  return digits.data();
}

Result<Inspection> inspect_path(const std::string& path, const InspectOptions& options) {
  Inspection seen;
  seen.path = path;
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) {
    ASHLAR_RETURN_IF_ERROR(inspect_folder(path, options, seen));
    return seen;
  }
  ASHLAR_TRY(const InspectedFile file, InspectedFile::open(path));
  ASHLAR_RETURN_IF_ERROR(inspect_file(file, options, seen));
  return seen;
}

}  // namespace ashlar::inspect
