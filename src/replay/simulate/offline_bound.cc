// Belady's rule (A Study of Replacement Algorithms for a Virtual-Storage Computer, 1966) over blocks that are
// needed as prefixes. No block is needed before the one in front of it, and of those needed at the same time
// the later one goes first, so that what is left is always made of prefixes, and every block that is left
// can be found.
//
// Next uses are known after one walk from the last request to the first. Blocks that are not in use wait in a
// heap by next use and position; an entry that no longer agrees with its block is dropped when it comes up.
#include "replay/simulate/offline_bound.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <vector>

#include "ashlar/base/check.h"

namespace ashlar::replay {
namespace {

constexpr std::uint32_t kNeverAgain = UINT32_MAX;

struct UnusedBlock {
  std::uint32_t next = 0;  // request that needs it, by its place in the order
  std::uint32_t position = 0;
  std::uint32_t block = 0;
  friend bool operator<(const UnusedBlock& a, const UnusedBlock& b) {
    return std::tie(a.next, a.position, a.block) < std::tie(b.next, b.position, b.block);
  }
};

class OfflineCache {
 public:
  OfflineCache(const TraceTable& trace, std::span<const std::uint32_t> requests, std::uint64_t capacity)
      : trace_(trace), requests_(requests), free_(capacity), state_(trace.distinct()) {
    std::size_t named = 0;
    for (const std::uint32_t number : requests) named += trace.requests()[number].count;
    next_.resize(named);
    std::vector<std::uint32_t> next_of(trace.distinct(), kNeverAgain);
    std::size_t at = named;
    for (std::size_t i = requests.size(); i-- > 0;) {
      const auto blocks = trace.blocks_of(trace.requests()[requests[i]]);
      at -= blocks.size();
      for (std::size_t k = 0; k < blocks.size(); ++k) next_[at + k] = next_of[blocks[k]];
      for (const std::uint32_t block : blocks) next_of[block] = static_cast<std::uint32_t>(i);
    }
    ASHLAR_CHECK(at == 0, "the walk back ends where the walk began");
  }

  std::uint64_t run(const std::function<void(std::uint32_t, std::uint64_t)>& each) {
    std::uint64_t hits = 0;
    std::size_t at = 0;
    for (const std::uint32_t number : requests_) {
      const auto blocks = trace_.blocks_of(trace_.requests()[number]);
      const std::uint64_t found = serve(blocks, std::span(next_).subspan(at, blocks.size()));
      if (each) each(number, found);
      hits += found;
      at += blocks.size();
    }
    return hits;
  }

 private:
  struct State {
    std::uint32_t next = 0;
    bool is_here = false;
    bool is_used = false;
  };

  std::uint64_t serve(std::span<const std::uint32_t> blocks, std::span<const std::uint32_t> next) {
    std::size_t found = 0;
    while (found < blocks.size() && state_[blocks[found]].is_here) ++found;
    for (const std::uint32_t block : blocks) state_[block].is_used = true;
    std::size_t kept = 0;
    while (kept < blocks.size() && (state_[blocks[kept]].is_here || take_room())) {
      state_[blocks[kept]].is_here = true;
      ++kept;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      State& state = state_[blocks[i]];
      state.is_used = false;
      state.next = next[i];
      if (state.is_here) heap_.push({next[i], static_cast<std::uint32_t>(i), blocks[i]});
    }
    return found;
  }

  bool take_room() {
    if (free_ > 0) {
      --free_;
      return true;
    }
    while (!heap_.empty()) {
      const UnusedBlock victim = heap_.top();
      State& state = state_[victim.block];
      // In use, gone, or needed at another time than when it was put there. One in use comes back with its
      // request.
      heap_.pop();
      if (state.is_used || !state.is_here || state.next != victim.next) continue;
      state.is_here = false;
      return true;
    }
    return false;
  }

  const TraceTable& trace_;
  const std::span<const std::uint32_t> requests_;
  std::uint64_t free_;
  std::vector<State> state_;
  std::vector<std::uint32_t> next_;  // of each block that is named, in the order of the requests
  std::priority_queue<UnusedBlock> heap_;
};

}  // namespace

std::uint64_t offline_hits(const TraceTable& trace, std::span<const std::uint32_t> requests,
                           std::uint64_t capacity,
                           const std::function<void(std::uint32_t request, std::uint64_t hits)>& each) {
  return OfflineCache(trace, requests, capacity).run(each);
}

}  // namespace ashlar::replay
