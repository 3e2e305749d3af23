#include "tiers/offload/offload_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/managers.h"

namespace ashlar::tiers {
namespace {

using block::KvReady;
using events::G2;
using tokens::SequenceHash;

SequenceHash hash_of(std::uint64_t i) {
  return SequenceHash::root(i + 1);
}

class OffloadQueueTest : public ::testing::Test {
 protected:
  void cache(std::uint64_t i) {
    auto blocks = manager_.allocate_blocks(1).value();
    const auto stored =
        manager_.register_block(std::move(blocks[0]).stage(hash_of(i), KvReady::asserted_by_caller()))
            .value();
  }
  std::unique_ptr<OffloadQueue> queue(std::size_t on_deck, std::size_t waiting = 1000) {
    return OffloadQueue::create({.on_deck = on_deck, .waiting = waiting},
                                [this](const SequenceHash& hash) -> std::optional<block::Hold> {
                                  auto hold = manager_.hold(hash);
                                  if (!hold) return std::nullopt;
                                  return *std::move(hold);
                                })
        .value();
  }
  static std::vector<SequenceHash> names(const std::vector<OffloadQueue::Item>& items) {
    std::vector<SequenceHash> out;
    for (const OffloadQueue::Item& item : items) out.push_back(item.hold.sequence_hash());
    return out;
  }

  block::BlockManager<G2> manager_ = ashlar::testing::make_manager<G2>(64);
};

TEST_F(OffloadQueueTest, GoesStraightOnDeckWhileThereIsRoom) {
  for (std::uint64_t i = 0; i < 4; ++i) cache(i);
  const auto queue = this->queue(2);
  EXPECT_EQ(queue->offer(hash_of(0), 10), Offer::kOnDeck);
  EXPECT_EQ(queue->offer(hash_of(1), 10), Offer::kOnDeck);
  EXPECT_EQ(queue->offer(hash_of(2), 99), Offer::kWaiting);
  EXPECT_EQ(queue->offer(hash_of(0), 99), Offer::kKnown);
  EXPECT_EQ(manager_.status().held_inactive, 2u) << "those on deck are held, the others are not";
  EXPECT_EQ(names(queue->take(1)), std::vector{hash_of(0)});
  EXPECT_EQ(queue->on_deck(), 2u) << "the deck was refilled";
  EXPECT_EQ(names(queue->take(9)), (std::vector{hash_of(2), hash_of(1)}));
}

TEST_F(OffloadQueueTest, HigherPriorityFirstOlderFirstAmongEquals) {
  for (std::uint64_t i = 0; i < 8; ++i) cache(i);
  const auto queue = this->queue(1);
  EXPECT_EQ(queue->offer(hash_of(0), 50), Offer::kOnDeck);
  queue->offer(hash_of(1), 10);
  queue->offer(hash_of(2), 90);
  queue->offer(hash_of(3), 10);
  queue->offer(hash_of(4), 90);
  EXPECT_EQ(queue->offer(hash_of(3), 95), Offer::kRaised);
  EXPECT_EQ(queue->offer(hash_of(3), 20), Offer::kKnown);
  std::vector<SequenceHash> order;
  for (auto items = queue->take(1); !items.empty(); items = queue->take(1))
    order.push_back(items[0].hold.sequence_hash());
  EXPECT_EQ(order, (std::vector{hash_of(0), hash_of(3), hash_of(2), hash_of(4), hash_of(1)}));
}

TEST_F(OffloadQueueTest, WhatWasEvictedMeanwhileIsDiscarded) {
  for (std::uint64_t i = 0; i < 4; ++i) cache(i);
  const auto queue = this->queue(1);
  for (std::uint64_t i = 0; i < 4; ++i) queue->offer(hash_of(i), 10);
  EXPECT_EQ(manager_.reset_inactive_pool(), 3u) << "all but the one on deck";
  EXPECT_EQ(names(queue->take(9)), std::vector{hash_of(0)});
  EXPECT_TRUE(queue->take(9).empty());
  EXPECT_EQ(queue->counters().discarded, 3u);
  EXPECT_EQ(queue->offer(hash_of(2), 10), Offer::kGone);
  cache(2);
  EXPECT_EQ(queue->offer(hash_of(2), 10), Offer::kOnDeck);
}

TEST_F(OffloadQueueTest, NothingIsTakenTwiceUntilItIsFinished) {
  cache(0);
  const auto queue = this->queue(4);
  queue->offer(hash_of(0), 10);
  const auto items = queue->take(1);
  EXPECT_TRUE(queue->in_flight(hash_of(0)));
  EXPECT_EQ(queue->offer(hash_of(0), 99), Offer::kKnown);
  EXPECT_FALSE(queue->cancel(hash_of(0))) << "it is on its way";
  queue->finished(hash_of(0));
  queue->finished(hash_of(0));
  EXPECT_EQ(queue->offer(hash_of(0), 10), Offer::kOnDeck);
  EXPECT_EQ(queue->counters().in_flight, 0u);
}

TEST_F(OffloadQueueTest, AFullQueueKeepsWhatComesFirst) {
  for (std::uint64_t i = 0; i < 8; ++i) cache(i);
  const auto queue = this->queue(1, 2);
  queue->offer(hash_of(0), 50);
  EXPECT_EQ(queue->offer(hash_of(1), 20), Offer::kWaiting);
  EXPECT_EQ(queue->offer(hash_of(2), 10), Offer::kWaiting);
  EXPECT_EQ(queue->offer(hash_of(3), 10), Offer::kNoRoom) << "older ones of its priority wait";
  EXPECT_EQ(queue->offer(hash_of(4), 30), Offer::kWaiting) << "in the place of the last";
  EXPECT_EQ(queue->counters().displaced, 1u);
  EXPECT_EQ(queue->offer(hash_of(2), 10), Offer::kNoRoom) << "it was displaced";
}

TEST_F(OffloadQueueTest, CancelWorksWhereverItStands) {
  for (std::uint64_t i = 0; i < 4; ++i) cache(i);
  const auto queue = this->queue(1);
  for (std::uint64_t i = 0; i < 4; ++i) queue->offer(hash_of(i), 10);
  EXPECT_TRUE(queue->cancel(hash_of(2)));
  EXPECT_TRUE(queue->cancel(hash_of(0)));
  EXPECT_EQ(queue->on_deck(), 1u) << "the next came on deck";
  EXPECT_FALSE(queue->cancel(hash_of(0)));
  EXPECT_EQ(queue->clear(), 2u);
  EXPECT_TRUE(queue->take(9).empty());
  EXPECT_EQ(manager_.status().held_inactive, 0u);
}

TEST_F(OffloadQueueTest, LimitsAreChecked) {
  EXPECT_FALSE(OffloadQueue::create({.on_deck = 0}, nullptr));
  EXPECT_FALSE(OffloadQueue::create({.waiting = 0}, nullptr));
}

// Many threads: every name is in flight at most once at a time, holds are all given back, nothing is lost
// that is cached.
TEST_F(OffloadQueueTest, ManyThreadsOfferTakeAndCancel) {
  for (std::uint64_t i = 0; i < 64; ++i) cache(i);
  const auto queue = this->queue(8, 32);
  std::array<std::atomic<int>, 64> flying{};
  std::atomic<int> mistakes{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 3000; ++i) {
        const std::uint64_t which = random.below(64);
        if (i % 64 == 0) queue->check_invariants();
        switch (random.below(4)) {
          case 0:
          case 1:
            queue->offer(hash_of(which), static_cast<std::uint8_t>(random.below(4)));
            break;
          case 2:
            queue->cancel(hash_of(which));
            break;
          default:
            for (OffloadQueue::Item& item : queue->take(1 + random.below(4))) {
              const SequenceHash hash = item.hold.sequence_hash();
              const std::uint64_t number = hash.chain() - 1;
              if (flying[number]++ != 0) ++mistakes;
              item.hold = block::Hold();
              --flying[number];
              queue->finished(hash);
            }
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mistakes, 0);
  queue->check_invariants();
  queue->clear();
  EXPECT_EQ(queue->counters().in_flight, 0u);
  EXPECT_EQ(queue->counters().on_deck + queue->counters().waiting, 0u);
  EXPECT_EQ(manager_.status().held_inactive, 0u);
  EXPECT_EQ(manager_.available_blocks(), 64u);
  manager_.check_invariants();
}

}  // namespace
}  // namespace ashlar::tiers
