#include "ashlar/feed/recording_source.h"

#include <array>
#include <cinttypes>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

namespace ashlar::feed {
namespace {

constexpr std::uint32_t kMaxFrames = 64;
constexpr std::uint64_t kEndMarker = std::numeric_limits<std::uint64_t>::max();
using Frames = std::vector<std::vector<std::byte>>;

struct Cursor {
  std::ifstream& file;
  const std::string& path;
  std::uint64_t size;
  std::uint64_t& at;

  Error broken(std::uint64_t where, const char* what, std::uint64_t value) const {
    return make_error(ErrorCode::kCorruption,
                      "the recording %s is damaged at byte %" PRIu64 ": %s (%" PRIu64
                      "); record it again or cut it there",
                      path.c_str(), where, what, value);
  }

  Result<std::uint32_t> number(std::uint64_t& place) const {
    std::array<unsigned char, 4> bytes{};
    if (size - place < bytes.size())
      return broken(place, "it breaks off within a number, bytes left", size - place);
    file.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
    if (!file) return make_error(ErrorCode::kIo, "cannot read %s at byte %" PRIu64, path.c_str(), place);
    place += bytes.size();
    return static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8 |
           static_cast<std::uint32_t>(bytes[2]) << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
  }

  // Moves behind the message. Requires: at < size.
  Result<Frames> message() const {
    std::uint64_t place = at;
    const auto count = number(place);
    if (!count) return count.error();
    if (*count > kMaxFrames) return broken(at, "a message cannot have so many frames", *count);
    Frames frames;
    for (std::uint32_t i = 0; i < *count; ++i) {
      const auto length = number(place);
      if (!length) return length.error();
      if (*length > size - place)
        return broken(place - 4, "a frame is longer than the rest of the file, bytes", *length);
      std::vector<std::byte>& frame = frames.emplace_back(*length);
      file.read(reinterpret_cast<char*>(frame.data()), static_cast<std::streamsize>(*length));
      if (!file) return make_error(ErrorCode::kIo, "cannot read %s at byte %" PRIu64, path.c_str(), place);
      place += *length;
    }
    at = place;
    return frames;
  }
};

std::optional<EngineMessage> message_of(Frames& frames) {
  const std::size_t first = frames.size() == 4 && frames[0].empty() ? 1 : 0;
  if (frames.size() - first != 3 || frames[first + 1].size() != 8) return std::nullopt;
  EngineMessage message;
  for (const std::byte b : frames[first]) message.topic.push_back(static_cast<char>(b));
  for (const std::byte b : frames[first + 1])
    message.sequence = message.sequence << 8 | std::to_integer<std::uint64_t>(b);
  message.payload = std::move(frames[first + 2]);
  return message;
}

Result<std::uint64_t> open_file(const std::string& path, std::ifstream& file) {
  std::error_code unknown;
  if (std::filesystem::is_fifo(path, unknown))  // which would wait for a writer
    return make_error(ErrorCode::kNotFound, "the recording %s is no plain file; name one", path.c_str());
  file.open(path, std::ios::binary | std::ios::ate);
  if (!file)
    return make_error(ErrorCode::kNotFound, "cannot open the recording %s; name a file that can be read",
                      path.c_str());
  const std::streamoff size = file.tellg();
  file.seekg(0);
  if (size < 0 || !file)
    return make_error(ErrorCode::kNotFound, "the recording %s is no plain file; name one", path.c_str());
  return static_cast<std::uint64_t>(size);
}

}  // namespace

Result<std::unique_ptr<RecordingSource>> RecordingSource::open(const std::string& path,
                                                               const std::string& replay_path) {
  std::unique_ptr<RecordingSource> source(new RecordingSource(path, replay_path));
  const auto size = open_file(path, source->file_);
  if (!size) return size.error();
  source->size_ = *size;
  if (!replay_path.empty()) {
    std::ifstream replay;
    if (const auto there = open_file(replay_path, replay); !there) return there.error();
  }
  return source;
}

Result<std::optional<EngineMessage>> RecordingSource::receive(Clock::Duration) {
  if (broken_) return *broken_;
  while (at_ < size_) {
    auto frames = Cursor{file_, path_, size_, at_}.message();
    if (!frames) {
      broken_ = frames.error();
      return *broken_;
    }
    std::optional<EngineMessage> message = message_of(*frames);
    if (message && message->sequence == kEndMarker) continue;
    if (message) return message;
    ++damaged_;
  }
  return make_error(ErrorCode::kNotFound, "the recording %s has ended", path_.c_str());
}

Result<std::vector<EngineMessage>> RecordingSource::replay(std::uint64_t from) {
  if (replay_path_.empty())
    return make_error(ErrorCode::kUnsupported, "the recording %s has no replay file beside it",
                      path_.c_str());
  std::ifstream file;
  const auto size = open_file(replay_path_, file);
  if (!size) return make_error(ErrorCode::kUnavailable, "%s", size.error().message().c_str());
  std::vector<EngineMessage> messages;
  for (std::uint64_t at = 0; at < *size;) {
    auto frames = Cursor{file, replay_path_, *size, at}.message();
    if (!frames) return frames.error();
    std::optional<EngineMessage> message = message_of(*frames);
    if (!message) {
      ++damaged_;
    } else if (message->sequence != kEndMarker && message->sequence >= from) {
      messages.push_back(*std::move(message));
    }
  }
  return messages;
}

}  // namespace ashlar::feed
