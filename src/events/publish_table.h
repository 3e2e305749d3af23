// PublishTable: how many handles each (hash, tier) has, and the log that says when the first came and the last went.
//
// Thread safety: thread-safe. Takes publish.table; calls nothing under it but the log.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/publish_handle.h"
#include "events/event_key.h"
#include "events/slot_map.h"

namespace ashlar::events::detail {

struct PublishedBlock {
  KvEvent event;  // what Stored says
  std::uint64_t hash() const noexcept { return EventKey(event.hash, event.tier, 0).mixed(); }
  std::uint32_t slot = 0;
  std::uint32_t handles = 0;
  std::uint32_t awaited = 0;  // publishers that will make it known
  bool known = false;
};

class PublishTable : public std::enable_shared_from_this<PublishTable> {
 public:
  explicit PublishTable(std::size_t capacity);

  const std::shared_ptr<EventLog>& log() const noexcept { return log_; }
  // `taken` is null for a block that is to be known at once.
  PublishHandle publish(const KvEvent& block, std::vector<PublishedBlock*>* taken);
  void commit(std::span<PublishedBlock* const> taken) noexcept;
  void release(PublishedBlock* block) noexcept;
  // What is known, parents first, and the number that the log's next event gets.
  std::uint64_t list(std::vector<KvEvent>& out) const;

 private:
  void make_known_locked(PublishedBlock& block) noexcept ASHLAR_REQUIRES(mu_);
  void forget_if_unused_locked(PublishedBlock& block) noexcept ASHLAR_REQUIRES(mu_);

  using Blocks = SlotMap<PublishedBlock>;
  Blocks::Slot find_locked(const tokens::SequenceHash& hash, TierId tier) const ASHLAR_REQUIRES(mu_);
  // What a Stored event says now: a parent is named only if it is known, so that listeners have heard of it.
  KvEvent stored_event_locked(const PublishedBlock& block) const ASHLAR_REQUIRES(mu_);

  const std::shared_ptr<EventLog> log_;
  mutable Mutex mu_;
  Blocks blocks_ ASHLAR_GUARDED_BY(mu_);
  std::size_t handles_ ASHLAR_GUARDED_BY(mu_) = 0;                  // all there are
  std::shared_ptr<PublishTable> self_ ASHLAR_GUARDED_BY(mu_);       // while there are any
  Blocks::Slot last_known_ ASHLAR_GUARDED_BY(mu_) = Blocks::kNone;  // the next one's parent, most of the time
};

}  // namespace ashlar::events::detail
