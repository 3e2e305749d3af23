// PublishHandle and Publisher: the first handle says Stored, the last one Removed, scopes speak once.
#include "ashlar/events/publish_handle.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/events/event_manager.h"
#include "events/batch_recorder.h"
#include "events/event_samples.h"

namespace ashlar::events {
namespace {

class PublishHandleTest : public ::testing::Test {
 protected:
  // What has gone out by now, and since the last call.
  std::vector<KvEvent> said() {
    EXPECT_TRUE(manager_->flush(Clock::real().now() + std::chrono::seconds(30)));
    std::vector<KvEvent> all = sink_->events();
    std::vector<KvEvent> fresh(all.begin() + static_cast<std::ptrdiff_t>(seen_), all.end());
    seen_ = all.size();
    return fresh;
  }
  void SetUp() override { ASSERT_TRUE(manager_->add_sink(sink_)); }

  std::unique_ptr<EventManager> manager_ = EventManager::create({.stream = {{WorkerId(1), 0}, 1}}).value();
  std::shared_ptr<BatchRecorder> sink_ = std::make_shared<BatchRecorder>();
  std::size_t seen_ = 0;
};

TEST_F(PublishHandleTest, TheFirstSaysStoredAndTheLastRemoved) {
  const KvEvent block = chain(1, 1)[0];
  PublishHandle first = manager_->publish(block);
  ASSERT_EQ(said().size(), 1u);
  PublishHandle second = manager_->publish(block);
  first.reset();
  EXPECT_TRUE(said().empty()) << "a duplicate says nothing, neither coming nor going";
  second.reset();
  const auto events = said();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, KvEventKind::kRemoved);
  EXPECT_EQ(events[0].hash, block.hash);
}

TEST_F(PublishHandleTest, TiersAreApart) {
  const KvEvent g1 = chain(1, 1)[0];
  const KvEvent g2 = chain(1, 1, kTierId<G2>)[0];
  const PublishHandle a = manager_->publish(g1);
  {
    const PublishHandle b = manager_->publish(g2);
    EXPECT_EQ(b.tier(), kTierId<G2>);
  }
  const auto events = said();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].kind, KvEventKind::kRemoved);
  EXPECT_EQ(events[2].tier, kTierId<G2>);
}

TEST_F(PublishHandleTest, AScopeGoesOutAsOneRun) {
  std::vector<PublishHandle> handles;
  {
    Publisher publisher = manager_->publisher();
    for (const KvEvent& block : chain(2, 40)) handles.push_back(publisher.publish(block));
    EXPECT_TRUE(said().empty());
  }
  const auto events = said();
  ASSERT_EQ(events.size(), 40u);
  EXPECT_EQ(run_length(events), 40u);
  EXPECT_EQ(sink_->batches(), 1u);
}

TEST_F(PublishHandleTest, AHandleDroppedWithinItsScopeWasNeverThere) {
  const auto blocks = chain(3, 3);
  Publisher publisher = manager_->publisher();
  PublishHandle kept = publisher.publish(blocks[0]);
  {
    const PublishHandle gone = publisher.publish(blocks[1]);
  }
  publisher.commit();
  EXPECT_EQ(said().size(), 1u);
  const PublishHandle late = publisher.publish(blocks[1]);
  const PublishHandle twice = publisher.publish(blocks[1]);
  publisher.commit();
  EXPECT_EQ(said().size(), 1u);
}

TEST_F(PublishHandleTest, WhoPublishesBesideAScopeMakesItsBlockKnown) {
  const KvEvent block = chain(4, 1)[0];
  Publisher publisher = manager_->publisher();
  PublishHandle waiting = publisher.publish(block);
  const PublishHandle at_once = manager_->publish(block);
  EXPECT_EQ(said().size(), 1u);
  waiting.reset();
  publisher.commit();
  EXPECT_TRUE(said().empty());
}

TEST_F(PublishHandleTest, EventsSayWhatTheirProducerSaid) {
  KvEvent block = chain(5, 2)[1];
  block.metadata = 7;
  PublishHandle child = manager_->publish(block);
  auto events = said();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].parent(), block.parent()) << "whether or not it was published";
  child.reset();
  events = said();
  ASSERT_EQ(events.size(), 1u);
  block.kind = KvEventKind::kRemoved;
  block.sequence = events[0].sequence;
  EXPECT_EQ(events[0], block);
}

TEST_F(PublishHandleTest, HandlesMayOutliveTheManager) {
  PublishHandle handle = manager_->publish(chain(6, 1)[0]);
  manager_.reset();
  handle.reset();
  EXPECT_EQ(sink_->events().size(), 1u);
  manager_ = EventManager::create({}).value();
}

TEST_F(PublishHandleTest, ABlockThatComesBackIsWhatItIsNow) {
  KvEvent block = chain(8, 1)[0];
  for (std::uint32_t i = 0; i < 40; ++i) {
    block.block = i;
    const PublishHandle handle = manager_->publish(block);
    EXPECT_EQ(handle.sequence_hash(), block.hash);
  }
  const auto events = said();
  ASSERT_EQ(events.size(), 80u);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].kind, i % 2 == 0 ? KvEventKind::kStored : KvEventKind::kRemoved);
    EXPECT_EQ(events[i].block, i / 2);
  }
}

// What is said, event by event, beside a map of counts.
TEST_F(PublishHandleTest, SaysWhatAMapOfCountsSays) {
  struct Count {
    std::size_t handles = 0;
    std::uint32_t block = 0;
  };
  struct Said {
    KvEventKind kind;
    tokens::SequenceHash hash;
    std::uint32_t block;
    bool has_parent;
    bool operator==(const Said&) const = default;
  };
  std::vector<KvEvent> blocks;
  for (std::uint64_t root = 0; root < 200; ++root)
    for (const KvEvent& block : chain(100 + root, 4)) blocks.push_back(block);
  std::map<tokens::SequenceHash, Count> held;
  std::vector<std::pair<tokens::SequenceHash, PublishHandle>> handles;
  std::vector<Said> expected;
  Random random(11);
  for (std::uint32_t step = 0; step < 20'000; ++step) {
    if (step % 5000 < 2500 ? random.below(3) != 0 : random.below(3) == 0) {
      KvEvent block = blocks[random.below(blocks.size())];
      block.block = step;
      Count& count = held[block.hash];
      if (count.handles++ == 0) {
        count.block = step;
        expected.push_back({KvEventKind::kStored, block.hash, step, block.has_parent});
      }
      handles.emplace_back(block.hash, manager_->publish(block));
    } else if (!handles.empty()) {
      std::swap(handles[random.below(handles.size())], handles.back());
      const auto at = held.find(handles.back().first);
      if (--at->second.handles == 0) {
        expected.push_back({KvEventKind::kRemoved, at->first, at->second.block, at->first.position() != 0});
        held.erase(at);
      }
      handles.pop_back();
    }
    if (step % 500 == 0) manager_->check_invariants();
  }
  std::vector<Said> heard;
  for (const KvEvent& event : said())
    heard.push_back({event.kind, event.hash, event.block, event.has_parent});
  EXPECT_EQ(heard.size(), expected.size());
  EXPECT_TRUE(heard == expected);
  EXPECT_EQ(manager_->snapshot().events.size(), held.size());
}

// Threads take and drop handles of the same blocks; what was said adds up, in every order.
TEST_F(PublishHandleTest, EveryInterleavingAddsUp) {
  constexpr int kThreads = 4;
  const auto blocks = chain(7, 16);
  std::vector<std::vector<PublishHandle>> kept(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      std::vector<PublishHandle>& mine = kept[static_cast<std::size_t>(t)];
      for (int i = 0; i < 5000; ++i) {
        if (random.below(2) == 0 && mine.size() < 20) {
          if (random.below(3) == 0) {
            Publisher publisher = manager_->publisher();
            mine.push_back(publisher.publish(blocks[random.below(blocks.size())]));
            mine.push_back(publisher.publish(blocks[random.below(blocks.size())]));
          } else {
            mine.push_back(manager_->publish(blocks[random.below(blocks.size())]));
          }
        } else if (!mine.empty()) {
          std::swap(mine[random.below(mine.size())], mine.back());
          mine.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  manager_->check_invariants();
  std::map<tokens::SequenceHash, int> present;
  for (const KvEvent& event : said()) {
    if (event.kind == KvEventKind::kResync) continue;
    int& count = present[event.hash];
    count += event.kind == KvEventKind::kStored ? 1 : -1;
    ASSERT_TRUE(count == 0 || count == 1) << "Stored and Removed take turns";
  }
  std::map<tokens::SequenceHash, int> held;
  for (const auto& mine : kept)
    for (const PublishHandle& handle : mine) held[handle.sequence_hash()] = 1;
  for (const auto& [hash, count] : present) EXPECT_EQ(count, held.contains(hash) ? 1 : 0);
  for (const auto& [hash, one] : held) EXPECT_EQ(present[hash], 1);
}

}  // namespace
}  // namespace ashlar::events
