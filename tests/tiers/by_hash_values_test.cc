// KvBlockManager by hash: retention, metadata, and what it tells of a block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/gates.h"
#include "support/scripted_volume.h"
#include "support/until_seen.h"
#include "support/watched_executor.h"
#include "tiers/by_hash_fixture.h"
#include "tiers/tier_ids.h"
#include "tiers/volume/directory_volume.h"

namespace ashlar::tiers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tokens::SequenceHash;

TEST_F(ByHashTest, RetentionAndMetadataReachEveryTierAndSurviveARestart) {
  open();
  const auto hashes = sequence(1, 3);
  use(hashes);
  EXPECT_EQ(kv_->set_retention(std::span(hashes).first(2), {.priority = 90}).value(), 2u);
  EXPECT_EQ(kv_->set_metadata(std::span(hashes).subspan(1), 4711).value(), 2u);
  EXPECT_EQ(kv_->metadata(hashes[0]), 0u);
  EXPECT_EQ(kv_->metadata(hashes[1]), 4711u);
  const auto expect_values = [&](std::initializer_list<events::TierId> tiers) {
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const std::optional<KvBlockDescription> found = kv_->describe(hashes[i]);
      ASSERT_TRUE(found);
      EXPECT_EQ(found->retention.priority, i < 2 ? 90 : block::BlockRetention::kDefaultPriority) << i;
      EXPECT_EQ(found->identity.metadata, i < 1 ? 0u : 4711u) << i;
      for (const events::TierId tier : tiers) {
        ASSERT_TRUE(found->in(tier)) << i;
        const block::BlockDescription& here = found->in(tier)->block;
        EXPECT_EQ(here.retention.value_or(block::BlockRetention()).priority,
                  i < 2 ? 90 : block::BlockRetention::kDefaultPriority)
            << i << " in tier " << unsigned{tier.value()};
        EXPECT_EQ(here.identity->metadata, i < 1 ? 0u : 4711u) << i << " in tier " << unsigned{tier.value()};
      }
    }
  };
  expect_values({kG1, kG2, kG3, kG4});
  kv_.reset();
  open();
  expect_values({kG3});
  use(hashes);
  expect_values({kG1, kG2, kG3});

  const auto unknown = sequence(77, 1);
  EXPECT_EQ(kv_->set_metadata(unknown, 1).value(), 0u);
  EXPECT_EQ(kv_->set_retention(unknown, {}).value(), 0u);
  EXPECT_FALSE(kv_->metadata(unknown[0]));
  EXPECT_EQ(kv_->set_retention(hashes, {.priority = 101}).error().code(), ErrorCode::kInvalidArgument);
}

// The values of a copy are fixed when its header is written; others set them before it can be found.
TEST_F(ByHashTest, ValuesSetWhileACopyIsInFlightReachIt) {
  Gate gate;
  std::atomic<bool> armed{false};
  const auto faults = std::make_shared<ScriptedFaults>(
      [&](storage::IoDirection direction, std::uint64_t offset, std::uint64_t) {
        constexpr std::uint64_t kTable = 69632;  // docs/formats/g3_file.md
        if (armed && direction == storage::IoDirection::kWrite && offset >= kTable && offset < kTable + 4096)
          gate.pass();
        return storage::IoVerdict{};
      });
  KvOptions by_call = KvWorkload::options(folder_.file("g3"), faults);
  by_call.to_g3.trigger = Trigger::kOnCall;
  kv_ = KvBlockManager::create(by_call).value();
  const auto hashes = sequence(1, 1);
  use(hashes);
  armed = true;
  const OffloadHandle handle = kv_->offload_to(kG3, hashes).value();
  gate.wait_for_somebody();
  ASSERT_EQ(presence(hashes)[0], in({kG1, kG2}));
  EXPECT_EQ(kv_->set_metadata(hashes, 5).value(), 1u);
  EXPECT_EQ(kv_->set_retention(hashes, {.priority = 60}).value(), 1u);
  armed = false;
  gate.open();
  kv_->drain();
  const auto expect_values = [&] {
    const std::optional<KvBlockDescription> found = kv_->describe(hashes[0]);
    ASSERT_TRUE(found && found->in(kG3));
    EXPECT_EQ(found->in(kG3)->block.identity->metadata, 5u);
    EXPECT_EQ(found->in(kG3)->block.retention->priority, 60);
  };
  expect_values();
  kv_.reset();
  kv_ = KvBlockManager::create(by_call).value();
  expect_values();
}

// The queues below G2 take the priority that a block has there.
TEST_F(ByHashTest, APrioritySetWhileACopyIsInFlightReachesTheNextQueue) {
  Gate gate;
  std::atomic<int> offered{-1};
  KvOptions made = KvWorkload::options(folder_.file("g3"));
  made.executor = std::make_shared<transfer::WatchedExecutor>([&](const transfer::TransferPlan&) {
    gate.pass();
    return std::optional<Error>();
  });
  made.to_g3.worker.policy = [&](const OffloadCandidate& candidate) {
    offered = candidate.priority;
    return true;
  };
  kv_ = KvBlockManager::create(made).value();
  const auto hashes = sequence(1, 1);
  int wrong = 0;
  {
    const auto table = KvWorkload(*kv_).request(hashes, &wrong, {});
  }
  gate.wait_for_somebody();
  EXPECT_EQ(kv_->set_retention(hashes, {.priority = 77}).value(), 1u);
  gate.open();
  kv_->drain();
  EXPECT_EQ(offered, 77);
  EXPECT_EQ(presence(hashes)[0], in({kG1, kG2, kG3}));
}

// A volume tells the values of a block only when its object is read. Values that others set meanwhile, of
// other blocks or of this one, are not taken for them.
TEST_F(ByHashTest, ValuesOfAnObjectStayWhileOthersAreSet) {
  const auto hashes = sequence(1, 3);
  const auto other = sequence(2, 1);
  KvOptions of_volume = options();
  of_volume.g3.reset();
  kv_ = KvBlockManager::create(of_volume).value();
  use(hashes, {.retention = {.priority = 90}, .metadata = 7});
  kv_.reset();
  const auto script = std::make_shared<VolumeScript>();
  of_volume.g4->volumes[0].kind = "scripted";
  of_volume.g4->kinds.add("scripted", [script](const VolumeDescriptor& descriptor) {
    return DirectoryVolume::attach(descriptor).transform([&](std::unique_ptr<Volume>&& made) {
      return std::unique_ptr<Volume>(std::make_unique<ScriptedVolume>(std::move(made), script));
    });
  });
  kv_ = KvBlockManager::create(of_volume).value();
  use(other);
  ASSERT_EQ(kv_->find(hashes).size(), 1u);
  std::atomic<bool> is_set{false};
  script->on_call = [&](VolumeCall call) {
    if (call != VolumeCall::kGet || is_set.exchange(true)) return;
    EXPECT_EQ(kv_->set_metadata(other, 5).value(), 1u);
    EXPECT_EQ(kv_->set_metadata(std::span(hashes).first(1), 6).value(), 1u);
    EXPECT_EQ(kv_->set_retention(std::span(hashes).subspan(1, 1), {.priority = 60}).value(), 1u);
  };
  ASSERT_EQ(kv_->onboard(hashes).size(), 3u);
  EXPECT_TRUE(is_set);
  for (std::size_t i = 0; i < hashes.size(); ++i)
    for (const events::TierId tier : {kG1, kG2}) {
      const KvBlockDescription found = kv_->describe(hashes[i]).value();
      const block::BlockDescription& here = found.in(tier)->block;
      EXPECT_EQ(here.identity->metadata, i == 0 ? 6u : 7u) << i;
      EXPECT_EQ(here.retention.value_or(block::BlockRetention()).priority, i == 1 ? 60 : 90) << i;
    }
}

TEST_F(ByHashTest, AHashThatIsNamedTwiceIsSetOnce) {
  open();
  auto hashes = sequence(1, 1);
  use(hashes);
  hashes.push_back(hashes[0]);
  EXPECT_EQ(kv_->set_metadata(hashes, 3).value(), 2u);
  EXPECT_EQ(kv_->set_retention(hashes, {.priority = 60}).value(), 2u);
  kv_.reset();
  open();
  EXPECT_EQ(kv_->metadata(hashes[0]), 3u);
  EXPECT_EQ(kv_->describe(hashes[0])->retention.priority, 60);
}

TEST_F(ByHashTest, AnErrorOfTheDiskIsReportedAndTheValueKept) {
  std::atomic<int> error{0};
  const auto faults =
      std::make_shared<ScriptedFaults>([&](storage::IoDirection, std::uint64_t, std::uint64_t) {
        return storage::IoVerdict{.error = error.load()};
      });
  kv_ = KvBlockManager::create(KvWorkload::options(folder_.file("g3"), faults)).value();
  const auto hashes = sequence(1, 1);
  use(hashes);
  error = EIO;
  EXPECT_EQ(kv_->set_metadata(hashes, 5).error().code(), ErrorCode::kIo);
  error = 0;
  EXPECT_EQ(kv_->describe(hashes[0])->in(kG3)->block.identity->metadata, 5u);
  EXPECT_EQ(kv_->set_metadata(hashes, 6).value(), 1u);
  kv_.reset();
  kv_ = KvBlockManager::create(KvWorkload::options(folder_.file("g3"), faults)).value();
  EXPECT_EQ(kv_->metadata(hashes[0]), 6u);
}

// The object keeps what it was written with; what was set since is known here.
TEST_F(ByHashTest, ValuesOfABlockThatOnlyAVolumeHasComeUpWithIt) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes, {.retention = {.priority = 90}, .metadata = 4});
  for (const events::TierId tier : {kG1, kG2, kG3}) kv_->reset(tier).value();
  const block::BlockRetention retention{.until = clock_.now() + kHour};
  EXPECT_EQ(kv_->set_retention(std::span(hashes).first(1), retention).value(), 1u);
  EXPECT_EQ(kv_->set_metadata(std::span(hashes).first(1), 0).value(), 1u);
  const auto expect_values = [&](events::TierId tier) {
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const std::optional<KvBlockDescription> found = kv_->describe(hashes[i]);
      ASSERT_TRUE(found && found->in(tier)) << i;
      EXPECT_EQ(found->in(tier)->block.retention.value_or(block::BlockRetention()),
                i == 0 ? retention : block::BlockRetention{.priority = 90})
          << i;
      EXPECT_EQ(found->in(tier)->block.identity->metadata, i == 0 ? 0u : 4u) << i;
    }
  };
  expect_values(kG4);
  use(hashes);
  for (const events::TierId tier : {kG1, kG2, kG4}) expect_values(tier);
}

// A removed block whose value is set must not be found again by a restart.
TEST_F(ByHashTest, ASavedValueDoesNotBringARemovedBlockBack) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  {
    const auto used = kv_->g3()->match_blocks(hashes);
    ASSERT_EQ(used.size(), 2u);
    ASSERT_TRUE(kv_->reset_blocks(hashes));  // G3 forgets them with the last reference
    EXPECT_EQ(kv_->set_metadata(hashes, 9).value(), 2u);
  }
  kv_.reset();
  open();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2));
}

// ---- looking inside

TEST_F(ByHashTest, ADescriptionHasEverythingOfEveryTier) {
  open();
  const tokens::SequenceHasher hasher = kv_->hasher(tokens::Salt("lora", "tenant"));
  const auto text =
      tokens::TokenSequence::create(
          std::vector<tokens::Token>{tokens::Token(1), tokens::Token(2), tokens::Token(3), tokens::Token(4),
                                     tokens::Token(5), tokens::Token(6), tokens::Token(7), tokens::Token(8)},
          4, hasher)
          .value();
  const tokens::TokenBlock& second = text.blocks()[1];
  const SequenceHash hash = second.sequence_hash();
  EXPECT_FALSE(kv_->describe(hash));
  clock_.advance(std::chrono::seconds(5));
  const Clock::TimePoint registered = clock_.now();
  auto [written, signal] = block::Fence::create();
  {
    auto empty = kv_->get_mutable_blocks(2).value();
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    for (std::size_t i = 0; i < 2; ++i)
      complete.push_back(
          std::move(empty[i]).complete(text.blocks()[i], block::KvReady::asserted_by_caller()).value());
    const auto table =
        kv_->register_blocks(std::move(complete), {.retention = {.priority = 50},
                                                   .after = {written},
                                                   .salt = tokens::salt_fingerprint(hasher.salt())})
            .value();
    const std::optional<KvBlockDescription> found = kv_->describe(hash);
    ASSERT_TRUE(found);
    ASSERT_EQ(found->tiers.size(), 1u);
    EXPECT_TRUE(found->tiers[0].being_written);
    EXPECT_EQ(found->tiers[0].block.references, 2u) << "the table's, and that of the step that writes it";
    EXPECT_EQ(found->tiers[0].block.state, block::BlockState::kPrimary);
  }
  std::move(signal).signal();
  while (!presence({hash})[0].in(kG4)) kv_->drain();
  const block::Hold hold = kv_->g2()->hold(hash).value();
  const KvPin pin = kv_->pin(std::span(&hash, 1), kHour).value();
  const KvBlockDescription found = kv_->describe(hash).value();
  EXPECT_EQ(found.hash, hash);
  EXPECT_EQ(found.identity.parent, text.blocks()[0].sequence_hash());
  EXPECT_EQ(found.identity.root, text.blocks()[0].sequence_hash());
  EXPECT_EQ(found.identity.local, second.local_hash());
  EXPECT_EQ(found.identity.prefix, second.prefix_digest());
  EXPECT_EQ(found.identity.salt, tokens::salt_fingerprint(hasher.salt()));
  EXPECT_EQ(found.retention.priority, 50);
  EXPECT_EQ(found.pins, 1u);
  ASSERT_EQ(found.tiers.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const TierBlock& here = found.tiers[i];
    EXPECT_EQ(here.tier, events::TierId(static_cast<std::uint8_t>(i)));
    EXPECT_EQ(here.block.pins, 1u) << i;
    EXPECT_EQ(here.block.holds, i == 1 ? 1u : 0u) << i;
    EXPECT_EQ(here.block.references, 0u) << i;
    EXPECT_TRUE(here.block.is_inactive()) << i;
    EXPECT_EQ(here.block.identity->salt, tokens::salt_fingerprint(hasher.salt())) << i;
    EXPECT_EQ(here.since, registered) << i;
    EXPECT_FALSE(here.being_written);
    EXPECT_THAT(here.block.tiers, ElementsAre(kG1, kG2, kG3, kG4));
    EXPECT_GE(here.bytes, KvWorkload::model().block_bytes());
  }
  EXPECT_FALSE(found.tiers[0].checksum);
  EXPECT_TRUE(found.tiers[2].checksum);
  EXPECT_EQ(found.tiers[3].checksum, found.tiers[2].checksum);
  EXPECT_EQ(found.tiers[0].location, "");
  EXPECT_THAT(found.tiers[2].location, HasSubstr("/g3."));
  EXPECT_EQ(found.tiers[3].location, "v");
  EXPECT_EQ(kv_->registry().count(hash), 0u);
}

// ---- threads

// Requests, pins and values by several threads: bytes are right, and no pin outlives its guard.
TEST_F(ByHashTest, ThreadsPinSetAndMoveAtOnce) {
  open();
  constexpr std::uint64_t kSequences = 6;
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::atomic<std::uint64_t> pinned{0}, onboarded{0}, values{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t) + 1);
      while (!over) {
        const auto hashes = sequence(1 + random.below(kSequences), 1 + random.below(3));
        int bad = 0;
        if (KvWorkload(*kv_).request(hashes, &bad)) ++onboarded;
        wrong += bad;
      }
    });
  threads.emplace_back([&] {
    Random random(7);
    while (!over) {
      const auto hashes = sequence(1 + random.below(kSequences), 1);
      if (auto pin = kv_->pin(hashes, kHour)) pinned += pin->pinned();
    }
  });
  threads.emplace_back([&] {
    Random random(8);
    while (!over) {
      const auto hashes = sequence(1 + random.below(kSequences), 3);
      values += kv_->set_metadata(hashes, static_cast<std::uint32_t>(random.below(1000))).value();
      (void)kv_->describe(hashes[0]);
      (void)kv_->set_retention(hashes, {.priority = static_cast<std::uint8_t>(random.below(100))});
    }
  });
  const ashlar::testing::UntilSeen until(0.3);
  while (!until.over([&] { return pinned > 50 && onboarded > 200 && values > 50; }))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  over = true;
  for (std::thread& thread : threads) thread.join();
  kv_->drain();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(pinned, 50u);
  for (std::uint64_t number = 1; number <= kSequences; ++number)
    for (const SequenceHash& hash : sequence(number, 3)) {
      const std::optional<KvBlockDescription> found = kv_->describe(hash);
      if (!found) continue;
      EXPECT_EQ(found->pins, 0u);
      for (const TierBlock& here : found->tiers) EXPECT_EQ(here.block.pins, 0u);
    }
  kv_->check_invariants();
}

TEST_F(ByHashTest, ARetentionSetInG2OrdersWhatIsOnItsWayToG3) {
  Gate gate;
  KvOptions slow = KvWorkload::options(
      folder_.file("g3"), std::make_shared<ScriptedFaults>(
                              [&](storage::IoDirection direction, std::uint64_t offset, std::uint64_t) {
                                if (direction == storage::IoDirection::kWrite && offset != 0) gate.pass();
                                return storage::IoVerdict{};
                              }));
  slow.to_g3.trigger = Trigger::kOnCall;
  slow.to_g3.worker.batch_blocks = slow.to_g3.worker.full_batch = 1;
  slow.event_capacity = 256;
  kv_ = KvBlockManager::create(std::move(slow)).value();
  const std::vector<SequenceHash> hashes = sequence(1, 5);
  use(hashes);
  // Two batches may be under way and one block on deck; the other two wait.
  const OffloadHandle handle = kv_->offload_to(kG3, hashes).value();
  EXPECT_TRUE(kv_->g2()->set_retention(hashes[4], {.priority = 90}));
  gate.open();
  EXPECT_EQ(handle.wait().value().arrived, 5u);
  std::vector<SequenceHash> arrived;
  class Arrivals final : public events::EventSink {
   public:
    explicit Arrivals(std::vector<SequenceHash>& arrived) : arrived_(arrived) {}
    void on_events(std::span<const events::KvEvent> events) override {
      for (const events::KvEvent& event : events)
        if (event.tier == kG3 && event.kind == events::KvEventKind::kStored) arrived_.push_back(event.hash);
    }

   private:
    std::vector<SequenceHash>& arrived_;
  } sink(arrived);
  kv_->drain_events(sink);
  ASSERT_EQ(arrived.size(), 5u);
  EXPECT_LT(std::ranges::find(arrived, hashes[4]), std::ranges::find(arrived, hashes[3]));
  kv_.reset();
}

}  // namespace
}  // namespace ashlar::tiers
