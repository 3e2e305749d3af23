#include "transfer/remote/name_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ashlar::transfer {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A name server that answers when it is told to. Look-ups may outlive the test.
struct NameServer {
  std::latch open{1};
  std::atomic<bool> told{false};
  std::atomic<int> asked{0};
  std::atomic<int> answered{0};

  void answer() {
    if (!told.exchange(true)) open.count_down();
  }

  static NameResolver::Lookup of(const std::shared_ptr<NameServer>& server) {
    return [server](std::string_view text) {
      ++server->asked;
      server->open.wait();
      Result<NameResolver::Addresses> found =
          SocketAddress::resolve("127.0.0.1" + std::string(text.substr(text.rfind(':'))));
      ++server->answered;
      return found;
    };
  }
};

class NameResolverTest : public ::testing::Test {
 protected:
  ~NameResolverTest() override {
    server_->answer();
    while (server_->answered != server_->asked) std::this_thread::yield();
  }
  static Clock::TimePoint in_an_hour() { return Clock::real().now() + hours(1); }

  const std::shared_ptr<NameServer> server_ = std::make_shared<NameServer>();
  NameResolver resolver_{NameServer::of(server_)};
};

TEST_F(NameResolverTest, NumbersNeedNoNameServer) {
  for (const char* const text : {"127.0.0.1:70", "[::1]:70", "10.0.0.1:0", "[fe80::1]:65535"}) {
    const auto found = resolver_.resolve(text, in_an_hour());
    ASSERT_TRUE(found) << text;
    ASSERT_THAT(*found, SizeIs(1));
    EXPECT_EQ(found->at(0).to_string(), text);
  }
  EXPECT_EQ(server_->asked, 0);
  for (const char* const text : {"", "host", "127.0.0.1", "::1:70", "127.0.0.1:65536"})
    EXPECT_EQ(resolver_.resolve(text, in_an_hour()).error().code(), ErrorCode::kInvalidArgument) << text;
}

// The server answers only after all of these have returned.
TEST_F(NameResolverTest, ANameThatIsNotFoundInTimeIsNotWaitedFor) {
  const auto late = resolver_.resolve("slow:70", Clock::real().now() + milliseconds(10));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(late.error().message(), HasSubstr("not looked up in time"));
  std::stop_source stop;
  std::thread stopper([&] {
    while (server_->asked != 1) std::this_thread::yield();
    stop.request_stop();
  });
  EXPECT_EQ(resolver_.resolve("slow:70", in_an_hour(), stop.get_token()).error().code(),
            ErrorCode::kCancelled);
  stopper.join();
  EXPECT_EQ(server_->asked, 1) << "one look-up for all who want the name";
  EXPECT_TRUE(resolver_.resolve("127.0.0.1:70", in_an_hour()));
  server_->answer();
  EXPECT_EQ(resolver_.resolve("slow:70", in_an_hour()).value().at(0).to_string(), "127.0.0.1:70");
}

TEST_F(NameResolverTest, LookUpsAreBounded) {
  for (std::size_t i = 0; i < NameResolver::kMostLookups; ++i)
    EXPECT_FALSE(resolver_.resolve("host-" + std::to_string(i) + ":70", Clock::real().now()));
  const auto refused = resolver_.resolve("one-more:70", in_an_hour());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("16 names are"));
  server_->answer();
  // As soon as there is room.
  while (!resolver_.resolve("one-more:70", in_an_hour())) std::this_thread::yield();
}

TEST_F(NameResolverTest, ALookUpMayOutliveItsResolver) {
  auto resolver = std::make_unique<NameResolver>(NameServer::of(server_));
  EXPECT_FALSE(resolver->resolve("slow:70", Clock::real().now()));
  resolver.reset();
  server_->answer();
}

TEST(HostNamesTest, NamesOfTheSystemAreFound) {
  NameResolver resolver;
  const auto found = resolver.resolve("localhost:70", Clock::real().now() + hours(1));
  ASSERT_TRUE(found) << found.error();
  for (const SocketAddress& one : *found) EXPECT_TRUE(one.is_loopback()) << one.to_string();
}

}  // namespace
}  // namespace ashlar::transfer
