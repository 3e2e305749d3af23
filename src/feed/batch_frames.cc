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

std::size_t window_behind(std::uint64_t searched) {
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(4 * searched, 512, std::uint64_t{64} << 10));
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

Result<std::size_t> BatchFrames::read(std::span<std::byte> bytes, std::uint64_t at) {
  Result<std::size_t> got = read_some(fd_, bytes, at, path_);
  if (got) budget_.read(*got);
  return got;
}

Result<bool> BatchFrames::read_batch(std::uint64_t begin, std::uint64_t end) {
  if (end < begin + events::kBatchHeaderBytes || end - begin > max_batch_bytes_) return false;
  // The magic first: memory is allocated only for a possible batch.
  std::array<std::byte, events::kBatchMagic.size()> magic{};
  ASHLAR_TRY(const std::size_t head, read(magic, begin));
  if (head < magic.size() || as_text(magic) != events::kBatchMagic) return false;
  batch_.resize(static_cast<std::size_t>(end - begin));
  ASHLAR_TRY(const std::size_t body, read(batch_, begin));
  return body == batch_.size() && events::is_whole_batch(batch_);
}

Result<BatchFrames::Frame> BatchFrames::read_frame(std::uint64_t at, std::uint64_t size) {
  std::array<std::byte, kHeadBytes> head{};
  ASHLAR_TRY(const std::size_t got,
             read(std::span(head).first(std::min<std::uint64_t>(size - at, head.size())), at));
  return try_frame(at, size, std::span(head).first(got));
}

Result<BatchFrames::Frame> BatchFrames::try_frame(std::uint64_t at, std::uint64_t size,
                                                  std::span<const std::byte> head) {
  if (head.size() < kFrameLengthBytes) return Frame::kUnfinished;
  const std::uint32_t length = length_of(head);
  if (length < events::kBatchHeaderBytes || length > max_batch_bytes_ ||
      !events::kBatchMagic.starts_with(as_text(head.subspan(kFrameLengthBytes))))
    return Frame::kBroken;
  const std::uint64_t begin = at + kFrameLengthBytes;
  if (begin + length > size) return Frame::kUnfinished;
  budget_.visit();
  if (!budget_.may_try(length)) return Frame::kBroken;
  ASHLAR_TRY(const bool whole, read_batch(begin, begin + length));
  if (whole) return Frame::kWhole;
  budget_.fail(length);
  return Frame::kBroken;
}

Result<std::optional<std::uint64_t>> BatchFrames::search(std::uint64_t size) {
  const auto move_to = [this](std::uint64_t at) {
    budget_.pass(at - search_at_);
    search_at_ = at;
  };
  while (!budget_.is_slice_over() && search_at_ + kHeadBytes <= size) {
    const std::uint64_t begin = search_at_;
    window_.resize(window_behind(begin - broken_at_));
    ASHLAR_TRY(const std::size_t got, read(window_, begin));
    const std::span<const std::byte> window = std::span(window_).first(got);
    const std::string_view text = as_text(window);
    if (text.size() < kHeadBytes) break;
    bool is_over = false;
    for (std::size_t found = text.find(events::kBatchMagic, kFrameLengthBytes);
         found != text.npos && !is_over; found = text.find(events::kBatchMagic, found + 1)) {
      const std::uint64_t place = begin + found - kFrameLengthBytes;
      move_to(place);
      ASHLAR_TRY(const Frame frame,
                 try_frame(place, size, window.subspan(found - kFrameLengthBytes, kHeadBytes)));
      if (frame == Frame::kWhole) return std::optional(place);
      if (frame == Frame::kUnfinished && !unfinished_at_) unfinished_at_ = place;
      is_over = budget_.is_slice_over();
    }
    // Windows overlap by the bytes that a cut-off head may lack.
    move_to(is_over ? search_at_ + 1 : begin + text.size() - kHeadBytes + 1);
  }
  return std::optional<std::uint64_t>();
}

Result<BatchFrames::Found> BatchFrames::look(std::uint64_t at) {
  struct stat about{};
  if (fstat(fd_, &about) != 0) return feed_io_error("cannot look at", path_);
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if (at >= size) return Found{.kind = Kind::kEnd, .next = at};
  budget_.begin_slice();
  const std::int64_t time = std::int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec;
  const bool has_grown = size > searched_size_;
  const bool is_same = size == searched_size_ && time == searched_time_;
  // Broken data stays broken while the file only grows; it is not read again.
  if (broken_at_ != at || !(is_same || (has_grown && broken_ == Frame::kBroken))) {
    ASHLAR_TRY(const Frame frame, read_frame(at, size));
    if (frame == Frame::kWhole) {
      const std::uint64_t next = at + kFrameLengthBytes + batch_.size();
      budget_.pass(next - at);
      return Found{.kind = Kind::kBatch, .next = next};
    }
    broken_ = frame;
  }
  if (broken_at_ != at) {
    broken_at_ = at;
    search_at_ = at + 1;
    unfinished_at_.reset();
    is_searched_ = false;
  } else if (!is_same) {
    if (unfinished_at_)
      search_at_ = *std::exchange(unfinished_at_, std::nullopt);  // it may be complete by now
    is_searched_ = false;
  }
  searched_size_ = size;
  searched_time_ = time;
  const auto nothing_more = [&] {
    is_searched_ = true;
    if (broken_ == Frame::kUnfinished) return Found{.kind = Kind::kUnfinished, .next = at, .left = size - at};
    return Found{.kind = Kind::kEnd, .next = size, .damaged = size - at};
  };
  if (is_searched_) return nothing_more();
  ASHLAR_TRY(const std::optional<std::uint64_t> after, search(size));
  if (!after && search_at_ + kHeadBytes <= size) return Found{.kind = Kind::kSearching, .next = at};
  // Perhaps only the length is damaged.
  const std::uint64_t end = after.value_or(size);
  ASHLAR_TRY(const bool reaches, read_batch(at + kFrameLengthBytes, end));
  if (reaches) return Found{.kind = Kind::kBatch, .next = end, .damaged = kFrameLengthBytes};
  if (after) return Found{.kind = Kind::kDamaged, .next = end, .damaged = end - at};
  return nothing_more();
}

}  // namespace ashlar::feed
