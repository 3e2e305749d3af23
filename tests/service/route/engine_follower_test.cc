// How far a worker's events can be trusted, step by step.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "ashlar/tokens/sequence_hasher.h"
#include "service/route/engine_follower.h"
#include "service/route/fake_engine.h"

namespace ashlar::service {
namespace {

class FollowerTest : public ::testing::Test {
 protected:
  FollowerTest() { router_.add_worker({.id = worker_.id, .group = "m", .has_events = true}); }
  void follow(Clock::Duration late_after = std::chrono::seconds(100)) {
    follower_ = EngineFollower::create({.worker = worker_, .late_after = late_after}, router_,
                                       std::make_unique<FakeEngine::Source>(engine_), {})
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
  ManualClock clock_;
  Router router_{{}, nullptr, clock_};
  std::shared_ptr<FakeEngine> engine_ = std::make_shared<FakeEngine>();
  std::unique_ptr<EngineFollower> follower_;
};

TEST_F(FollowerTest, TheFirstMessageIsAKnownStart) {
  follow();
  wait_for(WorkerState::kDegraded, "no message yet");
  engine_->send(stored_message(0, 0));
  const FollowerStatus status = wait_for(WorkerState::kExact);
  wait_for_depth(1);
  EXPECT_EQ(status.block_size, kFakeBlockSize);
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

TEST_F(FollowerTest, ANewEngineMayHaveOtherTiers) {
  follow();
  engine_->send(stored_message(0, 0));
  engine_->send(stored_message(1, 0, 1, "CPU"));
  while (follower_->status().session.applied < 2) std::this_thread::yield();
  engine_->restart();
  wait_for_depth(0);
  engine_->send(stored_message(0, 0, 9));
  wait_for_depth(1);
  engine_->send(cleared_message(1));
  wait_for_depth(0);
  EXPECT_EQ(router_.changes(worker_).removed, 0u) << "there is only the device, and it was cleared";
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

TEST_F(FollowerTest, AThreadThatDoesNotReadIsLate) {
  follow();
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  engine_->hold_reader(true);
  for (std::uint32_t i = 1; i < 8; ++i) engine_->send(stored_message(i, i));
  clock_.advance(std::chrono::seconds(3));
  EXPECT_EQ(follower_->status().state, WorkerState::kDegraded);
  EXPECT_EQ(follower_->status().reason.find("late"), 0u);
  EXPECT_EQ(router_.loads().at(0).state, WorkerState::kDegraded);
  const std::vector<tokens::LocalHash> locals = {tokens::LocalHash(1)};
  const Decision decision =
      router_.choose({.group = "m", .locals = locals, .prompt_tokens = 8, .block_size = 4}).value();
  EXPECT_EQ(decision.choice().state, WorkerState::kDegraded);
  router_.release(decision.id);
  engine_->hold_reader(false);
  wait_for(WorkerState::kExact);
  EXPECT_EQ(depth(), 8u) << "not before everything was read";
  EXPECT_EQ(router_.loads().at(0).state, WorkerState::kExact);
}

TEST_F(FollowerTest, AnAnswerIsOddForOneSizeOnly) {
  follow();
  follower_->set_model_block_size(kFakeBlockSize);
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kExact);
  follower_->note_odd_answer(6);
  wait_for(WorkerState::kDegraded, "6 cached tokens");
  follower_->set_model_block_size(2);
  wait_for(WorkerState::kDegraded, "those of the model's other workers 2");
  follower_->set_model_block_size(kFakeBlockSize);
  wait_for(WorkerState::kExact);
}

TEST_F(FollowerTest, AnotherBlockSizeIsSaid) {
  follower_ = EngineFollower::create({.worker = worker_, .block_size = 16}, router_,
                                     std::make_unique<FakeEngine::Source>(engine_), {})
                  .value();
  engine_->send(stored_message(0, 0));
  wait_for(WorkerState::kDegraded, "16 are expected");
}

// What a follower of another router knows after message 3.
SavedEngine saved_elsewhere(double time = 1) {
  auto engine = std::make_shared<FakeEngine>();
  Router router;
  const events::Worker worker{.id = events::WorkerId(9)};
  router.add_worker({.id = worker.id, .group = "m", .has_events = true});
  for (std::uint32_t i = 0; i < 4; ++i) engine->send(stored_message(i, i, time));
  const auto follower =
      EngineFollower::create({.worker = worker}, router, std::make_unique<FakeEngine::Source>(engine), {})
          .value();
  for (;;) {
    SavedEngine saved = follower->save().get();
    if (saved && saved->message == 3) return saved;
  }
}

TEST_F(FollowerTest, ASnapshotAtAMessageThatIsKeptMakesTheStateComplete) {
  follow();
  engine_->send(stored_message(3, 3), true);
  engine_->send(stored_message(4, 4));
  wait_for(WorkerState::kDegraded, "the start is not kept");
  EXPECT_FALSE(follower_->save().get()) << "what is not exact is told to nobody";
  follower_->offer(saved_elsewhere());
  wait_for(WorkerState::kExact);
  EXPECT_EQ(depth(), 5u);
  engine_->send(stored_message(5, 5));
  wait_for_depth(6);
}

TEST_F(FollowerTest, ASnapshotIsJoinedToWhatWasHeardWhereTheEngineKeepsNothing) {
  follow();
  for (std::uint32_t i = 2; i < 5; ++i) engine_->send(stored_message(i, i), false, false);
  wait_for(WorkerState::kDegraded, "the start is not kept");
  follower_->offer(saved_elsewhere());
  wait_for(WorkerState::kExact);
  EXPECT_EQ(depth(), 5u);
}

TEST_F(FollowerTest, ASnapshotThatDoesNotFitIsNotBelieved) {
  follow();
  engine_->send(stored_message(3, 3), true);
  engine_->send(stored_message(4, 4));
  wait_for(WorkerState::kDegraded, "the start is not kept");
  follower_->offer(saved_elsewhere(2));
  wait_for(WorkerState::kDegraded, "the engine was restarted");
  follower_->offer(Error(ErrorCode::kNotFound, "it does not say at which message it was taken"));
  wait_for(WorkerState::kDegraded, "it does not say at which message it was taken");
  EXPECT_EQ(depth(), 0u);
}

TEST_F(FollowerTest, ASnapshotIsOfferedBeforeTheFirstMessage) {
  follow();
  follower_->offer(saved_elsewhere());
  engine_->send(stored_message(3, 3), true);
  engine_->send(stored_message(4, 4));
  wait_for(WorkerState::kExact);
  EXPECT_EQ(depth(), 5u);
}

}  // namespace
}  // namespace ashlar::service
