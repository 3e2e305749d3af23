#include "index/flash/era_domain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "index/common/thread_number.h"

namespace ashlar::index::detail {
namespace {

constexpr std::size_t kBytes = 64;

// Counts what is freed.
struct Frees {
  std::size_t count = 0;
  static void one(void* /*object*/, void* frees) { ++static_cast<Frees*>(frees)->count; }
};

class EraDomainTest : public ::testing::Test {
 protected:
  // An object that exists as a number only.
  void retire(std::uint64_t birth, std::size_t bytes = kBytes) {
    domain_.retire(nullptr, bytes, birth, &Frees::one, &frees_);
  }
  // Makes and retires objects.
  void churn(std::size_t objects, std::size_t bytes = kBytes) {
    for (std::size_t i = 0; i < objects; ++i) retire(domain_.birth(bytes), bytes);
  }
  // Makes objects and retires them all in the order in which they were made.
  void fill_and_empty(std::size_t objects, std::size_t bytes = kBytes) {
    std::vector<std::uint64_t> births;
    for (std::size_t i = 0; i < objects; ++i) births.push_back(domain_.birth(bytes));
    for (const std::uint64_t birth : births) retire(birth, bytes);
  }

  Frees frees_;
  EraDomain domain_;
};

TEST_F(EraDomainTest, AFullBatchIsFreedWhenNobodyReads) {
  churn(EraDomain::kBatch - 1);
  EXPECT_EQ(frees_.count, 0u);
  EXPECT_EQ(domain_.waiting_count(), EraDomain::kBatch - 1);
  EXPECT_EQ(domain_.waiting_bytes(), (EraDomain::kBatch - 1) * kBytes);
  churn(1);
  EXPECT_EQ(frees_.count, EraDomain::kBatch);
  EXPECT_EQ(domain_.waiting_count(), 0u);
  EXPECT_EQ(domain_.waiting_bytes(), 0u);
}

TEST_F(EraDomainTest, ABatchIsFullByItsBytesToo) {
  churn(1, EraDomain::kBatchBytes - 1);
  EXPECT_EQ(frees_.count, 0u);
  churn(1, 1);
  EXPECT_EQ(frees_.count, 2u);
}

TEST_F(EraDomainTest, FlushFreesWhatNobodyHolds) {
  churn(3);
  domain_.flush();
  EXPECT_EQ(frees_.count, 3u);
}

TEST_F(EraDomainTest, AReaderHoldsWhatWasAliveWhenItEntered) {
  const std::uint64_t birth = domain_.birth(kBytes);
  {
    const EraDomain::Guard guard = domain_.enter();
    ASSERT_TRUE(guard.ok());
    retire(birth);
    domain_.flush();
    EXPECT_EQ(frees_.count, 0u);
    EXPECT_EQ(domain_.waiting_count(), 1u);
  }
  domain_.flush();
  EXPECT_EQ(frees_.count, 1u);
}

TEST_F(EraDomainTest, AReaderHoldsNothingThatWasBornInALaterEra) {
  const EraDomain::Guard guard = domain_.enter();
  domain_.flush();
  churn(1);
  domain_.flush();
  EXPECT_EQ(frees_.count, 1u);
}

TEST_F(EraDomainTest, AReaderHoldsNothingThatWasRetiredInAnEarlierEra) {
  const std::uint64_t birth = domain_.birth(kBytes);
  {
    const EraDomain::Guard guard = domain_.enter();
    retire(birth);
    domain_.flush();
  }
  const EraDomain::Guard later = domain_.enter();
  domain_.flush();
  EXPECT_EQ(frees_.count, 1u);
}

TEST_F(EraDomainTest, WhatAReaderMayFollowEndsWithTheEra) {
  EraDomain::Guard guard = domain_.enter();
  EXPECT_EQ(guard.era(), domain_.era());
  EXPECT_TRUE(guard.still());
  domain_.flush();
  EXPECT_FALSE(guard.still());
  guard.renew();
  EXPECT_TRUE(guard.still());
  EXPECT_EQ(guard.era(), domain_.era());
}

TEST_F(EraDomainTest, ARenewedReaderLetsGoOfItsOldEra) {
  const std::uint64_t birth = domain_.birth(kBytes);
  EraDomain::Guard guard = domain_.enter();
  retire(birth);
  domain_.flush();
  EXPECT_EQ(frees_.count, 0u);
  guard.renew();
  domain_.flush();
  EXPECT_EQ(frees_.count, 1u);
}

TEST_F(EraDomainTest, EachReaderHoldsItsOwnEra) {
  const std::uint64_t old = domain_.birth(kBytes);
  const EraDomain::Guard first = domain_.enter();
  domain_.flush();
  const std::uint64_t young = domain_.birth(kBytes);
  std::latch entered(1);
  std::latch leave(1);
  std::thread second([&] {
    const EraDomain::Guard guard = domain_.enter();
    entered.count_down();
    leave.wait();
  });
  entered.wait();
  retire(old);
  retire(young);
  domain_.flush();
  EXPECT_EQ(frees_.count, 0u);
  leave.count_down();
  second.join();
  domain_.flush();
  EXPECT_EQ(frees_.count, 1u);  // the young one
  EXPECT_EQ(domain_.waiting_count(), 1u);
}

TEST_F(EraDomainTest, AReaderUnderTheWritersLockHoldsNothingAndNeedsNoLine) {
  const std::uint64_t birth = domain_.birth(kBytes);
  EraDomain::Guard inside = domain_.enter_locked();
  EXPECT_TRUE(inside.ok());
  EXPECT_TRUE(inside.still());
  const EraDomain::Guard announced = domain_.enter();
  EXPECT_TRUE(announced.ok());
  inside.renew();
  EXPECT_TRUE(inside.still());
  retire(birth);
}

TEST_F(EraDomainTest, AnEraThatGivesBirthToManyBytesEndsWithoutAScan) {
  const std::uint64_t first = domain_.era();
  retire(domain_.birth(1), 1);
  std::uint64_t last = first;
  for (std::size_t bytes = 0; bytes <= EraDomain::kBatchBytes; bytes += 4096) last = domain_.birth(4096);
  EXPECT_EQ(last, first + 1);
  EXPECT_EQ(frees_.count, 0u);  // birth() calls nobody
}

TEST_F(EraDomainTest, AFreeFunctionMayRetireMore) {
  struct Chain {
    EraDomain& domain;
    int left = 1000;
    static void next(void* object, void* chain) {
      auto& self = *static_cast<Chain*>(chain);
      if (--self.left > 0) self.domain.retire(object, 1, self.domain.birth(1), &Chain::next, chain);
    }
  };
  Chain chain{domain_};
  domain_.retire(nullptr, 1, domain_.birth(1), &Chain::next, &chain);
  domain_.flush();
  EXPECT_EQ(chain.left, 0);
  EXPECT_EQ(domain_.waiting_count(), 0u);
}

TEST(EraDomain, EndsWithEverythingFreed) {
  Frees frees;
  {
    EraDomain domain;
    for (int i = 0; i < 10; ++i) domain.retire(nullptr, 1, domain.birth(1), &Frees::one, &frees);
  }
  EXPECT_EQ(frees.count, 10u);
}

// The limit of the header, for one reader: what was alive, an era's births, and a batch.
TEST_F(EraDomainTest, AStalledReaderKeepsBackWhatWasAliveAndABatch) {
  constexpr std::size_t kAlive = 5000;
  constexpr std::size_t kLimit =
      kAlive * kBytes + EraDomain::kBatchBytes + kBytes + EraDomain::kBatch * kBytes;
  std::vector<std::uint64_t> alive;
  for (std::size_t i = 0; i < kAlive; ++i) alive.push_back(domain_.birth(kBytes));
  std::size_t most = 0;
  {
    const EraDomain::Guard stalled = domain_.enter();
    // Everything is replaced, 100 times over.
    for (int round = 0; round < 100; ++round) {
      for (std::uint64_t& birth : alive) {
        const std::uint64_t next = domain_.birth(kBytes);
        retire(birth);
        birth = next;
        most = std::max(most, domain_.waiting_bytes());
        ASSERT_LE(domain_.waiting_bytes(), kLimit);
      }
    }
    EXPECT_GE(most, kAlive * kBytes);
    EXPECT_GE(domain_.waiting_count(), kAlive);
  }
  // The reader has left: the memory comes back with the writer's next steps.
  for (std::uint64_t& birth : alive) {
    retire(birth);
    birth = domain_.birth(kBytes);
  }
  EXPECT_LT(domain_.waiting_count(), EraDomain::kBatch);
}

TEST_F(EraDomainTest, AStalledReaderKeepsBackLittleOfWhatIsStoredWhileItStalls) {
  const EraDomain::Guard stalled = domain_.enter();
  // Births alone end eras: most of this is younger than the reader.
  fill_and_empty(100'000);
  EXPECT_LE(domain_.waiting_bytes(), EraDomain::kBatchBytes + kBytes + EraDomain::kBatch * kBytes);
}

TEST_F(EraDomainTest, TheWriterLooksAtAnObjectAFewTimesHoweverManyAreHeld) {
  constexpr std::size_t kAlive = 20'000;
  std::vector<std::uint64_t> alive;
  for (std::size_t i = 0; i < kAlive; ++i) alive.push_back(domain_.birth(kBytes));
  const auto replace_all = [&] {
    for (std::uint64_t& birth : alive) {
      retire(birth);
      birth = domain_.birth(kBytes);
    }
  };
  {
    const EraDomain::Guard stalled = domain_.enter();
    for (int round = 0; round < 10; ++round) replace_all();
    EXPECT_GE(domain_.waiting_count(), kAlive);
    EXPECT_LE(domain_.work().examined, domain_.work().retired);  // nothing twice, while the reader is there
  }
  const EraDomain::Work before = domain_.work();
  replace_all();
  const EraDomain::Work after = domain_.work();
  const std::uint64_t scans = after.scans - before.scans;
  EXPECT_LE(after.examined - before.examined,
            after.retired - before.retired + EraDomain::kBatch + scans * EraDomain::kReviews);
  EXPECT_LE(scans, kAlive / EraDomain::kBatch + 1);
  EXPECT_LE(after.examined, after.retired + kAlive + EraDomain::kBatch);  // each held object a second time
}

TEST_F(EraDomainTest, ListsAreGivenBack) {
  const std::size_t fresh = domain_.heap_bytes();
  {
    const EraDomain::Guard stalled = domain_.enter();
    fill_and_empty(1000);
    domain_.flush();
    EXPECT_GT(domain_.waiting_count(), 0u);
    EXPECT_GT(domain_.heap_bytes(), fresh);
  }
  domain_.flush();
  EXPECT_EQ(domain_.waiting_count(), 0u);
  EXPECT_EQ(domain_.heap_bytes(), fresh);
}

TEST_F(EraDomainTest, HundredsOfReadersHoldAtOnce) {
  constexpr int kReaders = 200;
  const std::uint64_t birth = domain_.birth(kBytes);
  std::latch entered(kReaders);
  std::latch leave(1);
  std::atomic<int> refused{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      const EraDomain::Guard guard = domain_.enter();
      if (!guard.ok()) ++refused;
      entered.count_down();
      leave.wait();
    });
  }
  entered.wait();
  retire(birth);
  domain_.flush();
  EXPECT_EQ(frees_.count, 0u);
  leave.count_down();
  for (std::thread& reader : readers) reader.join();
  domain_.flush();
  EXPECT_EQ(frees_.count, 1u);
  EXPECT_EQ(refused, 0);
  EXPECT_GE(domain_.batch_limit(), static_cast<std::size_t>(EraDomain::kBatch));
}

TEST_F(EraDomainTest, OneThreadReadsInTwoDomains) {
  EraDomain other;
  const EraDomain::Guard here = domain_.enter();
  const EraDomain::Guard there = other.enter();
  EXPECT_TRUE(here.still());
  EXPECT_TRUE(there.still());
}

TEST_F(EraDomainTest, EnteringTwiceIsCaught) {
  const EraDomain::Guard guard = domain_.enter();
  EXPECT_DEATH((void)domain_.enter(), "entered a domain twice");
}

TEST(EraDomain, FlushInAFreeFunctionIsCaught) {
  const auto flush_within = [] {
    EraDomain domain;
    const auto flush = [](void* /*object*/, void* itself) { static_cast<EraDomain*>(itself)->flush(); };
    domain.retire(nullptr, 1, domain.birth(1), flush, &domain);
    domain.flush();
  };
  EXPECT_DEATH(flush_within(), "within a free function");
}

TEST(EraDomain, EndingWithAReaderInsideIsCaught) {
  auto domain = std::make_unique<EraDomain>();
  const EraDomain::Guard guard = domain->enter();
  EXPECT_DEATH(domain.reset(), "with a reader inside");
}

TEST(ThreadNumber, EndedThreadsGiveTheirNumbersBackLowestFirst) {
  const std::uint32_t mine = ThreadNumber::mine();
  EXPECT_EQ(ThreadNumber::mine(), mine);
  const auto number_of_a_thread = [] {
    std::uint32_t number = ThreadNumber::kNone;
    std::thread([&] { number = ThreadNumber::mine(); }).join();
    return number;
  };
  const std::uint32_t lowest = number_of_a_thread();
  EXPECT_NE(lowest, mine);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(number_of_a_thread(), lowest);
}

TEST(ThreadNumber, LivingThreadsHaveDifferentNumbers) {
  constexpr std::uint32_t kThreads = 100;
  std::latch asked(kThreads);
  std::vector<std::uint32_t> numbers(kThreads);
  std::vector<std::thread> threads;
  for (std::uint32_t& number : numbers) {
    threads.emplace_back([&] {
      number = ThreadNumber::mine();
      asked.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
  EXPECT_LE(numbers.back(), kThreads + 1);  // dense, beside this thread
}

// Reads in its destructor, which runs after the thread has given its number back.
struct LateReader {
  EraDomain* domain = nullptr;
  bool* refused = nullptr;
  ~LateReader() {
    if (domain != nullptr) *refused = !domain->enter().ok();
  }
};

TEST(EraDomain, AThreadThatIsEndingIsRefused) {
  EraDomain domain;
  bool refused = false;
  std::thread([&] {
    static thread_local LateReader late;
    late.domain = &domain;
    late.refused = &refused;
    EXPECT_TRUE(domain.enter().ok());
  }).join();
  EXPECT_TRUE(refused);
}

}  // namespace
}  // namespace ashlar::index::detail
