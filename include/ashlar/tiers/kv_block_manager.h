// KvBlockManager: the blocks of a model over several tiers: G1 where they are computed, G2 in host memory, G3 in a file.
//
// One registry names the blocks of all tiers. Blocks that are registered in G1 may go down, by policy or by call; blocks
// that a request needs come up again. Each tier has a BlockManager of its own, which allocates, matches and evicts as ever;
// what this class adds is the bytes and the ways between them.
//
//   auto kv = KvBlockManager::create({.model = {…}, .g1 = {.blocks = 1024}, .g2 = TierShape{.blocks = 8192},
//                                     .g3 = DiskShape{.blocks = 100000, .path = "/data/g3"}, .keys = keys});
//   auto table = kv->onboard(hashes);            // the longest prefix that any tier has, in G1 now
//   …compute the rest, register it…
//   kv->register_blocks(std::move(complete));    // goes down as the policy says
//
// Thread safety: thread-safe. Takes no lock while blocks move.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/layout/layout.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/tiers/block_mover.h"
#include "ashlar/tiers/disk_pool.h"
#include "ashlar/tiers/memory_pool.h"
#include "ashlar/tiers/offload_lane.h"
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

struct DiskShape {
  std::uint32_t blocks = 0;
  std::string path;
  std::string eviction = "lru";
  bool survive_power_loss = true;
  std::shared_ptr<storage::IoFaults> faults = {};
};

struct KvOptions {
  // Shape of a block; num_blocks is that of each tier.
  layout::LayoutConfig model;
  std::uint32_t block_size = 16;  // tokens
  tokens::NamespaceFingerprint keys = {};
  std::uint64_t scheme_fingerprint = 0;
  block::RegistryOptions registry = {};
  TierShape g1;
  std::optional<TierShape> g2 = {};
  std::optional<DiskShape> g3 = {};
  // What goes down when it is registered above.
  OffloadPolicy to_g2 = every_block();
  OffloadPolicy to_g3 = every_block();
  // Runs all copies; host memory and files unless given.
  std::shared_ptr<transfer::Executor> executor = {};

  // Errors: kInvalidArgument with the field.
  Result<void> validate() const;
};

// Consecutive blocks of a prefix that one tier has.
struct TierRun {
  events::TierId tier;
  std::size_t first = 0;
  std::size_t count = 0;

  friend bool operator==(const TierRun&, const TierRun&) = default;
};

struct TierCounters {
  std::uint64_t hits = 0;       // blocks of onboard() that this tier had
  std::uint64_t onboarded = 0;  // of these, brought up from here
  std::uint64_t damaged = 0;
};

struct KvStatus {
  block::PoolStatus g1;
  std::optional<block::PoolStatus> g2;
  std::optional<block::PoolStatus> g3;
  TierCounters g1_counters;
  TierCounters g2_counters;
  TierCounters g3_counters;
  std::uint64_t misses = 0;  // blocks of onboard() that no tier had
  std::optional<OffloadLaneCounters> to_g2;
  std::optional<OffloadLaneCounters> to_g3;
};

class KvBlockManager {
 public:
  // Errors: those of the options, of the memory, of G3File::open().
  static Result<std::unique_ptr<KvBlockManager>> create(KvOptions options);
  // What is on its way down arrives; what waits is given up, see drain(). Guards must be gone.
  ~KvBlockManager();

  block::BlockManager<events::G1>& g1() noexcept { return *g1_manager_; }
  block::BlockManager<events::G2>* g2() noexcept { return g2_manager_ ? &*g2_manager_ : nullptr; }
  block::BlockManager<events::G3>* g3() noexcept { return g3_manager_ ? &*g3_manager_ : nullptr; }
  const block::BlockRegistry& registry() const noexcept { return *registry_; }
  // The bytes of G1.
  const std::shared_ptr<const transfer::BlockSet>& g1_blocks() const noexcept { return g1_pool_->blocks(); }

  // As BlockManager::register_blocks(); what was registered is offered to the tier below.
  Result<block::BlockList<block::ImmutableBlock<events::G1>>,
         Rejected<block::BlockList<block::CompleteBlock<events::G1>>>>
  register_blocks(block::BlockList<block::CompleteBlock<events::G1>> blocks, std::uint8_t priority = 35);
  // Offers blocks of G1 to the tiers below now. Errors: kUnsupported: there is none.
  Result<OffloadHandle> offload(std::span<const tokens::SequenceHash> hashes, std::uint8_t priority = 35);

  // Which tiers have the longest prefix of `hashes`, from the fastest for each block. Counts no use.
  std::vector<TierRun> find(std::span<const tokens::SequenceHash> hashes);
  // Brings the longest prefix that any tier has into G1, as far as there is room, and returns it, in use. A block that cannot
  // be read ends the prefix. Calls that want the same block wait for one copy of it.
  block::BlockList<block::ImmutableBlock<events::G1>> onboard(std::span<const tokens::SequenceHash> hashes);

  // Evicts what nobody uses. G3 forgets it for good. Errors: kNotFound: no such tier; kIo.
  Result<std::size_t> reset(events::TierId tier);
  // Removes blocks from every tier. Errors: kIo.
  Result<void> reset_blocks(std::span<const tokens::SequenceHash> hashes);
  // Waits until everything that waits to go down is there.
  void drain();
  KvStatus status() const;

 private:
  explicit KvBlockManager(KvOptions options);
  Result<void> open();
  Result<layout::Layout> layout_of(std::uint32_t blocks, const layout::AxisOrder& order) const;
  // The pools that are there, fastest first.
  std::vector<TierPool*> pools() const;
  // Brings some blocks that are not in G1 up. How many of the first have arrived.
  std::size_t bring_up(std::span<const tokens::SequenceHash> hashes);
  void claim(std::span<const tokens::SequenceHash> hashes);
  void release(std::span<const tokens::SequenceHash> hashes);

  const KvOptions options_;
  std::optional<block::BlockRegistry> registry_;
  std::optional<block::BlockManager<events::G1>> g1_manager_;
  std::optional<block::BlockManager<events::G2>> g2_manager_;
  std::optional<block::BlockManager<events::G3>> g3_manager_;
  std::shared_ptr<transfer::Executor> executor_;
  std::unique_ptr<MemoryPool<events::G1>> g1_pool_;
  std::unique_ptr<MemoryPool<events::G2>> g2_pool_;
  std::unique_ptr<DiskPool> g3_pool_;
  std::unique_ptr<BlockMover> mover_;
  std::unique_ptr<OffloadLane> to_g3_;
  std::unique_ptr<OffloadLane> to_g2_;

  mutable Mutex mu_;
  CondVar released_;
  std::unordered_set<tokens::SequenceHash> coming_ ASHLAR_GUARDED_BY(mu_);  // on their way up
  KvStatus counters_ ASHLAR_GUARDED_BY(mu_);                                // hits and misses only
};

}  // namespace ashlar::tiers
