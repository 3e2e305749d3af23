// How far a worker's events can be trusted, step by step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <thread>

#include "ashlar/base/mutex.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "feed/engine_messages.h"
#include "service/route/engine_follower.h"

namespace ashlar::service {
namespace {

using events::BlockName;
using feed::BatchBuilder;
using feed::BatchEncoder;
using feed::EngineMessage;
using ::testing::HasSubstr;
using tokens::Token;

constexpr std::uint32_t kSize = 4;

// Block `number` of a sequence that only this test knows: name, tokens.
std::vector<Token> tokens_of_block(std::uint32_t number) {
  return std::vector<Token>(kSize, Token(number + 1));
}

EngineMessage stored_message(std::uint64_t sequence, std::uint32_t block, double time = 1,
                             std::string_view medium = "GPU") {
  BatchBuilder batch;
  batch.batch().timestamp = time;
  const BlockName name(block + 100);
  batch.stored(block == 0 ? std::nullopt : std::optional(BlockName(block + 99)), std::span(&name, 1),
               tokens_of_block(block), kSize, medium);
  return {.topic = "kv", .sequence = sequence, .payload = BatchEncoder::encode(batch.batch())};
}

EngineMessage cleared_message(std::uint64_t sequence) {
  BatchBuilder batch;
  batch.batch().timestamp = 1;
  batch.cleared();
  return {.topic = "kv", .sequence = sequence, .payload = BatchEncoder::encode(batch.batch())};
}

// What an engine sends and keeps, told by the test while a follower listens.
class Engine {
 public:
  void send(EngineMessage message, bool is_lost = false, bool is_kept = true) {
    MutexLock lock(mu_);
    if (is_kept) kept_.push_back(message);
    if (!is_lost) live_.push_back(std::move(message));
  }
  void set_connected(bool is_connected) {
    MutexLock lock(mu_);
    is_connected_ = is_connected;
  }
  void set_looked_back(bool has_looked_back) {
    MutexLock lock(mu_);
    has_looked_back_ = has_looked_back;
  }
  // Holds replays until it is called with false.
  void hold_replays(bool hold) {
    MutexLock lock(mu_);
    holds_ = hold;
  }
  void restart() {
    MutexLock lock(mu_);
    kept_.clear();
    ++restarts_;
  }
  // Its connection broke and came back, and nothing is kept of what was sent meanwhile.
  void reconnect_blindly() {
    MutexLock lock(mu_);
    kept_.clear();
    ++blind_reconnects_;
  }

  class Source final : public feed::EngineSource {
   public:
    explicit Source(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
    Result<std::optional<EngineMessage>> receive(Clock::Duration) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      MutexLock lock(engine_->mu_);
      if (!engine_->is_connected_) return Error(ErrorCode::kUnavailable, "not connected");
      if (engine_->live_.empty()) return std::optional<EngineMessage>();
      std::optional<EngineMessage> message = std::move(engine_->live_.front());
      engine_->live_.pop_front();
      return message;
    }
    Result<feed::EngineReplay> replay(std::uint64_t from) override {
      for (;;) {
        {
          MutexLock lock(engine_->mu_);
          if (!engine_->holds_) {
            feed::EngineReplay replay;
            for (const EngineMessage& message : engine_->kept_)
              if (message.sequence >= from) replay.messages.push_back(message);
            return replay;
          }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    std::uint64_t damaged() const noexcept override { return 0; }
    std::uint64_t restarts() const noexcept override {
      MutexLock lock(engine_->mu_);
      return engine_->restarts_;
    }
    bool has_looked_back() const noexcept override {
      MutexLock lock(engine_->mu_);
      return engine_->has_looked_back_;
    }
    std::uint64_t blind_reconnects() const noexcept override {
      MutexLock lock(engine_->mu_);
      return engine_->blind_reconnects_;
    }
    std::string describe() const override { return "an engine of the test"; }

   private:
    std::shared_ptr<Engine> engine_;
  };

 private:
  Mutex mu_;
  std::deque<EngineMessage> live_ ASHLAR_GUARDED_BY(mu_);
  std::vector<EngineMessage> kept_ ASHLAR_GUARDED_BY(mu_);
  bool is_connected_ ASHLAR_GUARDED_BY(mu_) = true;
  bool has_looked_back_ ASHLAR_GUARDED_BY(mu_) = false;
  bool holds_ ASHLAR_GUARDED_BY(mu_) = false;
  std::uint64_t restarts_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t blind_reconnects_ ASHLAR_GUARDED_BY(mu_) = 0;
};

class FollowerTest : public ::testing::Test {
 protected:
  FollowerTest() { router_.add_worker({.id = worker_.id, .group = "m", .has_events = true}); }
  void follow(Clock::Duration late_after = std::chrono::seconds(100)) {
    follower_ = EngineFollower::create({.worker = worker_, .late_after = late_after}, router_,
                                       std::make_unique<Engine::Source>(engine_), {})
                    .value();
  }
  FollowerStatus wait_for(WorkerState state, const std::string& reason = {}) {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    FollowerStatus status;
    do {
      status = follower_->status();
      if (status.state == state && status.reason.find(reason) != std::string::npos) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (std::chrono::steady_clock::now() < last);
    ADD_FAILURE() << "it is " << to_string(status.state) << ": " << status.reason;
    return status;
  }
  // Blocks of the sequence that the router knows at the worker.
  std::uint32_t depth() const {
    std::vector<tokens::LocalHash> locals;
    for (std::uint32_t i = 0; i < 8; ++i)
      locals.push_back(tokens::SequenceHasher().local_hash(tokens_of_block(i)));
    return router_.look_up("m", locals).at(0).depth;
  }
  void wait_for_depth(std::uint32_t wanted) {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (depth() != wanted && std::chrono::steady_clock::now() < last)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(depth(), wanted);
  }

  const events::Worker worker_{.id = events::WorkerId(3)};
  Router router_;
  std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
  std::unique_ptr<EngineFollower> follower_;
};

TEST_F(FollowerTest, TheFirstMessageIsAKnownStart) {
  follow();
  wait_for(WorkerState::kDegraded, "no message yet");
  engine_->send(stored_message(0, 0));
  const FollowerStatus status = wait_for(WorkerState::kExact);
  wait_for_depth(1);
  EXPECT_EQ(status.block_size, kSize);
  EXPECT_EQ(router_.loads().at(0).state, WorkerState::kExact) << "the router is told";
}

TEST_F(FollowerTest, AnEmptyReplayIsAKnownStartToo) {
  engine_->set_looked_back(true);
  follow();
  wait_for(WorkerState::kExact);
}

TEST_F(FollowerTest, AGapIsRepairedAndShownMeanwhile) {
  engine_->hold_replays(true);
  follow();
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  engine_->send(stored_message(1, 1), true);
  engine_->send(stored_message(2, 2));
  wait_for(WorkerState::kDegraded, "being replayed");
  engine_->hold_replays(false);
  const FollowerStatus status = wait_for(WorkerState::kExact);
  wait_for_depth(3);
  EXPECT_EQ(status.session.gaps, 1u);
}

TEST_F(FollowerTest, WhatIsLostForGoodDegradesUntilAClear) {
  follow();
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  engine_->send(stored_message(1, 1), true, false);
  engine_->send(stored_message(2, 2));
  wait_for(WorkerState::kDegraded, "1 messages were lost for good");
  EXPECT_EQ(depth(), 0u) << "nothing is believed that may be gone";
  engine_->send(cleared_message(3));
  wait_for(WorkerState::kExact);
}

TEST_F(FollowerTest, AStartThatIsNotKeptDegradesUntilARestart) {
  follow();
  engine_->send(stored_message(7, 0), false, false);
  wait_for(WorkerState::kDegraded, "the start is not kept");
  engine_->restart();
  engine_->send(stored_message(0, 0, 9));
  const FollowerStatus status = wait_for(WorkerState::kExact);
  EXPECT_GE(status.session.restarts, 1u);
}

TEST_F(FollowerTest, ALostConnectionDegradesUntilTheStreamIsWhole) {
  follow();
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  engine_->set_connected(false);
  wait_for(WorkerState::kDegraded, "not connected");
  engine_->set_connected(true);
  wait_for(WorkerState::kDegraded, "connected again");
  engine_->send(stored_message(1, 1));
  wait_for(WorkerState::kExact);
}

TEST_F(FollowerTest, NumbersThatFollowOnAfterABlindReconnectProveNothing) {
  follow();
  engine_->send(stored_message(0, 0));
  engine_->send(stored_message(1, 1));
  wait_for(WorkerState::kExact);
  wait_for_depth(2);
  engine_->reconnect_blindly();
  wait_for(WorkerState::kDegraded, "connected again, and no replay tells what was missed");
  EXPECT_EQ(depth(), 0u) << "the engine may have been restarted";
  engine_->send(stored_message(2, 2), false, false);
  wait_for(WorkerState::kDegraded, "the start is not kept");
  engine_->send(cleared_message(3), false, false);
  wait_for(WorkerState::kExact);
  engine_->reconnect_blindly();
  wait_for(WorkerState::kDegraded, "connected again");
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  wait_for_depth(1);
}

TEST_F(FollowerTest, AClearOfTheDeviceEndsNoLossOfOtherTiers) {
  follow();
  engine_->send(stored_message(0, 0));
  engine_->send(stored_message(1, 0, 1, "CPU"));
  wait_for(WorkerState::kExact);
  engine_->send(stored_message(2, 1), true, false);
  engine_->send(stored_message(3, 0));
  wait_for(WorkerState::kDegraded, "1 messages were lost for good");
  engine_->send(cleared_message(4));
  wait_for(WorkerState::kDegraded, "lost for good, of lower tiers");
  engine_->restart();
  engine_->send(stored_message(0, 0, 9));
  wait_for(WorkerState::kExact);
}

TEST_F(FollowerTest, ATierThatIsNamedAfterTheClearWasLostToo) {
  follow();
  engine_->send(stored_message(0, 0));
  engine_->send(stored_message(1, 1), true, false);
  engine_->send(stored_message(2, 2));
  wait_for(WorkerState::kDegraded, "lost for good");
  engine_->send(cleared_message(3));
  wait_for(WorkerState::kExact);
  engine_->send(stored_message(4, 0, 1, "CPU"));
  wait_for(WorkerState::kDegraded, "of lower tiers");
}

TEST_F(FollowerTest, ARestartDropsWhatTheOldEngineHeld) {
  follow();
  engine_->send(stored_message(0, 0));
  engine_->send(stored_message(1, 1));
  wait_for_depth(2);
  engine_->restart();
  wait_for_depth(0);
}

TEST_F(FollowerTest, AClearIsNoEviction) {
  follow();
  engine_->send(stored_message(0, 0));
  engine_->send(stored_message(1, 1));
  wait_for_depth(2);
  engine_->send(cleared_message(2));
  wait_for_depth(0);
  engine_->send(stored_message(3, 0));
  wait_for_depth(1);
  EXPECT_EQ(router_.changes(worker_), (WorkerChanges{.stored = 3, .removed = 0, .cleared = 1}));
}

TEST_F(FollowerTest, EventsThatAreOwedAreLate) {
  follow(std::chrono::milliseconds(1));
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  const WorkerChanges before = router_.changes(worker_);
  follower_->expect_event(before);
  wait_for(WorkerState::kDegraded, "late");
  engine_->send(stored_message(1, 1));
  wait_for(WorkerState::kExact);
  // One that came before it was asked for is not owed.
  follower_->expect_event(before);
  engine_->send(stored_message(2, 2));
  wait_for_depth(3);
  wait_for(WorkerState::kExact);
}

TEST_F(FollowerTest, AnotherBlockSizeIsSaid) {
  follower_ = EngineFollower::create({.worker = worker_, .block_size = 16}, router_,
                                     std::make_unique<Engine::Source>(engine_), {})
                  .value();
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kDegraded, "16 are expected");
}

}  // namespace
}  // namespace ashlar::service
