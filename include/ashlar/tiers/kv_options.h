// KvOptions: describes a KvBlockManager: the model, its tiers, and the offload routes between them; ModelRank
// says for it which part of a model a rank holds.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/eviction.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/block/reset_allocator.h"
#include "ashlar/events/access_sampler.h"
#include "ashlar/layout/layout.h"
#include "ashlar/layout/shard.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/tiers/offload_options.h"
#include "ashlar/tiers/remote.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::tiers {

// The eviction backend of a tier: a name of block::eviction_names(), or a factory, such as
// block::multi_lru_eviction(thresholds), block::retention_eviction(options), or block::eviction_of<B>() of a
// backend of the user's.
using EvictionChoice = std::variant<std::string, block::EvictionFactory>;

// How the BlockManager of a tier treats its blocks, beyond eviction. The fields are those of
// block::ManagerOptions.
struct PoolOptions {
  // G1 and G2. A hash has one block in G3 and G4.
  block::DuplicatePolicy duplicates = block::DuplicatePolicy::kReject;
  // Empty: first in, first out; in G3 the lowest block first, so that blocks written together are adjacent.
  block::ResetAllocatorFactory reset_allocator = {};
  std::size_t max_pins = 0;  // 0: a quarter of the blocks
  // on_pressure of G1 runs on the thread whose call crossed a watermark. Those of the other tiers run on a
  // thread of the manager, one after the other, and may begin just before create() returns. They may call
  // the manager, but not destroy it; the destructor waits for one that runs.
  block::Watermarks watermarks = {};
  block::PressureCallback on_pressure = {};
  // Both for G1 only: blocks arrive in the other tiers without tokens, and stay there without users.
  bool keep_tokens = false;
  bool default_reset_on_release = false;
};

// Memory that the caller has, for one plane of a tier's blocks: the tensors of an engine, on the host or on a
// device. Its owners keep it alive; without owners it must outlive the manager.
struct PlaneMemory {
  // One for all layers, or one per layer. Without strides, each has exactly the bytes of the tier's blocks.
  std::vector<storage::ExternalMemory> regions = {};
  // Empty: TierShape::order. With a region per layer, the position of the layer axis is ignored.
  std::optional<layout::AxisOrder> order = {};
  // In place of an order: strides of memory that has gaps, or more blocks than the tier uses. With a region
  // per layer, strides.layer is 0.
  std::optional<layout::Strides> strides = {};
};

// G1 or G2: a tier in memory. Its memory comes from an allocator, or is what the caller has: `memory` or
// `blocks`.
struct TierShape {
  std::uint32_t block_count = 0;  // 0 is allowed with `blocks`: all of them
  layout::AxisOrder order = layout::order::kFullyContiguousNhd;
  EvictionChoice eviction = "lru";
  // Null: pageable host memory.
  std::shared_ptr<storage::Allocator> allocator = {};
  // One for KvOptions::model, and one for each of KvOptions::scales, in their order.
  std::vector<PlaneMemory> memory = {};
  // Planes as KvOptions::model and scales describe them, of this rank.
  std::shared_ptr<const transfer::BlockSet> blocks = {};
  PoolOptions pool = {};
};

// G3: a tier in files. Blocks are striped over the files, so put each file on a device of its own.
struct DiskShape {
  std::uint32_t block_count = 0;  // over all files
  std::vector<std::string> paths = {};
  EvictionChoice eviction = "lru";
  bool survive_power_loss = true;  // syncs what it writes; off: survives only the end of the process
  // For tests: none, or one per file.
  std::vector<std::shared_ptr<storage::IoFaults>> faults = {};
  PoolOptions pool = {};
};

// G4: a tier on volumes.
struct VolumeShape {
  // How many blocks are tracked. A block that is no longer tracked may still be found by probing the volumes.
  std::uint32_t block_count = 0;
  EvictionChoice eviction = "lru";
  bool remove_evicted = false;  // evicting a block also removes its object from the volume
  bool probe = true;            // ask the volumes for blocks that no tier is known to have
  // With `probe`: ranks that divide the model in another way and share the volumes, by the layers and heads
  // that they hold. Where this rank has no block of its own on a volume, one is cut out of their objects, or
  // put together from several: Shard::tensor_ranks(4, …) names a fleet of four. Keys, hash scheme, prefix key
  // and the shapes of a head must be the same. reset_blocks() and reset() remove these objects too.
  std::vector<layout::Shard> other_shards = {};
  // A volume that could not be reached is not called for this long.
  Clock::Duration rest = std::chrono::seconds(5);
  // Limit of every call of a volume, also where a request has no deadline. Zero: no limit.
  Clock::Duration call_limit = std::chrono::minutes(5);
  std::vector<VolumeDescriptor> volumes = {};
  VolumeRegistry kinds = VolumeRegistry::with_builtin();
  PoolOptions pool = {};
};

// When a route copies a block.
enum class Trigger : std::uint8_t {
  kOnArrival,     // write-through: as soon as the block is registered above
  kNearEviction,  // write-back: when the block is among the next eviction candidates above
  kOnCall,        // only by offload()
};

// The way from one tier to a tier below it.
struct OffloadRoute {
  Trigger trigger = Trigger::kOnArrival;
  std::size_t look_ahead = 64;  // kNearEviction: how many eviction candidates to consider
  OffloadWorkerOptions worker = {};
};

struct KvOptions {
  // Shape of a block, as far as this rank holds it; each tier sets its own block_count.
  layout::LayoutConfig model;
  // Further planes that travel with a block, such as the scales of FP8 values, or V where an engine keeps K
  // and V apart. They have the layers and tokens of `model`, and as many heads or one for all.
  std::vector<layout::LayoutConfig> scales = {};
  // The rank, and the layers and heads of the whole model that it holds: as many as `model` has. Leave it out
  // only where the model is not sharded: ranks that leave it out share keys. Ranks that set it may share
  // volumes, where each finds its own blocks; each needs files of its own.
  layout::Shard shard = {};
  std::uint32_t block_size = 16;  // tokens
  tokens::NamespaceFingerprint keys = {};
  std::uint64_t scheme_fingerprint = 0;
  // The key of the digests by which blocks of equal names are told apart (tokens::PrefixDigest), in G3 files
  // and on volumes too: all who share them share it. Empty: PrefixKey::of_namespace(keys), which is no
  // secret; give one where tenants who distrust each other choose tokens.
  std::optional<tokens::PrefixKey> prefix_key = {};
  block::RegistryOptions registry = {};
  TierShape g1;
  std::optional<TierShape> g2 = {};
  std::optional<DiskShape> g3 = {};
  std::optional<VolumeShape> g4 = {};
  std::optional<RemoteShape> remote = {};  // blocks of other nodes; needs g2
  OffloadRoute to_g2 = {};
  OffloadRoute to_g3 = {};
  OffloadRoute to_g4 = {};
  // Reads back and compares every block written to a disk or volume before registering it.
  bool read_back_after_write = false;
  // For onboard_async(), prefetch() and matches that do not wait. While all are busy, calls whose blocks are
  // in G1 and G2 have one thread more, and calls with a deadline one that ends them when it passes.
  std::uint32_t onboard_threads = 2;
  // Events that each tier buffers for attach_events() or drain_events(); 0: tiers make no events.
  std::size_t event_capacity = 0;
  std::shared_ptr<events::AccessSampler> accesses = {};  // samples the hits of all tiers
  // Runs all copies. Null: one for host memory and files. It must use `clock`, by which deadlines count.
  std::shared_ptr<transfer::Executor> executor = {};
  Clock* clock = nullptr;  // null: the machine's

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

// Which part of a model a rank holds, as engines count it. Tensor-parallel ranks share out the KV heads
// evenly, or replicate them evenly where there are more ranks than heads. Pipeline stages hold a range of
// layers. The namespace names the whole model, so all ranks of all degrees are in one: they find each other's
// blocks on volumes and at peers.
struct ModelRank {
  std::uint32_t rank = 0;  // tensor-parallel
  std::uint32_t ranks = 1;
  std::uint32_t model_heads = 0;   // KV heads of the whole model; 0: those of a rank, times `ranks`
  std::uint32_t first_layer = 0;   // of a pipeline stage
  std::uint32_t model_layers = 0;  // 0: no stages, this rank holds all layers
  // Tensor-parallel degrees of fleets that share the volumes: where this rank has no block of its own there,
  // it reads theirs (VolumeShape::other_shards).
  std::vector<std::uint32_t> other_ranks = {};

  // Sets `keys`, `shard` and other shards of `options`. Requires: options.model is the part of this rank, and
  // `options` has its tiers. Errors: kInvalidArgument with what does not add up.
  Result<void> describe(std::string_view model_name, KvOptions& options) const;
};

}  // namespace ashlar::tiers
