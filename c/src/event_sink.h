// CallbackSink: hands the events of a log to a function of the caller, without copying them.
//
// Thread safety: thread-compatible; the drain calls it on the caller's thread, without a lock.
#pragma once

#include <cstddef>
#include <span>

#include "ashlar/events/event_log.h"
#include "ashlar/events/kv_event.h"
#include "ashlar_c.h"

namespace ashlar::c_interface {

static_assert(sizeof(ashlar_event) == sizeof(events::KvEvent) &&
              offsetof(ashlar_event, sequence) == offsetof(events::KvEvent, sequence) &&
              offsetof(ashlar_event, local) == offsetof(events::KvEvent, local_bits) &&
              offsetof(ashlar_event, block) == offsetof(events::KvEvent, block) &&
              offsetof(ashlar_event, group) == offsetof(events::KvEvent, group) &&
              offsetof(ashlar_event, kind) == offsetof(events::KvEvent, kind) &&
              offsetof(ashlar_event, has_local) == offsetof(events::KvEvent, has_local));

class CallbackSink final : public events::EventSink {
 public:
  CallbackSink(ashlar_event_callback callback, void* user) noexcept : callback_(callback), user_(user) {}

  void on_events(std::span<const events::KvEvent> events) override {
    callback_(user_, reinterpret_cast<const ashlar_event*>(events.data()), events.size());
  }

 private:
  ashlar_event_callback callback_;
  void* user_;
};

}  // namespace ashlar::c_interface
