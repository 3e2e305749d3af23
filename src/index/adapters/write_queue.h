// WriteQueue: one thread of a WriterPool and its queue.
//
// The queue is two batches: callers append to the waiting one; the thread swaps it for its own empty one and
// applies it. Events are numbered from 1 in the order of acceptance; all up to applied_ are done.
//
// There are no spurious wake-ups: the thread is woken only when it sleeps, callers only when some wait.
//
// Thread safety: thread-safe, except start(), close() and join(), which its owner calls once each, in this
//                order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "ashlar/base/mutex.h"
#include "ashlar/index/thread_pool_indexer.h"
#include "index/common/call_batch.h"

namespace ashlar::index::detail {

class WriteQueue {
 public:
  enum class Push : std::uint8_t { kAccepted, kFull, kClosed };

  // `target` must outlive the queue.
  WriteQueue(IndexSink& target, std::size_t capacity) noexcept : target_(target), capacity_(capacity) {}
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // Throws std::system_error when no thread is available.
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  // Stops accepting events.
  void close();
  // Returns when all accepted events are applied and the thread has ended. Requires: close().
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // Never waits. Sets `number` to that of an accepted event. Throws std::bad_alloc with nothing accepted.
  Push try_push(const CallHead& head, std::span<const StoredBlock> blocks, std::span<const BlockName> names,
                std::uint64_t& number);
  // Returns when there is room, which other callers may take first, or when the queue is closed.
  void wait_for_room();
  // Returns when the event of this number, and so all earlier ones, are applied. Requires: it was accepted.
  void wait_until_applied(std::uint64_t number);
  // The number of the last event.
  std::uint64_t accepted() const;
  // All events up to this number are applied.
  std::uint64_t applied() const;

  WriteQueueCounters counters() const;

 private:
  void run();

  IndexSink& target_;
  const std::size_t capacity_;
  std::thread thread_;

  mutable Mutex mu_;
  CondVar work_;  // the thread sleeps here
  CondVar room_;  // callers of wait_for_room()
  CondVar applied_changed_;
  CallBatch waiting_ ASHLAR_GUARDED_BY(mu_);
  bool closed_ ASHLAR_GUARDED_BY(mu_) = false;
  bool asleep_ ASHLAR_GUARDED_BY(mu_) = false;
  unsigned waiting_for_room_ ASHLAR_GUARDED_BY(mu_) = 0;
  unsigned waiting_for_applied_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t applied_ ASHLAR_GUARDED_BY(mu_) = 0;
  WriteQueueCounters counters_ ASHLAR_GUARDED_BY(mu_);  // queued is the number of the last event
};

}  // namespace ashlar::index::detail
