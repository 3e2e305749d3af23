#include "index/common/worker_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ashlar/base/random.h"
#include "index/index_printers.h"
#include "index/test_worker.h"

namespace ashlar::index {
namespace {

using events::Worker;
using events::WorkerId;

// Rising.
std::vector<std::uint32_t> slots_of(const WorkerSlots& slots, WorkerId id) {
  std::vector<std::uint32_t> found;
  slots.for_each_slot_of(id, SIZE_MAX, [&](std::uint32_t slot) { found.push_back(slot); });
  std::ranges::sort(found);
  return found;
}

TEST(WorkerSlotsTest, AWorkerKeepsItsSlot) {
  WorkerSlots slots;
  EXPECT_EQ(slots.find(worker(7)), std::nullopt);
  EXPECT_EQ(slots.assign(worker(7)), 0u);
  EXPECT_EQ(slots.assign(worker(8)), 1u);
  const std::uint64_t assignment = slots.assignment();
  EXPECT_EQ(slots.assign(worker(7)), 0u);
  EXPECT_EQ(slots.assignment(), assignment);
  EXPECT_EQ(slots.find(worker(8)), 1u);
  EXPECT_EQ(slots.size(), 2u);
}

TEST(WorkerSlotsTest, RanksOfAWorkerHaveSlotsOfTheirOwn) {
  WorkerSlots slots;
  slots.assign(worker(7, 1));
  slots.assign(worker(8, 1));
  slots.assign(worker(7, 0));
  EXPECT_EQ(slots_of(slots, WorkerId(7)), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(slots_of(slots, WorkerId(9)), std::vector<std::uint32_t>{});
}

TEST(WorkerSlotsTest, RanksCanBeRetiredOnTheWay) {
  WorkerSlots slots;
  for (std::uint32_t rank = 0; rank < 5; ++rank) slots.assign(worker(7, rank));
  const auto retire = [&](std::uint32_t slot) { slots.retire(slot); };
  EXPECT_EQ(slots.for_each_slot_of(WorkerId(7), 3, retire), 3u);
  EXPECT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots.for_each_slot_of(WorkerId(7), 3, retire), 2u);
  EXPECT_EQ(slots.for_each_slot_of(WorkerId(7), 3, retire), 0u);
}

TEST(WorkerSlotsTest, AFreeSlotIsNotAWorker) {
  WorkerSlots slots;
  slots.assign(worker(5));
  slots.assign(worker(6));
  slots.release(0);
  EXPECT_EQ(slots.workers()[0], worker(0));
  EXPECT_FALSE(slots.in_use(0));
  EXPECT_TRUE(slots_of(slots, WorkerId(0)).empty());
  EXPECT_EQ(slots.find(worker(0)), std::nullopt);
  EXPECT_EQ(slots.assign(worker(0)), 0u);
  EXPECT_EQ(slots_of(slots, WorkerId(0)), std::vector<std::uint32_t>{0});
}

TEST(WorkerSlotsTest, ARetiredSlotIsNoWorkersAndIsNotGivenOut) {
  WorkerSlots slots;
  slots.assign(worker(5));
  slots.assign(worker(6, 3));
  slots.assign(worker(6, 4));
  const std::uint64_t assignment = slots.assignment();
  slots.retire(1);
  EXPECT_GT(slots.assignment(), assignment);
  EXPECT_FALSE(slots.in_use(1));
  EXPECT_EQ(slots.workers()[1], worker(0));
  EXPECT_EQ(slots_of(slots, WorkerId(6)), std::vector<std::uint32_t>{2});
  EXPECT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots.used(), 3u);
  ASSERT_EQ(slots.retired().size(), 1u);
  EXPECT_EQ(slots.retired()[0], 0b10u);
  EXPECT_EQ(slots.assign(worker(6, 3)), 3u);
  slots.release(1);
  EXPECT_TRUE(slots.retired().empty());
  EXPECT_EQ(slots.assign(worker(9)), 1u);
  EXPECT_EQ(slots_of(slots, WorkerId(6)), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(slots.for_each_slot_of(WorkerId(6), 1, [](std::uint32_t) {}), 1u);
}

TEST(WorkerSlotsTest, BitsOfRetiredSlotsNeverReachBeyondTheSlots) {
  WorkerSlots slots;
  for (std::uint64_t id = 0; id < 1'000; ++id) slots.assign(worker(id));
  slots.retire(3);
  slots.retire(999);
  EXPECT_EQ(slots.capacity(), 1'000u);
  for (std::uint32_t slot = 4; slot < 1'000; ++slot) slots.release(slot);
  EXPECT_EQ(slots.capacity(), 4u);
  ASSERT_EQ(slots.retired().size(), 1u);
  EXPECT_EQ(slots.retired()[0], 0b1000u);
  for (const std::uint32_t slot : {3u, 2u, 1u, 0u}) slots.release(slot);
  EXPECT_EQ(slots.bytes(), 0u);
}

TEST(WorkerSlotsTest, AFreeSlotIsFoundAmongManyThatAreTaken) {
  WorkerSlots slots;
  for (std::uint64_t id = 0; id < 10'000; ++id) ASSERT_EQ(slots.assign(worker(id)), id);
  for (const std::uint32_t slot : {9'000u, 4'095u, 64u, 8'191u}) slots.release(slot);
  for (const std::uint32_t slot : {64u, 4'095u, 8'191u, 9'000u, 10'000u})
    EXPECT_EQ(slots.assign(worker(20'000 + slot)), slot);
}

TEST(WorkerSlotsTest, EveryChangeTakesANewAssignment) {
  WorkerSlots slots;
  const WorkerSlots others;
  EXPECT_NE(slots.assignment(), others.assignment());
  std::uint64_t last = slots.assignment();
  for (int i = 0; i < 3; ++i) {
    const std::uint32_t slot = slots.assign(worker(1));
    EXPECT_GT(slots.assignment(), last);
    last = slots.assignment();
    slots.release(slot);
    EXPECT_GT(slots.assignment(), last);
    last = slots.assignment();
  }
}

TEST(WorkerSlotsTest, TheLowestFreeSlotIsUsedFirstAndTheEndIsGivenBack) {
  Random random(1);
  WorkerSlots slots;
  std::map<Worker, std::uint32_t> model;
  for (int step = 0; step < 20'000; ++step) {
    const Worker one = worker(random.below(150), static_cast<std::uint32_t>(random.below(2)));
    const bool growing = step / 4'000 % 2 == 0;
    if (const auto known = model.find(one); known != model.end()) {
      EXPECT_EQ(slots.find(one), known->second);
      if (growing && random.below(4) != 0) continue;
      slots.release(known->second);
      model.erase(known);
    } else if (growing || random.below(4) == 0) {
      std::uint32_t lowest = 0;
      while (slots.in_use(lowest)) ++lowest;
      model[one] = lowest;
      ASSERT_EQ(slots.assign(one), lowest);
    }
    std::size_t end = 0;
    for (const auto& [known, slot] : model) end = std::max<std::size_t>(end, slot + 1);
    ASSERT_EQ(slots.capacity(), end);
    ASSERT_EQ(slots.size(), model.size());
  }
  for (const auto& [known, slot] : model) slots.release(slot);
  EXPECT_EQ(slots.capacity(), 0u);
  EXPECT_EQ(slots.bytes(), 0u);
}

}  // namespace
}  // namespace ashlar::index
