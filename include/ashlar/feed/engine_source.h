// EngineSource: the source of an inference engine's messages. User-defined transports implement it;
// RecordingSource reads a recording, backend/zmq/zmq_engine_source.h an engine's socket.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::feed {

// One message as the engine sent it; the payload is a batch (events/engine_codec.h).
struct EngineMessage {
  std::string topic;
  std::uint64_t sequence = 0;
  std::vector<std::byte> payload;

  // Approximate memory use.
  std::size_t bytes() const noexcept { return sizeof(EngineMessage) + topic.size() + payload.size(); }
};

// Messages that an engine still keeps, in order.
struct EngineReplay {
  std::vector<EngineMessage> messages = {};
  bool is_cut = false;  // more did not fit the memory limit; ask again after the last
};

class EngineSource {
 public:
  virtual ~EngineSource() = default;
  // The next message; nullopt when none came within `timeout`. A malformed message is counted in damaged()
  // and skipped. Errors: kUnavailable: not connected now; kNotFound: a recording has ended.
  virtual Result<std::optional<EngineMessage>> receive(Clock::Duration timeout) = 0;
  // The messages from number `from` on that the engine still keeps; at least two if it has that many. Errors:
  // kUnsupported: it keeps none; kTimeout, kUnavailable.
  virtual Result<EngineReplay> replay(std::uint64_t from) = 0;
  virtual std::uint64_t damaged() const noexcept = 0;
  // Of a recording that has ended: bytes of an unfinished last message. They do not count as damage.
  virtual std::uint64_t unfinished_bytes() const noexcept { return 0; }
  // Restarts that the source itself detected: earlier messages are void. Restarts visible from messages are
  // not counted.
  virtual std::uint64_t restarts() const noexcept { return 0; }
  // Whether the engine was asked for what it keeps since the last connect, and answered: what was received is
  // then all there is, up to what is still on its way.
  virtual bool has_looked_back() const noexcept { return false; }
  // Reconnects after which nothing told what was missed: the engine keeps no messages, or did not say which.
  // Later messages may continue the earlier ones, or come from another run of the engine whose numbers happen
  // to follow.
  virtual std::uint64_t blind_reconnects() const noexcept { return 0; }
  virtual std::string describe() const = 0;
};

class RecordingReader;

// RecordingSource: the messages of an engine from a file, in the order they were recorded.
//
// The file has no header. Per message: u32 count of frames, then per frame u32 length and its bytes;
// little-endian. Frames are topic, number (8 bytes, big-endian) and payload, optionally after an empty frame,
// as in answers to a replay. The end marker of a replay (number of all ones) is skipped. Other bytes count as
// damaged, and reading continues with the next valid message. The format has no checksums: a changed payload
// is noticed only if it cannot be decoded, and a last message whose damaged length leads beyond the file
// counts as unfinished.
//
// Thread safety: thread-compatible.
// Complexity:    reads one message at a time; replay() reads its file from the start.
class RecordingSource final : public EngineSource {
 public:
  struct Options {
    std::string path;
    std::string replay_path = {};  // a recording that answers replay(); empty: no replay
    std::size_t max_message_bytes = std::size_t{256} << 20;  // of a payload; a larger one counts as damaged
    std::size_t max_replay_bytes = std::size_t{256} << 20;   // of the messages that one replay() returns
  };
  // Errors: kNotFound when a file cannot be opened.
  static Result<std::unique_ptr<RecordingSource>> create(Options options);
  ~RecordingSource() override;

  // Never waits. May return nullopt inside a long damaged range, which is searched over several calls.
  // Errors: kNotFound at the end; kIo.
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
