#include "feed/recording_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <utility>

#include "ashlar/events/engine_codec.h"
#include "feed/batch_frames.h"

namespace ashlar::feed {
namespace {

constexpr std::uint64_t kEndMarker = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kMaxTopicBytes = 65'536;
constexpr std::size_t kRecordingWindow = std::size_t{64} << 10;
constexpr std::size_t kNumberBytes = 8;

std::uint32_t little_endian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

bool is_count(std::uint32_t frames) {
  return frames == 3 || frames == 4;
}

}  // namespace

Result<std::unique_ptr<RecordingReader>> RecordingReader::open(const std::string& path,
                                                               std::size_t max_message_bytes) {
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer is not waited for
  struct stat about{};
  if (fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    if (fd >= 0) ::close(fd);
    return make_error(ErrorCode::kNotFound,
                      "cannot open the recording %s; name a plain file that can be read", path.c_str());
  }
  return std::unique_ptr<RecordingReader>(
      new RecordingReader(path, fd, static_cast<std::uint64_t>(about.st_size), max_message_bytes));
}

RecordingReader::~RecordingReader() {
  ::close(fd_);
}

Result<void> RecordingReader::read(std::uint64_t at, std::span<std::byte> out) const {
  const Result<std::size_t> got = read_some(fd_, out, at, path_);
  if (!got) return got.error();
  if (*got < out.size())
    return make_error(ErrorCode::kIo, "%s became shorter while it was read", path_.c_str());
  return {};
}

Result<std::optional<std::uint32_t>> RecordingReader::take_u32(std::uint64_t& at) const {
  std::array<std::byte, 4> bytes{};
  if (at > size_ || size_ - at < bytes.size()) return std::optional<std::uint32_t>();
  if (Result<void> good = read(at, bytes); !good) return good.error();
  at += bytes.size();
  return std::optional(little_endian(bytes));
}

Result<std::uint64_t> RecordingReader::sequence_at(std::uint64_t at) const {
  std::array<std::byte, kNumberBytes> bytes{};
  if (Result<void> good = read(at, bytes); !good) return good.error();
  std::uint64_t number = 0;
  for (const std::byte byte : bytes) number = number << 8 | std::to_integer<std::uint64_t>(byte);
  return number;
}

Result<RecordingReader::Shape> RecordingReader::read_form(std::uint64_t at, Form& form) const {
  form = {};
  const auto count = take_u32(at);
  if (!count) return count.error();
  if (!*count) return Shape::kUnfinished;
  if (!is_count(**count)) return Shape::kNone;
  if (**count == 4) {
    const auto delimiter = take_u32(at);
    if (!delimiter) return delimiter.error();
    if (!*delimiter) return Shape::kUnfinished;
    if (**delimiter != 0) return Shape::kNone;
  }
  const auto topic = take_u32(at);
  if (!topic) return topic.error();
  if (!*topic) return Shape::kUnfinished;
  if (**topic > kMaxTopicBytes) return Shape::kNone;
  form.topic = at;
  at += **topic;
  form.topic_end = at;
  const auto width = take_u32(at);
  if (!width) return width.error();
  if (!*width) return Shape::kUnfinished;
  if (**width != kNumberBytes) return Shape::kNone;
  form.number = at;
  at += kNumberBytes;
  const auto payload = take_u32(at);
  if (!payload) return payload.error();
  if (!*payload) return Shape::kUnfinished;
  form.payload = at;
  if (**payload > max_message_bytes_) return Shape::kNone;
  form.end = at + **payload;
  if (form.end > size_) return Shape::kUnfinished;
  if (**payload != 0) return Shape::kWhole;
  const Result<std::uint64_t> sequence = sequence_at(form.number);
  if (!sequence) return sequence.error();
  return *sequence == kEndMarker ? Shape::kWhole : Shape::kNone;
}

Result<bool> RecordingReader::has_batch(const Form& form) {
  if (form.end <= form.payload || form.end - form.payload > max_message_bytes_) return false;
  bytes_.resize(static_cast<std::size_t>(form.end - form.payload));
  if (Result<void> good = read(form.payload, bytes_); !good) return good.error();
  return events::decode_engine_batch(bytes_, batch_).has_value();
}

Result<RecordingReader::Shape> RecordingReader::look(std::uint64_t at, Form& form) {
  const Result<Shape> shape = read_form(at, form);
  if (!shape || *shape != Shape::kWhole || form.end == size_) return shape;
  Form behind;
  const Result<Shape> follows = read_form(form.end, behind);
  if (!follows) return follows.error();
  if (*follows == Shape::kWhole) return Shape::kWhole;
  const Result<bool> batch = has_batch(form);
  if (!batch) return batch.error();
  return *batch ? Shape::kWhole : Shape::kNone;
}

Result<std::optional<std::uint64_t>> RecordingReader::search(std::uint64_t at) {
  std::vector<std::byte> window(kRecordingWindow);
  while (at < size_ && size_ - at >= 4) {
    const Result<std::size_t> got = read_some(fd_, window, at, path_);
    if (!got) return got.error();
    if (*got < 4) break;
    for (std::size_t i = 0; i + 4 <= *got; ++i) {
      if (!is_count(little_endian(std::span(window).subspan(i, 4)))) continue;
      Form form;
      const Result<Shape> shape = look(at + i, form);
      if (!shape) return shape.error();
      if (*shape == Shape::kWhole) return std::optional(at + i);
    }
    at += *got - 3;
  }
  return std::optional<std::uint64_t>();
}

Result<EngineMessage> RecordingReader::message_of(const Form& form) const {
  EngineMessage message;
  message.topic.resize(static_cast<std::size_t>(form.topic_end - form.topic));
  const auto topic = std::as_writable_bytes(std::span(message.topic));
  if (Result<void> good = read(form.topic, topic); !good) return good.error();
  const Result<std::uint64_t> sequence = sequence_at(form.number);
  if (!sequence) return sequence.error();
  message.sequence = *sequence;
  message.payload.resize(static_cast<std::size_t>(form.end - form.payload));
  if (Result<void> good = read(form.payload, message.payload); !good) return good.error();
  return message;
}

Result<std::optional<EngineMessage>> RecordingReader::next() {
  while (at_ < size_) {
    Form form;
    const Result<Shape> shape = look(at_, form);
    if (!shape) return shape.error();
    bool is_whole = *shape == Shape::kWhole;
    if (!is_whole) {
      const Result<std::optional<std::uint64_t>> after = search(at_ + 1);
      if (!after) return after.error();
      if (form.payload != 0) {
        // Perhaps only the length of the payload is damaged.
        form.end = after->value_or(size_);
        const Result<bool> batch = has_batch(form);
        if (!batch) return batch.error();
        is_whole = *batch;
      }
      if (!is_whole && !*after && *shape == Shape::kUnfinished) {
        unfinished_bytes_ = size_ - at_;
        at_ = size_;
        break;
      }
      ++damaged_;
      at_ = after->value_or(size_);
    }
    if (!is_whole) continue;
    at_ = form.end;
    Result<EngineMessage> message = message_of(form);
    if (!message) return message.error();
    if (message->sequence != kEndMarker) return std::optional(*std::move(message));
  }
  return std::optional<EngineMessage>();
}

}  // namespace ashlar::feed
