// Peers that die, hang and come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ashlar/base/log.h"
#include "ashlar/base/random.h"
#include "backend/ucx/framing.h"
#include "backend/ucx/owner_bytes.h"
#include "backend/ucx/port_forwarder.h"
#include "backend/ucx/ucx_fixture.h"
#include "support/sanitizers.h"

namespace ashlar::backend::ucx {
namespace {

using transfer::BlockSet;
using transfer::Transfer;
using transfer::TransferResult;

class UcxFailure : public UcxTest {
 protected:
  static std::uint64_t restarts() {
    return std::getenv("ASHLAR_TEST_SECONDS") != nullptr ? 1000 : 20;  // NOLINT(concurrency-mt-unsafe)
  }
  // Ends with kUnavailable, or completed before the end of the peer.
  static void expect_ended(const Transfer& transfer) {
    const TransferResult result = transfer.wait_for_end();
    if (!result) {
      EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable) << result.error();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ucx, UcxFailure, ::testing::Values("tcp", "tcp,shm"), transports_name);

TEST_P(UcxFailure, TransfersInFlightFailWhenThePeerIsKilled) {
  for (const bool puts : {false, true}) {
    // Again where all were over before the peer was.
    for (int failed = 0; failed == 0;) {
      OwnerProcess owner(GetParam(), kBytes, kOwner);
      const auto calls = std::make_shared<std::atomic<int>>(0);
      const auto path =
          transport_->connect(kOwner, owner.address(), [calls](const Error&) { ++*calls; }).value();
      const auto theirs = remote_set(*path, owner);
      const auto mine = local_set();
      const auto& from = puts ? mine : theirs;
      const auto& to = puts ? theirs : mine;
      std::vector<Transfer> running;
      // One completes, so that the others are in the middle of it.
      for (int i = 0; i < 40; ++i)
        running.push_back(transport_->executor().submit({.plan = plan_all(from, to)}).value());
      ASSERT_TRUE(running.front().wait());
      owner.kill();
      for (const Transfer& one : running) {
        expect_ended(one);
        failed += one.wait_for_end() ? 0 : 1;
      }
      if (failed == 0) continue;
      EXPECT_TRUE(path->failure());
      while (*calls == 0) std::this_thread::yield();
      EXPECT_EQ(*calls, 1);
      const auto refused = transport_->executor().submit({.plan = plan_all(from, to)});
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
      EXPECT_EQ(transport_->executor().counters().in_flight, 0u);
    }
  }
}

// Descriptors of one worker are closed while others open theirs, and get the same numbers.
TEST_P(UcxFailure, PathsComeAndGoOnManyThreads) {
  const std::shared_ptr<UcxTransport> other = make();
  const std::vector<std::byte> addresses[] = {transport_->address(), other->address()};
  UcxTransport* const ends[] = {transport_.get(), other.get()};
  std::atomic<std::uint64_t> made{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (std::uint64_t round = 0; round < 2 * restarts(); ++round) {
        const auto path = ends[i % 2]->connect(kOwner, addresses[1 - i % 2], {});
        ASSERT_TRUE(path) << path.error();
        ++made;
        if (round % 2 == 0) (*path)->close(Error(ErrorCode::kUnavailable, "enough"));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 8 * restarts());
}

TEST_P(UcxFailure, AStoppedPeerTimesOutAndKeepsItsMemoryUntilThePathIsClosed) {
  for (const bool puts : {false, true}) {
    OwnerProcess owner(GetParam(), kBytes, kOwner);
    OwnerProcess other(GetParam(), kBytes, {0xB2, 0x52});
    other.fill(9);
    const auto path = connect(owner);
    const auto other_path = connect(other);
    const auto theirs = remote_set(*path, owner);
    const auto others = remote_set(*other_path, other);
    auto mine = local_set();
    owner.stop();
    auto kept = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = kept;
    // Enough that no buffer on the way takes it all.
    std::vector<Transfer> stuck;
    for (int i = 0; i < 4; ++i)
      stuck.push_back(transport_->executor()
                          .submit({.plan = puts ? plan_all(mine, theirs) : plan_all(theirs, mine),
                                   .owned = kept,
                                   .deadline = Clock::real().now() + std::chrono::milliseconds(50)})
                          .value());
    kept.reset();
    const TransferResult late = stuck.back().wait();
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code(), ErrorCode::kTimeout);
    // Others are served meanwhile.
    const auto read = local_set();
    move(others, read);
    EXPECT_EQ(count_other_bytes(bytes_of(read), 9), 0u);
    EXPECT_FALSE(stuck.front().done());
    EXPECT_FALSE(watched.expired());
    path->close(Error(ErrorCode::kUnavailable, "it does not answer"));
    for (const Transfer& one : stuck) EXPECT_FALSE(one.wait_for_end());
    EXPECT_EQ(stuck.front().wait_for_end().error(), Error(ErrorCode::kUnavailable, "it does not answer"));
    EXPECT_TRUE(watched.expired());
    // It finds requests of a peer that is gone, and lives.
    owner.send(SIGCONT);
    EXPECT_TRUE(connect(owner));
    EXPECT_TRUE(owner.alive());
  }
}

TEST_P(UcxFailure, APeerThatGoesOnAfterAStopFinishesWhatWasAsked) {
  OwnerProcess owner(GetParam(), kBytes, kOwner);
  owner.fill(3);
  const auto path = connect(owner);
  const auto theirs = remote_set(*path, owner);
  const auto mine = local_set();
  owner.stop();
  const Transfer transfer = transport_->executor().submit({.plan = plan_all(theirs, mine)}).value();
  ASSERT_FALSE(transfer.wait_until(Clock::real().now() + std::chrono::milliseconds(30)));
  owner.send(SIGCONT);
  ASSERT_TRUE(transfer.wait());
  EXPECT_EQ(count_other_bytes(bytes_of(mine), 3), 0u);
}

TEST_P(UcxFailure, QueuedTransfersAreCancelledWhileThePeerHangs) {
  transport_ = make({.window = 1});
  OwnerProcess owner(GetParam(), kBytes, kOwner);
  const auto path = connect(owner);
  const auto theirs = remote_set(*path, owner);
  owner.stop();
  const Transfer first = transport_->executor().submit({.plan = plan_all(theirs, local_set())}).value();
  const Transfer second = transport_->executor().submit({.plan = plan_all(theirs, local_set())}).value();
  const Transfer third = transport_->executor()
                             .submit({.plan = plan_all(theirs, local_set()),
                                      .deadline = Clock::real().now() + std::chrono::milliseconds(20)})
                             .value();
  second.cancel();
  EXPECT_EQ(second.wait_for_end().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(third.wait_for_end().error().code(), ErrorCode::kTimeout);
  EXPECT_FALSE(first.done());
  // A transport goes although its peer hangs.
  transport_.reset();
  EXPECT_TRUE(first.done());
  owner.send(SIGCONT);
  EXPECT_TRUE(owner.alive());
}

TEST_P(UcxFailure, NobodyAtTheAddressIsUnavailable) {
  transport_ = make({.connect_limit = std::chrono::milliseconds(500)});
  std::vector<std::byte> address;
  {
    const OwnerProcess gone(GetParam(), kBytes, kOwner);
    address = gone.address();
  }
  const auto dead = transport_->connect(kOwner, address, {});
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code(), ErrorCode::kUnavailable);
  const OwnerProcess stopped(GetParam(), kBytes, kOwner);
  stopped.stop();
  const auto hung = transport_->connect(kOwner, stopped.address(), {});
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(hung.error().message(), ::testing::HasSubstr("did not answer within"));
  // It goes on, finds what it was asked, and lives. Now it has all the time it needs.
  transport_ = make();
  stopped.send(SIGCONT);
  const auto again = transport_->connect(kOwner, stopped.address(), {});
  EXPECT_TRUE(again) << again.error();
}

// The limit of the transport is an hour here, longer than that of the test.
TEST_P(UcxFailure, AConnectEndsAtTheDeadlineOfItsCaller) {
  transport_ = make({.connect_limit = std::chrono::hours(1)});
  const OwnerProcess stopped(GetParam(), kBytes, kOwner);
  stopped.stop();
  const auto hung = transport_->connect(kOwner, stopped.address(), {},
                                        Clock::real().now() + std::chrono::milliseconds(200));
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().code(), ErrorCode::kUnavailable);
  stopped.send(SIGCONT);
}

// A peer names several addresses, and the first is dead: there is time for the next, however long it takes.
TEST(UcxHostsTest, AnAddressWithoutAnAnswerLeavesTimeForTheOthers) {
  const auto owner = UcxTransport::create({}).value();
  WorkerAddress address = decode_address(owner->address()).value();
  const PortForwarder forwarder(address.port);
  address.packed = {};  // and its padding
  address.port = forwarder.port();
  // Of one machine, where they are tried in this order: the last one first.
  address.hosts = std::string(PortForwarder::kLiving) + "," + PortForwarder::kSilent;
  bool connected = false;
  for (Clock::Duration limit = std::chrono::milliseconds(250); !connected; limit *= 2) {
    ASSERT_LE(limit, std::chrono::minutes(1)) << "the second address was never tried";
    const auto reader = UcxTransport::create({.connect_limit = limit}).value();
    const auto path = reader->connect({0xA1, 0x51}, encode(address), {});
    connected = path.has_value();
    if (!connected) {
      EXPECT_EQ(path.error().code(), ErrorCode::kUnavailable) << path.error();
    }
  }
}

// Kills the peer at a random point of a stream of reads and writes, and goes on with its successor.
TEST_P(UcxFailure, PeersThatRestartAreOtherPeers) {
  Random random(7);
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  for (std::uint64_t life = 1; life <= restarts(); ++life) {
    const transfer::AgentIdentity identity{kOwner.agent, life};
    OwnerProcess owner(GetParam(), kBytes, identity);
    owner.fill(life);
    const auto path = transport_->connect(identity, owner.address(), {});
    ASSERT_TRUE(path) << path.error();
    const auto theirs = remote_set(**path, owner);
    const auto mine = local_set();
    // The old incarnation's memory is not this one's.
    storage::RemoteMemory old = owner.memory();
    old.incarnation = life - 1;
    EXPECT_FALSE((*path)->open(old));
    move(theirs, mine);
    if (HasFatalFailure()) return;
    ASSERT_EQ(count_other_bytes(bytes_of(mine), life), 0u);
    std::vector<Transfer> running;
    for (int i = 0; i < 8; ++i) {
      const bool put = random.next() % 2 == 0;
      running.push_back(
          transport_->executor()
              .submit({.plan = put ? plan_all(local_set(), theirs) : plan_all(theirs, local_set())})
              .value());
    }
    const std::uint64_t spin = random.next() % 2'000'000;
    for (std::uint64_t i = 0; i < spin; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    owner.kill();
    if (random.next() % 2 == 0) (*path)->close(Error(ErrorCode::kUnavailable, "the process ended"));
    for (const Transfer& one : running) {
      expect_ended(one);
      ++(one.wait_for_end() ? completed : failed);
    }
  }
  EXPECT_EQ(transport_->executor().counters().in_flight, 0u);
  RecordProperty("completed", std::to_string(completed));
  RecordProperty("failed", std::to_string(failed));
}

TEST_P(UcxFailure, MemoryThatIsNoLongerOfferedIsNeitherReadNorWritten) {
  const auto other = make();
  const std::shared_ptr<storage::Storage> memory = allocator_.allocate(kBytes, 4096).value();
  auto registration = other->register_memory(memory, storage::AccessMode::kReadWrite).value();
  const std::vector<std::byte> key(registration->key().begin(), registration->key().end());
  const auto path = transport_->connect(kOwner, other->address(), {}).value();
  const auto theirs = set_over(path->open({.address = reinterpret_cast<std::uintptr_t>(memory->address()),
                                           .bytes = kBytes,
                                           .agent = kOwner.agent,
                                           .incarnation = kOwner.incarnation,
                                           .key = key,
                                           .mode = storage::AccessMode::kReadWrite})
                                   .value());
  const auto mine = local_set();
  fill_bytes(bytes_of(mine), 1);
  move(mine, theirs);
  registration.reset();
  fill_bytes(bytes_of(mine), 2);
  for (const bool puts : {false, true}) {
    const auto refused = transport_->executor()
                             .submit({.plan = puts ? plan_all(mine, theirs) : plan_all(theirs, mine)})
                             ->wait();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("does not offer this memory any more"));
  }
  EXPECT_EQ(count_other_bytes({memory->address(), kBytes}, 1), 0u);
  EXPECT_EQ(count_other_bytes(bytes_of(mine), 2), 0u);
  EXPECT_FALSE(path->failure());
}

// Puts arrive while the memory is taken back: once that has returned, it is its owner's alone.
TEST_P(UcxFailure, NoPutThatIsOnItsWayReachesMemoryThatWasTakenBack) {
  const auto other = make();
  const auto path = transport_->connect(kOwner, other->address(), {}).value();
  const std::shared_ptr<storage::Storage> memory = allocator_.allocate(kBytes, 4096).value();
  const auto mine = local_set();
  fill_bytes(bytes_of(mine), 1);
  std::uint64_t refused = 0;
  for (std::uint64_t round = 0; round < 20 || refused == 0; ++round) {
    auto registration = other->register_memory(memory, storage::AccessMode::kReadWrite).value();
    const auto theirs = set_over(path->open({.address = reinterpret_cast<std::uintptr_t>(memory->address()),
                                             .bytes = kBytes,
                                             .agent = kOwner.agent,
                                             .incarnation = kOwner.incarnation,
                                             .key = {registration->key().begin(), registration->key().end()},
                                             .mode = storage::AccessMode::kReadWrite})
                                     .value());
    std::vector<Transfer> puts;
    for (int i = 0; i < 4; ++i)
      puts.push_back(transport_->executor().submit({.plan = plan_all(mine, theirs)}).value());
    registration.reset();
    fill_bytes({memory->address(), kBytes}, 2);
    for (const Transfer& put : puts) {
      const TransferResult end = put.wait_for_end();
      if (end) continue;
      ++refused;
      EXPECT_THAT(end.error().message(), ::testing::HasSubstr("does not offer this memory any more"));
    }
    ASSERT_EQ(count_other_bytes({memory->address(), kBytes}, 2), 0u);
  }
}

// What a reader asked for is not kept for ever because it is stopped.
TEST(UcxReadersTest, AReaderThatIsStoppedDoesNotKeepTheMemoryThatItReads) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  const auto owner = UcxTransport::create({.reply_limit = std::chrono::milliseconds(200)}).value();
  constexpr std::uint64_t kMemory = std::uint64_t{4} << 20;
  storage::SystemAllocator allocator;
  std::shared_ptr<storage::Storage> memory = allocator.allocate(kMemory, 4096).value();
  fill_bytes({memory->address(), kMemory}, 4);
  auto registration = owner->register_memory(memory, storage::AccessMode::kRead).value();
  // On a busy machine the limit may meet it before that; then another tries.
  std::unique_ptr<ReaderProcess> reader;
  do {
    reader = std::make_unique<ReaderProcess>("tcp", owner->address(), registration->key(),
                                             reinterpret_cast<std::uintptr_t>(memory->address()), kMemory);
  } while (!reader->has_read());
  reader->stop();
  registration.reset();
  const std::weak_ptr<storage::Storage> watched = std::exchange(memory, nullptr);
  while (!watched.expired()) std::this_thread::yield();
}

// The other way round: this process owns the memory, and those that read it are killed.
TEST_P(UcxFailure, AnOwnerSurvivesTheDeathOfItsReaders) {
  const auto owned = local_set();
  fill_bytes(bytes_of(owned), 4);
  const std::shared_ptr<storage::Storage> memory = owned->planes()[0].regions[0].storage;
  const auto registration = transport_->register_memory(memory, storage::AccessMode::kReadWrite).value();
  Random random(3);
  for (std::uint64_t life = 0; life < restarts(); ++life) {
    ReaderProcess reader(GetParam(), transport_->address(), registration->key(),
                         reinterpret_cast<std::uintptr_t>(memory->address()), kBytes);
    // In the middle of reads, or while it starts and connects.
    if (life % 2 == 0) {
      ASSERT_TRUE(reader.has_read());
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(40'000)));
    }
    reader.kill();
  }
  ReaderProcess last(GetParam(), transport_->address(), registration->key(),
                     reinterpret_cast<std::uintptr_t>(memory->address()), kBytes);
  EXPECT_TRUE(last.has_read());
  EXPECT_TRUE(last.has_read());
}

}  // namespace
}  // namespace ashlar::backend::ucx
