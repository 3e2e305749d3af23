// Readers walk a tree of two levels that a writer replaces all the time, under EraDomain's rules. A freed
// object is marked before its memory goes back, so that a walk that meets one fails here, and under a
// sanitizer at once.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "index/flash/era_domain.h"

namespace ashlar::index::detail {
namespace {

constexpr std::uint64_t kWhole = 0x600D'600D'600D'600D;
constexpr std::size_t kChildren = 8;

struct Child {
  std::uint64_t birth;
  std::uint64_t mark = kWhole;
};
struct Node {
  std::uint64_t birth;
  std::uint64_t mark = kWhole;
  std::array<std::atomic<Child*>, kChildren> children{};
};

class Tree {
 public:
  Tree() {
    Node* node = make<Node>();
    for (std::atomic<Child*>& child : node->children) child.store(make<Child>(), kOrderLink);
    root_.store(node, kOrderLink);
  }
  ~Tree() {
    Node* const node = root_.load();
    for (const std::atomic<Child*>& child : node->children) delete child.load();
    delete node;
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // The writer's steps.
  void replace_node() {
    Node* const old = root_.load(std::memory_order_relaxed);
    Node* const next = make<Node>();
    for (std::size_t i = 0; i < kChildren; ++i)
      next->children[i].store(old->children[i].load(std::memory_order_relaxed), kOrderLink);
    root_.store(next, kOrderLink);
    retire(old);
  }
  void replace_child(std::size_t i) {
    std::atomic<Child*>& link = root_.load(std::memory_order_relaxed)->children[i];
    Child* const old = link.load(std::memory_order_relaxed);
    link.store(make<Child>(), kOrderLink);
    retire(old);
  }

  // A reader's walk: false when the tree had to be read anew. `pause` runs with all pointers in hand.
  template <class F>
  bool walk(EraDomain::Guard& guard, F&& pause, std::uint64_t& bad) const {
    const Node* const node = root_.load(kOrderFollow);
    if (!guard.still()) return false;
    std::array<const Child*, kChildren> children{};
    bad += node->mark != kWhole;
    for (std::size_t i = 0; i < kChildren; ++i) {
      children[i] = node->children[i].load(kOrderFollow);
      if (!guard.still()) return false;
    }
    pause();
    bad += node->mark != kWhole;
    for (const Child* const child : children) bad += child->mark != kWhole;
    return true;
  }

  EraDomain domain;

 private:
  template <class T>
  T* make() {
    T* const object = new T;
    object->birth = domain.birth(sizeof(T));
    return object;
  }
  template <class T>
  void retire(T* object) {
    domain.retire(
        object, sizeof(T), object->birth,
        [](void* retired, void*) {
          static_cast<T*>(retired)->mark = 0;
          delete static_cast<T*>(retired);
        },
        nullptr);
  }

  std::atomic<Node*> root_{nullptr};
};

TEST(EraDomainStress, WalksMeetOnlyWholeObjects) {
  constexpr int kReaders = 3;
  Tree tree;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> steps{0};
  std::latch started(kReaders);
  std::array<std::uint64_t, kReaders> walks{};
  std::array<std::uint64_t, kReaders> bad{};
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      started.arrive_and_wait();
      while (!stop.load()) {
        EraDomain::Guard guard = tree.domain.enter();
        // The last reader stalls in each of its walks until the writer has gone through many batches.
        const auto pause = [&] {
          if (r != kReaders - 1) return;
          const std::uint64_t until = steps.load() + 20 * EraDomain::kBatch;
          while (steps.load() < until && !stop.load()) std::this_thread::yield();
        };
        while (!tree.walk(guard, pause, bad[r])) guard.renew();
        ++walks[r];
      }
    });
  }
  const testing::TimeBox box(0.5);
  Random random(7);
  std::size_t most = 0;
  started.wait();
  while (!box.over()) {
    for (int i = 0; i < 64; ++i) {
      if (random.below(4) == 0) {
        tree.replace_node();
      } else {
        tree.replace_child(random.below(kChildren));
      }
      most = std::max(most, tree.domain.waiting_bytes());
    }
    steps.fetch_add(64);
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  for (int r = 0; r < kReaders; ++r) EXPECT_EQ(bad[r], 0u);
  // Each reader inside holds the tree of its era, what that era gave birth to, and the batch; readers that
  // have left may add as much again until the objects are looked at.
  const std::size_t tree_bytes = sizeof(Node) + kChildren * sizeof(Child);
  EXPECT_LE(most, 2 * kReaders * (tree_bytes + EraDomain::kBatch * sizeof(Node)));
  tree.domain.flush();
  EXPECT_EQ(tree.domain.waiting_count(), 0u);
}

// Threads come and go, so that numbers and lines change hands.
TEST(EraDomainStress, ReadersComeAndGo) {
  constexpr int kThreads = 4;
  Tree tree;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> bad{0};
  std::vector<std::thread> starters;
  for (int t = 0; t < kThreads; ++t) {
    starters.emplace_back([&] {
      while (!stop.load()) {
        std::thread([&] {
          std::uint64_t mine = 0;
          for (int i = 0; i < 20; ++i) {
            EraDomain::Guard guard = tree.domain.enter();
            while (!tree.walk(guard, [] {}, mine)) guard.renew();
          }
          bad.fetch_add(mine);
        }).join();
      }
    });
  }
  const testing::TimeBox box(0.5);
  Random random(8);
  while (!box.over()) {
    tree.replace_node();
    tree.replace_child(random.below(kChildren));
  }
  stop.store(true);
  for (std::thread& starter : starters) starter.join();
  EXPECT_EQ(bad.load(), 0u);
  tree.domain.flush();
  EXPECT_EQ(tree.domain.waiting_count(), 0u);
}

}  // namespace
}  // namespace ashlar::index::detail
