// RecordingSource: the messages of an engine from a file, in the order they were recorded.
//
// The file has no header. Per message: u32 count of frames, then per frame u32 length and its bytes;
// little-endian. Frames are topic, number (8 bytes, big-endian) and payload; an empty frame may stand in
// front, as in answers to a replay. The end marker of a replay (number of all ones) is skipped. What is no
// such message counts as damaged, and reading goes on with the next one that is. The format has no checksums:
// a payload that was changed is noticed only when it cannot be decoded, and a last message whose damaged
// length leads beyond the file counts as unfinished.
//
// Thread safety: thread-compatible.
// Complexity:    reads one message at a time; replay() reads its file from the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/feed/engine_source.h"

namespace ashlar::feed {

class RecordingReader;

class RecordingSource final : public EngineSource {
 public:
  struct Options {
    std::string path;
    std::string replay_path = {};  // a recording that answers replay(); without one the source keeps nothing
    std::size_t max_message_bytes = std::size_t{256} << 20;  // of a payload; a larger one counts as damaged
    std::size_t max_replay_bytes = std::size_t{256} << 20;   // of the messages that one replay() returns
  };
  // Errors: kNotFound when a file cannot be opened.
  static Result<std::unique_ptr<RecordingSource>> open(Options options);
  ~RecordingSource() override;

  // Never waits. Nothing comes where a damaged place is so long that it is searched in several calls. Errors:
  // kNotFound at the end; kIo.
  Result<std::optional<EngineMessage>> receive(Clock::Duration timeout) override;
  Result<EngineReplay> replay(std::uint64_t from) override;
  std::uint64_t damaged() const noexcept override;
  std::uint64_t unfinished_bytes() const noexcept override;
  std::string describe() const override { return "recording " + options_.path; }

 private:
  RecordingSource(Options options, std::unique_ptr<RecordingReader> reader);

  const Options options_;
  const std::unique_ptr<RecordingReader> reader_;
  std::uint64_t damaged_in_replays_ = 0;
};

}  // namespace ashlar::feed
