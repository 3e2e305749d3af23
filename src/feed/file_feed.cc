#include "ashlar/feed/feed_source.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/events/event_codec.h"
#include "feed/batch_frames.h"

namespace ashlar::feed {
namespace {

constexpr std::array<char, 8> kMagic = {'A', 'S', 'H', 'L', 'F', 'E', 'E', 'D'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMaxHoles = 4096;

std::array<std::byte, kFeedHeaderBytes> header() {
  std::array<std::byte, kFeedHeaderBytes> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::memcpy(bytes.data() + 8, &kVersion, sizeof kVersion);
  return bytes;
}

Result<void> check_header(int fd, const std::string& path) {
  std::array<std::byte, kFeedHeaderBytes> bytes{};
  ASHLAR_TRY(const std::size_t got, read_some(fd, bytes, 0, path));
  if (got < kFeedHeaderBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return make_error(ErrorCode::kInvalidArgument, "%s is not a recording of events", path.c_str());
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof version);
  if (version != kVersion)
    return make_error(ErrorCode::kUnsupported,
                      "%s is a recording of version %u; this library reads version %u", path.c_str(), version,
                      kVersion);
  return {};
}

// A file's name is durable once its folder is synced.
Result<void> sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return feed_io_error("cannot open the folder of", path);
  Result<void> synced;
  if (fsync(fd) != 0) synced = feed_io_error("cannot sync the folder of", path);
  ::close(fd);
  return synced;
}

// A new file beside `path`, under a unique name, which is written to `made_at`.
int create_beside(const std::string& path, std::string& made_at) {
  for (;;) {
    std::uint64_t bits = 0;
    while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
    }
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), ".%016llx.repair", static_cast<unsigned long long>(bits));
    made_at = path + digits.data();
    const int fd = ::open(made_at.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}

}  // namespace

Result<std::unique_ptr<FileSink>> FileSink::create(const Options& options) {
  const int fd =
      ::open(options.path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | (options.append ? 0 : O_EXCL), 0600);
  if (fd < 0) {
    if (errno == EEXIST)
      return make_error(ErrorCode::kAlreadyExists, "%s exists; choose another name, or append to it",
                        options.path.c_str());
    return feed_io_error("cannot create", options.path);
  }
  std::unique_ptr<FileSink> sink(new FileSink(options, fd));
  ASHLAR_RETURN_IF_ERROR(sink->lock());
  struct stat about{};
  if (fstat(fd, &about) != 0) return feed_io_error("cannot look at", options.path);
  ASHLAR_RETURN_IF_ERROR(sink->begin(static_cast<std::uint64_t>(about.st_size)));
  if (options.sync) ASHLAR_RETURN_IF_ERROR(sync_folder_of(options.path));
  return sink;
}

Result<void> FileSink::lock() {
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return make_error(ErrorCode::kUnavailable, "another process writes %s", options_.path.c_str());
    return feed_io_error("cannot lock", options_.path);
  }
  // Another sink may have replaced the file since our open().
  struct stat ours{};
  struct stat named{};
  if (fstat(fd_, &ours) != 0 || stat(options_.path.c_str(), &named) != 0)
    return feed_io_error("cannot look at", options_.path);
  if (ours.st_ino != named.st_ino || ours.st_dev != named.st_dev)
    return make_error(ErrorCode::kUnavailable, "%s was replaced just now; try again", options_.path.c_str());
  return {};
}

Result<void> FileSink::begin(std::uint64_t size) {
  const auto expected = header();
  if (size < kFeedHeaderBytes) {
    // New, or its writer was killed before it had written the header.
    std::array<std::byte, kFeedHeaderBytes> bytes{};
    const auto start = std::span(bytes).first(static_cast<std::size_t>(size));
    ASHLAR_TRY(const std::size_t got, read_some(fd_, start, 0, options_.path));
    if (std::memcmp(bytes.data(), expected.data(), got) == 0) {
      found_.unfinished_bytes = size;
      end_ = kFeedHeaderBytes;
      return write_at(fd_, expected, 0, options_.path);
    }
  }
  ASHLAR_RETURN_IF_ERROR(check_header(fd_, options_.path));
  ASHLAR_RETURN_IF_ERROR(look_through());
  if (found_.damaged_places != 0) return rewrite();
  if (found_.unfinished_bytes == 0) return {};
  if (ftruncate(fd_, static_cast<off_t>(end_)) != 0) return feed_io_error("cannot cut", options_.path);
  ASHLAR_LOG(LogLevel::kWarn, "feed",
             "%s: cut off %llu bytes of a last batch that was not finished; %llu batches stay",
             options_.path.c_str(), static_cast<unsigned long long>(found_.unfinished_bytes),
             static_cast<unsigned long long>(found_.batches));
  return {};
}

Result<void> FileSink::look_through() {
  BatchFrames frames(fd_, options_.path, options_.max_batch_bytes);
  std::uint64_t first_damage = 0;
  end_ = kFeedHeaderBytes;
  for (bool more = true; more;) {
    ASHLAR_TRY(const BatchFrames::Found found, frames.look(end_));
    if (found.damaged != 0) {
      if (found_.damaged_places++ == 0) first_damage = end_;
      found_.damaged_bytes += found.damaged;
    }
    found_.batches += found.kind == BatchFrames::Kind::kBatch ? 1 : 0;
    found_.unfinished_bytes = found.left;
    more = found.kind != BatchFrames::Kind::kEnd && found.kind != BatchFrames::Kind::kUnfinished;
    end_ = found.next;
  }
  if (found_.damaged_places == 0 || options_.repair) return {};
  return make_error(
      ErrorCode::kCorruption,
      "%s is damaged: %llu bytes at %llu places belong to no whole batch, the first at byte %llu; "
      "nothing is appended. Move it away, or have the damage cut out (repair); %llu whole batches stay",
      options_.path.c_str(), static_cast<unsigned long long>(found_.damaged_bytes),
      static_cast<unsigned long long>(found_.damaged_places), static_cast<unsigned long long>(first_damage),
      static_cast<unsigned long long>(found_.batches));
}

Result<void> FileSink::rewrite() {
  struct stat about{};
  if (fstat(fd_, &about) != 0) return feed_io_error("cannot look at", options_.path);
  const int old = fd_;
  std::string path;
  const int fd = create_beside(options_.path, path);
  if (fd < 0) return feed_io_error("cannot create", path);
  const auto copy = [&]() -> Result<void> {
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return feed_io_error("cannot lock", path);
    if (fchmod(fd, about.st_mode & 07777) != 0) return feed_io_error("cannot make", path);
    ASHLAR_RETURN_IF_ERROR(write_at(fd, header(), 0, path));
    BatchFrames frames(old, options_.path, options_.max_batch_bytes);
    end_ = kFeedHeaderBytes;
    for (std::uint64_t at = kFeedHeaderBytes;;) {
      ASHLAR_TRY(const BatchFrames::Found found, frames.look(at));
      if (found.kind == BatchFrames::Kind::kEnd || found.kind == BatchFrames::Kind::kUnfinished) break;
      at = found.next;
      if (found.kind == BatchFrames::Kind::kBatch)
        if (Result<void> written = write_frame(fd, frames.bytes(), path); !written) return written;
    }
    if (fsync(fd) != 0) return feed_io_error("cannot sync", path);
    if (rename(path.c_str(), options_.path.c_str()) != 0)
      return feed_io_error("cannot replace", options_.path);
    return {};
  };
  if (Result<void> copied = copy(); !copied) {
    unlink(path.c_str());
    ::close(fd);
    return copied;
  }
  fd_ = fd;
  ::close(old);
  ASHLAR_LOG(
      LogLevel::kWarn, "feed",
      "%s: cut out %llu damaged bytes at %llu places, and %llu bytes of a last batch that was not finished; "
      "%llu batches stay",
      options_.path.c_str(), static_cast<unsigned long long>(found_.damaged_bytes),
      static_cast<unsigned long long>(found_.damaged_places),
      static_cast<unsigned long long>(found_.unfinished_bytes),
      static_cast<unsigned long long>(found_.batches));
  return sync_folder_of(options_.path);
}

Result<void> FileSink::write_frame(int fd, std::span<const std::byte> batch, const std::string& path) {
  const auto size = static_cast<std::uint32_t>(batch.size());
  record_.resize(sizeof size + batch.size());
  std::memcpy(record_.data(), &size, sizeof size);
  std::memcpy(record_.data() + sizeof size, batch.data(), batch.size());
  ASHLAR_RETURN_IF_ERROR(write_at(fd, record_, end_, path));
  end_ += record_.size();
  return {};
}

FileSink::~FileSink() {
  ::close(fd_);
}

Result<void> FileSink::publish(const events::EventBatch& batch) {
  events::encode_batch(batch, bytes_);
  // As a reader will decode it.
  if (const std::size_t needed = bytes_.size() + events::memory_of(batch); needed > options_.max_batch_bytes)
    return make_error(ErrorCode::kCapacity, "a batch of %zu bytes; a recording takes up to %zu", needed,
                      options_.max_batch_bytes);
  const std::uint64_t before = end_;
  Result<void> written = write_frame(fd_, bytes_, options_.path);
  if (written && options_.sync && fdatasync(fd_) != 0) written = feed_io_error("cannot sync", options_.path);
  if (written) return {};
  // The next batch overwrites it. Any remainder would count as damage.
  end_ = before;
  if (ftruncate(fd_, static_cast<off_t>(end_)) != 0)
    ASHLAR_LOG(LogLevel::kWarn, "feed", "%s keeps a part of a batch that could not be written",
               options_.path.c_str());
  return written;
}

FileSource::FileSource(Options options, int fd)
    : options_(std::move(options)),
      fd_(fd),
      frames_(std::make_unique<BatchFrames>(fd, options_.path, options_.max_batch_bytes)),
      at_(kFeedHeaderBytes) {}

Result<std::unique_ptr<FileSource>> FileSource::create(const Options& options) {
  // Do not wait for a pipe's writer; the flag has no effect on files.
  const int fd = ::open(options.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return make_error(ErrorCode::kNotFound, "there is no file %s", options.path.c_str());
    return feed_io_error("cannot open", options.path);
  }
  std::unique_ptr<FileSource> source(new FileSource(options, fd));
  ASHLAR_RETURN_IF_ERROR(check_header(fd, options.path));
  return source;
}

FileSource::~FileSource() {
  ::close(fd_);
}

Result<std::size_t> FileSource::poll(BatchConsumer& consumer, Clock::Duration timeout) {
  using Kind = BatchFrames::Kind;
  const Clock& clock = options_.clock == nullptr ? Clock::real() : *options_.clock;
  const Clock::TimePoint until = clock.now() + timeout;
  std::size_t delivered = 0;
  std::size_t read = 0;
  events::OwnedBatch batch;
  const std::uint64_t enough = frames_->bytes_read() + SearchBudget::kSlice;
  while (read < options_.batches_per_poll && frames_->bytes_read() < enough) {
    ASHLAR_TRY(const BatchFrames::Found found, frames_->look(at_));
    const bool is_end = found.kind == Kind::kEnd || found.kind == Kind::kUnfinished;
    // Damage at the end of a growing file is certain only once something whole follows.
    if (found.damaged != 0 && !(is_end && options_.follow)) {
      ++damaged_;
      damaged_bytes_ += found.damaged;
    }
    if (found.kind == Kind::kSearching) break;
    if (!is_end) {
      ++read;
      const std::uint64_t place = std::exchange(at_, found.next);
      if (found.kind == Kind::kDamaged) continue;
      if (events::decode_batch(frames_->bytes(), batch, options_.max_batch_bytes)) {
        remember(batch.view(), place);
        consumer.on_batch(batch.view());
        ++delivered;
      } else {
        ++damaged_;
      }
      continue;
    }
    if (!options_.follow) {
      at_ = found.next;
      unfinished_bytes_ = found.left;
      if (read != 0) break;
      return make_error(ErrorCode::kNotFound, "%s has ended", options_.path.c_str());
    }
    if (read != 0) break;
    ASHLAR_TRY(const bool anew, begin_anew());
    if (anew) continue;
    if (clock.now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // files do not signal growth
  }
  return delivered;
}

Result<bool> FileSource::begin_anew() {
  struct stat ours{};
  struct stat named{};
  if (fstat(fd_, &ours) != 0) return feed_io_error("cannot look at", options_.path);
  const bool is_shorter = static_cast<std::uint64_t>(ours.st_size) < at_;
  const bool is_other = stat(options_.path.c_str(), &named) == 0 &&
                        (ours.st_ino != named.st_ino || ours.st_dev != named.st_dev);
  if (!is_shorter && !is_other) return false;
  if (!std::exchange(lost_, true)) {
    ++damaged_;
    ASHLAR_LOG(LogLevel::kWarn, "feed", "%s %s while it was followed; it is read from its start",
               options_.path.c_str(), is_other ? "was replaced" : "became shorter");
  }
  const int fd = ::open(options_.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return false;
    return feed_io_error("cannot open", options_.path);
  }
  const bool has_header =
      fstat(fd, &named) == 0 && static_cast<std::uint64_t>(named.st_size) >= kFeedHeaderBytes;
  const Result<void> checked = has_header ? check_header(fd, options_.path) : Result<void>();
  if (!has_header || !checked) {
    ::close(fd);
    if (!checked) return checked.error();
    return false;  // its writer has only started
  }
  ::close(std::exchange(fd_, fd));
  frames_ = std::make_unique<BatchFrames>(fd, options_.path, options_.max_batch_bytes);
  at_ = kFeedHeaderBytes;
  known_.clear();
  lost_ = false;
  return true;
}

void FileSource::remember(const events::EventBatch& batch, std::uint64_t at) {
  const auto [entry, fresh] = known_.try_emplace(batch.stream.worker);
  Known& known = entry->second;
  if (!fresh && batch.stream.incarnation < known.incarnation) return;
  if (fresh || batch.stream.incarnation > known.incarnation)
    known = {.incarnation = batch.stream.incarnation};

  if (batch.kind == events::BatchKind::kSnapshot) {
    if (batch.part >= batch.parts) return;
    Known::Snapshot& coming = known.coming;
    if (coming.seen.empty() || coming.first != batch.first || coming.parts != batch.parts)
      coming = {.first = batch.first, .parts = batch.parts, .at = at};
    coming.seen.insert(batch.part);
    if (coming.seen.size() != coming.parts) return;
    coming.seen.clear();
    if (!known.whole || known.whole->first <= coming.first) known.whole = coming;
    return;
  }
  if (batch.end() <= batch.first) return;
  // Merges adjacent ranges. A batch that follows the last one, as nearly all do, extends its range.
  std::uint64_t first = batch.first;
  Known::Numbers joined{.end = batch.end(), .at = at};
  auto next = known.numbers.upper_bound(first);
  if (next != known.numbers.begin() && std::prev(next)->second.end >= first) --next;
  while (next != known.numbers.end() && next->first <= joined.end) {
    first = std::min(first, next->first);
    joined = {.end = std::max(joined.end, next->second.end), .at = std::min(joined.at, next->second.at)};
    next = known.numbers.erase(next);
  }
  known.numbers.emplace_hint(next, first, joined);
  if (known.numbers.size() > kMaxHoles) known.numbers.erase(known.numbers.begin());
}

std::optional<std::uint64_t> FileSource::place_of(const events::StreamId& stream, std::uint64_t from) const {
  const auto entry = known_.find(stream.worker);
  if (entry == known_.end() || entry->second.incarnation != stream.incarnation) return std::nullopt;
  const Known& known = entry->second;
  if (known.whole && known.whole->first >= from) return known.whole->at;
  const auto next = known.numbers.upper_bound(from);
  if (next == known.numbers.begin() || std::prev(next)->second.end <= from) return std::nullopt;
  return std::prev(next)->second.at;
}

Result<bool> FileSource::recover(const events::StreamId& stream, std::uint64_t from,
                                 BatchConsumer& consumer) {
  const std::optional<std::uint64_t> place = place_of(stream, from);
  if (!place) return false;
  events::OwnedBatch batch;
  bool reaches = false;
  std::uint64_t at = *place;
  while (at < at_) {
    ASHLAR_TRY(const BatchFrames::Found found, frames_->look(at));
    if (found.kind == BatchFrames::Kind::kEnd || found.kind == BatchFrames::Kind::kUnfinished) break;
    at = found.next;
    if (found.kind != BatchFrames::Kind::kBatch) continue;
    if (!events::decode_batch(frames_->bytes(), batch, options_.max_batch_bytes)) continue;
    if (batch.head.stream != stream) continue;
    const bool is_snapshot = batch.head.kind == events::BatchKind::kSnapshot;
    if (is_snapshot ? batch.head.first < from : batch.view().end() <= from) continue;
    if (is_snapshot || batch.head.first <= from) reaches = true;
    if (reaches) consumer.on_batch(batch.view());
  }
  return reaches;
}

}  // namespace ashlar::feed
