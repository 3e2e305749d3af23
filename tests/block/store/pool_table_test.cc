// Drives the second table of docs/block_lifecycle.md: what happens to a block that no guard holds.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ashlar/testing/manual_clock.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

constexpr const char* kOutcomes[] = {"reset", "inactive", "pinned", "quarantined"};

// A manager with one block, everything that can happen to it, and a spare one beside it.
struct OneBlockWorld {
  explicit OneBlockWorld(const std::string& state, bool reset_on_release) {
    if (state == "reset") return;
    if (state == "quarantined") {
      auto blocks = value_of(manager.allocate_blocks(1));
      auto partial = value_of(std::move(blocks[0]).init_sequence({}));
      EXPECT_TRUE(partial.add_token(tokens::Token(1)));
      auto scheduled = value_of(std::move(partial).schedule());
      auto [fence, signal] = Fence::create();
      signal_.emplace(std::move(signal));
      auto inflight = std::move(scheduled).launch(fence);
      return;  // dropped in flight
    }
    Blocks stored = store_all(manager, sequence);
    weak = stored[0].downgrade();
    if (reset_on_release) stored[0].set_reset_on_release(true);
    if (state == "pinned") pins.push_back(value_of(stored[0].pin(1h)));
  }

  void happens(const std::string& what) {
    if (what == "allocate") {
      if (auto got = manager.allocate_blocks(1)) owned = *std::move(got);
    } else if (what == "match") {
      held = manager.match_blocks(sequence.sequence_hashes());
    } else if (what == "upgrade") {
      if (auto block = weak.upgrade()) held.push_back(*std::move(block));
    } else if (what == "pin by hash") {
      if (auto pin = manager.pin(sequence.blocks()[0].sequence_hash(), 1h)) pins.push_back(*std::move(pin));
    } else if (what == "last pin ends") {
      clock.advance(2h);
    } else if (what == "reset_inactive_pool") {
      manager.reset_inactive_pool();
    } else if (what == "fence passes") {
      if (signal_) std::move(*signal_).signal();
      signal_.reset();
    } else if (what == "another registers its hash") {
      held.push_back(store(std::move(spare)));
    } else {
      ADD_FAILURE() << "the table has a row that this test does not know: " << what;
    }
  }

  Immutable store(Mutable block) {
    auto complete = value_of(std::move(block).complete(sequence.blocks()[0], KvReady::asserted_by_caller()));
    return value_of(manager.register_block(std::move(complete)));
  }

  std::string state() const {
    const PoolStatus status = manager.status();
    if (status.reset == 1) return "reset";
    if (status.inactive == 1) return "inactive";
    if (status.pinned_inactive == 1) return "pinned";
    if (status.quarantined == 1) return "quarantined";
    return status.owned == 2 ? "mutable" : "primary";
  }

  ManualClock clock;
  Manager manager = value_of(builder_of(2).clock(clock).build());
  Mutable spare = take_one(manager);
  TokenSequence sequence = sequence_of(1);
  WeakBlock<G1> weak;
  std::vector<Pin> pins;
  std::optional<FenceSignal> signal_;
  BlockList<MutableBlock<G1>> owned;
  Blocks held;
};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string> cells_of(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text) {
    if (c != by) {
      part += c;
      continue;
    }
    parts.push_back(trimmed(part));
    part.clear();
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}

TEST(PoolTableTest, EveryCellLeavesExactlyTheStatesItNames) {
  std::ifstream file(ASHLAR_LIFECYCLE_TABLE);
  ASSERT_TRUE(file) << ASHLAR_LIFECYCLE_TABLE;
  std::vector<std::string> states;
  std::size_t rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("|")) states.clear();
    if (!line.starts_with("|") || line.starts_with("|-")) continue;
    const std::vector<std::string> cells = cells_of(line.substr(1), '|');
    if (cells.front() == "what happens") {
      states.assign(cells.begin() + 1, cells.end());
      ASSERT_EQ(states, std::vector<std::string>(std::begin(kOutcomes), std::end(kOutcomes)));
      continue;
    }
    if (states.empty()) continue;
    ++rows;
    ASSERT_EQ(cells.size(), states.size() + 1) << line;
    for (std::size_t i = 0; i < states.size(); ++i) {
      std::set<std::string> reached;
      for (const bool reset_on_release : {false, true}) {
        // Without a pin a block that is to be reset is never inactive.
        if (reset_on_release && states[i] != "pinned") continue;
        OneBlockWorld world(states[i], reset_on_release);
        ASSERT_EQ(world.state(), states[i]);
        world.happens(cells.front());
        reached.insert(world.state());
        world.manager.check_invariants();
        world.happens("fence passes");
      }
      const std::vector<std::string> named = cells_of(cells[i + 1] == "-" ? states[i] : cells[i + 1], ',');
      EXPECT_EQ(reached, std::set<std::string>(named.begin(), named.end()))
          << cells.front() << " of " << states[i];
    }
  }
  EXPECT_EQ(rows, 8u);
}

}  // namespace
}  // namespace ashlar::block
