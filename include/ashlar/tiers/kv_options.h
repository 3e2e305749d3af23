// KvOptions: everything a KvBlockManager is made of: the model, its tiers, and what goes down from one to the
// next.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/events/access_sampler.h"
#include "ashlar/layout/layout.h"
#include "ashlar/layout/shard.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/storage/io_faults.h"
#include "ashlar/tiers/offload_lane.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::tiers {

// A tier in memory.
struct TierShape {
  std::uint32_t blocks = 0;
  layout::AxisOrder order = layout::order::kFullyContiguousNhd;
  std::string eviction = "lru";
  // Where its memory comes from; plain host memory unless given.
  std::shared_ptr<storage::Allocator> allocator = {};
};

// A tier in files, each best on a device of its own; blocks are dealt out among them.
struct DiskShape {
  std::uint32_t blocks = 0;
  std::vector<std::string> paths = {};
  std::string eviction = "lru";
  bool survive_power_loss = true;
  // None, or one for each file.
  std::vector<std::shared_ptr<storage::IoFaults>> faults = {};
};

// A tier on volumes.
struct VolumeShape {
  std::uint32_t blocks =
      0;  // that are remembered; what is forgotten may still be found by asking the volumes
  std::string eviction = "lru";
  bool remove_evicted = false;  // from the volume, too
  bool probe = true;            // volumes are asked for blocks that no tier is known to have
  // A volume that could not be reached is left alone this long.
  Clock::Duration rest = std::chrono::seconds(5);
  // No call of a volume is waited for longer than this, also where a request has no deadline. Zero: as long
  // as it takes.
  Clock::Duration call_limit = std::chrono::minutes(5);
  std::vector<VolumeDescriptor> volumes = {};
  VolumeRegistry kinds = VolumeRegistry::with_builtin();
};

enum class Trigger : std::uint8_t {
  kOnArrival,     // write-through: as soon as a block is registered above
  kNearEviction,  // write-back: when it is among the next to be evicted above
  kOnCall,        // only by offload()
};

// One way down.
struct WayDown {
  Trigger trigger = Trigger::kOnArrival;
  std::size_t look_ahead = 64;  // near: so many blocks from eviction
  OffloadLaneOptions lane = {};
};

struct KvOptions {
  // Shape of a block, as far as this rank holds it; num_blocks is that of each tier.
  layout::LayoutConfig model;
  // What travels with it, such as the scales of FP8 values: the same layers and tokens, as many heads or one
  // for all.
  std::vector<layout::LayoutConfig> scales = {};
  // Which rank this is, and which layers and heads of the whole model it holds: as many as `model` has. A
  // model that is not divided needs none. Where it is divided, every rank must set it: two ranks that leave
  // it unset share keys. Ranks that set it may share volumes: each finds its own blocks there. Each has files
  // of its own.
  layout::Shard shard = {};
  std::uint32_t block_size = 16;  // tokens
  tokens::NamespaceFingerprint keys = {};
  std::uint64_t scheme_fingerprint = 0;
  block::RegistryOptions registry = {};
  TierShape g1;
  std::optional<TierShape> g2 = {};
  std::optional<DiskShape> g3 = {};
  std::optional<VolumeShape> g4 = {};
  WayDown to_g2 = {};
  WayDown to_g3 = {};
  WayDown to_g4 = {};
  // What was written to disks and volumes is read back and compared before it counts.
  bool read_back_after_write = false;
  std::uint32_t onboard_threads = 2;  // for onboard_async() and prefetch()
  // Events that each tier keeps for attach_events() or drain_events(); 0: none are made.
  std::size_t event_capacity = 0;
  std::shared_ptr<events::AccessSampler> accesses = {};  // samples the hits of all tiers
  // Runs all copies; host memory and files unless given. Deadlines are by `clock`, which it shares then.
  std::shared_ptr<transfer::Executor> executor = {};
  Clock* clock = nullptr;

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

}  // namespace ashlar::tiers
