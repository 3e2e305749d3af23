#include "interrupts.h"

#include "fork.h"

namespace ashlar::python {
namespace {

struct CallsElsewhere {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t count = 0;
};

CallsElsewhere& calls_elsewhere() {
  return once_per_process<CallsElsewhere>();  // threads that were left behind use it to the end
}

}  // namespace

ElsewhereTurn::ElsewhereTurn() {
  const std::lock_guard lock(calls_elsewhere().mutex);
  ++calls_elsewhere().count;
}

ElsewhereTurn::~ElsewhereTurn() {
  const std::lock_guard lock(calls_elsewhere().mutex);
  --calls_elsewhere().count;
  calls_elsewhere().changed.notify_all();
}

bool wait_for_calls_elsewhere(Clock::Duration patience) {
  std::unique_lock lock(calls_elsewhere().mutex);
  return calls_elsewhere().changed.wait_for(lock, patience, [] { return calls_elsewhere().count == 0; });
}

}  // namespace ashlar::python
