// BlockObserver: hears what a manager hands out, evicts and registers, whichever call its users chose:
// guards, sequences, batches.
//
//   class Counts : public BlockObserver {
//     void registered(std::span<const RegisteredBlock> blocks) noexcept override { total += blocks.size(); }
//     …
//   };
//   manager.observe(counts);   // before the first allocation
//
// Thread safety: called on the thread of the call that it observes, after the manager's lock was released,
//                on several threads at once. It may use the manager, but not the guards, sequence or batch
//                whose call it interrupts.
// Complexity:    an observed manager keeps some 100 bytes more per block, and lists the blocks of each call
//                in memory that the thread keeps: it allocates nothing by itself.
// Invariant:     the calls for one life of a block come in this order: handed_out, registering, registered,
//                evicted. One that is dropped, refused or removed skips the rest: removals by
//                reset_inactive_pool(), by set_reset_on_release(), and of duplicates are not told. So an
//                observer cannot mirror a pool; the event log tells every hash that comes and goes.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/fence.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

// What the caller of a registration knows beyond the guards.
struct RegistrationOptions {
  // How long to keep the blocks, and their place in offload queues.
  BlockRetention retention = {};
  // The moments from which their bytes are complete: none, one for all, or one per block. For blocks that are
  // registered while a launched step still writes them: they are in use until then. If their fence fails or
  // is abandoned, they lose their names (fence.h).
  std::vector<Fence> after = {};
  // For blocks that were staged without them: the block before the first, and the salt. The others follow
  // each other where their positions do. A block whose hash is registered with another salt is refused
  // (kCorruption), where the manager keeps salts: with observers or events.
  std::optional<tokens::SequenceHash> parent = {};
  tokens::SaltFingerprint salt = {};
  // The caller's own, for blocks that have none: in their events, and with them in every tier.
  std::uint32_t metadata = 0;
  // The bytes were copied from another tier, which has the block too.
  bool copied = false;
};

struct RegisteredBlock {
  BlockId id;
  BlockIdentity identity;
  BlockRetention retention = {};
  std::optional<Fence> after = {};  // its bytes are complete when this has passed; empty: they are
  bool copied = false;
};

struct EvictedBlock {
  BlockId id;
  tokens::SequenceHash hash;
};

class BlockObserver {
 public:
  virtual ~BlockObserver() = default;

  // Empty blocks have an owner now.
  virtual void handed_out(std::span<const BlockId>) noexcept {}
  // Nobody can find these blocks yet, and their owner still owns them; the registration may yet be refused.
  // May throw std::bad_alloc: then nothing is registered.
  virtual void registering(std::span<const RegisteredBlock>) {}
  // With the ids under which they are found: those of others where a hash had a block (DuplicatePolicy).
  virtual void registered(std::span<const RegisteredBlock>) noexcept {}
  // To make room, before handed_out(); or when the last hold of a block that was chosen ended.
  virtual void evicted(std::span<const EvictedBlock>) noexcept {}
  // By BlockManager::set_retention() or ImmutableBlock::set_retention(), for a registered block.
  virtual void retention_set(const tokens::SequenceHash&, const BlockRetention&) noexcept {}
};

}  // namespace ashlar::block
