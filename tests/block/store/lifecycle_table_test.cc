// Reads the table of docs/block_lifecycle.md and drives every cell of it. The test fails when the table
// promises what the code does not do, and when the code does, or offers, what the table does not say.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

using Scheduled = ScheduledBlock<G1>;
using Inflight = InflightBlock<G1>;
using Weak = WeakBlock<G1>;
using States = std::set<std::string>;

// ---- what the guards offer, asked of the compiler

template <class G>
concept InitsSequence = requires(G g, SequenceStart s) { std::move(g).init_sequence(s); };
template <class G>
concept Completes = requires(G g, const TokenBlock& t) { std::move(g).complete(t, kReady); };
template <class G>
concept Stages = requires(G g, SequenceHash h) { std::move(g).stage(h, kReady); };
template <class G>
concept AddsTokens = requires(G g, std::span<const Token> t) {
  g.add_tokens(t);
  g.add_token(Token(1));
};
template <class G>
concept PopsTokens = requires(G g) {
  g.pop_tokens(1);
  g.pop_token();
};
template <class G>
concept Commits = requires(G g) { std::move(g).commit(kReady); };
template <class G>
concept Schedules = requires(G g) { std::move(g).schedule(); };
template <class G>
concept Launches = requires(G g, Fence f) { std::move(g).launch(f); };
template <class G>
concept Cancels = requires(G g) { std::move(g).cancel(); };
template <class G>
concept FinishesCompute = requires(G g) { std::move(g).compute_done(); };
template <class G>
concept Resets = requires(G g) { std::move(g).reset(); };
template <class G>
concept Registers = requires(G g, Manager& m) { m.register_block(std::move(g)); };
template <class G>
concept Downgrades = requires(const G& g) { g.downgrade(); };
template <class G>
concept Upgrades = requires(const G& g) { g.upgrade(); };
template <class G>
concept Pins = requires(const G& g) { g.pin(1s); };
template <class G>
concept ReleasesAfter = requires(G g, const Fence& f) { std::move(g).release_after(f); };

template <class G>
bool offers(const std::string& operation) {
  const std::map<std::string, bool> offered = {
      {"init_sequence", InitsSequence<G>},
      {"complete", Completes<G>},
      {"stage", Stages<G>},
      {"add_tokens", AddsTokens<G>},
      {"pop_tokens", PopsTokens<G>},
      {"commit", Commits<G>},
      {"schedule", Schedules<G>},
      {"launch", Launches<G>},
      {"cancel", Cancels<G>},
      {"compute_done", FinishesCompute<G>},
      {"reset", Resets<G>},
      {"register", Registers<G>},
      {"copy", std::is_copy_constructible_v<G>},
      {"downgrade", Downgrades<G>},
      {"upgrade", Upgrades<G>},
      {"pin", Pins<G>},
      {"release_after", ReleasesAfter<G>},
      {"drop", std::is_destructible_v<G>},
  };
  EXPECT_TRUE(offered.contains(operation))
      << "the table has an operation this test does not know: " << operation;
  return offered.contains(operation) && offered.at(operation);
}

// No transition may be called on an lvalue; none that takes a proof may be called without one.
template <class G>
concept CallableOnLvalue = requires(G& g, SequenceStart s, const TokenBlock& t, SequenceHash h, Fence f) {
  requires requires { g.init_sequence(s); } || requires { g.complete(t, kReady); } ||
               requires { g.stage(h, kReady); } || requires { g.commit(kReady); } ||
               requires { g.schedule(); } || requires { g.launch(f); } || requires { g.cancel(); } ||
               requires { g.compute_done(); } || requires { g.reset(); } || requires { g.release_after(f); };
};
static_assert(!CallableOnLvalue<Mutable> && !CallableOnLvalue<Partial> && !CallableOnLvalue<Scheduled>);
static_assert(!CallableOnLvalue<Inflight> && !CallableOnLvalue<Complete> && !CallableOnLvalue<Immutable>);
template <class G>
concept CompletesWithoutProof = requires(G g, const TokenBlock& t, SequenceHash h) {
  requires requires { std::move(g).complete(t); } || requires { std::move(g).stage(h); } ||
               requires { std::move(g).commit(); };
};
static_assert(!CompletesWithoutProof<Mutable> && !CompletesWithoutProof<Partial>);

const std::map<std::string, std::function<bool(const std::string&)>> kGuards = {
    {"mutable", offers<Mutable>},     {"partial", offers<Partial>},   {"scheduled", offers<Scheduled>},
    {"inflight", offers<Inflight>},   {"complete", offers<Complete>}, {"primary", offers<Immutable>},
    {"duplicate", offers<Immutable>}, {"weak", offers<Weak>},
};

// ---- the state that a guard says

std::string state_of(const Mutable&) {
  return "mutable";
}
std::string state_of(const Partial&) {
  return "partial";
}
std::string state_of(const Scheduled&) {
  return "scheduled";
}
std::string state_of(const Inflight&) {
  return "inflight";
}
std::string state_of(const Complete&) {
  return "complete";
}
std::string state_of(const Immutable& block) {
  return block.is_duplicate() ? "duplicate" : "primary";
}
std::string state_of(const Weak&) {
  return "weak";
}
std::string state_of(const Inflight::Done& done) {
  return std::visit([](const auto& guard) { return state_of(guard); }, done);
}
// Of what a Result holds: the next guard, or the one that came back.
template <class T, class E>
std::string state_of(const Result<T, E>& result) {
  return result ? state_of(*result) : state_of(result.error().guard);
}
template <class T>
std::string state_of(const std::optional<T>& found) {
  return found ? state_of(*found) : "gone";
}

// A world of one manager, in which one block is driven.
struct World {
  ManualClock clock;
  Manager manager = value_of(builder_of(4).clock(clock).max_pins(4).build());
  TokenSequence sequence = sequence_of(2);

  Mutable mutable_block() { return take_one(manager); }
  Partial partial(std::size_t tokens = 0) {
    Partial block = value_of(mutable_block().init_sequence({}));
    EXPECT_TRUE(block.add_tokens(tokens_from(0, tokens)));
    return block;
  }
  Scheduled scheduled(std::size_t tokens = 1) { return value_of(partial(tokens).schedule()); }
  Inflight inflight(const Fence& fence, std::size_t tokens = 1) { return scheduled(tokens).launch(fence); }
  Complete complete() { return complete_one(manager, sequence.blocks()[0]); }
  Immutable primary() { return value_of(manager.register_block(complete())); }
  // Beside a primary that is kept here.
  Immutable duplicate() {
    Immutable first = primary();
    kept = primary();
    return first;
  }
  Immutable kept;

  // Where the only block outside the reset pool is, once no guard holds it.
  std::string place() const {
    const Places at = places(manager);
    if (at.quarantined == 1) return "quarantined";
    if (at.pinned == 1) return "pinned";
    if (at.inactive == 1) return "inactive";
    if (at.reset == manager.total_blocks()) return "reset";
    return "lost";
  }
};

// ---- every cell: each scenario yields one state that the operation can leave behind

using Scenario = std::function<std::string(World&)>;
using Cells = std::map<std::pair<std::string, std::string>, std::vector<Scenario>>;

void add_building(Cells& cells) {
  cells[{"init_sequence", "mutable"}] = {
      [](World& w) { return state_of(w.mutable_block().init_sequence({})); },
      [](World& w) {
        SequenceStart last;
        last.parent = name_of(SequenceHash::kMaxPosition, 1);
        return state_of(w.mutable_block().init_sequence(last));
      }};
  cells[{"complete", "mutable"}] = {
      [](World& w) { return state_of(w.mutable_block().complete(w.sequence.blocks()[0], kReady)); },
      [](World& w) {
        return state_of(w.mutable_block().complete(sequence_of(1, 0, 3).blocks()[0], kReady));
      }};
  cells[{"stage", "mutable"}] = {
      [](World& w) { return state_of(w.mutable_block().stage(name_of(0, 1), kReady)); }};
  const auto adding = [](std::size_t before, std::size_t more, bool fits) {
    return [=](World& w) {
      Partial block = w.partial(before);
      EXPECT_EQ(block.add_tokens(tokens_from(9, more)).has_value(), fits);
      return state_of(block);
    };
  };
  cells[{"add_tokens", "partial"}] = {adding(0, 1, true), adding(2, 2, true), adding(2, 3, false)};
  const auto popping = [](std::size_t before, std::uint32_t less, bool there) {
    return [=](World& w) {
      Partial block = w.partial(before);
      EXPECT_EQ(block.pop_tokens(less).has_value(), there);
      return state_of(block);
    };
  };
  cells[{"pop_tokens", "partial"}] = {popping(2, 1, true), popping(4, 4, true), popping(1, 2, false)};
  cells[{"commit", "partial"}] = {[](World& w) { return state_of(w.partial(4).commit(kReady)); },
                                  [](World& w) { return state_of(w.partial(3).commit(kReady)); }};
  cells[{"reset", "partial"}] = {[](World& w) { return state_of(w.partial(2).reset()); }};
  cells[{"reset", "complete"}] = {[](World& w) { return state_of(w.complete().reset()); }};
}

void add_computing(Cells& cells) {
  cells[{"schedule", "partial"}] = {[](World& w) { return state_of(w.partial(1).schedule()); },
                                    [](World& w) { return state_of(w.partial(0).schedule()); }};
  cells[{"launch", "scheduled"}] = {[](World& w) { return state_of(w.inflight(Fence::passed_already())); }};
  cells[{"cancel", "scheduled"}] = {[](World& w) { return state_of(w.scheduled().cancel()); }};
  cells[{"compute_done", "inflight"}] = {
      [](World& w) { return state_of(w.inflight(Fence::passed_already(), 1).compute_done()); },
      [](World& w) { return state_of(w.inflight(Fence::passed_already(), 4).compute_done()); },
      [](World& w) {
        auto [fence, signal] = Fence::create();
        std::string state;
        {
          auto refused = w.inflight(fence).compute_done();
          state = state_of(refused);
        }
        std::move(signal).signal();
        return state;
      }};
}

void add_sharing(Cells& cells) {
  cells[{"register", "complete"}] = {
      [](World& w) { return state_of(w.manager.register_block(w.complete())); },
      [](World& w) {
        w.kept = w.primary();
        return state_of(w.manager.register_block(w.complete()));
      },
      [](World& w) {
        w.kept = w.primary();
        const Pin pin = value_of(w.kept.pin(1s));
        return state_of(w.manager.register_block(w.complete()));
      },
      [](World& w) {
        Manager other = manager_of(1);
        return state_of(w.manager.register_block(complete_one(other, w.sequence.blocks()[0])));
      }};
  const auto copied = [](const Immutable& block) {
    const Immutable copy = block;  // NOLINT(performance-unnecessary-copy-initialization)
    EXPECT_EQ(copy.block_id(), block.block_id());
    return state_of(copy);
  };
  cells[{"copy", "primary"}] = {[=](World& w) { return copied(w.primary()); }};
  cells[{"copy", "duplicate"}] = {[=](World& w) { return copied(w.duplicate()); }};
  cells[{"copy", "weak"}] = {[](World& w) { return state_of(Weak(w.primary().downgrade())); }};
  cells[{"downgrade", "primary"}] = {[](World& w) { return state_of(w.primary().downgrade()); }};
  cells[{"downgrade", "duplicate"}] = {[](World& w) { return state_of(w.duplicate().downgrade()); }};
  cells[{"upgrade", "weak"}] = {[](World& w) { return state_of(w.primary().downgrade().upgrade()); },
                                [](World& w) {
                                  const Immutable duplicate = w.duplicate();
                                  return state_of(duplicate.downgrade().upgrade());
                                },
                                [](World& w) {
                                  const Weak weak = w.primary().downgrade();
                                  w.manager.reset_inactive_pool();
                                  return state_of(weak.upgrade());
                                }};
  cells[{"pin", "primary"}] = {[](World& w) {
                                 const Immutable block = w.primary();
                                 const Pin pin = value_of(block.pin(1s));
                                 return state_of(block);
                               },
                               [](World& w) {
                                 const Pin pin = value_of(w.primary().pin(1s));
                                 return w.place();
                               }};
  cells[{"pin", "duplicate"}] = {[](World& w) {
    const Immutable block = w.duplicate();
    const Pin pin = value_of(block.pin(1s));
    return state_of(block);  // its hash is pinned
  }};
}

void add_leaving(Cells& cells) {
  const auto dropped = [](auto make) {
    return [=](World& w) {
      {
        const auto guard = make(w);
      }
      return w.place();
    };
  };
  cells[{"drop", "mutable"}] = {dropped([](World& w) { return w.mutable_block(); })};
  cells[{"drop", "partial"}] = {dropped([](World& w) { return w.partial(2); })};
  cells[{"drop", "scheduled"}] = {dropped([](World& w) { return w.scheduled(); })};
  cells[{"drop", "inflight"}] = {dropped([](World& w) { return w.inflight(Fence::passed_already()); }),
                                 [](World& w) {
                                   auto [fence, signal] = Fence::create();
                                   {
                                     const Inflight block = w.inflight(fence);
                                   }
                                   const std::string state = w.place();
                                   std::move(signal).signal();
                                   EXPECT_EQ(w.place(), "reset");
                                   return state;
                                 }};
  cells[{"drop", "complete"}] = {dropped([](World& w) { return w.complete(); })};
  // How the last reference of a primary goes: dropped, or released at a fence.
  const auto last = [](auto let_go) {
    return std::vector<Scenario>{[=](World& w) {
                                   let_go(w.primary());
                                   return w.place();
                                 },
                                 [=](World& w) {
                                   Immutable block = w.primary();
                                   const Pin pin = value_of(block.pin(1s));
                                   let_go(std::move(block));
                                   return w.place();
                                 },
                                 [=](World& w) {
                                   Immutable block = w.primary();
                                   block.set_reset_on_release(true);
                                   let_go(std::move(block));
                                   return w.place();
                                 }};
  };
  const auto duplicate_goes = [](auto let_go) {
    return [=](World& w) {
      Immutable block = w.duplicate();
      let_go(std::move(block));
      EXPECT_EQ(places(w.manager), (Places{.reset = 3, .active = 1})) << "only the primary is left";
      w.kept.set_reset_on_release(true);
      w.kept = Immutable();
      return w.place();
    };
  };
  const auto drop = [](Immutable block) { block = Immutable(); };
  const auto at_fence = [](Immutable block) { std::move(block).release_after(Fence::passed_already()); };
  cells[{"drop", "primary"}] = last(drop);
  cells[{"drop", "duplicate"}] = {duplicate_goes(drop)};
  cells[{"drop", "weak"}] = {[](World& w) {
    const Immutable block = w.primary();
    {
      const Weak weak = block.downgrade();
    }
    EXPECT_EQ(block.use_count(), 1u);
    return std::string("weak");  // the block stays as it is
  }};
  cells[{"release_after", "primary"}] = last(at_fence);
  cells[{"release_after", "duplicate"}] = {duplicate_goes(at_fence)};
  // Before the fence the reference still counts.
  const auto waits = [](auto make, const char* state) {
    return [=](World& w) {
      auto [fence, signal] = Fence::create();
      Immutable block = make(w);
      const Weak weak = block.downgrade();
      const BlockId id = block.block_id();
      std::move(block).release_after(fence);
      {
        const auto still_there = weak.upgrade();
        EXPECT_TRUE(still_there && still_there->block_id() == id && state_of(*still_there) == state);
      }
      EXPECT_EQ(places(w.manager).active, std::string_view(state) == "primary" ? 1u : 2u);
      std::move(signal).signal();
      return std::string(state);
    };
  };
  cells[{"release_after", "primary"}].push_back(waits([](World& w) { return w.primary(); }, "primary"));
  cells[{"release_after", "duplicate"}].push_back(waits([](World& w) { return w.duplicate(); }, "duplicate"));
}

Cells all_cells() {
  Cells cells;
  add_building(cells);
  add_computing(cells);
  add_sharing(cells);
  add_leaving(cells);
  return cells;
}

// ---- the document

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) {
    const auto first = part.find_first_not_of(' ');
    parts.push_back(first == std::string::npos ? ""
                                               : part.substr(first, part.find_last_not_of(' ') - first + 1));
  }
  return parts;
}

// operation -> guard -> the cell's text.
std::map<std::string, std::map<std::string, std::string>> read_table() {
  std::ifstream file(ASHLAR_LIFECYCLE_TABLE);
  EXPECT_TRUE(file) << ASHLAR_LIFECYCLE_TABLE;
  std::map<std::string, std::map<std::string, std::string>> table;
  std::vector<std::string> guards;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("|")) guards.clear();  // the table ends
    if (!line.starts_with("|") || line.starts_with("|-")) continue;
    std::vector<std::string> cells = split(line.substr(1), '|');
    if (cells.front() != "operation" && guards.empty()) continue;  // another table
    if (cells.front() == "operation") {
      guards.assign(cells.begin() + 1, cells.end());
      continue;
    }
    EXPECT_EQ(cells.size(), guards.size() + 1) << line;
    EXPECT_FALSE(table.contains(cells.front())) << "two rows of " << cells.front();
    for (std::size_t i = 0; i < guards.size() && i + 1 < cells.size(); ++i) {
      table[cells.front()][guards[i]] = cells[i + 1];
    }
  }
  return table;
}

TEST(LifecycleTableTest, TheTableHasEveryGuardAndEveryOperationThatTheCodeHas) {
  const auto table = read_table();
  ASSERT_FALSE(table.empty());
  for (const auto& [operation, row] : table) {
    std::set<std::string> guards;
    for (const auto& [guard, cell] : row) guards.insert(guard);
    std::set<std::string> known;
    for (const auto& [guard, offer] : kGuards) known.insert(guard);
    EXPECT_EQ(guards, known) << operation;
  }
  for (const auto& [cell, scenarios] : all_cells()) {
    EXPECT_TRUE(table.contains(cell.first)) << "the table has no row " << cell.first;
  }
}

TEST(LifecycleTableTest, ACellIsEmptyExactlyWhereTheGuardHasNoSuchOperation) {
  for (const auto& [operation, row] : read_table()) {
    for (const auto& [guard, cell] : row) {
      ASSERT_TRUE(kGuards.contains(guard)) << guard;
      EXPECT_EQ(cell != "-", kGuards.at(guard)(operation))
          << operation << " of " << guard << " says '" << cell << "'";
      EXPECT_EQ(all_cells().contains({operation, guard}), cell != "-") << operation << " of " << guard;
    }
  }
}

TEST(LifecycleTableTest, EveryCellLeavesExactlyTheStatesItNames) {
  const auto table = read_table();
  for (const auto& [key, scenarios] : all_cells()) {
    const auto& [operation, guard] = key;
    States reached;
    for (const Scenario& scenario : scenarios) {
      World world;
      reached.insert(scenario(world));
      world.kept = Immutable();
      world.manager.check_invariants();
    }
    ASSERT_TRUE(table.contains(operation) && table.at(operation).contains(guard))
        << operation << " of " << guard;
    const auto named = split(table.at(operation).at(guard), ',');
    EXPECT_EQ(reached, States(named.begin(), named.end())) << operation << " of " << guard;
  }
}

}  // namespace
}  // namespace ashlar::block
