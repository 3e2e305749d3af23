// Frames of any number and size: the forms of the wire by themselves, and over sockets.
#include "backend/zmq/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/base/random.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/testing/time_box.h"
#include "backend/zmq/feed_support.h"
#include "backend/zmq/raw_socket.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;
using testing::TimeBox;

std::string number_text(std::uint64_t number, std::size_t size = 8) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < std::min<std::size_t>(size, 8); ++i)
    out[size - 1 - i] = static_cast<char>(number >> (8 * i) & 0xFF);
  return out;
}

std::string payload(TestStream& stream) {
  std::vector<std::byte> bytes;
  events::encode_batch(stream.next(4), bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Leaves frames out, adds and doubles some, and changes their sizes and bytes.
void damage(Frames& frames, Random& random) {
  for (std::uint64_t n = 1 + random.below(3); n > 0; --n) {
    const std::size_t at = frames.empty() ? 0 : random.below(frames.size());
    const auto spot = frames.begin() + static_cast<std::ptrdiff_t>(at);
    switch (frames.empty() ? 1 : random.below(6)) {
      case 0:
        frames.erase(spot);
        break;
      case 1:
        frames.insert(spot, std::string(random.below(12), static_cast<char>(random.below(256))));
        break;
      case 2:
        frames.insert(spot, std::string(*spot));
        break;
      case 3:
        spot->resize(random.below(spot->size() + 9), static_cast<char>(0xFF));
        break;
      case 4:
        if (!spot->empty()) (*spot)[random.below(spot->size())] ^= static_cast<char>(1U << random.below(8));
        break;
      default:
        std::swap(*spot, frames[random.below(frames.size())]);
    }
  }
}

std::vector<FrameBytes> frame_bytes_of(const Frames& frames, std::size_t most) {
  std::vector<FrameBytes> out;
  for (std::size_t i = 0; i < std::min(most, frames.size()); ++i)
    out.push_back(std::as_bytes(std::span(frames[i])));
  return out;
}

TEST(ZmqWire, OnlyMessagesOfTheirFormAreTaken) {
  Random random(7);
  TestStream stream(1);
  std::array<std::size_t, 3> taken{};
  std::array<std::size_t, 3> refused{};
  for (const TimeBox box(0.5); !box.over();) {
    for (int i = 0; i < 500; ++i) {
      const std::uint64_t number = random.next() >> random.below(64);
      Frames live = {"topic", number_text(number), payload(stream)};
      Frames reply = {"", "topic", number_text(number), payload(stream)};
      Frames request = {"identity", "", number_text(number, random.below(12))};
      damage(live, random);
      damage(reply, random);
      damage(request, random);
      const auto live_is = live_number(frame_bytes_of(live, 3), live.size());
      ASSERT_EQ(live_is.has_value(), live.size() == 3 && live[1].size() == 8);
      if (live_is) {
        ASSERT_EQ(number_text(*live_is), live[1]);
      }
      const auto reply_is = reply_head(frame_bytes_of(reply, 4), reply.size());
      ASSERT_EQ(reply_is.has_value(), reply.size() == 4 && reply[0].empty() && reply[2].size() == 8);
      if (reply_is) {
        ASSERT_EQ(number_text(reply_is->number), reply[2]);
        ASSERT_EQ(reply_is->is_end, reply[2] == std::string(8, '\xFF'));
      }
      const auto asked = requested_number(frame_bytes_of(request, 3), request.size());
      ASSERT_EQ(asked.has_value(), request.size() == 3 && request[1].empty());
      if (asked && *asked != ~std::uint64_t{0}) {
        ASSERT_EQ(number_text(*asked, request[2].size()), request[2]);
      }
      const std::array<bool, 3> good = {live_is.has_value(), reply_is.has_value(), asked.has_value()};
      for (std::size_t form = 0; form < 3; ++form) ++(good[form] ? taken : refused)[form];
    }
  }
  for (std::size_t form = 0; form < 3; ++form) {
    EXPECT_GT(taken[form], 0u) << form;
    EXPECT_GT(refused[form], 0u) << form;
  }
}

// Every message that was sent is delivered or counted as damaged.
TEST(ZmqWire, SourcesLiveThroughAnyFrames) {
  Random random(8);
  TestStream stream(1);
  RawSocket publisher(ZMQ_PUB);
  const std::string endpoint = publisher.bind("tcp://127.0.0.1:*");
  auto source = make_source({{.endpoint = endpoint, .hwm = 0}});
  auto engine = ZmqEngineSource::create({.endpoint = endpoint, .hwm = 0}).value();
  TestConsumer consumer;
  std::uint64_t engine_messages = 0;
  std::uint64_t engine_last = 0;
  const auto hear = [&] {
    static_cast<void>(source->poll(consumer, 1ms));
    for (auto got = engine->receive(1ms); got && *got; got = engine->receive(0ms)) {
      ++engine_messages;
      engine_last = (*got)->sequence;
    }
  };
  const auto give_up = Clock::real().now() + 60s;
  // Both are there when both hear.
  while ((consumer.batches.empty() || engine_messages == 0) && Clock::real().now() < give_up) {
    publisher.send({"", number_text(0), payload(stream)});
    hear();
  }
  ASSERT_GT(engine_messages, 0u);
  // Whatever is still under way of them ends with this one.
  Frames last = {"last", number_text(0), payload(stream)};
  publisher.send(last);
  const std::uint64_t end_of_greetings = stream.number();
  while ((consumer.batches.back().view().end() != end_of_greetings) && Clock::real().now() < give_up) hear();
  const std::uint64_t damaged_before = source->damaged();
  const std::size_t before = consumer.batches.size();
  constexpr std::uint64_t kSent = 3000;
  for (std::uint64_t i = 0; i < kSent; ++i) {
    Frames frames = {"topic", number_text(i), payload(stream)};
    damage(frames, random);
    if (frames.empty()) frames.emplace_back();
    publisher.send(frames);
  }
  publisher.send({"topic", number_text(kSent), payload(stream)});
  const auto all = [&] { return consumer.batches.size() - before + source->damaged() - damaged_before; };
  while (all() < kSent + 1 && Clock::real().now() < give_up) hear();
  EXPECT_EQ(all(), kSent + 1);
  EXPECT_GT(source->damaged(), 0u);
  EXPECT_EQ(consumer.batches.back().view().end(), stream.number());
  while (engine_last != kSent && Clock::real().now() < give_up) hear();
  EXPECT_EQ(engine_last, kSent);
  EXPECT_GT(engine->damaged(), 0u);
}

TEST(ZmqWire, AReplaySocketLivesThroughAnyRequest) {
  Random random(9);
  auto publisher =
      EnginePublisher::create(
          {.endpoint = "tcp://127.0.0.1:*", .attach = Attach::kBind, .replay_endpoint = "tcp://127.0.0.1:*"})
          .value();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(publisher->publish("t", std::as_bytes(std::span("payload", 7))));
  RawSocket dealer(ZMQ_DEALER);
  dealer.connect(publisher->replay_endpoint());
  for (int i = 0; i < 500; ++i) {
    Frames frames = {"", number_text(random.below(8), random.below(12))};
    damage(frames, random);
    if (frames.empty()) frames.emplace_back();
    dealer.send(frames);
  }
  // Whoever asks properly is answered.
  auto source = ZmqEngineSource::create(
                    {.endpoint = publisher->endpoint(), .replay_endpoint = publisher->replay_endpoint()})
                    .value();
  const auto kept = source->replay(2);
  ASSERT_TRUE(kept) << kept.error();
  EXPECT_EQ(kept->messages.size(), 3u);
  EXPECT_TRUE(eventually([&] { return publisher->stats().invalid_requests > 0; }));
}

}  // namespace
}  // namespace ashlar::backend::zmq
