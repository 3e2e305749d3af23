// UseWindow: how often queries used each content in the last minute or so. Optional, and apart from the
// index: it composes with every structure, and costs nothing where it is not used.
//
//   UseWindow::Recorder uses = window->recorder();       // one per thread that queries
//   index.find_matches(locals, scores);
//   uses.record(locals, scores.longest());               // one use of each block in the matched prefix
//   …
//   window->collect(clock.now());                        // now and then, on some thread
//   window->recent_uses(locals, counts);                 // uses of each block, as of the last collect()
//
// Recording writes to memory of its own thread only: the local hashes of the prefix go into a ring that the
// thread does not share with other threads but for the collector, which takes them out. A ring without room
// drops the use and counts it. collect() counts what it finds as used now, in the bucket of time that `now`
// lies in; contents are told apart by comparing local hashes (a trie), so counts are exact but for what was
// dropped.
//
// Bounds. Uses older than the window are forgotten bucket by bucket, and contents with them. At max_contents
// the oldest bucket goes early, so the counts are then those of a shorter window; when only the current one
// is left, the uses of new contents are not counted (UseCounters::uncounted).
//
// Thread safety: UseWindow is thread-safe; a Recorder is confined to one thread at a time, and may outlive
// the window.
// Complexity:    record() copies 8 bytes per block, without a lock and without allocating. collect() is O(1)
//                expected per recorded block and per content forgotten, but for the steps that double tables;
//                recent_uses() O(blocks). Both take one lock, collect() for 4,096 blocks or contents at a
//                time (a longer prefix, and a bucket that goes early, are not cut). Memory: 70 to 140 bytes
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
  // Blocks that wait in one recorder for collect(), each recorded prefix counting one more. Rounded up to a
  // power of two. A longer prefix is never recorded.
  std::size_t ring_blocks = std::size_t{1} << 16;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

struct UseCounters {
  std::uint64_t recorded = 0;   // prefixes taken in by recorders
  std::uint64_t dropped = 0;    // prefixes for which a ring had no room
  std::uint64_t uncounted = 0;  // blocks of collected prefixes for which there was no room
  std::uint64_t shortened = 0;  // buckets forgotten early
  std::size_t contents = 0;     // with uses in the window now
  std::size_t bytes = 0;        // heap memory of the counts now, without the rings
  std::size_t recorders = 0;    // whose ring is still there

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
    // What was recorded is still collected.
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

  // Counts what was recorded as used at `now`, and forgets what is older than the window. Time that runs back
  // counts as the latest so far.
  void collect(Clock::TimePoint now);

  // Sets uses[i] to the uses of block i, the path of the first i + 1 local hashes, as of the last collect().
  // Blocks for which `uses` has no element are left out. Returns how many blocks from the start have uses.
  // Beside a collect() that is under way it may see a part of that.
  std::size_t recent_uses(std::span<const LocalHash> locals, std::span<std::uint32_t> uses) const;

  UseCounters counters() const;

 private:
  struct State;
  explicit UseWindow(const UseWindowOptions& options);

  std::unique_ptr<State> state_;
};

}  // namespace ashlar::index
