// What every RemoteTransport promises, as tests over cases; the other side is a process of its own. A program
// that includes this defines transport_cases(), has a main() with the role "remote_peer", and instantiates
// TransportTest with its cases; and ExecutorTest with executor_case() of each, in one process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "support/gates.h"
#include "support/rounds.h"
#include "transfer/executor_conformance.h"
#include "transfer/remote/peer_process.h"

namespace ashlar::transfer {

// A failure that a transport reports.
class FailureBox {
 public:
  std::function<void(const Error&)> callback() {
    return [this](const Error& error) {
      const MutexLock lock(mu_);
      ++calls_;
      error_ = error;
      changed_.notify_all();
    };
  }
  // None after two minutes.
  std::optional<Error> wait() {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    const MutexLock lock(mu_);
    while (!error_)
      if (!changed_.wait_until(mu_, last)) break;
    return error_;
  }
  int calls() {
    const MutexLock lock(mu_);
    return calls_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<Error> error_ ASHLAR_GUARDED_BY(mu_);
  int calls_ ASHLAR_GUARDED_BY(mu_) = 0;
};

class TransportTest : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    if (transport_ == nullptr) GTEST_SKIP() << "this machine does not have what the transport needs";
  }

  std::shared_ptr<RemotePath> connect(const PeerProcess& peer, FailureBox* failures = nullptr) {
    Result<std::shared_ptr<RemotePath>> path =
        transport_->connect(peer.identity(), peer.address(),
                            failures == nullptr ? std::function<void(const Error&)>() : failures->callback());
    EXPECT_TRUE(path) << path.error();
    return *std::move(path);
  }
  std::shared_ptr<const BlockSet> near(const std::vector<PlaneShape>& shapes) {
    return BlockSet::allocate(shapes, near_).value();
  }
  TransferResult run(TransferPlan move) {
    const Result<Transfer> transfer = transport_->executor().submit({.plan = std::move(move)});
    if (!transfer) return transfer.error();
    return transfer->wait();
  }
  // Gets, puts, and compares every byte of both sides with the model.
  void expect_moves(PeerProcess& peer, const PeerSet& theirs, const std::shared_ptr<const BlockSet>& remote,
                    const std::vector<std::uint32_t>& there, const std::shared_ptr<const BlockSet>& local,
                    const std::vector<std::uint32_t>& here, const PlanSelection& selection = {}) {
    const std::uint64_t seed = ++seed_;
    peer.fill(theirs, seed);
    BlockImage source(*remote, 0);
    source.scramble(seed);
    BlockImage expected(*local, 0xEE);
    expected.store(*local);
    copy_naively(*remote, source, there, *local, expected, here, selection);
    const TransferResult got = run(plan(remote, there, local, here, selection).value());
    ASSERT_TRUE(got) << got.error();
    ASSERT_TRUE(BlockImage::of(*local) == expected) << "get";
    ASSERT_TRUE(peer.show(theirs, *remote) == source) << "a get writes nothing there";
    BlockImage mine(*local, 0);
    mine.scramble(seed * 31);
    mine.store(*local);
    copy_naively(*local, mine, here, *remote, source, there, selection);
    const TransferResult put = run(plan(local, here, remote, there, selection).value());
    ASSERT_TRUE(put) << put.error();
    ASSERT_TRUE(peer.show(theirs, *remote) == source) << "put";
    ASSERT_TRUE(BlockImage::of(*local) == mine) << "a put writes nothing here";
  }

  storage::SystemAllocator near_;
  std::shared_ptr<RemoteTransport> transport_ = GetParam().transport({});
  std::vector<std::uint32_t> there_ = {4, 0, 3};
  std::vector<std::uint32_t> here_ = {1, 2, 5};
  std::uint64_t seed_ = 0;
};

TEST_P(TransportTest, MovesBetweenEveryPairOfLayouts) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  const std::vector<layout::Layout> layouts = every_layout(small_shape(6, 3, 4));
  std::vector<std::shared_ptr<const BlockSet>> locals;
  for (const layout::Layout& one : layouts) locals.push_back(near({PlaneShape::whole(one)}));
  // All of this side for every one of the other, or a part.
  const std::size_t step = testing::few_shapes() ? 15 : testing::kSanitized ? 5 : GetParam().layout_step;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const PeerSet theirs = peer.share(static_cast<std::uint32_t>(i));
    const auto remote = PeerProcess::open(*path, theirs);
    ASSERT_TRUE(remote) << remote.error();
    for (std::size_t j = i % step; j < layouts.size(); j += step) {
      expect_moves(peer, theirs, *remote, there_, locals[j], here_);
      if (HasFatalFailure()) return;
    }
    peer.drop(theirs);
  }
}

TEST_P(TransportTest, MovesPartsPlanesAndManyPieces) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  const PeerSet plain = peer.share(0);
  const auto remote = PeerProcess::open(*path, plain).value();
  expect_moves(peer, plain, remote, there_, near(peer_shape(5)), here_,
               {layout::Range{1, 2}, layout::Range{2, 1}});
  const PeerSet scaled = peer.share(kScaledShape);
  expect_moves(peer, scaled, PeerProcess::open(*path, scaled).value(), there_, near(peer_shape(kScaledShape)),
               here_);
  const PeerSet scattered = peer.share(kScatteredShape);
  const auto pieces = PeerProcess::open(*path, scattered).value();
  layout::LayoutConfig config = scattered.shapes[0].layout.config();
  const auto joined =
      near({PlaneShape::whole(layout::Layout::create(config, layout::order::kFullyContiguousNhd).value())});
  std::vector<std::uint32_t> there(testing::few_shapes() ? 120 : 500);
  std::iota(there.begin(), there.end(), 0u);
  std::vector<std::uint32_t> here(there);
  for (std::uint32_t& block : here) block += 37;
  std::swap(here[20], here[100]);
  expect_moves(peer, scattered, pieces, there, joined, here);
  expect_moves(peer, scattered, pieces, there, near(scattered.shapes), here);
}

TEST_P(TransportTest, ManyTransfersAreInFlightAtOnce) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  const PeerSet theirs = peer.share(kLargeShape);
  const auto remote = PeerProcess::open(*path, theirs).value();
  const auto local = near(theirs.shapes);
  const auto back = near(theirs.shapes);
  BlockImage source(*local, 0);
  source.scramble(3);
  source.store(*local);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<Transfer> puts;
      for (std::uint32_t b = t * 8; b < t * 8 + 8; ++b)
        puts.push_back(transport_->executor()
                           .submit({.plan = plan(local, std::vector{b}, remote, std::vector{b}).value()})
                           .value());
      std::vector<Transfer> gets;
      for (std::uint32_t b = t * 8; b < t * 8 + 8; ++b) {
        if (!puts[b - t * 8].wait()) ++failures;
        gets.push_back(transport_->executor()
                           .submit({.plan = plan(remote, std::vector{b}, back, std::vector{b}).value()})
                           .value());
      }
      for (const Transfer& get : gets)
        if (!get.wait()) ++failures;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(BlockImage::of(*back) == source);
  EXPECT_EQ(transport_->executor().counters().completed, 64u);
  EXPECT_EQ(transport_->executor().counters().in_flight, 0u);
}

TEST_P(TransportTest, ClosingAPathEndsWhatIsInFlightAndRefusesTheRest) {
  transport_ = GetParam().transport({.threads = 1});
  PeerProcess peer(GetParam().name);
  FailureBox failures;
  const std::shared_ptr<RemotePath> path = connect(peer, &failures);
  const PeerSet theirs = peer.share(kLargeShape);
  const auto remote = PeerProcess::open(*path, theirs).value();
  const auto local = near(theirs.shapes);
  const auto get = [&](std::uint32_t block) {
    return plan(remote, std::vector{block}, local, std::vector{block}).value();
  };
  const auto gate = std::make_shared<Gate>();
  const Transfer held =
      transport_->executor()
          .submit({.plan = get(0), .on_done = [gate](const TransferResult&) { gate->pass(); }})
          .value();
  gate->wait_for_somebody();
  std::vector<Transfer> pending;
  for (std::uint32_t block = 1; block < 10; ++block)
    pending.push_back(transport_->executor().submit({.plan = get(block)}).value());
  EXPECT_FALSE(path->failure());
  path->close(Error(ErrorCode::kCancelled, "the test has had enough"));
  path->close(Error(ErrorCode::kCancelled, "and says so twice"));
  ASSERT_TRUE(path->failure());
  EXPECT_EQ(path->failure()->message(), "the test has had enough");
  gate->open();
  for (const Transfer& transfer : pending) {
    const TransferResult result = transfer.wait_for_end();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable) << result.error();
    EXPECT_THAT(result.error().message(), ::testing::HasSubstr("the test has had enough"));
  }
  const Result<Transfer> refused = transport_->executor().submit({.plan = get(20)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable) << refused.error();
  const auto reopened = path->open(theirs.memory[0]);
  ASSERT_FALSE(reopened);
  EXPECT_EQ(reopened.error().code(), ErrorCode::kUnavailable) << reopened.error();
  // Another path to the same peer is not concerned.
  const std::shared_ptr<RemotePath> second = connect(peer, &failures);
  const auto again = PeerProcess::open(*second, theirs).value();
  EXPECT_TRUE(run(plan(again, std::vector{1u}, local, std::vector{1u}).value()));
  EXPECT_EQ(failures.calls(), 0);
}

TEST_P(TransportTest, AKilledPeerFailsWhatIsInFlightInTypedErrors) {
  const std::uint64_t rounds = testing::rounds(20);
  Random random(11);
  std::uint64_t failed = 0;
  for (std::uint64_t round = 0; round < rounds || (failed == 0 && round < 500); ++round) {
    PeerProcess peer(GetParam().name);
    FailureBox failures;
    const std::shared_ptr<RemotePath> path = connect(peer, &failures);
    const PeerSet theirs = peer.share(kLargeShape);
    const auto remote = PeerProcess::open(*path, theirs).value();
    peer.fill(theirs, round);
    const auto local = near(theirs.shapes);
    BlockImage source(*remote, 0);
    source.scramble(round);
    // Callbacks may come after the waits.
    const auto ended = std::make_shared<std::atomic<std::uint64_t>>(0);
    const std::uint64_t kill_after = random.below(40);
    std::thread killer([&] {
      while (*ended < kill_after) std::this_thread::yield();
      peer.process().signal(SIGKILL);
    });
    // Until one is refused or fails.
    for (bool dead = false; !dead;) {
      std::vector<Transfer> gets;
      for (std::uint32_t block = 0; block < 32; ++block) {
        Result<Transfer> get = transport_->executor().submit(
            {.plan = plan(remote, std::vector{block}, local, std::vector{block}).value(),
             .on_done = [ended](const TransferResult&) { ++*ended; }});
        if (!get) {
          EXPECT_EQ(get.error().code(), ErrorCode::kUnavailable) << get.error();
          dead = true;
          break;
        }
        gets.push_back(*std::move(get));
      }
      for (const Transfer& get : gets) {
        const TransferResult result = get.wait_for_end();
        if (result) continue;
        EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable) << result.error();
        ++failed;
        dead = true;
      }
      if (!dead) {
        ASSERT_TRUE(BlockImage::of(*local) == source) << "whole gets bring whole blocks";
      }
    }
    *ended += kill_after;
    killer.join();
    peer.kill();
    const std::optional<Error> failure = failures.wait();
    ASSERT_TRUE(failure) << "the transport does not notice that the peer is gone";
    EXPECT_EQ(failure->code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(path->failure());
    EXPECT_EQ(failures.calls(), 1);
    const TransferResult late = run(plan(local, std::vector{1u}, remote, std::vector{2u}).value());
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable) << late.error();
    EXPECT_EQ(transport_->executor().counters().in_flight, 0u);
  }
  EXPECT_GT(failed, 0u) << "no peer died while a transfer was in flight";
}

TEST_P(TransportTest, ARestartedPeerIsAnotherOne) {
  std::optional<PeerProcess> peer(std::in_place, GetParam().name);
  FailureBox failures;
  const std::shared_ptr<RemotePath> path = connect(*peer, &failures);
  const PeerSet before = peer->share(kLargeShape);
  const auto old = PeerProcess::open(*path, before).value();
  const auto local = near(before.shapes);
  EXPECT_TRUE(run(plan(old, std::vector{1u}, local, std::vector{1u}).value()));
  peer->kill();
  ASSERT_TRUE(failures.wait());
  peer.emplace(GetParam().name);
  const std::shared_ptr<RemotePath> fresh = connect(*peer);
  const PeerSet after = peer->share(kLargeShape);
  const auto remote = PeerProcess::open(*fresh, after).value();
  expect_moves(*peer, after, remote, {3, 4}, local, {4, 3});
  const TransferResult stale = run(plan(old, std::vector{1u}, local, std::vector{1u}).value());
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::kUnavailable) << stale.error();
  const auto confused = fresh->open(before.memory[0]);
  ASSERT_FALSE(confused);
  EXPECT_EQ(confused.error().code(), ErrorCode::kInvalidArgument) << confused.error();
}

TEST_P(TransportTest, TwoPeersAreServedAtOnceAndOneMayGo) {
  PeerProcess one(GetParam().name);
  PeerProcess other(GetParam().name);
  FailureBox failures;
  const std::shared_ptr<RemotePath> to_one = connect(one, &failures);
  const std::shared_ptr<RemotePath> to_other = connect(other);
  const PeerSet ones = one.share(kLargeShape);
  const PeerSet others = other.share(kLargeShape);
  const auto from_one = PeerProcess::open(*to_one, ones).value();
  const auto from_other = PeerProcess::open(*to_other, others).value();
  const auto local = near(ones.shapes);
  const auto second = near(ones.shapes);
  for (std::uint64_t i = 0; i < testing::rounds(16); ++i) {
    std::thread along([&] { expect_moves(one, ones, from_one, {1, 2, 3}, local, {7, 8, 9}); });
    BlockImage source(*from_other, 0);
    source.scramble(i + 100);
    other.fill(others, i + 100);
    BlockImage expected = BlockImage::of(*second);
    copy_naively(*from_other, source, there_, *second, expected, here_);
    const TransferResult got = run(plan(from_other, there_, second, here_).value());
    along.join();
    ASSERT_TRUE(got) << got.error();
    ASSERT_TRUE(BlockImage::of(*second) == expected);
  }
  one.kill();
  ASSERT_TRUE(failures.wait());
  EXPECT_FALSE(to_other->failure());
  expect_moves(other, others, from_other, there_, second, here_);
}

TEST_P(TransportTest, MemoryIsRegisteredAndTakenBackManyTimes) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  for (std::uint64_t i = 0; i < testing::rounds(200); ++i) {
    const PeerSet theirs = peer.share(static_cast<std::uint32_t>(i % 30));
    const auto remote = PeerProcess::open(*path, theirs);
    ASSERT_TRUE(remote) << remote.error();
    expect_moves(peer, theirs, *remote, there_, near(theirs.shapes), here_);
    if (HasFatalFailure()) return;
    peer.drop(theirs);
  }
}

TEST_P(TransportTest, HostileKeysAndAddressesAreRefused) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  const PeerSet theirs = peer.share(kLargeShape);
  const storage::RemoteMemory& good = theirs.memory[0];
  const auto refused = [](const auto& result) {
    return !result && (result.error().code() == ErrorCode::kInvalidArgument ||
                       result.error().code() == ErrorCode::kUnsupported ||
                       result.error().code() == ErrorCode::kUnavailable);
  };
  Random random(5);
  const auto hostile = [&](std::span<const std::byte> honest) {
    std::vector<std::byte> bytes(honest.begin(), honest.end());
    switch (random.below(4)) {
      case 0:
        bytes.resize(random.below(bytes.size()));
        break;
      case 1:
        bytes.push_back(static_cast<std::byte>(random.next()));
        break;
      case 2:
        bytes.resize(random.below(200));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
        break;
      default:
        for (std::uint64_t flips = 1 + random.below(3); flips > 0; --flips)
          bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1 + random.below(255));
    }
    return bytes;
  };
  for (std::uint64_t i = 0; i < testing::rounds(4000); ++i) {
    storage::RemoteMemory bad = good;
    bad.key = hostile(good.key);
    const auto opened = path->open(bad);
    if (GetParam().proves_keys && bad.key != good.key) {
      ASSERT_TRUE(refused(opened)) << "round " << i;
    }
  }
  for (std::uint64_t i = 0; i < testing::rounds(1000); ++i) {
    const std::vector<std::byte> address = hostile(peer.address());
    const auto connected = transport_->connect(peer.identity(), address, {});
    if (!connected) {
      ASSERT_TRUE(refused(connected)) << connected.error();
    }
  }
  // Outside the registration, around the end of the address space, of another kind, of another owner.
  const auto changed = [&](const std::function<void(storage::RemoteMemory&)>& change) {
    storage::RemoteMemory bad = good;
    change(bad);
    return path->open(bad);
  };
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.bytes += 1; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.address -= 1; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.address += bad.bytes; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.bytes = ~std::uint64_t{0}; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.bytes = 0; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.kind = StorageKind::kDisk; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { ++bad.device; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { ++bad.incarnation; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { ++bad.agent; })));
  EXPECT_TRUE(refused(changed([](auto& bad) { bad.key.assign(5000, std::byte{1}); })));
  // A part of the registration is fine, and the peer is unharmed.
  const auto part = changed([](auto& smaller) {
    smaller.address += 4096;
    smaller.bytes -= 8192;
  });
  EXPECT_TRUE(part) << part.error();
  expect_moves(peer, theirs, PeerProcess::open(*path, theirs).value(), there_, near(theirs.shapes), here_);
}

// The owner's bytes stay, whatever a peer makes of a key for reading.
TEST_P(TransportTest, MemoryThatIsOfferedForReadingIsNotWritten) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  const PeerSet theirs = peer.share(kLargeShape, storage::AccessMode::kRead);
  const auto remote = PeerProcess::open(*path, theirs).value();
  const auto local = near(theirs.shapes);
  peer.fill(theirs, 9);
  BlockImage source(*remote, 0);
  source.scramble(9);
  BlockImage expected(*local, 0xEE);
  expected.store(*local);
  copy_naively(*remote, source, there_, *local, expected, here_);
  const TransferResult got = run(plan(remote, there_, local, here_).value());
  ASSERT_TRUE(got) << got.error();
  EXPECT_TRUE(BlockImage::of(*local) == expected);
  const auto refuses = [](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument) << result.error();
    EXPECT_THAT(result.error().message(), ::testing::HasSubstr("for reading"));
  };
  refuses(plan(local, here_, remote, there_));
  // A plan for other memory, submitted for this.
  const PeerSet both = peer.share(kLargeShape);
  const auto writable = PeerProcess::open(*path, both).value();
  refuses(run(plan(local, here_, writable, there_).value().between(local, remote)));
  // More than the key allows.
  PeerSet claimed = theirs;
  for (storage::RemoteMemory& memory : claimed.memory) memory.mode = storage::AccessMode::kReadWrite;
  refuses(PeerProcess::open(*path, claimed));
  // A key that says so. Either it is not one, or the owner refuses the put.
  if (GetParam().forge) {
    for (storage::RemoteMemory& memory : claimed.memory) memory.key = GetParam().forge(memory.key);
    if (const auto forged = PeerProcess::open(*path, claimed)) {
      refuses(run(plan(local, here_, *forged, there_).value()));
      const TransferResult read = run(plan(*forged, there_, local, here_).value());
      EXPECT_TRUE(read) << read.error();
    } else {
      EXPECT_EQ(forged.error().code(), ErrorCode::kInvalidArgument) << forged.error();
    }
  }
  EXPECT_TRUE(peer.show(theirs, *remote) == source);
  EXPECT_FALSE(path->failure());
  expect_moves(peer, both, writable, there_, local, here_);
  // Less than the key allows is fine.
  PeerSet modest = both;
  for (storage::RemoteMemory& memory : modest.memory) memory.mode = storage::AccessMode::kRead;
  refuses(plan(local, here_, PeerProcess::open(*path, modest).value(), there_));
}

TEST_P(TransportTest, RefusesPlansThatAreNotItsOwn) {
  PeerProcess peer(GetParam().name);
  const std::shared_ptr<RemotePath> path = connect(peer);
  const PeerSet theirs = peer.share(0);
  const auto remote = PeerProcess::open(*path, theirs).value();
  const auto other = PeerProcess::open(*path, peer.share(0)).value();
  const auto local = near(theirs.shapes);
  const auto code = [&](RemoteTransport& transport, TransferPlan move) {
    const Result<Transfer> transfer = transport.executor().submit({.plan = std::move(move)});
    return transfer ? std::optional<ErrorCode>() : transfer.error().code();
  };
  EXPECT_EQ(code(*transport_, plan(remote, there_, other, here_).value()), ErrorCode::kUnsupported);
  EXPECT_EQ(code(*transport_, plan(local, there_, near(theirs.shapes), here_).value()),
            ErrorCode::kUnsupported);
  const std::shared_ptr<RemoteTransport> second = GetParam().transport({});
  EXPECT_EQ(code(*second, plan(remote, there_, local, here_).value()), ErrorCode::kUnsupported)
      << "storage belongs to the transport that opened it";
  EXPECT_FALSE(
      transport_->register_memory(remote->planes()[0].regions[0].storage, storage::AccessMode::kReadWrite));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportTest);

// Both sides in one process, for ExecutorTest: remote memory of the test's own, so that the test sees its
// bytes at their addresses.
struct TransportPair {
  std::shared_ptr<RemoteTransport> theirs;
  std::unique_ptr<storage::Allocator> memory;
  std::vector<std::unique_ptr<MemoryRegistration>> registrations;
  std::shared_ptr<RemotePath> path;
  std::shared_ptr<RemoteTransport> ours;  // goes first
  static inline std::weak_ptr<TransportPair> latest = {};
};

class PairExecutor final : public Executor {
 public:
  explicit PairExecutor(std::shared_ptr<TransportPair> pair) : pair_(std::move(pair)) {}
  std::string_view name() const noexcept override { return pair_->ours->executor().name(); }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override {
    return pair_->ours->executor().handles(from, to);
  }
  Result<Transfer> submit(TransferRequest request) override {
    return pair_->ours->executor().submit(std::move(request));
  }
  ExecutorCounters counters() const override { return pair_->ours->executor().counters(); }

 private:
  const std::shared_ptr<TransportPair> pair_;
};

// Remote storage of the executor that was made last.
class RemoteAllocator final : public storage::Allocator {
 public:
  StorageKind kind() const noexcept override { return StorageKind::kRemote; }
  Result<std::shared_ptr<storage::Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override {
    const std::shared_ptr<TransportPair> pair = TransportPair::latest.lock();
    ASHLAR_CHECK(pair != nullptr, "the executor comes before its memory");
    ASHLAR_TRY(const std::shared_ptr<storage::Storage> made, pair->memory->allocate(bytes, alignment));
    ASHLAR_TRY(std::unique_ptr<MemoryRegistration> registration,
               pair->theirs->register_memory(made, storage::AccessMode::kReadWrite));
    pair->registrations.push_back(std::move(registration));
    const std::span<const std::byte> key = pair->registrations.back()->key();
    return pair->path
        ->open({.kind = made->kind(),
                .address = reinterpret_cast<std::uintptr_t>(made->address()),
                .bytes = made->size(),
                .agent = 3,
                .incarnation = 4,
                .key = std::vector<std::byte>(key.begin(), key.end()),
                .mode = storage::AccessMode::kReadWrite})
        .transform([](auto&& storage) { return std::shared_ptr<storage::Storage>(storage); });
  }
};

inline ExecutorCase executor_case(const TransportCase& one) {
  return {one.name,
          [one](const ExecutorSettings& settings) -> std::unique_ptr<Executor> {
            auto pair = std::make_shared<TransportPair>();
            pair->ours = one.transport(settings);
            pair->theirs = one.transport({});
            if (pair->ours == nullptr || pair->theirs == nullptr) return nullptr;
            pair->memory = one.memory();
            pair->path =
                pair->ours->connect({.agent = 3, .incarnation = 4}, pair->theirs->address(), {}).value();
            TransportPair::latest = pair;
            return std::make_unique<PairExecutor>(std::move(pair));
          },
          [](const ScratchFolder&) { return std::make_unique<storage::SystemAllocator>(); },
          [](const ScratchFolder&, std::shared_ptr<storage::IoFaults>) {
            return std::make_unique<RemoteAllocator>();
          }};
}

}  // namespace ashlar::transfer
