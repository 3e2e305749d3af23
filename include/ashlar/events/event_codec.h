// The bytes of a batch in Ashlar's own format, and of an index's dump (docs/formats/events.md).
//
// Consecutive stores of a chain in one tier are encoded as one run, and so are removals that go along a chain
// in either direction: common fields are written once, and parents follow from the blocks.
//
// Thread safety: thread-safe; free functions without state. DumpWriter is thread-compatible.
// Complexity:    O(bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/index_sink.h"

namespace ashlar::events {

// Replaces `out`. A reused buffer allocates nothing once it is large enough.
void encode_batch(const EventBatch& batch, std::vector<std::byte>& out);

// Replaces `out`. Uses at most `max_bytes` of memory; the limit is checked before allocating.
// Errors: kCorruption: not a batch, truncated, or a wrong checksum; kUnsupported: an unknown version;
// kCapacity: larger than `max_bytes`.
inline constexpr std::size_t kMaxDecodedBytes = std::size_t{256} << 20;
Result<void> decode_batch(std::span<const std::byte> bytes, OwnedBatch& out,
                          std::size_t max_bytes = kMaxDecodedBytes);

// The first bytes of every batch, and its smallest size.
inline constexpr std::string_view kBatchMagic = "AKEV";
inline constexpr std::size_t kBatchHeaderBytes = 96;
// Whether the bytes are an undamaged batch, of any version: its magic and checksum agree.
bool is_whole_batch(std::span<const std::byte> bytes) noexcept;

// Length of the first run, for formats that send runs: a chain of stores, or removals of whatever sequences,
// of one tier, group and location.
std::size_t run_length(std::span<const KvEvent> events) noexcept;

// Where a listener stands in a worker's stream.
struct StreamPosition {
  std::uint64_t incarnation = 0;
  std::uint64_t next = 0;  // number of the next event

  friend bool operator==(const StreamPosition&, const StreamPosition&) = default;
};

// DumpWriter: the dump of an index as bytes: a file of our own stream with one snapshot per (worker, rank).
//
//   DumpWriter writer;
//   index.dump(writer);
//   const std::vector<std::byte> bytes = std::move(writer).finish().value();
//   read_dump(bytes, other);                                                    // any index
//   read_dump(bytes, [&](const EventBatch& batch) { receiver.on_batch(batch); });  // a replica
//
// A block's hash in the file has its name as the chain hash. So a replica that received the dump continues
// with the live stream where names are chain hashes, as those of our own managers are; a StreamReceiver says
// from which number on (StreamReceiver::position()). Names that an engine chose are read back exactly too,
// but the live stream of that worker names parents by hashes that no dump has: let it send a snapshot.
//
// Complexity: O(calls). Memory: the bytes, about 28 per (worker, tier, block) in long runs.
class DumpWriter final : public IndexSink {
 public:
  struct Options {
    StreamKeys keys = {};
    // Empty: incarnation 0, number 0.
    std::function<StreamPosition(const Worker&)> position = {};
    std::size_t batch_events = 4096;  // the most in one batch
    // The most memory that a reader needs for one batch; no batch exceeds what decode_batch() allows.
    std::size_t batch_bytes = kMaxDecodedBytes;
  };

  DumpWriter();
  explicit DumpWriter(Options options);
  ~DumpWriter() override;

  // The most events in one batch, as both options allow.
  std::size_t batch_events() const noexcept { return options_.batch_events; }
  // Calls that cannot be written are remembered as the error of finish().
  StoreVerdict store(const BlocksStored& event) override;
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override;
  void clear(const Worker& worker) override;
  void remove_worker(WorkerId worker) override;

  // Errors: kUnsupported: a position beyond SequenceHash::kMaxPosition, a parent without a position, or a
  // call that no dump has: remove_worker().
  [[nodiscard]] Result<std::vector<std::byte>> finish() &&;

 private:
  struct Snapshot;
  Snapshot& snapshot_of(const Worker& worker);
  void flush(const Worker& worker, Snapshot& snapshot);

  Options options_;
  std::map<Worker, std::unique_ptr<Snapshot>> snapshots_;
  std::optional<Error> error_;
};

// Makes the calls of a dump on `into`. The whole dump is checked first: an error leaves `into` unchanged.
// Requires: `into` holds nothing of the dump's workers. Errors: kCorruption: not a dump, truncated, damaged,
// a block that is stored twice or whose parent is missing; kUnsupported: an unknown version, or events that
// no dump has; kCapacity: `into` refused a store, at once or, where it applies calls later and tells
// presence, behind its queue: the workers of the dump are cleared.
Result<DumpCounts> read_dump(std::span<const std::byte> bytes, IndexSink& into);
// The same as batches: a complete snapshot of each worker. Errors: as above.
Result<DumpCounts> read_dump(std::span<const std::byte> bytes,
                             const std::function<void(const EventBatch&)>& deliver);

}  // namespace ashlar::events
