// PublishTable: how many handles each (hash, tier) has, and the log that says when the first came and the last went.
//
// Thread safety: thread-safe. Takes publish.table; calls nothing under it but the log.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/publish_handle.h"

namespace ashlar::events::detail {

struct PublishedBlock {
  KvEvent event;  // what Stored says
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
  struct Key {
    tokens::SequenceHash hash;
    TierId tier;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<tokens::SequenceHash>()(key.hash) + key.tier.value();
    }
  };
  void make_known_locked(PublishedBlock& block) noexcept ASHLAR_REQUIRES(mu_);
  void forget_if_unused_locked(PublishedBlock& block) noexcept ASHLAR_REQUIRES(mu_);

  const std::shared_ptr<EventLog> log_;
  mutable Mutex mu_;
  std::unordered_map<Key, PublishedBlock, KeyHash> blocks_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::events::detail
