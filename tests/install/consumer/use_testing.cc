// The testing component: a user's own tests build managers, prompts, time and races with it.
#include <chrono>
#include <cstdio>
#include <thread>

#include "ashlar/testing/blocks.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/testing/interleaving.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/manual_clock.h"
#include "ashlar/testing/sequence_builder.h"

namespace {

using ashlar::events::G1;
using ashlar::events::KvEventKind;
using namespace ashlar::testing;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

bool a_prompt_is_stored_and_found() {
  auto manager = make_manager<G1>(4);
  const auto prompt = SequenceBuilder().blocks(3).iota(100).build();
  const auto stored = fill(manager, prompt);
  const auto other = SequenceBuilder().blocks(2).iota(100).then().blocks(1).iota(7).hashes();
  return stored.size() == 3 && manager.match_blocks(prompt.sequence_hashes()).size() == 3 &&
         manager.match_blocks(other).size() == 2;
}

bool a_pin_ends_with_its_time() {
  ManualClock clock;
  auto options = manager_options(1);
  options.clock = &clock;
  auto manager = make_manager<G1>(options);
  const auto pin = registered(manager, numbered_hash(1)).pin(10s);
  if (!pin || manager.status().pinned_inactive != 1) return false;
  clock.advance(10s - 1ns);
  if (!pin->active() || manager.allocate_blocks(1)) return false;
  clock.advance(1ns);
  return !pin->active() && manager.allocate_blocks(1);
}

bool a_match_overtakes_a_last_drop() {
  auto manager = make_manager<G1>(1);
  Interleaving order;
  auto last = registered(manager, numbered_hash(1));
  order.pause_at("drop.before_settle");
  std::jthread dropper([&] { last = {}; });
  order.wait_until_paused("drop.before_settle");
  auto found = match_one(manager, numbered_hash(1));
  if (!found || found.use_count() != 1) return false;
  order.resume("drop.before_settle");
  dropper.join();
  if (manager.counters().late_releases != 1 || manager.status().active != 1) return false;
  found = {};
  return manager.status().inactive == 1;
}

bool events_are_recorded() {
  auto options = manager_options(1);
  options.events = make_event_log();
  auto manager = make_manager<G1>(options);
  EventRecorder recorder;
  {
    const auto first = registered(manager, numbered_hash(1));
  }
  {
    const auto second = registered(manager, numbered_hash(2));
  }
  const auto events = recorder.drain(*options.events);
  return events.size() == 3 && events[0].kind == KvEventKind::kStored && events[0].hash == numbered_hash(1) &&
         events[1].kind == KvEventKind::kRemoved && events[1].hash == numbered_hash(1) &&
         events[2].kind == KvEventKind::kStored && events[2].hash == numbered_hash(2);
}

bool right(bool is, const char* what) {
  if (!is) std::fprintf(stderr, "use_testing: not so: %s\n", what);
  return is;
}

}  // namespace

int main() {
  bool all = right(a_prompt_is_stored_and_found(), "a prompt is stored and found");
  all = right(a_pin_ends_with_its_time(), "a pin ends with its time") && all;
  all = right(a_match_overtakes_a_last_drop(), "a match overtakes a last drop") && all;
  all = right(events_are_recorded(), "events are recorded") && all;
  return all ? 0 : 1;
}
