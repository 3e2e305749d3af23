// TierStack: the tiers of a KvBlockManager and what moves blocks between them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/transfer/executor.h"
#include "tiers/disk/disk_pool.h"
#include "tiers/onboard/cost_model.h"
#include "tiers/onboard/kv_metrics.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/late_values.h"
#include "tiers/pool/memory_pool.h"
#include "tiers/remote/remote_pool.h"
#include "tiers/volume/volume_pool.h"

namespace ashlar::tiers {

struct TierStack {
  Clock* clock = &Clock::real();
  std::optional<block::BlockRegistry> registry;
  std::optional<block::BlockManager<events::G1>> g1_manager;
  std::optional<block::BlockManager<events::G2>> g2_manager;
  std::optional<block::BlockManager<events::G3>> g3_manager;
  std::optional<block::BlockManager<events::G4>> g4_manager;
  std::optional<block::BlockManager<events::Remote>> remote_manager;
  std::shared_ptr<transfer::Executor> executor;
  std::unique_ptr<MemoryPool<events::G1>> g1;
  std::unique_ptr<MemoryPool<events::G2>> g2;
  std::unique_ptr<DiskPool> g3;
  std::unique_ptr<VolumePool> g4;
  std::unique_ptr<RemotePool> remote;
  LateValues values;
  std::unique_ptr<BlockMover> mover;
  CostModel costs;
  KvMetrics metrics;

  // The present tiers, from G1 down, as kAllStorageTiers has them.
  std::vector<TierPool*> pools() const {
    std::vector<TierPool*> out = {g1.get()};
    if (g2 != nullptr) out.push_back(g2.get());
    if (remote != nullptr) out.push_back(remote.get());
    if (g3 != nullptr) out.push_back(g3.get());
    if (g4 != nullptr) out.push_back(g4.get());
    return out;
  }
};

}  // namespace ashlar::tiers
