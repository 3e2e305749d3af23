// RemoteCore: the parts of a RemoteNode: its agent, what it serves, and its tier.
//
// Thread safety: as RemoteNode.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/transfer/executor.h"
#include "tiers/pool/tier_pool.h"
#include "tiers/remote/remote_pool.h"
#include "tiers/remote/remote_server.h"

namespace ashlar::tiers {

class RemoteCore {
 public:
  // Brings blocks into G2 from a named agent. Returns why not all of them; empty: all.
  using Fetch = std::function<std::string(std::span<const tokens::SequenceHash> hashes,
                                          const std::string& source, std::optional<Clock::TimePoint> until)>;

  std::shared_ptr<transfer::RemoteAgent> agent;
  RemotePool* pool = nullptr;  // of the TierStack
  BytePool* g2 = nullptr;
  transfer::BlockSetNames names;
  Clock* clock = nullptr;
  Clock::Duration lease = {};
  Clock::Duration copy_limit = {};
  Fetch fetch;
  // Of G1 and G2: visits their registered blocks, those of both twice; and whether one of them has a block.
  std::function<void(const std::function<void(const tokens::SequenceHash&)>& visit)> each_in_memory;
  std::function<bool(const tokens::SequenceHash& hash)> is_in_memory;
  std::unique_ptr<RemoteServer> server;  // null: nothing is served

  // Errors: kNotFound: no such peer, or no set of it that fits here.
  Result<std::shared_ptr<const transfer::RemoteBlockSet>> set_of(const transfer::AgentIdentity& peer,
                                                                 std::uint64_t id) const;
  // The part of a peer's blocks that this rank holds too.
  RemotePart common_part(const transfer::RemoteBlockSet& set) const;
};

// A reservation in the landing of a peer. Dropping it returns the slots, unless they were committed.
class RemoteReservation {
 public:
  // `part`: that this rank writes.
  RemoteReservation(std::shared_ptr<const transfer::RemoteBlockSet> set, std::uint64_t id,
                    std::vector<std::uint32_t> slots, const RemotePart& part, std::weak_ptr<RemoteCore> core,
                    const transfer::BlockSetNames& names)
      : set_(std::move(set)),
        id_(id),
        slots_(std::move(slots)),
        part_(part),
        core_(std::move(core)),
        names_(names) {}
  ~RemoteReservation();
  RemoteReservation(const RemoteReservation&) = delete;
  RemoteReservation& operator=(const RemoteReservation&) = delete;

  const transfer::RemoteBlockSet& set() const noexcept { return *set_; }
  std::span<const std::uint32_t> slots() const noexcept { return slots_; }
  const RemotePart& part() const noexcept { return part_; }
  bool is_whole() const { return part_ == RemotePart{set_->shard().layers, set_->shard().heads}; }
  Result<std::vector<Result<Pushed>>> commit(std::span<const tokens::SequenceHash> hashes,
                                             const transfer::RemoteCallLimits& limits);

 private:
  const std::shared_ptr<const transfer::RemoteBlockSet> set_;
  const std::uint64_t id_;
  const std::vector<std::uint32_t> slots_;
  const RemotePart part_;
  const std::weak_ptr<RemoteCore> core_;  // of the manager, whose blocks are committed
  const transfer::BlockSetNames names_;
  bool over_ = false;
};

// Registers what peers took and gave. The core outlives the registrations. Errors: those of the registry.
Result<void> add_remote_metrics(const RemoteCore& core, MetricRegistry& metrics, const MetricLabels& labels,
                                std::vector<MetricRegistration>& out);

}  // namespace ashlar::tiers
