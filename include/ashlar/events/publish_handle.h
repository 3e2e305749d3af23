// PublishHandle: keeps one (block, tier) published. Taking the first handle of a (hash, tier) publishes
// Stored, dropping the last one publishes Removed. For engines and storages that manage their own blocks: a
// BlockManager publishes from the transitions of its slots.
//
// Publisher: a scope. Its handles are published together when it ends, in the order in which they were taken,
// as one run of events. A handle dropped earlier is never published.
//
//   events::Publisher batch = manager->publisher();
//   for (const KvEvent& block : blocks) handles.push_back(batch.publish(block));
//   batch.commit();                       // or the end of its scope
//
// Thread safety: any thread may take and drop handles; one Publisher is confined. They may outlive the
//                EventManager, and then publish nothing.
// Complexity:    one short critical section each, never waiting for a sink; only the table allocates.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "ashlar/events/kv_event.h"

namespace ashlar::events {
namespace detail {
class PublishTable;
struct PublishedBlock;
}  // namespace detail

class PublishHandle {
 public:
  PublishHandle() = default;  // holds no block
  PublishHandle(PublishHandle&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)), block_(std::exchange(other.block_, nullptr)) {}
  PublishHandle& operator=(PublishHandle&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(block_, other.block_);
    return *this;
  }
  ~PublishHandle() { reset(); }

  explicit operator bool() const noexcept { return block_ != nullptr; }
  // Requires: it holds a block.
  const tokens::SequenceHash& sequence_hash() const noexcept;
  TierId tier() const noexcept;
  // Drops the block.
  void reset() noexcept;

 private:
  friend class detail::PublishTable;
  PublishHandle(detail::PublishTable* table, detail::PublishedBlock* block) noexcept
      : table_(table), block_(block) {}

  detail::PublishTable* table_ = nullptr;  // kept alive by its handles
  detail::PublishedBlock* block_ = nullptr;
};

class Publisher {
 public:
  Publisher(Publisher&&) noexcept = default;
  Publisher& operator=(Publisher&&) = delete;
  ~Publisher() { commit(); }

  // As EventManager::publish(), but published by commit().
  [[nodiscard]] PublishHandle publish(const KvEvent& block);
  // Publishes all handles taken so far. The scope stays usable.
  void commit() noexcept;

 private:
  friend class EventManager;
  explicit Publisher(std::shared_ptr<detail::PublishTable> table) : table_(std::move(table)) {}

  std::shared_ptr<detail::PublishTable> table_;
  std::vector<detail::PublishedBlock*> taken_;
};

}  // namespace ashlar::events
