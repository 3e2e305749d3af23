// Single blocks and their states: MutableBlock, PartialBlock, ScheduledBlock, InflightBlock, CompleteBlock,
// ImmutableBlock, WeakBlock; Pin, Hold, Fence and FenceSignal.
#include "guards.h"

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "arrays.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/tokens/token_block.h"
#include "gil.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {

Clock::Duration seconds_of(double seconds) {
  if (!std::isfinite(seconds) && !(seconds > 0)) refuse("a number of seconds is needed");
  constexpr double kMost = 1e9;
  const double bounded = std::min(std::max(seconds, -kMost), kMost);
  return std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(bounded));
}

block::BlockRetention retention_of(int priority, std::optional<double> seconds) {
  if (priority < 0 || priority > block::BlockRetention::kMaxPriority) {
    refuse("priority " + std::to_string(priority) + "; priorities are 0 to 100");
  }
  block::BlockRetention retention;
  retention.priority = static_cast<std::uint8_t>(priority);
  if (seconds) retention.until = Clock::real().now() + seconds_of(*seconds);
  return retention;
}

block::ImmutableBlock<G1> copy_of(const block::ImmutableBlock<G1>& block) {
  // The library stops the process at its limit. Python's copies are made under the GIL, and half of the room
  // is left to others.
  if (block.use_count() >= block::detail::kMaxReferences / 2) {
    raise(Error(ErrorCode::kCapacity, "the block has too many references to be copied once more"));
  }
  return block;
}

namespace {

using block::CompleteBlock;
using block::Fence;
using block::FenceSignal;
using block::ImmutableBlock;
using block::InflightBlock;
using block::KvReady;
using block::MutableBlock;
using block::PartialBlock;
using block::ScheduledBlock;
using tokens::PrefixDigest;
using tokens::SequenceHash;

// Runs a transition that consumes the guard: the next state's object, or the guard back and an exception.
template <class Next, class Guard, class F>
GuardObject<Next> transition(GuardObject<Guard>& self, F&& f) {
  ManagerPtr manager = self.manager();
  Guard guard = std::move(self.get());
  self.release();
  auto done = std::forward<F>(f)(std::move(guard));
  if (!done) {
    const Error error = std::move(done.error().error);
    self.put_back(std::move(manager), std::move(done.error().guard));
    raise(error);
  }
  return GuardObject<Next>(std::move(manager), std::move(done).value());
}
// The same for one that is never refused.
template <class Next, class Guard, class F>
GuardObject<Next> certain_transition(GuardObject<Guard>& self, F&& f) {
  ManagerPtr manager = self.manager();
  Guard guard = std::move(self.get());
  self.release();
  return GuardObject<Next>(std::move(manager), std::forward<F>(f)(std::move(guard)));
}

template <class Object>
void bind_block(nb::class_<Object>& type) {
  bind_guard(type);
  type.def_prop_ro(
          "block_id", [](Object& self) { return self.get().block_id().value(); },
          "The index of the block in its pool, and so in the memory behind it.")
      .def_prop_ro("block_size", [](Object& self) { return self.get().block_size(); }, "In tokens.");
}

template <class Object>
void bind_tokens_of(nb::class_<Object>& type) {
  type.def_prop_ro(
          "tokens", [](Object& self) { return numpy_of_ids(self.get().tokens()); },
          "Its tokens so far, as a new array of uint32.", nb::rv_policy::automatic)
      .def_prop_ro(
          "computed_tokens", [](Object& self) { return self.get().computed_tokens(); },
          "Leading tokens whose KV exists.");
}

// The right to pass a fence, once.
struct SignalObject {
  Fence fence;
  OptionalHere<FenceSignal> signal;

  SignalObject(Fence made, FenceSignal right) : fence(std::move(made)), signal(std::move(right)) {}
  SignalObject(SignalObject&&) noexcept = default;
  SignalObject& operator=(SignalObject&&) = delete;
  FenceSignal take() {
    if (!signal) raise_used("this FenceSignal");
    if (signal.is_of_parent()) raise_of_parent();
    FenceSignal taken = *std::move(signal);
    signal.reset();
    return taken;
  }
  ~SignalObject() {
    // Abandons the fence if it was not used, which runs callbacks.
    if (signal) without_gil_in_destructor([&] { signal.reset(); });
  }
};

template <class Object>
void bind_ending(nb::class_<Object>& type) {
  type.def(
          "__enter__", [](nb::handle_t<Object> self) { return nb::borrow<nb::object>(self); },
          nb::sig("def __enter__(self) -> typing.Self"), "For `with`: itself.")
      .def(
          "__exit__", [](Object& self, nb::args) { self.kept.reset(); },
          nb::sig("def __exit__(self, *args: object) -> None"), "For `with`: release().")
      .def(
          "release", [](Object& self) { self.kept.reset(); }, "Ends it now. Does nothing when it has ended.");
}

struct WeakObject {
  std::weak_ptr<Manager> manager;
  block::WeakBlock<G1> weak;
};

void bind_fences(nb::module_& module) {
  nb::class_<Fence>(module, "Fence", R"(A moment that a device reports, once.

A block that work in flight still touches is not used again before its fence has passed. FenceSignal passes
it.)")
      .def_static("passed_already", &Fence::passed_already, "For work that is done when it is launched.")
      .def_prop_ro("passed", &Fence::passed, "Whether it has passed.")
      .def_prop_ro("failed", &Fence::failed,
                   "The work has ended without writing its blocks: it can never pass.")
      .def_prop_ro("abandoned", &Fence::abandoned, "Its signal is gone unused: it can never pass.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));

  nb::class_<SignalObject>(module, "FenceSignal", R"(The right to pass a fence, once.

Destroyed unused it abandons the fence: the blocks that wait for it are never used again, and those that were
registered with it are found no longer.)")
      .def(
          "__init__",
          [](SignalObject* self) {
            auto [fence, signal] = Fence::create();
            new (self) SignalObject(std::move(fence), std::move(signal));
          },
          "A new fence and its signal.")
      .def_prop_ro(
          "fence", [](const SignalObject& self) { return self.fence; }, "The fence.")
      .def(
          "signal",
          [](SignalObject& self) {
            FenceSignal signal = self.take();
            without_gil([&] { std::move(signal).signal(); });
          },
          "Passes the fence. On return its callbacks have run.")
      .def(
          "fail",
          [](SignalObject& self) {
            FenceSignal signal = self.take();
            without_gil([&] { std::move(signal).fail(); });
          },
          "The work has ended, or was never launched, and its blocks are not written: those that were "
          "registered with the fence are found no longer, and what waits for it returns.");
}

void bind_unique(nb::module_& module) {
  nb::class_<MutableObject> empty(module, "MutableBlock", R"(An empty block that the caller owns alone.

complete() and stage() lead to a CompleteBlock, init_sequence() to a PartialBlock; release() gives it
back.)");
  bind_block(empty);
  empty
      .def(
          "complete",
          [](MutableObject& self, const tokens::TokenBlock& block) {
            return transition<CompleteBlock<G1>>(self, [&](MutableBlock<G1> guard) {
              return std::move(guard).complete(block, KvReady::asserted_by_caller());
            });
          },
          nb::arg("block"), "The caller vouches that the KV of these tokens is in the block's memory.")
      .def(
          "stage",
          [](MutableObject& self, const SequenceHash& hash, const std::optional<SequenceHash>& parent,
             const std::optional<SequenceHash>& root, std::optional<std::uint64_t> local,
             const PrefixDigest& prefix, std::uint32_t metadata) {
            block::BlockIdentity identity{.hash = hash, .parent = parent, .root = root};
            if (local) identity.local = tokens::LocalHash(*local);
            identity.prefix = prefix;
            identity.metadata = metadata;
            return certain_transition<CompleteBlock<G1>>(self, [&](MutableBlock<G1> guard) {
              return std::move(guard).stage(identity, KvReady::asserted_by_caller());
            });
          },
          nb::arg("hash"), nb::kw_only(), nb::arg("parent") = nb::none(), nb::arg("root") = nb::none(),
          nb::arg("local") = nb::none(), nb::arg("prefix") = PrefixDigest(), nb::arg("metadata") = 0,
          nb::sig("def stage(self, hash: SequenceHash, *, parent: SequenceHash | None = None, "
                  "root: SequenceHash | None = None, local: int | None = None, prefix: PrefixDigest = ..., "
                  "metadata: int = 0) -> CompleteBlock"),
          R"(Completes it by name alone; the name, and that the KV is there, are trusted.

A wrong name poisons the cache for every sequence that shares it.)")
      .def(
          "init_sequence",
          [](MutableObject& self, const tokens::SequenceHasher& hasher,
             const std::optional<SequenceHash>& parent, const std::optional<SequenceHash>& root,
             const PrefixDigest& parent_prefix) {
            return transition<PartialBlock<G1>>(self, [&](MutableBlock<G1> guard) {
              return std::move(guard).init_sequence({hasher, parent, root, parent_prefix});
            });
          },
          nb::arg("hasher") = tokens::SequenceHasher(), nb::arg("parent") = nb::none(),
          nb::arg("root") = nb::none(), nb::arg("parent_prefix") = PrefixDigest(),
          nb::sig("def init_sequence(self, hasher: SequenceHasher = ..., parent: SequenceHash | None = None, "
                  "root: SequenceHash | None = None, parent_prefix: PrefixDigest = ...) -> PartialBlock"),
          "Tokens will be built on the block, which follows `parent`.");

  nb::class_<PartialObject> partial(module, "PartialBlock", R"(A block to which tokens are being added.

schedule() leads to a ScheduledBlock, commit() to a CompleteBlock, reset() back to a MutableBlock.)");
  bind_block(partial);
  bind_tokens_of(partial);
  partial
      .def_prop_ro(
          "remaining", [](PartialObject& self) { return self.get().remaining(); }, "Tokens that still fit.")
      .def_prop_ro(
          "is_full", [](PartialObject& self) { return self.get().is_full(); }, "No token fits any more.")
      .def_prop_ro(
          "sequence_hash", [](PartialObject& self) { return self.get().sequence_hash(); },
          "The name that it will have; None unless it is full.")
      .def(
          "add_token",
          [](PartialObject& self, std::uint32_t token) {
            value_or_raise(self.get().add_token(tokens::Token(token)));
          },
          nb::arg("token"), "CapacityError when the block is full.")
      .def(
          "add_tokens",
          [](PartialObject& self, const TokensLike& like) {
            const TokenArray tokens(like);
            value_or_raise(self.get().add_tokens(tokens.span()));
          },
          nb::arg("tokens"), "All or none; CapacityError when they do not fit.")
      .def(
          "pop_tokens",
          [](PartialObject& self, std::uint32_t count) { value_or_raise(self.get().pop_tokens(count)); },
          nb::arg("count") = 1, "Takes tokens off the end; InvalidArgument when there are fewer.")
      .def(
          "schedule",
          [](PartialObject& self) {
            return transition<ScheduledBlock<G1>>(
                self, [](PartialBlock<G1> guard) { return std::move(guard).schedule(); });
          },
          "Its tokens are final for the coming step. NotReady when none of them waits for its KV.")
      .def(
          "commit",
          [](PartialObject& self) {
            return transition<CompleteBlock<G1>>(self, [](PartialBlock<G1> guard) {
              return std::move(guard).commit(KvReady::asserted_by_caller());
            });
          },
          "The caller vouches that the KV exists. NotReady when the block is not full.")
      .def(
          "reset",
          [](PartialObject& self) {
            return certain_transition<MutableBlock<G1>>(
                self, [](PartialBlock<G1> guard) { return std::move(guard).reset(); });
          },
          "Forgets the tokens.");

  nb::class_<ScheduledObject> scheduled(module, "ScheduledBlock", R"(A block whose step has not started yet.

launch() leads to an InflightBlock, cancel() back to a PartialBlock.)");
  bind_block(scheduled);
  bind_tokens_of(scheduled);
  scheduled
      .def(
          "launch",
          [](ScheduledObject& self, const Fence& fence) {
            return certain_transition<InflightBlock<G1>>(
                self, [&](ScheduledBlock<G1> guard) { return std::move(guard).launch(fence); });
          },
          nb::arg("fence"), "The computation has started; the fence passes at its end.")
      .def(
          "cancel",
          [](ScheduledObject& self) {
            return certain_transition<PartialBlock<G1>>(
                self, [](ScheduledBlock<G1> guard) { return std::move(guard).cancel(); });
          },
          "The step will not run: tokens may be added and popped again.");

  nb::class_<InflightObject> inflight(module, "InflightBlock", R"(A block whose KV is being computed.

Released before its fence has passed it goes into quarantine: it is not used again until then.)");
  bind_block(inflight);
  bind_tokens_of(inflight);
  inflight.def(
      "compute_done",
      [](InflightObject& self) -> std::variant<PartialObject, CompleteObject> {
        using Done = InflightBlock<G1>::Done;
        auto done =
            transition<Done>(self, [](InflightBlock<G1> guard) { return std::move(guard).compute_done(); });
        const ManagerPtr manager = done.manager();
        if (auto* partial_done = std::get_if<PartialBlock<G1>>(&done.get())) {
          return PartialObject(manager, std::move(*partial_done));
        }
        return CompleteObject(manager, std::get<CompleteBlock<G1>>(std::move(done.get())));
      },
      "A CompleteBlock if it is full, else a PartialBlock. NotReady while the fence has not passed.");

  nb::class_<CompleteObject> complete(module, "CompleteBlock", R"(A full block that no one else can find yet.

BlockManager.register() makes it an ImmutableBlock, reset() a MutableBlock.)");
  bind_block(complete);
  complete
      .def_prop_ro(
          "sequence_hash", [](CompleteObject& self) { return self.get().sequence_hash(); }, "Its name.")
      .def_prop_ro(
          "prefix_digest", [](CompleteObject& self) { return self.get().prefix_digest(); },
          "Of all tokens up to its end; unknown when it was staged by name alone.")
      .def_prop_ro(
          "tokens", [](CompleteObject& self) { return numpy_of_ids(self.get().tokens()); },
          "Its tokens as a new array of uint32; empty when it was staged, or they are not kept.",
          nb::rv_policy::automatic)
      .def(
          "reset",
          [](CompleteObject& self) {
            return certain_transition<MutableBlock<G1>>(
                self, [](CompleteBlock<G1> guard) { return std::move(guard).reset(); });
          },
          "Forgets tokens and name.");
}

void bind_shared(nb::module_& module) {
  nb::class_<PinObject> pin(module, "Pin", R"(Keeps a registered block from eviction for a limited time.

Ends with release(), with the object, or when its time is over. It does not keep the manager alive.)");
  bind_ending(pin);
  pin.def_prop_ro(
      "active", [](const PinObject& self) { return self.kept.here() && self.kept->active(); },
      "True while it holds.");
  nb::class_<HoldObject> hold(module, "Hold", R"(Keeps a registered block in its slot without using it.

For code that copies the block. It does not keep the manager alive.)");
  bind_ending(hold);
  hold.def_prop_ro(
          "active", [](const HoldObject& self) { return self.kept.here().has_value(); },
          "True until it is released.")
      .def_prop_ro(
          "block_id",
          [](const HoldObject& self) {
            if (!self.kept.here()) raise_used("this Hold");
            return self.kept->block_id().value();
          },
          "The index of the block in its pool.");

  nb::class_<WeakObject>(module, "WeakBlock", R"(Remembers a registered block without keeping it.)")
      .def_prop_ro(
          "sequence_hash", [](const WeakObject& self) { return self.weak.sequence_hash(); },
          "The name of the remembered block, found or not.")
      .def(
          "upgrade",
          [](const WeakObject& self) -> std::optional<ImmutableObject> {
            ManagerPtr manager = self.manager.lock();
            if (manager == nullptr) return std::nullopt;
            if (is_of_parent(manager)) raise_of_parent();
            auto block = self.weak.upgrade();
            if (!block) return std::nullopt;
            return ImmutableObject(std::move(manager), *std::move(block));
          },
          "The block, or another of the same name; None when there is none. Does not count as a use.");

  nb::class_<ImmutableObject> shared(module, "ImmutableBlock", R"(One shared reference to a registered block.

The last release() leaves the block cached: others find it by its name until it is evicted.)");
  bind_block(shared);
  shared
      .def_prop_ro(
          "sequence_hash", [](ImmutableObject& self) { return self.get().sequence_hash(); }, "Its name.")
      .def_prop_ro(
          "prefix_digest", [](ImmutableObject& self) { return self.get().prefix_digest(); },
          "Of all tokens up to its end; unknown when it was staged by name alone.")
      .def_prop_ro(
          "use_count", [](ImmutableObject& self) { return self.get().use_count(); },
          "References to the block now.")
      .def_prop_ro(
          "is_duplicate", [](ImmutableObject& self) { return self.get().is_duplicate(); },
          "Whether another block is the primary of its name.")
      .def(
          "copy", [](ImmutableObject& self) { return ImmutableObject(self.manager(), copy_of(self.get())); },
          "One more reference.")
      .def(
          "set_reset_on_release",
          [](ImmutableObject& self, bool reset) { self.get().set_reset_on_release(reset); }, nb::arg("reset"),
          "Whether the last release() resets the block instead of caching it.")
      .def(
          "set_retention",
          [](ImmutableObject& self, int priority, std::optional<double> seconds) {
            value_or_raise(self.get().set_retention(retention_of(priority, seconds)));
          },
          nb::arg("priority"), nb::arg("seconds") = nb::none(),
          "How strongly to keep it, 0 to 100, and for how long; None: forever.")
      .def(
          "downgrade",
          [](ImmutableObject& self) { return WeakObject{self.manager(), self.get().downgrade()}; },
          "A WeakBlock of it. This guard is unchanged.")
      .def(
          "pin",
          [](ImmutableObject& self, double seconds) {
            return PinObject{value_or_raise(self.get().pin(seconds_of(seconds)))};
          },
          nb::arg("seconds"), "Keeps it from eviction after the last release(). CapacityError without room.")
      .def(
          "release_after",
          [](ImmutableObject& self, const Fence& fence) {
            ManagerPtr manager = self.manager();
            ImmutableBlock<G1> block = std::move(self.get());
            self.release();
            try {
              std::move(block).release_after(fence);
            } catch (const std::bad_alloc&) {
              self.put_back(std::move(manager), std::move(block));
              throw;
            }
          },
          nb::arg("fence"), "For work in flight that still reads it: gives it back when the fence passes.");
}

}  // namespace

void bind_guards(nb::module_& module) {
  bind_fences(module);
  bind_unique(module);
  bind_shared(module);
}

}  // namespace ashlar::python
