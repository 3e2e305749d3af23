// RwLock: writers alone, readers together, and a lock that is freed by whoever gets it last.
#include "index/common/rw_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace ashlar::index {
namespace {

TEST(RwLockTest, ReadersHoldItTogether) {
  RwLock lock;
  lock.lock_shared();
  std::thread other([&] {
    lock.lock_shared();
    lock.unlock_shared();
  });
  other.join();
  lock.unlock_shared();
  lock.lock();
  lock.unlock();
}

TEST(RwLockTest, WritersAreAloneAndReadersSeeWholeChanges) {
  constexpr int kRounds = 4'000;
  RwLock lock;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        lock.lock();
        ++first;
        ++second;
        lock.unlock();
      }
    });
  std::atomic<std::uint64_t> torn{0};
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        lock.lock_shared();
        if (first != second) ++torn;
        lock.unlock_shared();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(first, 3u * kRounds);
  EXPECT_EQ(second, first);
}

// Readers never leave the lock free for long; the writer must get in all the same.
TEST(RwLockTest, AWriterGetsInBetweenOverlappingReaders) {
  RwLock lock;
  std::atomic<bool> written{false};
  std::vector<std::thread> readers;
  readers.reserve(4);
  for (int i = 0; i < 4; ++i)
    readers.emplace_back([&] {
      while (!written) {
        lock.lock_shared();
        std::this_thread::yield();
        lock.unlock_shared();
      }
    });
  lock.lock();
  written = true;
  lock.unlock();
  for (std::thread& reader : readers) reader.join();
}

// What the tree does with a node: a reader leaves while the writer that waits for it frees the lock.
TEST(RwLockTest, TheLastOneMayFreeIt) {
  for (int round = 0; round < 500; ++round) {
    auto lock = std::make_unique<RwLock>();
    RwLock* shared = lock.get();
    shared->lock_shared();
    std::atomic<int> started{0};
    std::thread writer([&] {
      ++started;
      shared->lock();
      shared->unlock();
      lock.reset();
    });
    while (started == 0) std::this_thread::yield();
    if (round % 2 == 0) std::this_thread::yield();
    shared->unlock_shared();
    writer.join();
  }
}

}  // namespace
}  // namespace ashlar::index
