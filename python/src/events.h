// The events of managers, for files that bind a manager.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>

#include "ashlar/events/event_log.h"
#include "managers.h"

namespace ashlar::python {

struct KvRef;

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
