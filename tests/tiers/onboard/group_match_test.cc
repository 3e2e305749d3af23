// Requests with several cache groups or a window over blocks that only a volume knows of: begin_match() does
// not wait for the volume, and finds what match_prefix() finds.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/testing/interleaving.h"
#include "ashlar/testing/manual_clock.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "tiers/volume/directory_volume.h"
#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {
namespace {

using block::CacheGroup;
using block::RequestState;
using events::G1;
using tokens::SequenceHash;
using tokens::Token;
using GroupRequest = block::RequestSequence<G1>;

struct GroupShape {
  const char* name;
  std::vector<CacheGroup> groups;
};

// The end of a match that does not wait.
class Ended {
 public:
  std::function<void()> callback() {
    return [times = times_] {
      ++*times;
      times->notify_all();
    };
  }
  void wait() const { times_->wait(0); }
  int times() const { return *times_; }

 private:
  std::shared_ptr<std::atomic<int>> times_ = std::make_shared<std::atomic<int>>(0);
};

class GroupMatchTest : public ::testing::TestWithParam<GroupShape> {
 protected:
  static constexpr std::uint32_t kTokens = 21;
  static constexpr std::size_t kBlockSize = 4;

  GroupMatchTest() {
    open();
    GroupRequest first = request();
    EXPECT_TRUE(first.schedule_prefill(kTokens));
    KvWorkload work(*kv_);
    for (std::uint32_t g = 0; g < first.group_count(); ++g)
      for (std::size_t i = 0; i < kTokens / kBlockSize; ++i)
        work.compute(first.block_table(g)[i], name(first, i, g));
    EXPECT_TRUE(first.apply_prefill(Token(7)));
    first.release();
    EXPECT_TRUE(kv_->drain());
    EXPECT_EQ(kv_->g4()->status().inactive, GetParam().groups.size() * (kTokens / kBlockSize));
    open();
    GroupRequest waits = request();
    expected_ = waits.match_prefix().value();
    EXPECT_EQ(expected_, 20u);
    EXPECT_TRUE(right(waits));
    waits.release();
    open();
  }

  // A manager that knows nothing of what is on the volume.
  void open(std::uint32_t g4_blocks = 60) {
    kv_.reset();
    VolumeRegistry kinds = VolumeRegistry::with_builtin();
    kinds.add("scripted", [script = script_](const VolumeDescriptor& its) -> Result<std::unique_ptr<Volume>> {
      ASHLAR_TRY(std::unique_ptr<Volume> folder, DirectoryVolume::attach(its));
      return std::unique_ptr<Volume>(std::make_unique<ScriptedVolume>(std::move(folder), script));
    });
    KvOptions options =
        VolumeTier::options({{.name = "v", .kind = "scripted", .location = folder_.path()}}, kinds);
    options.g1.block_count = options.g2->block_count = 24;
    options.g4->block_count = g4_blocks;
    options.clock = &clock_;
    kv_ = KvBlockManager::create(std::move(options)).value();
  }
  GroupRequest request(block::PrefixBudget onboard = {}) {
    std::vector<Token> text;
    for (std::uint32_t i = 0; i < kTokens; ++i) text.emplace_back(i);
    return GroupRequest::create(kv_->g1(), std::move(text), {.groups = GetParam().groups, .onboard = onboard})
        .value();
  }
  static SequenceHash name(const GroupRequest& request, std::size_t i, std::uint32_t group) {
    return request.sequence_hashes()[i].in_group(group);
  }
  // Whether every block of the prefix has its bytes.
  bool right(const GroupRequest& request) {
    KvWorkload work(*kv_);
    for (std::uint32_t g = 0; g < request.group_count(); ++g)
      for (std::size_t i = 0; i < request.computed_tokens() / kBlockSize; ++i) {
        const block::BlockId id = request.block_table(g)[i];
        if (id != block::kNoBlock && !work.has_bytes(id, name(request, i, g))) return false;
      }
    return true;
  }
  // From now on look-ups stop at the gate; no limit of theirs interrupts them.
  Gate& close_gate() {
    gate_ = std::make_shared<Gate>();
    script_->on_call = [gate = gate_](VolumeCall call) {
      if (call == VolumeCall::kContains) gate->pass();
    };
    return *gate_;
  }
  // A match whose look-up stands at the gate.
  GroupRequest begin(Ended& ended, block::PrefixBudget onboard = {}) {
    GroupRequest waits = request(onboard);
    const block::MatchStart start = waits.begin_match(ended.callback()).value();
    EXPECT_EQ(start.cached, 0u);
    EXPECT_TRUE(start.pending);
    EXPECT_EQ(waits.state(), RequestState::kOnboarding);
    gate_->wait_for_somebody();
    EXPECT_FALSE(waits.match_ready());
    EXPECT_EQ(ended.times(), 0);
    return waits;
  }
  void expect_counts_exact() {
    kv_->drain();
    EXPECT_EQ(kv_->g1().available_blocks(), 24u);
    EXPECT_EQ(kv_->g2()->available_blocks(), 24u);
    kv_->check_invariants();
  }

  ScratchFolder folder_;
  ManualClock clock_;
  std::shared_ptr<VolumeScript> script_ = std::make_shared<VolumeScript>();
  std::shared_ptr<Gate> gate_;
  std::unique_ptr<KvBlockManager> kv_;
  std::size_t expected_ = 0;  // what a match that waits finds
};

TEST_P(GroupMatchTest, ReturnsBeforeTheVolumeAnswers) {
  for (const bool by_layer : {false, true}) {
    open();
    Gate& gate = close_gate();
    Ended ended;
    GroupRequest waits = begin(ended, {.by_layer = by_layer});
    gate.open();
    std::vector<block::BlockId> arrived;
    if (by_layer) arrived = waits.wait_layer(KvWorkload::model().num_layers - 1).value();
    ended.wait();
    EXPECT_TRUE(waits.match_ready());
    EXPECT_EQ(waits.finish_match().value(), expected_);
    if (by_layer) {
      // By position, and for each the groups that need it.
      std::vector<block::BlockId> needed;
      for (std::size_t i = 0; i < expected_ / kBlockSize; ++i)
        for (std::uint32_t g = 0; g < waits.group_count(); ++g)
          if (const block::BlockId id = waits.block_table(g)[i]; id != block::kNoBlock) needed.push_back(id);
      EXPECT_EQ(arrived, needed);
    }
    EXPECT_EQ(waits.state(), RequestState::kIdle);
    EXPECT_TRUE(right(waits));
    EXPECT_EQ(ended.times(), 1);
    waits.release();
    expect_counts_exact();
  }
}

TEST_P(GroupMatchTest, AVolumeThatFailsEndsTheMatchToo) {
  script_->verdict = [](VolumeCall call, std::string_view) {
    return call == VolumeCall::kContains ? std::optional(ErrorCode::kUnavailable) : std::nullopt;
  };
  Gate& gate = close_gate();
  Ended ended;
  GroupRequest waits = begin(ended);
  gate.open();
  ended.wait();
  EXPECT_EQ(waits.finish_match().value(), 0u);
  EXPECT_EQ(waits.tokens_to_compute(), kTokens);
  expect_counts_exact();
}

// The look-up is still at the gate when the callback comes.
TEST_P(GroupMatchTest, WhoLeavesMeanwhileDoesNotWait) {
  enum class Leaves { kReleased, kDestroyed, kPreempted };
  for (const Leaves how : {Leaves::kReleased, Leaves::kDestroyed, Leaves::kPreempted}) {
    open();
    Gate& gate = close_gate();
    Ended ended;
    std::optional<GroupRequest> leaves = begin(ended);
    if (how == Leaves::kReleased) leaves->release();
    if (how == Leaves::kDestroyed) leaves.reset();
    if (how == Leaves::kPreempted) {
      ASSERT_TRUE(leaves->preempt());
    }
    ended.wait();
    gate.open();
    if (how == Leaves::kPreempted) {
      Ended again;
      ASSERT_TRUE(leaves->begin_match(again.callback()).value().pending);
      again.wait();
      EXPECT_EQ(leaves->finish_match().value(), expected_);
      EXPECT_TRUE(right(*leaves));
    }
    EXPECT_EQ(ended.times(), 1);
    leaves.reset();
    expect_counts_exact();
  }
}

TEST_P(GroupMatchTest, TheManagerMayGoFirst) {
  Gate& gate = close_gate();
  Ended ended;
  std::optional<GroupRequest> waits = begin(ended);
  // More calls than threads: some never ran.
  Ended queued[4];
  std::vector<GroupRequest> others;
  for (Ended& one : queued) {
    others.push_back(request());
    EXPECT_TRUE(others.back().begin_match(one.callback()).value().pending);
  }
  kv_.reset();
  EXPECT_EQ(ended.times(), 1);
  for (const Ended& one : queued) EXPECT_EQ(one.times(), 1);
  EXPECT_TRUE(waits->match_ready());
  EXPECT_EQ(waits->finish_match().value(), 0u);
  waits.reset();
  others.clear();
  gate.open();
}

// Not once per group.
TEST_P(GroupMatchTest, TheTimeOfTheBudgetCountsFromTheCall) {
  using std::chrono::seconds;
  Gate& gate = close_gate();
  Ended ended;
  GroupRequest waits = begin(ended, {.time = seconds(5)});
  clock_.advance(seconds(5));
  ended.wait();
  EXPECT_EQ(waits.finish_match().value(), 0u);
  gate.open();
  waits.release();
  expect_counts_exact();
}

// A block that was found and is forgotten before it is brought is a miss: it is not found again, as a block
// of another group.
TEST_P(GroupMatchTest, WhatVanishesAfterTheLookUpIsAMiss) {
  for (const bool waits : {false, true}) {
    open();
    testing::Interleaving order;
    order.pause_at("onboarder.chosen");
    std::optional<std::size_t> found;
    GroupRequest late = request();
    std::jthread matches([&] {
      if (waits) {
        found = late.match_prefix().value();
      } else {
        Ended ended;
        EXPECT_TRUE(late.begin_match(ended.callback()).value().pending);
        ended.wait();
        found = late.finish_match().value();
      }
    });
    order.wait_until_paused("onboarder.chosen");
    ASSERT_GT(kv_->g4()->reset_inactive_pool(), 0u) << "the objects stay";
    order.resume("onboarder.chosen");
    matches.join();
    EXPECT_EQ(found, 0u);
    EXPECT_EQ(kv_->g4()->status().inactive, 0u) << "nothing was registered again";
    late.release();
    GroupRequest again = request();
    EXPECT_EQ(again.match_prefix().value(), expected_);
    for (std::uint32_t g = 0; g < again.group_count(); ++g)
      for (std::size_t i = 0; i < expected_ / kBlockSize; ++i) {
        const block::Hold hold = kv_->g4()->hold(name(again, i, g)).value();
        EXPECT_EQ(kv_->g4()->identity(hold).group, g);
      }
    again.release();
    expect_counts_exact();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GroupMatchTest,
    ::testing::Values(GroupShape{"TwoGroups", {CacheGroup::full_attention(), CacheGroup::full_attention()}},
                      GroupShape{"GroupAndWindow",
                                 {CacheGroup::full_attention(), CacheGroup::sliding_window(5)}},
                      GroupShape{"Window", {CacheGroup::sliding_window(9)}}),
    [](const auto& shape) { return shape.param.name; });

}  // namespace
}  // namespace ashlar::tiers
