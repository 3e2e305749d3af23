#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "ashlar/index/thread_pool_indexer.h"
#include "ashlar/testing/interleaving.h"
#include "support/counted_new.h"

namespace ashlar::index {
namespace {

constexpr const char* kBeforeApply = "write_queue.before_apply";
constexpr std::size_t kBlocks = 16;
constexpr std::size_t kCapacity = 4096;

// Does nothing, so that what is counted is the pool's.
struct NoIndex {
  StoreVerdict store(const BlocksStored&) { return StoreVerdict::kApplied; }
  std::size_t remove(const Worker&, StorageTier, std::span<const BlockName>) { return 0; }
  void clear(const Worker&) {}
  void remove_worker(WorkerId) {}
  void find_matches(std::span<const LocalHash>, MatchScores&, const FindOptions&) const {}
  void dump(IndexSink&) const {}
  IndexSizes sizes() const { return {}; }
  IndexCounters counters() const { return {}; }
};

TEST(ThreadPoolAllocationTest, AnEventAllocatesNothingOnceTheQueueHasBeenFull) {
  std::optional<testing::Interleaving> order(std::in_place);
  auto pool = ThreadPoolIndexer<NoIndex>::create({.threads = 1, .queue_capacity = kCapacity}).value();
  const std::vector<StoredBlock> blocks(kBlocks);
  const std::vector<BlockName> names(kBlocks);
  const Worker worker{WorkerId(1), 0};
  const auto store = [&] { pool.store({worker, StorageTier::kDevice, {}, {}, blocks}); };
  const auto remove = [&] { pool.remove(worker, StorageTier::kDevice, names); };

  // Fills both halves of the queue to the limit, with each kind of event.
  for (int half = 0; half < 2; ++half) {
    const auto held = order->pause_at(kBeforeApply);
    store();
    order->wait_until_paused(held);
    for (std::size_t i = 0; i < kCapacity / kBlocks; ++i) store();
    order->resume(held);
    pool.settle();
    const auto held_again = order->pause_at(kBeforeApply);
    remove();
    order->wait_until_paused(held_again);
    for (std::size_t i = 0; i < kCapacity / kBlocks; ++i) remove();
    order->resume(held_again);
    pool.settle();
    store();  // a batch alone, so that the halves change places
    pool.settle();
  }

  order.reset();  // it allocates; after settle() no thread is at a point
  const std::size_t before = g_allocations;
  for (std::size_t i = 0; i < 20'000; ++i) {
    store();
    remove();
  }
  pool.clear(worker);
  EXPECT_EQ(g_allocations, before);
}

}  // namespace
}  // namespace ashlar::index
