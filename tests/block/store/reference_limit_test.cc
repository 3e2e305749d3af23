// The two numbers of a slot word at their ends: a generation that has come round, and a count that is full.
// Neither can be reached by a test that counts, so these write the word.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/block_identity.h"
#include "ashlar/block/detail/store_calls.h"
#include "ashlar/block/detail/untyped_manager.h"
#include "ashlar/events/tier.h"
#include "ashlar/testing/managers.h"
#include "block/store/block_store.h"
#include "support/block_fixture.h"

namespace ashlar::block::detail {
namespace {

using support::name_of;
using tokens::SequenceHash;

// A manager without types: references are held as slots, so that a word can be set.
class ReferenceLimitTest : public ::testing::TestWithParam<DuplicatePolicy> {
 protected:
  static StoreOwner make(std::uint32_t blocks, DuplicatePolicy duplicates) {
    ManagerOptions options = testing::manager_options(blocks);
    options.duplicates = duplicates;
    return StoreOwner(UntypedManager::create(options, kTierId<G1>, "g1").value());
  }

  SlotRef allocate() {
    SlotRef slot;
    const auto allocated = owner_->allocate(
        1, nullptr, [&](std::size_t, std::span<const SlotRef> slots) { slot = slots.front(); });
    EXPECT_TRUE(allocated);
    return slot;
  }
  // The slot of an owned block that carries the name.
  SlotRef complete(const SequenceHash& name) {
    const SlotRef slot = allocate();
    stage(slot, BlockIdentity{name, std::nullopt, std::nullopt});
    return slot;
  }
  Result<SlotRef> register_one(const SlotRef& slot) {
    SlotRef kept;
    const auto done = owner_->register_blocks(
        1, [&](std::size_t, std::span<SlotRef> out) { out[0] = slot; },
        [&](std::size_t, std::span<const SlotRef> slots) { kept = slots[0]; });
    if (!done) return done.error();
    return kept;
  }
  SharedSlot registered(const SequenceHash& name) {
    auto slot = register_one(complete(name));
    EXPECT_TRUE(slot) << slot.error();
    return SharedSlot(*slot);
  }
  BlockStore& store() { return *owner_.store(); }
  std::atomic<std::uint64_t>& word(const SlotRef& slot) { return store().slots().word(slot.id); }
  std::uint32_t references(const SharedSlot& slot) { return use_count_of(slot.get()); }

  // As if so many guards more referred to the block, for as long as it lives.
  class Crowd {
   public:
    Crowd(std::atomic<std::uint64_t>& word, std::uint32_t references) : word_(word), references_(references) {
      word_ += references_;
    }
    ~Crowd() { word_ -= references_; }
    Crowd(const Crowd&) = delete;
    Crowd& operator=(const Crowd&) = delete;

   private:
    std::atomic<std::uint64_t>& word_;
    std::uint32_t references_;
  };

  std::optional<SharedSlot> match(const SequenceHash& name) {
    std::optional<SharedSlot> found;
    owner_->match_prefix(std::span(&name, 1), {}, [&](std::size_t, std::span<const SlotRef> slots) {
      if (!slots.empty()) found.emplace(slots.front());
    });
    return found;
  }
  std::optional<SharedSlot> upgraded(const WeakSlot& weak) {
    const std::optional<SlotRef> slot = upgrade(weak);
    return slot ? std::optional<SharedSlot>(*slot) : std::nullopt;
  }

  const SequenceHash first_ = name_of(0, 1111);
  const SequenceHash second_ = name_of(0, 2222);
  StoreOwner owner_ = make(2, GetParam());
};

INSTANTIATE_TEST_SUITE_P(Policies, ReferenceLimitTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& policy) {
                           return policy.param == DuplicatePolicy::kAllow ? "Allow" : "Reject";
                         });

TEST_P(ReferenceLimitTest, AWeakBlockFindsNoOtherHashInALifeWithItsGeneration) {
  owner_ = make(1, GetParam());
  WeakSlot weak;
  std::uint32_t generation = 0;
  {
    const SharedSlot block = registered(first_);
    weak = downgrade(block.get());
    generation = block.get().generation;
  }
  owner_->reset_inactive();
  // The free slot is 2^32 - 1 lives further.
  store().slots().word(weak.id) = SlotWord::make(BlockState::kReset, 0, generation - 1);
  const SharedSlot other = registered(second_);
  ASSERT_EQ(other.get().id, weak.id);
  ASSERT_EQ(other.get().generation, generation);
  EXPECT_FALSE(upgraded(weak));
  EXPECT_EQ(references(other), 1u);
}

TEST_P(ReferenceLimitTest, AMatchAtTheLimitMisses) {
  const SharedSlot block = registered(first_);
  {
    const Crowd crowd(word(block.get()), kMaxReferences - 2);
    const auto last = match(first_);
    ASSERT_TRUE(last) << "one more is possible";
    EXPECT_EQ(references(block), kMaxReferences);
    EXPECT_FALSE(match(first_));
    EXPECT_EQ(references(block), kMaxReferences);
  }
  EXPECT_TRUE(match(first_)) << "there is room again";
  EXPECT_EQ(references(block), 1u);
}

TEST_P(ReferenceLimitTest, AWeakUpgradeAtTheLimitFindsNothing) {
  const SharedSlot block = registered(first_);
  const WeakSlot weak = downgrade(block.get());
  const Crowd crowd(word(block.get()), kMaxReferences - 2);
  const auto last = upgraded(weak);
  ASSERT_TRUE(last);
  EXPECT_FALSE(upgraded(weak));
  EXPECT_EQ(references(block), kMaxReferences);
}

// A candidate that is exchanged for the block that is there counts on it; one that takes its place does not.
TEST_P(ReferenceLimitTest, ARegistrationThatNeedsAReferenceIsRefusedAtTheLimit) {
  const SharedSlot block = registered(first_);
  OwnedSlot twin(complete(first_));
  if (GetParam() == DuplicatePolicy::kReject) {
    const Crowd crowd(word(block.get()), kMaxReferences - 1);
    const auto refused = register_one(twin.get());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity) << refused.error();
    EXPECT_EQ(references(block), kMaxReferences);
  }
  auto slot = register_one(twin.get());
  ASSERT_TRUE(slot) << slot.error();
  twin.take();
  const SharedSlot kept(*slot);
  owner_->check_invariants();
}

using ReferenceLimitDeathTest = ReferenceLimitTest;
INSTANTIATE_TEST_SUITE_P(Policies, ReferenceLimitDeathTest, ::testing::Values(DuplicatePolicy::kAllow));

TEST_P(ReferenceLimitDeathTest, ACopyAtTheLimitStopsTheProcess) {
  const SharedSlot block = registered(first_);
  const Crowd crowd(word(block.get()), kMaxReferences - 2);
  const SharedSlot last = block;  // NOLINT(performance-unnecessary-copy-initialization): the copy counts
  EXPECT_EQ(references(block), kMaxReferences);
  EXPECT_DEATH((void)SharedSlot(block), "as many as a block may have");
}

}  // namespace
}  // namespace ashlar::block::detail
