// EventBatch: consecutive events of one stream, as sinks publish and feeds deliver them.
//
// A stream is one incarnation of one worker. Its events are numbered from 0 without gaps, however they are
// batched: a batch carries the number of its first event, and the next batch starts where it ended. A
// snapshot is the whole state of a stream just before an event, split into parts. It does not advance the
// numbers, and it replaces everything a listener knew of the worker.
//
// Thread safety: plain values. An EventBatch refers to memory that its maker owns; OwnedBatch owns its
//                memory.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/tokens/namespace_fingerprint.h"

namespace ashlar::events {

struct StreamId {
  Worker worker;
  std::uint64_t incarnation = 0;  // increases on every restart of the worker

  friend auto operator<=>(const StreamId&, const StreamId&) = default;
};

// How the blocks of a stream are named. A listener refuses streams with other keys.
struct StreamKeys {
  std::uint64_t scheme = 0;  // tokens::HashScheme::fingerprint(); 0: unknown
  tokens::NamespaceFingerprint name_space = {};
  std::uint32_t block_size = 0;  // tokens

  friend bool operator==(const StreamKeys&, const StreamKeys&) = default;
};

// A volume or device that KvEvent::location refers to.
struct LocationName {
  std::uint16_t number = 0;
  std::string name;

  friend bool operator==(const LocationName&, const LocationName&) = default;
};

inline constexpr std::uint32_t kMaxSnapshotParts = 1u << 16;

enum class BatchKind : std::uint8_t { kEvents, kSnapshot };

struct EventBatch {
  StreamId stream = {};
  StreamKeys keys = {};
  BatchKind kind = BatchKind::kEvents;
  // Number of the first event; for a snapshot: of the next event.
  std::uint64_t first = 0;
  std::uint32_t part = 0;         // of a snapshot, from 0
  std::uint32_t parts = 1;        // of a snapshot
  std::int64_t published_ns = 0;  // Unix time
  std::span<const KvEvent> events = {};
  std::span<const LocationName> locations = {};  // those that the events refer to

  // The number after the last event.
  std::uint64_t end() const noexcept { return kind == BatchKind::kEvents ? first + events.size() : first; }
};

// Memory that a copy of the batch takes, allocator overhead included.
inline std::size_t memory_of(const EventBatch& batch) noexcept {
  constexpr std::size_t kBatch = 256;
  constexpr std::size_t kName = 32;
  std::size_t bytes = kBatch + batch.events.size() * sizeof(KvEvent);
  for (const LocationName& location : batch.locations)
    bytes += sizeof(LocationName) + kName + location.name.size();
  return bytes;
}

// A batch that owns its memory.
struct OwnedBatch {
  EventBatch head;  // without events and locations
  std::vector<KvEvent> events;
  std::vector<LocationName> locations;

  EventBatch view() const noexcept {
    EventBatch batch = head;
    batch.events = events;
    batch.locations = locations;
    return batch;
  }
  static OwnedBatch of(const EventBatch& batch) {
    OwnedBatch out{.head = batch,
                   .events = {batch.events.begin(), batch.events.end()},
                   .locations = {batch.locations.begin(), batch.locations.end()}};
    out.head.events = {};
    out.head.locations = {};
    return out;
  }
};

// Publishes the batches of an EventManager. User-defined transports implement it. Called by one thread at a
// time, never under a lock and never on an inference path: it may wait for the network, within its own
// limits.
class BatchSink {
 public:
  virtual ~BatchSink() = default;
  // Errors: the batch was not sent; the caller keeps it and retries it, or a snapshot, later. kCapacity: it
  // is too large; a snapshot in parts is retried from its first part.
  virtual Result<void> publish(const EventBatch& batch) = 0;
  // Waits until published batches are delivered, for sinks whose publish() only starts the delivery. Errors:
  // kTimeout; kUnavailable.
  virtual Result<void> flush(Clock::TimePoint until) {
    static_cast<void>(until);
    return {};
  }
  // For logs and status; called once.
  virtual std::string describe() const = 0;
};

// Provides the current state of a stream, for feeds that answer requests for snapshots.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  // The state of the stream and the number of its next event, in one batch of kind kSnapshot.
  virtual OwnedBatch snapshot() = 0;
};

}  // namespace ashlar::events
