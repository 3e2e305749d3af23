// Agents in processes of their own: what is left of one that is killed, hangs or starts again.
#include <csignal>

#include "ashlar/storage/allocator.h"
#include "support/block_images.h"
#include "support/child_process.h"
#include "support/rounds.h"
#include "support/server.h"
#include "transfer/remote/agent_fixture.h"

namespace ashlar::transfer {
namespace {

using ::ashlar::testing::await;
using ::ashlar::testing::bytes_of;
using ::ashlar::testing::ChildProcess;
using ::ashlar::testing::kEcho;
using ::ashlar::testing::make_agent;
using ::ashlar::testing::rounds;
using ::ashlar::testing::serve_echo;
using ::ashlar::testing::TestChannel;
using ::ashlar::testing::text_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint16_t kForever = 40;

// The end of a process closes its connections at once: silence is for those that hang.
AgentOptions process_options(std::string name, Clock::Duration silence = std::chrono::minutes(2)) {
  AgentOptions options;
  options.name = std::move(name);
  options.secret = "a secret of two processes";
  options.heartbeat = std::chrono::milliseconds(100);
  options.silence = silence;
  options.call_limit = std::chrono::minutes(2);
  return options;
}

std::shared_ptr<const BlockSet> numbered_set() {
  storage::SharedAllocator memory;
  auto set =
      BlockSet::allocate(
          layout::Layout::create(small_shape(6, 3, 2), layout::order::kFullyContiguousNhd).value(), memory)
          .value();
  BlockImage image(*set, 0);
  image.number(*set);
  image.store(*set);
  return set;
}

// Listens where it is told, says where that is and what its memory is, and lives until it is killed.
int play_agent(const TestChannel& channel, const std::vector<std::string>& words) {
  AgentOptions options = process_options("child");
  options.listen = words[0];
  options.id = 7;
  const auto agent = make_agent(options);
  const RemoteOffer echo = serve_echo(*agent);
  const RemoteOffer forever = agent
                                  ->serve(kForever,
                                          [](const auto&, auto) -> Result<std::vector<std::byte>> {
                                            for (;;) ::pause();
                                          })
                                  .value();
  const auto set = numbered_set();
  const RemoteOffer offer = agent->export_blockset(set, {}, 5).value();
  channel.send(bytes_of(agent->address()));
  channel.send(agent->exports().at(0));
  channel.send(set->describe(0, 5, {}).serialize());
  channel.receive();
  return 0;
}

struct Child {
  explicit Child(const std::string& listen)
      : process("agent", {listen}),
        address(text_of(process.channel().receive().value())),
        exported(process.channel().receive().value()),
        described(process.channel().receive().value()) {}

  ChildProcess process;
  std::string address;
  std::vector<std::byte> exported;
  std::vector<std::byte> described;
};

// The bytes of a set of the peer's, pulled.
void expect_numbered(RemoteAgent& agent, const RemoteBlockSet& theirs) {
  storage::SystemAllocator memory;
  const auto mine = BlockSet::allocate(theirs.blocks()->planes()[0].layout, memory).value();
  const std::vector<std::uint32_t> blocks = {0, 1, 2, 3, 4, 5};
  auto pull = plan(theirs.blocks(), blocks, mine, blocks);
  ASSERT_TRUE(pull) << pull.error();
  const auto done = agent.executor().submit({.plan = *std::move(pull)}).value().wait();
  ASSERT_TRUE(done) << done.error();
  EXPECT_TRUE(BlockImage::of(*mine) == BlockImage::of(*numbered_set()));
}

TEST(AgentProcessTest, AKilledPeerIsDeadAndItsSuccessorIsAnother) {
  const auto agent = make_agent(process_options("parent"));
  // One that nobody is given while the child is away.
  const std::string listen = "127.0.0.1:" + std::to_string(free_port());
  std::vector<std::byte> before;
  for (std::uint64_t round = 0; round < rounds(20); ++round) {
    Child child(listen);
    ASSERT_EQ(child.address, listen);
    if (!before.empty()) {
      const auto stale = agent->import_remote_blockset(before);
      ASSERT_FALSE(stale);
      EXPECT_EQ(stale.error().code(), ErrorCode::kUnavailable) << stale.error();
    }
    const auto peer = agent->connect(child.address).value();
    const auto sets = agent->exchange(peer).value();
    ASSERT_THAT(sets, SizeIs(1));
    expect_numbered(*agent, *sets[0]);
    std::atomic<int> closed = 0;
    peer->on_closed([&](const Error&) { ++closed; });
    std::thread caller([&] {
      const auto answer = peer->call(kForever, {});
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable) << answer.error();
    });
    std::thread busy([&] {
      while (peer->call(kEcho, bytes_of("x"))) continue;
    });
    child.process.kill();
    caller.join();
    busy.join();
    EXPECT_FALSE(peer->alive());
    EXPECT_THAT(agent->remote_blocksets(), IsEmpty());
    await([&] { return closed == 1 && peer->path()->failure(); });
    before = child.exported;
  }
}

TEST(AgentProcessTest, APeerThatHangsIsDead) {
  const auto agent = make_agent(process_options("parent", std::chrono::seconds(3)));
  Child child("127.0.0.1:0");
  const auto set = agent->import_remote_blockset(child.exported).value();
  expect_numbered(*agent, *set);
  child.process.signal(SIGSTOP);
  auto answer = set->peer()->call(kEcho, bytes_of("anyone?"));
  while (answer) answer = set->peer()->call(kEcho, bytes_of("anyone?"));  // it stops some time later
  EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(set->peer()->failure()->message(), HasSubstr("said nothing for 3000 ms"));
  EXPECT_THAT(agent->remote_blocksets(), IsEmpty());
  // When it goes on it has lost this link, and takes a new one.
  child.process.signal(SIGCONT);
  std::shared_ptr<RemotePeer> peer;
  std::vector<std::shared_ptr<const RemoteBlockSet>> sets;
  await([&] {
    peer = agent->connect(child.address).value_or(nullptr);
    if (peer == nullptr || !peer->call(kEcho, {})) return false;
    const auto exchanged = agent->exchange(peer);  // it may be dead again on a busy machine
    if (exchanged) sets = *exchanged;
    return exchanged.has_value();
  });
  EXPECT_NE(peer, set->peer());
  EXPECT_EQ(peer->identity(), set->peer()->identity());
  EXPECT_THAT(sets, SizeIs(1));
}

TEST(AgentProcessTest, ADescriptorOfAnotherProcessIsNotViewed) {
  Child child("127.0.0.1:0");
  const layout::LayoutDescriptor theirs = layout::LayoutDescriptor::deserialize(child.described).value();
  const auto view = BlockSet::view(std::span(&theirs, 1));
  ASSERT_FALSE(view);
  EXPECT_THAT(view.error().message(), HasSubstr("addresses of another process"));
}

}  // namespace
}  // namespace ashlar::transfer

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"agent", ashlar::transfer::play_agent}});
}
