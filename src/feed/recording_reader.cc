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
constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kCountBytes = 4;

std::uint32_t little_endian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

bool is_count(std::uint32_t frames) {
  return frames == 3 || frames == 4;
}

}  // namespace

Result<std::unique_ptr<RecordingReader>> RecordingReader::create(const std::string& path,
                                                                 std::size_t max_message_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait for a pipe's writer
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

Result<void> RecordingReader::read(std::uint64_t at, std::span<std::byte> out) {
  ASHLAR_TRY(const std::size_t got, read_some(fd_, out, at, path_));
  budget_.read(got);
  if (got < out.size())
    return make_error(ErrorCode::kIo, "%s became shorter while it was read", path_.c_str());
  return {};
}

Result<std::optional<std::uint32_t>> RecordingReader::take_u32(std::uint64_t& at) {
  std::array<std::byte, 4> bytes{};
  if (at > size_ || size_ - at < bytes.size()) return std::optional<std::uint32_t>();
  ASHLAR_RETURN_IF_ERROR(read(at, bytes));
  at += bytes.size();
  return std::optional(little_endian(bytes));
}

Result<std::uint64_t> RecordingReader::sequence_at(std::uint64_t at) {
  std::array<std::byte, kNumberBytes> bytes{};
  ASHLAR_RETURN_IF_ERROR(read(at, bytes));
  std::uint64_t number = 0;
  for (const std::byte byte : bytes) number = number << 8 | std::to_integer<std::uint64_t>(byte);
  return number;
}

Result<RecordingReader::Shape> RecordingReader::read_form(std::uint64_t at, Form& form) {
  form = {};
  ASHLAR_TRY(const auto count, take_u32(at));
  if (!count) return Shape::kUnfinished;
  if (!is_count(*count)) return Shape::kNone;
  if (*count == 4) {
    ASHLAR_TRY(const auto delimiter, take_u32(at));
    if (!delimiter) return Shape::kUnfinished;
    if (*delimiter != 0) return Shape::kNone;
  }
  ASHLAR_TRY(const auto topic, take_u32(at));
  if (!topic) return Shape::kUnfinished;
  if (*topic > kMaxTopicBytes) return Shape::kNone;
  form.topic = at;
  at += *topic;
  form.topic_end = at;
  ASHLAR_TRY(const auto width, take_u32(at));
  if (!width) return Shape::kUnfinished;
  if (*width != kNumberBytes) return Shape::kNone;
  form.number = at;
  at += kNumberBytes;
  ASHLAR_TRY(const auto payload, take_u32(at));
  if (!payload) return Shape::kUnfinished;
  form.payload = at;
  if (*payload > max_message_bytes_) return Shape::kNone;
  form.end = at + *payload;
  if (form.end > size_) return Shape::kUnfinished;
  if (*payload != 0) return Shape::kWhole;
  ASHLAR_TRY(const std::uint64_t sequence, sequence_at(form.number));
  return sequence == kEndMarker ? Shape::kWhole : Shape::kNone;
}

Result<bool> RecordingReader::has_batch(const Form& form) {
  if (form.end <= form.payload || form.end - form.payload > max_message_bytes_) return false;
  bytes_.resize(static_cast<std::size_t>(form.end - form.payload));
  ASHLAR_RETURN_IF_ERROR(read(form.payload, bytes_));
  return events::decode_engine_batch(bytes_, batch_).has_value();
}

Result<RecordingReader::Shape> RecordingReader::look(std::uint64_t at, Form& form) {
  Result<Shape> shape = read_form(at, form);
  if (!shape || *shape != Shape::kWhole || form.end == size_) return shape;
  Form behind;
  ASHLAR_TRY(const Shape follows, read_form(form.end, behind));
  if (follows == Shape::kWhole) return Shape::kWhole;
  const std::uint64_t bytes = form.end - form.payload;
  if (!budget_.may_try(bytes)) return Shape::kNone;
  ASHLAR_TRY(const bool batch, has_batch(form));
  if (batch) return Shape::kWhole;
  budget_.fail(bytes);
  return Shape::kNone;
}

Result<std::optional<std::uint64_t>> RecordingReader::find(Search& search) {
  const auto move_to = [&](std::uint64_t at) {
    budget_.pass(at - search.at);
    search.at = at;
  };
  while (!budget_.is_slice_over() && search.at < size_ && size_ - search.at >= kCountBytes) {
    const std::uint64_t begin = search.at;
    window_.resize(window_behind(begin - at_));
    ASHLAR_TRY(const std::size_t got, read_some(fd_, window_, begin, path_));
    budget_.read(got);
    if (got < kCountBytes) break;
    bool is_over = false;
    for (std::size_t i = 0; i + kCountBytes <= got && !is_over; ++i) {
      if (!is_count(little_endian(std::span(window_).subspan(i, kCountBytes)))) continue;
      move_to(begin + i);
      budget_.visit();
      Form form;
      ASHLAR_TRY(const Shape shape, look(begin + i, form));
      if (shape == Shape::kWhole) return std::optional(begin + i);
      is_over = budget_.is_slice_over();
    }
    move_to(is_over ? search.at + 1 : begin + got - kCountBytes + 1);
  }
  return std::optional<std::uint64_t>();
}

Result<EngineMessage> RecordingReader::message_of(const Form& form) {
  EngineMessage message;
  message.topic.resize(static_cast<std::size_t>(form.topic_end - form.topic));
  const auto topic = std::as_writable_bytes(std::span(message.topic));
  ASHLAR_RETURN_IF_ERROR(read(form.topic, topic));
  ASHLAR_TRY(message.sequence, sequence_at(form.number));
  message.payload.resize(static_cast<std::size_t>(form.end - form.payload));
  ASHLAR_RETURN_IF_ERROR(read(form.payload, message.payload));
  return message;
}

Result<std::optional<RecordingReader::Form>> RecordingReader::judge(const Search& search,
                                                                    std::optional<std::uint64_t> after) {
  Form form = search.form;
  if (form.payload != 0) {
    // Perhaps only the length of the payload is damaged.
    form.end = after.value_or(size_);
    ASHLAR_TRY(const bool batch, has_batch(form));
    if (batch) {
      ++damaged_;
      return std::optional(form);
    }
  }
  if (!after && search.shape == Shape::kUnfinished) {
    unfinished_bytes_ = size_ - at_;
  } else {
    ++damaged_;
  }
  at_ = after.value_or(size_);
  return std::optional<Form>();
}

Result<std::optional<EngineMessage>> RecordingReader::next() {
  budget_.begin_slice();
  while (at_ < size_ && !budget_.is_slice_over()) {
    std::optional<Form> whole;
    if (!search_) {
      budget_.visit();
      Form form;
      ASHLAR_TRY(const Shape shape, look(at_, form));
      if (shape == Shape::kWhole) {
        whole = form;
      } else {
        search_ = Search{.shape = shape, .form = form, .at = at_ + 1};
      }
    }
    if (search_) {
      ASHLAR_TRY(const std::optional<std::uint64_t> after, find(*search_));
      if (!after && search_->at + kCountBytes <= size_) break;  // the slice is used up
      ASHLAR_TRY(const std::optional<Form> judged, judge(*search_, after));
      search_.reset();
      whole = judged;
    }
    if (!whole) continue;
    budget_.pass(whole->end - at_);
    at_ = whole->end;
    ASHLAR_TRY(EngineMessage message, message_of(*whole));
    if (message.sequence != kEndMarker) return std::optional(std::move(message));
  }
  return std::optional<EngineMessage>();
}

}  // namespace ashlar::feed
