// A replica that starts from the dump of another router's index, as bytes or as a file, and continues with
// the live stream: equal to the router after every batch.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/make_index.h"
#include "ashlar/testing/index_oracle.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

using events::KvEvent;
using events::KvEventKind;
using testing::IndexOracle;
using tokens::SequenceHash;

// Has nothing to recover from.
class SilentSource final : public FeedSource {
 public:
  Result<std::size_t> poll(BatchConsumer&, Clock::Duration) override { return std::size_t{0}; }
  Result<bool> recover(const events::StreamId&, std::uint64_t, BatchConsumer&) override { return false; }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "silence"; }
};

struct RouterSide {
  explicit RouterSide(const std::string& kind, FeedSource& source, std::size_t threads = 0)
      : index(index::make_index({.kind = kind, .threads = threads}).value()),
        listener(*index),
        receiver(source, listener) {}

  IndexOracle held() const {
    IndexOracle out;
    index->dump(out);
    return out;
  }
  std::vector<std::byte> dump() const {
    events::DumpWriter writer(
        {.keys = {},
         .position = [this](const events::Worker& worker) { return receiver.position(worker).value(); },
         .batch_events = 50});
    index->dump(writer);
    return std::move(writer).finish().value();
  }

  std::unique_ptr<index::AnyIndex> index;
  IndexListener listener;
  StreamReceiver receiver;
};

// Chains of three workers that grow, branch, move between tiers and lose blocks.
class Fleet {
 public:
  explicit Fleet(std::uint64_t seed) : random_(seed) {}

  events::OwnedBatch next() {
    const auto number = static_cast<std::uint32_t>(random_.below(3));
    WorkerSide& worker = workers_[number];
    events::OwnedBatch batch;
    batch.head.stream = {{events::WorkerId(1 + number), number}, 40 + number};
    batch.head.first = worker.next;
    for (std::size_t i = random_.below(20) + 1; i > 0; --i)
      batch.events.push_back(worker.next_event(random_));
    worker.next += batch.events.size();
    return batch;
  }

 private:
  // A block is stored only while its parent is held: what waits in a feeder is in no dump.
  struct WorkerSide {
    struct Block {
      KvEvent event;
      std::size_t parent = 0;  // one more than its number; 0: none
      std::uint32_t tiers = 0;
    };
    std::vector<Block> blocks;
    std::uint64_t next = 0;

    bool may_be_stored(const Block& block) const {
      return block.parent == 0 || blocks[block.parent - 1].tiers != 0;
    }
    KvEvent next_event(Random& random) {
      const auto tier = static_cast<std::uint8_t>(random.below(events::kStorageTiers));
      if (!blocks.empty() && random.chance(0.35)) {
        Block& block = blocks[random.below(blocks.size())];
        KvEvent event = block.event;
        event.tier = events::TierId(tier);
        if (may_be_stored(block) && random.chance(0.4)) {
          block.tiers |= 1u << tier;
        } else {
          event.kind = KvEventKind::kRemoved;
          block.tiers &= ~(1u << tier);
        }
        return event;
      }
      const std::size_t parent = blocks.empty()       ? 0
                                 : random.chance(0.8) ? blocks.size()
                                                      : random.below(blocks.size() + 1);
      Block block{.event = {}, .parent = parent, .tiers = 1};
      if (!may_be_stored(block)) block.parent = 0;
      if (block.parent == 0) {
        block.event.hash = SequenceHash::root(random.next());
      } else {
        const SequenceHash before = blocks[block.parent - 1].event.hash;
        block.event.hash = before.child(random.next()).value();
        block.event.set_parent(before);
      }
      block.event.set_local(tokens::LocalHash(random.next()));
      blocks.push_back(block);
      return block.event;
    }
  };
  Random random_;
  WorkerSide workers_[3];
};

TEST(IndexReplicaTest, ADumpAndTheLiveStreamMakeAnEqualIndex) {
  ScratchFolder folder;
  std::size_t continued = 0;
  const std::uint64_t seeds = testing::all_rounds() ? 6 : 2;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SilentSource silence;
    Fleet fleet(seed);
    RouterSide router("flash", silence);
    std::vector<events::OwnedBatch> before;
    for (int i = 0; i < 60; ++i) {
      before.push_back(fleet.next());
      router.receiver.on_batch(before.back().view());
    }
    const std::vector<std::byte> bytes = router.dump();

    RouterSide replica("positional", silence, 2);
    const auto read =
        events::read_dump(bytes, [&](const events::EventBatch& batch) { replica.receiver.on_batch(batch); });
    ASSERT_TRUE(read) << read.error();
    EXPECT_EQ(read->workers, 3u);

    const std::string path = folder.file("dump" + std::to_string(seed));
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    auto source = FileSource::create({.path = path}).value();
    RouterSide from_file("radix_tree", *source);
    while (from_file.receiver.poll(Clock::Duration::zero()).value_or(0) != 0) {
    }
    ASSERT_EQ(difference(replica.held(), router.held()), "") << "seed " << seed;
    ASSERT_EQ(difference(from_file.held(), router.held()), "") << "seed " << seed;

    // What the dump has comes again, and is dropped.
    replica.receiver.on_batch(before.back().view());
    EXPECT_EQ(replica.receiver.counters().duplicates, before.back().events.size());
    for (int i = 0; i < 60; ++i) {
      const events::OwnedBatch batch = fleet.next();
      for (RouterSide* const side : {&router, &replica, &from_file}) side->receiver.on_batch(batch.view());
      ASSERT_EQ(difference(replica.held(), router.held()), "") << "seed " << seed << ", batch " << i;
      ASSERT_EQ(difference(from_file.held(), router.held()), "") << "seed " << seed << ", batch " << i;
      replica.listener.check_invariants();
      ++continued;
    }
    EXPECT_EQ(replica.receiver.counters().gaps, 0u);
  }
  EXPECT_EQ(continued, seeds * 60);
}

}  // namespace
}  // namespace ashlar::feed
