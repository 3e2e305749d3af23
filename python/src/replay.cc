// Replays: Trace, replay_trace() and what a replay found.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/replay/generate.h"
#include "ashlar/replay/real.h"
#include "ashlar/replay/report.h"
#include "ashlar/replay/simulate.h"
#include "ashlar/replay/trace.h"
#include "ashlar/replay/trace_table.h"
#include "errors.h"
#include "gil.h"
#include "module.h"
#include "paths.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {
namespace {

using replay::ReplayConfig;
using replay::ReplayCounts;
using replay::ReplayOutcome;

struct Trace {
  std::string name;
  std::shared_ptr<const replay::TraceTable> table;
};

// What one replay found, with the trace that it was about.
struct Replayed {
  std::string name;
  std::shared_ptr<const replay::TraceTable> table;
  ReplayOutcome outcome;
};

// Calls Python between requests: the caller's function, and what Ctrl-C asks for. Its exception ends the
// replay and is raised by rethrow().
class Progress {
 public:
  explicit Progress(nb::object function) : function_(std::move(function)) {}

  bool operator()(std::uint64_t done, std::uint64_t all) {
    const WithGil gil;
    if (!gil) return false;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (function_.is_none()) return true;
      const nb::object answer = call_python(function_, nb::make_tuple(done, all));
      return answer.is_none() || nb::cast<bool>(nb::bool_(answer));
    } catch (...) {
      failure_ = std::current_exception();
      return false;
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  nb::object function_;
  std::exception_ptr failure_;
};

Trace load(std::string name, replay::TraceSource& source) {
  Progress progress{nb::none()};
  Result<replay::TraceTable> table = [&] {
    const WithoutGil released;
    return replay::TraceTable::load(source, [&](std::uint64_t done) { return progress(done, 0); });
  }();
  progress.rethrow();
  return {std::move(name), std::make_shared<const replay::TraceTable>(value_or_raise(std::move(table)))};
}

Trace generate(const std::string& text) {
  const replay::GeneratorOptions options = value_or_raise(replay::parse_generator(text));
  value_or_raise(options.validate());
  const std::unique_ptr<replay::TraceSource> source = replay::generate_trace(options);
  return load(text, *source);
}

// The name of a trace goes into reports, which are text: other bytes of a path become question marks.
std::string shown(const std::string& path) {
  const nb::object text = nb::steal(PyUnicode_AsEncodedString(text_of(path).ptr(), "utf-8", "replace"));
  if (!text.is_valid()) throw nb::python_error();
  const nb::bytes bytes = nb::borrow<nb::bytes>(text);
  return {bytes.c_str(), bytes.size()};
}

Trace open(const PathLike& like, std::string_view format, std::uint32_t block_size, bool lenient) {
  replay::TraceOptions options;
  if (format != "detect") options.format = value_or_raise(replay::parse_trace_format(format));
  options.block_size = block_size;
  options.is_lenient = lenient;
  const std::string path = path_of(like);
  auto source = value_or_raise(without_gil([&] { return replay::open_trace(path, options); }));
  return load(shown(path), *source);
}

Replayed run(const Trace& trace, std::uint32_t workers, std::uint32_t g1, std::uint32_t g2, std::uint32_t g3,
             const std::string& policy, std::string_view routing, std::uint64_t seed, bool bound,
             std::uint64_t bytes_per_token, double prefill_tokens_per_second, std::uint32_t windows,
             bool real, const PathLike& folder, nb::object on_progress) {
  ReplayConfig config;
  config.workers = workers;
  config.tier_blocks = {g1, g2, g3};
  config.policy = policy;
  config.routing = value_or_raise(replay::parse_routing(routing));
  config.seed = seed;
  config.has_bound = bound;
  config.bytes_per_token = bytes_per_token;
  config.prefill_tokens_per_second = prefill_tokens_per_second;
  config.windows = windows;
  value_or_raise(config.validate());
  const std::string real_folder = path_of(folder);
  Progress progress(std::move(on_progress));
  const auto report = [&](std::uint64_t done, std::uint64_t all) { return progress(done, all); };
  Result<ReplayOutcome> outcome = [&] {
    const WithoutGil released;
    if (!real) return replay::simulate(*trace.table, config, report);
    replay::RealOptions options;
    options.folder = real_folder;
    return replay::replay_real(*trace.table, config, options, report);
  }();
  progress.rethrow();
  return {trace.name, trace.table, value_or_raise(std::move(outcome))};
}

template <std::size_t kSize, class Name>
nb::dict named(const std::array<std::uint64_t, kSize>& counts, Name&& name) {
  nb::dict out;
  for (std::size_t i = 0; i < kSize; ++i) out[nb::str(std::string(name(i)).c_str())] = counts[i];
  return out;
}
nb::dict by_tier(const std::array<std::uint64_t, replay::kReplayTiers>& counts) {
  return named(counts, [](std::size_t i) { return "g" + std::to_string(i + 1); });
}

void bind_trace(nb::module_& module) {
  nb::class_<Trace>(module, "Trace", "The requests of a workload, in the order of their arrival.")
      .def_static("generate", &generate, "text"_a = "chat",
                  "A generated workload: a kind (chat, prompts, agents, documents, mix), then any of seed, "
                  "requests, block and rate, as in \"chat,seed=1,requests=10000,block=16,rate=4\". One seed "
                  "gives the same requests on every machine.")
      .def_static("open", &open, "path"_a, nb::kw_only(), "format"_a = "detect", "block_size"_a = 0,
                  "lenient"_a = false,
                  "A file or folder of a known form: mooncake, bailian, weka, azure, burstgpt or journal. "
                  "lenient: lines that cannot be read are skipped.")
      .def_ro("name", &Trace::name, "The path, or the text of the generator.")
      .def("__len__", [](const Trace& self) { return self.table->requests().size(); })
      .def_prop_ro(
          "named_blocks", [](const Trace& self) { return self.table->named(); },
          "Blocks that the requests name, repeats included.")
      .def_prop_ro(
          "distinct_blocks", [](const Trace& self) { return self.table->distinct(); },
          "Different blocks among them.")
      .def_prop_ro(
          "input_tokens", [](const Trace& self) { return self.table->input_tokens(); },
          "Tokens of all prompts.")
      .def_prop_ro(
          "seconds", [](const Trace& self) { return static_cast<double>(self.table->span_ms()) / 1e3; },
          "From the first arrival to the last.")
      .def_prop_ro(
          "arrivals",
          [](const Trace& self) {
            std::vector<double> seconds;
            for (const replay::TraceTable::Request& request : self.table->requests())
              seconds.push_back(static_cast<double>(request.arrival_ms) / 1e3);
            return numpy_of(std::move(seconds));
          },
          nb::rv_policy::move, "Seconds since the first request, (n,) float64.")
      .def_prop_ro(
          "lengths",
          [](const Trace& self) {
            std::vector<std::uint64_t> tokens;
            for (const replay::TraceTable::Request& request : self.table->requests())
              tokens.push_back(request.input_tokens);
            return numpy_of(std::move(tokens));
          },
          nb::rv_policy::move, "Tokens of each prompt, (n,) uint64.");
}

}  // namespace

void bind_replay(nb::module_& module) {
  bind_trace(module);
  nb::class_<ReplayCounts>(module, "ReplayCounts", "What happened in a part of a replay, in blocks.")
      .def_ro("requests", &ReplayCounts::requests, "Requests.")
      .def_ro("blocks", &ReplayCounts::blocks, "Blocks of their prompts.")
      .def_ro("input_tokens", &ReplayCounts::input_tokens, "Tokens of their prompts.")
      .def_ro("hit_tokens", &ReplayCounts::hit_tokens, "Tokens that were found.")
      .def_prop_ro("hit_blocks", &ReplayCounts::hit_blocks, "Blocks that were found.")
      .def_prop_ro("hit_rate", &ReplayCounts::hit_rate, "Found blocks per block.")
      .def_prop_ro(
          "hits", [](const ReplayCounts& self) { return by_tier(self.hits); },
          nb::sig("def hits(self) -> dict[str, int]"), "Found blocks by the fastest tier that had them.")
      .def_prop_ro(
          "misses",
          [](const ReplayCounts& self) {
            return named(self.misses,
                         [](std::size_t i) { return to_string(static_cast<replay::MissReason>(i)); });
          },
          nb::sig("def misses(self) -> dict[str, int]"), "Blocks that were not found, by reason.")
      .def_prop_ro(
          "evictions", [](const ReplayCounts& self) { return by_tier(self.evictions); },
          nb::sig("def evictions(self) -> dict[str, int]"), "Evicted blocks by tier.")
      .def_prop_ro(
          "written", [](const ReplayCounts& self) { return by_tier(self.written); },
          nb::sig("def written(self) -> dict[str, int]"), "Blocks written into each tier.")
      .def_ro("bound_hits", &ReplayCounts::bound_hits,
              "Blocks that the bound would find; 0 without a bound.");
  nb::class_<Replayed>(module, "ReplayOutcome", "What a replay found.")
      .def_prop_ro(
          "total", [](const Replayed& self) { return self.outcome.total; }, "Counts of the whole trace.")
      .def_prop_ro(
          "windows", [](const Replayed& self) { return self.outcome.windows; },
          "Counts of equal parts of the time.")
      .def_prop_ro(
          "window_seconds", [](const Replayed& self) { return self.outcome.window_ms / 1e3; },
          "The length of each part.")
      .def_prop_ro(
          "hit_rate", [](const Replayed& self) { return self.outcome.total.hit_rate(); },
          "Found blocks per block.")
      .def_prop_ro(
          "bound_rate", [](const Replayed& self) { return self.outcome.bound_rate(); },
          "What a cache that knows all requests to come would find; 0 without a bound.")
      .def_prop_ro(
          "busiest",
          [](const Replayed& self) -> std::optional<double> {
            if (self.table->span_ms() == 0) return std::nullopt;
            return self.outcome.busiest();
          },
          "Share of the time that the busiest worker computes, estimated; None for a trace without times.")
      .def_prop_ro(
          "refused", [](const Replayed& self) { return self.outcome.refused; },
          "Requests longer than G1, of which the head was kept.")
      .def_prop_ro(
          "verified", [](const Replayed& self) { return self.outcome.verified; },
          "Blocks whose bytes were compared; 0 of a simulation.")
      .def_prop_ro(
          "latency_ms",
          [](const Replayed& self) {
            nb::dict out;
            out["mean"] = self.outcome.latency.mean;
            out["p50"] = self.outcome.latency.p50;
            out["p90"] = self.outcome.latency.p90;
            out["p99"] = self.outcome.latency.p99;
            return out;
          },
          nb::sig("def latency_ms(self) -> dict[str, float]"), "Estimated time to the first token.")
      .def_prop_ro(
          "worker_requests",
          [](const Replayed& self) {
            std::vector<std::uint64_t> requests;
            for (const replay::WorkerTotals& worker : self.outcome.workers)
              requests.push_back(worker.requests);
            return numpy_of(std::move(requests));
          },
          nb::rv_policy::move, "Requests of each worker, (workers,) uint64.")
      .def(
          "to_json",
          [](const Replayed& self) {
            return replay::replay_json(replay::subject_of(self.name, *self.table), {&self.outcome, 1});
          },
          "The report that `ashlar replay --json` writes.")
      .def(
          "to_html",
          [](const Replayed& self) {
            return replay::replay_html(replay::subject_of(self.name, *self.table), {&self.outcome, 1});
          },
          "The report with charts, one file that needs nothing else.")
      .def("__str__", [](const Replayed& self) {
        return replay::replay_table(replay::subject_of(self.name, *self.table), {&self.outcome, 1});
      });
  module.def(
      "replay_trace", &run, "trace"_a, nb::kw_only(), "workers"_a = 1, "g1"_a = 10'000, "g2"_a = 0,
      "g3"_a = 0, "policy"_a = "lru", "routing"_a = "prefix", "seed"_a = 1, "bound"_a = true,
      "bytes_per_token"_a = 131'072, "prefill_tokens_per_second"_a = 20'000.0, "windows"_a = 48,
      "real"_a = false, "folder"_a = "", "progress"_a = nb::none(),
      "Sends a trace through workers with tiers of blocks, an eviction policy and a router. g1, g2, g3: "
      "blocks of each worker's tier, 0: none. routing: round_robin, random, prefix, least_loaded or "
      "sticky. real: with bytes, compared at every hit; G3 lies in `folder`. progress(done, all) is "
      "called now and then; False stops the replay with Cancelled.");
}

}  // namespace ashlar::python
