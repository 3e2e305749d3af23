// Programs of requests, batches and sequences in which one call runs out of memory: it is refused, everything
// is as before, and the program goes on when the call is made again.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <list>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/sequence_manager.h"
#include "block/sequence/request_fixture.h"
#include "support/failing_new.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ashlar::support::FailingAllocation;
using ashlar::support::for_every_allocation;

constexpr std::uint32_t kBlocks = 96;
const std::vector<Token> kPrompt = tokens_from(1, 41);

// A step of a program, refused with kOutOfMemory or done.
template <class World>
struct Step {
  std::string name;
  std::function<bool(World&)> run;
};

bool is_out_of_memory(const Error& error) {
  return error == out_of_memory_error();
}
bool is_out_of_memory(const SequenceError& error) {
  return error.reason == Refused::kOutOfMemory;
}
bool is_out_of_memory(const BatchError& error) {
  return is_out_of_memory(error.error);
}

template <class T, class E>
bool done(const Result<T, E>& result) {
  EXPECT_TRUE(result.has_value() || is_out_of_memory(result.error()));
  return result.has_value();
}

// Runs the program once for every allocation of every step.
template <class World, class Make>
void run_program(const std::vector<Step<World>>& program, Make&& make) {
  std::size_t failures = 0;
  for (std::size_t failing_step = 0; failing_step < program.size(); ++failing_step) {
    SCOPED_TRACE(std::to_string(failing_step) + ": " + program[failing_step].name);
    failures += for_every_allocation([&](FailingAllocation& failing) {
      World world = make();
      for (std::size_t i = 0; i < program.size(); ++i) {
        if (i == failing_step) {
          const std::string before = world.seen();
          const bool ok = failing.during([&] { return program[i].run(world); });
          EXPECT_TRUE(ok || failing.happened());
          if (ok) continue;  // a match does without what it needs to refresh other tiers
          EXPECT_EQ(world.seen(), before) << "allocation " << failing.number();
        }
        ASSERT_TRUE(program[i].run(world)) << "step " << i << ", " << program[i].name << ", after allocation "
                                           << failing.number() << " failed in step " << failing_step;
      }
      world.end();
      const Places at = places(*world.manager);
      EXPECT_EQ(at.active + at.owned, 0u) << "allocation " << failing.number();
    });
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failures, program.size() / 2);
}

// A manager whose blocks another tier knows as well: registering them needs entries of the registry.
struct Managers {
  Managers() {
    // What the programs will register.
    for (const std::vector<Token>& text : {kPrompt, tokens_from(500, 30), tokens_from(600, 30)}) {
      host_names(text);
    }
    Request cached = value_of(Request::create(*manager, tokens_from(1, 21), {}));
    EXPECT_TRUE(cached.schedule_prefill(21).has_value());
    EXPECT_TRUE(cached.apply_prefill(Token(77)).has_value());
  }
  void host_names(const std::vector<Token>& text) {
    const auto sequence = value_of(TokenSequence::create(std::span<const Token>(text), kBlockSize));
    (void)store_all(*host, sequence);
  }
  BlockRegistry registry = make_registry();
  std::unique_ptr<Manager> manager = std::make_unique<Manager>(manager_of<G1>(kBlocks, registry));
  std::unique_ptr<BlockManager<G2>> host =
      std::make_unique<BlockManager<G2>>(manager_of<G2>(kBlocks, registry));
};

// ---- requests

struct RequestWorld : Managers {
  std::string seen() const {
    std::ostringstream out;
    out << places(*manager);
    for (const Request& request : requests) out << "; " << Snapshot(request);
    return out.str();
  }
  void end() {
    requests.clear();
    batch.clear();
  }
  Request& at(std::size_t i) { return *std::next(requests.begin(), static_cast<std::ptrdiff_t>(i)); }

  RequestOptions options;
  std::list<Request> requests;
  Batch batch;
};

using Steps = std::vector<Step<RequestWorld>>;

Step<RequestWorld> create(std::vector<Token> prompt) {
  return {"create", [prompt](RequestWorld& world) {
            auto made = Request::create(*world.manager, prompt, world.options);
            if (!done(made)) return false;
            world.requests.push_back(*std::move(made));
            return true;
          }};
}
Step<RequestWorld> match(std::size_t i) {
  return {"match_prefix", [i](RequestWorld& world) { return done(world.at(i).match_prefix()); }};
}
Step<RequestWorld> prefill(std::size_t i, std::size_t tokens) {
  return {"schedule_prefill",
          [i, tokens](RequestWorld& world) { return done(world.at(i).schedule_prefill(tokens)); }};
}
Step<RequestWorld> prefill_rest(std::size_t i) {
  return {"schedule_prefill of the rest", [i](RequestWorld& world) {
            return done(world.at(i).schedule_prefill(world.at(i).tokens_to_compute()));
          }};
}
Step<RequestWorld> applied(std::size_t i, std::optional<Token> next = std::nullopt) {
  return {"apply_prefill", [i, next](RequestWorld& world) { return done(world.at(i).apply_prefill(next)); }};
}
void decode(Steps& steps, std::size_t i, int count) {
  for (int step = 0; step < count; ++step) {
    steps.push_back(
        {"schedule_decode", [i](RequestWorld& world) { return done(world.at(i).schedule_decode()); }});
    steps.push_back(
        {"apply_decode", [i](RequestWorld& world) { return done(world.at(i).apply_decode(Token(800))); }});
  }
}

class RequestFailureTest : public ::testing::TestWithParam<bool> {
 protected:
  static RequestWorld world() {
    RequestWorld world;
    if (GetParam()) world.options.groups = {CacheGroup{}, CacheGroup{.window = 9}};
    return world;
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, RequestFailureTest, ::testing::Bool(),
                         [](const auto& groups) { return groups.param ? "Windowed" : "Plain"; });

TEST_P(RequestFailureTest, AStepIsUndone) {
  Steps steps = {create(kPrompt), match(0),        prefill(0, 10),
                 applied(0),      prefill_rest(0), applied(0, Token(700))};
  decode(steps, 0, 6);
  steps.push_back({"schedule_speculative",
                   [](RequestWorld& world) { return done(world.at(0).schedule_speculative(9)); }});
  steps.push_back({"apply_speculative", [](RequestWorld& world) {
                     return done(world.at(0).apply_speculative(tokens_from(900, 7)));
                   }});
  run_program(steps, [] { return world(); });
}

TEST_P(RequestFailureTest, AForkIsUndone) {
  Steps steps = {create(kPrompt), match(0), prefill_rest(0), applied(0, Token(700))};
  decode(steps, 0, 1);
  const auto fork = [](RequestWorld& world) {
    auto made = world.at(0).fork(Token(701));
    if (!done(made)) return false;
    world.requests.push_back(*std::move(made));
    return true;
  };
  steps.push_back({"fork", fork});
  decode(steps, 1, 4);  // takes a copy first
  decode(steps, 0, 4);
  steps.push_back({"fork", fork});
  steps.push_back(
      {"schedule_decode of a fork", [](RequestWorld& world) { return done(world.at(2).schedule_decode()); }});
  steps.push_back({"revert", [](RequestWorld& world) { return done(world.at(2).revert()); }});
  decode(steps, 2, 2);
  run_program(steps, [] { return world(); });
}

TEST_P(RequestFailureTest, AResumeIsUndone) {
  Steps steps = {create(kPrompt), match(0), prefill_rest(0), applied(0, Token(700))};
  decode(steps, 0, 2);
  steps.push_back({"preempt", [](RequestWorld& world) { return done(world.at(0).preempt()); }});
  steps.push_back({"resume", [](RequestWorld& world) { return done(world.at(0).resume()); }});
  steps.push_back(prefill_rest(0));
  steps.push_back(applied(0, Token(702)));
  run_program(steps, [] { return world(); });
}

TEST_P(RequestFailureTest, ABatchIsAllOrNone) {
  Steps steps = {create(kPrompt), create(tokens_from(500, 30)), create(tokens_from(600, 30)), match(0)};
  steps.push_back({"add", [](RequestWorld& world) {
                     world.batch.clear();
                     for (Request& request : world.requests) world.batch.add(request);
                     return true;
                   }});
  steps.push_back({"schedule_prefill", [](RequestWorld& world) {
                     return done(world.batch.schedule_prefill(
                         std::array<std::size_t, 3>{world.at(0).tokens_to_compute(), 30, 30}));
                   }});
  steps.push_back({"apply_prefill", [](RequestWorld& world) {
                     const std::array<std::optional<Token>, 3> next = {Token(700), Token(701), Token(702)};
                     return done(world.batch.apply_prefill(next));
                   }});
  for (int i = 0; i < 6; ++i) {
    steps.push_back(
        {"schedule_decode", [](RequestWorld& world) { return done(world.batch.schedule_decode()); }});
    steps.push_back({"apply_decode", [](RequestWorld& world) {
                       return done(world.batch.apply_decode(tokens_from(700, 3)));
                     }});
  }
  run_program(steps, [] { return world(); });
}

// The blocks of work in flight go nowhere until its fence has passed, with or without memory.
TEST_P(RequestFailureTest, ARequestThatCannotWaitForItsFenceKeepsItsBlocks) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    RequestWorld here = world();
    for (const auto& step : Steps{create(kPrompt), match(0), prefill_rest(0)}) ASSERT_TRUE(step.run(here));
    auto [fence, signal] = Fence::create();
    const std::string before = here.seen();
    const Places taken = places(*here.manager);
    const bool released = failing.during([&] {
      here.at(0).release_after(fence);
      return true;
    });
    EXPECT_EQ(released, !failing.happened());
    EXPECT_EQ(places(*here.manager), taken) << "allocation " << failing.number();
    if (!released) {
      EXPECT_EQ(here.seen(), before);
      here.at(0).release();
    }
    std::move(signal).signal();
    EXPECT_EQ(places(*here.manager).owned, 0u);
  });
  EXPECT_GT(failures, 0u);
}

TEST_P(RequestFailureTest, WhatLeavesARunningStepWaitsForItsFence) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    RequestWorld here = world();
    for (const auto& step : Steps{create(kPrompt), match(0), prefill_rest(0), applied(0, Token(700))})
      ASSERT_TRUE(step.run(here));
    ASSERT_TRUE(done(here.at(0).schedule_speculative(9)));
    auto [fence, signal] = Fence::create();
    const std::size_t available = here.manager->available_blocks();
    const auto apply = [&, &after = fence] {
      here.at(0).set_written_after(after);
      return done(here.at(0).apply_speculative(tokens_from(900, 2)));
    };
    if (!failing.during(apply)) {
      EXPECT_TRUE(failing.happened());
      ASSERT_TRUE(apply());
    }
    EXPECT_EQ(here.manager->available_blocks(), available) << "allocation " << failing.number();
    here.at(0).release();
    EXPECT_EQ(here.manager->available_blocks(), available) << "allocation " << failing.number();
    std::move(signal).signal();
    const Places at = places(*here.manager);
    EXPECT_EQ(at.active + at.owned, 0u) << "allocation " << failing.number();
  });
  EXPECT_GT(failures, 0u);
}

// ---- sequences of the small interface

struct SequenceWorld : Managers {
  std::string seen() const {
    std::ostringstream out;
    out << places(*manager);
    if (sequence) {
      out << "; " << sequence->size() << " tokens, " << sequence->computed_tokens() << " computed, "
          << sequence->cached_tokens() << " cached, table";
      for (const BlockId id : sequence->block_table()) out << " " << id.value();
    }
    return out.str();
  }
  void end() { sequence.reset(); }

  std::unique_ptr<SequenceManager<G1>> sequences;
  std::optional<Sequence<G1>> sequence;
};

class SequenceFailureTest : public ::testing::TestWithParam<RegisterBlocks> {};
INSTANTIATE_TEST_SUITE_P(Modes, SequenceFailureTest,
                         ::testing::Values(RegisterBlocks::kAtOnce, RegisterBlocks::kWhenComputed),
                         [](const auto& mode) {
                           return mode.param == RegisterBlocks::kAtOnce ? "AtOnce" : "WhenComputed";
                         });

TEST_P(SequenceFailureTest, ACallIsUndone) {
  std::vector<Step<SequenceWorld>> steps = {
      {"make_sequence",
       [](SequenceWorld& world) {
         auto made = world.sequences->make_sequence(kPrompt);
         if (!done(made)) return false;
         world.sequence.emplace(*std::move(made));
         return true;
       }},
      {"can_allocate",
       [](SequenceWorld& world) { return world.sequences->can_allocate(*world.sequence).has_value(); }},
      {"allocate", [](SequenceWorld& world) { return done(world.sequences->allocate(*world.sequence)); }},
      {"computed", [](SequenceWorld& world) {
         return done(world.sequences->computed(*world.sequence, world.sequence->size()));
       }}};
  for (int i = 0; i < 9; ++i) {
    steps.push_back({"append", [](SequenceWorld& world) {
                       world.sequence->append(Token(900));
                       return true;
                     }});
    steps.push_back({"may_append", [](SequenceWorld& world) {
                       return done(world.sequences->may_append(*world.sequence));
                     }});
  }
  steps.push_back({"computed", [](SequenceWorld& world) {
                     return done(world.sequences->computed(*world.sequence, world.sequence->size()));
                   }});
  steps.push_back({"deallocate",
                   [](SequenceWorld& world) { return done(world.sequences->deallocate(*world.sequence)); }});
  run_program(steps, [] {
    SequenceWorld world;
    SequenceManagerOptions options;
    options.register_blocks = GetParam();
    world.sequences = std::make_unique<SequenceManager<G1>>(*world.manager, options);
    return world;
  });
}

}  // namespace
}  // namespace ashlar::block
