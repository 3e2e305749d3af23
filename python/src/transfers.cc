// The ways between tiers: offload(), onboard(), prefetch(), pin() of a KvBlockManager, and their handles.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/tiers/remote.h"
#include "callbacks.h"
#include "errors.h"
#include "guards.h"
#include "kv.h"
#include "tier_names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {
namespace {

using tiers::OffloadProgress;

// Names whose look-up is worth giving up the GIL.
constexpr std::size_t kFewHashes = 64;

// Handles keep their manager: what they wait for is its work.
struct OffloadRef {
  KvPtr kv;
  tiers::OffloadHandle handle;

  const tiers::OffloadHandle& get() const {
    if (is_of_parent(kv)) raise_of_parent();
    return handle;
  }
};

struct OnboardRef {
  KvPtr kv;
  tiers::OnboardHandle handle;

  OnboardRef(KvPtr its_kv, tiers::OnboardHandle its_handle)
      : kv(std::move(its_kv)), handle(std::move(its_handle)) {}
  OnboardRef(OnboardRef&&) noexcept = default;
  ~OnboardRef() {
    if (is_of_parent(kv)) leave_behind(std::move(handle));
  }
  const tiers::OnboardHandle& get() const {
    if (is_of_parent(kv)) raise_of_parent();
    return handle;
  }
};

struct PinRef {
  KvPtr kv;
  OptionalHere<tiers::KvPin> pin;

  tiers::KvPin& get() {
    if (!pin.here()) raise_used("this KvPin");
    return *pin;
  }
  void release() {
    if (!pin) return;
    if (pin.is_of_parent()) return pin.reset();
    tiers::KvPin ended = *std::move(pin);
    pin.reset();
    without_gil([&] { std::move(ended).unpin(); });
    kv.reset();
  }
};

std::vector<block::Fence> fences_of(nb::handle after) {
  if (after.is_none()) return {};
  if (nb::isinstance<block::Fence>(after)) return {nb::cast<block::Fence>(after)};
  std::vector<block::Fence> fences;
  for (nb::handle fence : nb::iter(after)) {
    if (!nb::isinstance<block::Fence>(fence)) throw nb::type_error("after must be a Fence, or several");
    fences.push_back(nb::cast<block::Fence>(fence));
  }
  return fences;
}

OffloadRef offload(const KvRef& self, const HashesLike& like, std::string_view tier,
                   std::optional<int> priority, nb::object after, std::optional<double> timeout) {
  const HashArray hashes(like);
  tiers::OffloadOptions options;
  if (priority) options.priority = retention_of(*priority, std::nullopt).priority;
  options.after = fences_of(after);
  options.deadline = deadline_of(timeout);
  const events::TierId to = tier_id_of(tier);
  const KvPtr kv = self.get();
  auto handle = without_gil([&] { return kv->offload_to(to, hashes.span(), options); });
  return {kv, value_or_raise(std::move(handle))};
}

OffloadProgress wait_offload(const OffloadRef& self, std::optional<double> timeout) {
  const auto deadline = deadline_of(timeout);
  wait_in_slices(
      deadline, [&] { return self.get().done(); },
      [&](Clock::TimePoint until) { static_cast<void>(self.get().wait_until(until)); });
  return value_or_raise(without_gil([&] { return self.get().wait_until(Clock::real().now()); }));
}

// The names of a request, with digests and local hashes where BlockHashes brings them.
struct Request {
  explicit Request(nb::handle object) {
    if (nb::hasattr(object, "sequence") && nb::hasattr(object, "prefix")) {
      sequence = nb::borrow(object.attr("sequence"));
      hashes.emplace(sequence);
      const HashArray bits(nb::object(object.attr("prefix")));
      for (const tokens::SequenceHash& digest : bits.span())
        digests.push_back(tokens::PrefixDigest::from_bits(digest.hi(), digest.lo()));
      for (nb::handle local : nb::object(object.attr("local"))) {
        std::uint64_t number = 0;
        if (!nb::try_cast(nb::int_(local), number)) refuse("a local hash is not a number of 64 bits");
        locals.emplace_back(number);
      }
      if (digests.size() != hashes->size() || locals.size() != hashes->size()) {
        raise(make_error(ErrorCode::kInvalidArgument, "%zu names, %zu digests and %zu local hashes",
                         hashes->size(), digests.size(), locals.size()));
      }
    } else {
      hashes.emplace(object);
    }
  }

  nb::object sequence;
  std::optional<HashArray> hashes;
  std::vector<tokens::PrefixDigest> digests;
  std::vector<tokens::LocalHash> locals;
};

tiers::OnboardOptions options_of(Request& request, std::optional<double> compute_tokens_per_second,
                                 std::optional<double> timeout, const std::optional<tokens::Salt>& salt,
                                 bool by_layer) {
  tiers::OnboardOptions options;
  if (compute_tokens_per_second && !(*compute_tokens_per_second > 0))
    raise(Error(ErrorCode::kInvalidArgument, "compute_tokens_per_second must be above 0"));
  options.compute_tokens_per_second = compute_tokens_per_second;
  options.deadline = deadline_of(timeout);
  options.by_layer = by_layer;
  options.prefixes = std::move(request.digests);
  options.locals = std::move(request.locals);
  if (salt) options.salt = tokens::salt_fingerprint(*salt);
  return options;
}

ImmutableListObject onboard(const KvRef& self, nb::object hashes, std::optional<double> rate,
                            std::optional<double> timeout, const std::optional<tokens::Salt>& salt) {
  Request request(hashes);
  const KvPtr kv = self.get();
  tiers::OnboardTable table =
      run_interruptibly([kv, names = request.hashes->take(),
                         options = options_of(request, rate, timeout, salt, false)](auto stop) mutable {
        options.stop = std::move(stop);
        return kv->onboard(names, options);
      });
  return {g1_of(kv), std::move(table)};
}

OnboardRef onboard_async(const KvRef& self, nb::object hashes, std::optional<double> rate,
                         std::optional<double> timeout, const std::optional<tokens::Salt>& salt,
                         bool by_layer, nb::object on_done) {
  Request request(hashes);
  tiers::OnboardOptions options = options_of(request, rate, timeout, salt, by_layer);
  if (!on_done.is_none()) {
    if (PyCallable_Check(on_done.ptr()) == 0) throw nb::type_error("on_done must be callable");
    options.on_done = [call = PythonCallback(nb::borrow<nb::callable>(on_done))] { call(); };
  }
  const KvPtr kv = self.get();
  auto handle = without_gil([&] { return kv->onboard_async(request.hashes->span(), options); });
  // A function of Python's must not be destroyed without the GIL by the last copy here.
  options.on_done = {};
  return {kv, value_or_raise(std::move(handle))};
}

std::string execute_hints(const KvRef& self, const std::string& envelope, std::optional<double> timeout) {
  const KvPtr kv = self.get();
  tiers::RemoteNode* const remote = kv->remote();
  if (remote == nullptr)
    raise(Error(ErrorCode::kNotReady, "the manager has no remote tier: create it with remote={…}"));
  const auto until = deadline_of(timeout);
  return tiers::RemoteNode::to_json(value_or_raise(
      run_interruptibly([kv, remote, envelope, until] { return remote->execute_hints(envelope, until); })));
}

OnboardRef prefetch(const KvRef& self, nb::object hashes, std::optional<double> timeout) {
  Request request(hashes);
  const tiers::OnboardOptions options = options_of(request, std::nullopt, timeout, std::nullopt, false);
  const KvPtr kv = self.get();
  auto handle = without_gil([&] { return kv->prefetch(request.hashes->span(), options); });
  return {kv, value_or_raise(std::move(handle))};
}

ImmutableListObject wait_onboard(const OnboardRef& self, std::optional<double> timeout) {
  const auto deadline = deadline_of(timeout);
  tiers::OnboardTable table;
  std::optional<Error> failure;
  wait_in_slices(
      deadline, [&] { return self.get().done(); },
      [&](Clock::TimePoint until) {
        // Handed over at most once: an earlier slice that timed out took nothing.
        if (!table.empty()) return;
        if (auto handed = self.get().wait_until(until)) {
          table = std::move(handed).value();
          failure.reset();
        } else {
          failure = std::move(handed).error();
        }
      });
  if (failure) {
    const bool late = failure->code() == ErrorCode::kTimeout && self.get().done();
    if (!late) raise(*failure);
    // It ended between the last slice and the look.
    table = value_or_raise(without_gil([&] { return self.get().wait_until(Clock::real().now()); }));
  }
  return {g1_of(self.kv), std::move(table)};
}

nb::list outcomes_of(const OnboardRef& self) {
  const std::vector<tiers::BlockOutcome> outcomes = without_gil([&] { return self.get().blocks(); });
  nb::list out;
  for (const tiers::BlockOutcome& one : outcomes) {
    const char* state = one.state == tiers::OnboardState::kHit    ? "hit"
                        : one.state == tiers::OnboardState::kMiss ? "miss"
                                                                  : "pending";
    nb::object miss = nb::none();
    if (one.miss != tiers::Miss::kNone) miss = nb::str(std::string(to_string(one.miss)).c_str());
    nb::object tier = nb::none();
    if (one.tier) tier = nb::str(tier_name(*one.tier));
    out.append(nb::make_tuple(state, miss, tier));
  }
  return out;
}

nb::list find(const KvRef& self, const HashesLike& like, std::optional<double> timeout) {
  const HashArray hashes(like);
  const auto until = deadline_of(timeout);
  const KvPtr kv = self.get();
  const std::vector<tiers::TierRun> runs =
      kv->probes()  // others are asked, who may be slow
          ? run_interruptibly([kv, names = hashes.take(), until] { return kv->find(names, until); })
          : without_gil([&] { return kv->find(hashes.span(), until); });
  nb::list out;
  for (const tiers::TierRun& run : runs)
    out.append(nb::make_tuple(tier_name(run.tier), run.first, run.count, run.seconds));
  return out;
}

void bind_handles(nb::module_& module) {
  nb::class_<OffloadProgress>(module, "OffloadProgress", "How many blocks of an offload ended how.")
      .def_ro("total", &OffloadProgress::total, "Blocks of the call.")
      .def_ro("arrived", &OffloadProgress::arrived, "Copied and registered below.")
      .def_ro("present", &OffloadProgress::present, "The tier below already had them.")
      .def_ro("filtered", &OffloadProgress::filtered, "Refused by the policy.")
      .def_ro("gone", &OffloadProgress::gone, "Evicted before their turn.")
      .def_ro("failed", &OffloadProgress::failed, "The copy failed, or their bytes were damaged.")
      .def_ro("refused", &OffloadProgress::refused, "The queue was full.")
      .def_ro("cancelled", &OffloadProgress::cancelled, "Cancelled.")
      .def_ro("late", &OffloadProgress::late, "The deadline passed first.")
      .def_prop_ro("ended", &OffloadProgress::ended, "The sum of all but `total`.");
  nb::class_<OffloadRef>(
      module, "OffloadHandle",
      "Follows one offload until each of its blocks has ended. Dropping it cancels nothing.")
      .def_prop_ro(
          "progress", [](const OffloadRef& self) { return self.get().progress(); }, "The counts now.")
      .def_prop_ro(
          "done", [](const OffloadRef& self) { return self.get().done(); }, "Whether every block has ended.")
      .def("wait", &wait_offload, "timeout"_a = nb::none(),
           "Waits until every block has ended. Raises the first failure of a copy; Timeout: the blocks stay "
           "queued or in flight.")
      .def(
          "cancel", [](const OffloadRef& self) { without_gil([&] { self.get().cancel(); }); },
          "Cancels every block that has not arrived.");
  nb::class_<OnboardRef>(module, "OnboardHandle", R"(Follows the blocks that a request wants in G1.

Dropping it cancels nothing.)")
      .def_prop_ro("outcomes", &outcomes_of,
                   nb::sig("def outcomes(self) -> list[tuple[typing.Literal['hit', 'miss', 'pending'], "
                           "str | None, str | None]]"),
                   "(state, miss, tier) per name: state is hit, pending or miss; miss says why, else None; "
                   "tier had the block when it was looked up.")
      .def_prop_ro(
          "done", [](const OnboardRef& self) { return self.get().done(); }, "Whether it has ended.")
      .def("wait", &wait_onboard, "timeout"_a = nb::none(),
           "Waits for the end. The prefix that is in G1, pinned by the answer; a second call finds it empty. "
           "Timeout: the copies go on. Cancelled.")
      .def(
          "wait_layer",
          [](const OnboardRef& self, std::uint32_t layer) {
            const auto ids = wait_for_layer([&](Clock::TimePoint until) {
              return without_gil([&] { return self.get().wait_layer(layer, until); });
            });
            return numpy_of_ids(std::span(ids));
          },
          "layer"_a,
          "Waits until a layer of every arriving block is in G1, for an onboard with by_layer. Their block "
          "numbers, in order.")
      .def(
          "cancel", [](const OnboardRef& self) { without_gil([&] { self.get().cancel(); }); },
          "Stops the copies and releases every block of the call.");
  nb::class_<PinRef>(module, "KvPin",
                     "Keeps blocks in every tier that has them, until it is released or its time is over.")
      .def(
          "__enter__", [](nb::handle_t<PinRef> self) { return nb::borrow<nb::object>(self); },
          nb::sig("def __enter__(self) -> typing.Self"), "For `with`: itself.")
      .def(
          "__exit__", [](PinRef& self, nb::args) { self.release(); },
          nb::sig("def __exit__(self, *args: object) -> None"), "For `with`: release().")
      .def("release", &PinRef::release, "Ends it now. Does nothing the second time.")
      .def_prop_ro(
          "active", [](PinRef& self) { return self.pin.here() && self.pin->active(); },
          "True until it is ended or its time is over.")
      .def_prop_ro(
          "pinned", [](PinRef& self) { return self.get().pinned(); },
          "Blocks that it pins now, over all tiers.")
      .def_prop_ro(
          "refused", [](PinRef& self) { return self.get().refused(); },
          "Blocks that arrived in a tier that had no pin left.");
}

}  // namespace

void bind_transfers(nb::module_& module, nb::class_<KvRef>& type) {
  bind_handles(module);
  type.def("offload", &offload, "hashes"_a, nb::kw_only(), "tier"_a = "g2", "priority"_a = nb::none(),
           "after"_a = nb::none(), "timeout"_a = nb::none(),
           nb::sig("def offload(self, hashes: SequenceHashes | collections.abc.Sequence[SequenceHash] | "
                   "numpy.typing.NDArray[numpy.uint64], *, tier: str = 'g2', priority: int | None = None, "
                   "after: Fence | "
                   "collections.abc.Sequence[Fence] | None = None, timeout: float | None = None) -> "
                   "OffloadHandle"),
           R"(Offers blocks of the tier above to `tier` now.

priority: the highest goes first, 0 to 100; each block's own, by its retention, unless given. after: fences
that must pass first, one for all blocks or one for each. timeout: blocks that have not arrived by then count
as late.)")
      .def(
          "drain",
          [](const KvRef& self, std::optional<double> timeout) {
            const auto deadline = deadline_of(timeout);
            const KvPtr kv = self.get();
            bool drained = false;
            wait_in_slices(
                deadline, [&] { return drained; },
                [&](Clock::TimePoint until) { drained = kv->drain(until); });
            return drained;
          },
          "timeout"_a = nb::none(),
          "Waits until every queued and in-flight offload has ended. False: the timeout came first.")
      .def(
          "look_ahead",
          [](const KvRef& self) {
            const KvPtr kv = self.get();
            without_gil([&] { kv->look_ahead(); });
          },
          "Offers the next eviction candidates to the tiers below, for offload=\"near_eviction\".")
      .def(
          "find", &find, "hashes"_a, nb::kw_only(), "timeout"_a = nb::none(),
          nb::sig("def find(self, hashes: SequenceHashes | collections.abc.Sequence[SequenceHash] | "
                  "numpy.typing.NDArray[numpy.uint64], *, timeout: float | None = None) -> "
                  "list[tuple[str, int, int, float]]"),
          "The longest prefix that the tiers have, as (tier, first, count, seconds to bring it up). Does not "
          "count as a use.")
      .def("onboard", &onboard, "hashes"_a, nb::kw_only(), "compute_tokens_per_second"_a = nb::none(),
           "timeout"_a = nb::none(), "salt"_a = nb::none(),
           nb::sig("def onboard(self, hashes: BlockHashes | SequenceHashes | "
                   "collections.abc.Sequence[SequenceHash] | numpy.typing.NDArray[numpy.uint64], *, "
                   "compute_tokens_per_second: float | None = None, "
                   "timeout: float | None = None, salt: Salt | None = None) -> ImmutableBlocks"),
           R"(Brings the longest prefix that any tier has into G1, and returns it.

hashes: names, or BlockHashes, whose digests are then compared: a block of other tokens is a miss. With
compute_tokens_per_second blocks that take longer than computing them are left out.)")
      .def("onboard_async", &onboard_async, "hashes"_a, nb::kw_only(),
           "compute_tokens_per_second"_a = nb::none(), "timeout"_a = nb::none(), "salt"_a = nb::none(),
           "by_layer"_a = false, "on_done"_a = nb::none(),
           nb::sig("def onboard_async(self, hashes: BlockHashes | SequenceHashes | "
                   "collections.abc.Sequence[SequenceHash] | numpy.typing.NDArray[numpy.uint64], *, "
                   "compute_tokens_per_second: float | None = None, "
                   "timeout: float | None = None, salt: Salt | None = None, by_layer: bool = False, "
                   "on_done: collections.abc.Callable[[], object] | None = None) -> OnboardHandle"),
           "The same in the background. on_done() is called once, on a thread of the manager; it must not "
           "wait for other calls of the manager.")
      .def("prefetch", &prefetch, "hashes"_a, nb::kw_only(), "timeout"_a = nb::none(),
           nb::sig("def prefetch(self, hashes: BlockHashes | SequenceHashes | "
                   "collections.abc.Sequence[SequenceHash] | numpy.typing.NDArray[numpy.uint64], *, timeout: "
                   "float | None = None) -> OnboardHandle"),
           "Brings blocks from disks and volumes into G2, ahead of a request.")
      .def("execute_hints", &execute_hints, "envelope"_a, nb::kw_only(), "timeout"_a = nb::none(),
           "Executes the `kv.fetch` actions of an envelope of KV hints (JSON): brings blocks from the agent "
           "that each names into G2. Waits for them. Returns their outcomes as JSON. NotReady: the manager "
           "has no remote tier.")
      .def(
          "pin",
          [](const KvRef& self, const HashesLike& like, double ttl) {
            const HashArray hashes(like);
            const Clock::Duration time = seconds_of(ttl);
            const KvPtr kv = self.get();
            auto pin = without_gil([&] { return kv->pin(hashes.span(), time); });
            return PinRef{kv, value_or_raise(std::move(pin))};
          },
          "hashes"_a, "ttl"_a,
          "Pins blocks by name in every tier that has or gets them, for `ttl` seconds at most.")
      .def(
          "set_retention",
          [](const KvRef& self, const HashesLike& like, int priority, std::optional<double> seconds) {
            const HashArray hashes(like);
            const block::BlockRetention retention = retention_of(priority, seconds);
            const KvPtr kv = self.get();
            return value_or_raise(without_gil([&] { return kv->set_retention(hashes.span(), retention); }));
          },
          "hashes"_a, "priority"_a, "seconds"_a = nb::none(),
          "Sets how long to keep blocks, 0 (evicted first) to 100, in every tier. How many some tier has.")
      .def(
          "set_metadata",
          [](const KvRef& self, const HashesLike& like, std::uint32_t metadata) {
            const HashArray hashes(like);
            const KvPtr kv = self.get();
            return value_or_raise(without_gil([&] { return kv->set_metadata(hashes.span(), metadata); }));
          },
          "hashes"_a, "metadata"_a, "Sets the caller's own number on blocks. How many some tier has.")
      .def(
          "metadata",
          [](const KvRef& self, const tokens::SequenceHash& hash) {
            const KvPtr kv = self.get();
            return without_gil([&] { return kv->metadata(hash); });
          },
          "hash"_a, "The caller's own number of a block; None when no tier has it.")
      .def(
          "presence",
          [](const KvRef& self, const HashesLike& like) {
            const HashArray hashes(like);
            const KvPtr kv = self.get();
            const auto tiers =
                without_gil_if(hashes.size() >= kFewHashes, [&] { return kv->presence(hashes.span()); });
            std::vector<std::uint8_t> bits;
            bits.reserve(tiers.size());
            for (const tiers::TierPresence& one : tiers) bits.push_back(one.bits);
            return numpy_of(std::move(bits));
          },
          "hashes"_a, "The tiers that have each name: (n,) uint8, bit 0 for g1 to bit 3 for g4.");
}

}  // namespace ashlar::python
