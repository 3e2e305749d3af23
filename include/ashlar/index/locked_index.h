// LockedIndex<Index>: a single-threaded structure made safe for several threads by one reader-writer lock.
//
// Queries run beside each other, writes alone. A waiting writer holds back new readers, so a steady stream of
// queries cannot starve it.
//
// Requires: the const functions of Index change nothing, not even internal caches. Index is constructed
// inside, with the arguments of the constructor; a LockedIndex is neither copied nor moved, because threads
// refer to it.
//
// FlashIndex and ConcurrentRadixTree need no such lock; this serves RadixTree and a user's own structure.
//
// Thread safety: thread-safe. dump() calls the sink under the lock: the sink must not call this index.
// Complexity:    that of Index, and two writes to memory shared by all threads per query. A call holds the
//                lock for its whole length: clear() of a worker with many blocks keeps all other calls
//                waiting.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>

#include "ashlar/index/indexer.h"

namespace ashlar::index {

template <Indexer Index>
class LockedIndex {
 public:
  template <class... Args>
    requires std::constructible_from<Index, Args...>
  explicit LockedIndex(Args&&... args) : index_(std::forward<Args>(args)...) {}
  LockedIndex(const LockedIndex&) = delete;
  LockedIndex& operator=(const LockedIndex&) = delete;

  // Without the lock: only while no other thread calls.
  Index& get() noexcept { return index_; }
  const Index& get() const noexcept { return index_; }

  // ---- writes, one at a time

  StoreVerdict store(const BlocksStored& event) {
    const Writing alone(*this);
    return index_.store(event);
  }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
    const Writing alone(*this);
    return index_.remove(worker, tier, names);
  }
  void clear(const Worker& worker) {
    const Writing alone(*this);
    index_.clear(worker);
  }
  void remove_worker(WorkerId worker) {
    const Writing alone(*this);
    index_.remove_worker(worker);
  }

  // ---- reads, beside each other

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const {
    const Reading shared(*this);
    index_.find_matches(locals, scores, options);
  }
  bool presence(const Worker& worker, std::span<const BlockName> names, std::span<BlockPresence> out) const {
    const Reading shared(*this);
    return presence_in(index_, worker, names, out);
  }
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const {
    const Reading shared(*this);
    return list_of(index_, worker, out);
  }
  void dump(IndexSink& sink) const {
    const Reading shared(*this);
    index_.dump(sink);
  }
  IndexSizes sizes() const {
    const Reading shared(*this);
    return index_.sizes();
  }
  IndexCounters counters() const {
    const Reading shared(*this);
    return index_.counters();
  }

 private:
  // A writer takes the gate before it asks for the lock; readers that see a writer pass through the gate
  // first.
  class Writing {
   public:
    explicit Writing(LockedIndex& of) : of_(of) {
      of_.writers_.fetch_add(1);
      of_.gate_.lock();
      of_.lock_.lock();
    }
    ~Writing() {
      of_.lock_.unlock();
      of_.gate_.unlock();
      of_.writers_.fetch_sub(1);
    }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    LockedIndex& of_;
  };
  class Reading {
   public:
    explicit Reading(const LockedIndex& of) : of_(of) {
      if (of_.writers_.load() != 0) {
        of_.gate_.lock();
        of_.gate_.unlock();
      }
      of_.lock_.lock_shared();
    }
    ~Reading() { of_.lock_.unlock_shared(); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const LockedIndex& of_;
  };

  Index index_;
  std::atomic<unsigned> writers_{0};  // that write or wait to; only a hint for readers
  mutable std::mutex gate_;
  mutable std::shared_mutex lock_;
};

}  // namespace ashlar::index
