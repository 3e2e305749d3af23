// EngineSource: where the messages of an inference engine come from: its socket, or a recording.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
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

  // What it takes in memory, about.
  std::size_t bytes() const noexcept { return sizeof(EngineMessage) + topic.size() + payload.size(); }
};

// What an engine keeps, in order.
struct EngineReplay {
  std::vector<EngineMessage> messages = {};
  bool is_cut = false;  // more did not fit the memory that the source may take; ask again behind the last
};

class EngineSource {
 public:
  virtual ~EngineSource() = default;
  // The next message; nothing when none came within `timeout`. A message of another form is counted in
  // damaged() and skipped. Errors: kUnavailable: not connected now; kNotFound: a recording has ended.
  virtual Result<std::optional<EngineMessage>> receive(Clock::Duration timeout) = 0;
  // The messages from number `from` on that the engine still keeps; at least two of them, where it keeps so
  // many. Errors: kUnsupported: it keeps none; kTimeout, kUnavailable.
  virtual Result<EngineReplay> replay(std::uint64_t from) = 0;
  virtual std::uint64_t damaged() const noexcept = 0;
  // Of a recording that has ended: bytes of a last message that was not finished. They are no damage.
  virtual std::uint64_t unfinished_bytes() const noexcept { return 0; }
  // How often the source itself saw that the engine was started anew: what was delivered before is void. What
  // messages tell themselves is not counted here.
  virtual std::uint64_t restarts() const noexcept { return 0; }
  virtual std::string describe() const = 0;
};

}  // namespace ashlar::feed
