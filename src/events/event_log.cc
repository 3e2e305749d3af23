// The ring has one producer (the holder of the owner's lock) and one consumer (the thread that set
// draining_). head_ and tail_ count records since the start; a record lives at index & mask. A drop raises
// lost_total_; while lost_reported_ is behind it, a kResync record is due: the next append that finds room
// writes it, or the drain does once it has emptied the ring. Both numbers only grow, so neither side can
// mistake an old loss for a new one.
#include "ashlar/events/event_log.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "ashlar/base/check.h"
#include "base/large_array.h"

namespace ashlar::events {
namespace {
constexpr std::size_t kBatch = 256;
constexpr std::size_t kAhead = 4;
}  // namespace

EventLog::EventLog(std::size_t capacity)
    : mask_(std::bit_ceil(std::clamp<std::size_t>(capacity, 2, std::size_t{1} << 32)) - 1),
      ring_(std::make_unique<LargeArray<KvEvent>>(mask_ + 1)) {}
EventLog::~EventLog() = default;

std::size_t EventLog::pending() const noexcept {
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  const std::uint64_t head = head_.load(std::memory_order_relaxed);
  return head > tail ? static_cast<std::size_t>(head - tail) : 0;
}

bool EventLog::try_push(const KvEvent& event, std::uint64_t sequence) noexcept {
  const std::uint64_t head = head_.load(std::memory_order_relaxed);
  // acquire: pairs with the release of tail_ in drain_once(); the consumer has read the cell before it is
  // reused.
  if (head - tail_.load(std::memory_order_acquire) > mask_) return false;
  KvEvent& cell = (*ring_)[head & mask_];
  cell = event;
  cell.sequence = sequence;
  // Prefetches the cells of the next appends.
  __builtin_prefetch(&(*ring_)[(head + kAhead) & mask_], 1);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(&(*ring_)[(head + kAhead) & mask_]) + 64, 1);
  // release: pairs with the acquire of head_ in drain_once().
  head_.store(head + 1, std::memory_order_release);
  return true;
}

KvEvent EventLog::resync_record(std::uint64_t lost) const noexcept {
  KvEvent record;
  record.kind = KvEventKind::kResync;
  record.sequence = next_sequence_.load(std::memory_order_relaxed);
  record.block = static_cast<std::uint32_t>(std::min<std::uint64_t>(lost, UINT32_MAX));
  return record;
}

void EventLog::append(const KvEvent& event) noexcept {
  const std::uint64_t total = lost_total_.load(std::memory_order_relaxed);
  std::uint64_t reported = lost_reported_.load(std::memory_order_relaxed);
  bool room = true;
  if (reported != total) {
    // The drain may report the same loss; one marker too many is harmless, one too few is not.
    const KvEvent marker = resync_record(total - reported);
    room = try_push(marker, marker.sequence);
    if (room) lost_reported_.compare_exchange_strong(reported, total, std::memory_order_relaxed);
  }
  const std::uint64_t sequence = next_sequence_.load(std::memory_order_relaxed);
  next_sequence_.store(sequence + 1, std::memory_order_relaxed);
  if (room && try_push(event, sequence)) return;
  // release: pairs with the acquire in drain_once(), which must then see the records that came before the
  // loss.
  lost_total_.store(total + 1, std::memory_order_release);
}

std::size_t EventLog::drain_once(EventSink& sink) {
  std::array<KvEvent, kBatch> batch;
  std::size_t delivered = 0;
  if (refused_ != 0) {
    const KvEvent marker = resync_record(refused_);
    sink.on_events({&marker, 1});
    refused_ = 0;
    ++delivered;
  }
  for (;;) {
    // acquire: pairs with the release in append(); read before head_, so every record older than the loss is
    // seen.
    const std::uint64_t total = lost_total_.load(std::memory_order_acquire);
    std::uint64_t reported = lost_reported_.load(std::memory_order_relaxed);
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    // acquire: pairs with the release in try_push().
    const std::uint64_t head = head_.load(std::memory_order_acquire);
    ASHLAR_DCHECK(head - tail <= mask_ + 1, "the producer overwrote records that the drain has not read");
    const std::size_t count = std::min<std::size_t>(static_cast<std::size_t>(head - tail), kBatch);
    if (count == 0) {
      if (total <= reported) return delivered;
      // The ring is empty, so the loss comes after everything delivered. If the producer appended meanwhile,
      // it has reported the loss itself, the exchange fails, and the loop delivers its marker from the ring.
      const KvEvent marker = resync_record(total - reported);
      if (!lost_reported_.compare_exchange_strong(reported, total, std::memory_order_relaxed)) continue;
      refused_ = 1;
      sink.on_events({&marker, 1});
      refused_ = 0;
      ++delivered;
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) batch[i] = (*ring_)[(tail + i) & mask_];
    // release: pairs with the acquire in try_push().
    tail_.store(tail + count, std::memory_order_release);
    refused_ = count;
    sink.on_events({batch.data(), count});
    refused_ = 0;
    delivered += count;
  }
}

std::size_t EventLog::drain(EventSink& sink) {
  std::size_t delivered = 0;
  do {
    // acq_rel, both exchanges: one drain's reads of the ring happen before the next one's; and a caller that
    // is turned away has released its append by its exchange, which the exchange below reads, so the check
    // after it sees the event. A plain store could not read it, and the event would be left behind.
    if (draining_.exchange(true, std::memory_order_acq_rel)) return delivered;
    struct Done {  // also when the sink throws
      std::atomic<bool>& draining;
      ~Done() { draining.exchange(false, std::memory_order_acq_rel); }
    };
    const Done done{draining_};
    delivered += drain_once(sink);
  } while (pending() != 0 ||
           lost_total_.load(std::memory_order_relaxed) > lost_reported_.load(std::memory_order_relaxed));
  return delivered;
}

}  // namespace ashlar::events
