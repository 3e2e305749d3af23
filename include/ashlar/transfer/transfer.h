// Transfer: a running copy, as those who wait for it see it.
//
// The handle is a reference: copies of it speak of the same transfer, and dropping all of them changes
// nothing. A transfer is done when the device or the kernel has reported the end of every operation it
// started, and not before. Until then it owns both block sets and whatever its request gave it to own. A
// deadline or a cancel ends the waiting, and keeps operations that were not started from starting; it never
// ends one that runs. Done means that the bytes are where they belong, not that a disk has them for good:
// that is DiskStorage::sync().
//
// Thread safety: thread-safe. Callbacks run once, on the thread that saw the end or on the one that asks too
// late, outside
//                every lock; for small copies that is inside submit(). They must not wait for other transfers
//                of the same executor, nor drop the last reference to it. They may submit: a full queue
//                refuses them at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/fence.h"

namespace ashlar::transfer {

class TransferState;

// What a transfer did, once it is done.
struct TransferStats {
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;    // copies, reads, writes, launches
  std::uint64_t continued = 0;     // operations that ended short and were taken up again
  std::uint64_t direct_bytes = 0;  // past the page cache
  std::uint64_t staged_bytes = 0;  // through a buffer in between
  Clock::Duration queued = {};     // from submission to the first operation
  Clock::Duration running = {};    // from there to the end
};

// Every byte was moved, and the executor says so: the proof that registration asks for. Only a transfer makes
// it.
class TransferDone {
 public:
  block::KvReady kv_ready() const noexcept { return block::KvReady::asserted_by_caller(); }

  TransferStats stats;

 private:
  friend class TransferState;
  explicit TransferDone(const TransferStats& its_stats) : stats(its_stats) {}
};

using TransferResult = Result<TransferDone>;

class Transfer {
 public:
  explicit Transfer(std::shared_ptr<TransferState> state) noexcept : state_(std::move(state)) {}

  bool done() const;
  // Waits for the end, for cancel(), or for the deadline of the request. Errors: kTimeout and kCancelled,
  // after which the transfer may still run (see done()); the failure of the transfer. After an error the
  // content of the destination blocks is undefined; the source is as it was.
  TransferResult wait() const;
  // The same, but no longer than until `when`.
  TransferResult wait_until(Clock::TimePoint when) const;
  // Waits until the transfer is done, however late; for those who must reuse its memory.
  TransferResult wait_for_end() const;
  // Starts nothing more, and ends the waiting. Done soon, with kCancelled unless all bytes were on their way.
  void cancel() const;
  // Runs `callback` when the transfer is done, at once if it is.
  void on_done(std::function<void(const TransferResult&)> callback) const;
  // Passes when the transfer is done, well or not.
  block::Fence fence() const;
  // Bytes whose copies have ended.
  std::uint64_t bytes_done() const;
  std::uint64_t bytes_total() const;

 private:
  std::shared_ptr<TransferState> state_;
};

}  // namespace ashlar::transfer
