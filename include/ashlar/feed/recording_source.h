// RecordingSource: the messages of an engine from a file, in the order they were recorded.
//
// The file has no header. Per message: u32 count of frames, then per frame u32 length and its bytes; little-endian. Frames are
// topic, number (8 bytes, big-endian) and payload; an empty frame may stand in front, as in answers to a replay. The end
// marker of a replay (number of all ones) is skipped, and so is a message of another form, which counts as damaged.
//
// Thread safety: thread-compatible.
// Complexity:    reads one message at a time; replay() reads its file from the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/feed/engine_source.h"

namespace ashlar::feed {

class RecordingSource final : public EngineSource {
 public:
  // `replay_path`: a recording that answers replay(); without one the source keeps nothing. Errors: kNotFound when a file cannot
  // be opened.
  static Result<std::unique_ptr<RecordingSource>> open(const std::string& path,
                                                       const std::string& replay_path = "");

  // Never waits. Errors: kNotFound at the end; kCorruption, with the place, when the file breaks off or its lengths cannot
  // be, then and on every later call.
  Result<std::optional<EngineMessage>> receive(Clock::Duration timeout) override;
  Result<std::vector<EngineMessage>> replay(std::uint64_t from) override;
  std::uint64_t damaged() const noexcept override { return damaged_; }
  std::string describe() const override { return "recording " + path_; }

 private:
  RecordingSource(std::string path, std::string replay_path)
      : path_(std::move(path)), replay_path_(std::move(replay_path)) {}

  std::string path_;
  std::string replay_path_;
  std::ifstream file_;
  std::uint64_t size_ = 0;  // of the file
  std::uint64_t at_ = 0;    // where the next message begins
  std::uint64_t damaged_ = 0;
  std::optional<Error> broken_;
};

}  // namespace ashlar::feed
