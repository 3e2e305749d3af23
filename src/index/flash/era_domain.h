// EraDomain: decides when memory visible to lock-free readers can be freed.
//
// One writer at a time (the thread that holds the index lock) links and unlinks objects; readers follow links
// without a lock. The writer divides time into numbered eras. An object lives from its birth era to its
// retire era; a reader announces the era in which it entered. A retired object is freed when no announced era
// lies between its birth and its retirement. So a stalled reader keeps back only objects alive in its era,
// however long it stalls and however much the writer does meanwhile. No thread waits for another.
//
// Reader rule: a pointer loaded (acquire) from a link may be followed only if guard.still() holds after the
// load; else the reader drops all its pointers, calls guard.renew() and restarts from the root. An answer
// needs no final still(). Writer rule: an object is retired only after every link to it from unretired
// objects is gone; links inside a retired object never change.
//
// Why this suffices. Let a reader of era e follow a link from n, which is protected or permanent, to p.
//   birth <= e    The link to p was published after p's birth era began, so the still() after the load would
//                 have seen a later era.
//   e <= retire   Either the link was gone before an era after p's retire era began; then a reader of such an
//                 era cannot load it. Or n was retired with the link in it, not after p; and e <= n's retire
//                 era.
//   seen          The writer begins an era, then reads the announced eras; the reader announces, then reads
//                 the era again; all seq_cst. If a scan misses the announcement of e, the reader would have
//                 seen the scan's era, so the scan frees only objects retired before e.
// The orders are in era_orders.h; tests/index/model explores the protocol with them exhaustively. A reader
// must restart; it cannot announce a later era and continue, because objects that a retired node links to may
// be freed.
//
// Bound on waiting bytes. A waiting object was retired in the current batch, was alive in the era of a reader
// still inside, or was alive for a reader that has left and has not been reviewed since. An era gives birth
// to less than kBatchBytes besides its last object. So each reader inside adds at most the bytes alive when
// it entered, plus kBatchBytes and one object; the batch is less than batch_limit() objects and kBatchBytes
// besides its last one.
//
// Thread safety: enter(), era(), waiting_bytes() and waiting_count() from any thread; the rest under the
// writer's lock.
// Complexity:    enter and leave are one locked instruction, still() is one load. retire() is O(1) in the
//                worst case apart from frees: a scan reads every reader line once, and examines the batch and
//                at most kReviews held objects; an object that a reader holds is not examined until that
//                reader's era is left. Scans are batch_limit() retirements or kBatchBytes apart.
// Invariant:     free functions run only in retire() and flush(), once per object.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/base/check.h"
#include "index/common/thread_number.h"
#include "index/flash/era_orders.h"

namespace ashlar::index::detail {

// Distance between data of different writers: two cache lines, because processors fetch them in pairs.
inline constexpr std::size_t kApart = 128;

class EraDomain {
 public:
  // Frees an object, or runs another action that had to wait for readers. May call birth(), and retire() if
  // its memory is reserved.
  using Free = void (*)(void* object, void* context);
  class Guard;

  // A batch is closed, and retired objects are scanned, at this many objects or bytes; the count grows with
  // the number of reader lines.
  static constexpr std::size_t kBatch = 256;
  static constexpr std::size_t kBatchBytes = std::size_t{256} << 10;
  // Held objects that one scan reviews.
  static constexpr std::size_t kReviews = 4 * kBatch;

  EraDomain();
  // Frees everything. Requires: no reader inside.
  ~EraDomain();
  EraDomain(const EraDomain&) = delete;
  EraDomain& operator=(const EraDomain&) = delete;

  // Never 0.
  std::uint64_t era() const noexcept { return era_.load(kOrderGuess); }

  // Announces the calling thread as a reader. Check ok(): with more reading threads than lines, the caller
  // must read under the writer's lock. Requires: the thread is not inside this domain already.
  Guard enter() const noexcept;
  // For a reader that holds the writer's lock: announces nothing; still() holds until the lock is released.
  Guard enter_locked() const noexcept;

  // The birth era of a new object, counted towards the bytes of the era. Call it before publishing the
  // object; never runs free functions.
  std::uint64_t birth(std::size_t bytes) noexcept {
    if (born_bytes_ >= kBatchBytes) advance();
    born_bytes_ += bytes;
    // relaxed: only the writer stores, and this is the writer.
    return era_.load(std::memory_order_relaxed);
  }
  // Reserves memory for the next n retirements. Throws std::bad_alloc, or returns false, without memory. The
  // reservation ends with flush().
  void reserve(std::size_t n) {
    if (n > reserved_) [[unlikely]]
      make_room(n);
  }
  bool try_reserve(std::size_t n) noexcept;
  // Calls free(object, context) once no reader can see the object: in this call at the earliest. Requires:
  // every link to it from unretired objects is gone. Without a reservation it may throw std::bad_alloc; the
  // object is then not retired.
  void retire(void* object, std::size_t bytes, std::uint64_t birth, Free free, void* context);
  // Begins an era and frees all objects that no reader holds. Not from a free function. False without the
  // memory for the scan; then everything keeps waiting.
  bool flush();
  // The same, but reviews at most kReviews held objects; false when more remain and there is memory to review
  // them.
  bool collect();

  // Retired and not yet freed. relaxed: they publish nothing.
  std::size_t waiting_bytes() const noexcept { return waiting_bytes_.load(std::memory_order_relaxed); }
  std::size_t waiting_count() const noexcept { return waiting_count_.load(std::memory_order_relaxed); }
  // Heap memory of the domain's lists and lines. Constant whenever nothing waits, up to kFirstLines threads.
  std::size_t heap_bytes() const noexcept;
  // Retirements between two scans, unless kBatchBytes come first.
  std::size_t batch_limit() const noexcept;

  // Work done by the writer so far.
  struct Work {
    std::uint64_t retired = 0;
    std::uint64_t examined = 0;  // times an object was checked against the announced eras
    std::uint64_t scans = 0;
  };
  const Work& work() const noexcept { return work_; }

 private:
  static constexpr std::uint32_t kFirstLines = 32;
  static constexpr std::uint32_t kMoreLines = 8;  // arrays of 32, 32, 64, 128, ... lines
  static_assert(kFirstLines << kMoreLines == ThreadNumber::kLimit);

  // One reader thread: the era it announced, 0 outside.
  struct alignas(kApart) Line {
    std::atomic<std::uint64_t> active{0};
  };
  struct Retired {
    void* object;
    std::size_t bytes;
    std::uint64_t birth;
    std::uint64_t retired;
    Free free;
    void* context;
  };
  static constexpr std::size_t kChunk = 64;
  struct Chunk {
    Chunk* next;
    std::size_t size;
    std::array<Retired, kChunk> objects;
  };
  // Retired objects, unordered. Every chunk has at least one.
  struct Chain {
    Chunk* first = nullptr;
    Chunk* last = nullptr;
  };
  // Objects held back by the readers of one era.
  struct Held {
    std::uint64_t era;
    Chain objects;
  };

  // Index into more_lines_ of a line beyond the first ones.
  static std::uint32_t array_of(std::uint32_t number) noexcept {
    return static_cast<std::uint32_t>(std::bit_width(number / kFirstLines)) - 1;
  }
  // Null when the array of the line is not allocated yet.
  Line* line_of(std::uint32_t number) const noexcept {
    if (number < kFirstLines) return &first_lines_[number];
    const std::uint32_t array = array_of(number);
    Line* const lines = more_lines_[array].load(kOrderLines);
    return lines == nullptr ? nullptr : lines + (number - (kFirstLines << array));
  }
  // Allocates the line; null without a number or without memory.
  Line* add_line(std::uint32_t number) const noexcept;
  std::uint64_t announce(Line& line) const noexcept {
    for (;;) {
      const std::uint64_t now = era();
      line.active.store(now, kOrderAnnounce);
      if (era_.load(kOrderConfirm) == now) [[likely]]
        return now;
    }
  }

  // Begins an era.
  void advance() noexcept {
    // relaxed: only the writer stores, and this is the writer.
    era_.store(era_.load(std::memory_order_relaxed) + 1, kOrderAdvance);
    born_bytes_ = 0;
  }
  // Begins an era and frees objects that no reader holds, reviewing up to `reviews` held objects. False
  // without memory for it: nothing is freed, and nothing lost.
  bool scan(std::size_t reviews);
  void make_room(std::size_t n);
  void add_spare();
  void drop_spares(std::size_t kept) noexcept;
  static std::size_t chunks_for(std::size_t objects) noexcept { return (objects + kChunk - 1) / kChunk; }
  // The announced eras, ascending.
  std::vector<std::uint64_t> active_eras() const;
  // Queues for review the objects whose holders have left.
  void let_go(const std::vector<std::uint64_t>& active);
  // Examines up to `limit` objects of the chain: each is freed or held.
  void examine(Chain& chain, std::size_t limit, const std::vector<std::uint64_t>& active);
  void hold(const Retired& retired, std::uint64_t era);
  void count_waiting(std::size_t count, std::size_t bytes) noexcept {
    // relaxed: statistics, stored only by the writer.
    waiting_count_.store(waiting_count_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
    waiting_bytes_.store(waiting_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  void push(Chain& chain, const Retired& retired);
  Retired pop(Chain& chain);
  static void append(Chain& chain, const Chain& other) noexcept;

  // Loaded by readers, stored once per batch.
  alignas(kApart) std::atomic<std::uint64_t> era_{1};
  mutable std::atomic<std::uint32_t> lines_{0};  // lines from this one on were never used
  mutable std::array<std::atomic<Line*>, kMoreLines> more_lines_{};

  mutable std::array<Line, kFirstLines> first_lines_{};

  // Writer only.
  alignas(kApart) std::atomic<std::size_t> waiting_bytes_{0};
  std::atomic<std::size_t> waiting_count_{0};
  bool scanning_ = false;
  std::size_t born_bytes_ = 0;  // of this era
  std::size_t batch_bytes_ = 0;
  std::size_t batch_count_ = 0;
  Chain batch_;
  Chain reviews_;            // objects whose holders have left
  std::vector<Held> held_;   // by ascending era
  Chunk* spares_ = nullptr;  // chunks in no chain; one when nothing waits
  std::size_t spare_count_ = 0;
  std::size_t chunks_ = 0;    // spares included
  std::size_t reserved_ = 0;  // retirements that fit in the batch and the spares
  Work work_;
};

// A reader inside the domain; it leaves when the guard ends.
//
// Thread safety: confined to the thread that entered.
class [[nodiscard]] EraDomain::Guard {
 public:
  ~Guard() {
    if (line_ != nullptr) line_->active.store(0, kOrderLeave);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // False: the reader is not announced and must not follow links.
  bool ok() const noexcept { return era_ != 0; }
  std::uint64_t era() const noexcept { return era_; }
  // Whether pointers loaded (kOrderFollow) before the call may be followed.
  bool still() const noexcept { return domain_.era_.load(kOrderStill) == era_; }
  // Re-enters. Requires: ok(); the reader has dropped all its pointers.
  void renew() noexcept;

 private:
  friend class EraDomain;

  Guard(const EraDomain& domain, Line* line, std::uint64_t era) noexcept
      : domain_(domain), line_(line), era_(era) {}

  const EraDomain& domain_;
  Line* line_;
  std::uint64_t era_;
};

inline EraDomain::Guard EraDomain::enter() const noexcept {
  const std::uint32_t number = ThreadNumber::mine();
  Line* line = number < lines_.load(kOrderLines) ? line_of(number) : nullptr;
  if (line == nullptr) [[unlikely]] {
    line = add_line(number);
    if (line == nullptr) return Guard(*this, nullptr, 0);
  }
  // relaxed: only this thread stores into its line.
  ASHLAR_CHECK(line->active.load(std::memory_order_relaxed) == 0, "a thread entered a domain twice");
  return Guard(*this, line, announce(*line));
}

inline EraDomain::Guard EraDomain::enter_locked() const noexcept {
  return Guard(*this, nullptr, era());
}

inline void EraDomain::Guard::renew() noexcept {
  ASHLAR_DCHECK(ok(), "renewed without a line");
  era_ = line_ != nullptr ? domain_.announce(*line_) : domain_.era();
}

}  // namespace ashlar::index::detail
