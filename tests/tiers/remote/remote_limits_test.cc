// What peers may take of an owner, each and all together: leases, leased bytes, reserved slots of the
// landing. Every reader is a node with an agent of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tiers/remote/remote_fixture.h"

namespace ashlar::tiers::remote {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class RemoteLimitsTest : public ::testing::Test {
 protected:
  using Views = std::vector<RemoteBlocks>;
  using Slots = std::vector<RemoteBlocksMutable>;

  static RemoteLimits limits() {
    const std::uint64_t block = kModel.options(node(), undivided()).model.block_bytes();
    return {.leases_per_peer = 3,
            .leases = 4,
            .leased_bytes_per_peer = 5 * block + 1,
            .leased_bytes = 7 * block,
            .reserved_blocks_per_peer = 5};
  }
  RemoteLimitsTest() : owner_(kModel, owner(), undivided()), one_(reader()), two_(reader()) {
    store(owner_, hashes_);
  }
  KvOptions owner() {
    KvOptions options = node();
    options.clock = &clock_;
    options.remote->limits = limits();
    options.remote->landing_blocks = 7;
    return options;
  }
  std::unique_ptr<FleetRank> reader() {
    auto made = std::make_unique<FleetRank>(rank_of(kModel, undivided()));
    EXPECT_TRUE(made->kv().remote()->connect(address(owner_)));
    return made;
  }
  transfer::AgentIdentity id() { return owner_.kv().remote()->agent().identity(); }
  RemoteStatus status() { return owner_.kv().remote()->status(); }
  // Asks for a lease on blocks; the views are kept while `held` has them. Returns how many were given.
  std::size_t lease(FleetRank& by, std::size_t first, std::size_t count, Views& held) {
    const Hashes some(hashes_.begin() + static_cast<std::ptrdiff_t>(first),
                      hashes_.begin() + static_cast<std::ptrdiff_t>(first + count));
    RemoteBlocks views = by.kv().remote()->get_remote_blocks(id(), some).value();
    std::size_t given = 0;
    for (const RemoteBlock& block : views.blocks()) {
      given += block.miss == Miss::kNone;
      EXPECT_TRUE(block.miss == Miss::kNone || block.miss == Miss::kRefused);
    }
    held.push_back(std::move(views));
    return given;
  }
  // Whether n slots were reserved; the refusal must say `text`.
  bool reserve(FleetRank& by, std::size_t n, Slots& held, const char* text = "") {
    auto made = by.kv().remote()->get_remote_blocks_mutable(id(), n);
    if (made) {
      held.push_back(*std::move(made));
      return true;
    }
    EXPECT_EQ(made.error().code(), ErrorCode::kCapacity) << made.error();
    EXPECT_THAT(made.error().message(), HasSubstr(text));
    return false;
  }
  void wait_for(std::uint64_t leases, std::uint64_t slots) {
    eventually([&] { return status().leases == leases && status().reserved_blocks == slots; });
  }

  ManualClock clock_;  // of the owner
  const Hashes hashes_ = KvWorkload::sequence(80, 12);
  FleetRank owner_;
  std::unique_ptr<FleetRank> one_;
  std::unique_ptr<FleetRank> two_;
  Views ones_;
  Views twos_;
};

TEST_F(RemoteLimitsTest, LeasesAreLimitedPerPeerAndInAll) {
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(lease(*one_, i, 1, ones_), 1u);
  EXPECT_EQ(lease(*one_, 3, 1, ones_), 0u) << "its own limit";
  EXPECT_EQ(lease(*two_, 0, 1, twos_), 1u) << "a block may be leased twice";
  EXPECT_EQ(lease(*two_, 1, 1, twos_), 0u) << "the limit of all";
  EXPECT_EQ(status().leases, 4u);
  EXPECT_EQ(status().refused, 2u);
  // What one gives back another may have.
  ones_.clear();
  wait_for(1, 0);
  EXPECT_EQ(lease(*two_, 1, 1, twos_), 1u);
  EXPECT_EQ(lease(*two_, 2, 1, twos_), 1u);
  EXPECT_EQ(lease(*two_, 3, 1, twos_), 0u);
  EXPECT_EQ(lease(*one_, 3, 1, ones_), 1u);
  EXPECT_EQ(status().leases, 4u);
}

TEST_F(RemoteLimitsTest, LeasedBytesAreLimitedPerPeerAndInAll) {
  const std::uint64_t block = limits().leased_bytes / 7;
  EXPECT_EQ(lease(*one_, 0, 6, ones_), 5u) << "as many as there is room for, the first ones";
  EXPECT_EQ(ones_[0].blocks()[5].miss, Miss::kRefused);
  EXPECT_EQ(lease(*one_, 6, 1, ones_), 0u);
  EXPECT_EQ(lease(*two_, 6, 4, twos_), 2u);
  EXPECT_EQ(status().leased_bytes, 7 * block);
  EXPECT_EQ(lease(*two_, 6, 1, twos_), 0u);
  // A read of blocks that have no room says so, and is a miss.
  EXPECT_EQ(two_->onboard(hashes_), 0u);
  EXPECT_GT(two_->misses(Miss::kRefused), 0u);
  // By time.
  clock_.advance(seconds(31));
  wait_for(0, 0);
  EXPECT_EQ(status().expired, 2u);
  EXPECT_EQ(lease(*two_, 0, 5, twos_), 5u);
  EXPECT_EQ(lease(*one_, 0, 5, ones_), 2u);
  // By death.
  two_.reset();
  eventually([&] { return status().leased_bytes == 2 * block; });
  EXPECT_EQ(lease(*one_, 2, 3, ones_), 3u);
  EXPECT_EQ(status().leased_bytes, 5 * block);
}

TEST_F(RemoteLimitsTest, ReservedBlocksAreLimitedPerPeerAndInAll) {
  Slots ones;
  Slots twos;
  EXPECT_FALSE(reserve(*one_, 6, ones, "one peer may have 5, of which this one has 0"));
  EXPECT_TRUE(reserve(*one_, 3, ones));
  EXPECT_FALSE(reserve(*one_, 3, ones, "one peer may have 5, of which this one has 3"));
  EXPECT_TRUE(reserve(*one_, 2, ones));
  EXPECT_FALSE(reserve(*two_, 3, twos, "the landing has 2 of 7 free"));
  EXPECT_TRUE(reserve(*two_, 2, twos));
  EXPECT_FALSE(reserve(*two_, 1, twos, "the landing has 0 of 7 free"));
  EXPECT_EQ(status().reserved_blocks, 7u);
  EXPECT_EQ(status().refused, 4u);
  // By release, time and death.
  ones.erase(ones.begin());
  wait_for(0, 4);
  EXPECT_TRUE(reserve(*two_, 3, twos));
  clock_.advance(seconds(31));
  wait_for(0, 0);
  EXPECT_EQ(status().reservations_expired, 3u);
  EXPECT_TRUE(reserve(*one_, 5, ones));
  EXPECT_TRUE(reserve(*two_, 2, twos));
  one_.reset();
  wait_for(0, 2);
  EXPECT_TRUE(reserve(*two_, 3, twos));
  // A commit makes room too, whatever becomes of its blocks.
  EXPECT_TRUE(std::move(twos.back()).commit({}));
  wait_for(0, 2);
}

// Layouts and alignments are each node's own.
TEST(RemoteLayoutsTest, NodesOfOtherLayoutsAndAlignmentsReadAndPush) {
  const std::vector<layout::AxisOrder> orders = {layout::order::kUniversalTp, layout::order::kBlockSecondNhd,
                                                 layout::order::kFullyContiguousHnd};
  const std::vector<std::uint32_t> alignments = {1, 64, 4096};
  const Hashes hashes = KvWorkload::sequence(81, 3);
  const Hashes others = KvWorkload::sequence(82, 3);
  const auto rank = [&](std::size_t which, std::uint32_t ranks) {
    ShardedModel model{.head_scales = true, .token_scales = ranks == 1};
    model.alignment = alignments[which];
    KvOptions options = node({}, 8);
    options.g1.order = orders[(which + 1) % orders.size()];
    options.g2->order = orders[which];
    return std::make_unique<FleetRank>(model, options, model.fleet(ranks)[0]);
  };
  for (std::size_t from = 0; from < orders.size(); ++from)
    for (std::size_t to = 0; to < orders.size(); ++to)
      for (const std::uint32_t ranks : {1u, 2u}) {
        if (from == to) continue;
        SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to) + ", " + std::to_string(ranks));
        const auto owner = rank(from, ranks);
        const auto reader = rank(to, ranks);
        store(*owner, hashes);
        const std::vector<std::byte> set = owner->kv().remote()->export_blockset().value();
        const auto imported = reader->kv().remote()->import_remote_blockset(set);
        ASSERT_TRUE(imported) << imported.error();
        EXPECT_EQ(reader->onboard(hashes), 3u);
        store(*reader, others);
        const auto pushed = reader->kv().remote()->push((*imported)->identity(), others);
        ASSERT_TRUE(pushed) << pushed.error();
        for (const Result<Pushed>& one : *pushed) EXPECT_TRUE(one) << one.error();
        EXPECT_EQ(owner->onboard(others), 3u);
      }
}

TEST(RemoteLayoutsTest, BlocksThatCannotBePutTogetherAreRefusedAtImport) {
  struct Case {
    ShardedModel owner;
    ShardedModel reader;
    std::uint32_t readers;  // ranks
    const char* why;
  };
  for (const Case& one : {Case{{}, {.block_size = 8}, 1, "tokens"},
                          {{}, {.dtype = layout::Dtype::kF32}, 1, "type"},
                          {{}, {.head_dim = 16}, 1, "head"},
                          {{}, {.head_scales = true}, 1, "planes"},
                          {{.opaque = true}, {.opaque = true}, 2, "opaque content cannot be cut"},
                          {{.opaque = true}, {}, 1, "opaque"}}) {
    SCOPED_TRACE(one.why);
    const auto make = [](const ShardedModel& model, std::uint32_t ranks) {
      KvOptions options = node({}, 8);
      options.block_size = model.block_size;
      return std::make_unique<FleetRank>(model, options, model.fleet(ranks)[0]);
    };
    const auto owner = make(one.owner, 1);
    const auto reader = make(one.reader, one.readers);
    const std::vector<std::byte> set = owner->kv().remote()->export_blockset().value();
    const auto imported = reader->kv().remote()->import_remote_blockset(set);
    ASSERT_FALSE(imported);
    EXPECT_EQ(imported.error().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(imported.error().message(), HasSubstr("do not fit those here"));
    EXPECT_THAT(imported.error().message(), HasSubstr(one.why));
    EXPECT_THAT(reader->kv().remote()->remote_blocksets(), ::testing::IsEmpty());
    const auto peers = reader->kv().remote()->status().peers;
    ASSERT_THAT(peers, ::testing::SizeIs(1));
    EXPECT_EQ(peers[0].refusal, imported.error().message());
    EXPECT_EQ(reader->kv().remote()->push(owner->kv().remote()->agent().identity(), {}).error().code(),
              ErrorCode::kNotFound);
  }
}

}  // namespace
}  // namespace ashlar::tiers::remote
