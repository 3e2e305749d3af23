// What readers of a replay socket that read nothing cost its publisher.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "backend/zmq/raw_socket.h"
#include "backend/zmq/replay_server.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPart = 50'000;
constexpr std::size_t kParts = 20;

std::vector<std::vector<std::byte>> large_snapshot() {
  return std::vector(kParts, std::vector<std::byte>(kPart));
}

// Snapshots count until their readers have taken them, also those that wait in the library. Something is
// published between the requests, so that none can share the snapshot of another.
TEST(ReplayMemoryTest, SnapshotsThatNobodyReadsStayWithinTheirLimit) {
  constexpr std::size_t kLimit = 5 * kPart * kParts;
  constexpr std::uint64_t kRequests = 100;
  std::atomic<std::uint64_t> made{0};
  auto publisher = EnginePublisher::create({.endpoint = "tcp://127.0.0.1:*",
                                            .replay_endpoint = "tcp://127.0.0.1:*",
                                            .replay_patience = 600s,
                                            .snapshot =
                                                [&] {
                                                  ++made;
                                                  return large_snapshot();
                                                },
                                            .snapshot_bytes = kLimit})
                       .value();
  {
    RawSocket lazy(ZMQ_DEALER);
    lazy.set(ZMQ_RCVHWM, 1);
    lazy.set(ZMQ_RCVBUF, 4096);
    lazy.connect(publisher->replay_endpoint());
    for (std::uint64_t i = 1; i <= kRequests; ++i) {
      lazy.send({"", "snapshot"});
      ASSERT_TRUE(eventually([&] { return publisher->stats().snapshots == i; }));
      ASSERT_TRUE(publisher->publish("t", bytes_of("payload")));
      ASSERT_TRUE(publisher->flush(100s));
      ASSERT_LE(publisher->stats().snapshot_bytes, kLimit);
    }
    // Some went into buffers of the system.
    EXPECT_LT(made.load(), kRequests);
    EXPECT_EQ(publisher->stats().dropped_replays, 0U) << "the others wait";
  }
  // When it is gone, so is what was kept for it; who reads is answered.
  EXPECT_EQ(ask_replay(publisher->replay_endpoint(), {"", "snapshot"}).size(), kParts + 1);
  EXPECT_TRUE(eventually([&] { return publisher->stats().snapshot_bytes == 0; }));
}

TEST(ReplayMemoryTest, OneSnapshotIsMadeWhateverItsSize) {
  auto publisher = EnginePublisher::create({.endpoint = "tcp://127.0.0.1:*",
                                            .replay_endpoint = "tcp://127.0.0.1:*",
                                            .snapshot = large_snapshot,
                                            .snapshot_bytes = 1})
                       .value();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(ask_replay(publisher->replay_endpoint(), {"", "snapshot"}).size(), kParts + 1);
  EXPECT_TRUE(eventually([&] { return publisher->stats().replays == 3; }));
}

TEST(ReplayMemoryTest, RequestsOfOneMomentShareASnapshot) {
  int made = 0;
  EnginePublisherOptions options;
  options.snapshot = [&] {
    ++made;
    return large_snapshot();
  };
  Socket router = Socket::create(Context::shared().value(), ZMQ_ROUTER).value();
  router.set(ZMQ_ROUTER_MANDATORY, 1);
  const std::string endpoint = router.bind("tcp://127.0.0.1:*").value();
  ReplayServer server(std::move(router), options);
  RawSocket dealer(ZMQ_DEALER);
  dealer.connect(endpoint);
  for (int i = 0; i < 10; ++i) dealer.send({"", "snapshot"});
  ASSERT_TRUE(eventually([&] {
    server.take_requests();
    return server.snapshots.load() == 10;
  }));
  server.send_replies(0);
  EXPECT_EQ(made, 1);
  EXPECT_LE(server.snapshot_bytes(), kPart * kParts) << "however many wait for it";
  // After a message it is another moment.
  dealer.send({"", "snapshot"});
  ASSERT_TRUE(eventually([&] {
    server.take_requests();
    return server.snapshots.load() == 11;
  }));
  server.send_replies(1);
  EXPECT_EQ(made, 2);
  // All of them come, whole.
  std::size_t ends = 0;
  std::size_t parts = 0;
  ASSERT_TRUE(eventually([&] {
    server.send_replies(1);
    while (const std::optional<Frames> reply = dealer.receive(1ms)) {
      if (*reply == kEndMarker) {
        ++ends;
      } else {
        EXPECT_EQ(reply->back().size(), kPart);
        ++parts;
      }
    }
    return ends == 11;
  }));
  EXPECT_EQ(parts, 11 * kParts);
  EXPECT_TRUE(eventually([&] { return server.snapshot_bytes() == 0; }));
}

}  // namespace
}  // namespace ashlar::backend::zmq
