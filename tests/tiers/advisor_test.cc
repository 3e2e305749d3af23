// A storage advisor that hears what a worker over four tiers does.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/storage_advisor.h"
#include "ashlar/feed/stream_receiver.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using feed::BlockHolding;
using feed::BlockRemoval;
using tokens::SequenceHash;

const events::Worker kAdvised{events::WorkerId(9), 1};

// Keeps a note beside every block, until the block is nowhere.
class Notes final : public feed::RemovalHook {
 public:
  Result<void> on_removed(const BlockRemoval& removal) override {
    heard.push_back(removal);
    if (removal.left.empty()) doubtful.insert(removal.holding.hash);
    if (refuses) return make_error(ErrorCode::kIo, "the disk of the notes is full");
    return {};
  }
  // Another tier may have it, and its event comes later: tiers are not ordered.
  void clean_up(const feed::StorageAdvisor& advisor) {
    for (const SequenceHash& hash : std::exchange(doubtful, {}))
      if (advisor.find(hash).empty()) kept.erase(hash);
  }
  std::set<SequenceHash> doubtful;
  std::set<SequenceHash> kept;
  std::vector<BlockRemoval> heard;
  bool refuses = false;
};

class TierAdvisorTest : public ::testing::Test {
 protected:
  struct Listening {
    explicit Listening(feed::EventBus& bus) : source(bus.subscribe()), receiver(*source, *advisor) {}
    std::unique_ptr<feed::StorageAdvisor> advisor = feed::StorageAdvisor::create({}).value();
    std::unique_ptr<feed::FeedSource> source;
    feed::StreamReceiver receiver;
  };

  void SetUp() override {
    KvOptions options = KvWorkload::options_in(folder_.path());
    options.event_capacity = 1024;
    options.g4->probe = false;  // a look at a volume would find again what G4 has forgotten
    kv_ = KvBlockManager::create(std::move(options)).value();
    ASSERT_TRUE(events_->add_sink(bus_.sink()));
    bus_.serve_snapshots(events_.get());
    ASSERT_TRUE(kv_->attach_events(*events_));
  }
  void TearDown() override {
    kv_->detach_events();
    bus_.serve_snapshots(nullptr);
  }
  // Computes four blocks. Returns their names.
  std::vector<SequenceHash> run(std::uint32_t first) {
    std::vector<tokens::Token> prompt;
    for (std::uint32_t i = 0; i < 17; ++i) prompt.emplace_back(first + i);
    KvWorkload work(*kv_);
    auto request = block::RequestSequence<events::G1>::create(kv_->g1(), prompt, {.metadata = first}).value();
    const std::size_t cached = request.match_prefix().value();
    EXPECT_TRUE(request.schedule_prefill(request.tokens_to_compute()));
    const std::vector<SequenceHash> names(request.sequence_hashes().begin(), request.sequence_hashes().end());
    for (std::size_t i = cached / 4; i < names.size(); ++i) work.compute(request.block_table()[i], names[i]);
    EXPECT_TRUE(request.apply_prefill(tokens::Token(1)));
    request.release();
    kv_->drain();
    return names;
  }
  void hear(Listening& listening) {
    ASSERT_TRUE(events_->flush(Clock::real().now() + std::chrono::seconds(60)));
    while (listening.receiver.poll({}).value() != 0) continue;
    listening.advisor->check_invariants();
  }
  static std::vector<events::TierId> tiers_of(const std::vector<BlockHolding>& holdings) {
    std::vector<events::TierId> out;
    for (const BlockHolding& holding : holdings) out.push_back(holding.tier);
    return out;
  }
  // What find() of the manager's tiers says.
  std::vector<events::TierId> held(const SequenceHash& hash) {
    std::vector<events::TierId> out;
    for (const TierRun& run : kv_->find(std::vector{hash})) out.push_back(run.tier);
    return out;
  }

  ScratchFolder folder_;
  feed::EventBus bus_;
  std::unique_ptr<KvBlockManager> kv_;
  std::unique_ptr<events::EventManager> events_ =
      events::EventManager::create({.stream = {kAdvised, 1}}).value();
};

TEST_F(TierAdvisorTest, ItAnswersWhereABlockIsAndWhatAPrefixHas) {
  Listening listening(bus_);
  const std::vector<SequenceHash> others = run(500);
  const std::vector<SequenceHash> names = run(100);
  hear(listening);
  const feed::StorageAdvisor& advisor = *listening.advisor;
  const std::vector<BlockHolding> found = advisor.find(names[2]);
  ASSERT_EQ(tiers_of(found), (std::vector{kG1, kG2, kG3, kG4}));
  for (const BlockHolding& holding : found) {
    EXPECT_EQ(holding.hash, names[2]);
    EXPECT_EQ(holding.parent, names[1]);
    EXPECT_EQ(holding.group, names[0]);
    EXPECT_EQ(holding.worker, kAdvised);
    EXPECT_EQ(holding.metadata, 100u);
    EXPECT_GT(holding.bytes, 0u);
  }
  EXPECT_EQ(found[0].place, "g1");
  EXPECT_EQ(found[3].place, "v");

  const std::vector<BlockHolding> group = advisor.group(names[3]);
  ASSERT_EQ(group.size(), 16u);
  EXPECT_EQ(group, advisor.group(names[0]));
  for (std::size_t i = 0; i < group.size(); ++i) EXPECT_EQ(group[i].hash, names[i / 4]);
  for (const BlockHolding& holding : advisor.group(others[1])) EXPECT_EQ(holding.group, others[0]);
  EXPECT_GE(advisor.group(others[0]).size(), 12u) << "G1 has no room for both";
  EXPECT_TRUE(advisor.find(SequenceHash::root(1)).empty());
  EXPECT_TRUE(advisor.group(SequenceHash::root(1)).empty());

  kv_->reset(kG1).value();
  kv_->reset(kG3).value();
  hear(listening);
  EXPECT_EQ(tiers_of(advisor.find(names[2])), (std::vector{kG2, kG4}));
  Listening late(bus_);
  hear(late);
  EXPECT_EQ(late.advisor->group(names[0]), advisor.group(names[0]));
}

TEST_F(TierAdvisorTest, RemovalsReachTheHookWithWhatIsLeft) {
  Listening listening(bus_);
  Notes notes;
  listening.advisor->set_removal_hook(&notes);
  const std::vector<SequenceHash> names = run(100);
  for (const SequenceHash& name : names) notes.kept.insert(name);
  hear(listening);
  EXPECT_TRUE(notes.heard.empty());

  kv_->reset(kG1).value();
  hear(listening);
  ASSERT_EQ(notes.heard.size(), 4u);
  std::ranges::sort(notes.heard, {}, [](const BlockRemoval& one) { return one.holding.hash; });
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(notes.heard[i].holding.hash, names[i]);
    EXPECT_EQ(notes.heard[i].holding.tier, kG1);
    EXPECT_EQ(tiers_of(notes.heard[i].left), (std::vector{kG2, kG3, kG4}));
  }
  notes.clean_up(*listening.advisor);
  EXPECT_EQ(notes.kept.size(), 4u);

  // Gone everywhere: the note goes too, and no other.
  notes.heard.clear();
  notes.refuses = true;
  ASSERT_TRUE(kv_->reset_blocks(std::vector{names[3]}));
  hear(listening);
  EXPECT_EQ(notes.heard.size(), 3u);
  EXPECT_TRUE(notes.heard.back().left.empty());
  notes.clean_up(*listening.advisor);
  EXPECT_EQ(notes.kept, (std::set<SequenceHash>{names[0], names[1], names[2]}));
  EXPECT_EQ(listening.advisor->counters().hook_failures, 3u);
  EXPECT_NE(listening.advisor->last_hook_error().find("the disk of the notes is full"), std::string::npos);
  listening.advisor->set_removal_hook(nullptr);
  kv_->reset(kG4).value();
  hear(listening);
  EXPECT_EQ(notes.heard.size(), 3u);
}

// Evictions from every tier, and the notes are those of the blocks that some tier has.
TEST_F(TierAdvisorTest, NotesFollowTheBlocksThroughEvictions) {
  Listening listening(bus_);
  Notes notes;
  listening.advisor->set_removal_hook(&notes);
  std::map<SequenceHash, std::uint32_t> stored;
  std::set<events::TierId> tiers;
  for (std::uint32_t round = 0; round < 40 || tiers.size() < 4; ++round) {
    ASSERT_LT(round, 400u) << "no evictions from some tier";
    for (const SequenceHash& name : run(1000 * round)) {
      stored.emplace(name, round);
      notes.kept.insert(name);
    }
    hear(listening);
    for (const BlockRemoval& removal : notes.heard) tiers.insert(removal.holding.tier);
    notes.heard.clear();
    notes.clean_up(*listening.advisor);
    for (const auto& [name, in] : stored) {
      const std::vector<events::TierId> fastest = held(name);
      const std::vector<BlockHolding> known = listening.advisor->find(name);
      ASSERT_EQ(fastest.empty(), known.empty());
      ASSERT_EQ(notes.kept.contains(name), !known.empty());
      if (known.empty()) continue;
      ASSERT_EQ(known.front().tier, fastest.front());
      ASSERT_EQ(known.front().metadata, 1000 * in);
    }
  }
}

}  // namespace
}  // namespace ashlar::tiers
