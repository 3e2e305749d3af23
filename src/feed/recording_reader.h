// RecordingReader: the messages of a recording (ashlar/feed/engine_source.h), even after damage.
//
// A recording has no magic and no checksums. A message counts as whole if it is well-formed and another one
// or the end of the file follows, or its payload is an engine's batch. After damage the bytes are searched
// for the next one.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes) for any content: the cost of candidates is limited (SearchBudget). One call reads
//                at most about 64 MiB, plus the message it finds and the last one it tries. Memory: one
//                message, up to the limit, and 64 KiB to search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/feed/engine_source.h"
#include "feed/search_budget.h"

namespace ashlar::feed {

class RecordingReader {
 public:
  // Errors: kNotFound: not a readable plain file.
  static Result<std::unique_ptr<RecordingReader>> create(const std::string& path,
                                                         std::size_t max_message_bytes);
  RecordingReader(const RecordingReader&) = delete;
  RecordingReader& operator=(const RecordingReader&) = delete;
  ~RecordingReader();

  // The next message; nullopt at the end, or when the search needs another call. Errors: kIo.
  Result<std::optional<EngineMessage>> next();
  bool has_ended() const noexcept { return at_ >= size_; }
  std::uint64_t bytes_read() const noexcept { return budget_.total(); }
  std::uint64_t damaged() const noexcept { return damaged_; }  // places
  std::uint64_t unfinished_bytes() const noexcept { return unfinished_bytes_; }

 private:
  // Offsets of the parts of a message. For a non-message: as far as it has the form of one; the rest is 0.
  struct Form {
    std::uint64_t topic = 0;
    std::uint64_t topic_end = 0;
    std::uint64_t number = 0;
    std::uint64_t payload = 0;
    std::uint64_t end = 0;
  };
  enum class Shape : std::uint8_t { kWhole, kUnfinished, kNone };
  // The search for the next whole message after at_, where none begins.
  struct Search {
    Shape shape = Shape::kNone;  // of the bytes at at_
    Form form = {};
    std::uint64_t at = 0;  // no whole message begins before it
  };

  RecordingReader(std::string path, int fd, std::uint64_t size, std::size_t max_message_bytes)
      : path_(std::move(path)), fd_(fd), size_(size), max_message_bytes_(max_message_bytes) {}

  Result<void> read(std::uint64_t at, std::span<std::byte> out);
  // A length or a count, and the offset after it; nullopt where the file ends within.
  Result<std::optional<std::uint32_t>> take_u32(std::uint64_t& at);
  Result<std::uint64_t> sequence_at(std::uint64_t at);
  // kUnfinished: the file ends within.
  Result<Shape> read_form(std::uint64_t at, Form& form);
  Result<Shape> look(std::uint64_t at, Form& form);
  // Whether the payload is an engine's batch.
  Result<bool> has_batch(const Form& form);
  // The next whole message; advances search.at, for a slice of the budget.
  Result<std::optional<std::uint64_t>> find(Search& search);
  // What became of the bytes before `after`, where a whole message stands, or before the end: nothing, or a
  // message after all.
  Result<std::optional<Form>> judge(const Search& search, std::optional<std::uint64_t> after);
  Result<EngineMessage> message_of(const Form& form);

  const std::string path_;
  const int fd_;
  const std::uint64_t size_;
  const std::size_t max_message_bytes_;
  SearchBudget budget_;
  std::uint64_t at_ = 0;
  std::optional<Search> search_;
  std::uint64_t damaged_ = 0;
  std::uint64_t unfinished_bytes_ = 0;
  events::EngineBatch batch_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> window_;
};

}  // namespace ashlar::feed
