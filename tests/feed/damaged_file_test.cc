// Event files with damage: every bit, every length, every cut. What is whole is read, the rest is counted;
// nothing is appended to a damaged file, and nothing is cut off it, unless that was asked for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/feed/feed_source.h"
#include "events/event_samples.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

using events::OwnedBatch;

constexpr std::size_t kHeader = 16;

class DamagedFileTest : public ::testing::Test {
 protected:
  struct Heard final : BatchConsumer {
    std::vector<OwnedBatch> batches;
    std::uint64_t damaged = 0;
    std::uint64_t damaged_bytes = 0;
    std::uint64_t unfinished = 0;
    bool opened = false;
    void on_batch(const events::EventBatch& batch) override { batches.push_back(OwnedBatch::of(batch)); }
  };

  void SetUp() override {
    auto sink = FileSink::create({.path = path_}).value();
    for (std::uint64_t i = 0; i < kBatches; ++i) {
      starts_.push_back(std::filesystem::file_size(path_));
      ASSERT_TRUE(sink->publish(nth(i).view()));
    }
    good_ = bytes();
  }
  static OwnedBatch nth(std::uint64_t i) {
    OwnedBatch made;
    made.head.stream = {{events::WorkerId(1), 0}, 1};
    made.head.first = 2 * i;
    made.events = events::chain(i, 2);
    return made;
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
  }
  Heard read() const {
    Heard heard;
    auto source = FileSource::create({.path = path_});
    if (!source) return heard;
    heard.opened = true;
    while ((*source)->poll(heard, {})) continue;
    heard.damaged = (*source)->damaged();
    heard.damaged_bytes = (*source)->damaged_bytes();
    heard.unfinished = (*source)->unfinished_bytes();
    return heard;
  }
  // How many of the first batches are among those that were heard; all of these must be as they were written.
  static std::size_t count_known(const Heard& heard, std::uint64_t of) {
    std::size_t known = 0;
    for (const OwnedBatch& batch : heard.batches) {
      const std::uint64_t i = batch.head.first / 2;
      EXPECT_LT(i, of);
      EXPECT_EQ(batch.events.size(), 2u);
      EXPECT_EQ(batch.events.at(1).hash, nth(i).events[1].hash);
      ++known;
    }
    return known;
  }

  static constexpr std::uint64_t kBatches = 3;
  const ScopedLogSink quiet_{[](LogLevel, std::string_view, std::string_view) {}};
  ScratchFolder folder_;
  std::string path_ = folder_.path() + "/stream";
  std::vector<std::uint64_t> starts_;
  std::string good_;
};

TEST_F(DamagedFileTest, AFlippedBitCostsOneBatchAndIsCounted) {
  // Under a sanitizer every byte, and each bit of some, is enough.
  const std::size_t step = testing::all_rounds() ? 1 : 7;
  for (std::size_t bit = 0; bit < good_.size() * 8; bit += step) {
    SCOPED_TRACE("bit " + std::to_string(bit));
    std::string damaged = good_;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write(damaged);
    const Heard heard = read();
    if (bit / 8 < 12) {
      ASSERT_FALSE(heard.opened) << "magic and version";
    } else {
      const std::size_t known = count_known(heard, kBatches);
      ASSERT_GE(known, kBatches - 1);
      ASSERT_EQ(heard.unfinished, 0u) << "no writer was killed";
      ASSERT_EQ(heard.damaged, bit / 8 < kHeader ? 0u : 1u);
      ASSERT_TRUE(heard.damaged != 0 || known == kBatches);
    }
    // Nothing is appended, and the file stays as it is.
    const auto refused = FileSink::create({.path = path_, .append = true});
    if (heard.opened && heard.damaged == 0) {
      ASSERT_TRUE(refused);
      ASSERT_EQ(refused.value()->found().batches, kBatches);
      continue;
    }
    ASSERT_FALSE(refused);
    ASSERT_EQ(bytes(), damaged);
    if (!heard.opened) continue;
    ASSERT_EQ(refused.error().code(), ErrorCode::kCorruption);
    // Asked to, it keeps all that can be read, and the file is whole again. That waits for the disk: not for
    // each bit.
    if (bit % 13 != 0) continue;
    {
      const auto repaired = FileSink::create({.path = path_, .append = true, .repair = true});
      ASSERT_TRUE(repaired) << repaired.error();
      ASSERT_EQ(repaired.value()->found().damaged_places, 1u);
      ASSERT_EQ(repaired.value()->found().damaged_bytes, heard.damaged_bytes);
      ASSERT_EQ(repaired.value()->found().batches, heard.batches.size());
      ASSERT_TRUE((*repaired)->publish(nth(kBatches).view()));
    }
    const Heard again = read();
    ASSERT_EQ(again.damaged + again.unfinished, 0u);
    ASSERT_EQ(count_known(again, kBatches + 1), heard.batches.size() + 1);
  }
}

TEST_F(DamagedFileTest, ABatchWhoseLengthAloneIsDamagedIsRead) {
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      std::string damaged = good_;
      damaged[starts_[i] + bit / 8] = static_cast<char>(damaged[starts_[i] + bit / 8] ^ (1 << bit % 8));
      write(damaged);
      const Heard heard = read();
      ASSERT_EQ(count_known(heard, kBatches), kBatches) << i << " " << bit;
      ASSERT_EQ(heard.damaged, 1u);
      ASSERT_EQ(heard.damaged_bytes, 4u);
    }
  }
}

TEST_F(DamagedFileTest, ALastBatchThatWasNotFinishedIsCutOffAndThatIsSaid) {
  for (std::size_t size = kHeader; size < good_.size(); ++size) {
    SCOPED_TRACE(size);
    write(good_.substr(0, size));
    std::uint64_t whole = 0;
    while (whole < kBatches && (whole + 1 < kBatches ? starts_[whole + 1] : good_.size()) <= size) ++whole;
    const std::uint64_t left = size - (whole < kBatches ? starts_[whole] : good_.size());
    const Heard heard = read();
    ASSERT_EQ(count_known(heard, kBatches), whole);
    ASSERT_EQ(heard.damaged, 0u);
    ASSERT_EQ(heard.unfinished, left);
    {
      const auto sink = FileSink::create({.path = path_, .append = true});
      ASSERT_TRUE(sink) << sink.error();
      ASSERT_EQ((*sink)->found().batches, whole);
      ASSERT_EQ((*sink)->found().unfinished_bytes, left);
      ASSERT_TRUE((*sink)->publish(nth(whole).view()));
    }
    const Heard again = read();
    ASSERT_EQ(count_known(again, whole + 1), whole + 1);
    ASSERT_EQ(again.damaged + again.unfinished, 0u);
  }
}

TEST_F(DamagedFileTest, WhatIsCutIsLogged) {
  std::vector<std::string> said;
  const ScopedLogSink hear([&](LogLevel level, std::string_view, std::string_view message) {
    if (level == LogLevel::kWarn) said.emplace_back(message);
  });
  write(good_.substr(0, good_.size() - 7));
  ASSERT_TRUE(FileSink::create({.path = path_, .append = true}));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("cut off " + std::to_string(good_.size() - 7 - starts_[2]) + " bytes"),
            std::string::npos)
      << said[0];
  std::string damaged = good_;
  damaged[starts_[1] + 20] ^= 1;
  write(damaged);
  ASSERT_TRUE(FileSink::create({.path = path_, .append = true, .repair = true}));
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[1].find("cut out " + std::to_string(starts_[2] - starts_[1]) + " damaged bytes"),
            std::string::npos)
      << said[1];
}

TEST_F(DamagedFileTest, AFileWhoseWriterWasKilledWithinTheHeaderIsBegunAnew) {
  for (std::size_t size = 0; size < kHeader; ++size) {
    write(good_.substr(0, size));
    {
      const auto sink = FileSink::create({.path = path_, .append = true});
      ASSERT_TRUE(sink) << size;
      ASSERT_EQ((*sink)->found().unfinished_bytes, size);
      ASSERT_TRUE((*sink)->publish(nth(0).view()));
    }
    ASSERT_EQ(count_known(read(), 1), 1u);
  }
}

TEST_F(DamagedFileTest, WhatLiesBetweenBatchesIsSkippedInOnePlace) {
  const std::string zeros(1000, '\0');
  std::string text = good_;
  text.insert(starts_[2], zeros);
  text.insert(starts_[1], std::string("AKEV") + zeros + "AKEV");
  write(text + zeros);
  const Heard heard = read();
  EXPECT_EQ(count_known(heard, kBatches), kBatches);
  EXPECT_EQ(heard.damaged, 3u);
  EXPECT_EQ(heard.damaged_bytes, 3008u);
}

TEST_F(DamagedFileTest, AReaderThatFollowsWaitsBehindDamageForTheNextBatch) {
  std::string damaged = good_;
  damaged[starts_[2] + 50] = static_cast<char>(damaged[starts_[2] + 50] ^ 1);
  write(damaged);
  auto source = FileSource::create({.path = path_, .follow = true}).value();
  Heard heard;
  EXPECT_EQ(source->poll(heard, {}).value(), 2u);
  EXPECT_EQ(source->poll(heard, {}).value(), 0u);
  EXPECT_EQ(source->damaged(), 0u) << "it may not be all there yet";
  // The next batch comes in two pieces.
  const std::string frame = good_.substr(starts_[1], starts_[2] - starts_[1]);
  for (const std::string& piece : {frame.substr(0, 30), frame.substr(30)}) {
    std::ofstream(path_, std::ios::binary | std::ios::app) << piece;
    ASSERT_TRUE(source->poll(heard, {}));
  }
  EXPECT_EQ(heard.batches.size(), 3u);
  EXPECT_EQ(source->damaged(), 1u);
}

// Longer than one call searches: nothing is found until the search has come so far, and it ends.
TEST_F(DamagedFileTest, ALongDamagedPlaceIsSearchedInSlices) {
  constexpr std::uint64_t kHole = std::uint64_t{200} << 20;
  const std::string last = good_.substr(starts_[2]);
  write(good_.substr(0, starts_[2]));
  std::filesystem::resize_file(path_, starts_[2] + kHole);  // takes no room on the disk
  std::ofstream(path_, std::ios::binary | std::ios::app) << last;
  auto source = FileSource::create({.path = path_}).value();
  Heard heard;
  std::size_t polls = 0;
  for (Result<std::size_t> came = 0; came; came = source->poll(heard, {})) ++polls;
  EXPECT_EQ(count_known(heard, kBatches), kBatches);
  EXPECT_EQ(source->damaged(), 1u);
  EXPECT_EQ(source->damaged_bytes(), kHole);
  EXPECT_GT(polls, 3u);
}

TEST_F(DamagedFileTest, GapsBehindDamageAreRecoveredFromTheFile) {
  std::string damaged = good_;
  damaged[starts_[1] + 50] = static_cast<char>(damaged[starts_[1] + 50] ^ 1);
  write(damaged);
  auto source = FileSource::create({.path = path_}).value();
  Heard heard;
  while (source->poll(heard, {})) continue;
  Heard again;
  EXPECT_TRUE(source->recover(nth(0).head.stream, 0, again).value());
  EXPECT_EQ(count_known(again, kBatches), 2u);
  EXPECT_EQ(source->damaged(), 1u) << "counted once";
}

}  // namespace
}  // namespace ashlar::feed
