// What the interleaving tests share: a pool of small blocks and the names of its hashes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "ashlar/block/block_manager.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/testing/interleaving.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/manual_clock.h"
#include "ashlar/testing/sequence_builder.h"

namespace ashlar::block::interleaving {

using events::G1;
using testing::Interleaving;
using testing::ManualClock;
using testing::match_one;
using testing::numbered_hash;
using testing::registered;
using testing::staged;

inline const tokens::SequenceHash kA = numbered_hash(1);
inline const tokens::SequenceHash kB = numbered_hash(2);
inline const tokens::SequenceHash kC = numbered_hash(3);

// A manager with a log, and a mirror of what the log says.
struct Pool {
  explicit Pool(std::uint32_t blocks, DuplicatePolicy duplicates = DuplicatePolicy::kAllow)
      : Pool(options(blocks, duplicates)) {}
  explicit Pool(ManagerOptions given)
      : log(given.events = testing::make_event_log()), manager(testing::make_manager<G1>(given)) {}

  static ManagerOptions options(std::uint32_t blocks, DuplicatePolicy duplicates = DuplicatePolicy::kAllow) {
    ManagerOptions options = testing::manager_options(blocks);
    options.duplicates = duplicates;
    return options;
  }

  // Invariants, and events that add up to what is registered. Requires: a quiet manager.
  void check() {
    manager.check_invariants();
    log->drain(mirror);
    EXPECT_EQ(mirror.problem(), "");
    std::set<testing::PresenceMirror::Key> present;
    manager.for_each_registered(
        [&](const tokens::SequenceHash& hash, BlockId) { present.insert({events::kTierId<G1>, hash}); });
    EXPECT_EQ(mirror.present(), present);
    for (const auto& hash : {kA, kB, kC}) {
      EXPECT_EQ(manager.block_registry().check_presence<G1>(std::span(&hash, 1))[0],
                present.contains({events::kTierId<G1>, hash}));
    }
  }

  std::shared_ptr<events::EventLog> log;
  testing::PresenceMirror mirror;
  BlockManager<G1> manager;
};

// Runs `drop` on a thread and returns when the thread has counted its last drop, and not settled it.
template <class F>
std::jthread held_before_settle(Interleaving& order, F drop) {
  const Interleaving::Pause pause = order.pause_at("drop.before_settle");
  std::jthread thread(std::move(drop));
  order.wait_until_paused(pause);
  return thread;
}

// Lets it settle, and waits until it has.
inline void settle(Interleaving& order, std::jthread& thread) {
  order.resume("drop.before_settle");
  thread.join();
}

}  // namespace ashlar::block::interleaving
