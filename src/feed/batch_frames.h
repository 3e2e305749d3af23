// BatchFrames: finds the whole batches of an event file, even after damage (docs/formats/events.md).
//
// A batch is whole if its magic and checksum are right; the length in front of it is only a hint. After
// damage the bytes are searched for the next magic with a length that leads to a right checksum. A batch with
// only its length damaged is whole too: it reaches to the next one, or to the end of the file.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes) for any content: the cost of candidates is limited (SearchBudget). One call reads
//                at most about 64 MiB, plus the batch it finds and the last one it tries. Memory: one batch,
//                64 KiB to search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "feed/search_budget.h"

namespace ashlar::feed {

inline constexpr std::size_t kFeedHeaderBytes = 16;  // of the file
inline constexpr std::size_t kFrameLengthBytes = 4;  // before each batch

class BatchFrames {
 public:
  enum class Kind : std::uint8_t {
    kBatch,       // bytes() has it
    kDamaged,     // no batch up to `next`, where a whole one begins
    kSearching,   // no batch so far; call again to continue
    kUnfinished,  // the file ends within a possible batch
    kEnd,         // the file ends, perhaps with damage
  };
  struct Found {
    Kind kind = Kind::kEnd;
    std::uint64_t next = 0;     // where to look next
    std::uint64_t damaged = 0;  // bytes before `next` that belong to no batch
    std::uint64_t left = 0;     // kUnfinished: bytes
  };

  // `path` is for messages. A batch larger than `max_batch_bytes` counts as damage.
  BatchFrames(int fd, std::string path, std::size_t max_batch_bytes)
      : fd_(fd), path_(std::move(path)), max_batch_bytes_(max_batch_bytes) {}

  // The frame at byte `at`. Errors: kIo.
  Result<Found> look(std::uint64_t at);
  std::span<const std::byte> bytes() const noexcept { return batch_; }
  // Of the file, so far.
  std::uint64_t bytes_read() const noexcept { return budget_.total(); }

 private:
  enum class Frame : std::uint8_t { kWhole, kUnfinished, kBroken };
  Result<std::size_t> read(std::span<std::byte> bytes, std::uint64_t at);
  Result<Frame> read_frame(std::uint64_t at, std::uint64_t size);
  // The same for a frame whose head is known.
  Result<Frame> try_frame(std::uint64_t at, std::uint64_t size, std::span<const std::byte> head);
  // Whether [begin, end) is a whole batch; bytes() then has it.
  Result<bool> read_batch(std::uint64_t begin, std::uint64_t end);
  // The next whole frame from search_at_ on; advances search_at_, for a slice of the budget.
  Result<std::optional<std::uint64_t>> search(std::uint64_t size);

  int fd_;
  std::string path_;
  std::size_t max_batch_bytes_;
  SearchBudget budget_;
  std::vector<std::byte> batch_;
  std::vector<std::byte> window_;
  // The search after a position without a whole batch; no file has a frame at byte 0.
  std::uint64_t broken_at_ = 0;
  std::uint64_t search_at_ = 0;      // no whole frame begins between the two
  std::uint64_t searched_size_ = 0;  // of the file
  std::int64_t searched_time_ = 0;   // of its last change
  Frame broken_ = Frame::kBroken;    // the state of the frame at broken_at_
  bool is_searched_ = false;         // to the end of the file, of this size; no frame found
  std::optional<std::uint64_t>
      unfinished_at_;  // the first frame in between that may become whole when the file grows
};

// Bytes that a search reads at once: few where damage begins, more as it continues.
std::size_t window_behind(std::uint64_t searched);
// Returns the number of bytes read, at most those requested. Errors: kIo.
Result<std::size_t> read_some(int fd, std::span<std::byte> bytes, std::uint64_t at, const std::string& path);
Result<void> write_at(int fd, std::span<const std::byte> bytes, std::uint64_t at, const std::string& path);
// "cannot read PATH: No such device", by errno.
Error feed_io_error(const char* what, const std::string& path);

}  // namespace ashlar::feed
