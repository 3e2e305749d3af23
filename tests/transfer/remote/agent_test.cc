#include <dlfcn.h>
#include <netdb.h>

#include <condition_variable>
#include <latch>
#include <set>

#include "support/rounds.h"
#include "support/server.h"
#include "transfer/remote/agent_core.h"
#include "transfer/remote/agent_fixture.h"

namespace {

// A name with two addresses.
constexpr std::string_view kTwoAddresses = "silent-then-living.test";

}  // namespace

// As the system's, which knows it not. A list of addresses is freed one by one.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || host != kTwoAddresses || (hints->ai_flags & AI_NUMERICHOST) != 0)
    return real(host, port, hints, found);
  const int failed = real("127.0.0.2", port, hints, found);
  return failed != 0 ? failed : real("127.0.0.1", port, hints, &(*found)->ai_next);
}

namespace ashlar::transfer {
namespace {

using ::ashlar::testing::await;
using ::ashlar::testing::bytes_of;
using ::ashlar::testing::fake_options;
using ::ashlar::testing::FakeTransport;
using ::ashlar::testing::kEcho;
using ::ashlar::testing::make_agent;
using ::ashlar::testing::rounds;
using ::ashlar::testing::serve_echo;
using ::ashlar::testing::text_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Bytes = Result<std::vector<std::byte>>;

void expect_error(const auto& result, ErrorCode code, const char* says) {
  ASSERT_FALSE(result) << says;
  EXPECT_EQ(result.error().code(), code) << result.error();
  EXPECT_THAT(result.error().message(), HasSubstr(says));
}

TEST(RemoteAgentTest, PeersKnowAndCallEachOther) {
  for (const char* const listen : {"127.0.0.1:0", "[::1]:0"})
    for (const char* const secret : {"", "a secret of tests"}) {
      AgentOptions options = fake_options("server", secret);
      options.listen = listen;
      options.id = 0xA1;
      const auto server = make_agent(options);
      const auto client = make_agent(fake_options("client", secret));
      const RemoteOffer echo = serve_echo(*server);
      const RemoteOffer back = serve_echo(*client);
      const auto peer = client->connect(server->address()).value();
      EXPECT_EQ(peer->identity(), server->identity());
      EXPECT_EQ(peer->identity().agent, 0xA1u);
      EXPECT_EQ(peer->name(), "server");
      EXPECT_EQ(peer->address(), server->address());
      EXPECT_TRUE(peer->alive());
      EXPECT_FALSE(peer->failure());
      EXPECT_EQ(text_of(peer->call(kEcho, bytes_of("hello")).value()), "hello");
      EXPECT_THAT(peer->call(kEcho, {}).value(), IsEmpty());
      // The server knows its peer as soon as connect() returned, and calls it too.
      ASSERT_THAT(server->peers(), SizeIs(1));
      const auto other = server->peers()[0];
      EXPECT_EQ(other->identity(), client->identity());
      EXPECT_EQ(other->name(), "client");
      EXPECT_EQ(text_of(other->call(kEcho, bytes_of("back")).value()), "back");
      EXPECT_EQ(client->connect(server->address()).value(), peer);
      EXPECT_EQ(server->connect(client->address()).value(), other);
      expect_error(client->connect(client->address()), ErrorCode::kAlreadyExists, "this agent itself");
      // Another name of the same address finds the same peer.
      if (std::string_view(listen).starts_with("127")) {
        const std::string port = server->address().substr(server->address().rfind(':'));
        EXPECT_EQ(client->connect("localhost" + port).value(), peer);
        EXPECT_EQ(client->peers(), std::vector{peer});
      }
    }
}

TEST(RemoteAgentTest, AnswersAreThoseOfTheHandler) {
  const auto server = make_agent(fake_options("server"));
  const auto client = make_agent(fake_options("client"));
  const auto peer = client->connect(server->address()).value();
  expect_error(peer->call(kEcho, {}), ErrorCode::kUnsupported, "no handler for method 20");
  expect_error(peer->call(3, {}), ErrorCode::kUnsupported, "no method 3");
  {
    const RemoteOffer refuser =
        server
            ->serve(kEcho,
                    [](const std::shared_ptr<RemotePeer>& from, std::span<const std::byte>) -> Bytes {
                      return make_error(ErrorCode::kNotReady, "not today, %s", from->name().c_str());
                    })
            .value();
    expect_error(peer->call(kEcho, {}), ErrorCode::kNotReady, "not today, client");
    expect_error(server->serve(kEcho, [](const auto&, auto) -> Bytes { return std::vector<std::byte>(); }),
                 ErrorCode::kAlreadyExists, "method 20");
    expect_error(server->serve(15, [](const auto&, auto) -> Bytes { return std::vector<std::byte>(); }),
                 ErrorCode::kInvalidArgument, "methods begin at 16");
  }
  expect_error(peer->call(kEcho, {}), ErrorCode::kUnsupported, "no handler");
}

TEST(RemoteAgentTest, LargeMessagesArriveAndLargerOnesAreRefused) {
  AgentOptions options = fake_options("server");
  options.max_message_bytes = 3 << 20;
  const auto server = make_agent(options);
  const auto client = make_agent(fake_options("client"));
  const RemoteOffer echo = serve_echo(*server);
  const auto peer = client->connect(server->address()).value();
  std::vector<std::byte> large(options.max_message_bytes);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7 >> 3);
  EXPECT_EQ(peer->call(kEcho, large).value(), large);
  large.push_back({});
  expect_error(peer->call(kEcho, large), ErrorCode::kInvalidArgument, "max_message_bytes");
  const RemoteOffer loud =
      server
          ->serve(21, [](const auto&, auto) -> Bytes { return std::vector<std::byte>(std::size_t{4} << 20); })
          .value();
  expect_error(peer->call(21, {}), ErrorCode::kCapacity, "the answer has 4194304 bytes");
  EXPECT_TRUE(peer->alive());
}

// Several callers over one link: each gets its own answer.
TEST(RemoteAgentTest, ManyCallersShareALink) {
  const auto server = make_agent(fake_options("server"));
  const auto client = make_agent(fake_options("client"));
  const RemoteOffer echo = serve_echo(*server);
  const auto peer = client->connect(server->address()).value();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < rounds(500); ++i) {
        const std::string said = std::to_string(t) + " " + std::string(i % 100 * 37, 'x') + std::to_string(i);
        const Bytes answer = peer->call(kEcho, bytes_of(said));
        if (!answer || text_of(*answer) != said) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(RemoteAgentTest, NotificationsArriveInOrderAtOneHandler) {
  AgentOptions options = fake_options("server");
  options.handler_threads = 1;
  const auto server = make_agent(options);
  const auto client = make_agent(fake_options("client"));
  std::vector<std::string> seen;
  const RemoteOffer notes = server
                                ->serve(30,
                                        [&](const auto&, std::span<const std::byte> request) -> Bytes {
                                          seen.push_back(text_of(request));
                                          return std::vector<std::byte>();
                                        })
                                .value();
  const RemoteOffer echo = serve_echo(*server);
  const auto peer = client->connect(server->address()).value();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(peer->notify(30, bytes_of(std::to_string(i))));
  ASSERT_TRUE(peer->call(kEcho, {}));  // one thread: it comes after all of them
  ASSERT_THAT(seen, SizeIs(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], std::to_string(i));
}

// A handler that waits until it may go on.
struct Gate {
  std::latch open{1};
  std::atomic<int> inside = 0;

  RemoteHandler handler() {
    return [this](const auto&, std::span<const std::byte>) -> Bytes {
      ++inside;
      open.wait();
      return bytes_of("late");
    };
  }
};

TEST(RemoteAgentTest, CallsEndAtTheirDeadlineOrWhenStopped) {
  const auto server = make_agent(fake_options("server"));
  const auto client = make_agent(fake_options("client"));
  Gate gate;
  const RemoteOffer waits = server->serve(40, gate.handler()).value();
  const RemoteOffer echo = serve_echo(*server);
  const auto peer = client->connect(server->address()).value();
  expect_error(peer->call(40, {}, {.deadline = Clock::real().now() + std::chrono::milliseconds(20)}),
               ErrorCode::kTimeout, "did not answer call 40 in time");
  // On a busy machine the first was not even sent.
  const int before = gate.inside;
  std::stop_source stop;
  std::thread stopper([&] {
    await([&] { return gate.inside > before; });
    stop.request_stop();
  });
  expect_error(peer->call(40, {}, {.stop = stop.get_token()}), ErrorCode::kCancelled, "cancelled");
  stopper.join();
  expect_error(peer->call(kEcho, {}, {.stop = stop.get_token()}), ErrorCode::kCancelled, "cancelled");
  gate.open.count_down();
  // The late answers are dropped, and the link works.
  for (int i = 0; i < 10; ++i) EXPECT_EQ(text_of(peer->call(kEcho, bytes_of("on time")).value()), "on time");
}

TEST(RemoteAgentTest, APeerCannotFillTheQueueOfHandlers) {
  const auto server = make_agent(fake_options("server"));
  const auto greedy = make_agent(fake_options("greedy"));
  const auto modest = make_agent(fake_options("modest"));
  Gate gate;
  const RemoteOffer waits = server->serve(40, gate.handler()).value();
  const auto peer = greedy->connect(server->address()).value();
  std::vector<std::thread> callers;
  std::atomic<int> refused = 0;
  std::atomic<int> served = 0;
  for (int i = 0; i < 260; ++i)
    callers.emplace_back([&] {
      const Bytes answer = peer->call(40, {});
      if (answer) {
        ++served;
      } else if (answer.error().code() == ErrorCode::kCapacity) {
        ++refused;
      }
    });
  await([&] { return refused == 4; });
  // Another peer is still heard, behind what runs.
  const auto other = modest->connect(server->address()).value();
  std::thread patient([&] { EXPECT_EQ(text_of(other->call(40, {}).value()), "late"); });
  gate.open.count_down();
  for (std::thread& caller : callers) caller.join();
  patient.join();
  EXPECT_EQ(served, 256);
}

TEST(RemoteAgentTest, AClosedPeerIsDeadOnBothSides) {
  const auto server = make_agent(fake_options("server"));
  const auto client = make_agent(fake_options("client"));
  Gate gate;
  const RemoteOffer waits = server->serve(40, gate.handler()).value();
  const auto peer = client->connect(server->address()).value();
  const auto other = server->peers()[0];
  std::atomic<int> closed = 0;
  std::latch told(2);
  const auto count = [&](const Error&) {
    ++closed;
    told.count_down();
  };
  peer->on_closed(count);
  other->on_closed(count);
  std::thread caller([&] { expect_error(peer->call(40, {}), ErrorCode::kUnavailable, "enough"); });
  await([&] { return gate.inside == 1; });
  peer->close(make_error(ErrorCode::kCancelled, "enough"));
  peer->close(make_error(ErrorCode::kCancelled, "again"));
  caller.join();
  EXPECT_FALSE(peer->alive());
  EXPECT_EQ(peer->failure()->code(), ErrorCode::kCancelled);
  EXPECT_EQ(peer->path()->failure()->message(), "enough");
  told.wait();
  await([&] { return other->path()->failure().has_value(); });
  EXPECT_THAT(other->failure()->message(), HasSubstr("enough"));
  EXPECT_EQ(closed, 2);
  peer->on_closed([&](const Error& why) { closed += why.message() == "enough" ? 10 : 0; });
  EXPECT_EQ(closed, 12);
  expect_error(peer->call(kEcho, {}), ErrorCode::kUnavailable, "is gone: enough");
  expect_error(peer->notify(kEcho, {}), ErrorCode::kUnavailable, "is gone: enough");
  EXPECT_THAT(client->peers(), IsEmpty());
  EXPECT_THAT(server->peers(), IsEmpty());
  gate.open.count_down();
  const auto fresh = client->connect(server->address()).value();
  EXPECT_NE(fresh, peer);
  EXPECT_TRUE(fresh->alive());
}

TEST(RemoteAgentTest, ARestartOnTheSameAddressIsAnotherIncarnation) {
  const auto client = make_agent(fake_options("client"));
  AgentOptions options = fake_options("server");
  options.id = 7;
  options.listen = "127.0.0.1:" + std::to_string(free_port());  // given to nobody while the server is away
  auto server = make_agent(options);
  for (std::uint64_t round = 0; round < rounds(20); ++round) {
    const auto old = client->connect(options.listen).value();
    const AgentIdentity before = server->identity();
    EXPECT_EQ(old->identity(), before);
    server.reset();
    await([&] { return !old->alive(); });
    options.transport = std::make_shared<FakeTransport>();
    server = make_agent(options);
    EXPECT_EQ(server->identity().agent, 7u);
    EXPECT_NE(server->identity().incarnation, before.incarnation);
    const auto fresh = client->connect(options.listen).value();
    EXPECT_EQ(fresh->identity(), server->identity());
    EXPECT_FALSE(old->alive());
    EXPECT_THAT(client->peers(), SizeIs(1));
  }
}

TEST(RemoteAgentTest, TwoAgentsThatConnectToEachOtherAtOnceHaveOneLink) {
  for (std::uint64_t round = 0; round < rounds(100); ++round) {
    const auto one = make_agent(fake_options("one"));
    const auto other = make_agent(fake_options("other"));
    const RemoteOffer echo_one = serve_echo(*one);
    const RemoteOffer echo_other = serve_echo(*other);
    std::latch start(4);
    std::shared_ptr<RemotePeer> ends[4];
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        ends[i] = (i % 2 == 0 ? one->connect(other->address()) : other->connect(one->address())).value();
      });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(ends[i], ends[i % 2]);
      EXPECT_EQ(text_of(ends[i]->call(kEcho, bytes_of("hi")).value()), "hi");
    }
    EXPECT_THAT(one->peers(), SizeIs(1));
    EXPECT_THAT(other->peers(), SizeIs(1));
  }
}

TEST(RemoteAgentTest, CallbacksHearOfEveryPeer) {
  const auto server = make_agent(fake_options("server"));
  std::atomic<int> seen = 0;
  {
    const RemoteOffer watch = server->on_peer([&](const std::shared_ptr<RemotePeer>&) { ++seen; }).value();
    const auto one = make_agent(fake_options("one"));
    const auto two = make_agent(fake_options("two"));
    ASSERT_TRUE(one->connect(server->address()));
    ASSERT_TRUE(server->connect(two->address()));
    await([&] { return seen == 2; });
  }
  const auto three = make_agent(fake_options("three"));
  ASSERT_TRUE(three->connect(server->address()));
  EXPECT_EQ(seen, 2);
}

TEST(RemoteAgentTest, WhatDoesNotFitTogetherIsRefused) {
  const auto server = make_agent(fake_options("server"));
  const auto stranger = make_agent(fake_options("stranger", "another secret"));
  const auto open = make_agent(fake_options("open", ""));
  AgentOptions options = fake_options("elsewhere");
  options.transport = std::make_shared<FakeTransport>("other");
  const auto elsewhere = make_agent(options);
  expect_error(stranger->connect(server->address()), ErrorCode::kInvalidArgument, "different secrets");
  expect_error(open->connect(server->address()), ErrorCode::kInvalidArgument, "the other none");
  expect_error(server->connect(open->address()), ErrorCode::kInvalidArgument, "the other none");
  expect_error(elsewhere->connect(server->address()), ErrorCode::kUnsupported, "'other'");
  expect_error(open->connect("192.0.2.1:7000"), ErrorCode::kInvalidArgument, "loopback addresses only");
  expect_error(server->connect("nowhere"), ErrorCode::kInvalidArgument, "HOST:PORT");
  expect_error(server->connect("127.0.0.1:65536"), ErrorCode::kInvalidArgument, "HOST:PORT");
  expect_error(server->connect("::1:7000"), ErrorCode::kInvalidArgument, "brackets");
  EXPECT_THAT(server->peers(), IsEmpty());
  std::string address = stranger->address();
  EXPECT_THAT(server->connect(address).error().message(), ::testing::Not(HasSubstr("a secret of tests")));
}

TEST(RemoteAgentTest, NobodyListensIsUnavailable) {
  const auto client = make_agent(fake_options("client"));
  std::string address = make_agent(fake_options("gone"))->address();
  expect_error(client->connect(address), ErrorCode::kUnavailable, "cannot be connected to");
  std::stop_source stop;
  stop.request_stop();
  const auto server = make_agent(fake_options("server"));
  expect_error(client->connect(server->address(), {.stop = stop.get_token()}), ErrorCode::kCancelled,
               "cancelled");
}

// The first address accepts connections and never says a word.
TEST(RemoteAgentTest, AnAddressWithoutAnAnswerLeavesTimeForTheOthers) {
  const auto server = make_agent(fake_options("server"));
  const std::string port = server->address().substr(server->address().rfind(':'));
  const auto silent = SocketAddress::from_number("127.0.0.2" + port).value()->listen();
  ASSERT_TRUE(silent) << silent.error();
  AgentOptions options = fake_options("client");
  options.silence = std::chrono::hours(1);  // only the deadline ends the wait
  const auto client = make_agent(options);
  std::shared_ptr<RemotePeer> peer;
  // However long the second one takes.
  for (Clock::Duration limit = std::chrono::milliseconds(100); peer == nullptr; limit *= 2) {
    ASSERT_LE(limit, std::chrono::seconds(30)) << "the second address was never tried";
    const auto found =
        client->connect(std::string(kTwoAddresses) + port, {.deadline = Clock::real().now() + limit});
    if (found) {
      peer = *found;
    } else {
      EXPECT_EQ(found.error().code(), ErrorCode::kUnavailable) << found.error();
    }
  }
  EXPECT_EQ(peer->identity(), server->identity());
}

TEST(RemoteAgentTest, MaxPeersCountsLinks) {
  AgentOptions options = fake_options("server");
  options.max_peers = 2;
  const auto server = make_agent(options);
  std::vector<std::shared_ptr<RemoteAgent>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(make_agent(fake_options("client")));
  ASSERT_TRUE(clients[0]->connect(server->address()));
  const auto second = clients[1]->connect(server->address()).value();
  expect_error(clients[2]->connect(server->address()), ErrorCode::kCapacity, "max_peers");
  second->close(make_error(ErrorCode::kCancelled, "room for others"));
  await([&] { return server->peers().size() == 1; });
  ASSERT_TRUE(clients[2]->connect(server->address()));
}

TEST(RemoteAgentTest, APathThatFailsKillsThePeer) {
  AgentOptions options = fake_options("server");
  const auto transport = std::make_shared<FakeTransport>();
  options.transport = transport;
  const auto server = make_agent(options);
  const auto client = make_agent(fake_options("client"));
  const auto peer = client->connect(server->address()).value();
  const auto other = server->peers()[0];
  transport->fail_paths(make_error(ErrorCode::kIo, "the wire is cut"));
  EXPECT_FALSE(other->alive());
  EXPECT_THAT(other->failure()->message(), HasSubstr("the wire is cut"));
  await([&] { return !peer->alive(); });
  transport->unreachable = true;
  expect_error(client->connect(server->address()), ErrorCode::kUnavailable, "no way");
  EXPECT_THAT(client->peers(), IsEmpty());
}

// The transport waits for peers that do not answer, and opens the path to another meanwhile.
TEST(RemoteAgentTest, APeerWhosePathDoesNotOpenDelaysNoOther) {
  AgentOptions options = fake_options("client");
  const auto transport = std::make_shared<FakeTransport>();
  options.transport = transport;
  const auto living = make_agent(fake_options("living"));
  std::vector<std::shared_ptr<RemoteAgent>> stuck;
  std::set<AgentIdentity> identities;
  for (std::size_t i = 0; i + 1 < AgentCore::kOpeners; ++i) {
    stuck.push_back(make_agent(fake_options("stuck")));
    identities.insert(stuck.back()->identity());
  }
  const Clock::TimePoint deadline = Clock::real().now() + std::chrono::hours(1);
  std::latch inside(static_cast<std::ptrdiff_t>(stuck.size()));
  std::latch open(1);
  transport->on_connect = [&](const AgentIdentity& peer, Clock::TimePoint until) {
    EXPECT_EQ(until, deadline) << "the caller's";
    if (!identities.contains(peer)) return;
    inside.count_down();
    open.wait();
  };
  const auto client = make_agent(options);
  std::vector<std::thread> callers;
  std::atomic<std::size_t> connected = 0;
  for (const auto& one : stuck)
    callers.emplace_back([&, address = one->address()] {
      if (client->connect(address, {.deadline = deadline})) ++connected;
    });
  inside.wait();
  EXPECT_TRUE(client->connect(living->address(), {.deadline = deadline}));
  EXPECT_EQ(connected, 0u);
  open.count_down();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(connected, stuck.size());
}

// What a call was granted after it ended can be given back.
TEST(RemoteAgentTest, TheAnswerOfACallThatEndedGoesToWhoeverWantsIt) {
  const auto server = make_agent(fake_options("server"));
  const auto client = make_agent(fake_options("client"));
  Gate gate;
  const RemoteOffer waits = server->serve(40, gate.handler()).value();
  const auto peer = client->connect(server->address()).value();
  const auto heard = std::make_shared<std::vector<std::string>>();
  const auto told = std::make_shared<std::latch>(2);
  const LateAnswer late = [heard, told](std::span<const std::byte> answer) {
    heard->push_back(text_of(answer));
    told->count_down();
  };
  // Long enough that it is sent, on a busy machine too.
  const auto soon = [] { return Clock::real().now() + std::chrono::milliseconds(400); };
  expect_error(peer->call(40, {}, {.deadline = soon()}, late), ErrorCode::kTimeout, "in time");
  await([&] { return gate.inside == 1; });
  std::stop_source stop;
  std::thread stopper([&] {
    await([&] { return gate.inside == 2; });
    stop.request_stop();
  });
  expect_error(peer->call(40, {}, {.stop = stop.get_token()}, late), ErrorCode::kCancelled, "cancelled");
  stopper.join();
  gate.open.count_down();
  told->wait();
  EXPECT_EQ(*heard, (std::vector<std::string>{"late", "late"}));
  // One that is answered in time is not heard of twice.
  EXPECT_EQ(text_of(peer->call(40, {}, {}, late).value()), "late");
  EXPECT_THAT(*heard, SizeIs(2));
}

TEST(RemoteAgentTest, AnAgentMayGoWhilePeersCallsAndHandlersExist) {
  for (std::uint64_t round = 0; round < rounds(40); ++round) {
    auto server = make_agent(fake_options("server"));
    auto client = make_agent(fake_options("client"));
    RemoteOffer echo = serve_echo(*server);
    Gate gate;
    RemoteOffer waits = server->serve(40, gate.handler()).value();
    const auto peer = client->connect(server->address()).value();
    const auto other = server->peers()[0];
    std::atomic<int> closed = 0;
    peer->on_closed([&](const Error&) { ++closed; });
    other->on_closed([&](const Error&) { ++closed; });
    std::thread caller([&] { EXPECT_EQ(peer->call(40, {}).error().code(), ErrorCode::kUnavailable); });
    std::thread busy([&] {
      while (peer->call(kEcho, bytes_of("x"))) continue;
    });
    await([&] { return gate.inside == 1; });
    if (round % 2 == 0) {
      client.reset();
      gate.open.count_down();
      server.reset();
    } else {
      std::thread opener([&] {
        await([&] { return !peer->alive(); });
        gate.open.count_down();
      });
      server.reset();  // waits for the handler
      opener.join();
      client.reset();
    }
    caller.join();
    busy.join();
    EXPECT_EQ(closed, 2);
    EXPECT_FALSE(peer->alive());
    EXPECT_TRUE(peer->path()->failure());
    expect_error(peer->call(kEcho, {}), ErrorCode::kUnavailable, "gone");
  }
}

TEST(RemoteAgentTest, OptionsAreChecked) {
  const auto refused = [](const std::function<void(AgentOptions&)>& change, const char* says) {
    AgentOptions options = fake_options("server");
    change(options);
    const Result<std::shared_ptr<RemoteAgent>> agent = RemoteAgent::create(options);
    expect_error(agent, ErrorCode::kInvalidArgument, says);
  };
  refused([](AgentOptions& o) { o.name = std::string(129, 'n'); }, "name has 129");
  refused([](AgentOptions& o) { o.name = "two\nlines"; }, "control characters");
  refused([](AgentOptions& o) { o.id = 0; }, "id is 0");
  refused([](AgentOptions& o) { o.listen = "here"; }, "'here' is not HOST:PORT");
  refused([](AgentOptions& o) { o.listen = "0.0.0.0:0"; }, "advertise");
  refused([](AgentOptions& o) { o.advertise = "there"; }, "'there' is not HOST:PORT");
  refused([](AgentOptions& o) { o.heartbeat = {}; }, "heartbeat is 0 ms");
  refused([](AgentOptions& o) { o.silence = o.heartbeat; }, "silence is 1000 ms");
  refused([](AgentOptions& o) { o.call_limit = {}; }, "call_limit is 0 ms");
  refused([](AgentOptions& o) { o.handler_threads = 0; }, "handler_threads is 0");
  refused([](AgentOptions& o) { o.max_peers = 0; }, "max_peers is 0");
  refused([](AgentOptions& o) { o.max_message_bytes = 100; }, "max_message_bytes is 100");
  refused(
      [](AgentOptions& o) {
        o.secret.clear();
        o.listen = "0.0.0.0:0";
      },
      "loopback addresses only");
  const auto first = make_agent(fake_options("first"));
  AgentOptions taken = fake_options("second");
  taken.listen = first->address();
  expect_error(RemoteAgent::create(taken), ErrorCode::kIo, "cannot be listened on");
}

}  // namespace
}  // namespace ashlar::transfer
