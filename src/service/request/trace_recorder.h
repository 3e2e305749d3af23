// TraceRecorder: writes the traffic as a trace that replay tools read: a line of JSON per request in
// Mooncake's form,
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …],
//    "session": "…"}
//
// on one line, with timestamps in milliseconds since the start, and no text: a hash id stands for a block of
// the prompt with everything before it, by a keyed hash, numbered in order of appearance. A last block that
// is not full has an id of its own. Where the blocks of a prompt are not known, hash_ids is left out, and so
// is output_length where nobody counted the answer. A line is written when its request ends.
//
// Each line has its whole prompt. It names its session by `session`: of lines with one `session_id` AIPerf
// makes a conversation, whose prompts it appends to each other.
//
// Thread safety: thread-safe. A thread of its own writes; a disk that is full or slow never delays a request:
//                lines are dropped and counted. The file ends with a whole line.
// Complexity:    add() is O(blocks), without system calls but for waking the thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::service {

struct TraceLine {
  Clock::TimePoint arrived;
  std::uint64_t input_tokens = 0;
  std::optional<std::uint64_t> output_tokens = {};  // nothing: not known
  std::uint32_t block_size = 0;
  std::span<const tokens::LocalHash> locals = {};  // of the prompt's full blocks
  std::uint64_t session = 0;                       // a keyed hash; 0: none
};

class TraceRecorder {
 public:
  struct Options {
    std::string path;
    std::size_t max_waiting_bytes = std::size_t{16} << 20;
    std::size_t max_ids = std::size_t{1} << 24;  // known hashes; beyond them the oldest get new numbers
  };
  // Errors: kIo: the file cannot be made; kAlreadyExists.
  static Result<std::unique_ptr<TraceRecorder>> create(const Options& options, Clock& clock = Clock::real());
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  void add(const TraceLine& line);
  std::uint64_t written() const noexcept;
  std::uint64_t dropped() const noexcept;
  // Waits until everything so far is in the file, of which the destructor takes care too. Errors: kIo: lines
  // were lost since the last call.
  Result<void> flush();

 private:
  struct State;
  explicit TraceRecorder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::service
