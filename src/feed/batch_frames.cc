#include "feed/batch_frames.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "ashlar/events/event_codec.h"

namespace ashlar::feed {
namespace {

constexpr std::size_t kSearchWindow = std::size_t{64} << 10;
constexpr std::uint64_t kSearchBytes = std::uint64_t{64} << 20;  // in one call
constexpr std::size_t kHeadBytes = kFrameLengthBytes + events::kBatchMagic.size();

std::uint32_t length_of(std::span<const std::byte> frame) {
  std::uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof length);
  return length;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Error feed_io_error(const char* what, const std::string& path) {
  return make_error(ErrorCode::kIo, "%s %s: %s", what, path.c_str(), std::strerror(errno));  // NOLINT
}

Result<std::size_t> read_some(int fd, std::span<std::byte> bytes, std::uint64_t at, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return feed_io_error("cannot read", path);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

Result<void> write_at(int fd, std::span<const std::byte> bytes, std::uint64_t at, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return feed_io_error("cannot write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<bool> BatchFrames::read_batch(std::uint64_t begin, std::uint64_t end) {
  if (end < begin + events::kBatchHeaderBytes || end - begin > max_batch_bytes_) return false;
  // The magic first: memory is taken only for what may be a batch.
  std::array<std::byte, events::kBatchMagic.size()> magic{};
  const Result<std::size_t> head = read_some(fd_, magic, begin, path_);
  if (!head) return head.error();
  if (*head < magic.size() || as_text(magic) != events::kBatchMagic) return false;
  batch_.resize(static_cast<std::size_t>(end - begin));
  const Result<std::size_t> body = read_some(fd_, batch_, begin, path_);
  if (!body) return body.error();
  return *body == batch_.size() && events::is_whole_batch(batch_);
}

Result<BatchFrames::Frame> BatchFrames::read_frame(std::uint64_t at, std::uint64_t size) {
  std::array<std::byte, kHeadBytes> head{};
  const Result<std::size_t> got =
      read_some(fd_, std::span(head).first(std::min<std::uint64_t>(size - at, head.size())), at, path_);
  if (!got) return got.error();
  if (*got < kFrameLengthBytes) return Frame::kUnfinished;
  const std::uint32_t length = length_of(head);
  const std::string_view magic =
      as_text(std::span(head).subspan(kFrameLengthBytes, *got - kFrameLengthBytes));
  if (length < events::kBatchHeaderBytes || length > max_batch_bytes_ ||
      !events::kBatchMagic.starts_with(magic))
    return Frame::kBroken;
  const std::uint64_t begin = at + kFrameLengthBytes;
  if (begin + length > size) return Frame::kUnfinished;
  const Result<bool> whole = read_batch(begin, begin + length);
  if (!whole) return whole.error();
  return *whole ? Frame::kWhole : Frame::kBroken;
}

Result<std::optional<std::uint64_t>> BatchFrames::search(std::uint64_t size) {
  const std::uint64_t stop = search_at_ + kSearchBytes;
  window_.resize(kSearchWindow);
  while (search_at_ < stop && search_at_ + kHeadBytes <= size) {
    const Result<std::size_t> got = read_some(fd_, window_, search_at_, path_);
    if (!got) return got.error();
    const std::string_view text = as_text(std::span(window_).first(*got));
    if (text.size() < kHeadBytes) break;
    for (std::size_t found = text.find(events::kBatchMagic, kFrameLengthBytes); found != text.npos;
         found = text.find(events::kBatchMagic, found + 1)) {
      const std::uint64_t place = search_at_ + found - kFrameLengthBytes;
      const Result<Frame> frame = read_frame(place, size);
      if (!frame) return frame.error();
      if (*frame == Frame::kWhole) return std::optional(place);
      if (*frame == Frame::kUnfinished && !unfinished_at_) unfinished_at_ = place;
    }
    search_at_ += text.size() - kHeadBytes + 1;  // windows overlap by what a head may lack
  }
  return std::optional<std::uint64_t>();
}

Result<BatchFrames::Found> BatchFrames::look(std::uint64_t at) {
  struct stat about{};
  if (fstat(fd_, &about) != 0) return feed_io_error("cannot look at", path_);
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if (at >= size) return Found{.kind = Kind::kEnd, .next = at};
  const Result<Frame> frame = read_frame(at, size);
  if (!frame) return frame.error();
  if (*frame == Frame::kWhole)
    return Found{.kind = Kind::kBatch, .next = at + kFrameLengthBytes + batch_.size()};

  if (broken_at_ != at) {
    broken_at_ = at;
    search_at_ = at + 1;
    unfinished_at_.reset();
  } else if (size != searched_size_ && unfinished_at_) {
    search_at_ = *std::exchange(unfinished_at_, std::nullopt);  // it may be whole by now
  }
  searched_size_ = size;
  const Result<std::optional<std::uint64_t>> after = search(size);
  if (!after) return after.error();
  if (!*after && search_at_ + kHeadBytes <= size) return Found{.kind = Kind::kSearching, .next = at};
  // Perhaps only the length is damaged.
  const std::uint64_t end = after->value_or(size);
  const Result<bool> reaches = read_batch(at + kFrameLengthBytes, end);
  if (!reaches) return reaches.error();
  if (*reaches) return Found{.kind = Kind::kBatch, .next = end, .damaged = kFrameLengthBytes};
  if (*after) return Found{.kind = Kind::kDamaged, .next = end, .damaged = end - at};
  if (*frame == Frame::kUnfinished) return Found{.kind = Kind::kUnfinished, .next = at, .left = size - at};
  return Found{.kind = Kind::kEnd, .next = size, .damaged = size - at};
}

}  // namespace ashlar::feed
