// Events: KvEvent, EventBatch, drain_events() of both managers, and EventStream, which calls Python.
//
// A stream's callback runs on a thread of the stream with the GIL; nothing that waits for that thread holds
// the GIL, so closing cannot deadlock. A callback cannot close its own stream; a stream whose last reference
// goes away on its own thread is closed by another one. What is open at the interpreter's end is closed by
// atexit, while callbacks can still run.
#include "events.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/events/event_manager.h"
#include "callbacks.h"
#include "errors.h"
#include "guards.h"
#include "kv.h"
#include "module.h"
#include "paths.h"
#include "tier_names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {

void check_event_capacity(std::size_t capacity) {
  constexpr std::size_t kMost = std::size_t{1} << 26;
  if (capacity > kMost) {
    raise(make_error(ErrorCode::kInvalidArgument, "events is %zu; a tier buffers at most %zu", capacity,
                     kMost));
  }
}

std::shared_ptr<events::EventLog> event_log_of(std::size_t capacity) {
  check_event_capacity(capacity);
  return capacity == 0 ? nullptr : std::make_shared<events::EventLog>(capacity);
}

namespace {

using events::KvEvent;

// Collects a drain. A sink must not throw, and so must not run out of memory silently: the log then says so.
class Gatherer final : public events::EventSink {
 public:
  void on_events(std::span<const KvEvent> events) override {
    batch.events.insert(batch.events.end(), events.begin(), events.end());
  }
  events::OwnedBatch batch;
};

// The layout of a KvEvent for numpy: hashes as two numbers of 64 bits.
nb::object event_dtype() {
  const nb::object numpy = nb::module_::import_("numpy");
  nb::list names, formats, offsets;
  const auto add = [&](const char* name, const char* format, std::size_t offset) {
    names.append(name);
    formats.append(format);
    offsets.append(offset);
  };
  add("hash", "(2,)u8", offsetof(KvEvent, hash));
  add("parent", "(2,)u8", offsetof(KvEvent, parent_bits));
  add("prefix_group", "(2,)u8", offsetof(KvEvent, root_bits));
  add("sequence", "u8", offsetof(KvEvent, sequence));
  add("name", "u8", offsetof(KvEvent, name_bits));
  add("local", "u8", offsetof(KvEvent, local_bits));
  add("block", "u4", offsetof(KvEvent, block));
  add("bytes", "u4", offsetof(KvEvent, bytes));
  add("metadata", "u4", offsetof(KvEvent, metadata));
  add("location", "u2", offsetof(KvEvent, location));
  add("group", "u2", offsetof(KvEvent, group));
  add("kind", "u1", offsetof(KvEvent, kind));
  add("tier", "u1", offsetof(KvEvent, tier));
  add("has_parent", "?", offsetof(KvEvent, has_parent));
  add("has_prefix_group", "?", offsetof(KvEvent, has_root));
  add("has_name", "?", offsetof(KvEvent, has_name));
  add("has_local", "?", offsetof(KvEvent, has_local));
  nb::dict fields;
  fields["names"] = names;
  fields["formats"] = formats;
  fields["offsets"] = offsets;
  fields["itemsize"] = sizeof(KvEvent);
  return numpy.attr("dtype")(fields);
}

nb::object events_array(nb::handle_t<EventBatchObject> self) {
  const std::vector<KvEvent>& events = nb::cast<EventBatchObject&>(self).owned.events;
  const nb::object dtype = event_dtype();
  if (events.empty()) return nb::module_::import_("numpy").attr("zeros")(0, dtype);
  const nb::ndarray<nb::numpy, const std::uint8_t> bytes(events.data(), {events.size() * sizeof(KvEvent)},
                                                         self);
  return nb::cast(bytes).attr("view")(dtype);
}

// Calls Python with each batch. The EventManager calls it on one thread.
class PythonSink final : public events::BatchSink {
 public:
  explicit PythonSink(nb::callable callback) : callback_(std::move(callback)) {}

  Result<void> publish(const events::EventBatch& batch) override {
    if (ended_.load(std::memory_order_acquire)) return {};
    EventBatchObject copy(events::OwnedBatch::of(batch));
    calling_.store(std::this_thread::get_id());
    callback_(std::move(copy));
    calling_.store(std::thread::id());
    return {};
  }
  std::string describe() const override { return "a function of Python"; }

  void end() noexcept { ended_.store(true, std::memory_order_release); }  // release: pairs with publish()
  PyObject* function() const { return callback_.function(); }
  bool is_calling_here() const noexcept { return calling_.load() == std::this_thread::get_id(); }

 private:
  const PythonCallback callback_;
  std::atomic<bool> ended_{false};
  std::atomic<std::thread::id> calling_{};
};

// Logs that a stream or nobody reads: two readers would each get half.
class TakenLogs {
 public:
  bool take(const events::EventLog* log) {
    const std::lock_guard lock(mutex_);
    return taken_.insert(log).second;
  }
  void leave(const events::EventLog* log) {
    const std::lock_guard lock(mutex_);
    taken_.erase(log);
  }
  bool is_taken(const events::EventLog* log) {
    const std::lock_guard lock(mutex_);
    return taken_.contains(log);
  }

 private:
  std::mutex mutex_;
  std::set<const events::EventLog*> taken_;
};

TakenLogs& taken_logs() {
  return once_per_process<TakenLogs>();
}

// An open stream. Destroyed by its last user, after close().
struct OpenStream {
  KvPtr kv;            // one of these two is the source
  ManagerPtr manager;  // of kv's G1 or alone
  std::shared_ptr<events::EventLog> log;
  std::shared_ptr<PythonSink> sink;
  std::unique_ptr<events::EventManager> events;
  bool taken = false;     // the log
  bool attached = false;  // the source to `events`
  std::once_flag closed;

  ~OpenStream() { leave(); }

  // Delivers what is queued, within `patience`; then nothing more. Call without the GIL, and not on the
  // sink's thread.
  void close(Clock::Duration patience) {
    std::call_once(closed, [&] {
      static_cast<void>(events->flush(Clock::real().now() + patience));
      sink->end();
      static_cast<void>(events->remove_sink(sink));
      leave();
    });
  }
  // Before `events` and the source are destroyed.
  void leave() {
    if (std::exchange(attached, false)) {
      if (kv != nullptr) {
        kv->detach_events();
      } else {
        static_cast<void>(events->remove_source(log));
      }
    }
    if (std::exchange(taken, false)) taken_logs().leave(log.get());
  }
};

// Streams that are open, for atexit.
struct OpenStreams {
  std::mutex mutex;
  std::vector<std::weak_ptr<OpenStream>> streams;
};

OpenStreams& open_streams() {
  return once_per_process<OpenStreams>();
}

class StreamObject {
 public:
  StreamObject(std::shared_ptr<OpenStream> stream) : stream_(std::move(stream)) {}
  StreamObject(StreamObject&&) noexcept = default;
  StreamObject& operator=(StreamObject&&) = delete;
  ~StreamObject() { give_up(); }

  // For the destructor and the garbage collector: close() with a short patience.
  void give_up() {
    if (stream_ == nullptr || leave_to_parent()) return;
    if (!stream_->sink->is_calling_here()) {
      without_gil_in_destructor([&] { end(std::move(stream_)); });
      return;
    }
    // Collected by its own callback: another thread waits for this one.
    try {
      std::thread([stream = std::move(stream_)]() mutable { end(std::move(stream)); }).detach();
    } catch (const std::system_error&) {
      // No thread: the stream stays open, and atexit closes it if it can.
    }
  }
  // The function that it calls; null once it is closed.
  PyObject* function() const { return stream_ == nullptr ? nullptr : stream_->sink->function(); }

  // Call with the GIL.
  const std::shared_ptr<OpenStream>& get() const {
    if (stream_ == nullptr) raise_used("this EventStream");
    if (birth_.is_of_parent()) raise_of_parent();
    return stream_;
  }
  const std::shared_ptr<OpenStream>& get_elsewhere() const {
    if (get()->sink->is_calling_here()) {
      raise(Error(ErrorCode::kInvalidArgument,
                  "a callback cannot wait for its own stream: call this elsewhere"));
    }
    return stream_;
  }
  bool is_closed() const { return stream_ == nullptr; }
  void close(double timeout) {
    if (stream_ == nullptr || leave_to_parent()) return;
    const Clock::Duration patience = seconds_of(timeout);
    get_elsewhere();
    // Interrupted, it goes on.
    run_interruptibly([stream = std::move(stream_), patience] {
      stream->close(patience);
      return true;
    });
  }

 private:
  static void end(std::shared_ptr<OpenStream> stream) {
    constexpr auto kPatience = std::chrono::seconds(1);
    stream->close(kPatience);
  }
  bool leave_to_parent() {
    if (!birth_.is_of_parent()) return false;
    leave_behind(std::move(stream_));
    return true;
  }

  std::shared_ptr<OpenStream> stream_;
  Birth birth_;
};

// The collector sees the function, which may refer to the stream. It ends streams that only such functions
// refer to before it takes anything apart, so that what waits is still delivered to whole objects; with the
// function's reference gone, nothing is left to clear.
int traverse_stream(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<StreamObject>(self)->function());
  return 0;
}

void finalize_stream(PyObject* self) {
  if (!nb::inst_ready(self)) return;
  PyObject *type, *value, *trace;  // a finalizer leaves what is raised as it is
  PyErr_Fetch(&type, &value, &trace);
  nb::inst_ptr<StreamObject>(self)->give_up();
  PyErr_Restore(type, value, trace);
}

PyType_Slot stream_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse_stream)},
                              {Py_tp_finalize, reinterpret_cast<void*>(&finalize_stream)},
                              {0, nullptr}};

std::shared_ptr<OpenStream> open_stream(nb::handle source, nb::callable callback, std::uint64_t worker,
                                        std::uint32_t rank, std::uint64_t incarnation, std::size_t max_events,
                                        double max_age) {
  auto stream = std::make_shared<OpenStream>();
  if (nb::isinstance<KvRef>(source)) {
    stream->kv = nb::cast<KvRef&>(source).get();
    stream->manager = g1_of(stream->kv);
  } else if (nb::isinstance<ManagerObject>(source)) {
    stream->manager = nb::cast<ManagerObject&>(source).manager;
  } else {
    throw nb::type_error("the source of an EventStream is a KvBlockManager or a BlockManager");
  }
  stream->log = stream->manager->event_log();
  if (stream->log == nullptr) {
    raise(Error(ErrorCode::kNotReady, "the manager makes no events: create it with events=N"));
  }
  events::BatchProfile profile;
  profile.max_events = max_events;
  profile.max_age = seconds_of(max_age);
  value_or_raise(profile.validate());
  events::EventManagerOptions options;
  options.stream = {{events::WorkerId(worker), rank}, incarnation};
  options.keys.block_size = stream->manager->block_size();
  stream->sink = std::make_shared<PythonSink>(std::move(callback));
  stream->taken = taken_logs().take(stream->log.get());
  if (!stream->taken) {
    raise(Error(ErrorCode::kAlreadyExists, "the manager has an EventStream already: close it first"));
  }
  value_or_raise(without_gil([&]() -> Result<void> {
    ASHLAR_TRY(stream->events, events::EventManager::create(std::move(options)));
    if (stream->kv != nullptr) {
      ASHLAR_RETURN_IF_ERROR(stream->kv->attach_events(*stream->events));
    } else {
      const Manager* manager = stream->manager.get();
      ASHLAR_RETURN_IF_ERROR(stream->events->add_source(
          stream->log, [manager](std::vector<KvEvent>& out) { return manager->list_stored(out); }));
    }
    stream->attached = true;
    return stream->events->add_sink(stream->sink, profile);
  }));
  const std::lock_guard lock(open_streams().mutex);
  std::erase_if(open_streams().streams, [](const auto& weak) { return weak.expired(); });
  open_streams().streams.push_back(stream);
  return stream;
}

nb::dict stream_counters_of(const StreamObject& self) {
  const std::shared_ptr<OpenStream> stream = self.get();
  const events::EventCounters seen = without_gil([&] { return stream->events->counters(); });
  nb::dict out;
  out["events"] = seen.events;
  out["lost"] = seen.lost;
  out["repaired"] = seen.repaired;
  out["resyncs"] = seen.resyncs;
  out["present"] = seen.present;
  out["batches"] = seen.sinks.empty() ? 0 : seen.sinks[0].batches;
  out["snapshots"] = seen.sinks.empty() ? 0 : seen.sinks[0].snapshots;
  out["waiting"] = seen.sinks.empty() ? 0 : seen.sinks[0].waiting;
  return out;
}

void bind_values(nb::module_& module) {
  nb::class_<KvEvent>(module, "KvEvent", "One change to the contents of a tier.")
      .def_prop_ro(
          "kind", [](const KvEvent& self) { return std::string(to_string(self.kind)); },
          "stored, removed, resync (events were lost), access or cleared.")
      .def_prop_ro(
          "tier",
          [](const KvEvent& self) { return self.tier == events::kAllTiers ? "all" : tier_name(self.tier); },
          "g1 to g4, remote; \"all\" of a cleared.")
      .def_ro("hash", &KvEvent::hash, "The name of the block.")
      .def_prop_ro("parent", &KvEvent::parent, "The block before it, if known.")
      .def_prop_ro("prefix_group", &KvEvent::prefix_group, "The first block of its sequence, if known.")
      .def_prop_ro(
          "name", [](const KvEvent& self) { return self.name().value(); },
          "The producer's own name, else the chain hash: a number of 64 bits.")
      .def_prop_ro(
          "local",
          [](const KvEvent& self) -> std::optional<std::uint64_t> {
            if (const auto local = self.local()) return local->value();
            return std::nullopt;
          },
          "The hash of the block's own tokens, if known.")
      .def_ro("sequence", &KvEvent::sequence, "Its number in its log.")
      .def_ro("block", &KvEvent::block, "The block's number in its tier; of a resync, the events lost.")
      .def_ro("bytes", &KvEvent::bytes, "The size of the block; 0: unknown.")
      .def_ro("metadata", &KvEvent::metadata, "The caller's own number.")
      .def_ro("location", &KvEvent::location, "A file or volume that the batch names; 0: the tier itself.")
      .def("__repr__", [](const KvEvent& self) {
        return "<KvEvent " + std::string(to_string(self.kind)) + " " + self.hash.to_string() + " " +
               tier_name(self.tier) + ">";
      });
  nb::class_<EventBatchObject>(module, "EventBatch",
                               R"(Consecutive events of one stream; an item is a KvEvent.

A snapshot is the whole state of the stream, in parts: it replaces what a listener knew.)")
      .def_prop_ro(
          "is_snapshot",
          [](const EventBatchObject& self) { return self.owned.head.kind == events::BatchKind::kSnapshot; },
          "Whether it is a part of a snapshot.")
      .def_prop_ro(
          "worker", [](const EventBatchObject& self) { return self.owned.head.stream.worker.id.value(); },
          "The worker of the stream.")
      .def_prop_ro(
          "rank", [](const EventBatchObject& self) { return self.owned.head.stream.worker.rank; },
          "Its rank.")
      .def_prop_ro(
          "incarnation", [](const EventBatchObject& self) { return self.owned.head.stream.incarnation; },
          "Increases on every restart of the worker.")
      .def_prop_ro(
          "first", [](const EventBatchObject& self) { return self.owned.head.first; },
          "The number of the first event; of a snapshot, of the next one.")
      .def_prop_ro(
          "part", [](const EventBatchObject& self) { return self.owned.head.part; }, "Of a snapshot, from 0.")
      .def_prop_ro(
          "parts", [](const EventBatchObject& self) { return self.owned.head.parts; }, "Of a snapshot.")
      .def_prop_ro(
          "locations",
          [](const EventBatchObject& self) {
            nb::dict out;
            for (const events::LocationName& one : self.owned.locations)
              out[nb::int_(one.number)] = text_of(one.name);
            return out;
          },
          nb::sig("def locations(self) -> dict[int, str]"),
          "Files and volumes that the events name, by number.")
      .def_prop_ro("array", &events_array, nb::sig("def array(self) -> numpy.ndarray"),
                   "The events as a structured array without a copy; read-only. Hashes are two uint64; kind "
                   "is 0 stored, 1 removed, 2 resync, 3 access, 4 cleared; tier counts from 0.")
      .def("__len__", [](const EventBatchObject& self) { return self.owned.events.size(); })
      .def(
          "__getitem__",
          [](const EventBatchObject& self, Py_ssize_t index) {
            return self.owned.events[index_in(index, self.owned.events.size())];
          },
          "index"_a);
}

}  // namespace

void close_open_streams() {
  std::vector<std::weak_ptr<OpenStream>> streams;
  {
    const std::lock_guard lock(open_streams().mutex);
    streams.swap(open_streams().streams);
  }
  constexpr auto kPatience = std::chrono::seconds(5);
  for (const std::weak_ptr<OpenStream>& weak : streams) {
    if (std::shared_ptr<OpenStream> stream = weak.lock(); stream && !stream->sink->is_calling_here()) {
      without_gil([&] {
        stream->close(kPatience);
        stream.reset();
      });
    }
  }
}

void bind_manager_events(nb::class_<ManagerObject>& type) {
  type.def(
      "drain_events",
      [](const ManagerObject& self) {
        const ManagerPtr manager = self.manager;
        const std::shared_ptr<events::EventLog> log = manager->event_log();
        if (log == nullptr)
          raise(Error(ErrorCode::kNotReady, "the manager makes no events: create it with events=N"));
        Gatherer gatherer;
        if (!taken_logs().is_taken(log.get())) without_gil([&] { log->drain(gatherer); });
        return EventBatchObject(std::move(gatherer.batch));
      },
      "The events since the last call; none while an EventStream has them. A resync stands for lost ones.");
}

void bind_kv_events(nb::class_<KvRef>& type) {
  type.def(
      "drain_events",
      [](const KvRef& self) {
        const KvPtr kv = self.get();
        if (kv->g1().event_log() == nullptr)
          raise(Error(ErrorCode::kNotReady, "the manager makes no events: create it with events=N"));
        Gatherer gatherer;
        // A stream of G1 alone takes its events, which this would drain too.
        if (!taken_logs().is_taken(kv->g1().event_log().get()))
          without_gil([&] { kv->drain_events(gatherer); });
        return EventBatchObject(std::move(gatherer.batch));
      },
      "The events of all tiers since the last call, tier by tier; none while an EventStream has them, be it "
      "of G1 alone.");
}

void bind_events(nb::module_& module) {
  bind_values(module);
  nb::class_<StreamObject>(module, "EventStream", nb::type_slots(stream_slots),
                           R"(Calls a function with the events of a manager, in batches.

The function gets an EventBatch, on a thread of the stream, one call at a time: first a snapshot of what the
manager holds, then every change in order. It may use the manager. An exception in it goes to
sys.unraisablehook, and its batch counts as delivered. If it is too slow, a snapshot replaces what waits.
Use `with` or close() to end it at once; a stream that nothing refers to, but perhaps its own function, is
ended by the garbage collector.)")
      .def(
          "__init__",
          [](StreamObject* self, nb::object source, nb::callable callback, std::uint64_t worker,
             std::uint32_t rank, std::uint64_t incarnation, std::size_t max_events, double max_age) {
            new (self) StreamObject(
                open_stream(source, std::move(callback), worker, rank, incarnation, max_events, max_age));
          },
          "source"_a, "callback"_a, nb::kw_only(), "worker"_a = 0, "rank"_a = 0, "incarnation"_a = 0,
          "max_events"_a = 512, "max_age"_a = 0.002,
          nb::sig("def __init__(self, source: KvBlockManager | BlockManager, callback: "
                  "collections.abc.Callable[[EventBatch], object], *, worker: int = 0, rank: int = 0, "
                  "incarnation: int = 0, max_events: int = 512, max_age: float = 0.002) -> None"),
          "source: a KvBlockManager or a BlockManager that was made with events=N. A batch comes when it has "
          "max_events, or its oldest event is max_age seconds old.")
      .def(
          "flush",
          [](const StreamObject& self, double timeout) {
            const std::shared_ptr<OpenStream> stream = self.get_elsewhere();
            const auto until = Clock::real().now() + seconds_of(timeout);
            value_or_raise(run_interruptibly([stream, until] { return stream->events->flush(until); }));
          },
          "timeout"_a = 30.0, "Waits until every event before the call was delivered. Timeout.")
      .def(
          "snapshot",
          [](const StreamObject& self) {
            const std::shared_ptr<OpenStream> stream = self.get();
            return EventBatchObject(without_gil([&] { return stream->events->snapshot(); }));
          },
          "What the manager holds now, as one batch.")
      .def_prop_ro("counters", &stream_counters_of, nb::sig("def counters(self) -> dict[str, int]"),
                   "Events, losses and batches so far, by name.")
      .def("close", &StreamObject::close, "timeout"_a = 5.0,
           "Delivers what waits, within the timeout; then the function is called no more. Does nothing the "
           "second time. InvalidArgument: called by the function itself.")
      .def_prop_ro("closed", &StreamObject::is_closed, "True after close().")
      .def(
          "__enter__",
          [](nb::handle_t<StreamObject> self) {
            nb::cast<StreamObject&>(self).get();
            return nb::borrow<nb::object>(self);
          },
          nb::sig("def __enter__(self) -> typing.Self"), "For `with`: itself.")
      .def(
          "__exit__", [](StreamObject& self, nb::args) { self.close(5.0); },
          nb::sig("def __exit__(self, *args: object) -> None"), "For `with`: close().");
}

}  // namespace ashlar::python
