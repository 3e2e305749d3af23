// UseWindow: how often queries used each content in the last minute or so. It is separate from the index: it
// composes with every structure and costs nothing when unused.
//
//   UseWindow::Recorder uses = window->recorder();       // one per thread that queries
//   index.find_matches(locals, scores);
//   uses.record(locals, scores.longest());               // one use of each block in the matched prefix
//   …
//   window->collect(clock.now());                        // periodically, on any thread
//   window->recent_uses(locals, counts);                 // uses of each block, as of the last collect()
//
// Recording writes only to memory of its thread: the local hashes of the prefix go into a ring shared with
// the collector alone. A full ring drops the use and counts it. collect() counts the recorded uses in the
// time bucket of `now`; contents are told apart by comparing local hashes (a trie), so counts are exact
// except for dropped uses.
//
// Bounds. Uses older than the window are forgotten bucket by bucket, and contents with them. At max_contents
// the oldest bucket is forgotten early, which shortens the window; when only the current bucket is left, uses
// of new contents are not counted (UseCounters::uncounted).
//
// Thread safety: UseWindow is thread-safe; a Recorder is confined to one thread at a time, and may outlive
// the window.
// Complexity:    record() copies 8 bytes per block, without a lock and without allocating. collect() is O(1)
//                expected per recorded block and per content forgotten, but for the steps that double tables;
//                recent_uses() O(blocks). Both take one lock, collect() for 4,096 blocks or contents at a
//                time (a longer prefix, and a bucket forgotten early, are not split). Memory: 70 to 140 bytes
//                per content, and 8 bytes per block of ring for each recorder.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

struct UseWindowOptions {
  static constexpr std::uint32_t kMaxBuckets = 64;
  static constexpr std::size_t kMaxContents = std::size_t{1} << 31;
  static constexpr std::size_t kMaxRingBlocks = std::size_t{1} << 31;

  Clock::Duration window = std::chrono::seconds(60);
  std::uint32_t buckets = 6;
  std::size_t max_contents = std::size_t{1} << 20;
  // Capacity of one recorder between two collect() calls, in blocks, plus one per prefix. Rounded up to a
  // power of two. A longer prefix is never recorded.
  std::size_t ring_blocks = std::size_t{1} << 16;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

struct UseCounters {
  std::uint64_t recorded = 0;   // prefixes that recorders accepted
  std::uint64_t dropped = 0;    // prefixes for which a ring had no room
  std::uint64_t uncounted = 0;  // blocks of collected prefixes beyond max_contents
  std::uint64_t shortened = 0;  // buckets forgotten early
  std::size_t contents = 0;     // with uses in the window now
  std::size_t bytes = 0;        // heap memory of the counts now, without the rings
  std::size_t recorders = 0;    // with a ring that is not yet fully collected

  friend bool operator==(const UseCounters&, const UseCounters&) = default;
};

class UseWindow {
  class Ring;

 public:
  class Recorder {
   public:
    // A moved-from recorder may only be destroyed or assigned to.
    Recorder(Recorder&&) noexcept = default;
    Recorder& operator=(Recorder&& other) noexcept;
    // Recorded uses are still collected.
    ~Recorder();

    // One use of each of the first `depth` blocks; a depth beyond the blocks means all of them. Returns false
    // when the use was dropped.
    bool record(std::span<const LocalHash> locals, std::size_t depth) noexcept;

   private:
    friend class UseWindow;
    explicit Recorder(std::shared_ptr<Ring> ring) noexcept : ring_(std::move(ring)) {}

    std::shared_ptr<Ring> ring_;
  };

  // Errors: those of UseWindowOptions::validate().
  static Result<std::unique_ptr<UseWindow>> create(const UseWindowOptions& options = {});
  ~UseWindow();
  UseWindow(const UseWindow&) = delete;
  UseWindow& operator=(const UseWindow&) = delete;

  Recorder recorder();

  // Counts recorded uses as of `now` and forgets those older than the window. A `now` before an earlier one
  // counts as that one.
  void collect(Clock::TimePoint now);

  // Sets uses[i] to the uses of block i, the path of the first i + 1 local hashes, as of the last collect().
  // Blocks beyond uses.size() are left out. Returns how many blocks from the start have uses. During a
  // collect() it may see part of its effect.
  std::size_t recent_uses(std::span<const LocalHash> locals, std::span<std::uint32_t> uses) const;

  UseCounters counters() const;

 private:
  struct State;
  explicit UseWindow(const UseWindowOptions& options);

  std::unique_ptr<State> state_;
};

}  // namespace ashlar::index
