// Device memory over UCX: its owner copies it through buffers of host memory. The device is one that the host
// cannot read or write by its addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <deque>
#include <stop_token>
#include <thread>

#include "ashlar/base/log.h"
#include "backend/ucx/device_copies.h"
#include "backend/ucx/owner_bytes.h"
#include "backend/ucx/ucx_fixture.h"
#include "support/fake_device.h"
#include "support/rounds.h"

namespace ashlar::backend::ucx {
namespace {

using transfer::BlockSet;
using transfer::Transfer;
using transfer::TransferResult;
using transfer::TransferState;

// Copies when the test says so, or fails.
class HeldDevice final : public transfer::Executor {
 public:
  explicit HeldDevice(std::shared_ptr<const FakeDevice> device, const transfer::QueueLimits& limits = {})
      : device_(std::move(device)), admission_(limits, Clock::real()) {}

  std::string_view name() const noexcept override { return "held_device"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override {
    return (from.kind() == StorageKind::kDevice) != (to.kind() == StorageKind::kDevice);
  }
  Result<Transfer> submit(transfer::TransferRequest request) override {
    ASHLAR_RETURN_IF_ERROR(check_handles(*this, request.plan));
    ASHLAR_TRY(const std::shared_ptr<TransferState> state,
               TransferState::admit(std::move(request), admission_));
    const MutexLock lock(mu_);
    held_.push_back(state);
    most_ = std::max(most_, held_.size());
    return Transfer(state);
  }
  transfer::ExecutorCounters counters() const override { return admission_.counters(); }

  std::size_t held() const {
    const MutexLock lock(mu_);
    return held_.size();
  }
  // How many there were at once.
  std::size_t most() const {
    const MutexLock lock(mu_);
    return most_;
  }
  // Ends the oldest. False: there is none.
  bool end_one(bool succeeds = true) {
    std::shared_ptr<TransferState> state;
    {
      const MutexLock lock(mu_);
      if (held_.empty()) return false;
      state = std::move(held_.front());
      held_.pop_front();
    }
    state->start();
    if (succeeds) {
      state->moved(FakeDeviceExecutor::copy(*device_, state->plan()));
    } else {
      state->fail(Error(ErrorCode::kIo, "the device fell off the bus"));
    }
    state->finish();
    return true;
  }

 private:
  const std::shared_ptr<const FakeDevice> device_;
  transfer::Admission admission_;
  mutable Mutex mu_;
  std::deque<std::shared_ptr<TransferState>> held_ ASHLAR_GUARDED_BY(mu_);
  std::size_t most_ ASHLAR_GUARDED_BY(mu_) = 0;
};

// Ends copies as soon as they are held.
class CopyingThread {
 public:
  explicit CopyingThread(HeldDevice& device)
      : thread_([&device](const std::stop_token& stop) {
          while (!stop.stop_requested())
            if (!device.end_one()) std::this_thread::yield();
        }) {}

 private:
  std::jthread thread_;
};

class UcxDeviceTest : public UcxTest {
 protected:
  static constexpr std::uint32_t kBuffers = 6;
  static constexpr std::uint32_t kOfOnePeer = 3;

  // An owner whose device memory `executor` copies.
  std::shared_ptr<UcxTransport> make_owner(std::shared_ptr<transfer::Executor> executor,
                                           std::uint32_t buffers = kBuffers,
                                           Clock::Duration reply_limit = std::chrono::hours(1)) {
    return make(
        {.reply_limit = reply_limit, .device_executor = std::move(executor), .bounce_buffers = buffers});
  }
  std::unique_ptr<ReaderProcess> start_reader(const UcxTransport& owner,
                                              const transfer::MemoryRegistration& registration) const {
    return std::make_unique<ReaderProcess>(GetParam(), owner.address(), registration.key(),
                                           reinterpret_cast<std::uintptr_t>(memory_->address()), kBytes, 0);
  }
  storage::RemoteMemory describe(const storage::Storage& memory,
                                 const transfer::MemoryRegistration& registration) {
    return {.kind = memory.kind(),
            .address = reinterpret_cast<std::uintptr_t>(memory.address()),
            .bytes = memory.size(),
            .device = memory.device(),
            .agent = kOwner.agent,
            .incarnation = kOwner.incarnation,
            .key = {registration.key().begin(), registration.key().end()},
            .mode = storage::AccessMode::kReadWrite};
  }
  std::span<std::byte> driver_bytes() const { return {device_->driver(memory_->address()), kBytes}; }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(2 * kBytes);
  const std::shared_ptr<storage::Storage> memory_ =
      storage::ExternalStorage::create(device_->allocate(kBytes)).value();
};
INSTANTIATE_TEST_SUITE_P(Ucx, UcxDeviceTest, ::testing::Values("tcp"), transports_name);

TEST_P(UcxDeviceTest, APeerHasHalfOfTheBuffersAndHostMemoryIsServedMeanwhile) {
  const auto executor = std::make_shared<HeldDevice>(device_);
  const auto owner = make_owner(executor);
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kReadWrite).value();
  const auto host = local_set();
  fill_bytes(bytes_of(host), 2);
  const auto& host_memory = host->planes()[0].regions[0].storage;
  const auto host_registration = owner->register_memory(host_memory, storage::AccessMode::kRead).value();
  const auto path = transport_->connect(kOwner, owner->address(), {}).value();
  const auto theirs = set_over(path->open(describe(*memory_, *registration)).value());
  storage::RemoteMemory readable = describe(*host_memory, *host_registration);
  readable.mode = storage::AccessMode::kRead;
  for (std::uint64_t seed = 10; seed < 13; ++seed) {
    fill_bytes(driver_bytes(), seed);
    const auto mine = local_set();
    const Transfer get = transport_->executor().submit({.plan = plan_all(theirs, mine)}).value();
    while (executor->held() < kOfOnePeer) std::this_thread::yield();
    // Behind device memory that takes its time, on another path.
    const auto second = transport_->connect(kOwner, owner->address(), {}).value();
    const auto seen = local_set();
    move(set_over(second->open(readable).value()), seen);
    EXPECT_EQ(count_other_bytes(bytes_of(seen), 2), 0u);
    EXPECT_FALSE(get.done());
    while (!get.done())
      if (!executor->end_one()) std::this_thread::yield();
    const TransferResult got = get.wait();
    ASSERT_TRUE(got) << got.error();
    EXPECT_EQ(count_other_bytes(bytes_of(mine), seed), 0u);
    fill_bytes(bytes_of(mine), seed + 100);
    const Transfer put = transport_->executor().submit({.plan = plan_all(mine, theirs)}).value();
    while (!put.done())
      if (!executor->end_one()) std::this_thread::yield();
    ASSERT_TRUE(put.wait());
    EXPECT_EQ(count_other_bytes(driver_bytes(), seed + 100), 0u);
  }
  EXPECT_EQ(executor->most(), kOfOnePeer);
  EXPECT_EQ(executor->counters().bytes, 6 * kBytes);
}

TEST_P(UcxDeviceTest, ACopyThatFailsIsAnErrorOfOneTransfer) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  const auto executor = std::make_shared<HeldDevice>(device_);
  const auto owner = make_owner(executor);
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kReadWrite).value();
  const auto path = transport_->connect(kOwner, owner->address(), {}).value();
  const auto theirs = set_over(path->open(describe(*memory_, *registration)).value());
  const auto mine = local_set();
  for (const bool puts : {false, true}) {
    const Transfer failing = transport_->executor()
                                 .submit({.plan = puts ? plan_all(mine, theirs) : plan_all(theirs, mine)})
                                 .value();
    for (std::uint32_t block = 0; !failing.done();)
      if (executor->end_one(block != 2)) {
        ++block;
      } else {
        std::this_thread::yield();
      }
    const TransferResult result = failing.wait_for_end();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kIo) << result.error();
    EXPECT_THAT(result.error().message(), ::testing::HasSubstr("could not copy its device memory"));
  }
  EXPECT_FALSE(path->failure());
  fill_bytes(driver_bytes(), 5);
  const Transfer again = transport_->executor().submit({.plan = plan_all(theirs, mine)}).value();
  while (!again.done())
    if (!executor->end_one()) std::this_thread::yield();
  EXPECT_TRUE(again.wait());
  EXPECT_EQ(count_other_bytes(bytes_of(mine), 5), 0u);
}

// It takes one copy at a time, and the first is neither the peer's nor the owner's.
TEST_P(UcxDeviceTest, AnExecutorThatIsFullIsWaitedFor) {
  const auto executor = std::make_shared<HeldDevice>(device_, transfer::QueueLimits{.transfers = 1});
  const auto owner = make_owner(executor);
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kReadWrite).value();
  const auto path = transport_->connect(kOwner, owner->address(), {}).value();
  const auto theirs = set_over(path->open(describe(*memory_, *registration)).value());
  const auto mine = local_set();
  for (const bool puts : {false, true}) {
    const std::uint64_t seed = puts ? 6 : 5;
    fill_bytes(puts ? bytes_of(mine) : driver_bytes(), seed);
    const Transfer other = executor->submit({.plan = plan_all(set_over(memory_), local_set())}).value();
    const std::uint64_t refused = executor->counters().refused;
    const Transfer copied = transport_->executor()
                                .submit({.plan = puts ? plan_all(mine, theirs) : plan_all(theirs, mine)})
                                .value();
    // It was tried again, and no copy has ended.
    while (executor->counters().refused < refused + 3) std::this_thread::yield();
    EXPECT_EQ(executor->held(), 1u);
    EXPECT_FALSE(copied.done());
    while (!copied.done())
      if (!executor->end_one()) std::this_thread::yield();
    const TransferResult result = copied.wait_for_end();
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(count_other_bytes(puts ? driver_bytes() : bytes_of(mine), seed), 0u);
    EXPECT_TRUE(other.wait());
  }
  EXPECT_EQ(executor->most(), 1u);
}

// Taking memory back waits for the copies into it that have started, and lets no other start.
TEST_P(UcxDeviceTest, MemoryThatWasTakenBackIsNotWritten) {
  const auto executor = std::make_shared<HeldDevice>(device_);
  const auto owner = make_owner(executor);
  const auto path = transport_->connect(kOwner, owner->address(), {}).value();
  const auto mine = local_set();
  fill_bytes(bytes_of(mine), 1);
  for (bool refused = false; !refused;) {
    auto registration = owner->register_memory(memory_, storage::AccessMode::kReadWrite).value();
    const auto theirs = set_over(path->open(describe(*memory_, *registration)).value());
    const Transfer put = transport_->executor().submit({.plan = plan_all(mine, theirs)}).value();
    while (executor->held() == 0) std::this_thread::yield();
    std::thread taking([&] {
      registration.reset();
      EXPECT_EQ(executor->held(), 0u);
      fill_bytes(driver_bytes(), 2);
    });
    while (!put.done())
      if (!executor->end_one()) std::this_thread::yield();
    taking.join();
    const TransferResult result = put.wait_for_end();
    refused = !result;
    if (refused) {
      EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable) << result.error();
    }
    EXPECT_EQ(count_other_bytes(driver_bytes(), 2), 0u);
    if (HasFailure()) break;
  }
}

// One buffer, and readers that are killed while it is theirs.
TEST_P(UcxDeviceTest, ABufferOutlivesTheReadersThatUseIt) {
  const auto owner = make_owner(std::make_shared<FakeDeviceExecutor>(device_), 1);
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kRead).value();
  fill_bytes(driver_bytes(), 4);
  for (std::uint64_t life = 0; life < testing::rounds(20); ++life) {
    const auto reader = start_reader(*owner, *registration);
    ASSERT_TRUE(reader->has_read());
    reader->kill();
  }
  const auto last = start_reader(*owner, *registration);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(last->has_read());
}

// Nobody is disconnected here: there are buffers for the one, and the other goes on when it wakes.
TEST_P(UcxDeviceTest, AReaderThatIsStoppedLeavesBuffersToOthers) {
  const auto executor = std::make_shared<HeldDevice>(device_);
  const auto owner = make_owner(executor);
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kReadWrite).value();
  fill_bytes(driver_bytes(), 4);
  const auto path = transport_->connect(kOwner, owner->address(), {}).value();
  const auto theirs = set_over(path->open(describe(*memory_, *registration)).value());
  const auto stopped = start_reader(*owner, *registration);
  for (std::uint64_t round = 0; round < testing::rounds(5); ++round) {
    while (executor->held() < kOfOnePeer) std::this_thread::yield();
    stopped->stop();
    const CopyingThread copying(*executor);
    for (int i = 0; i < 4; ++i) {
      const auto mine = local_set();
      move(theirs, mine);
      EXPECT_EQ(count_other_bytes(bytes_of(mine), 4), 0u);
    }
    stopped->send(SIGCONT);
    ASSERT_TRUE(stopped->has_read());
  }
}

// One buffer, and a reader that is stopped while it waits for more than fits on the way to it.
TEST_P(UcxDeviceTest, AReaderThatTakesNoRepliesIsDisconnected) {
  const auto warnings = std::make_shared<std::atomic<int>>(0);
  const ScopedLogSink sink([warnings](LogLevel, std::string_view, std::string_view message) {
    if (message.find("a peer is disconnected") != std::string_view::npos) ++*warnings;
  });
  const auto executor = std::make_shared<HeldDevice>(device_);
  const auto owner = make_owner(executor, 1, std::chrono::milliseconds(200));
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kRead).value();
  fill_bytes(driver_bytes(), 4);
  const auto stopped = start_reader(*owner, *registration);
  // Again where it was stopped before it had asked for so much.
  for (bool goes_on = true; goes_on;) {
    while (executor->held() == 0) std::this_thread::yield();
    stopped->stop();
    const CopyingThread copying(*executor);
    // On a busy machine the limit may meet this one too; then another tries.
    while (!start_reader(*owner, *registration)->has_read()) {
    }
    stopped->send(SIGCONT);
    goes_on = stopped->has_read();
  }
  EXPECT_GT(*warnings, 0);
}

// As above, without processes: which peer may have how many, while it keeps what it got.
TEST_P(UcxDeviceTest, EveryPeerFindsABuffer) {
  const auto executor = std::make_shared<HeldDevice>(device_);
  const auto table = std::make_shared<RegionTable>();
  const RegionTable::Name name = table->add(memory_, storage::AccessMode::kRead);
  const auto copies =
      DeviceCopies::create({.device_executor = executor, .bounce_buffers = 8}, 4096, table, [] {}).value();
  std::array<int, 3> places{};
  const auto peer = [&](std::size_t i) { return reinterpret_cast<ucp_ep_h>(&places[i]); };
  const auto ask = [&](std::size_t i, int requests) {
    for (int n = 0; n < requests; ++n)
      ASSERT_TRUE(copies->add({.endpoint = peer(i), .request = {0, name.region, name.token, 0, 4096}}));
  };
  const auto end_all = [&] {
    while (executor->end_one()) {
    }
    return copies->take_ended();
  };
  ask(0, 20);
  EXPECT_EQ(executor->held(), 4u) << "half of them";
  std::vector<DeviceCopies::Copy> kept = end_all();
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_EQ(executor->held(), 0u) << "no more before they come back";
  ask(1, 20);
  EXPECT_EQ(executor->held(), 2u) << "half of the others";
  for (DeviceCopies::Copy& copy : end_all()) kept.push_back(std::move(copy));
  ASSERT_EQ(kept.size(), 6u);
  // The third takes its replies, and gets all.
  ask(2, 20);
  int ended = 0;
  while (executor->held() != 0)
    for (DeviceCopies::Copy& copy : end_all()) {
      EXPECT_EQ(copy.endpoint, peer(2));
      EXPECT_EQ(copy.verdict, Verdict::kGranted);
      ++ended;
      copies->give_back(std::move(copy.buffer));
    }
  EXPECT_EQ(ended, 20);
  // What the first has counts for nobody else, also after it is gone, and what it waited for is not copied.
  copies->forget(peer(0));
  ask(0, 1);
  EXPECT_EQ(executor->held(), 1u);
  for (DeviceCopies::Copy& copy : end_all()) kept.push_back(std::move(copy));
  for (DeviceCopies::Copy& copy : kept) copies->give_back(std::move(copy.buffer));
  EXPECT_EQ(executor->held(), 4u) << "of the second, which waited";
  for (int left = 18; left > 0;)
    for (DeviceCopies::Copy& copy : end_all()) {
      EXPECT_EQ(copy.endpoint, peer(1));
      --left;
      copies->give_back(std::move(copy.buffer));
    }
  EXPECT_EQ(executor->held(), 0u);
}

TEST_P(UcxDeviceTest, ARequestThatNoBufferHoldsIsRefused) {
  std::atomic<int> warnings{0};
  const ScopedLogSink sink([&](LogLevel, std::string_view, std::string_view message) {
    if (message.find("give both sides the same segment_bytes") != std::string_view::npos) ++warnings;
  });
  const auto owner = make_owner(std::make_shared<FakeDeviceExecutor>(device_));
  const auto registration = owner->register_memory(memory_, storage::AccessMode::kRead).value();
  transport_ = make({.segment_bytes = std::uint32_t{1} << 20});
  const auto path = transport_->connect(kOwner, owner->address(), {}).value();
  storage::RemoteMemory readable = describe(*memory_, *registration);
  readable.mode = storage::AccessMode::kRead;
  const auto theirs = set_over(path->open(readable).value());
  const auto refused = transport_->executor().submit({.plan = plan_all(theirs, local_set())})->wait_for_end();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kIo) << refused.error();
  EXPECT_GT(warnings, 0);
}

TEST_P(UcxDeviceTest, WithoutAnExecutorDeviceMemoryIsRefused) {
  const auto refused = transport_->register_memory(memory_, storage::AccessMode::kRead);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("UcxOptions::device_executor"));
  const auto executor = std::make_shared<FakeDeviceExecutor>(device_);
  const auto shm = UcxTransport::create({.transports = "tcp,shm", .device_executor = executor});
  ASSERT_FALSE(shm);
  EXPECT_THAT(shm.error().message(), ::testing::HasSubstr("device_executor needs TCP alone"));
  const auto none = UcxTransport::create({.device_executor = executor, .bounce_buffers = 0});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), ::testing::HasSubstr("bounce_buffers is 0"));
}

}  // namespace
}  // namespace ashlar::backend::ucx
