// G3 while the device of a file is absent: what is removed meanwhile is gone when it is back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "tiers/kv_workload.h"
#include "tiers/striped_fixture.h"

namespace ashlar::tiers {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class AbsentDeviceTest : public StripedTest {
 protected:
  static std::vector<SequenceHash> names(const std::vector<std::uint64_t>& contents) {
    std::vector<SequenceHash> out;
    for (const std::uint64_t content : contents) out.push_back(name(content));
    return out;
  }
  std::vector<std::uint64_t> in_file(std::size_t part, std::uint64_t end = kAll) {
    std::vector<std::uint64_t> out;
    for (std::uint64_t i = 0; i < end; ++i)
      if (part_of(i) == part) out.push_back(i);
    return out;
  }
  // Which of the blocks are found, all with their bytes.
  std::set<std::uint64_t> found(std::uint64_t end = kAll) {
    std::set<std::uint64_t> out;
    for (std::uint64_t i = 0; i < end; ++i)
      if (fetch(i) == Moved::kArrived) out.insert(i);
    return out;
  }
  static std::set<std::uint64_t> all_but(const std::vector<std::uint64_t>& gone) {
    std::set<std::uint64_t> out;
    for (std::uint64_t i = 0; i < kAll; ++i) out.insert(i);
    for (const std::uint64_t content : gone) out.erase(content);
    return out;
  }
};

TEST_F(AbsentDeviceTest, WhatIsRemovedMeanwhileIsGoneWhenItIsBack) {
  for (std::size_t part = 0; part < kFiles; ++part) {
    store(0, kAll);
    const std::vector<std::uint64_t> gone = {in_file(part)[0], in_file(part)[2],
                                             in_file((part + 1) % kFiles)[0]};
    restart({part});
    ASSERT_TRUE(g3_->remove_all(names(gone)));
    ASSERT_TRUE(g3_->remove_all(names({77})));
    restart({part});
    restart();
    EXPECT_EQ(found(), all_but(gone)) << "those, and no others";
    expect_all_available();
    ASSERT_TRUE(g3_->remove_everything());
  }
}

TEST_F(AbsentDeviceTest, WhenEverythingIsRemovedAllOfItsBlocksAre) {
  store(0, kAll);
  const std::size_t there = kAll - in_file(1).size();
  restart({1});
  EXPECT_EQ(g3_->remove_everything().value(), there);
  store(20, 23);
  restart();
  EXPECT_EQ(g3_->restored(), 3u);
  EXPECT_EQ(found(23), (std::set<std::uint64_t>{20, 21, 22}));
  expect_all_available();
}

TEST_F(AbsentDeviceTest, AfterMoreRemovalsThanAreRememberedAllOfItsBlocksAreGone) {
  store(0, kAll);
  const std::vector<std::uint64_t> mine = in_file(1);
  const auto remove_others = [&](std::uint64_t first, std::size_t count) {
    std::vector<std::uint64_t> contents;
    for (std::size_t i = 0; i < count; ++i) contents.push_back(first + i);
    ASSERT_TRUE(g3_->remove_all(names(contents)));
  };
  restart({1});
  remove_others(100, RemovalLog::kEntries);
  restart();
  EXPECT_EQ(found(), all_but({})) << "all removals are remembered, and none was of these";
  restart({1});
  remove_others(5000, RemovalLog::kEntries - 1);
  ASSERT_TRUE(g3_->remove_all(names({8000, 8001})));
  restart();
  EXPECT_EQ(found(), all_but(mine));
}

TEST_F(AbsentDeviceTest, WhatWasStoredAgainMeanwhileStays) {
  store(0, 6);
  const std::uint64_t again = in_file(1, 6)[0];
  restart({1});
  ASSERT_TRUE(g3_->remove_all(names({again})));
  store(again, again + 1);
  restart();
  EXPECT_EQ(fetch(again), Moved::kArrived);
  EXPECT_NE(part_of(again), 1u);
  EXPECT_EQ(g3_->restored(), 6u);
  expect_all_available();
}

TEST_F(AbsentDeviceTest, DevicesThatWereUsedWithoutEachOtherTellEachOther) {
  store(0, kAll);
  const std::uint64_t first = in_file(0)[0];
  const std::uint64_t second = in_file(1)[0];
  restart({0});
  ASSERT_TRUE(g3_->remove_all(names({first})));
  restart({1, 2});
  EXPECT_EQ(fetch(first), Moved::kArrived) << "nobody who is there knows";
  ASSERT_TRUE(g3_->remove_all(names({second})));
  restart();
  EXPECT_EQ(found(), all_but({first, second}));
}

// Its folder is there, and empty: nothing is mounted on it.
TEST_F(AbsentDeviceTest, AFileThatWasMadeInItsPlaceHidesNothing) {
  store(0, kAll);
  const std::vector<std::uint64_t> mine = in_file(1);
  close();
  const std::string path = folder_.file("part1");
  std::filesystem::rename(path, path + ".away");
  open();
  open_striped();
  ASSERT_TRUE(g3_->remove_all(names({mine[0]})));
  close();
  std::filesystem::rename(path + ".away", path);
  open();
  open_striped();
  EXPECT_EQ(found(), all_but({mine[0]}));
}

TEST_F(AbsentDeviceTest, ARemovalThatCannotBeRememberedIsNone) {
  syncs_ = true;
  store(0, kAll);
  const std::vector<std::uint64_t> mine = in_file(1);
  restart({1});
  devices_[0]->header_error = EIO;
  EXPECT_EQ(g3_->remove_all(names({mine[0]})).error().code(), ErrorCode::kIo);
  EXPECT_EQ(g3_->remove_everything().error().code(), ErrorCode::kIo);
  devices_[0]->header_error = 0;
  devices_[2]->sync_error = EIO;
  EXPECT_EQ(g3_->remove_all(names({mine[0]})).error().code(), ErrorCode::kIo);
  EXPECT_TRUE(g3_->remove_all(names({mine[0]})));
}

TEST_F(AbsentDeviceTest, AFileThatCannotBeToldIsLeftOut) {
  syncs_ = true;
  store(0, kAll);
  const std::vector<std::uint64_t> mine = in_file(1);
  restart({1});
  ASSERT_TRUE(g3_->remove_all(names({mine[0]})));
  for (const bool sync : {false, true}) {
    (sync ? devices_[1]->sync_error : devices_[1]->header_error) = EIO;
    lines_.clear();
    restart();
    EXPECT_EQ(found(), all_but(mine));
    EXPECT_EQ(g3_->resting(), mine.size());
    EXPECT_THAT(lines_, Contains(HasSubstr("missed removals cannot be applied")));
    devices_[1]->header_error = 0;
  }
  restart();
  EXPECT_EQ(found(), all_but({mine[0]}));
  expect_all_available();
}

// Restarts with any devices. Nothing is found that was removed since it was stored, as far as one of the
// files that are there can know.
TEST_F(AbsentDeviceTest, NothingComesBackThatAnyOfThemKnowsToBeRemoved) {
  constexpr std::uint64_t kContents = 16;
  using Times = std::map<std::uint64_t, std::uint64_t>;  // by content
  std::array<Times, kFiles> stored;
  std::array<Times, kFiles> removed;  // as each file knows
  std::uint64_t time = 0;
  std::uint64_t came_back = 0;
  std::uint64_t told = 0;
  Random random(41);
  for (int session = 0; session < 150 && !HasFailure(); ++session) {
    std::vector<std::size_t> missing;
    std::vector<std::size_t> there;
    while (there.empty()) {
      missing.clear();
      for (std::size_t part = 0; part < kFiles; ++part)
        (random.below(3) == 0 ? missing : there).push_back(part);
    }
    restart(missing);
    Times known;
    for (const std::size_t part : there)
      for (const auto& [content, when] : removed[part]) known[content] = std::max(known[content], when);
    for (const std::size_t part : there) removed[part] = known;
    for (std::uint64_t i = 0; i < kContents; ++i) {
      const auto part = part_of(i);
      if (!part) continue;
      ASSERT_TRUE(stored[*part].contains(i));
      EXPECT_GT(stored[*part][i], known[i]) << i << " was removed";
      ++came_back;
    }
    const auto look = [&] {
      g3_->check_invariants();
      for (const std::size_t part : there)
        told += std::erase_if(stored[part], [&](const auto& one) { return part_of(one.first) != part; });
    };
    look();
    for (std::uint64_t steps = random.below(6); steps-- > 0;) {
      const std::uint64_t content = random.below(kContents);
      ++time;
      if (random.below(20) == 0) {
        ASSERT_TRUE(g3_->remove_everything());
        for (const std::size_t part : there)
          for (std::uint64_t i = 0; i < kContents; ++i) removed[part][i] = time;
      } else if (random.below(3) == 0) {
        ASSERT_TRUE(g3_->remove_all(names({content})));
        for (const std::size_t part : there) removed[part][content] = time;
      } else if (!g3_->has(name(content))) {
        ASSERT_EQ(store(content, content + 1)[0], Moved::kArrived);
        stored[part_of(content).value()][content] = time;
      }
      look();
    }
  }
  EXPECT_GT(came_back, 200u);
  EXPECT_GT(told, 50u);
}

// Through the manager, with a folder that is away.
TEST(AbsentFolderTest, BlocksThatWereResetStayAway) {
  const ScopedLogSink quiet([](LogLevel, std::string_view, std::string_view) {});
  const auto hashes = KvWorkload::sequence(1, 8);
  for (const bool everything : {false, true})
    for (const char* const away : {"a", "b"}) {
      const ScratchFolder scratch;
      KvOptions options = KvWorkload::options("unused");
      options.g3->paths = {scratch.file("a") + "/g3", scratch.file("b") + "/g3"};
      options.g3->faults.clear();
      options.g3->survive_power_loss = false;
      for (const char* const folder : {"a", "b"}) std::filesystem::create_directory(scratch.file(folder));
      const auto open = [&] { return KvBlockManager::create(options).value(); };
      int wrong = 0;
      {
        const auto kv = open();
        ASSERT_TRUE(KvWorkload(*kv).request(hashes, &wrong));
        ASSERT_TRUE(kv->drain());
      }
      std::filesystem::rename(scratch.file(away), scratch.file("away"));
      {
        const auto kv = open();
        if (everything) {
          EXPECT_TRUE(kv->reset(events::kTierId<events::G3>));
        } else {
          EXPECT_TRUE(kv->reset_blocks(std::span(hashes).first(6)));
        }
      }
      std::filesystem::rename(scratch.file("away"), scratch.file(away));
      const auto kv = open();
      std::size_t back = 0;
      for (const SequenceHash& hash : hashes) back += kv->onboard(std::span(&hash, 1)).size();
      EXPECT_EQ(back, everything ? 0u : 2u);
    }
}

}  // namespace
}  // namespace ashlar::tiers
