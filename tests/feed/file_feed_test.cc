// FileSink and FileSource: what was recorded is replayed; files that were cut, damaged or are something else.
#include "ashlar/feed/feed_source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "ashlar/base/random.h"
#include "ashlar/feed/engine_source.h"
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
    auto source = FileSource::create({.path = path_}).value();
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

TEST_F(FileFeedTest, AFollowedFileThatIsReplacedIsReadFromItsStart) {
  record(3);
  auto source = FileSource::create({.path = path_, .follow = true}).value();
  Collector collector;
  ASSERT_EQ(source->poll(collector, {}).value(), 3u);
  std::filesystem::rename(path_, path_ + ".old");
  EXPECT_EQ(source->poll(collector, {}).value(), 0u) << "nothing has its name yet";
  EXPECT_EQ(source->damaged(), 0u);
  std::ofstream(path_).flush();
  EXPECT_EQ(source->poll(collector, {}).value(), 0u) << "its header is not written yet";
  EXPECT_EQ(source->poll(collector, {}).value(), 0u);
  EXPECT_EQ(source->damaged(), 1u);
  record(5, true);
  EXPECT_EQ(source->poll(collector, {}).value(), 5u);
  EXPECT_EQ(collector.batches.back().head.first, 7 * 3);
  EXPECT_EQ(source->damaged(), 1u);
  // What came before is not there any more.
  EXPECT_FALSE(source->recover(batch(0, 0).head.stream, 0, collector).value());
  EXPECT_TRUE(source->recover(batch(0, 0).head.stream, 9, collector).value());
  record(1, true);
  EXPECT_EQ(source->poll(collector, {}).value(), 1u);
}

TEST_F(FileFeedTest, AFollowedFileThatBecomesShorterIsReadFromItsStart) {
  record(3);
  auto source = FileSource::create({.path = path_, .follow = true}).value();
  Collector collector;
  ASSERT_EQ(source->poll(collector, {}).value(), 3u);
  std::filesystem::resize_file(path_, 0);
  EXPECT_EQ(source->poll(collector, {}).value(), 0u);
  EXPECT_EQ(source->damaged(), 1u);
  record(2, true);
  EXPECT_EQ(source->poll(collector, {}).value(), 2u);
  EXPECT_EQ(source->damaged(), 1u);
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
  EXPECT_EQ(FileSource::create({.path = path_}).error().code(), ErrorCode::kNotFound);
  std::ofstream(path_) << "something else entirely";
  EXPECT_EQ(FileSource::create({.path = path_}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(FileSink::create({.path = path_, .append = true}).error().code(), ErrorCode::kInvalidArgument);
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "something") << "and not touched";
  EXPECT_EQ(FileSink::create({.path = folder_.path() + "/none/x"}).error().code(), ErrorCode::kIo);
}

TEST_F(FileFeedTest, APipeIsRefusedAndNotWaitedFor) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(FileSource::create({.path = pipe}));
  EXPECT_FALSE(RecordingSource::create({.path = pipe}));
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
  auto source = FileSource::create({.path = path_, .batches_per_poll = 2}).value();
  PresenceListener listener;
  StreamReceiver receiver(*source, listener);
  ASSERT_TRUE(receiver.poll({}));
  EXPECT_FALSE(receiver.is_complete({events::WorkerId(1), 0}));
  ASSERT_TRUE(receiver.poll({}));
  EXPECT_TRUE(receiver.is_complete({events::WorkerId(1), 0}));
  EXPECT_EQ(listener.of({events::WorkerId(1), 0}).size(), 3u);
}

TEST_F(FileFeedTest, RecoveringReadsWhatReachesBackAndNothingElse) {
  auto sink = FileSink::create({.path = path_}).value();
  for (const std::uint64_t number : {0, 1, 2, 5, 6, 9})
    ASSERT_TRUE(sink->publish(batch(number * 3, number).view()));
  auto source = FileSource::create({.path = path_}).value();
  const events::StreamId stream = batch(0, 0).head.stream;
  Collector none;
  EXPECT_FALSE(source->recover(stream, 0, none).value()) << "before anything was read";
  ASSERT_TRUE(source->poll(none, {}));
  none.batches.clear();
  for (const std::uint64_t from : {9, 14, 21, 26, 30, 1000})
    EXPECT_FALSE(source->recover(stream, from, none).value()) << from;
  EXPECT_FALSE(source->recover({stream.worker, 2}, 0, none).value());
  EXPECT_FALSE(source->recover({{events::WorkerId(2), 0}, 1}, 0, none).value());
  EXPECT_TRUE(none.batches.empty());
  Collector all;
  EXPECT_TRUE(source->recover(stream, 0, all).value());
  EXPECT_EQ(all.batches.size(), 6u);
  Collector rest;
  EXPECT_TRUE(source->recover(stream, 18, rest).value());
  ASSERT_EQ(rest.batches.size(), 2u);
  EXPECT_EQ(rest.batches[0].head.first, 18u);
}

TEST_F(FileFeedTest, ASnapshotHelpsWhenAllItsPartsAreThere) {
  auto sink = FileSink::create({.path = path_}).value();
  OwnedBatch part = batch(30, 0);
  part.head.kind = events::BatchKind::kSnapshot;
  part.head.parts = 2;
  ASSERT_TRUE(sink->publish(part.view()));
  auto source = FileSource::create({.path = path_, .follow = true}).value();
  Collector heard;
  EXPECT_EQ(source->poll(heard, {}).value(), 1u);
  heard.batches.clear();
  EXPECT_FALSE(source->recover(part.head.stream, 3, heard).value());
  part.head.part = 1;
  ASSERT_TRUE(sink->publish(part.view()));
  ASSERT_TRUE(sink->publish(batch(30, 10).view()));
  EXPECT_EQ(source->poll(heard, {}).value(), 2u);
  heard.batches.clear();
  EXPECT_TRUE(source->recover(part.head.stream, 3, heard).value());
  EXPECT_EQ(heard.batches.size(), 3u);
}

TEST_F(FileFeedTest, ARecordingFullOfGapsIsReplayed) {
  auto sink = FileSink::create({.path = path_}).value();
  const OwnedBatch one = batch(0, 0);
  constexpr std::uint64_t kBatches = 20'000;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    events::EventBatch view = one.view();
    view.first = i * 8;
    ASSERT_TRUE(sink->publish(view));
  }
  auto source = FileSource::create({.path = path_}).value();
  struct Deaf final : StreamListener {
    void on_reset(const events::StreamId&) override {}
    void on_events(const events::EventBatch&) override {}
  } listener;
  StreamReceiver receiver(*source, listener);
  while (receiver.poll({})) continue;
  EXPECT_EQ(receiver.counters().batches, kBatches);
}

TEST_F(FileFeedTest, ABatchAboveTheLimitIsNeitherWrittenNorRead) {
  auto sink = FileSink::create({.path = path_, .max_batch_bytes = 4096}).value();
  OwnedBatch large = batch(0, 0);
  large.events = chain(1, 100);
  EXPECT_EQ(sink->publish(large.view()).error().code(), ErrorCode::kCapacity);
  ASSERT_TRUE(sink->publish(batch(0, 0).view()));
  sink.reset();
  written_ = 1;
  auto wide = FileSink::create({.path = path_, .append = true}).value();
  ASSERT_TRUE(wide->publish(large.view()));
  ASSERT_TRUE(wide->publish(batch(103, 5).view()));
  auto source = FileSource::create({.path = path_, .max_batch_bytes = 4096}).value();
  Collector collector;
  while (source->poll(collector, {})) continue;
  EXPECT_EQ(collector.batches.size(), 2u);
  EXPECT_EQ(source->damaged(), 1u);
}

TEST_F(FileFeedTest, OneSinkWritesAFileAtATime) {
  auto sink = FileSink::create({.path = path_}).value();
  ASSERT_TRUE(sink->publish(batch(0, 0).view()));
  const auto second = FileSink::create({.path = path_, .append = true});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(replay().size(), 1u) << "reading needs no lock";
  sink.reset();
  EXPECT_TRUE(FileSink::create({.path = path_, .append = true}));
}

}  // namespace
}  // namespace ashlar::feed
