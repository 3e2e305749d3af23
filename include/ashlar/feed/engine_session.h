// EngineSession: one publisher of an engine (one rank's socket, or a recording), followed without silent
// loss.
//
// Messages are numbered from 0 without holes. The session applies each number once and in order; what is
// missing it asks back (EngineSource::replay()). What cannot be had back ends in a resync: everything known
// of the engine is dropped, a kCleared goes out, and the picture grows again from what follows: it lacks
// blocks from then on, but never shows one that is gone.
//
//   first message   number 0: applied. A later one: replay from 0; what is no longer kept counts as lost.
//   next number     applied. When it cannot be decoded, it is asked for once more, then it is lost.
//   a later number  a gap: replay from the last applied message on, which must come back as it was: when it
//                   does not, this is another life of the engine.
//   a lower number  a message that was applied before: a duplicate. One that was lost: too late, dropped.
//                   Another message under a number that was applied, a younger timestamp than the last, or a
//                   number far below (more than Options::remembered), or one that cannot be read and is not
//                   kept as it was: the engine was started anew; the old state disappears and a new one
//                   begins.
//
// A source that sees by itself that the engine was started anew (EngineSource::restarts()) ends the old life
// before any message does. What cannot be seen without: an engine that was started anew and whose first
// message to arrive has, by chance, the very next number. A message of the old life that arrives after one of
// the new is not told from it; one connection cannot do that.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes) per message; memory: EngineIngest's, a fingerprint per remembered message, one
//                decoded batch of up to max_batch_bytes, and one replay, as far as the source brings it at
//                once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/events/engine_event.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/feed/engine_ingest.h"
#include "ashlar/feed/engine_source.h"

namespace ashlar::feed {

struct EngineSessionOptions {
  EngineIngestOptions ingest = {};
  std::uint32_t remembered = 1024;  // messages, to tell duplicates from another life of the engine
  // Of a message when decoded. A larger one counts as one that cannot be decoded.
  std::size_t max_batch_bytes = events::kMaxEngineBatchBytes;

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

// Messages, but where it says otherwise.
struct EngineSessionCounters {
  std::uint64_t received = 0;
  std::uint64_t applied = 0;
  std::uint64_t replayed = 0;  // of these: by replay
  std::uint64_t duplicates = 0;
  std::uint64_t late = 0;               // came after they had been given up
  std::uint64_t lost = 0;               // numbers that never came in a readable form
  std::uint64_t undecodable = 0;        // each time one came
  std::uint64_t oversized = 0;          // of these: larger than max_batch_bytes when decoded
  std::uint64_t gaps = 0;               // times
  std::uint64_t replays = 0;            // times a replay was asked for
  std::uint64_t failed_replays = 0;     // of these: without an answer
  std::uint64_t resyncs = 0;            // times everything was dropped for a loss
  std::uint64_t restarts = 0;           // times the engine was started anew
  std::uint64_t incomplete_starts = 0;  // times the beginning of a stream could not be had

  friend bool operator==(const EngineSessionCounters&, const EngineSessionCounters&) = default;
};

class EngineSession {
 public:
  // Requires: a source. Errors: as EngineSessionOptions::validate().
  static Result<EngineSession> create(std::unique_ptr<EngineSource> source,
                                      EngineSessionOptions options = {});

  // Waits for a message up to `timeout` and appends what it changes, with what a replay brought before it.
  // Returns how many messages were applied. Errors: as EngineSource::receive(); the state stays, and a later
  // step goes on from there.
  Result<std::size_t> step(Clock::Duration timeout, std::vector<events::KvEvent>& out);

  // The number that should come next; nothing before the first message.
  std::optional<std::uint64_t> next() const noexcept { return next_; }
  const EngineIngest& ingest() const noexcept { return ingest_; }
  const EngineSessionCounters& counters() const noexcept { return counters_; }
  const EngineSource& source() const noexcept { return *source_; }

 private:
  struct Memory {
    std::uint64_t sequence = 0;
    std::uint64_t fingerprint = 0;
    bool known = false;
  };
  enum class Stale : std::uint8_t { kDuplicate, kLate, kRestart };

  EngineSession(std::unique_ptr<EngineSource> source, EngineSessionOptions options, EngineIngest ingest);

  void begin(const EngineMessage& message, std::vector<events::KvEvent>& out);
  void fill_gap(const EngineMessage& message, std::vector<events::KvEvent>& out);
  void restart(const EngineMessage& message, std::vector<events::KvEvent>& out);
  // Nothing is known any more.
  void forget(std::vector<events::KvEvent>& out);
  Stale judge(const EngineMessage& message);
  // Applies what has not been applied; numbers that are left out are lost.
  void follow(std::span<const EngineMessage> messages, std::vector<events::KvEvent>& out);
  // The same with what the source did not bring at once, up to number `until`.
  void follow(EngineReplay kept, std::uint64_t until, std::vector<events::KvEvent>& out);
  // The live message after a replay that was to lead up to it.
  void finish(const EngineMessage& message, std::vector<events::KvEvent>& out);
  // Requires: the next number. False when it cannot be decoded; nothing has changed then.
  bool apply(const EngineMessage& message, std::vector<events::KvEvent>& out);
  void apply_live(const EngineMessage& message, std::vector<events::KvEvent>& out);
  // The numbers before `sequence` are given up.
  void lose_until(std::uint64_t sequence, std::vector<events::KvEvent>& out);
  EngineReplay replay(std::uint64_t from);
  // Into batch_.
  bool decode(const EngineMessage& message);

  void remember(const EngineMessage& message);
  const Memory* recall(std::uint64_t sequence) const;

  std::unique_ptr<EngineSource> source_;
  EngineIngest ingest_;
  EngineSessionCounters counters_;
  std::optional<std::uint64_t> next_;
  std::uint64_t source_restarts_ = 0;
  double last_timestamp_ = 0;
  std::vector<Memory> memory_;  // by number modulo its size
  std::size_t max_batch_bytes_;
  events::EngineBatch batch_;
};

}  // namespace ashlar::feed
