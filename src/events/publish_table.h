// PublishTable: counts the handles of each (hash, tier), and logs the first and the last one.
//
// Dropping the last handle of a block logs Removed at once; its cell in the map is emptied a few drops later,
// when its prefetched cache line has arrived. Until then the block stays in the map without holders and may
// be published again.
//
// Thread safety: thread-safe. Takes publish.table; calls only the log under it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/events/event_log.h"
#include "ashlar/events/publish_handle.h"
#include "base/scoped_hold.h"
#include "base/spin_lock.h"
#include "events/event_key.h"
#include "events/slot_map.h"

namespace ashlar::events::detail {

struct alignas(64) PublishedBlock {
  std::uint64_t hash() const noexcept { return mixed; }
  bool is_held() const noexcept { return handles != 0 || awaited != 0; }

  KvEvent event;  // the fields of Stored
  std::uint64_t mixed = 0;
  std::uint32_t slot = 0;
  std::uint32_t handles = 0;
  std::uint32_t awaited = 0;  // publishers that will commit it
  bool known = false;
  bool leaving = false;  // is in PublishTable::leaving_
};
static_assert(sizeof(PublishedBlock) == 128);

class PublishTable : public std::enable_shared_from_this<PublishTable> {
 public:
  explicit PublishTable(std::size_t capacity);

  const std::shared_ptr<EventLog>& log() const noexcept { return log_; }
  // `taken` is null for a block to publish at once.
  PublishHandle publish(const KvEvent& block, std::vector<PublishedBlock*>* taken);
  void commit(std::span<PublishedBlock* const> taken) noexcept;
  void release(PublishedBlock* block) noexcept;
  // Appends the published blocks, parents first; returns the number of the log's next event.
  std::uint64_t list(std::vector<KvEvent>& out) const;

 private:
  using Blocks = SlotMap<PublishedBlock>;
  static constexpr std::size_t kLeaving = 8;

  Blocks::Slot find_locked(std::uint64_t mixed, const tokens::SequenceHash& hash, TierId tier) const
      ASHLAR_REQUIRES(mu_);
  PublishedBlock& take_locked(std::uint64_t mixed, const KvEvent& block) ASHLAR_REQUIRES(mu_);
  void make_known_locked(PublishedBlock& block) noexcept ASHLAR_REQUIRES(mu_);
  void forget_if_unused_locked(PublishedBlock& block) noexcept ASHLAR_REQUIRES(mu_);
  // Whether a Stored event may name its parent: it is published.

  const std::shared_ptr<EventLog> log_;
  Blocks::Hint looks_;               // of blocks_
  alignas(64) mutable SpinLock mu_;  // apart from the fields read without it
  Blocks blocks_ ASHLAR_GUARDED_BY(mu_);
  std::size_t handles_ ASHLAR_GUARDED_BY(mu_) = 0;             // all live handles
  std::shared_ptr<PublishTable> self_ ASHLAR_GUARDED_BY(mu_);  // while any handle lives
  // The most recently dropped slots, as a ring.
  std::array<Blocks::Slot, kLeaving> leaving_ ASHLAR_GUARDED_BY(mu_);
  std::size_t next_leaving_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::events::detail
