// BlockManager, and what it tells of its pools.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/tokens/token_sequence.h"
#include "events.h"
#include "gil.h"
#include "guards.h"
#include "interrupts.h"
#include "module.h"
#include "token_sequences.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using block::BlockDescription;
using block::BlockList;
using block::CompleteBlock;
using block::ImmutableBlock;
using block::MutableBlock;
using block::PoolStatus;
using block::RegistrationOptions;
using tokens::PrefixDigest;
using tokens::SequenceHash;

block::ManagerOptions options_of(std::uint32_t block_count, std::uint32_t block_size,
                                 const std::string& eviction, const std::string& duplicates,
                                 const std::string& reset_order) {
  block::ManagerOptions options;
  options.block_count = block_count;
  options.block_size = block_size;
  options.eviction = value_or_raise(block::eviction_by_name(eviction));
  if (duplicates != "allow" && duplicates != "reject") {
    raise(make_error(ErrorCode::kInvalidArgument, "duplicates is '%s'; it must be 'allow' or 'reject'",
                     duplicates.c_str()));
  }
  options.duplicates =
      duplicates == "allow" ? block::DuplicatePolicy::kAllow : block::DuplicatePolicy::kReject;
  if (reset_order != "fifo" && reset_order != "lifo") {
    raise(make_error(ErrorCode::kInvalidArgument, "reset_order is '%s'; it must be 'fifo' or 'lifo'",
                     reset_order.c_str()));
  }
  if (reset_order == "lifo") {
    options.reset_allocator = [](std::uint32_t count) -> std::unique_ptr<block::ResetAllocator> {
      return std::make_unique<block::LifoResetAllocator>(count);
    };
  }
  block::RegistryOptions registry;
  if (eviction == "multi_lru") registry.frequency = block::TinyLfuOptions::for_pool(block_count);
  options.registry = value_or_raise(block::BlockRegistry::create(registry));
  return options;
}

void make_manager(ManagerObject* self, std::uint32_t block_count, std::uint32_t block_size,
                  const std::string& eviction, const std::string& duplicates, const std::string& reset_order,
                  bool keep_tokens, bool reset_on_release, std::uint32_t block_bytes, std::size_t max_pins,
                  std::size_t low_watermark, std::size_t high_watermark, const nb::object& prefix_key,
                  std::size_t events) {
  block::ManagerOptions options = options_of(block_count, block_size, eviction, duplicates, reset_order);
  options.keep_tokens = keep_tokens;
  options.default_reset_on_release = reset_on_release;
  options.block_bytes = block_bytes;
  options.max_pins = max_pins;
  options.watermarks = {low_watermark, high_watermark};
  if (!prefix_key.is_none()) {
    const auto bytes = bytes_of(prefix_key, tokens::PrefixKey::kSize, "a prefix key");
    tokens::PrefixKey::Bytes key;
    std::ranges::copy(bytes, key.begin());
    options.prefix_key = tokens::PrefixKey(key);
  }
  options.events = event_log_of(events);
  new (self) ManagerObject{share_manager(value_or_raise(Manager::create(options)))};
}

using Allocated = Result<BlockList<MutableBlock<G1>>, block::AllocationRefusal>;

Allocated wait_for(const ManagerPtr& manager, std::size_t n, Clock::TimePoint deadline) {
  // Most need not wait.
  Allocated blocks = without_gil([&] { return manager->try_allocate_until(n, Clock::TimePoint::min()); });
  const bool waits = !blocks && blocks.error().reason == block::AllocationRefusal::Reason::kTimedOut;
  if (!waits) return blocks;
  return run_interruptibly([manager, n, deadline](std::stop_token stop) {
    return manager->try_allocate_until(n, deadline, std::move(stop));
  });
}

MutableListObject allocate(const ManagerObject& self, std::size_t n, std::optional<double> timeout) {
  if (!timeout) {
    auto blocks = without_gil_if(n > kLongList, [&] { return self.manager->allocate_blocks(n); });
    return {self.manager, value_or_raise(std::move(blocks))};
  }
  const Clock::TimePoint deadline = Clock::real().now() + seconds_of(*timeout);
  return {self.manager, value_or_raise(wait_for(self.manager, n, deadline))};
}

MutableObject allocate_block(const ManagerObject& self) {
  MutableBlock<G1> block;
  value_or_raise(self.manager->allocate_blocks(std::span(&block, 1)));
  return {self.manager, std::move(block)};
}

RegistrationOptions registration_of(std::optional<int> priority, std::optional<double> seconds,
                                    const std::optional<block::Fence>& after,
                                    const std::optional<SequenceHash>& parent, std::uint32_t metadata) {
  RegistrationOptions options;
  if (priority || seconds) {
    options.retention = retention_of(priority.value_or(block::BlockRetention::kDefaultPriority), seconds);
  }
  if (after) options.after.push_back(*after);
  options.parent = parent;
  options.metadata = metadata;
  return options;
}

ImmutableObject register_block(const ManagerObject& self, CompleteObject& block, std::optional<int> priority,
                               std::optional<double> seconds, const std::optional<block::Fence>& after,
                               const std::optional<SequenceHash>& parent, std::uint32_t metadata) {
  const RegistrationOptions options = registration_of(priority, seconds, after, parent, metadata);
  ManagerPtr owner = block.manager();
  CompleteBlock<G1> guard = std::move(block.get());
  block.release();
  auto done = self.manager->register_block(std::move(guard), options);
  if (!done) {
    const Error error = std::move(done.error().error);
    block.put_back(std::move(owner), std::move(done.error().guard));
    raise(error);
  }
  return {self.manager, std::move(done).value()};
}

ImmutableListObject register_all(const ManagerObject& self, CompleteListObject& blocks,
                                 std::optional<int> priority, std::optional<double> seconds,
                                 const std::optional<block::Fence>& after,
                                 const std::optional<SequenceHash>& parent, std::uint32_t metadata) {
  const RegistrationOptions options = registration_of(priority, seconds, after, parent, metadata);
  ManagerPtr owner = blocks.manager();
  BlockList<CompleteBlock<G1>> guards = std::move(blocks.get());
  blocks.release();
  const bool many = guards.size() >= kManyBlocks;
  auto done = without_gil_if(many, [&] { return self.manager->register_blocks(std::move(guards), options); });
  if (!done) {
    const Error error = std::move(done.error().error);
    blocks.put_back(std::move(owner), std::move(done.error().guard));
    raise(error);
  }
  return {self.manager, std::move(done).value()};
}

ImmutableListObject match(const ManagerObject& self, const HashesLike& like, const nb::object& prefixes) {
  const HashArray hashes(like);
  BlockList<ImmutableBlock<G1>> found;
  const bool many = hashes.size() >= kManyBlocks;
  if (prefixes.is_none()) {
    without_gil_if(many, [&] { self.manager->match_blocks(hashes.span(), found); });
    return {self.manager, std::move(found)};
  }
  // Digests have the form of names: two numbers of 64 bits each.
  const HashArray digests(prefixes);
  if (digests.size() != hashes.size()) {
    raise(make_error(ErrorCode::kInvalidArgument, "%zu hashes and %zu prefix digests", hashes.size(),
                     digests.size()));
  }
  std::vector<PrefixDigest> known;
  known.reserve(digests.size());
  for (const SequenceHash& bits : digests.span())
    known.push_back(PrefixDigest::from_bits(bits.hi(), bits.lo()));
  without_gil_if(many, [&] { self.manager->match_blocks(hashes.span(), known, found); });
  return {self.manager, std::move(found)};
}

nb::list match_scattered(const ManagerObject& self, const HashesLike& like) {
  const HashArray hashes(like);
  std::vector<ImmutableBlock<G1>> found = without_gil_if(
      hashes.size() >= kManyBlocks, [&] { return self.manager->match_blocks_scattered(hashes.span()); });
  nb::list answers;
  for (ImmutableBlock<G1>& block : found) {
    if (block) {
      answers.append(nb::cast(ImmutableObject(self.manager, std::move(block))));
    } else {
      answers.append(nb::none());
    }
  }
  return answers;
}

ImmutableListObject match_sequence(const ManagerObject& self, const TokenSequenceObject& given) {
  const tokens::TokenSequence& sequence = given.get();
  const std::span<const tokens::TokenBlock> blocks = sequence.blocks();
  if (blocks.size() < kManyBlocks) return {self.manager, self.manager->match_blocks(blocks)};
  BlockList<ImmutableBlock<G1>> found;
  // Blocks of another size hold other tokens.
  if (sequence.block_size() != self.manager->block_size()) return {self.manager, std::move(found)};
  // Copies, because another thread may change the sequence meanwhile.
  std::vector<SequenceHash> names;
  std::vector<PrefixDigest> digests;
  names.reserve(blocks.size());
  digests.reserve(blocks.size());
  for (const tokens::TokenBlock& block : blocks) {
    names.push_back(block.sequence_hash());
    digests.push_back(block.prefix_digest());
  }
  without_gil([&] { self.manager->match_blocks(names, digests, found); });
  return {self.manager, std::move(found)};
}

std::map<std::string, std::uint64_t> counters_of(const ManagerObject& self) {
  const block::ManagerCounters counters = self.manager->counters();
  return {{"allocations", counters.allocations},
          {"allocations_from_reset", counters.allocations_from_reset},
          {"evictions", counters.evictions},
          {"stagings", counters.stagings},
          {"registrations", counters.registrations},
          {"duplicates", counters.duplicates},
          {"deduplications", counters.deduplications},
          {"collisions", counters.collisions},
          {"match_hashes_requested", counters.match_hashes_requested},
          {"match_blocks_returned", counters.match_blocks_returned},
          {"match_probes", counters.match_probes},
          {"scan_hashes_requested", counters.scan_hashes_requested},
          {"scan_blocks_returned", counters.scan_blocks_returned},
          {"revivals", counters.revivals},
          {"quarantines", counters.quarantines},
          {"late_releases", counters.late_releases}};
}

void bind_status(nb::module_& module) {
  nb::class_<PoolStatus>(module, "PoolStatus",
                         "The pools of a manager at one moment; they add up to `total`.")
      .def_ro("total", &PoolStatus::total, "All blocks.")
      .def_ro("reset", &PoolStatus::reset, "Empty and free.")
      .def_ro("inactive", &PoolStatus::inactive, "Registered, without references, evictable.")
      .def_ro("pinned_inactive", &PoolStatus::pinned_inactive, "Registered, without references, pinned.")
      .def_ro("held_inactive", &PoolStatus::held_inactive, "Registered, without references, held.")
      .def_ro("active", &PoolStatus::active, "Registered and in use.")
      .def_ro("owned", &PoolStatus::owned, "Held by guards that own their block alone.")
      .def_ro("quarantined", &PoolStatus::quarantined, "Dropped in flight, waiting for their fence.")
      .def_ro("waiters", &PoolStatus::waiters, "Allocations that wait for room.")
      .def_prop_ro("available", &PoolStatus::available, "What an allocation can get now: reset + inactive.")
      .def("__str__", &PoolStatus::to_string, "One line.")
      .def(
          "__repr__", [](const PoolStatus& status) { return "<PoolStatus " + status.to_string() + ">"; },
          "For people.");

  nb::class_<BlockDescription>(module, "BlockDescription", "What a manager knows of one block.")
      .def_prop_ro(
          "block_id", [](const BlockDescription& self) { return self.id.value(); }, "Its index in the pool.")
      .def_prop_ro(
          "state", [](const BlockDescription& self) { return identifier(to_string(self.state)); },
          "The name of its state.")
      .def_prop_ro(
          "sequence_hash",
          [](const BlockDescription& self) -> std::optional<SequenceHash> {
            if (!self.identity) return std::nullopt;
            return self.identity->hash;
          },
          "The name of a registered block; else None.")
      .def_ro("references", &BlockDescription::references, "Guards and requests that use it.")
      .def_ro("pins", &BlockDescription::pins, "Pins that keep it.")
      .def_ro("holds", &BlockDescription::holds, "Holds that keep it.")
      .def_ro("reset_on_release", &BlockDescription::reset_on_release, "The last release does not cache it.")
      .def_prop_ro("is_inactive", &BlockDescription::is_inactive, "Registered and without references.")
      .def("__str__", &BlockDescription::to_string, "One line.");
}

void bind_finding(nb::class_<ManagerObject>& manager) {
  manager
      .def(
          "match", &match, nb::arg("hashes"), nb::arg("prefixes") = nb::none(),
          nb::sig("def match(self, hashes: SequenceHashes | collections.abc.Sequence[SequenceHash] | "
                  "numpy.typing.NDArray[numpy.uint64], prefixes: numpy.typing.NDArray[numpy.uint64] | None = "
                  "None) -> ImmutableBlocks"),
          R"(The longest prefix of `hashes` whose blocks are all registered.

With `prefixes` (BlockHashes.prefix) a block with another known digest is a miss. Names alone are trusted: use
digests, or keyed names, where clients may craft collisions.)")
      .def("match_sequence", &match_sequence, nb::arg("sequence"),
           "The longest registered prefix of its full blocks, with digests compared.")
      .def(
          "match_scattered", &match_scattered, nb::arg("hashes"),
          nb::sig("def match_scattered(self, hashes: SequenceHashes | collections.abc.Sequence[SequenceHash] "
                  "| numpy.typing.NDArray[numpy.uint64]) -> list[ImmutableBlock | None]"),
          "One answer per name, without stopping at a miss; None is a miss.")
      .def(
          "pin",
          [](const ManagerObject& self, const SequenceHash& hash, double seconds) {
            return PinObject{value_or_raise(self.manager->pin(hash, seconds_of(seconds)))};
          },
          nb::arg("hash"), nb::arg("seconds"), "Pins the block of a name. NotFound, CapacityError.")
      .def(
          "hold",
          [](const ManagerObject& self, const SequenceHash& hash) {
            return HoldObject{value_or_raise(self.manager->hold(hash))};
          },
          nb::arg("hash"), "Keeps the block of a name in its slot without using it. NotFound.")
      .def(
          "set_retention",
          [](const ManagerObject& self, const SequenceHash& hash, int priority,
             std::optional<double> seconds) {
            value_or_raise(self.manager->set_retention(hash, retention_of(priority, seconds)));
          },
          nb::arg("hash"), nb::arg("priority"), nb::arg("seconds") = nb::none(),
          "How strongly to keep the block of a name, 0 to 100, and for how long. NotFound.")
      .def(
          "set_metadata",
          [](const ManagerObject& self, const SequenceHash& hash, std::uint32_t metadata) {
            value_or_raise(self.manager->set_metadata(hash, metadata));
          },
          nb::arg("hash"), nb::arg("metadata"),
          "The caller's own number of the block, in its events. NotFound; Unsupported without events.")
      .def(
          "describe",
          [](const ManagerObject& self, std::uint32_t block_id) {
            return value_or_raise(self.manager->describe(block::BlockId(block_id)));
          },
          nb::arg("block_id"), "What is known of a block. InvalidArgument for an id that does not exist.")
      .def(
          "describe",
          [](const ManagerObject& self, const SequenceHash& hash) { return self.manager->describe(hash); },
          nb::arg("hash"), "What is known of the block of a name; None when there is none.")
      .def(
          "tokens_of",
          [](const ManagerObject& self, const SequenceHash& hash) -> std::optional<Numpy<std::uint32_t>> {
            const auto tokens = self.manager->tokens_of(hash);
            if (!tokens) return std::nullopt;
            return numpy_of_ids(std::span(*tokens));
          },
          nb::arg("hash"), "The tokens of a registered block; None unless keep_tokens has them.");
}

}  // namespace

void bind_blocks(nb::module_& module) {
  bind_status(module);
  nb::class_<ManagerObject> manager(module, "BlockManager", R"(Allocates, names, shares and evicts blocks.

The manager owns the lives of its blocks, not their bytes. Guards keep their manager alive; leaving `with`, or
losing the last reference to a guard, gives its block back. Safe to use from several threads; a guard is for
one thread at a time. A failed call changes nothing.)");
  manager
      .def("__init__", &make_manager, nb::arg("block_count"), nb::arg("block_size") = 16, nb::kw_only(),
           nb::arg("eviction") = "lru", nb::arg("duplicates") = "allow", nb::arg("reset_order") = "fifo",
           nb::arg("keep_tokens") = false, nb::arg("reset_on_release") = false, nb::arg("block_bytes") = 0,
           nb::arg("max_pins") = 0, nb::arg("low_watermark") = 0, nb::arg("high_watermark") = 0,
           nb::arg("prefix_key") = nb::none(), nb::arg("events") = 0,
           nb::sig("def __init__(self, block_count: int, block_size: int = 16, *, eviction: str = 'lru', "
                   "duplicates: typing.Literal['allow', 'reject'] = 'allow', "
                   "reset_order: typing.Literal['fifo', 'lifo'] = 'fifo', keep_tokens: bool = False, "
                   "reset_on_release: bool = False, block_bytes: int = 0, max_pins: int = 0, "
                   "low_watermark: int = 0, high_watermark: int = 0, prefix_key: bytes | None = None, "
                   "events: int = 0) -> None"),
           R"(A pool of `block_count` blocks of `block_size` tokens each.

eviction: a name of eviction_names(). duplicates: what happens when a name is registered twice: `allow` keeps
both while both are used, `reject` answers with the first. reset_order: which free block is taken next.
keep_tokens: for tokens_of(). reset_on_release: blocks are not cached unless a guard says so. max_pins: 0 is a
quarter of the blocks. Watermarks: `pressure` is "low" from fewer than `low_watermark` available blocks until
`high_watermark` are. prefix_key: 16 bytes for digests that leave the process. events: how many
it buffers for an EventStream or drain_events(); 0: none.)")
      .def("allocate", &allocate, nb::arg("count"), nb::arg("timeout") = nb::none(),
           R"(That many empty blocks, or none: inactive ones are evicted to make room.

With a timeout, in seconds, it waits for room; waiting allocations are served in order of arrival. Ctrl-C
ends the wait, which gives its place in the queue up.
CapacityError, Timeout; InvalidArgument for more than there are in total.)")
      .def("allocate_block", &allocate_block, "One empty block.")
      .def(
          "allocate_with_evictions",
          [](const ManagerObject& self, std::size_t n) {
            auto allocation = value_or_raise(without_gil_if(
                n > kLongList, [&] { return self.manager->allocate_blocks_with_evictions(n); }));
            return nb::make_tuple(MutableListObject(self.manager, std::move(allocation.blocks)),
                                  HashList(std::move(allocation.evicted)));
          },
          nb::arg("count"),
          nb::sig("def allocate_with_evictions(self, count: int) -> tuple[MutableBlocks, SequenceHashes]"),
          "The blocks, and the names that were evicted for them.")
      .def(
          "can_allocate",
          [](const ManagerObject& self, std::size_t n) { return self.manager->can_allocate(n).has_value(); },
          nb::arg("count"), "Whether allocate() would succeed now.")
      .def("register", &register_block, nb::arg("block"), nb::kw_only(), nb::arg("priority") = nb::none(),
           nb::arg("seconds") = nb::none(), nb::arg("after") = nb::none(), nb::arg("parent") = nb::none(),
           nb::arg("metadata") = 0, "One block; see the other form.")
      .def("register", &register_all, nb::arg("blocks"), nb::kw_only(), nb::arg("priority") = nb::none(),
           nb::arg("seconds") = nb::none(), nb::arg("after") = nb::none(), nb::arg("parent") = nb::none(),
           nb::arg("metadata") = 0,
           R"(Makes complete blocks findable by their names: all of them, or none.

priority and seconds are their retention. after: the fence of the step that still writes them. parent: the
block before the first, where it was staged without. A refusal leaves the guards as they were:
CorruptionError when a name has a block of other tokens, InvalidArgument for a block of another manager.)")
      .def(
          "reset_inactive",
          [](const ManagerObject& self) {
            return without_gil([&] { return self.manager->reset_inactive_pool(); });
          },
          "Evicts every inactive block that is not pinned. Returns how many.")
      .def(
          "eviction_candidates",
          [](const ManagerObject& self, std::size_t n) {
            const std::size_t most = std::min(n, self.manager->total_blocks());
            return HashList(
                without_gil_if(most > kLongList, [&] { return self.manager->eviction_candidates(most); }));
          },
          nb::arg("count"), "The names that would be evicted next, in order.")
      .def(
          "registered",
          [](const ManagerObject& self) {
            std::vector<SequenceHash> names;
            without_gil([&] {
              self.manager->for_each_registered(
                  [&](const SequenceHash& hash, block::BlockId) { names.push_back(hash); });
            });
            return HashList(std::move(names));
          },
          "The names of all registered blocks, in no order.")
      .def_prop_ro(
          "status", [](const ManagerObject& self) { return self.manager->status(); }, "Its pools.")
      .def_prop_ro(
          "available", [](const ManagerObject& self) { return self.manager->available_blocks(); },
          "Blocks that an allocation can get now.")
      .def_prop_ro(
          "block_count", [](const ManagerObject& self) { return self.manager->total_blocks(); },
          "All blocks.")
      .def_prop_ro(
          "block_size", [](const ManagerObject& self) { return self.manager->block_size(); }, "In tokens.")
      .def_prop_ro(
          "pressure",
          [](const ManagerObject& self) {
            return self.manager->pressure() == block::Pressure::kLow ? "low" : "normal";
          },
          "\"low\" while few blocks are available, else \"normal\".")
      .def_prop_ro("counters", &counters_of, "What it has done since its creation, by name.")
      .def(
          "__len__", [](const ManagerObject& self) { return self.manager->total_blocks(); }, "All blocks.")
      .def(
          "__repr__",
          [](const ManagerObject& self) {
            return "<BlockManager " + self.manager->status().to_string() + ">";
          },
          "For people.");
  bind_finding(manager);
  bind_manager_events(manager);
  module.def("eviction_names", &block::eviction_names, "The eviction orders that a BlockManager knows.");
  module.def(
      "_check_invariants", [](const ManagerObject& self) { self.manager->check_invariants(); },
      nb::arg("manager"), "Stops the process if a pool is broken. No other thread may use the manager.");
}

}  // namespace ashlar::python
