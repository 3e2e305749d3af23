// FileSink and FileSource: what was recorded is replayed; files that were cut, damaged or are something else.
#include "ashlar/feed/file_feed.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ashlar/base/random.h"
#include "events/event_samples.h"
#include "feed/stream_listeners.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

using events::chain;
using events::OwnedBatch;

class FileFeedTest : public ::testing::Test {
 protected:
  struct Collector final : BatchConsumer {
    std::vector<OwnedBatch> batches;
    void on_batch(const events::EventBatch& batch) override { batches.push_back(OwnedBatch::of(batch)); }
  };

  OwnedBatch batch(std::uint64_t first, std::uint64_t number) {
    OwnedBatch made;
    made.head.stream = {{events::WorkerId(1), 0}, 1};
    made.head.first = first;
    made.events = chain(number, 3);
    return made;
  }
  void record(std::size_t batches, bool append = false) {
    auto sink = FileSink::create({.path = path_, .append = append}).value();
    for (std::size_t i = 0; i < batches; ++i, ++written_)
      ASSERT_TRUE(sink->publish(batch(written_ * 3, written_).view()));
  }
  std::vector<OwnedBatch> replay(std::uint64_t* damaged = nullptr) {
    auto source = FileSource::open({.path = path_}).value();
    Collector collector;
    for (;;) {
      const Result<std::size_t> came = source->poll(collector, {});
      if (came) continue;
      EXPECT_EQ(came.error().code(), ErrorCode::kNotFound);
      break;
    }
    if (damaged != nullptr) *damaged = source->damaged();
    return collector.batches;
  }

  ScratchFolder folder_;
  std::string path_ = folder_.path() + "/stream";
  std::uint64_t written_ = 0;
};

TEST_F(FileFeedTest, WhatWasRecordedIsReplayed) {
  record(100);
  const auto batches = replay();
  ASSERT_EQ(batches.size(), 100u);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    EXPECT_EQ(batches[i].head.first, i * 3);
    EXPECT_EQ(batches[i].events[2].hash, chain(i, 3)[2].hash);
  }
}

TEST_F(FileFeedTest, ARecordingIsNotOverwritten) {
  record(1);
  EXPECT_EQ(FileSink::create({.path = path_}).error().code(), ErrorCode::kAlreadyExists);
  record(2, true);
  EXPECT_EQ(replay().size(), 3u);
}

TEST_F(FileFeedTest, AFileThatWasCutEndsAtItsLastWholeBatch) {
  record(3);
  const std::uint64_t size = std::filesystem::file_size(path_);
  for (std::uint64_t cut = 1; cut < 200; cut += 17) {
    std::filesystem::resize_file(path_, size - cut);
    EXPECT_EQ(replay().size(), 2u) << cut;
  }
  written_ = 2;
  record(1, true);  // appends behind what is whole
  EXPECT_EQ(replay().size(), 3u);
}

TEST_F(FileFeedTest, ADamagedBatchIsCountedAndTheNextIsRead) {
  record(3);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(16 + 4 + 60);
  file.put('\x55');
  file.close();
  std::uint64_t damaged = 0;
  EXPECT_EQ(replay(&damaged).size(), 2u);
  EXPECT_EQ(damaged, 1u);
}

TEST_F(FileFeedTest, WhatIsNoRecordingIsRefused) {
  EXPECT_EQ(FileSource::open({.path = path_}).error().code(), ErrorCode::kNotFound);
  std::ofstream(path_) << "something else entirely";
  EXPECT_EQ(FileSource::open({.path = path_}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(FileSink::create({.path = path_, .append = true}).error().code(), ErrorCode::kInvalidArgument);
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "something") << "and not touched";
  EXPECT_EQ(FileSink::create({.path = folder_.path() + "/none/x"}).error().code(), ErrorCode::kIo);
}

TEST_F(FileFeedTest, ADiskThatIsFullTakesNothingAndTheFileStaysWhole) {
  auto sink = FileSink::create({.path = "/dev/full", .append = true});
  EXPECT_FALSE(sink) << "a device that takes nothing is no place for a recording";
}

TEST_F(FileFeedTest, AGapInARecordingIsRecoveredFromWhatCameBefore) {
  auto sink = FileSink::create({.path = path_}).value();
  ASSERT_TRUE(sink->publish(batch(0, 0).view()));
  ASSERT_TRUE(sink->publish(batch(6, 2).view()));  // 3 to 5 are missing
  OwnedBatch snapshot = batch(9, 0);
  snapshot.head.kind = events::BatchKind::kSnapshot;
  ASSERT_TRUE(sink->publish(snapshot.view()));
  auto source = FileSource::open({.path = path_, .batches_per_poll = 2}).value();
  PresenceListener listener;
  StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(receiver.poll({}));
  EXPECT_FALSE(receiver.is_complete({events::WorkerId(1), 0}));
  ASSERT_TRUE(receiver.poll({}));
  EXPECT_TRUE(receiver.is_complete({events::WorkerId(1), 0}));
  EXPECT_EQ(listener.of({events::WorkerId(1), 0}).size(), 3u);
}

}  // namespace
}  // namespace ashlar::feed
