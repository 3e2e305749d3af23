// EventSink: who listens. Called from the drain of an EventLog, one call at a time, never under a lock of
// Ashlar's.
#pragma once

#include <span>

#include "ashlar/events/kv_event.h"

namespace ashlar::events {

class EventSink {
 public:
  virtual ~EventSink() = default;
  // The next events in order. The span is valid during the call only. A sink should not throw: the
  // events of that call are lost, and the next drain begins with a kResync.
  virtual void on_events(std::span<const KvEvent> events) = 0;
};

}  // namespace ashlar::events
