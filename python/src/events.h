// The events of managers, for files that bind a manager.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "ashlar/events/event_batch.h"
#include "ashlar/events/event_log.h"
#include "managers.h"

namespace ashlar::python {

struct KvRef;

// The Python class EventBatch: consecutive events with their stream. It never changes.
struct EventBatchObject {
  events::OwnedBatch owned;

  explicit EventBatchObject(events::OwnedBatch batch) : owned(std::move(batch)) {}
  EventBatchObject(EventBatchObject&&) noexcept = default;
};

// A log for that many events; null for 0. Raises InvalidArgument for more than a log may hold.
std::shared_ptr<events::EventLog> event_log_of(std::size_t capacity);
// The same limit for tiers, which make their logs themselves.
void check_event_capacity(std::size_t capacity);

// For atexit: closes the streams that are open, while their functions can still be called. Call with the GIL
// held.
void close_open_streams();

void bind_manager_events(nanobind::class_<ManagerObject>& type);
void bind_kv_events(nanobind::class_<KvRef>& type);

}  // namespace ashlar::python
