// Eviction policies over lists and sets, as their papers have them, and a cache that makes its room before or
// after a request: what replay_bench compares with.
//
// Nothing is bounded: LFU counts every name, S3-FIFO remembers as many ghosts as there are blocks, exactly.
// Requests find an unbroken prefix. "After": all their blocks enter, and then what is too much goes.
// "Before": as a manager must, room for what was not found is made first, while what was found is in use.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/replay/trace_table.h"

namespace ashlar::bench {

enum class RoomMade : std::uint8_t { kBefore, kAfter };

class NaivePolicy {
 public:
  virtual ~NaivePolicy() = default;
  // Of the trace, before hit() and insert() of its blocks.
  virtual void begin_request(std::size_t) {}
  virtual void hit(std::uint32_t block) = 0;
  virtual void insert(std::uint32_t block) = 0;
  // Requires: a block is cached and not in use.
  virtual std::uint32_t evict() = 0;

  // Blocks that evict() does not choose.
  void set_in_use(std::span<const std::uint32_t> blocks) { in_use_ = {blocks.begin(), blocks.end()}; }

 protected:
  bool is_used(std::uint32_t block) const { return in_use_.contains(block); }

 private:
  std::unordered_set<std::uint32_t> in_use_;
};

// Takes the first of a queue that is not in use.
class NaiveFifo final : public NaivePolicy {
 public:
  void hit(std::uint32_t) override {}
  void insert(std::uint32_t block) override { queue_.push_back(block); }
  std::uint32_t evict() override {
    const auto victim = std::ranges::find_if(queue_, [this](std::uint32_t block) { return !is_used(block); });
    ASHLAR_CHECK(victim != queue_.end(), "nothing can be evicted");
    const std::uint32_t block = *victim;
    queue_.erase(victim);
    return block;
  }

 private:
  std::deque<std::uint32_t> queue_;
};

// Takes the block with the smallest key.
class KeyedPolicy : public NaivePolicy {
 public:
  void hit(std::uint32_t block) final {
    order_.erase(key_[block]);
    insert(block);
  }
  void insert(std::uint32_t block) final {
    const auto [first, second] = next_key(block);
    key_[block] = {first, second, block};
    order_.insert(key_[block]);
  }
  std::uint32_t evict() final {
    const auto victim =
        std::ranges::find_if(order_, [this](const Key& one) { return !is_used(std::get<2>(one)); });
    ASHLAR_CHECK(victim != order_.end(), "nothing can be evicted");
    const std::uint32_t block = std::get<2>(*victim);
    order_.erase(victim);
    return block;
  }

 protected:
  explicit KeyedPolicy(std::size_t blocks) : key_(blocks) {}
  virtual std::pair<std::uint64_t, std::uint64_t> next_key(std::uint32_t block) = 0;

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;
  std::vector<Key> key_;
  std::set<Key> order_;
};

class NaiveRecency final : public KeyedPolicy {
 public:
  explicit NaiveRecency(std::size_t blocks) : KeyedPolicy(blocks) {}

 private:
  std::pair<std::uint64_t, std::uint64_t> next_key(std::uint32_t) override { return {++now_, 0}; }
  std::uint64_t now_ = 0;
};

// Of equal counts the least recently used one goes. Counts are kept of blocks that have gone.
class NaiveFrequency final : public KeyedPolicy {
 public:
  explicit NaiveFrequency(std::size_t blocks) : KeyedPolicy(blocks), counts_(blocks) {}

 private:
  std::pair<std::uint64_t, std::uint64_t> next_key(std::uint32_t block) override {
    return {++counts_[block], ++now_};
  }
  std::vector<std::uint64_t> counts_;
  std::uint64_t now_ = 0;
};

// Belady: the block needed last goes, of those needed at the same time the one furthest from the start.
class NaiveOptimum final : public KeyedPolicy {
 public:
  explicit NaiveOptimum(const replay::TraceTable& trace)
      : KeyedPolicy(trace.distinct()), trace_(trace), uses_(trace.distinct()), position_(trace.distinct()) {
    for (std::size_t i = 0; i < trace.requests().size(); ++i)
      for (const std::uint32_t block : trace.blocks_of(trace.requests()[i])) uses_[block].push_back(i);
  }
  void begin_request(std::size_t number) override {
    std::uint64_t position = 0;
    for (const std::uint32_t block : trace_.blocks_of(trace_.requests()[number])) {
      position_[block] = position++;
      uses_[block].pop_front();
    }
  }

 private:
  std::pair<std::uint64_t, std::uint64_t> next_key(std::uint32_t block) override {
    const std::uint64_t next = uses_[block].empty() ? UINT64_MAX : uses_[block].front();
    return {~next, ~position_[block]};
  }
  const replay::TraceTable& trace_;
  std::vector<std::deque<std::size_t>> uses_;  // to come
  std::vector<std::uint64_t> position_;
};

// S3-FIFO (Yang et al., SOSP 2023): a tenth is small, and a block that was used in it moves to main.
class NaiveS3Fifo final : public NaivePolicy {
 public:
  NaiveS3Fifo(std::size_t blocks, std::size_t capacity)
      : uses_(blocks), is_ghost_(blocks), capacity_(capacity), small_size_(capacity / 10) {}
  void hit(std::uint32_t block) override {
    if (uses_[block] < kMostUses) ++uses_[block];
  }
  void insert(std::uint32_t block) override {
    uses_[block] = 0;
    if (!is_ghost_[block]) {
      small_.push_back(block);
      return;
    }
    is_ghost_[block] = false;
    ghosts_.erase(std::ranges::find(ghosts_, block));
    main_.push_back(block);
  }
  std::uint32_t evict() override {
    std::deque<std::uint32_t> kept;  // of small, at its head
    const std::uint32_t victim = choose(kept);
    small_.insert(small_.begin(), kept.begin(), kept.end());
    return victim;
  }

 private:
  static constexpr std::uint8_t kMostUses = 3;

  std::uint32_t choose(std::deque<std::uint32_t>& kept) {
    for (;;) {
      const bool is_small = !small_.empty() && (small_.size() + kept.size() > small_size_ || main_.empty());
      std::deque<std::uint32_t>& queue = is_small ? small_ : main_;
      ASHLAR_CHECK(!queue.empty(), "nothing can be evicted");
      const std::uint32_t block = queue.front();
      queue.pop_front();
      if (is_used(block)) {
        (is_small ? kept : main_).push_back(block);
      } else if (uses_[block] != 0) {
        uses_[block] = is_small ? 0 : static_cast<std::uint8_t>(uses_[block] - 1);
        main_.push_back(block);
      } else {
        if (is_small) remember(block);
        return block;
      }
    }
  }
  void remember(std::uint32_t block) {
    ghosts_.push_back(block);
    is_ghost_[block] = true;
    if (ghosts_.size() <= capacity_) return;
    is_ghost_[ghosts_.front()] = false;
    ghosts_.pop_front();
  }

  std::vector<std::uint8_t> uses_;
  std::vector<bool> is_ghost_;
  std::deque<std::uint32_t> small_;
  std::deque<std::uint32_t> main_;
  std::deque<std::uint32_t> ghosts_;
  const std::size_t capacity_;
  const std::size_t small_size_;
};

inline std::unique_ptr<NaivePolicy> naive_policy(std::string_view name, const replay::TraceTable& trace,
                                                 std::size_t capacity) {
  if (name == "fifo") return std::make_unique<NaiveFifo>();
  if (name == "lru") return std::make_unique<NaiveRecency>(trace.distinct());
  if (name == "lfu") return std::make_unique<NaiveFrequency>(trace.distinct());
  if (name == "s3_fifo") return std::make_unique<NaiveS3Fifo>(trace.distinct(), capacity);
  ASHLAR_CHECK(name == "optimum", "a policy of none of these names");
  return std::make_unique<NaiveOptimum>(trace);
}

// Share of blocks found. Blocks are used from the last to the first, and enter a queue in their order.
inline double naive_hit_rate(const replay::TraceTable& trace, std::string_view name, std::size_t capacity,
                             RoomMade order) {
  const std::unique_ptr<NaivePolicy> policy = naive_policy(name, trace, capacity);
  std::vector<bool> is_cached(trace.distinct());
  std::size_t size = 0;
  std::uint64_t hits = 0;
  const auto make_room = [&](std::size_t most) {
    for (; size > most; --size) is_cached[policy->evict()] = false;
  };
  for (std::size_t number = 0; number < trace.requests().size(); ++number) {
    std::span<const std::uint32_t> blocks = trace.blocks_of(trace.requests()[number]);
    std::size_t found = 0;
    while (found < blocks.size() && is_cached[blocks[found]]) ++found;
    hits += found;
    policy->begin_request(number);
    if (order == RoomMade::kBefore) {
      policy->set_in_use(blocks.first(found));
      blocks = blocks.first(std::min(blocks.size(), capacity));
      make_room(capacity - (blocks.size() - std::min(found, blocks.size())));
      policy->set_in_use({});
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::uint32_t block = name == "fifo" ? blocks[i] : blocks[blocks.size() - 1 - i];
      if (is_cached[block]) {
        policy->hit(block);
      } else {
        policy->insert(block);
        is_cached[block] = true;
        ++size;
      }
    }
    if (order == RoomMade::kAfter) make_room(capacity);
  }
  return static_cast<double>(hits) / static_cast<double>(trace.named());
}

}  // namespace ashlar::bench
