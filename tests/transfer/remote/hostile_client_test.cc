// What strangers and broken peers do to an agent, over raw sockets.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <latch>
#include <mutex>

#include "ashlar/base/log.h"
#include "ashlar/storage/allocator.h"
#include "support/block_images.h"
#include "support/rounds.h"
#include "transfer/remote/agent_fixture.h"
#include "transfer/remote/frame.h"
#include "transfer/remote/handshake.h"
#include "transfer/remote/mac_key.h"
#include "transfer/remote/socket_address.h"

namespace ashlar::transfer {
namespace {

using ::ashlar::testing::await;
using ::ashlar::testing::bytes_of;
using ::ashlar::testing::fake_options;
using ::ashlar::testing::kEcho;
using ::ashlar::testing::make_agent;
using ::ashlar::testing::serve_echo;
using ::ashlar::testing::text_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using ByteVector = std::vector<std::byte>;

// A socket and nothing else. Ends of connections are waited for; the test's time limit ends the wait.
class RawSocket {
 public:
  explicit RawSocket(const std::string& address)
      : fd_(SocketAddress::resolve(address).value().at(0).connect().value()) {
    wait_for(POLLOUT);
  }
  explicit RawSocket(OwnedFd fd) : fd_(std::move(fd)) {}

  // False: the other side has closed.
  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        wait_for(POLLOUT);
        continue;
      }
      if (sent < 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Some bytes; none: the other side has closed.
  ByteVector receive() {
    std::array<std::byte, 4096> chunk;
    for (;;) {
      const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        wait_for(POLLIN);
        continue;
      }
      if (got <= 0) return {};
      return {chunk.begin(), chunk.begin() + got};
    }
  }
  // Everything up to the end of the connection.
  ByteVector receive_all() {
    ByteVector all;
    for (ByteVector some = receive(); !some.empty(); some = receive())
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }

 private:
  void wait_for(short events) {
    pollfd one = {fd_.get(), events, 0};
    ::poll(&one, 1, -1);
  }

  OwnedFd fd_;
};

AgentCard stranger_card() {
  AgentCard card;
  card.identity = {0xBAD, 0xBAD};
  card.name = "raw";
  card.address = "127.0.0.1:1";
  card.transport = "fake";
  card.max_message_bytes = 1 << 20;
  return card;
}

// A peer that speaks the protocol by hand.
class RawPeer {
 public:
  // Shakes hands as a dialer, and waits until it is served.
  RawPeer(const std::string& address, std::string_view secret)
      : card_(stranger_card()),
        socket_(address),
        handshake_(Handshake::Role::kDialer, card_, secret, Handshake::draw_nonce().value()) {
    said = handshake_.take_output();
    EXPECT_TRUE(socket_.send(said));
    while (!handshake_.done()) {
      const ByteVector some = socket_.receive();
      heard.insert(heard.end(), some.begin(), some.end());
      if (const Result<void> fed = handshake_.feed(some); !fed || some.empty()) {
        refused = fed ? Error(ErrorCode::kUnavailable, "closed") : fed.error();
        return;
      }
    }
    const ByteVector proof = handshake_.take_output();
    said.insert(said.end(), proof.begin(), proof.end());
    EXPECT_TRUE(socket_.send(proof));
    sealer_.emplace(handshake_.sending_key());
    opener_.emplace(handshake_.receiving_key(), card_.max_message_bytes);
    opener_->feed(handshake_.rest());
    const std::optional<LinkFrame> ready = receive();
    EXPECT_TRUE(ready && ready->kind == FrameKind::kReady);
    ++made;
  }

  ByteVector sealed(const LinkFrame& frame) {
    ByteVector out;
    sealer_->seal(frame, &out);
    return out;
  }
  RawSocket& socket() { return socket_; }
  // The next frame that is not a heartbeat; empty: the connection has ended.
  std::optional<LinkFrame> receive() {
    for (;;) {
      Result<std::optional<LinkFrame>> frame = opener_->next();
      EXPECT_TRUE(frame);
      if (!frame) return std::nullopt;
      if (*frame && (*frame)->kind != FrameKind::kPing && (*frame)->kind != FrameKind::kPong) return **frame;
      if (*frame) continue;
      const ByteVector some = socket_.receive();
      if (some.empty()) return std::nullopt;
      heard.insert(heard.end(), some.begin(), some.end());
      opener_->feed(some);
    }
  }

  static inline std::size_t made = 0;  // that were served, in this test
  ByteVector said;                     // in the handshake
  ByteVector heard;                    // in all
  std::optional<Error> refused;

 private:
  AgentCard card_;
  RawSocket socket_;
  Handshake handshake_;
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
};

constexpr std::string_view kSecret = "a secret of tests";

class HostileClientTest : public ::testing::Test {
 protected:
  HostileClientTest() { RawPeer::made = 0; }
  // Whatever was done to it, the agent serves others.
  void TearDown() override { expect_served(); }
  void expect_served() {
    const auto friendly = make_agent(fake_options("friendly"));
    // On a busy machine a brisk agent may lose patience with a friend.
    await([&] {
      const auto peer = friendly->connect(agent_->address());
      if (!peer) return false;
      const auto answer = (*peer)->call(kEcho, bytes_of("fine"));
      return answer && text_of(*answer) == "fine";
    });
  }
  // An agent that does not wait long.
  void make_brisk() {
    AgentOptions options = fake_options("brisk", std::string(kSecret));
    options.heartbeat = std::chrono::milliseconds(50);
    options.silence = kPatience;
    echo_ = {};
    counter_ = {};
    watch_ = {};
    agent_ = make_agent(options);
    echo_ = serve_echo(*agent_);
    counter_ = serve_counter();
    watch_ = watch_peers();
  }
  RemoteOffer serve_counter() {
    return agent_
        ->serve(30,
                [this](const auto&, auto) -> Result<ByteVector> {
                  ++handled_;
                  return bytes_of("counted");
                })
        .value();
  }
  static AgentOptions patient() {
    AgentOptions options = fake_options("victim", std::string(kSecret));
    options.silence = std::chrono::minutes(10);
    return options;
  }
  // The agent's end of the last RawPeer, dead or alive.
  std::shared_ptr<RemotePeer> its_peer() {
    std::shared_ptr<RemotePeer> last;
    await([&] {
      const std::lock_guard lock(mu_);
      if (seen_.size() == RawPeer::made) last = seen_.back();
      return last != nullptr;
    });
    return last;
  }
  RemoteOffer watch_peers() {
    return agent_
        ->on_peer([this](const std::shared_ptr<RemotePeer>& peer) {
          const std::lock_guard lock(mu_);
          if (peer->name() == "raw") seen_.push_back(peer);
        })
        .value();
  }

  static constexpr std::chrono::milliseconds kPatience{1000};
  std::shared_ptr<RemoteAgent> agent_ = make_agent(patient());
  std::atomic<int> handled_ = 0;
  RemoteOffer echo_ = serve_echo(*agent_);
  RemoteOffer counter_ = serve_counter();
  std::mutex mu_;
  std::vector<std::shared_ptr<RemotePeer>> seen_;
  RemoteOffer watch_ = watch_peers();
};

TEST_F(HostileClientTest, RubbishIsClosed) {
  for (const std::string_view rubbish :
       {std::string_view("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string_view("\0\0\0\0\0\0\0\0\0\0", 10),
        std::string_view("ASR1\xff\xff\xff\xff too long"), std::string_view("ASR1\0\0\0\0", 8),
        std::string_view("ASR1\3\0\0\0abc", 11)}) {
    RawSocket socket(agent_->address());
    ASSERT_TRUE(socket.send(bytes_of(rubbish)));
    EXPECT_THAT(socket.receive_all(), IsEmpty());
  }
  EXPECT_THAT(agent_->peers(), IsEmpty());
}

// It would read memory for ever that is no longer offered.
TEST_F(HostileClientTest, APeerThatCannotBeToldOfAWithdrawalIsDisconnected) {
  storage::SystemAllocator memory;
  const std::vector<PlaneShape> shapes = {
      {layout::Layout::create(small_shape(6, 3, 2), layout::order::kBlockFirstNhd, layout::Regions::kPerLayer)
           .value(),
       {{4, 3}, {2, 2}, 1, 2}}};
  const auto set = BlockSet::allocate(shapes, memory).value();
  RemoteOffer offer = agent_->export_blockset(set, {}).value();
  RawPeer slow(agent_->address(), kSecret);
  ASSERT_FALSE(slow.refused);
  const auto peer = its_peer();
  const auto friendly = make_agent(fake_options("friendly"));
  const auto friend_of = friendly->connect(agent_->address()).value();
  ASSERT_THAT(friendly->exchange(friend_of).value(), SizeIs(1));
  const ByteVector much(peer->max_message_bytes());
  // Until the withdrawal finds no room: the system may still take some of what waits.
  while (peer->alive()) {
    while (peer->notify(99, much)) {
    }
    while (peer->notify(99, {})) {
    }
    offer = {};
    if (peer->alive()) offer = agent_->export_blockset(set, {}).value();
  }
  EXPECT_THAT(peer->failure()->message(), HasSubstr("cannot be told that block set"));
  offer = {};
  await([&] { return friendly->remote_blocksets().empty(); });
  EXPECT_TRUE(friend_of->alive());
}

TEST_F(HostileClientTest, EveryChangedBitOfTheHelloEndsInNoPeer) {
  RawPeer good(agent_->address(), kSecret);
  ASSERT_FALSE(good.refused);
  its_peer()->close(make_error(ErrorCode::kCancelled, "made room"));
  const AgentCard card = stranger_card();
  Handshake model(Handshake::Role::kDialer, card, kSecret, Handshake::draw_nonce().value());
  const ByteVector hello = model.take_output();
  for (std::size_t bit = 0; bit < hello.size() * 8; bit += 5) {
    Handshake mine(Handshake::Role::kDialer, card, kSecret, Handshake::draw_nonce().value());
    ByteVector changed = mine.take_output();
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    RawSocket socket(agent_->address());
    ASSERT_TRUE(socket.send(changed));
    ::ashlar::Result<void> fed;
    // A longer length makes it wait for more: close that from here.
    if (bit / 8 >= 4 && bit / 8 < 8) continue;
    while (fed && !mine.done()) {
      const ByteVector some = socket.receive();
      if (some.empty()) break;
      fed = mine.feed(some);
    }
    // The acceptor's proof is over what it heard, which is not what was said.
    EXPECT_FALSE(fed && mine.done()) << bit;
  }
  EXPECT_THAT(agent_->peers(), IsEmpty());
}

TEST_F(HostileClientTest, AWrongSecretIsRefused) {
  RawPeer wrong(agent_->address(), "another secret");
  ASSERT_TRUE(wrong.refused);
  EXPECT_THAT(wrong.refused->message(), HasSubstr("different secrets"));
  RawPeer none(agent_->address(), "");
  ASSERT_TRUE(none.refused);
  EXPECT_THAT(none.refused->message(), HasSubstr("the other none"));
  EXPECT_THAT(agent_->peers(), IsEmpty());
}

// A client that goes on without believing the agent's proof: with no proof, a wrong one, and the agent's own.
TEST_F(HostileClientTest, AForgedProofIsRefused) {
  for (int how = 0; how < 3; ++how) {
    const AgentCard card = stranger_card();
    Handshake hand(Handshake::Role::kDialer, card, kSecret, Handshake::draw_nonce().value());
    RawSocket socket(agent_->address());
    ASSERT_TRUE(socket.send(hand.take_output()));
    const ByteVector welcome = socket.receive();
    ASSERT_GT(welcome.size(), 40u);
    ByteVector proof = bytes_of(std::string_view("ASR1\x21\0\0\0\3", 9));
    if (how == 0) proof[4] = std::byte{1};
    if (how == 1) proof.resize(9 + 32);
    if (how == 2) proof.insert(proof.end(), welcome.end() - 32, welcome.end());
    ASSERT_TRUE(socket.send(proof));
    const std::string answer = text_of(socket.receive_all());
    if (how > 0) {
      EXPECT_THAT(answer, HasSubstr("different secrets"));
    }
  }
  EXPECT_THAT(agent_->peers(), IsEmpty());
}

TEST_F(HostileClientTest, AReplayedHandshakeIsRefused) {
  RawPeer good(agent_->address(), kSecret);
  ASSERT_FALSE(good.refused);
  its_peer()->close(make_error(ErrorCode::kCancelled, "made room"));
  RawSocket replay(agent_->address());
  ASSERT_TRUE(replay.send(good.said));
  EXPECT_THAT(text_of(replay.receive_all()), HasSubstr("different secrets"));
  EXPECT_THAT(agent_->peers(), IsEmpty());
}

TEST_F(HostileClientTest, AReplayedFrameClosesTheLink) {
  RawPeer peer(agent_->address(), kSecret);
  const auto link = its_peer();
  const ByteVector request = peer.sealed({FrameKind::kRequest, 30, 1, {}});
  ASSERT_TRUE(peer.socket().send(request));
  const std::optional<LinkFrame> answer = peer.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(text_of(answer->body), "counted");
  ASSERT_TRUE(peer.socket().send(request));
  const std::optional<LinkFrame> bye = peer.receive();
  ASSERT_TRUE(bye);
  EXPECT_EQ(bye->kind, FrameKind::kBye);
  EXPECT_THAT(LinkFrame::error_of(bye->body).message(), HasSubstr("frame 0 came where 1 is the next"));
  EXPECT_FALSE(peer.receive());
  EXPECT_FALSE(link->alive());
  EXPECT_EQ(link->failure()->code(), ErrorCode::kCorruption);
  await([&] { return link->path()->failure().has_value(); });
  EXPECT_EQ(handled_, 1);
}

TEST_F(HostileClientTest, FramesOutOfOrderOrOfAnotherConnectionCloseTheLink) {
  ByteVector other;
  {
    RawPeer first(agent_->address(), kSecret);
    other = first.sealed({FrameKind::kRequest, 30, 1, {}});
  }
  await([&] { return agent_->peers().empty(); });
  {
    RawPeer peer(agent_->address(), kSecret);
    ASSERT_TRUE(peer.socket().send(other));
    EXPECT_THAT(LinkFrame::error_of(peer.receive()->body).message(), HasSubstr("tag"));
  }
  await([&] { return agent_->peers().empty(); });
  RawPeer peer(agent_->address(), kSecret);
  const ByteVector first = peer.sealed({FrameKind::kRequest, 30, 1, {}});
  const ByteVector second = peer.sealed({FrameKind::kRequest, 30, 2, {}});
  ASSERT_TRUE(peer.socket().send(second));
  EXPECT_THAT(LinkFrame::error_of(peer.receive()->body).message(), HasSubstr("frame 1 came where 0"));
  EXPECT_EQ(handled_, 0);
}

TEST_F(HostileClientTest, AChangedBitClosesTheLink) {
  const std::size_t bits = (LinkFrame::kHeadBytes + 4 + LinkFrame::kTagBytes) * 8;
  for (std::size_t bit = 0; bit < bits; bit += 7) {
    RawPeer peer(agent_->address(), kSecret);
    const auto link = its_peer();
    ByteVector request = peer.sealed({FrameKind::kRequest, 30, 1, bytes_of("body")});
    request[bit / 8] ^= std::byte{1} << (bit % 8);
    // A changed length may make the frame longer; more bytes complete it.
    if (bit < 32) request.resize(request.size() + (std::size_t{17} << 20));
    peer.socket().send(request);
    await([&] { return !link->alive(); });
    EXPECT_EQ(link->failure()->code(), ErrorCode::kCorruption) << *link->failure();
  }
  EXPECT_EQ(handled_, 0);
}

TEST_F(HostileClientTest, AnOversizedLengthClosesTheLinkAtOnce) {
  for (const std::uint32_t length : {0u, 23u, 0x7fffffffu, 0xffffffffu}) {
    RawPeer peer(agent_->address(), kSecret);
    const auto link = its_peer();
    ByteVector head(4);
    for (std::size_t i = 0; i < 4; ++i) head[i] = static_cast<std::byte>(length >> (8 * i) & 0xFF);
    ASSERT_TRUE(peer.socket().send(head));
    await([&] { return !link->alive(); });
    EXPECT_THAT(link->failure()->message(), HasSubstr("a frame says"));
  }
}

TEST_F(HostileClientTest, ManyHalfOpenConnectionsDoNotKeepOthersOut) {
  make_brisk();
  std::vector<std::unique_ptr<RawSocket>> loris;
  const ByteVector one = bytes_of("A");
  for (int i = 0; i < 400; ++i) {
    loris.push_back(std::make_unique<RawSocket>(agent_->address()));
    if (i % 2 == 0) loris.back()->send(one);
  }
  expect_served();
  // All of them are dropped, those that go on sending a byte at a time too.
  for (std::size_t i = 0; i < loris.size(); ++i) {
    if (i % 40 == 0) {
      const ByteVector magic = bytes_of("SR1");
      for (std::size_t at = 0; loris[i]->send(std::span(magic).subspan(at % 3, at < 3 ? 1 : 0)); ++at) {
        if (at >= 3) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    EXPECT_THAT(loris[i]->receive_all(), IsEmpty());
  }
}

TEST_F(HostileClientTest, APeerThatSaysNothingIsDead) {
  make_brisk();
  RawPeer peer(agent_->address(), kSecret);
  const auto link = its_peer();
  std::atomic<int> closed = 0;
  link->on_closed([&](const Error&) { ++closed; });
  std::thread caller([&] {
    const auto answer = link->call(40, {});
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable);
  });
  caller.join();
  EXPECT_THAT(link->failure()->message(), HasSubstr("said nothing for 1000 ms"));
  await([&] { return closed == 1; });
  EXPECT_TRUE(link->path()->failure());
}

TEST_F(HostileClientTest, APeerThatOnlyPingsLives) {
  make_brisk();
  for (int tries = 0;; ++tries) {
    ASSERT_LT(tries, 30) << "it is never served for so long";
    RawPeer peer(agent_->address(), kSecret);
    if (peer.refused) continue;  // this machine was too busy to shake hands
    const Clock::TimePoint start = Clock::real().now();
    Clock::TimePoint before = start;
    Clock::Duration longest = {};
    // Three times as long as silence would take.
    while (before - start < 3 * kPatience && peer.socket().send(peer.sealed({FrameKind::kPing, 0, 0, {}}))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const Clock::TimePoint now = Clock::real().now();
      longest = std::max(longest, now - before);
      before = now;
    }
    // This machine was too busy to ping, or the agent to hear it: it shows nothing.
    if (longest > kPatience / 2 || before - start < 3 * kPatience) continue;
    ASSERT_TRUE(peer.socket().send(peer.sealed({FrameKind::kRequest, 30, 1, {}})));
    ASSERT_TRUE(peer.receive());
    break;
  }
}

TEST_F(HostileClientTest, APeerThatDoesNotReadIsDead) {
  make_brisk();
  const RemoteOffer loud =
      agent_
          ->serve(41,
                  [](const auto&, auto) -> Result<ByteVector> { return ByteVector(std::size_t{1} << 20); })
          .value();
  RawPeer peer(agent_->address(), kSecret);
  const auto link = its_peer();
  std::uint64_t id = 0;
  while (link->alive()) {
    if (!peer.socket().send(peer.sealed({id < 200 ? FrameKind::kRequest : FrameKind::kPing, 41, ++id, {}})))
      break;
    if (id >= 200) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  await([&] { return !link->alive(); });
  EXPECT_THAT(link->failure()->message(),
              ::testing::AnyOf(HasSubstr("read nothing"), HasSubstr("without reading")));
}

TEST_F(HostileClientTest, ATruncatedFrameEndsWithTheConnection) {
  std::shared_ptr<RemotePeer> link;
  {
    RawPeer peer(agent_->address(), kSecret);
    link = its_peer();
    const ByteVector request = peer.sealed({FrameKind::kRequest, 30, 1, bytes_of("cut")});
    ASSERT_TRUE(peer.socket().send(std::span(request).first(request.size() - 1)));
  }
  await([&] { return !link->alive(); });
  EXPECT_EQ(handled_, 0);
}

TEST_F(HostileClientTest, TooManyNotificationsCloseTheLink) {
  std::latch open(1);
  const RemoteOffer slow = agent_
                               ->serve(42,
                                       [&](const auto&, auto) -> Result<ByteVector> {
                                         open.wait();
                                         return ByteVector();
                                       })
                               .value();
  RawPeer peer(agent_->address(), kSecret);
  const auto link = its_peer();
  for (int i = 0; i < 4200; ++i) {
    if (!peer.socket().send(peer.sealed({FrameKind::kNotify, 42, 0, {}}))) break;
  }
  await([&] { return !link->alive(); });
  EXPECT_EQ(link->failure()->code(), ErrorCode::kCapacity);
  open.count_down();
}

// Listeners that are not agents.
TEST_F(HostileClientTest, ADialerIsNotKeptByAStrangeListener) {
  const OwnedFd listener = SocketAddress::resolve("127.0.0.1:0").value().at(0).listen().value();
  const std::string address = SocketAddress::local_of(listener.get()).value().to_string();
  const auto accept = [&] {
    for (;;) {
      pollfd one = {listener.get(), POLLIN, 0};
      ::poll(&one, 1, -1);
      OwnedFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
      if (fd.valid()) return fd;
    }
  };
  // It says nothing.
  const auto silent =
      agent_->connect(address, {.deadline = Clock::real().now() + std::chrono::milliseconds(50)});
  EXPECT_EQ(silent.error().code(), ErrorCode::kUnavailable);
  const OwnedFd dropped = accept();
  // It says rubbish.
  std::thread rubbish([&] { EXPECT_TRUE(RawSocket(accept()).send(bytes_of("220 mail.example ESMTP"))); });
  EXPECT_EQ(agent_->connect(address).error().code(), ErrorCode::kInvalidArgument);
  rubbish.join();
  // It replays what another agent said to another dialer.
  RawPeer good(agent_->address(), kSecret);
  its_peer()->close(make_error(ErrorCode::kCancelled, "made room"));
  const auto other = make_agent(fake_options("other"));
  std::thread replayer([&] { EXPECT_TRUE(RawSocket(accept()).send(good.heard)); });
  const auto fooled = other->connect(address);
  replayer.join();
  ASSERT_FALSE(fooled);
  EXPECT_EQ(fooled.error().code(), ErrorCode::kInvalidArgument) << fooled.error();
  EXPECT_THAT(other->peers(), IsEmpty());
}

TEST_F(HostileClientTest, TheSecretIsNeverSaid) {
  std::mutex mu;
  std::string logged;
  const LogLevel before = log_level();
  set_log_level(LogLevel::kTrace);
  {
    const ScopedLogSink sink([&](LogLevel, std::string_view, std::string_view message) {
      const std::lock_guard lock(mu);
      logged += message;
    });
    RawPeer peer(agent_->address(), kSecret);
    ASSERT_TRUE(peer.socket().send(peer.sealed({FrameKind::kRequest, 30, 1, {}})));
    ASSERT_TRUE(peer.receive());
    ASSERT_TRUE(peer.socket().send(ByteVector(100)));
    ASSERT_TRUE(peer.receive());
    RawPeer wrong(agent_->address(), "wrong");
    EXPECT_THAT(wrong.refused->message(), Not(HasSubstr(std::string(kSecret))));
    EXPECT_THAT(text_of(peer.heard) + text_of(peer.said) + text_of(wrong.heard),
                Not(HasSubstr(std::string(kSecret))));
  }
  set_log_level(before);
  EXPECT_THAT(logged, Not(HasSubstr(std::string(kSecret))));
}

// RFC 4231, cases 1, 2, 3, 6 and 7.
TEST(MacKeyTest, HasTheValuesOfTheStandard) {
  const auto hex = [](const MacKey::Mac& mac) {
    std::string out;
    for (const std::byte one : mac) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(one));
      out += two;
    }
    return out;
  };
  const auto mac = [&](const ByteVector& key, std::string_view text) {
    return hex(MacKey(key).of({bytes_of(text.substr(0, 3)), bytes_of(text.substr(3))}));
  };
  EXPECT_EQ(mac(ByteVector(20, std::byte{0x0b}), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac(bytes_of("Jefe"), "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac(ByteVector(20, std::byte{0xaa}), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(mac(ByteVector(131, std::byte{0xaa}), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(mac(ByteVector(131, std::byte{0xaa}),
                "This is a test using a larger than block-size key and a larger than block-size data. The "
                "key needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
  EXPECT_TRUE(MacKey::equal(bytes_of("abc"), bytes_of("abc")));
  EXPECT_FALSE(MacKey::equal(bytes_of("abc"), bytes_of("abd")));
  EXPECT_FALSE(MacKey::equal(bytes_of("abc"), bytes_of("ab")));
}

}  // namespace
}  // namespace ashlar::transfer
