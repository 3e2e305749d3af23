// ZmqEventSink: publishes a stream in the format of inference engines, so that listeners of engines can
// follow Ashlar.
//
// A chain of stores is one BlockStored, removals in one tier are one BlockRemoved. AllBlocksCleared covers
// device memory only in that format, so other tiers are cleared by naming their blocks. A snapshot, and a
// recovery from lost events, is a clear followed by stores. The format has no accesses; they are dropped.
//
// Thread safety: thread-compatible.
// Complexity:    O(events); memory: one record per block that is present.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::backend::zmq {

// The engines' name of a tier: "GPU", "CPU", "DISK", "STORAGE", "REMOTE"; "EXTERNAL" for others.
std::string_view medium_of(events::TierId tier) noexcept;

class ZmqEventSink final : public events::BatchSink {
 public:
  struct Options {
    std::string topic = {};
    events::EngineForm form = events::EngineForm::kMap;
    // The tokens of a block. Listeners that identify content by tokens need them; a block without tokens is
    // published by name only.
    std::function<std::optional<std::vector<tokens::Token>>(const tokens::SequenceHash&)> tokens_of = {};
    // The cache salt of a block; empty: none. Published with the first block of a sequence, as engines do, so
    // that listeners tell tenants apart.
    std::function<std::string(const tokens::SequenceHash&)> salt_of = {};
  };

  explicit ZmqEventSink(std::shared_ptr<EnginePublisher> publisher)
      : ZmqEventSink(std::move(publisher), {}) {}
  ZmqEventSink(std::shared_ptr<EnginePublisher> publisher, Options options);

  // Errors: kCapacity, as the publisher.
  Result<void> publish(const events::EventBatch& batch) override;
  std::string describe() const override;

 private:
  struct Present {
    events::BlockName name;
    std::uint8_t tiers = 0;  // bit by tier
  };
  using Blocks = std::unordered_map<tokens::SequenceHash, Present>;

  static void apply(Blocks& blocks, std::span<const events::KvEvent> events);
  void add_clear(const Blocks& blocks, events::TierId tier);
  void add_run(std::span<const events::KvEvent> run, std::uint32_t block_size);
  void add_stores(std::span<const events::KvEvent> run, std::uint32_t block_size);
  std::optional<events::BlockName> parent_name(const events::KvEvent& event) const;

  const std::shared_ptr<EnginePublisher> publisher_;
  const Options options_;
  Blocks present_;
  // Of the batch that is being written.
  std::unordered_map<tokens::SequenceHash, events::BlockName> names_;
  events::EngineBatch batch_;
  std::vector<std::byte> bytes_;
};

}  // namespace ashlar::backend::zmq
