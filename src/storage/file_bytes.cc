#include "storage/file_bytes.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "ashlar/base/check.h"
#include "ashlar/storage/storage.h"
#include "storage/parts_cursor.h"
#include "storage/size_limit_signal.h"

namespace ashlar::storage {
namespace {

constexpr std::size_t kPiecesPerCall = 64;  // per system call

Error failed(const std::string& path, const char* what, std::uint64_t left, std::uint64_t offset, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return make_error(full ? ErrorCode::kCapacity : ErrorCode::kIo, "%s: %llu bytes at %llu cannot be %s: %s",
                    path.c_str(), static_cast<unsigned long long>(left),
                    static_cast<unsigned long long>(offset), what,
                    std::generic_category().message(error).c_str());
}

struct IoStep {
  int error = 0;
  std::uint64_t bytes = 0;
};

// One operation over the next bytes of a cursor. Call is preadv or pwritev.
template <class Byte, class Call>
IoStep step(const FileAccess& file, IoDirection direction, std::uint64_t offset,
            const PartsCursor<Byte>& left, std::span<iovec> pieces, Call call) {
  std::uint64_t most = left.left();
  if (file.faults != nullptr) {
    const IoVerdict verdict = file.faults->judge(direction, offset, most);
    if (verdict.error != 0) return {.error = verdict.error};
    most = std::min(most, verdict.at_most);
  }
  const std::size_t count = left.gather(pieces, most);
  const ssize_t moved =
      call(file.buffered, pieces.data(), static_cast<int>(count), static_cast<off_t>(offset));
  if (moved < 0) return {.error = errno};
  ASHLAR_CHECK(static_cast<std::uint64_t>(moved) <= most, "the system moved %zd bytes of %llu", moved,
               static_cast<unsigned long long>(most));
  return {.bytes = static_cast<std::uint64_t>(moved)};
}

}  // namespace

Result<void> write_all(const FileAccess& file, const std::string& path, std::uint64_t offset,
                       std::span<const std::span<const std::byte>> parts) {
  const SizeLimitSignal no_signal;
  std::array<iovec, kPiecesPerCall> pieces{};
  for (PartsCursor<const std::byte> left(parts); left.left() > 0;) {
    const IoStep written = step(file, IoDirection::kWrite, offset, left, pieces, pwritev);
    if (written.error == EINTR) continue;
    if (written.error != 0 || written.bytes == 0)
      return failed(path, "written", left.left(), offset, written.error == 0 ? EIO : written.error);
    std::uint64_t told = 0;
    while (told < written.bytes) {
      const std::span<const std::byte> run = left.run();
      const auto now = std::min<std::uint64_t>(run.size(), written.bytes - told);
      if (file.faults != nullptr)
        file.faults->written(offset + told, run.first(static_cast<std::size_t>(now)));
      left.pass(now);
      told += now;
    }
    offset += written.bytes;
  }
  return {};
}

Result<void> read_all(const FileAccess& file, const std::string& path, std::uint64_t offset,
                      std::span<const std::span<std::byte>> parts) {
  std::array<iovec, kPiecesPerCall> pieces{};
  for (PartsCursor<std::byte> left(parts); left.left() > 0;) {
    const IoStep read = step(file, IoDirection::kRead, offset, left, pieces, preadv);
    if (read.error == EINTR) continue;
    if (read.error != 0) return failed(path, "read", left.left(), offset, read.error);
    if (read.bytes == 0)
      return make_error(ErrorCode::kCorruption, "%s ends at %llu, %llu bytes too early", path.c_str(),
                        static_cast<unsigned long long>(offset),
                        static_cast<unsigned long long>(left.left()));
    left.pass(read.bytes);
    offset += read.bytes;
  }
  return {};
}

Error no_folder(const std::string& path) {
  return make_error(ErrorCode::kNotFound, "%s: its folder %s does not exist; create it first", path.c_str(),
                    std::filesystem::path(path).parent_path().c_str());
}

}  // namespace ashlar::storage
