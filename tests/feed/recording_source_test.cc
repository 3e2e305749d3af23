// RecordingSource: recordings that were cut or damaged, and what they may take in memory.
#include "ashlar/feed/engine_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "support/kvrec.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

using namespace std::chrono_literals;

const std::string kRecorded = std::string(ASHLAR_TEST_DATA) + "/vllm/salt.kvrec";

class RecordingSourceTest : public ::testing::Test {
 protected:
  struct Heard {
    std::vector<EngineMessage> messages;
    std::uint64_t damaged = 0;
    std::uint64_t unfinished = 0;
  };
  // Where the frame counts and lengths of a message lie.
  struct Place {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::vector<std::size_t> numbers;
  };

  void SetUp() override {
    for (const std::byte b : testing::read_test_file(kRecorded)) good_.push_back(static_cast<char>(b));
    std::size_t at = 0;
    const auto number = [&](Place& place) {
      place.numbers.push_back(at);
      std::uint32_t value = 0;
      for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(good_[at + i]);
      at += 4;
      return value;
    };
    while (at < good_.size()) {
      Place place;
      place.begin = at;
      for (std::uint32_t frames = number(place); frames > 0; --frames) {
        const std::uint32_t length = number(place);
        at += length;
      }
      place.end = at;
      places_.push_back(place);
    }
    places_.resize(std::min<std::size_t>(places_.size(), 5));
    good_.resize(places_.back().end);
    write(good_);
    all_ = read().messages;
    ASSERT_EQ(all_.size(), places_.size());
    ASSERT_GT(all_.size(), 3u);
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
  }
  Heard read(std::size_t max_message_bytes = std::size_t{1} << 20) const {
    auto source = RecordingSource::create({.path = path_, .max_message_bytes = max_message_bytes}).value();
    Heard heard;
    for (;;) {
      Result<std::optional<EngineMessage>> received = source->receive(0ms);
      if (!received) {
        EXPECT_EQ(received.error().code(), ErrorCode::kNotFound) << received.error();
        break;
      }
      heard.messages.push_back(**std::move(received));
    }
    heard.damaged = source->damaged();
    heard.unfinished = source->unfinished_bytes();
    return heard;
  }
  // How many of the messages came as they were recorded.
  std::size_t count_known(const Heard& heard) const {
    return static_cast<std::size_t>(std::ranges::count_if(all_, [&](const EngineMessage& message) {
      return std::ranges::any_of(heard.messages, [&](const EngineMessage& one) {
        return one.sequence == message.sequence && one.payload == message.payload;
      });
    }));
  }

  ScratchFolder folder_;
  std::string path_ = folder_.file("some.kvrec");
  std::string good_;
  std::vector<Place> places_;
  std::vector<EngineMessage> all_;
};

TEST_F(RecordingSourceTest, AFlippedBitOfALengthCostsOneMessageAndIsSaid) {
  for (const Place& place : places_) {
    for (const std::size_t number : place.numbers) {
      for (std::uint32_t bit = 0; bit < 32; ++bit) {
        std::string damaged = good_;
        damaged[number + bit / 8] = static_cast<char>(damaged[number + bit / 8] ^ (1 << bit % 8));
        write(damaged);
        const Heard heard = read();
        SCOPED_TRACE("byte " + std::to_string(number) + " bit " + std::to_string(bit));
        ASSERT_GE(count_known(heard), all_.size() - 1);
        // Without checksums a last message that seems to be longer than the file looks like one that was not
        // finished.
        const bool is_last = &place == &places_.back();
        ASSERT_TRUE(heard.damaged == 1 || (is_last && heard.unfinished == place.end - place.begin));
      }
    }
  }
}

TEST_F(RecordingSourceTest, AMessageWhoseLengthAloneIsDamagedIsRead) {
  for (const Place& place : places_) {
    std::string damaged = good_;
    damaged[place.numbers.back() + 1] = static_cast<char>(damaged[place.numbers.back() + 1] ^ 0x10);
    write(damaged);
    const Heard heard = read();
    EXPECT_EQ(count_known(heard), all_.size());
    EXPECT_EQ(heard.damaged, 1u);
  }
}

TEST_F(RecordingSourceTest, WhatIsLostIsAGapOfTheSession) {
  std::string damaged = good_;
  damaged[places_[1].numbers[0]] = 77;
  write(damaged);
  auto session = EngineSession::create(RecordingSource::create({.path = path_}).value()).value();
  std::vector<events::KvEvent> out;
  while (session.step(0ms, out)) continue;
  EXPECT_EQ(session.counters().gaps, 1u);
  EXPECT_EQ(session.counters().lost, 1u);
  EXPECT_EQ(session.counters().applied, all_.size() - 1);
}

TEST_F(RecordingSourceTest, ALastMessageThatWasNotFinishedIsNoDamage) {
  for (std::size_t size = 1; size < good_.size(); size += testing::all_rounds() ? 1 : 7) {
    write(good_.substr(0, size));
    std::size_t whole = 0;
    while (whole < places_.size() && places_[whole].end <= size) ++whole;
    const Heard heard = read();
    SCOPED_TRACE(size);
    ASSERT_EQ(heard.messages.size(), whole);
    ASSERT_EQ(heard.damaged, 0u);
    ASSERT_EQ(heard.unfinished, size - places_[whole].begin);
  }
}

TEST_F(RecordingSourceTest, WhatIsNoMessageIsSkippedAndCounted) {
  EXPECT_EQ(RecordingSource::create({.path = "/nowhere/at.all"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(RecordingSource::create({.path = folder_.path()}).error().code(), ErrorCode::kNotFound);
  write(std::string("\1\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(read().damaged, 1u);
  write(std::string("\1\0\0\0\0\0\0\0", 8) + good_);
  const Heard heard = read();
  EXPECT_EQ(count_known(heard), all_.size());
  EXPECT_EQ(heard.damaged, 1u);
}

TEST_F(RecordingSourceTest, AMessageAboveTheLimitIsSkippedAndCounted) {
  std::size_t largest = 0;
  for (const EngineMessage& message : all_) largest = std::max(largest, message.payload.size());
  const Heard heard = read(largest - 1);
  EXPECT_LT(heard.messages.size(), all_.size());
  EXPECT_EQ(count_known(heard), heard.messages.size());
  EXPECT_GT(heard.damaged, 0u);
}

// The source may hold little of a replay at once; the session asks for the rest, and nothing is lost.
TEST_F(RecordingSourceTest, AReplayThatIsCutIsAskedForAgain) {
  const std::string replay = folder_.file("replay.kvrec");
  std::ofstream(replay, std::ios::binary) << good_;
  write(good_.substr(places_.back().begin));
  for (const std::size_t budget : {std::size_t{1}, all_[0].bytes() * 2, std::size_t{1} << 20}) {
    auto source =
        RecordingSource::create({.path = path_, .replay_path = replay, .max_replay_bytes = budget}).value();
    const EngineReplay first = source->replay(0).value();
    EXPECT_EQ(first.is_cut, first.messages.size() < all_.size());
    auto session = EngineSession::create(std::move(source)).value();
    std::vector<events::KvEvent> out;
    while (session.step(0ms, out)) continue;
    EXPECT_EQ(session.counters().applied, all_.size());
    EXPECT_EQ(session.counters().lost, 0u);
    EXPECT_EQ(session.counters().replays > 1, first.is_cut) << budget;
  }
}

}  // namespace
}  // namespace ashlar::feed
