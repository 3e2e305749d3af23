#include "tiers/volume/directory_volume.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/in_parallel.h"
#include "storage/parts_cursor.h"
#include "storage/size_limit_signal.h"
#include "tiers/volume/result_per_key.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

constexpr std::size_t kPiecesPerRead = 64;        // per readv() call
constexpr std::size_t kAtATime = 4U << 20;        // bytes between checks of the limits
constexpr std::int64_t kAbandonedSeconds = 3600;  // age at which a temporary file is abandoned
constexpr std::string_view kTemporary = ".~";     // no key begins with it

Error file_error(const std::string& path, const char* what, int error) {
  const ErrorCode code = error == ENOENT                                        ? ErrorCode::kNotFound
                         : error == ENOSPC || error == EDQUOT || error == EFBIG ? ErrorCode::kCapacity
                                                                                : ErrorCode::kIo;
  return make_error(code, "%s: %s: %s", path.c_str(), what, std::generic_category().message(error).c_str());
}

class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const noexcept { return number_; }
  // 0, or the errno: some file systems report a full disk only here.
  int close() noexcept { return ::close(std::exchange(number_, -1)) == 0 ? 0 : errno; }

 private:
  int number_;
};

// 0, or the errno; ECANCELED when the limits came first.
int write_whole(int file, std::span<const std::byte> bytes, const CallLimits& limits) {
  const storage::SizeLimitSignal no_signal;
  while (!bytes.empty()) {
    if (!limits.check()) return ECANCELED;
    const ssize_t written = ::write(file, bytes.data(), std::min(bytes.size(), kAtATime));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

// File systems limit names to 255 bytes.
constexpr std::size_t kPlainName = 200;
static_assert(kPlainName + 34 <= NAME_MAX, "a truncated key leaves room for its hash");

// '/' cannot be in a file name, '~' cannot be in a key. Long keys are truncated and told apart by their hash.
std::string file_name(std::string_view key) {
  std::string name(key.substr(0, kPlainName));
  std::ranges::replace(name, '/', '~');
  if (key.size() <= kPlainName) return name;
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  std::array<char, 40> digits{};
  std::snprintf(digits.data(), digits.size(), "~~%016llx%016llx",
                static_cast<unsigned long long>(hash.high64), static_cast<unsigned long long>(hash.low64));
  return name + digits.data();
}

// A name that no key has and, with high probability, no other writer.
std::string temporary_name() {
  std::uint64_t bits = 0;
  while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
  }
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(bits));
  return std::string(kTemporary) + digits.data();
}

// Creates a file under a unique name, returned in `path`.
int create_temporary(const std::string& folder, std::string* path) {
  for (;;) {
    *path = folder + "/" + temporary_name();
    const int file = open(path->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0 || errno != EEXIST) return file;
  }
}

// Removes files left by dead writers. `file` was just created in the folder: its time is that of the file
// system, whose clock may be another machine's.
void sweep(const std::string& folder, int file) {
  struct stat fresh{};
  if (fstat(file, &fresh) != 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> names(opendir(folder.c_str()), &closedir);
  if (names == nullptr) return;
  while (const dirent* entry = readdir(names.get())) {  // NOLINT(concurrency-mt-unsafe): a stream of its own
    if (!std::string_view(entry->d_name).starts_with(kTemporary)) continue;
    struct stat about{};
    const bool is_present = fstatat(dirfd(names.get()), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_present && S_ISREG(about.st_mode) &&
        about.st_mtim.tv_sec < fresh.st_mtim.tv_sec - kAbandonedSeconds)
      unlinkat(dirfd(names.get()), entry->d_name, 0);
  }
}

}  // namespace

Result<std::unique_ptr<Volume>> DirectoryVolume::attach(const VolumeDescriptor& descriptor) {
  VolumeOptions options(descriptor);
  const std::uint64_t fanout = options.number("fanout", 256, 1, 65536);
  const bool sync = options.flag("sync", true);
  const std::uint64_t threads = options.number("threads", 4, 1, 64);
  ASHLAR_RETURN_IF_ERROR(options.finish());
  struct stat about{};
  if (stat(descriptor.location.c_str(), &about) != 0)
    return file_error(descriptor.location, "the folder of a volume", errno);
  if (!S_ISDIR(about.st_mode))
    return make_error(ErrorCode::kInvalidArgument, "%s is not a folder", descriptor.location.c_str());
  if (access(descriptor.location.c_str(), R_OK | W_OK | X_OK) != 0)
    return make_error(ErrorCode::kIo, "%s cannot be written to: %s", descriptor.location.c_str(),
                      std::generic_category().message(errno).c_str());
  return std::unique_ptr<Volume>(
      new DirectoryVolume(descriptor.location, {about.st_dev, about.st_ino}, fanout, sync, threads));
}

Result<void> DirectoryVolume::check_folder() const {
  struct stat about{};
  if (stat(folder_.c_str(), &about) == 0 && Identity{about.st_dev, about.st_ino} == identity_) return {};
  return make_error(ErrorCode::kIo,
                    "%s: the folder is missing, or another one is in its place; bring it back, or attach the "
                    "volume again",
                    folder_.c_str());
}

std::size_t DirectoryVolume::number_of(std::string_view key) const {
  return XXH3_64bits(key.data(), key.size()) % folders_.size();
}

std::string DirectoryVolume::folder_of(std::string_view key) const {
  std::array<char, 24> name{};
  std::snprintf(name.data(), name.size(), "/%04zx", number_of(key));
  return folder_ + name.data();
}

std::string DirectoryVolume::path_of(std::string_view key) const {
  return folder_of(key) + "/" + file_name(key);
}

Result<void> DirectoryVolume::put_one(const ObjectWrite& object, const CallLimits& limits) {
  ASHLAR_RETURN_IF_ERROR(check_key(object.key));
  ASHLAR_RETURN_IF_ERROR(limits.check());
  const std::string folder = folder_of(object.key);
  const std::string path = path_of(object.key);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return file_error(folder, "make the folder", errno);
  std::string made_at;
  Descriptor file(create_temporary(folder, &made_at));
  if (file.get() < 0) return file_error(made_at, "create", errno);
  if (!folders_[number_of(object.key)].swept.exchange(true)) sweep(folder, file.get());
  int error = 0;
  for (const std::span<const std::byte>& part : object.parts)
    if (error == 0) error = write_whole(file.get(), part, limits);
  if (error == 0 && sync_ && fsync(file.get()) != 0) error = errno;
  if (const int closed = file.close(); error == 0) error = closed;
  if (error == 0 && rename(made_at.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  unlink(made_at.c_str());
  if (error == ECANCELED) ASHLAR_RETURN_IF_ERROR(limits.check());
  return file_error(path, "write", error == ENOENT ? EIO : error);
}

int DirectoryVolume::sync_folder(const std::string& path) {
  const Descriptor opened(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int error = 0;
  if (opened.get() < 0 || fsync(opened.get()) != 0) error = errno;
  if (error != 0 && error != ENOENT) failed_syncs_.fetch_add(1);
  return error;
}

// The names of a batch become durable with one sync per folder, and one for folder names new to this process:
// another process may have created them without syncing yet. The system reports a failed sync only once: a
// batch in which any thread's sync failed is not trusted.
void DirectoryVolume::sync_folders(std::span<const std::string_view> keys, std::uint64_t before,
                                   std::vector<Result<void>>& results) {
  if (!sync_) return;
  std::map<std::size_t, std::vector<std::size_t>> folders;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (results[i]) folders[number_of(keys[i])].push_back(i);
  const auto fail = [&](std::span<const std::size_t> members, const Error& error) {
    for (const std::size_t i : members) results[i] = error;
  };
  std::vector<std::size_t> fresh;  // folders whose names may not be durable
  for (const auto& [number, members] : folders) {
    const std::string path = folder_of(keys[members[0]]);
    const int error = sync_folder(path);
    if (error == ENOENT) continue;  // nothing was ever put there
    if (error != 0) fail(members, file_error(path, "sync", error));
    if (error == 0 && !folders_[number].durable) fresh.push_back(number);
  }
  const int error = fresh.empty() ? 0 : sync_folder(folder_);
  const bool whole = failed_syncs_ == before;
  for (const std::size_t number : fresh) {
    if (error != 0) fail(folders[number], file_error(folder_, "sync", error));
    if (whole) folders_[number].durable = true;
  }
  if (whole) return;
  for (const auto& [number, members] : folders)
    for (const std::size_t i : members)
      if (results[i])
        results[i] = make_error(ErrorCode::kIo,
                                "%s: a sync failed while this was written, which may be lost; repeat it",
                                describe().c_str());
}

// The path may be a pipe, which would block the thread that opens it.
Result<void> DirectoryVolume::get_one(const ObjectRead& object, const CallLimits& limits) const {
  ASHLAR_RETURN_IF_ERROR(check_key(object.key));
  ASHLAR_RETURN_IF_ERROR(limits.check());
  const std::string path = path_of(object.key);
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return file_error(path, "read", errno);
  struct stat about{};
  if (fstat(file.get(), &about) != 0) return file_error(path, "read", errno);
  if (!S_ISREG(about.st_mode))
    return make_error(ErrorCode::kCorruption, "%s is not a regular file", path.c_str());
  storage::PartsCursor<std::byte> left(object.parts);
  if (static_cast<std::uint64_t>(about.st_size) != left.left())
    return make_error(ErrorCode::kCorruption, "%s has %lld bytes, %llu are expected", path.c_str(),
                      static_cast<long long>(about.st_size), static_cast<unsigned long long>(left.left()));
  std::array<iovec, kPiecesPerRead> pieces{};
  while (left.left() > 0) {
    ASHLAR_RETURN_IF_ERROR(limits.check());
    const std::size_t count = left.gather(pieces, std::min<std::uint64_t>(left.left(), kAtATime));
    const ssize_t read = ::readv(file.get(), pieces.data(), static_cast<int>(count));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return file_error(path, "read", errno);
    if (read == 0)
      return make_error(ErrorCode::kCorruption, "%s became shorter while it was read", path.c_str());
    left.pass(static_cast<std::uint64_t>(read));
  }
  return {};
}

std::vector<Result<void>> DirectoryVolume::put(std::span<const ObjectWrite> objects,
                                               const CallLimits& limits) {
  if (const Result<void> usable = check_folder(); !usable)
    return std::vector<Result<void>>(objects.size(), usable);
  std::vector<Result<void>> results(objects.size());
  const std::uint64_t before = failed_syncs_;
  in_parallel(objects.size(), threads_, [&](std::size_t i) { results[i] = put_one(objects[i], limits); });
  std::vector<std::string_view> keys;
  keys.reserve(objects.size());
  for (const ObjectWrite& object : objects) keys.push_back(object.key);
  sync_folders(keys, before, results);
  return results;
}

std::vector<Result<void>> DirectoryVolume::get(std::span<const ObjectRead> objects,
                                               const CallLimits& limits) {
  std::vector<Result<void>> results;
  results.reserve(objects.size());
  for (const ObjectRead& object : objects) results.push_back(get_one(object, limits));
  const auto not_found = [](const Result<void>& result) {
    return !result && result.error().code() == ErrorCode::kNotFound;
  };
  if (std::ranges::any_of(results, not_found))
    if (const Result<void> usable = check_folder(); !usable)
      std::ranges::replace_if(results, not_found, usable);
  return results;
}

std::vector<Result<bool>> DirectoryVolume::contains(std::span<const std::string_view> keys,
                                                    const CallLimits& limits) {
  std::vector<Result<bool>> results =
      result_per_key<bool>(keys, limits, check_key, [&](std::string_view key) -> Result<bool> {
        const std::string path = path_of(key);
        struct stat about{};
        if (stat(path.c_str(), &about) == 0) return S_ISREG(about.st_mode);
        if (errno == ENOENT) return false;
        return file_error(path, "look for", errno);
      });
  const auto absent = [](const Result<bool>& result) { return result && !*result; };
  if (std::ranges::any_of(results, absent))
    if (const Result<void> usable = check_folder(); !usable)
      std::ranges::replace_if(results, absent, Result<bool>(usable.error()));
  return results;
}

std::vector<Result<void>> DirectoryVolume::remove(std::span<const std::string_view> keys,
                                                  const CallLimits& limits) {
  const std::uint64_t before = failed_syncs_;
  std::vector<Result<void>> results =
      result_per_key<void>(keys, limits, check_key, [&](std::string_view key) -> Result<void> {
        const std::string path = path_of(key);
        if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
        return file_error(path, "remove", errno);
      });
  // A missing file counts as removed only if this is still the same folder.
  if (const Result<void> usable = check_folder(); !usable)
    return std::vector<Result<void>>(keys.size(), usable);
  sync_folders(keys, before, results);
  return results;
}

}  // namespace ashlar::tiers
