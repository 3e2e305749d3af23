// RecordingReader: the messages of a recording (ashlar/feed/recording_source.h), also behind damaged places.
//
// A recording has no marks and no checksums. A message is taken for whole when it has the form of one and another follows, or the
// file ends, or its payload is a batch of an engine. Where none stands, the bytes are searched for the next one.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes). Memory: one message, up to the limit, and 64 KiB to search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/engine_event.h"
#include "ashlar/feed/engine_source.h"

namespace ashlar::feed {

class RecordingReader {
 public:
  // Errors: kNotFound: no plain file that can be read.
  static Result<std::unique_ptr<RecordingReader>> open(const std::string& path,
                                                       std::size_t max_message_bytes);
  RecordingReader(const RecordingReader&) = delete;
  RecordingReader& operator=(const RecordingReader&) = delete;
  ~RecordingReader();

  // The next message; nothing at the end. Errors: kIo.
  Result<std::optional<EngineMessage>> next();
  std::uint64_t damaged() const noexcept { return damaged_; }  // places
  std::uint64_t unfinished_bytes() const noexcept { return unfinished_bytes_; }

 private:
  // Where the parts of a message lie. Of what is no message: as far as it has the form of one; the rest is 0.
  struct Form {
    std::uint64_t topic = 0;
    std::uint64_t topic_end = 0;
    std::uint64_t number = 0;
    std::uint64_t payload = 0;
    std::uint64_t end = 0;
  };
  enum class Shape : std::uint8_t { kWhole, kUnfinished, kNone };

  RecordingReader(std::string path, int fd, std::uint64_t size, std::size_t max_message_bytes)
      : path_(std::move(path)), fd_(fd), size_(size), max_message_bytes_(max_message_bytes) {}

  Result<void> read(std::uint64_t at, std::span<std::byte> out) const;
  // A length or a count, and what stands behind it; nothing where the file ends within.
  Result<std::optional<std::uint32_t>> take_u32(std::uint64_t& at) const;
  Result<std::uint64_t> sequence_at(std::uint64_t at) const;
  // kUnfinished: the file ends within.
  Result<Shape> read_form(std::uint64_t at, Form& form) const;
  Result<Shape> look(std::uint64_t at, Form& form);
  // Whether the payload is a batch of an engine.
  Result<bool> has_batch(const Form& form);
  // The next whole message from `at` on.
  Result<std::optional<std::uint64_t>> search(std::uint64_t at);
  Result<EngineMessage> message_of(const Form& form) const;

  const std::string path_;
  const int fd_;
  const std::uint64_t size_;
  const std::size_t max_message_bytes_;
  std::uint64_t at_ = 0;
  std::uint64_t damaged_ = 0;
  std::uint64_t unfinished_bytes_ = 0;
  events::EngineBatch batch_;
  std::vector<std::byte> bytes_;
};

}  // namespace ashlar::feed
