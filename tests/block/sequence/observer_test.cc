// What a BlockObserver hears, whichever interface its manager is used through.
#include "ashlar/block/block_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/sequence_batch.h"
#include "block/sequence/sequence_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

using Names = std::vector<SequenceHash>;

enum class Told : std::uint8_t { kOut, kRegistering, kRegistered, kEvicted, kRetention };

// Writes down the calls, and checks that each block's come in the order of the header.
class ToldObserver final : public BlockObserver {
 public:
  explicit ToldObserver(std::vector<std::pair<const ToldObserver*, Told>>* order = nullptr) : order_(order) {}

  struct Call {
    Told told;
    Ids ids;
    Names names;
  };
  std::vector<Call> calls;
  std::function<void()> during = [] {};  // in registering()

  // Takes them out.
  std::vector<Call> take() { return std::exchange(calls, {}); }
  std::vector<Told> kinds() const {
    std::vector<Told> out;
    for (const Call& call : calls) out.push_back(call.told);
    return out;
  }
  Ids ids(Told told) const {
    Ids out;
    for (const Call& call : calls)
      if (call.told == told) out.insert(out.end(), call.ids.begin(), call.ids.end());
    return out;
  }
  Names names(Told told) const {
    Names out;
    for (const Call& call : calls)
      if (call.told == told) out.insert(out.end(), call.names.begin(), call.names.end());
    return out;
  }

  void handed_out(std::span<const BlockId> blocks) noexcept override {
    Call& call = begin(Told::kOut);
    for (const BlockId id : blocks) {
      call.ids.push_back(id.value());
      lives_[id.value()] = Life::kOwned;
    }
  }
  void registering(std::span<const RegisteredBlock> blocks) override {
    Call& call = begin(Told::kRegistering);
    for (const RegisteredBlock& block : blocks) {
      add(call, block);
      EXPECT_NE(lives_[block.id.value()], Life::kFindable) << block.id.value();
      lives_[block.id.value()] = Life::kAnnounced;
    }
    during();
  }
  void registered(std::span<const RegisteredBlock> blocks) noexcept override {
    Call& call = begin(Told::kRegistered);
    for (const RegisteredBlock& block : blocks) {
      add(call, block);
      EXPECT_NE(lives_[block.id.value()], Life::kOwned) << block.id.value();
      lives_[block.id.value()] = Life::kFindable;
    }
  }
  void evicted(std::span<const EvictedBlock> blocks) noexcept override {
    Call& call = begin(Told::kEvicted);
    for (const EvictedBlock& block : blocks) {
      call.ids.push_back(block.id.value());
      call.names.push_back(block.hash);
      EXPECT_EQ(lives_[block.id.value()], Life::kFindable) << block.id.value();
      lives_[block.id.value()] = Life::kNone;
    }
  }
  void retention_set(const SequenceHash& hash, const BlockRetention&) noexcept override {
    begin(Told::kRetention).names.push_back(hash);
  }

 private:
  enum class Life : std::uint8_t { kNone, kOwned, kAnnounced, kFindable };
  Call& begin(Told told) {
    if (order_ != nullptr) order_->emplace_back(this, told);
    return calls.emplace_back(Call{told, {}, {}});
  }
  static void add(Call& call, const RegisteredBlock& block) {
    call.ids.push_back(block.id.value());
    call.names.push_back(block.identity.hash);
  }

  std::vector<std::pair<const ToldObserver*, Told>>* const order_;
  std::map<std::uint32_t, Life> lives_;
};

// Fills four blocks with the 16 tokens from `first` on, registers them and lets them go.
struct Way {
  std::string name;
  std::function<void(Manager&, std::uint32_t first)> run;
};

void with_guards(Manager& manager, std::uint32_t first) {
  const Blocks stored = store_all(manager, sequence_of(4, first));
  EXPECT_EQ(stored.size(), 4u);
}
void with_spans(Manager& manager, std::uint32_t first) {
  const TokenSequence text = sequence_of(4, first);
  std::array<Mutable, 4> taken;
  ASSERT_TRUE(manager.allocate_blocks(taken));
  std::vector<Complete> complete;
  for (std::size_t i = 0; i < 4; ++i)
    complete.push_back(value_of(std::move(taken[i]).complete(text.blocks()[i], kReady)));
  std::array<Immutable, 4> stored;
  ASSERT_TRUE(manager.register_blocks(complete, stored));
}
void with_a_sequence(Manager& manager, std::uint32_t first) {
  const Sequences sequences(manager);
  auto sequence = computed(sequences, tokens_from(first, 16));
  ASSERT_TRUE(sequences.deallocate(sequence));
}
void with_blocks_at_once(Manager& manager, std::uint32_t first) {
  const Sequences sequences(manager, {.register_blocks = RegisterBlocks::kAtOnce});
  const auto sequence = computed(sequences, tokens_from(first, 16));
  EXPECT_EQ(sequence.block_count(), 4u);
}
void with_a_request(Manager& manager, std::uint32_t first) {
  auto request = value_of(Request::create(manager, tokens_from(first, 16)));
  for (const std::size_t chunk : {6u, 10u}) {
    ASSERT_TRUE(request.schedule_prefill(chunk));
    ASSERT_TRUE(request.apply_prefill(chunk == 10 ? std::optional(Token(9)) : std::nullopt));
  }
}
void with_a_batch(Manager& manager, std::uint32_t first) {
  auto one = value_of(Request::create(manager, tokens_from(first, 8)));
  auto two = value_of(Request::create(manager, tokens_from(first + 8, 8)));
  SequenceBatch<G1> batch;
  batch.add(one);
  batch.add(two);
  ASSERT_TRUE(batch.schedule_prefill(std::array<std::size_t, 2>{8, 8}));
  ASSERT_TRUE(batch.apply_prefill(std::array<std::optional<Token>, 2>{Token(9), Token(9)}));
  batch.release();
}

class ObservedWaysTest : public ::testing::TestWithParam<Way> {
 protected:
  ObservedWaysTest() { manager_.observe(told_); }

  ToldObserver told_;
  Manager manager_ = manager_of(4);
};

TEST_P(ObservedWaysTest, EachBlockIsToldOnceAndInOrder) {
  GetParam().run(manager_, 0);
  const Ids ids = told_.ids(Told::kOut);
  EXPECT_THAT(ids, UnorderedElementsAre(0u, 1u, 2u, 3u));
  EXPECT_EQ(told_.ids(Told::kRegistering), told_.ids(Told::kRegistered));
  EXPECT_THAT(told_.ids(Told::kRegistered), UnorderedElementsAreArray(ids));
  const Names names = told_.names(Told::kRegistered);
  EXPECT_EQ(told_.names(Told::kRegistering), names);
  for (const SequenceHash& name : names) EXPECT_TRUE(manager_.contains(name));
  EXPECT_THAT(told_.ids(Told::kEvicted), IsEmpty());

  // Others take their place.
  told_.take();
  GetParam().run(manager_, 1000);
  EXPECT_THAT(told_.names(Told::kEvicted), UnorderedElementsAreArray(names));
  EXPECT_THAT(told_.ids(Told::kEvicted), UnorderedElementsAreArray(told_.ids(Told::kOut)));
  EXPECT_EQ(told_.calls.front().told, Told::kEvicted) << "before they have another owner";
  EXPECT_EQ(told_.names(Told::kRegistered).size(), 4u);
}

// What is found again is neither handed out nor registered.
TEST_P(ObservedWaysTest, AHitIsNotTold) {
  GetParam().run(manager_, 0);
  told_.take();
  {
    auto again = value_of(Request::create(manager_, tokens_from(0, 8), {.reuse_last_token = true}));
    EXPECT_EQ(value_of(again.match_prefix()), 8u);
    EXPECT_EQ(manager_.match_blocks(std::span<const SequenceHash>(again.sequence_hashes())).size(), 2u);
  }
  EXPECT_THAT(told_.calls, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Interfaces, ObservedWaysTest,
                         ::testing::Values(Way{"Guards", with_guards}, Way{"Spans", with_spans},
                                           Way{"Sequences", with_a_sequence},
                                           Way{"SequencesAtOnce", with_blocks_at_once},
                                           Way{"Requests", with_a_request}, Way{"Batches", with_a_batch}),
                         [](const auto& way) { return way.param.name; });

class BlockObserverTest : public ::testing::Test {
 protected:
  Manager observed(std::uint32_t blocks) {
    Manager manager = manager_of(blocks);
    manager.observe(told_);
    return manager;
  }
  ToldObserver told_;
  const TokenSequence text_ = sequence_of(8);
};

TEST_F(BlockObserverTest, TheIdsOfATwinAreThoseUnderWhichItIsFound) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kReject, DuplicatePolicy::kAllow}) {
    ToldObserver told;
    Manager manager = value_of(builder_of(4).duplicate_policy(policy).build());
    manager.observe(told);
    const Immutable first = store_one(manager, text_.blocks()[0]);
    told.take();
    const Immutable second = store_one(manager, text_.blocks()[0]);
    const bool own = policy == DuplicatePolicy::kAllow;
    const Ids candidate = told.ids(Told::kOut);
    EXPECT_EQ(told.ids(Told::kRegistering), candidate) << "nobody knows yet that it has a twin";
    EXPECT_EQ(told.ids(Told::kRegistered), own ? candidate : Ids{first.block_id().value()});
    EXPECT_EQ(second.block_id().value(), told.ids(Told::kRegistered)[0]);
  }
}

TEST_F(BlockObserverTest, ARegistrationThatIsRefusedEndsWithItsAnnouncement) {
  Manager manager = observed(4);
  const SequenceHash name = name_of(0, 7);
  const RegistrationOptions mine{.salt = tokens::salt_fingerprint(tokens::Salt("lora", "mine"))};
  const RegistrationOptions other{.salt = tokens::salt_fingerprint(tokens::Salt("lora", "other"))};
  const Immutable stored = value_of(manager.register_block(stage_one(manager, name), mine));
  told_.take();
  auto refused = manager.register_block(stage_one(manager, name), other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(told_.kinds(), ElementsAre(Told::kOut, Told::kRegistering));
  // The block came back, and may be announced again.
  told_.take();
  const Immutable renamed = value_of(
      manager.register_block(std::move(refused.error().guard).reset().stage(name_of(0, 8), kReady), other));
  EXPECT_THAT(told_.kinds(), ElementsAre(Told::kRegistering, Told::kRegistered));
}

TEST_F(BlockObserverTest, WithoutMemoryInRegisteringNothingIsRegistered) {
  Manager manager = observed(4);
  told_.during = [] { throw std::bad_alloc(); };
  {
    auto refused = manager.register_block(complete_one(manager, text_.blocks()[0]));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error.code(), ErrorCode::kCapacity);
  }
  auto request = value_of(Request::create(manager, tokens_from(0, 8)));
  ASSERT_TRUE(request.schedule_prefill(8));
  EXPECT_EQ(request.apply_prefill(Token(1)).error().reason, Why::kOutOfMemory);
  EXPECT_EQ(request.state(), RequestState::kPrefillScheduled);
  EXPECT_THAT(told_.names(Told::kRegistered), IsEmpty());
  EXPECT_FALSE(manager.contains(text_.blocks()[0].sequence_hash()));
  manager.check_invariants();
  told_.during = [] {};
  EXPECT_EQ(value_of(request.apply_prefill(Token(1))).registered, 2u);
  EXPECT_EQ(told_.names(Told::kRegistered).size(), 2u);
  EXPECT_TRUE(manager.contains(text_.blocks()[0].sequence_hash()));
}

TEST_F(BlockObserverTest, AHeldVictimIsEvictedWhenItsLastHoldEnds) {
  Manager manager = observed(2);
  std::optional<Hold> hold;
  std::uint32_t id = 0;
  {
    const Immutable stored = store_one(manager, text_.blocks()[0]);
    hold = value_of(manager.hold(stored.sequence_hash()));
    id = stored.block_id().value();
  }
  {
    const Immutable newer = store_one(manager, text_.blocks()[1]);
  }
  told_.take();
  {
    const Mutable taken = take_one(manager);
  }
  EXPECT_EQ(told_.names(Told::kEvicted), Names{text_.blocks()[1].sequence_hash()}) << "the other one";
  told_.take();
  hold.reset();
  EXPECT_THAT(told_.kinds(), ElementsAre(Told::kEvicted));
  EXPECT_EQ(told_.ids(Told::kEvicted), Ids{id});
  EXPECT_EQ(told_.names(Told::kEvicted), Names{text_.blocks()[0].sequence_hash()});
}

TEST_F(BlockObserverTest, WhatIsRemovedByCallIsNotEvicted) {
  Manager manager = observed(4);
  {
    const Immutable reset = store_one(manager, text_.blocks()[0]);
  }
  EXPECT_EQ(manager.reset_inactive_pool(), 1u);
  {
    Immutable flagged = store_one(manager, text_.blocks()[1]);
    flagged.set_reset_on_release(true);
  }
  EXPECT_FALSE(manager.contains(text_.blocks()[1].sequence_hash()));
  {
    const Mutable dropped = take_one(manager);
  }
  EXPECT_THAT(told_.names(Told::kEvicted), IsEmpty());
  EXPECT_EQ(told_.names(Told::kRegistered).size(), 2u);
}

TEST_F(BlockObserverTest, ObserversAreToldInTheOrderInWhichTheyCame) {
  std::vector<std::pair<const ToldObserver*, Told>> order;
  ToldObserver one(&order);
  ToldObserver two(&order);
  Manager manager = manager_of(1);
  manager.observe(one);
  manager.observe(two);
  {
    const Immutable stored = store_one(manager, text_.blocks()[0]);
  }
  {
    const Mutable taken = take_one(manager);
  }
  using O = std::pair<const ToldObserver*, Told>;
  EXPECT_THAT(order, ElementsAre(O{&one, Told::kOut}, O{&two, Told::kOut}, O{&one, Told::kRegistering},
                                 O{&two, Told::kRegistering}, O{&one, Told::kRegistered},
                                 O{&two, Told::kRegistered}, O{&one, Told::kEvicted}, O{&one, Told::kOut},
                                 O{&two, Told::kEvicted}, O{&two, Told::kOut}));
}

TEST_F(BlockObserverTest, ForksShareWhatTheyHaveAndAreToldOfWhatTheyWrite) {
  Manager manager = observed(8);
  auto one = value_of(Request::create(manager, tokens_from(0, 6)));
  ASSERT_TRUE(one.schedule_prefill(6));
  ASSERT_TRUE(one.apply_prefill(Token(100)));
  told_.take();
  auto two = value_of(one.fork(Token(200)));
  EXPECT_THAT(told_.calls, IsEmpty());
  for (Request* const request : {&one, &two}) {
    ASSERT_TRUE(request->schedule_decode());
    ASSERT_TRUE(request->apply_decode(Token(1)));
  }
  EXPECT_EQ(told_.ids(Told::kOut).size(), 1u) << "a copy for the first; the other keeps the block";
  EXPECT_THAT(told_.names(Told::kRegistering), IsEmpty());
  for (Request* const request : {&one, &two}) {
    ASSERT_TRUE(request->schedule_decode());
    ASSERT_TRUE(request->apply_decode(Token(1)));
  }
  EXPECT_EQ(told_.names(Told::kRegistered), (Names{one.sequence_hashes()[1], two.sequence_hashes()[1]}));
  EXPECT_EQ(told_.ids(Told::kRegistered), (Ids{one.block_table()[1].value(), two.block_table()[1].value()}));
  EXPECT_NE(one.block_table()[1], two.block_table()[1]);
}

TEST_F(BlockObserverTest, RetentionsAreToldByTheNameOfTheirBlock) {
  Manager manager = observed(4);
  Immutable stored = store_one(manager, text_.blocks()[0]);
  told_.take();
  ASSERT_TRUE(stored.set_retention({.priority = 80}));
  ASSERT_TRUE(manager.set_retention(stored.sequence_hash(), {.priority = 90}));
  EXPECT_THAT(told_.kinds(), ElementsAre(Told::kRetention, Told::kRetention));
  EXPECT_EQ(told_.names(Told::kRetention), (Names{stored.sequence_hash(), stored.sequence_hash()}));
}

}  // namespace
}  // namespace ashlar::block
