#include "ashlar/feed/file_feed.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/events/event_codec.h"

namespace ashlar::feed {
namespace {

constexpr std::array<char, 8> kMagic = {'A', 'S', 'H', 'L', 'F', 'E', 'E', 'D'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 16;
constexpr std::uint32_t kMaxBatchBytes = 1u << 30;
constexpr std::size_t kMaxHoles = 4096;

Error io_error(const char* what, const std::string& path) {
  return make_error(ErrorCode::kIo, "%s %s: %s", what, path.c_str(), std::strerror(errno));  // NOLINT
}

Result<void> write_at(int fd, std::span<const std::byte> bytes, std::uint64_t at, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_error("cannot write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

// How many bytes there were, up to those asked for.
Result<std::size_t> read_some(int fd, std::span<std::byte> bytes, std::uint64_t at, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("cannot read", path);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

std::array<std::byte, kHeaderBytes> header() {
  std::array<std::byte, kHeaderBytes> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::memcpy(bytes.data() + 8, &kVersion, sizeof kVersion);
  return bytes;
}

Result<void> check_header(int fd, const std::string& path) {
  std::array<std::byte, kHeaderBytes> bytes{};
  const Result<std::size_t> got = read_some(fd, bytes, 0, path);
  if (!got) return got.error();
  if (*got < kHeaderBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return make_error(ErrorCode::kInvalidArgument, "%s is not a recording of events", path.c_str());
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof version);
  if (version != kVersion)
    return make_error(ErrorCode::kUnsupported,
                      "%s is a recording of version %u; this library reads version %u", path.c_str(), version,
                      kVersion);
  return {};
}

}  // namespace

Result<std::unique_ptr<FileSink>> FileSink::create(const Options& options) {
  const int fd =
      ::open(options.path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | (options.append ? 0 : O_EXCL), 0644);
  if (fd < 0) {
    if (errno == EEXIST)
      return make_error(ErrorCode::kAlreadyExists, "%s exists; choose another name, or append to it",
                        options.path.c_str());
    return io_error("cannot create", options.path);
  }
  std::unique_ptr<FileSink> sink(new FileSink(options, fd, kHeaderBytes));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return make_error(ErrorCode::kUnavailable, "another process writes %s", options.path.c_str());
    return io_error("cannot lock", options.path);
  }
  struct stat about{};
  if (fstat(fd, &about) != 0) return io_error("cannot look at", options.path);
  if (about.st_size == 0) {
    if (Result<void> written = write_at(fd, header(), 0, options.path); !written) return written.error();
    return sink;
  }
  if (Result<void> checked = check_header(fd, options.path); !checked) return checked.error();
  // Behind the last whole batch.
  for (;;) {
    std::uint32_t size = 0;
    const Result<std::size_t> got =
        read_some(fd, std::as_writable_bytes(std::span(&size, 1)), sink->end_, options.path);
    if (!got) return got.error();
    if (*got < sizeof size || size > kMaxBatchBytes ||
        sink->end_ + sizeof size + size > static_cast<std::uint64_t>(about.st_size))
      break;
    sink->end_ += sizeof size + size;
  }
  if (ftruncate(fd, static_cast<off_t>(sink->end_)) != 0) return io_error("cannot cut", options.path);
  return sink;
}

FileSink::~FileSink() {
  ::close(fd_);
}

Result<void> FileSink::publish(const events::EventBatch& batch) {
  events::encode_batch(batch, bytes_);
  if (bytes_.size() > kMaxBatchBytes)
    return make_error(ErrorCode::kCapacity, "a batch of %zu bytes; a recording takes up to %u", bytes_.size(),
                      kMaxBatchBytes);
  const auto size = static_cast<std::uint32_t>(bytes_.size());
  record_.resize(sizeof size + bytes_.size());
  std::memcpy(record_.data(), &size, sizeof size);
  std::memcpy(record_.data() + sizeof size, bytes_.data(), bytes_.size());
  Result<void> written = write_at(fd_, record_, end_, options_.path);
  if (written && options_.sync && fdatasync(fd_) != 0) written = io_error("cannot sync", options_.path);
  if (!written) {
    // The next batch is written over it; what is left of it after that would end a reader's way.
    if (ftruncate(fd_, static_cast<off_t>(end_)) != 0)
      ASHLAR_LOG(LogLevel::kWarn, "feed", "%s keeps a part of a batch that could not be written",
                 options_.path.c_str());
    return written;
  }
  end_ += record_.size();
  return {};
}

Result<std::unique_ptr<FileSource>> FileSource::open(const Options& options) {
  // Not to wait for a writer of a pipe; files do not know the flag.
  const int fd = ::open(options.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return make_error(ErrorCode::kNotFound, "there is no file %s", options.path.c_str());
    return io_error("cannot open", options.path);
  }
  std::unique_ptr<FileSource> source(new FileSource(options, fd, kHeaderBytes));
  if (Result<void> checked = check_header(fd, options.path); !checked) return checked.error();
  return source;
}

FileSource::~FileSource() {
  ::close(fd_);
}

Result<bool> FileSource::read_at(std::uint64_t* at, events::OwnedBatch& out, bool* good) {
  std::uint32_t size = 0;
  const Result<std::size_t> head =
      read_some(fd_, std::as_writable_bytes(std::span(&size, 1)), *at, options_.path);
  if (!head) return head.error();
  if (*head < sizeof size) return false;
  if (size > kMaxBatchBytes)
    return make_error(ErrorCode::kCorruption, "%s: the batch at byte %llu would have %u bytes",
                      options_.path.c_str(), static_cast<unsigned long long>(*at), size);
  struct stat about{};
  if (fstat(fd_, &about) != 0) return io_error("cannot look at", options_.path);
  if (*at + sizeof size + size > static_cast<std::uint64_t>(about.st_size)) return false;
  bytes_.resize(size);
  const Result<std::size_t> body = read_some(fd_, bytes_, *at + sizeof size, options_.path);
  if (!body) return body.error();
  if (*body < size) return false;
  *at += sizeof size + size;
  *good = events::decode_batch(bytes_, out).has_value();
  return true;
}

Result<std::size_t> FileSource::poll(BatchConsumer& consumer, Clock::Duration timeout) {
  Clock& clock = options_.clock == nullptr ? Clock::real() : *options_.clock;
  const Clock::TimePoint until = clock.now() + timeout;
  std::size_t delivered = 0;
  std::size_t read = 0;
  events::OwnedBatch batch;
  while (read < options_.batches_per_poll) {
    bool good = false;
    const std::uint64_t place = at_;
    const Result<bool> there = read_at(&at_, batch, &good);
    if (!there) return there.error();
    if (*there) {
      ++read;
      if (good) {
        remember(batch.view(), place);
        consumer.on_batch(batch.view());
        ++delivered;
      } else {
        ++damaged_;
      }
      continue;
    }
    if (read != 0) break;
    if (!options_.follow) return make_error(ErrorCode::kNotFound, "%s has ended", options_.path.c_str());
    if (clock.now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // files do not say when they grow
  }
  return delivered;
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
  // Joins what it touches. A batch that follows the one before it, as nearly all do, makes that one longer.
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
    bool good = false;
    const Result<bool> there = read_at(&at, batch, &good);
    if (!there) return there.error();
    if (!*there) break;
    if (!good || batch.head.stream != stream) continue;
    const bool is_snapshot = batch.head.kind == events::BatchKind::kSnapshot;
    if (is_snapshot ? batch.head.first < from : batch.view().end() <= from) continue;
    if (is_snapshot || batch.head.first <= from) reaches = true;
    if (reaches) consumer.on_batch(batch.view());
  }
  return reaches;
}

}  // namespace ashlar::feed
