// Files made to be searched for long: what is read of them is limited, and the caller has its turn all the
// while.
#include "feed/search_budget.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "ashlar/base/log.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/feed_source.h"
#include "events/event_samples.h"
#include "feed/batch_frames.h"
#include "feed/recording_reader.h"
#include "support/kvrec.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

constexpr std::size_t kMaxRecord = std::size_t{1} << 20;
constexpr std::size_t kHostile = std::size_t{4} << 20;

std::string number(std::uint32_t value) {
  std::string out(4, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

std::string repeated(std::string_view text, std::size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += text;
  return out;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What a search may read where candidates have so many sizes: what those may cost, and the bytes themselves a
// few times.
constexpr std::uint64_t most_read(std::uint64_t bytes, std::uint64_t sizes = 1) {
  return 8 * kMaxRecord + (2 * sizes + 6) * bytes;
}
constexpr std::uint64_t kFarTooMuch = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostInOneCall = SearchBudget::kSlice + 4 * kMaxRecord;

class HostileFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    {
      auto sink = FileSink::create({.path = path_}).value();
      for (std::uint64_t i = 0; i < 2; ++i) {
        events::OwnedBatch batch;
        batch.head.stream = {{events::WorkerId(1), 0}, 1};
        batch.head.first = 2 * i;
        batch.events = events::chain(i, 2);
        ASSERT_TRUE(sink->publish(batch.view()));
      }
    }
    const std::string all = contents(path_);
    header_ = all.substr(0, kFeedHeaderBytes);
    frame_ = all.substr(kFeedHeaderBytes, (all.size() - kFeedHeaderBytes) / 2);
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
  }

  const ScopedLogSink quiet_{[](LogLevel, std::string_view, std::string_view) {}};
  ScratchFolder folder_;
  std::string path_ = folder_.file("stream");
  std::string header_;
  std::string frame_;
};

struct Seen {
  std::uint64_t batches = 0;
  std::uint64_t turns = 0;  // that the caller had while it searched
  std::uint64_t most = 0;   // bytes read in one call
  std::uint64_t read = 0;
};

Seen look_through(const std::string& path) {
  using Kind = BatchFrames::Kind;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  BatchFrames frames(fd, path, kMaxRecord);
  Seen seen;
  for (std::uint64_t at = kFeedHeaderBytes;;) {
    const std::uint64_t before = frames.bytes_read();
    const BatchFrames::Found found = frames.look(at).value();
    seen.most = std::max(seen.most, frames.bytes_read() - before);
    seen.batches += found.kind == Kind::kBatch ? 1 : 0;
    seen.turns += found.kind == Kind::kSearching ? 1 : 0;
    if (found.kind == Kind::kEnd || found.kind == Kind::kUnfinished) break;
    if (frames.bytes_read() > kFarTooMuch) break;
    at = found.next;
  }
  seen.read = frames.bytes_read();
  ::close(fd);
  return seen;
}

TEST_F(HostileFileTest, WhatCandidatesReadIsLimitedByTheLengthOfTheFile) {
  const std::string candidates = repeated(number(kMaxRecord) + "AKEV", kHostile);
  const std::string small = repeated(number(96) + "AKEV", kHostile);
  const std::string none = repeated("AKEV", kHostile);
  // Whole batches between candidates earn no more credit than their bytes.
  const std::string between = repeated(frame_ + number(kMaxRecord - 1000) + "AKEV", kHostile);
  std::string lengths;
  for (std::uint32_t size = 1 << 8; lengths.size() < kHostile; size = size < kMaxRecord ? 2 * size : 1 << 8)
    lengths += number(size) + "AKEV";
  const std::string mixed = lengths;
  for (const std::string* hostile : {&candidates, &small, &none, &between, &mixed}) {
    write(header_ + frame_ + *hostile + frame_);
    const Seen seen = look_through(path_);
    EXPECT_GE(seen.batches, 1u);
    EXPECT_LE(seen.read, most_read(hostile->size(), hostile == &mixed ? 13 : 1));
    EXPECT_LE(seen.most, kMostInOneCall);
    if (hostile == &candidates) {
      EXPECT_GT(seen.turns, 8u);
    }
  }
}

TEST_F(HostileFileTest, ASourceGivesItsCallerATurnWhileItSearches) {
  write(header_ + repeated(number(kMaxRecord) + "AKEV", kHostile) + frame_);
  auto source = FileSource::create({.path = path_, .max_batch_bytes = kMaxRecord}).value();
  struct Counting final : BatchConsumer {
    void on_batch(const events::EventBatch&) override { ++batches; }
    std::size_t batches = 0;
  } heard;
  std::size_t polls = 0;
  while (polls < 300 && source->poll(heard, {})) ++polls;
  EXPECT_GT(polls, 8u);
  EXPECT_EQ(heard.batches, 1u) << "what follows is found";
  EXPECT_EQ(source->damaged(), 1u);
}

// Nine of ten batches are damaged, and one of ten has a length that leads far beyond it.
TEST_F(HostileFileTest, WholeBatchesBetweenManyDamagedOnesAreAllFound) {
  constexpr std::size_t kTens = 400;
  std::string ten;
  for (std::size_t i = 0; i < 9; ++i) {
    std::string damaged = frame_;
    damaged[60] = static_cast<char>(damaged[60] ^ 1);
    if (i == 4) damaged.replace(0, 4, number(40'000));
    ten += damaged;
  }
  write(header_ + repeated(ten + frame_, kTens * (ten.size() + frame_.size())));
  const Seen seen = look_through(path_);
  EXPECT_EQ(seen.batches, kTens);
}

TEST_F(HostileFileTest, AnEndThatWasSearchedIsNotReadAgain) {
  write(header_ + frame_ + number(kMaxRecord / 2) + "AKEV" + std::string(kMaxRecord, 'x'));
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  BatchFrames frames(fd, path_, kMaxRecord);
  const std::uint64_t at = kFeedHeaderBytes + frame_.size();
  EXPECT_EQ(frames.look(at).value().kind, BatchFrames::Kind::kEnd);
  const std::uint64_t read = frames.bytes_read();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(frames.look(at).value().damaged, kMaxRecord + 8);
  EXPECT_EQ(frames.bytes_read(), read);
  // Growth alone does not make a broken batch whole.
  std::ofstream(path_, std::ios::binary | std::ios::app) << "y";
  EXPECT_EQ(frames.look(at).value().kind, BatchFrames::Kind::kEnd);
  EXPECT_LE(frames.bytes_read() - read, 2 * kHostile);
  ::close(fd);
}

class HostileRecordingTest : public ::testing::Test {
 protected:
  static std::string good() {
    std::string out;
    for (const std::byte b : testing::read_test_file(std::string(ASHLAR_TEST_DATA) + "/vllm/salt.kvrec"))
      out.push_back(static_cast<char>(b));
    return out;
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
  }
  ScratchFolder folder_;
  std::string path_ = folder_.file("some.kvrec");
};

TEST_F(HostileRecordingTest, WhatCandidatesReadIsLimitedAndTheCallerHasATurn) {
  // The head of a message whose payload is no batch, and behind which none follows.
  const std::string head = number(3) + number(0) + number(8) + std::string(8, '\1') + number(kMaxRecord);
  write(repeated(head, kHostile) + good());
  const auto reader = RecordingReader::create(path_, kMaxRecord).value();
  std::size_t messages = 0;
  std::size_t turns = 0;
  while (!reader->has_ended()) {
    const std::uint64_t before = reader->bytes_read();
    const bool came = reader->next().value().has_value();
    messages += came ? 1 : 0;
    turns += came ? 0 : 1;
    ASSERT_LE(reader->bytes_read() - before, kMostInOneCall);
    ASSERT_LE(reader->bytes_read(), kFarTooMuch);
  }
  EXPECT_GT(turns, 4u);
  EXPECT_GT(messages, 0u) << "what follows is found";
  EXPECT_LE(reader->bytes_read(), most_read(kHostile + good().size()));
}

TEST_F(HostileRecordingTest, MessagesThatAreSkippedGiveTheCallerATurnToo) {
  const std::string marker = number(3) + number(0) + number(8) + std::string(8, '\xff') + number(0);
  write(repeated(marker, 2 * SearchBudget::kSlice / SearchBudget::kVisit * marker.size()) + good());
  auto source = RecordingSource::create({.path = path_}).value();
  std::size_t turns = 0;
  std::size_t messages = 0;
  for (auto got = source->receive({}); got; got = source->receive({})) ++(*got ? messages : turns);
  EXPECT_GT(turns, 0u);
  EXPECT_GT(messages, 3u);
  EXPECT_EQ(source->damaged(), 0u);
}

}  // namespace
}  // namespace ashlar::feed
