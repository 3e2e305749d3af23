// G4: volumes that come and go, what is found on them, and all of it at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "support/until_seen.h"
#include "tiers/volume/volume_fixture.h"

namespace ashlar::tiers {
namespace {

using events::KvEventKind;
using ::testing::ElementsAreArray;
using VolumeAttachTest = VolumePoolFixture;

TEST_F(VolumeAttachTest, AVolumeNeedsANameOfItsOwn) {
  EXPECT_EQ(attach("").error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(attach("a"));
  EXPECT_EQ(attach("a").error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(g4_->detach("b").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(g4_->detach("a").value(), 0u);
  EXPECT_EQ(g4_->detach("a").error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(attach("a"));
  EXPECT_EQ(g4_->volumes().size(), 1u);
}

TEST_F(VolumeAttachTest, BlocksAreSpreadOverTheVolumes) {
  for (const char* const volume : {"a", "b", "c"}) ASSERT_TRUE(attach(volume));
  EXPECT_EQ(std::ranges::count(put(range(0, 90)), Moved::kArrived), 90);
  std::size_t sum = 0;
  for (const VolumeStatus& one : g4_->volumes()) {
    EXPECT_GT(one.block_count, 10u) << one.name;
    EXPECT_EQ(one.put, one.block_count);
    EXPECT_EQ(one.failed, 0u);
    sum += one.block_count;
  }
  EXPECT_EQ(sum, 90u);
  for (std::uint64_t i = 0; i < 90; ++i) {
    const auto there = !file_of("a", i).empty() + !file_of("b", i).empty() + !file_of("c", i).empty();
    EXPECT_EQ(there, 1) << "on one volume";
  }
  for (std::uint64_t first = 0; first < 90; first += 15) {
    EXPECT_EQ(get(range(first, first + 15)).count(Moved::kArrived), 15u);
    for (std::uint64_t i = first; i < first + 15; ++i) EXPECT_TRUE(right(i));
  }
  expect_counts_exact();
}

TEST_F(VolumeAttachTest, WhereABlockGoesDependsOnTheNamesOfTheVolumesOnly) {
  for (const char* const volume : {"a", "b", "c"}) ASSERT_TRUE(attach(volume));
  put(range(0, 30));
  open({});
  for (const char* const volume : {"c", "a"}) ASSERT_TRUE(attach(volume));
  put(range(0, 30));
  for (std::uint64_t i = 0; i < 30; ++i) {
    const auto there = !file_of("a", i).empty() + !file_of("c", i).empty();
    EXPECT_EQ(there, 1) << "those of a and c are where they were";
  }
}

TEST_F(VolumeAttachTest, AVolumeThatIsOnlyReadGetsNothingAndLosesNothing) {
  ASSERT_TRUE(attach("a"));
  put(range(0, 4));
  open({.blocks = 4, .remove_evicted = true});
  ASSERT_TRUE(attach("a", {.write = false}));
  EXPECT_FALSE(status("a").write);
  std::optional<Error> error;
  EXPECT_EQ(put({9}, &error), std::vector{Moved::kFailed});
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable);
  ASSERT_EQ(g4_->probe(names(range(0, 4))), 4u);
  EXPECT_EQ(get(range(0, 4)).count(Moved::kArrived), 4u);
  EXPECT_EQ(g4_->remove_all(names({0})).error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(g4_->has(name(0)));
  script("a").flips = true;
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kDamaged});
  EXPECT_FALSE(g4_->has(name(1)));
  script("a").flips = false;
  ASSERT_TRUE(attach("b"));
  for (std::uint64_t i = 10; i < 20; ++i) EXPECT_EQ(put({i}), std::vector{Moved::kArrived});  // evicts
  EXPECT_EQ(script("a").removed, 0u);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_FALSE(file_of("a", i).empty()) << i;
  EXPECT_EQ(status("a").block_count, 0u);
  EXPECT_EQ(status("b").block_count, 4u);
  expect_counts_exact();
}

TEST_F(VolumeAttachTest, DetachingForgetsAndLeavesTheObjects) {
  for (const char* const volume : {"a", "b"}) ASSERT_TRUE(attach(volume));
  put(range(0, 30));
  ashlar::testing::EventRecorder events;
  ashlar::testing::PresenceMirror mirror;
  events.drain(*log_);
  mirror.on_events(events.events());
  std::set<SequenceHash> on_a;
  for (std::uint64_t i = 0; i < 30; ++i)
    if (!file_of("a", i).empty()) on_a.insert(name(i));
  ASSERT_GT(on_a.size(), 0u);
  EXPECT_EQ(g4_->detach("a").value(), on_a.size());
  std::set<SequenceHash> removed;
  const auto fresh = events.drain(*log_);
  mirror.on_events(fresh);
  EXPECT_EQ(mirror.problem(), "");
  for (const events::KvEvent& event : fresh) {
    EXPECT_EQ(event.kind, KvEventKind::kRemoved);
    EXPECT_EQ(event.tier, events::kTierId<G4>);
    EXPECT_TRUE(removed.insert(event.hash).second);
  }
  EXPECT_EQ(removed, on_a);
  for (std::uint64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(g4_->has(name(i)), !on_a.contains(name(i)));
    EXPECT_EQ(get({i}).blocks[0], on_a.contains(name(i)) ? Moved::kGone : Moved::kArrived);
    EXPECT_EQ(right(i), !on_a.contains(name(i)));
  }
  EXPECT_EQ(g4_->volumes().size(), 1u);
  expect_counts_exact();
  ASSERT_TRUE(attach("a"));
  EXPECT_EQ(status("a").block_count, 0u);
  EXPECT_EQ(g4_->probe(names(range(0, 30))), 30u) << "its objects were there all the time";
  EXPECT_EQ(status("a").block_count, on_a.size());
  for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(get({i}).count(Moved::kArrived), 1u);
  expect_counts_exact();
}

TEST_F(VolumeAttachTest, DetachingLeavesTheOrderOfTheOthers) {
  for (const char* const volume : {"a", "b"}) ASSERT_TRUE(attach(volume));
  put({5, 3, 17, 8, 1, 12, 29, 2, 14, 6, 21, 11});
  std::vector<SequenceHash> order = g4_manager_->eviction_candidates(50);
  std::erase_if(order, [&](const SequenceHash& hash) {
    for (std::uint64_t i = 0; i < 30; ++i)
      if (name(i) == hash) return !file_of("a", i).empty();
    return true;
  });
  ASSERT_GT(order.size(), 2u);
  ASSERT_GT(g4_->detach("a").value(), 0u);
  EXPECT_THAT(g4_manager_->eviction_candidates(50), ElementsAreArray(order));
}

TEST_F(VolumeAttachTest, DetachingWaitsForAPutThatRuns) {
  ASSERT_TRUE(attach("a"));
  ASSERT_TRUE(attach("b"));
  put(range(10, 30));
  const std::size_t others = status("b").block_count;
  std::uint64_t on_a = 10;
  while (file_of("a", on_a).empty()) ++on_a;
  std::uint64_t goes_to_a = 40;
  while (put({goes_to_a}), file_of("a", goes_to_a).empty()) ++goes_to_a;
  ASSERT_TRUE(g4_->remove(name(goes_to_a)));
  const auto gate = std::make_shared<Gate>();
  script("a").put_gate = gate;
  std::thread putter([&] { EXPECT_EQ(put({goes_to_a}), std::vector{Moved::kArrived}); });
  gate->wait_for_somebody();
  std::atomic<bool> detached{false};
  std::thread detacher([&] {
    EXPECT_GT(g4_->detach("a").value(), 0u);
    detached = true;
  });
  // It is leaving: nobody reads it any more, and its name is not free yet.
  while (get({on_a}).blocks[0] != Moved::kGone) std::this_thread::yield();
  EXPECT_EQ(g4_->detach("a").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(attach("a").error().code(), ErrorCode::kAlreadyExists);
  EXPECT_FALSE(detached);
  gate->open();
  putter.join();
  detacher.join();
  EXPECT_FALSE(g4_->has(name(goes_to_a))) << "forgotten with the rest";
  EXPECT_FALSE(file_of("a", goes_to_a).empty());
  EXPECT_GE(status("b").block_count, others);
  EXPECT_EQ(g4_->volumes().size(), 1u);
  expect_counts_exact();
  EXPECT_TRUE(attach("a"));
  EXPECT_EQ(g4_->probe(names({goes_to_a})), 1u);
}

// ---- probing

TEST_F(VolumeAttachTest, ProbingStopsAtTheFirstThatIsNotThere) {
  ASSERT_TRUE(attach("a"));
  put({0, 1, 2, 4, 5});
  open({});
  ASSERT_TRUE(attach("a"));
  EXPECT_EQ(g4_->probe({}), 0u);
  EXPECT_EQ(g4_->probe(names(range(50, 180))), 0u);
  EXPECT_EQ(script("a").asked, 64u) << "it does not ask for all at once";
  EXPECT_EQ(g4_->probe(names({3, 4})), 0u);
  EXPECT_FALSE(g4_->has(name(4)));
  EXPECT_EQ(g4_->probe(names(range(0, 6))), 3u);
  EXPECT_FALSE(g4_->has(name(4)));
  EXPECT_EQ(g4_->probe(names({4})), 1u);
  EXPECT_EQ(g4_->probe(names({0, 4, 5, 2, 3})), 4u) << "what is known between is counted";
  EXPECT_EQ(status("a").block_count, 5u);
  expect_counts_exact();
}

TEST_F(VolumeAttachTest, ProbingGoesFurtherThanOneQuestion) {
  for (const char* const volume : {"a", "b", "c"}) ASSERT_TRUE(attach(volume));
  put(range(0, 150));
  for (const std::uint64_t end : {63, 64, 65, 128, 129, 150}) {
    open({});
    for (const char* const volume : {"a", "b", "c"}) ASSERT_TRUE(attach(volume));
    EXPECT_EQ(g4_->probe(names(range(0, end))), end);
    EXPECT_EQ(g4_->probe(names(range(0, 160))), 150u);
    EXPECT_EQ(status("a").block_count + status("b").block_count + status("c").block_count, 150u);
    expect_counts_exact();
  }
  for (std::uint64_t first = 0; first < 150; first += 15) {
    EXPECT_EQ(get(range(first, first + 15)).count(Moved::kArrived), 15u);
    for (std::uint64_t i = first; i < first + 15; ++i) EXPECT_TRUE(right(i));
  }
  script("a").asked = 0;
  EXPECT_EQ(g4_->probe(names(range(0, 150))), 150u);
  EXPECT_EQ(script("a").asked, 0u) << "nobody is asked for what is known";
}

TEST_F(VolumeAttachTest, ProbingRemembersAsManyAsThereIsRoomFor) {
  ASSERT_TRUE(attach("a"));
  put(range(0, 30));
  open({.blocks = 10});
  ASSERT_TRUE(attach("a"));
  EXPECT_EQ(g4_->probe(names(range(20, 23))), 3u);
  EXPECT_EQ(g4_->probe(names(range(0, 30))), 10u) << "the first ones";
  for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(g4_->has(name(i)), i < 10) << i;
  // What is known already is not pushed out by what comes behind it.
  open({.blocks = 10});
  ASSERT_TRUE(attach("a"));
  EXPECT_EQ(g4_->probe(names(range(0, 6))), 6u);
  EXPECT_EQ(g4_->probe(names(range(0, 30))), 10u);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(g4_->has(name(i))) << i;
  const auto taken = g4_manager_->allocate_blocks(8).value();
  EXPECT_LE(g4_->probe(names(range(0, 30))), 10u) << "no room is no failure";
}

TEST_F(VolumeAttachTest, AVolumeThatCannotBeReachedDoesNotHideTheOthers) {
  for (const char* const volume : {"a", "b"}) ASSERT_TRUE(attach(volume));
  put(range(0, 20));
  open({});
  for (const char* const volume : {"a", "b"}) ASSERT_TRUE(attach(volume));
  script("a").fail_all(ErrorCode::kUnavailable);
  std::size_t on_b = 0;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const bool there = !file_of("b", i).empty();
    on_b += there;
    EXPECT_EQ(g4_->probe(names({i})), there ? 1u : 0u);
  }
  EXPECT_EQ(status("a").failed, 20u);
  EXPECT_EQ(status("b").block_count, on_b);
  script("a").verdict = {};
  EXPECT_EQ(g4_->probe(names(range(0, 20))), 20u);
  expect_counts_exact();
}

// ---- at once

TEST_F(VolumeAttachTest, ManyThreadsPutGetProbeAttachAndDetach) {
  open({.host = {layout::order::kUniversalTp}, .blocks = 24, .remove_evicted = true});
  constexpr std::uint64_t kContents = 12;
  for (std::uint64_t i = 0; i < kContents; ++i) put_in_host(i);
  ASSERT_TRUE(attach("a"));
  ASSERT_TRUE(attach("b"));
  ASSERT_TRUE(attach("c", {.write = false}));
  const testing::UntilSeen box(1.0);
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> damaged{0};
  std::atomic<std::uint64_t> came{0};
  std::vector<std::thread> threads;
  const auto start = [&](std::uint64_t seed, auto step) {
    threads.emplace_back([&, seed, step] {
      Random random(seed);
      while (!box.over([&] { return came > 0; })) step(random);
    });
  };
  const auto some = [](Random& random) {
    Contents contents;
    for (std::uint64_t i = random.next() % kContents; i < kContents && contents.size() < 5; ++i)
      contents.push_back(i);
    return contents;
  };
  for (std::uint64_t t = 0; t < 2; ++t) {
    start(t, [&](Random& random) {
      std::vector<block::Hold> holds;
      for (const std::uint64_t i : some(random)) holds.push_back(host_->hold(name(i)).value());
      g4_->put(*host_, std::move(holds));
    });
    start(10 + t, [&](Random& random) {
      const Contents contents = some(random);
      const MoveReport report = g4_->get(names(contents), *target_);
      came += report.count(Moved::kArrived);
      damaged += report.count(Moved::kDamaged);
      for (const std::uint64_t i : contents)
        if (const auto hold = target_->hold(name(i)))
          each_byte(*target_->blocks(), hold->block_id().value(),
                    [&](const std::byte& byte, std::uint64_t at) { wrong += byte != byte_of(i, at); });
    });
  }
  start(20, [&](Random& random) {
    g4_->probe(names(some(random)));
    g4_->volumes();
  });
  start(30, [&](Random& random) {
    const char* const volume = random.next() % 2 == 0 ? "b" : "c";
    if (!g4_->detach(volume)) ++wrong;
    if (!attach(volume, {.write = volume[0] == 'b'})) ++wrong;
  });
  start(40, [&](Random& random) {
    target_manager_->reset_inactive_pool();
    if (random.next() % 4 == 0) (void)g4_->remove_all(names(some(random)));
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(damaged, 0u);
  EXPECT_GT(came, 0u);
  expect_counts_exact();
  put(range(0, kContents));
  const MoveReport all = get(range(0, kContents));
  EXPECT_EQ(all.count(Moved::kArrived) + all.count(Moved::kGone), kContents);
  for (std::uint64_t i = 0; i < kContents; ++i) EXPECT_EQ(right(i), all.blocks[i] == Moved::kArrived) << i;
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
