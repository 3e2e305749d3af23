#include <vector>

#include "ashlar/block/eviction.h"
#include "base/large_array.h"

namespace ashlar::block {
namespace {

constexpr unsigned kTimeBits = 57;
constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << kTimeBits) - 1;  // as a time: forever

// Priority and time as one word that is never 0: the time is stored plus one.
std::uint64_t pack(const BlockRetention& retention) noexcept {
  std::uint64_t time = kTimeMask;
  if (retention.until != BlockRetention::kForever) {
    const auto since =
        std::chrono::duration_cast<std::chrono::microseconds>(retention.until.time_since_epoch());
    const std::int64_t count = since.count() < 0 ? 0 : since.count();
    time = static_cast<std::uint64_t>(count) + 1;
    if (time > kTimeMask) time = kTimeMask;
  }
  return std::uint64_t{retention.priority} << kTimeBits | time;
}

BlockRetention unpack(std::uint64_t word) noexcept {
  BlockRetention retention;
  retention.priority = static_cast<std::uint8_t>(word >> kTimeBits);
  const std::uint64_t time = word & kTimeMask;
  if (time != kTimeMask) {
    retention.until = Clock::TimePoint(std::chrono::microseconds(static_cast<std::int64_t>(time - 1)));
  }
  return retention;
}

}  // namespace

struct BlockFacts::Columns {
  LargeArray<std::atomic<std::uint64_t>> retentions;
  LargeArray<std::atomic<std::uint8_t>> hits;
  std::vector<std::uint64_t> acquired;
  std::vector<std::optional<tokens::SequenceHash>> parents;
};

BlockFacts::BlockFacts(std::uint32_t block_count)
    : block_count_(block_count), columns_(std::make_unique<Columns>()) {}
BlockFacts::~BlockFacts() = default;

void BlockFacts::keep_retentions() {
  keeps_any_ = true;
  if (retentions_ != nullptr || block_count_ == 0) return;
  columns_->retentions = LargeArray<std::atomic<std::uint64_t>>(block_count_);
  retentions_ = &columns_->retentions[0];
}
void BlockFacts::keep_hits() {
  keeps_any_ = true;
  if (hits_ != nullptr || block_count_ == 0) return;
  columns_->hits = LargeArray<std::atomic<std::uint8_t>>(block_count_);
  hits_ = &columns_->hits[0];
}
void BlockFacts::keep_acquisitions() {
  keeps_any_ = true;
  columns_->acquired.resize(block_count_, 0);
  acquired_ = columns_->acquired.data();
}
void BlockFacts::keep_parents() {
  keeps_any_ = true;
  columns_->parents.resize(block_count_);
  parents_ = columns_->parents.data();
}

// relaxed, here and below: an independent word; the header says what orders it.
std::optional<BlockRetention> BlockFacts::retention(BlockId id) const noexcept {
  const std::uint64_t word = retentions_[id.value()].load(std::memory_order_relaxed);
  return word == 0 ? std::nullopt : std::optional(unpack(word));
}

void BlockFacts::set_retention(BlockId id, const BlockRetention& retention) noexcept {
  if (retentions_ != nullptr) retentions_[id.value()].store(pack(retention), std::memory_order_relaxed);
}

void BlockFacts::pass_on(BlockId from, BlockId to) noexcept {
  if (retentions_ != nullptr) {
    retentions_[to.value()].store(retentions_[from.value()].load(std::memory_order_relaxed),
                                  std::memory_order_relaxed);
  }
  if (hits_ != nullptr) {
    hits_[to.value()].store(hits_[from.value()].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

void BlockFacts::forget(BlockId id) noexcept {
  if (retentions_ != nullptr) retentions_[id.value()].store(0, std::memory_order_relaxed);
  if (hits_ != nullptr) hits_[id.value()].store(0, std::memory_order_relaxed);
  if (parents_ != nullptr) parents_[id.value()].reset();
  acquire(id);
}

}  // namespace ashlar::block
