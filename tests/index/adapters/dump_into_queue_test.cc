// A dump that is read into an index behind queues: what the index refuses later is an error of the read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ashlar/events/event_codec.h"
#include "ashlar/events/router_event_json.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/index/indexer.h"
#include "ashlar/index/thread_pool_indexer.h"
#include "ashlar/testing/index_oracle.h"
#include "index/chain.h"

namespace ashlar::index {
namespace {

using conformance::Chain;
using conformance::chain_of;
using ::testing::HasSubstr;
using QueuedFlash = ThreadPoolIndexer<FlashIndex>;

constexpr std::uint64_t kDumped = 5;  // workers of the dump

Worker dumped(std::uint64_t i) {
  return {WorkerId(i + 1), 0};
}
template <class Sink>
void store_chain(Sink& sink, const Worker& worker, const Chain& chain) {
  const std::vector<StoredBlock> blocks = chain.blocks(0, chain.size());
  EXPECT_EQ(sink.store({worker, StorageTier::kDevice, std::nullopt, 0, blocks}), StoreVerdict::kApplied);
}

class DumpIntoQueueTest : public ::testing::Test {
 protected:
  DumpIntoQueueTest() {
    for (std::uint64_t i = 0; i < kDumped; ++i) {
      store_chain(held_, dumped(i), chain_of(static_cast<std::uint32_t>(i), 3000));
      const std::vector<BlockName> hole = {chain_of(static_cast<std::uint32_t>(i), 3000).names[1500]};
      held_.remove(dumped(i), StorageTier::kDevice, hole);
    }
    events::DumpWriter writer;
    held_.dump(writer);
    stream_ = std::move(writer).finish().value();
    events::RouterDumpWriter text("m:g", 16);
    held_.dump(text);
    json_ = std::move(text).finish().value();
  }
  static QueuedFlash queued(std::uint32_t max_workers) {
    FlashOptions options;
    options.max_workers = max_workers;
    return QueuedFlash::create({.threads = 2}, options).value();
  }

  testing::IndexOracle held_;
  std::vector<std::byte> stream_;
  std::string json_;
};

TEST_F(DumpIntoQueueTest, RoomForAllIsNoError) {
  for (const bool json : {false, true}) {
    QueuedFlash index = queued(kDumped);
    SinkOf<QueuedFlash> sink(index);
    const auto read = json ? events::read_router_dump(json_, sink) : events::read_dump(stream_, sink);
    ASSERT_TRUE(read) << read.error();
    testing::IndexOracle now;
    index.dump(now);
    EXPECT_EQ(difference(now, held_), "");
  }
}

TEST_F(DumpIntoQueueTest, ARefusalBehindTheQueueIsAnError) {
  for (const bool json : {false, true}) {
    QueuedFlash index = queued(kDumped);
    SinkOf<QueuedFlash> sink(index);
    const Worker other{WorkerId(900), 0};
    store_chain(index, other, chain_of(99, 7));
    index.settle();
    const auto read = json ? events::read_router_dump(json_, sink) : events::read_dump(stream_, sink);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kCapacity);
    EXPECT_THAT(read.error().message(), HasSubstr("refused it later"));
    EXPECT_GT(index.counters().full, 0u);
    testing::IndexOracle now;
    index.dump(now);
    testing::IndexOracle alone;
    store_chain(alone, other, chain_of(99, 7));
    EXPECT_EQ(difference(now, alone), "") << "only what was there before is left";
  }
}

}  // namespace
}  // namespace ashlar::index
