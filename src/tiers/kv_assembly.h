// The parts of a KvBlockManager. Members are destroyed last to first: those that move blocks before the
// blocks.
#pragma once

#include <atomic>
#include <memory>

#include "ashlar/base/mutex.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "tiers/kv_prefix_source.h"
#include "tiers/offload/offload_worker.h"
#include "tiers/onboard/onboarder.h"
#include "tiers/onboard/tier_stack.h"
#include "tiers/pool/pin_board.h"
#include "tiers/pressure_relay.h"
#include "tiers/remote/remote_core.h"

namespace ashlar::tiers {

// Observes G1 and G2: whichever way their blocks are registered or taken, they are offered to the tier below.
struct KvBlockManager::Assembly final : block::BlockObserver {
  explicit Assembly(KvOptions its_options) : options(std::move(its_options)) {}

  void handed_out(std::span<const block::BlockId>) noexcept override;
  void registered(std::span<const block::RegisteredBlock> blocks) noexcept override;
  void retention_set(const tokens::SequenceHash& hash,
                     const block::BlockRetention& retention) noexcept override;
  void offer_to_g2(std::span<const block::RegisteredBlock> blocks);

  tokens::PrefixKey prefix_key() const {
    return options.prefix_key ? *options.prefix_key : tokens::PrefixKey::of_namespace(options.keys);
  }
  // Builds all of it. Errors: see create().
  Result<void> open();

  // Offers the next eviction victims of a tier to a worker, if its trigger asks for it.
  template <events::Tier Tier>
  void look_ahead(block::BlockManager<Tier>& manager, TierPool& pool, const OffloadRoute& route,
                  OffloadWorker* worker, TierPool* below);
  // Offers those that the tier below does not have.
  static void offer(std::span<const tokens::SequenceHash> blocks, TierPool& pool, OffloadWorker& worker,
                    TierPool& below);
  // Blocks of G1 that a preempted request is about to release.
  void offer_leaving(std::span<const tokens::SequenceHash> hashes);
  // See RemoteCore::Fetch.
  std::string fetch(std::span<const tokens::SequenceHash> hashes, const std::string& from,
                    std::optional<Clock::TimePoint> until);
  void look_ahead_g1();
  void look_ahead_g2();
  OffloadWorker::Finish begin_move(BytePool& from, BytePool& to, std::vector<block::Hold> holds,
                                   const MoveOptions& move) const;
  void arrived_in_g2(const tokens::SequenceHash& hash, std::uint8_t priority);

  // Blocks that users registered in G2 themselves. Those that were copied there are offered by who copied.
  struct HostObserver final : block::BlockObserver {
    explicit HostObserver(Assembly& its_assembly) : assembly(its_assembly) {}
    void registered(std::span<const block::RegisteredBlock> blocks) noexcept override;
    void retention_set(const tokens::SequenceHash& hash,
                       const block::BlockRetention& retention) noexcept override;
    Assembly& assembly;
  };

  // Calls fn(manager) for the manager of each present tier.
  template <class F>
  void each_manager(F&& fn) {
    const auto with = [&](auto& manager) {
      if (manager) fn(*manager);
    };
    with(stack.g1_manager);
    with(stack.g2_manager);
    with(stack.g3_manager);
    with(stack.g4_manager);
    with(stack.remote_manager);
  }
  void name_locations(events::EventManager& events) const;
  // The file or volume of a location; empty for memory.
  std::string location_name(std::uint16_t location) const;
  void detach_locked() ASHLAR_REQUIRES(listener_mu);

  const KvOptions options;
  const std::shared_ptr<PressureRelay> relay = std::make_shared<PressureRelay>();
  HostObserver host_observer{*this};
  TierStack stack;
  std::shared_ptr<PinBoard> pins;
  std::shared_ptr<RemoteCore> remote_core;  // observes G2, whose blocks the workers below hold
  std::optional<RemoteNode> remote;
  Mutex listener_mu;  // taken before the locks of the EventManager and of the stores
  events::EventManager* listener ASHLAR_GUARDED_BY(listener_mu) = nullptr;
  bool draining ASHLAR_GUARDED_BY(listener_mu) = false;  // drain_events() hands events to its sink
  std::atomic<bool> closing{false};                      // no new block is offloaded
  std::atomic<bool> closed{false};                       // no block is offloaded
  std::unique_ptr<OffloadWorker> to_g4;
  std::unique_ptr<OffloadWorker> to_g3;
  std::unique_ptr<OffloadWorker> to_g2;
  std::unique_ptr<Onboarder> onboarder;
  std::unique_ptr<KvPrefixSource> source;

 private:
  // The manager of a tier with this shape.
  template <events::Tier Tier, class Shape>
  Result<void> open_manager(const Shape& shape, std::optional<block::BlockManager<Tier>>& out) const;
  Result<void> open_memory();
  Result<void> open_disk();
  Result<void> open_volumes();
  Result<void> open_remote();
  Result<void> open_workers();
  Result<void> meet_peers();
};

}  // namespace ashlar::tiers
