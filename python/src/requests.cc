// RequestSequence: one request as a scheduler sees it.
#include "requests.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>

#include "arrays.h"
#include "callbacks.h"
#include "guards.h"
#include "interrupts.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {

void SharedRequest::release() {
  get();
  run(ends_slowly(), [](block::RequestSequence<G1>& request) { request.release(); });
}

Result<block::MatchStart, block::SequenceError> SharedRequest::begin_match(std::function<void()> on_ready) {
  auto ready = std::make_shared<Ready>();
  auto started = run_without_gil([&](block::RequestSequence<G1>& request) {
    return request.begin_match([ready, call = std::move(on_ready)] {
      {
        const std::lock_guard lock(ready->mutex);
        ready->is_set = true;
        ready->changed.notify_all();
      }
      if (call) call();
    });
  });
  if (started && started->pending) ready_ = std::move(ready);
  return started;
}

void SharedRequest::wait_until_ready() {
  const std::shared_ptr<Ready> ready = ready_;
  if (ready == nullptr || get().state() != block::RequestState::kOnboarding) return;
  bool is_set = false;
  const Busy busy(busy_);
  wait_in_slices(
      std::nullopt, [&] { return is_set; },
      [&](Clock::TimePoint until) {
        std::unique_lock lock(ready->mutex);
        is_set = ready->changed.wait_until(lock, until, [&] { return ready->is_set; });
      });
}

Result<std::size_t, block::SequenceError> SharedRequest::finish_match() {
  wait_until_ready();
  return run_without_gil([](block::RequestSequence<G1>& request) { return request.finish_match(); });
}

Result<std::size_t, block::SequenceError> SharedRequest::match(
    Result<std::size_t, block::SequenceError> (block::RequestSequence<G1>::*call)()) {
  using State = block::RequestState;
  const State from = call == &block::RequestSequence<G1>::resume ? State::kPreempted : State::kIdle;
  // Elsewhere Ctrl-C is not seen; in another state the call refuses.
  if (!on_main_thread() || get().state() != from)
    return run_without_gil([call](block::RequestSequence<G1>& request) { return (request.*call)(); });
  auto started = begin_match({});
  if (!started) return std::move(started).error();
  if (!started->pending) return started->cached;
  return finish_match();
}

std::vector<block::BlockId> SharedRequest::wait_layer(std::uint32_t layer) {
  return wait_for_layer([&](Clock::TimePoint until) {
    return run_without_gil(
        [&](block::RequestSequence<G1>& request) { return request.wait_layer(layer, until); });
  });
}

namespace {

using block::Fence;
using block::MatchStart;
using block::RequestOptions;
using block::RequestSequence;
using block::StepOutcome;
using tokens::Token;

using Copies = std::vector<std::tuple<std::size_t, std::uint32_t, std::uint32_t>>;
// (begin, end or None, priority, seconds or None)
using RetainedRange = std::tuple<std::size_t, std::optional<std::size_t>, int, std::optional<double>>;

// A StepPlan that owns its copies.
struct PlannedStep {
  std::size_t new_blocks = 0;
  Copies copies;
};

Copies copies_of(std::span<const block::BlockCopy> copies) {
  Copies made;
  made.reserve(copies.size());
  for (const block::BlockCopy& copy : copies) {
    made.emplace_back(copy.group, copy.source.value(), copy.destination.value());
  }
  return made;
}

PlannedStep planned(Result<block::StepPlan, block::SequenceError>&& plan) {
  const block::StepPlan made = value_or_raise(std::move(plan));
  return {made.new_blocks, copies_of(made.copies)};
}

std::uint8_t priority_of(int priority) {
  return retention_of(priority, std::nullopt).priority;
}

std::optional<Clock::Duration> duration_of(const std::optional<double>& seconds) {
  if (!seconds) return std::nullopt;
  return seconds_of(*seconds);
}

std::optional<Token> token_of(std::optional<std::uint32_t> token) {
  if (!token) return std::nullopt;
  return Token(*token);
}

void make_request(RequestObject* self, const ManagerObject& manager, const TokensLike& like,
                  const nb::object& hashes, const std::optional<tokens::SequenceHasher>& hasher,
                  std::vector<tokens::MultimodalRun> runs, std::size_t max_tokens, bool reuse_last_token,
                  const std::vector<std::optional<std::uint32_t>>& windows,
                  const std::vector<RetainedRange>& retention, int decode_priority,
                  std::optional<double> decode_seconds, std::uint32_t metadata,
                  std::optional<std::size_t> onboard_blocks, std::optional<double> onboard_seconds,
                  std::optional<double> compute_tokens_per_second, bool by_layer) {
  RequestOptions options;
  options.hasher = manager.hasher_or(hasher);
  options.runs = std::move(runs);
  options.max_tokens = max_tokens;
  options.reuse_last_token = reuse_last_token;
  for (const std::optional<std::uint32_t>& window : windows) options.groups.push_back({window});
  for (const auto& [begin, end, priority, seconds] : retention) {
    options.retention.prompt.push_back({begin, end, priority_of(priority), duration_of(seconds)});
  }
  options.retention.decode_priority = priority_of(decode_priority);
  options.retention.decode_duration = duration_of(decode_seconds);
  options.metadata = metadata;
  if (onboard_blocks) options.onboard.max_blocks = *onboard_blocks;
  options.onboard.time = duration_of(onboard_seconds);
  if (compute_tokens_per_second && !(*compute_tokens_per_second > 0)) {
    refuse("compute_tokens_per_second must be positive");
  }
  options.onboard.compute_tokens_per_second = compute_tokens_per_second;
  options.onboard.by_layer = by_layer;

  TokenArray given(like);
  const bool large = given.size() >= kManyTokens;
  std::vector<Token> prompt = given.take();
  std::vector<tokens::SequenceHash> names;
  if (!hashes.is_none()) names = HashArray(hashes).take();
  const ManagerPtr owner = manager.manager;
  auto request = value_or_raise(without_gil_if(large, [&] {
    return RequestSequence<G1>::create(*owner, std::move(prompt), std::move(names), std::move(options));
  }));
  new (self) RequestObject{std::make_shared<SharedRequest>(owner, std::move(request))};
}

void check_group(RequestSequence<G1>& request, std::size_t group) {
  if (group < request.group_count()) return;
  throw nb::index_error(
      ("cache group " + std::to_string(group) + " of " + std::to_string(request.group_count())).c_str());
}

Numpy<std::uint32_t> block_table(const RequestObject& self, std::size_t group) {
  check_group(self.get(), group);
  return numpy_of_ids(self.get().block_table(group));
}

// Into the caller's array, which engines keep from step to step.
std::size_t block_table_into(const RequestObject& self, const nb::object& array, std::size_t group) {
  Buffer out;
  const char type = out.take(array.ptr(), true) && out.view().ndim == 1 ? out.type() : '\0';
  // After the array's __buffer__, which may run any code.
  check_group(self.get(), group);
  const std::span<const block::BlockId> table = self.get().block_table(group);
  if (type != 'I' && type != 'i' && type != 'q') {
    throw nb::type_error(
        "a block table is written into a contiguous array of uint32, int32 or int64 with one dimension");
  }
  const auto room = static_cast<std::size_t>(out.view().len / out.view().itemsize);
  if (room < table.size()) {
    refuse("the table has " + std::to_string(table.size()) + " blocks; the array has room for " +
           std::to_string(room));
  }
  if (type == 'q') {
    auto* bytes = static_cast<char*>(out.view().buf);  // which may be unaligned
    for (std::size_t i = 0; i < table.size(); ++i) {
      const std::int64_t id = table[i] == block::kNoBlock ? -1 : static_cast<std::int64_t>(table[i].value());
      std::memcpy(bytes + i * sizeof id, &id, sizeof id);
    }
  } else if (!table.empty()) {
    std::memcpy(out.view().buf, table.data(), table.size_bytes());
  }
  return table.size();
}

void bind_steps(nb::module_& module) {
  nb::class_<PlannedStep>(module, "StepPlan", "The blocks and copies of a scheduled step.")
      .def_ro("new_blocks", &PlannedStep::new_blocks, "Blocks that were taken for it.")
      .def_ro("copies", &PlannedStep::copies,
              "Copies of whole blocks to make first: (group, source id, destination id).");
  nb::class_<StepOutcome>(module, "StepOutcome", "The outcome of applying a step.")
      .def_ro("registered", &StepOutcome::registered, "Blocks that others can find now.")
      .def_ro("replaced", &StepOutcome::replaced,
              "Blocks replaced by those that others had registered: block_table() has new ids.")
      .def_ro("at_limit", &StepOutcome::at_limit, "max_tokens is reached.");
  nb::class_<MatchStart>(module, "MatchStart", "How a match began.")
      .def_ro("cached", &MatchStart::cached, "Tokens that the manager has now.")
      .def_ro("pending", &MatchStart::pending, "More is on its way: on_ready will be called.");
}

void bind_reading(nb::class_<RequestObject>& type) {
  type.def_prop_ro(
          "state", [](const RequestObject& self) { return identifier(to_string(self.get().state())); },
          "idle, prefill_scheduled, decode_scheduled, speculative_scheduled, onboarding, preempted or "
          "released.")
      .def_prop_ro(
          "tokens", [](const RequestObject& self) { return numpy_of_ids(self.get().tokens()); },
          nb::rv_policy::automatic, "Prompt and generated tokens, as a new array of uint32.")
      .def(
          "__len__", [](const RequestObject& self) { return self.get().size(); }, "Tokens so far.")
      .def_prop_ro(
          "prompt_size", [](const RequestObject& self) { return self.get().prompt_size(); },
          "Tokens of the prompt.")
      .def_prop_ro(
          "computed_tokens", [](const RequestObject& self) { return self.get().computed_tokens(); },
          "Leading tokens whose KV exists.")
      .def_prop_ro(
          "cached_tokens", [](const RequestObject& self) { return self.get().cached_tokens(); },
          "Leading tokens that match_prefix() or resume() found in the cache.")
      .def_prop_ro(
          "tokens_to_compute", [](const RequestObject& self) { return self.get().tokens_to_compute(); },
          "Tokens without KV: those left to prefill, or the one that decode computes.")
      .def_prop_ro(
          "tokens_left", [](const RequestObject& self) { return self.get().tokens_left(); },
          "How many may still be generated; None without max_tokens.")
      .def_prop_ro(
          "group_count", [](const RequestObject& self) { return self.get().group_count(); },
          "Groups of layers, each with its own block table.")
      .def_prop_ro(
          "sequence_hashes",
          [](const RequestObject& self) {
            const auto names = self.get().sequence_hashes();
            return HashList(std::vector(names.begin(), names.end()));
          },
          "The names of all full blocks, in group 0.")
      .def_prop_ro(
          "copies", [](const RequestObject& self) { return copies_of(self.get().copies()); },
          "The copies that the scheduled step needs first: (group, source id, destination id).")
      .def("block_table", &block_table, nb::arg("group") = 0,
           R"(The blocks of a group in order, as a new array of uint32.

A copy, because the request's own table moves when it grows. NO_BLOCK stands for blocks outside the window.)")
      .def(
          "block_table_into", &block_table_into, nb::arg("out"), nb::arg("group") = 0,
          nb::sig("def block_table_into(self, out: numpy.typing.NDArray[typing.Any], group: int = 0) -> int"),
          R"(Writes the table into the front of `out` and returns its length.

`out` is a contiguous array of uint32, int32 or int64 in host memory; ValueError when it is too short.
NO_BLOCK is -1 in signed numbers.)")
      .def(
          "use_count",
          [](const RequestObject& self, std::size_t index, std::size_t group) {
            check_group(self.get(), group);
            return self.get().use_count(index, group);
          },
          nb::arg("index"), nb::arg("group") = 0,
          "References to one block of the table, forks included; 0: none is allocated.")
      .def(
          "is_registered",
          [](const RequestObject& self, Py_ssize_t index, std::size_t group) {
            check_group(self.get(), group);
            const std::uint32_t size = self.shared->manager()->block_size();
            const std::size_t blocks = (self.get().size() + size - 1) / size;
            return self.get().block(index_in(index, blocks), group).registered;
          },
          nb::arg("index"), nb::arg("group") = 0, "Whether other requests can find one block of the table.");
}

void bind_matching(nb::class_<RequestObject>& type) {
  type.def(
          "match_prefix",
          [](const RequestObject& self) {
            return value_or_raise(self.shared->match(&RequestSequence<G1>::match_prefix));
          },
          R"(Shares the longest cached prefix, and returns its tokens: at most all but the last one.

Prefix digests are compared: a hit was computed for the same tokens from the first on. It waits for what the
tiers below bring; Ctrl-C then leaves the request onboarding, as begin_match() does.)")
      .def(
          "begin_match",
          [](const RequestObject& self, nb::callable on_ready) {
            const PythonCallback call(std::move(on_ready));
            return value_or_raise(self.shared->begin_match([call] { call(); }));
          },
          nb::arg("on_ready"),
          nb::sig("def begin_match(self, on_ready: collections.abc.Callable[[], object]) -> MatchStart"),
          R"(The same without waiting for the tiers below; also in place of resume().

If the answer is pending, `on_ready` is called once, on a thread of the library, perhaps before this
returns. It must not use the request. An exception in it goes to sys.unraisablehook. finish_match() takes
the blocks.)")
      .def_prop_ro(
          "match_ready", [](const RequestObject& self) { return self.get().match_ready(); },
          "Whether finish_match() will not wait.")
      .def(
          "finish_match",
          [](const RequestObject& self) { return value_or_raise(self.shared->finish_match()); },
          "Takes the references. Returns the cached tokens.")
      .def(
          "wait_layer",
          [](const RequestObject& self, std::uint32_t layer) {
            const std::vector<block::BlockId> ids = self.shared->wait_layer(layer);
            return numpy_of_ids(std::span(ids));
          },
          nb::arg("layer"), "Waits until a layer of every arriving block is there, and returns their ids.")
      .def(
          "preempt",
          [](const RequestObject& self) {
            self.get();
            value_or_raise(self.shared->run(self.shared->ends_slowly(),
                                            [](RequestSequence<G1>& request) { return request.preempt(); }));
          },
          "Returns all blocks and keeps the tokens.")
      .def(
          "resume",
          [](const RequestObject& self) {
            return value_or_raise(self.shared->match(&RequestSequence<G1>::resume));
          },
          "Restarts from the cached prefix, and returns its tokens; the rest is prefilled again.");
}

void bind_stepping(nb::class_<RequestObject>& type) {
  type.def(
          "schedule_prefill",
          [](const RequestObject& self, std::size_t tokens) {
            return planned(self.shared->run(tokens >= kManyTokens, [&](RequestSequence<G1>& request) {
              return request.schedule_prefill(tokens);
            }));
          },
          nb::arg("tokens"), "Takes blocks for the next `tokens` tokens of the prompt.")
      .def(
          "apply_prefill",
          [](const RequestObject& self, std::optional<std::uint32_t> token) {
            return value_or_raise(self.shared->run(self.shared->is_long(), [&](RequestSequence<G1>& request) {
              return request.apply_prefill(token_of(token));
            }));
          },
          nb::arg("token") = nb::none(), "Their KV exists now; the last chunk yields a token.")
      .def(
          "schedule_decode", [](const RequestObject& self) { return planned(self.get().schedule_decode()); },
          "Takes a block for the next token, if one is needed.")
      .def(
          "apply_decode",
          [](const RequestObject& self, std::uint32_t token) {
            return value_or_raise(self.get().apply_decode(Token(token)));
          },
          nb::arg("token"), "The step is computed and has yielded a token.")
      .def(
          "schedule_speculative",
          [](const RequestObject& self, std::size_t drafts) {
            return planned(self.get().schedule_speculative(drafts));
          },
          nb::arg("drafts"), "One token and `drafts` guesses after it.")
      .def(
          "apply_speculative",
          [](const RequestObject& self, const TokensLike& accepted) {
            const TokenArray tokens(accepted);
            return value_or_raise(self.get().apply_speculative(tokens.span()));
          },
          nb::arg("accepted"), "The accepted drafts and the token after them.")
      .def(
          "set_written_after",
          [](const RequestObject& self, const Fence& fence) { self.get().set_written_after(fence); },
          nb::arg("fence"),
          "The fence of the step that writes the blocks which later calls register: tiers copy none before, "
          "and no block that the request has now is used again before.")
      .def(
          "revert",
          [](const RequestObject& self) {
            value_or_raise(self.shared->run(self.shared->is_long(),
                                            [](RequestSequence<G1>& request) { return request.revert(); }));
          },
          "Drops the scheduled step. Nothing may still write to its blocks.")
      .def(
          "fork",
          [](const RequestObject& self, std::optional<std::uint32_t> last) {
            auto forked =
                value_or_raise(self.shared->run(self.shared->is_long(), [&](RequestSequence<G1>& request) {
                  return request.fork(token_of(last));
                }));
            return RequestObject{std::make_shared<SharedRequest>(self.shared->manager(), std::move(forked))};
          },
          nb::arg("last") = nb::none(),
          "A second request with the same tokens and blocks; `last` replaces its last token.")
      .def(
          "release", [](const RequestObject& self) { self.shared->release(); },
          "Returns all blocks, the last first. The tokens stay readable. Does nothing the second time.")
      .def(
          "release_after",
          [](const RequestObject& self, const Fence& fence) { self.get().release_after(fence); },
          nb::arg("fence"), "The same once the fence has passed: for a step in flight.")
      .def(
          "__enter__", [](nb::handle_t<RequestObject> self) { return nb::borrow<nb::object>(self); },
          nb::sig("def __enter__(self) -> typing.Self"), "For `with`: itself.")
      .def(
          "__exit__", [](const RequestObject& self, nb::args) { self.shared->release(); },
          nb::sig("def __exit__(self, *args: object) -> None"), "For `with`: release().");
}

}  // namespace

void bind_requests(nb::module_& module) {
  bind_steps(module);
  nb::class_<RequestObject> type(module, "RequestSequence", R"(One request, from its prompt to its last token.

A step is scheduled (blocks are taken), computed by the engine, then applied (the KV exists, full blocks are
registered) or reverted. Between steps the request may be preempted and resumed, forked, or released. A
refused call changes nothing; its exception has `reason` and `state`. For one thread at a time: a call while
another thread waits in one is refused. It keeps its manager alive.)");
  type.def("__init__", &make_request, nb::arg("manager"), nb::arg("tokens"), nb::kw_only(),
           nb::arg("hashes") = nb::none(), nb::arg("hasher") = nb::none(), nb::arg("runs") = nb::list(),
           nb::arg("max_tokens") = 0, nb::arg("reuse_last_token") = false, nb::arg("windows") = nb::list(),
           nb::arg("retention") = nb::list(), nb::arg("decode_priority") = 35,
           nb::arg("decode_seconds") = nb::none(), nb::arg("metadata") = 0,
           nb::arg("onboard_blocks") = nb::none(), nb::arg("onboard_seconds") = nb::none(),
           nb::arg("compute_tokens_per_second") = nb::none(), nb::arg("by_layer") = false,
           nb::sig("def __init__(self, manager: BlockManager, tokens: numpy.typing.ArrayLike, *, "
                   "hashes: SequenceHashes | collections.abc.Sequence[SequenceHash] | "
                   "numpy.typing.NDArray[numpy.uint64] | None = None, hasher: SequenceHasher | None = None, "
                   "runs: collections.abc.Sequence[MultimodalRun] = ..., max_tokens: int = 0, "
                   "reuse_last_token: bool = False, windows: collections.abc.Sequence[int | None] = ..., "
                   "retention: collections.abc.Sequence[tuple[int, int | None, int, float | None]] = ..., "
                   "decode_priority: int = 35, decode_seconds: float | None = None, metadata: int = 0, "
                   "onboard_blocks: int | None = None, onboard_seconds: float | None = None, "
                   "compute_tokens_per_second: float | None = None, by_layer: bool = False) -> None"),
           R"(A request with this prompt.

hashes: trusted names of the prompt's first blocks. max_tokens: prompt and generated together; with it decode
steps allocate no memory. reuse_last_token: a hit may cover the whole prompt. windows: one per group of
layers, None for full attention; none: one such group. retention: (begin, end, priority, seconds) of prompt
ranges. onboard_…: how much a match may bring from the tiers below; by_layer: for wait_layer().)");
  bind_reading(type);
  bind_matching(type);
  bind_stepping(type);
  module.attr("NO_BLOCK") = block::kNoBlock.value();
}

}  // namespace ashlar::python
