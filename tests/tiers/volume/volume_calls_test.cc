// Calls of volumes that do not return: whoever waits leaves, the call keeps what it needs, and nobody waits
// at the end.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/testing/interleaving.h"
#include "support/gates.h"
#include "tiers/volume/file_volume.h"
#include "tiers/volume/silent_volume_scenario.h"
#include "tiers/volume/volume_fixture.h"

namespace ashlar::tiers {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Volumes whose calls wait at a gate, which no limit opens.
class VolumeCallsTest : public VolumePoolFixture {
 protected:
  // Calls of this kind wait from now on, and are counted.
  void hold(const std::string& volume, VolumeCall kind) {
    *held_ = kind;
    if (script(volume).on_call) return;
    script(volume).on_call = [held = held_, gate = gate_, calls = calls_](VolumeCall call) {
      if (call != *held) return;
      ++*calls;
      calls->notify_all();
      gate->pass();
    };
  }
  void wait_for_calls(std::size_t count) const {
    for (std::size_t now = *calls_; now < count; now = *calls_) calls_->wait(now);
  }
  // Lets all calls go, and waits until they have gone: nobody but them has the script then.
  void let_go(const std::string& volume) {
    const std::weak_ptr<VolumeScript> script = scripts_.at(volume);
    scripts_.erase(volume);
    gate_->open();
    while (!script.expired()) std::this_thread::yield();
  }
  std::vector<block::Hold> holds(const Contents& contents) {
    std::vector<block::Hold> out;
    for (const std::uint64_t content : contents) {
      put_in_host(content);
      out.push_back(host_->hold(name(content)).value());
    }
    return out;
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  const std::shared_ptr<std::atomic<VolumeCall>> held_ = std::make_shared<std::atomic<VolumeCall>>();
  const std::shared_ptr<std::atomic<std::size_t>> calls_ = std::make_shared<std::atomic<std::size_t>>(0);
};

TEST_F(VolumeCallsTest, AReadThatWasLeftTouchesNothingOfItsCaller) {
  ManualClock clock;
  open({.clock = &clock});
  ASSERT_TRUE(attach("a"));
  put(range(0, 4));
  hold("a", VolumeCall::kGet);
  const Clock::TimePoint deadline = clock.now() + seconds(1);
  std::thread later([&] {
    wait_for_calls(1);
    clock.advance(seconds(2));
  });
  const MoveReport report = get(range(0, 4), {.deadline = deadline});
  later.join();
  EXPECT_EQ(report.blocks, std::vector(4, Moved::kStopped));
  EXPECT_EQ(report.error->code(), ErrorCode::kTimeout);
  EXPECT_EQ(status("a").failed, 0u) << "the volume may be as good as ever";
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(g4_->has(name(i)));
  expect_counts_exact();
  // The memory that was to be read to goes, and the pool, and then the calls go on.
  g4_.reset();
  host_.reset();
  target_.reset();
  let_go("a");
}

TEST_F(VolumeCallsTest, ACancelEndsEveryCall) {
  ASSERT_TRUE(attach("a"));
  put({0});
  const std::vector<std::pair<VolumeCall, std::function<void(MoveControl&)>>> calls = {
      {VolumeCall::kPut,
       [&](MoveControl& control) {
         EXPECT_EQ(g4_->put(*host_, holds({1}), {.control = &control}).blocks, std::vector{Moved::kStopped});
       }},
      {VolumeCall::kGet,
       [&](MoveControl& control) {
         EXPECT_EQ(get({0}, {.control = &control}).blocks, std::vector{Moved::kStopped});
       }},
      {VolumeCall::kContains,
       [&](MoveControl& control) { EXPECT_EQ(g4_->probe(names({7}), {.stop = control.stop_token()}), 0u); }},
      {VolumeCall::kRemove, [&](MoveControl& control) {
         EXPECT_EQ(g4_->remove_all(names({0}), {.stop = control.stop_token()}).error().code(),
                   ErrorCode::kCancelled);
       }}};
  std::size_t before = 0;
  for (const auto& [kind, run] : calls) {
    hold("a", kind);
    MoveControl control;
    std::thread canceller([&] {
      wait_for_calls(before + 1);
      control.cancel();
    });
    run(control);
    canceller.join();
    before = *calls_;
    expect_counts_exact();
  }
  EXPECT_TRUE(g4_->has(name(0)));
  g4_.reset();
  let_go("a");
}

TEST_F(VolumeCallsTest, AVolumeThatHangsTakesAFewThreadsAndNoMore) {
  ManualClock clock;
  open({.call_limit = seconds(10), .clock = &clock});
  ASSERT_TRUE(attach("a"));
  hold("a", VolumeCall::kContains);
  for (std::size_t i = 0; i < 8; ++i) {
    std::thread later([&] {
      wait_for_calls(i + 1);
      clock.advance(seconds(10));
    });
    EXPECT_EQ(g4_->probe(names({1})), 0u) << "no deadline, but a limit";
    later.join();
  }
  EXPECT_EQ(status("a").failed, 8u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(g4_->probe(names({1})), 0u);
  EXPECT_EQ(*calls_, 8u) << "it is asked no more";
  EXPECT_EQ(status("a").failed, 28u);
  gate_->open();
  while (*calls_ == 8u) g4_->probe(names({1}));  // until calls that return have made room
  put({1});
  EXPECT_TRUE(g4_->has(name(1)));
}

TEST_F(VolumeCallsTest, AVolumeThatLetsDeadlinesPassRestsForAWhile) {
  ManualClock clock;
  open({.rest = seconds(5), .clock = &clock});
  ASSERT_TRUE(attach("a"));
  hold("a", VolumeCall::kContains);
  for (std::size_t i = 0; i < 3; ++i) {
    std::thread later([&] {
      wait_for_calls(i + 1);
      clock.advance(seconds(1));
    });
    EXPECT_EQ(g4_->probe(names({1}), {.deadline = clock.now() + seconds(1)}), 0u);
    later.join();
  }
  EXPECT_EQ(g4_->probe(names({1}), {.deadline = clock.now() + seconds(1)}), 0u);
  EXPECT_EQ(*calls_, 3u) << "it rests";
  gate_->open();
  clock.advance(seconds(5));
  g4_->probe(names({1}));
  EXPECT_EQ(*calls_, 4u);
}

TEST_F(VolumeCallsTest, DetachingLeavesCallsThatDoNotReturn) {
  ASSERT_TRUE(attach("a"));
  hold("a", VolumeCall::kPut);
  std::thread putter([&] {
    const MoveReport report = g4_->put(*host_, holds({1}));
    EXPECT_EQ(report.blocks, std::vector{Moved::kFailed});
    EXPECT_EQ(report.error->code(), ErrorCode::kUnavailable);
  });
  wait_for_calls(1);
  EXPECT_EQ(g4_->detach("a", Clock::real().now()).value(), 0u);
  putter.join();
  EXPECT_TRUE(g4_->volumes().empty());
  expect_counts_exact();
  let_go("a");
}

TEST_F(VolumeCallsTest, DetachingAVolumeDoesNotWaitForAnother) {
  ASSERT_TRUE(attach("a"));
  ASSERT_TRUE(attach("b"));
  const std::vector<std::pair<VolumeCall, std::function<void()>>> calls = {
      {VolumeCall::kContains, [&] { EXPECT_EQ(g4_->probe(names({1})), 0u); }},
      {VolumeCall::kRemove, [&] {
         EXPECT_EQ(code_of(g4_->remove_all(names({1}))), ErrorCode::kUnavailable)
             << "one was detached meanwhile";
       }}};
  for (const auto& [kind, run] : calls) {
    hold("a", kind);
    const std::size_t before = *calls_;
    std::thread caller(run);
    wait_for_calls(before + 1);
    EXPECT_EQ(g4_->detach("b", Clock::real().now()).value(), 0u);
    if (kind == VolumeCall::kRemove) {  // it goes on with the one that is silent
      EXPECT_EQ(g4_->detach("a", Clock::real().now()).value(), 0u);
    }
    caller.join();
    ASSERT_TRUE(attach("b"));
  }
  expect_counts_exact();
  let_go("a");
}

// ---- removals

// A removal that was left has its object alone, and a put that was left shares it.
TEST_F(VolumeCallsTest, AWaitForAnObjectEndsWithItsVolume) {
  for (const bool removes : {false, true})
    for (const bool detaches : {false, true}) {
      ManualClock clock;
      open({.call_limit = seconds(10), .clock = &clock});
      ASSERT_TRUE(attach("a"));
      std::vector<block::Hold> held = holds({1});
      const std::size_t before = *calls_;
      hold("a", removes ? VolumeCall::kPut : VolumeCall::kRemove);
      MoveControl control;
      std::thread canceller([&] {
        wait_for_calls(before + 1);
        control.cancel();
      });
      if (removes) {
        EXPECT_EQ(g4_->put(*host_, std::move(held), {.control = &control}).blocks,
                  std::vector{Moved::kStopped});
      } else {
        EXPECT_EQ(code_of(g4_->remove_all(names({1}), {.stop = control.stop_token()})),
                  ErrorCode::kCancelled);
      }
      canceller.join();
      std::thread waiter([&] {
        if (removes) {
          EXPECT_EQ(code_of(g4_->remove_all(names({1}))), ErrorCode::kUnavailable);
        } else {
          const MoveReport report = g4_->put(*host_, std::move(held));
          EXPECT_EQ(report.blocks, std::vector{Moved::kFailed});
          EXPECT_EQ(report.error->code(), ErrorCode::kUnavailable);
        }
      });
      while (clock.waiters() == 0) std::this_thread::yield();
      if (detaches) {
        EXPECT_EQ(g4_->detach("a", clock.now()).value(), 0u);
      } else {
        g4_->stop();
      }
      waiter.join();
      EXPECT_EQ(*calls_, before + 1) << "nothing more was asked of it";
      expect_counts_exact();
      g4_.reset();  // before its clock
    }
  let_go("a");
}

TEST_F(VolumeCallsTest, APutWaitsForTheRemovalOfADamagedObject) {
  ASSERT_TRUE(attach("a"));
  put({1});
  script("a").flips = true;
  hold("a", VolumeCall::kRemove);
  MoveControl control;
  std::thread canceller([&] {
    wait_for_calls(1);
    control.cancel();
  });
  EXPECT_EQ(get({1}, {.control = &control}).blocks, std::vector{Moved::kDamaged});
  canceller.join();
  script("a").flips = false;
  EXPECT_FALSE(g4_->has(name(1))) << "the removal was left, the block is forgotten";
  const MoveReport early = g4_->put(*host_, holds({1}), {.deadline = Clock::real().now() + milliseconds(10)});
  EXPECT_EQ(early.blocks, std::vector{Moved::kStopped});
  gate_->open();
  EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
  EXPECT_NE(file_of("a", 1), "") << "what is known to be there is there";
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kArrived});
  expect_counts_exact();
}

TEST_F(VolumeCallsTest, OneOfTwoReadersRemovesADamagedObject) {
  ASSERT_TRUE(attach("a"));
  put({1});
  script("a").flips = true;
  hold("a", VolumeCall::kRemove);
  std::thread first([&] { EXPECT_EQ(get({1}).blocks, std::vector{Moved::kDamaged}); });
  wait_for_calls(1);
  EXPECT_EQ(g4_->get(names({1}), *target_).blocks, std::vector{Moved::kDamaged});
  EXPECT_EQ(*calls_, 1u) << "it is being removed";
  EXPECT_EQ(put({1}), std::vector{Moved::kPresent}) << "nothing is put that the removal could take";
  gate_->open();
  first.join();
  script("a").flips = false;
  EXPECT_FALSE(g4_->has(name(1)));
  EXPECT_EQ(file_of("a", 1), "");
  EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
  EXPECT_NE(file_of("a", 1), "");
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kArrived});
  expect_counts_exact();
}

TEST_F(VolumeCallsTest, ARemovalWaitsForAPutThatWasLeft) {
  ASSERT_TRUE(attach("a"));
  hold("a", VolumeCall::kPut);
  MoveControl control;
  std::thread canceller([&] {
    wait_for_calls(1);
    control.cancel();
  });
  EXPECT_EQ(g4_->put(*host_, holds({1}), {.control = &control}).blocks, std::vector{Moved::kStopped});
  canceller.join();
  const Result<void> early =
      g4_->remove_all(names({1}), {.deadline = Clock::real().now() + milliseconds(10)});
  ASSERT_FALSE(early) << "the put may bring the object back";
  EXPECT_EQ(early.error().code(), ErrorCode::kTimeout);
  gate_->open();
  EXPECT_TRUE(g4_->remove_all(names({1})));
  EXPECT_EQ(file_of("a", 1), "") << "the put has ended, one way or the other, before the removal";
}

TEST_F(VolumeCallsTest, AnObjectThatIsPutAgainAfterItsEvictionStays) {
  open({.blocks = 2, .remove_evicted = true});
  ASSERT_TRUE(attach("a"));
  put({1});
  put({2});
  testing::Interleaving order;
  order.pause_at("volume_pool.evicted");
  std::thread evicter([&] { g4_->put(*host_, holds({3})); });  // block 1 goes
  order.wait_until_paused("volume_pool.evicted");
  EXPECT_FALSE(g4_->has(name(1)));
  EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
  order.resume("volume_pool.evicted");
  evicter.join();
  ASSERT_TRUE(g4_->has(name(1)));
  EXPECT_NE(file_of("a", 1), "") << "what is known to be there is there";
  EXPECT_EQ(get({1}).blocks, std::vector{Moved::kArrived});
  expect_counts_exact();
}

TEST_F(VolumeCallsTest, APutWaitsForTheRemovalOfWhatWasEvicted) {
  open({.blocks = 2, .remove_evicted = true});
  ASSERT_TRUE(attach("a"));
  put({1});
  put({2});
  hold("a", VolumeCall::kRemove);
  std::thread evicter([&] { g4_->put(*host_, holds({3})); });
  wait_for_calls(1);
  const MoveReport early = g4_->put(*host_, holds({1}), {.deadline = Clock::real().now() + milliseconds(10)});
  EXPECT_EQ(early.blocks, std::vector{Moved::kStopped});
  EXPECT_EQ(g4_->probe(names({1})), 0u) << "what is being removed is not there";
  gate_->open();
  evicter.join();
  EXPECT_EQ(put({1}), std::vector{Moved::kArrived});
  EXPECT_NE(file_of("a", 1), "");
  expect_counts_exact();
}

// ---- through the manager

class SilentVolumeTest : public ::testing::Test {
 protected:
  // A manager with the volume "v", which goes as the script says.
  KvOptions scripted(const std::shared_ptr<VolumeScript>& script) const {
    VolumeRegistry kinds = VolumeRegistry::with_builtin();
    kinds.add("scripted", [script](const VolumeDescriptor& descriptor) {
      return DirectoryVolume::attach(descriptor).transform([&](std::unique_ptr<Volume>&& made) {
        return std::unique_ptr<Volume>(std::make_unique<ScriptedVolume>(std::move(made), script));
      });
    });
    return VolumeTier::options(
        {{.name = "v", .kind = "scripted", .location = folder_.path(), .options = {{"sync", "false"}}}},
        std::move(kinds));
  }

  ScratchFolder folder_;
};

// Calls that nothing interrupts.
TEST_F(SilentVolumeTest, NobodyWaitsForAVolumeThatHangs) {
  const auto gate = std::make_shared<Gate>();
  const auto calls = std::make_shared<std::atomic<std::size_t>>(0);
  auto script = std::make_shared<VolumeScript>();
  script->on_call = [gate, calls](VolumeCall) {
    ++*calls;
    calls->notify_all();
    gate->pass();
  };
  {
    const SilentVolume silent{.options = [&] { return scripted(script); }, .calls = *calls};
    expect_nobody_waits_for_a_silent_volume(silent);
  }
  const std::weak_ptr<VolumeScript> left = std::exchange(script, nullptr);
  EXPECT_FALSE(left.expired()) << "the calls that were left have their volume still";
  gate->open();
  while (!left.expired()) std::this_thread::yield();
}

TEST_F(SilentVolumeTest, ARemovalDoesNotWaitForARequestThatASilentVolumeHolds) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 3);
  const auto gate = std::make_shared<Gate>();
  const auto script = std::make_shared<VolumeScript>();
  script->on_call = [gate](VolumeCall call) {
    if (call == VolumeCall::kGet) gate->pass();
  };
  KvOptions options = scripted(script);
  options.g4->call_limit = {};
  VolumeTier tier(std::move(options));
  tier.request(hashes);
  tier.push_out();
  std::thread request([&] { EXPECT_EQ(tier.onboard(hashes), 3u); });
  gate->wait_for_somebody();
  const Result<void> early = tier.kv().reset_blocks(std::span(hashes).first(2), soon());
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), ErrorCode::kTimeout);
  EXPECT_NE(early.error().message().find("none of 2 blocks was removed"), std::string::npos) << early.error();
  gate->open();
  request.join();
  EXPECT_EQ(tier.onboard(hashes), 3u) << "nothing was removed";
  EXPECT_TRUE(tier.kv().reset_blocks(hashes, Clock::real().now() + std::chrono::hours(1)));
  EXPECT_EQ(tier.onboard(hashes), 0u);
  tier.expect_counts_exact();
}

TEST_F(SilentVolumeTest, APipeUnderTheNameOfAnObjectIsAMiss) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 2);
  VolumeTier tier(VolumeTier::options({{.name = "v",
                                        .kind = "directory",
                                        .location = folder_.path(),
                                        .options = {{"fanout", "1"}, {"sync", "false"}}}}));
  tier.request(hashes);
  tier.push_out();
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path()))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 2u);
  const auto make_pipes = [&] {
    for (const std::string& file : files) {
      std::filesystem::remove(file);
      ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    }
  };
  make_pipes();
  EXPECT_EQ(tier.onboard(hashes), 0u) << "known before";
  EXPECT_EQ(tier.kv().status().misses[static_cast<std::size_t>(Miss::kDamaged)], 1u);
  make_pipes();
  tier.restart();
  EXPECT_EQ(tier.onboard(hashes), 0u) << "asked for";
  EXPECT_EQ(tier.request(hashes), 0u);
  tier.push_out();
  EXPECT_EQ(tier.onboard(hashes), 2u) << "computed again, they took the places of the pipes";
}

// A disk that hangs in the middle of a read.
TEST_F(SilentVolumeTest, NobodyWaitsForADiskThatHangs) {
  const auto gate = std::make_shared<Gate>();
  const auto hangs = std::make_shared<std::atomic<bool>>(false);
  const auto reads = std::make_shared<std::atomic<std::size_t>>(0);
  const auto faults =
      std::make_shared<ScriptedFaults>([=](storage::IoDirection direction, std::uint64_t, std::uint64_t) {
        if (*hangs && direction == storage::IoDirection::kRead) {
          ++*reads;
          gate->pass();
        }
        return storage::IoVerdict{};
      });
  const std::string path = folder_.file("volume");
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 16 << 20);
  ASSERT_TRUE(provision_file_volume(path, {.slot_bytes = 64 << 10}));
  VolumeRegistry kinds;
  kinds.add("file", [&](const VolumeDescriptor& descriptor) {
    return FileVolume::open({.path = descriptor.location, .sync = false, .faults = faults})
        .transform(
            [](std::unique_ptr<FileVolume>&& made) { return std::unique_ptr<Volume>(std::move(made)); });
  });
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 4);
  {
    VolumeTier tier(VolumeTier::options({{.name = "v", .kind = "file", .location = path}}, std::move(kinds)));
    tier.request(hashes);
    tier.push_out();
    *hangs = true;
    EXPECT_TRUE(tier.kv().onboard(hashes, {.deadline = soon()}).empty());
    const std::size_t before = *reads;
    const OnboardHandle up = tier.kv().onboard_async(hashes).value();
    while (*reads == before) std::this_thread::yield();
    up.cancel();
    EXPECT_EQ(code_of(up.wait()), ErrorCode::kCancelled);
    tier.expect_counts_exact();
  }
  gate->open();
  while (faults.use_count() > 1) std::this_thread::yield();
}

}  // namespace
}  // namespace ashlar::tiers
