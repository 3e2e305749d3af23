// Routing indexes: Index, its answers Matches, and what an index holds as calls (IndexCall).
//
// The GIL is released in every call that reads or writes the index. All structures are thread-safe here: the
// radix tree, which is for one thread, lies behind a lock.
#include "index.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/make_index.h"
#include "ashlar/index/radix_tree.h"
#include "errors.h"
#include "gil.h"
#include "interrupts.h"
#include "module.h"
#include "tier_names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {
namespace {

using events::BlockName;
using events::StorageTier;
using events::StoreVerdict;
using index::MatchScores;
using tokens::LocalHash;

// A contiguous array of uint64, which is not copied.
class HashesArray : public nb::object {
  NB_OBJECT_DEFAULT(HashesArray, nb::object, "numpy.typing.NDArray[numpy.uint64]", is_not_none)
};
class Hashes {
 public:
  explicit Hashes(const HashesArray& array) {
    if (!buffer_.take(array.ptr()) || buffer_.type() != 'Q' || buffer_.view().ndim != 1 ||
        reinterpret_cast<std::uintptr_t>(buffer_.view().buf) % alignof(std::uint64_t) != 0)
      throw nb::type_error("hashes and names must be a contiguous, aligned array of uint64 with 1 dimension");
  }
  std::size_t size() const { return static_cast<std::size_t>(buffer_.view().len) / sizeof(std::uint64_t); }
  // A strong id is its number, so that an array of numbers is one of ids.
  template <class Id>
  std::span<const Id> of() const {
    static_assert(sizeof(Id) == sizeof(std::uint64_t));
    return {static_cast<const Id*>(buffer_.view().buf), size()};
  }

 private:
  Buffer buffer_;
};

// One worker's score.
struct Match {
  std::uint64_t worker = 0;
  std::uint32_t rank = 0;
  std::uint32_t depth = 0;
  std::uint32_t device_depth = 0;
  std::array<std::uint32_t, events::kStorageTiers> blocks{};
};
static_assert(sizeof(Match) == 40, "columns are strided arrays over rows");

// One score per worker that matched.
struct Matches {
  std::vector<Match> rows;
  bool exact = true;

  void add(const MatchScores& scores) {
    scores.for_each([&](const events::Worker& worker, const index::Score& score) {
      rows.push_back({worker.id.value(), worker.rank, score.depth, score.device_depth, score.blocks});
    });
    exact = exact && scores.exact();
  }
};

struct BatchMatches : Matches {
  std::vector<std::uint64_t> offsets;
};

// An array over memory that `owner` owns.
template <class T>
nb::ndarray<nb::numpy, const T> column(nb::handle owner, const std::vector<T>& values) {
  return {values.data(), {values.size()}, owner};
}
// The same of one field of all rows.
template <class T, class Answer>
nb::ndarray<nb::numpy, const T> column_of(nb::handle_t<Answer> owner, T Match::* field) {
  const std::vector<Match>& rows = nb::cast<const Answer&>(owner).rows;
  const T* first = rows.empty() ? nullptr : &(rows[0].*field);
  return {first, {rows.size()}, owner, {static_cast<std::int64_t>(sizeof(Match) / sizeof(T))}};
}

// One call of a dump, with its arrays.
struct IndexCall {
  bool store = true;
  std::uint64_t worker = 0;
  std::uint32_t rank = 0;
  StorageTier tier = StorageTier::kDevice;
  std::optional<std::uint64_t> parent;
  std::optional<std::uint32_t> start_position;
  std::vector<std::uint64_t> locals;  // empty for a removal
  std::vector<std::uint64_t> names;
};

// Gathers a dump. Called under the index' lock: it makes no Python objects.
class DumpGatherer final : public events::IndexSink {
 public:
  StoreVerdict store(const events::BlocksStored& event) override {
    IndexCall call{true, event.worker.id.value(), event.worker.rank, event.tier, {}, event.start_position, {},
                   {}};
    if (event.parent) call.parent = event.parent->value();
    for (const events::StoredBlock& block : event.blocks) {
      call.locals.push_back(block.local.value());
      call.names.push_back(block.name.value());
    }
    calls.push_back(std::move(call));
    return StoreVerdict::kApplied;
  }
  std::size_t remove(const events::Worker& worker, StorageTier tier,
                     std::span<const BlockName> names) override {
    IndexCall call{false, worker.id.value(), worker.rank, tier, {}, {}, {}, {}};
    for (const BlockName name : names) call.names.push_back(name.value());
    calls.push_back(std::move(call));
    return names.size();
  }
  // A dump is of stores and removals.
  void clear(const events::Worker&) override {}
  void remove_worker(events::WorkerId) override {}

  std::vector<IndexCall> calls;
};

std::shared_ptr<index::AnyIndex> new_index(const std::string& kind, std::size_t threads,
                                           std::uint32_t jump_size, std::size_t queue_capacity,
                                           std::string_view mid_chain) {
  index::IndexOptions options{
      .kind = kind, .jump_size = jump_size, .threads = threads, .queue_capacity = queue_capacity};
  if (mid_chain == to_string(index::MidChainRemoval::kOrphan)) {
    options.mid_chain = index::MidChainRemoval::kOrphan;
  } else if (mid_chain != to_string(index::MidChainRemoval::kRetain)) {
    raise(Error(ErrorCode::kInvalidArgument, "mid_chain is \"retain\" or \"orphan\""));
  }
  value_or_raise(options.validate());
  if (kind == "radix_tree" && threads == 0)
    return std::make_shared<index::IndexOf<index::LockedIndex<index::RadixTree>>>(kind);
  return value_or_raise(index::make_index(options));
}

StoreVerdict store_run(index::AnyIndex& target, const events::BlocksStored& event,
                       std::span<const LocalHash> locals, std::span<const BlockName> names) {
  // Reused per thread: no allocation per call once it is large enough.
  thread_local std::vector<events::StoredBlock> run;
  run.clear();
  run.reserve(locals.size());
  for (std::size_t i = 0; i < locals.size(); ++i) run.push_back({locals[i], names[i]});
  events::BlocksStored filled = event;
  filled.blocks = run;
  return target.store(filled);
}

StoreVerdict store_blocks(IndexRef& self, std::uint64_t worker, const HashesArray& locals_array,
                          const HashesArray& names_array, std::uint32_t rank, std::string_view tier,
                          std::optional<std::uint64_t> parent, std::optional<std::uint32_t> start_position) {
  const Hashes locals(locals_array);
  const Hashes names(names_array);
  if (locals.size() != names.size()) {
    raise(make_error(ErrorCode::kInvalidArgument, "%zu local hashes and %zu names: give one name per block",
                     locals.size(), names.size()));
  }
  events::BlocksStored event;
  event.worker = {events::WorkerId(worker), rank};
  event.tier = tier_of(tier);
  if (parent) event.parent = BlockName(*parent);
  event.start_position = start_position;
  return without_gil_if(locals.size() >= kManyBlocks, [&] {
    return store_run(*self.index, event, locals.of<LocalHash>(), names.of<BlockName>());
  });
}

std::size_t remove_blocks(IndexRef& self, std::uint64_t worker, const HashesArray& array, std::uint32_t rank,
                          std::string_view tier) {
  const Hashes names(array);
  const StorageTier from = tier_of(tier);
  return without_gil_if(names.size() >= kManyBlocks, [&] {
    return self.index->remove({events::WorkerId(worker), rank}, from, names.of<BlockName>());
  });
}

MatchScores& thread_scores() {
  thread_local MatchScores scores;
  return scores;
}

Matches find_matches(const IndexRef& self, const HashesArray& array, bool early_exit) {
  const Hashes locals(array);
  Matches matches;
  without_gil_if(locals.size() >= kManyBlocks, [&] {
    MatchScores& scores = thread_scores();
    self.index->find_matches(locals.of<LocalHash>(), scores, {.early_exit = early_exit});
    matches.rows.reserve(scores.matched());
    matches.add(scores);
  });
  return matches;
}

BatchMatches find_batch(const IndexRef& self, const HashesArray& array, const HashesArray& offsets,
                        bool early_exit) {
  const Hashes locals(array);
  const Hashes bounds(offsets);
  const std::span<const std::uint64_t> ends = bounds.of<std::uint64_t>();
  if (ends.empty() || ends.front() != 0 || ends.back() != locals.size() || !std::ranges::is_sorted(ends)) {
    raise(make_error(ErrorCode::kInvalidArgument,
                     "offsets must rise from 0 to the number of local hashes, %zu: request i has "
                     "locals[offsets[i]:offsets[i + 1]]",
                     locals.size()));
  }
  // Read again below, where another thread may have changed the caller's array.
  const std::vector<std::uint64_t> kept(ends.begin(), ends.end());
  if (kept.front() != 0 || kept.back() != locals.size() || !std::ranges::is_sorted(kept))
    raise(Error(ErrorCode::kInvalidArgument, "offsets changed while they were read"));
  BatchMatches matches;
  matches.offsets.push_back(0);
  without_gil([&] {
    MatchScores& scores = thread_scores();
    for (std::size_t i = 0; i + 1 < kept.size(); ++i) {
      self.index->find_matches(locals.of<LocalHash>().subspan(kept[i], kept[i + 1] - kept[i]), scores,
                               {.early_exit = early_exit});
      matches.add(scores);
      matches.offsets.push_back(matches.rows.size());
    }
  });
  return matches;
}

std::vector<IndexCall> dump(const IndexRef& self) {
  const WithoutGil released;
  DumpGatherer gatherer;
  self.index->dump(gatherer);
  return std::move(gatherer.calls);
}

std::size_t load(IndexRef& self, const std::vector<IndexCall>& calls) {
  const WithoutGil released;
  std::size_t refused = 0;
  for (const IndexCall& call : calls) {
    const events::Worker worker{events::WorkerId(call.worker), call.rank};
    std::vector<BlockName> names;
    for (const std::uint64_t name : call.names) names.emplace_back(name);
    if (!call.store) {
      self.index->remove(worker, call.tier, names);
      continue;
    }
    std::vector<LocalHash> locals;
    for (const std::uint64_t local : call.locals) locals.emplace_back(local);
    events::BlocksStored event;
    event.worker = worker;
    event.tier = call.tier;
    if (call.parent) event.parent = BlockName(*call.parent);
    event.start_position = call.start_position;
    if (store_run(*self.index, event, locals, names) != StoreVerdict::kApplied) ++refused;
  }
  return refused;
}

Numpy<std::uint8_t> presence(const IndexRef& self, std::uint64_t worker, const HashesArray& array,
                             std::uint32_t rank) {
  const Hashes names(array);
  std::vector<events::BlockPresence> out(names.size());
  const bool told = without_gil(
      [&] { return self.index->presence({events::WorkerId(worker), rank}, names.of<BlockName>(), out); });
  if (!told) {
    raise(Error(ErrorCode::kUnsupported,
                "the index \"" + std::string(self.index->name()) + "\" does not tell what a worker holds"));
  }
  std::vector<std::uint8_t> bits(out.size());
  std::ranges::transform(out, bits.begin(), [](const events::BlockPresence& block) { return block.tiers; });
  return numpy_of(std::move(bits));
}

nb::dict sizes(const IndexRef& self) {
  index::IndexSizes sizes;
  {
    const WithoutGil released;
    sizes = self.index->sizes();
  }
  nb::dict out;
  out["workers"] = sizes.workers;
  out["blocks"] = sizes.blocks;
  out["contents"] = sizes.contents;
  out["nodes"] = sizes.nodes;
  out["bytes"] = sizes.bytes;
  return out;
}

nb::dict counters(const IndexRef& self) {
  index::IndexCounters seen;
  {
    const WithoutGil released;
    seen = self.index->counters();
  }
  nb::dict out;
  out["stored"] = seen.stored;
  out["repeated"] = seen.repeated;
  out["removed"] = seen.removed;
  out["unknown_removals"] = seen.unknown_removals;
  out["unknown_parents"] = seen.unknown_parents;
  out["wrong_positions"] = seen.wrong_positions;
  out["names_in_use"] = seen.names_in_use;
  out["empty_stores"] = seen.empty_stores;
  out["full"] = seen.full;
  out["clears"] = seen.clears;
  return out;
}

template <class T>
nb::class_<T> bind_columns(nb::class_<T> type) {
  return type
      .def_prop_ro(
          "workers", [](nb::handle_t<T> self) { return column_of(self, &Match::worker); },
          "Worker ids, (n,) uint64.")
      .def_prop_ro(
          "ranks", [](nb::handle_t<T> self) { return column_of(self, &Match::rank); },
          "Data-parallel ranks, (n,) uint32.")
      .def_prop_ro(
          "depths", [](nb::handle_t<T> self) { return column_of(self, &Match::depth); },
          "Blocks from the start that each are in some tier, (n,) uint32.")
      .def_prop_ro(
          "device_depths", [](nb::handle_t<T> self) { return column_of(self, &Match::device_depth); },
          "Blocks from the start that all are in the device tier, (n,) uint32.")
      .def_prop_ro(
          "blocks",
          [](nb::handle_t<T> self) {
            const std::vector<Match>& rows = nb::cast<const T&>(self).rows;
            const std::uint32_t* first = rows.empty() ? nullptr : rows[0].blocks.data();
            constexpr std::int64_t kRow = sizeof(Match) / sizeof(std::uint32_t);
            return nb::ndarray<nb::numpy, const std::uint32_t>(first, {rows.size(), events::kStorageTiers},
                                                               self, {kRow, 1});
          },
          "Blocks within the depth by their fastest tier, (n, 5) uint32: device, host, disk, "
          "external, remote.")
      .def_ro("exact", &T::exact, "False where early_exit cut a walk short.")
      .def("__len__", [](const T& self) { return self.rows.size(); }, "How many.");
}

void bind_answers(nb::module_& module) {
  nb::class_<Match>(module, "Match", "How much of a prefix one worker holds.")
      .def_ro("worker", &Match::worker, "The worker's id.")
      .def_ro("rank", &Match::rank, "Its data-parallel rank.")
      .def_ro("depth", &Match::depth, "Blocks from the start that each are in some tier.")
      .def_ro("device_depth", &Match::device_depth, "Blocks from the start that all are in the device tier.")
      .def_prop_ro(
          "blocks",
          [](const Match& self) {
            nb::dict out;
            for (std::size_t i = 0; i < events::kStorageTiers; ++i)
              out[to_string(static_cast<StorageTier>(i)).data()] = self.blocks[i];
            return out;
          },
          nb::sig("def blocks(self) -> dict[str, int]"), "The blocks within `depth` by their fastest tier.")
      .def("__repr__", [](const Match& self) {
        return "Match(worker=" + std::to_string(self.worker) + ", rank=" + std::to_string(self.rank) +
               ", depth=" + std::to_string(self.depth) + ")";
      });
  bind_columns(nb::class_<Matches>(module, "Matches",
                                   "The workers that hold the first block of a request, as columns; an item "
                                   "is a Match."))
      .def(
          "__getitem__",
          [](const Matches& self, Py_ssize_t index) { return self.rows[index_in(index, self.rows.size())]; },
          "index"_a, "The score of one worker.")
      .def_prop_ro(
          "best",
          [](const Matches& self) -> std::optional<Match> {
            const auto deepest = std::ranges::max_element(self.rows, {}, &Match::depth);
            if (deepest == self.rows.end()) return std::nullopt;
            return *deepest;
          },
          "The deepest match, None without one.");
  bind_columns(nb::class_<BatchMatches>(module, "BatchMatches",
                                        "The matches of several requests, one after the other."))
      .def_prop_ro(
          "offsets",
          [](nb::handle_t<BatchMatches> self) { return column(self, nb::cast<BatchMatches&>(self).offsets); },
          "(requests + 1,) uint64: request i has the matches offsets[i] to offsets[i + 1].");
  nb::class_<IndexCall>(module, "IndexCall", "One call of Index.dump(): a store or a removal.")
      .def_prop_ro(
          "kind", [](const IndexCall& self) { return self.store ? "store" : "remove"; },
          "\"store\" or \"remove\".")
      .def_ro("worker", &IndexCall::worker, "The worker's id.")
      .def_ro("rank", &IndexCall::rank, "Its data-parallel rank.")
      .def_prop_ro(
          "tier", [](const IndexCall& self) { return to_string(self.tier); }, "The tier.")
      .def_ro("parent", &IndexCall::parent, "The name of the block before the first one, or None.")
      .def_ro("start_position", &IndexCall::start_position, "The position of the first block, if known.")
      .def_prop_ro(
          "locals",
          [](nb::handle_t<IndexCall> self) { return column(self, nb::cast<IndexCall&>(self).locals); },
          "Local hashes, (n,) uint64; empty for a removal.")
      .def_prop_ro(
          "names",
          [](nb::handle_t<IndexCall> self) { return column(self, nb::cast<IndexCall&>(self).names); },
          "Names, (n,) uint64.");
}

}  // namespace

void bind_index(nb::module_& module) {
  nb::enum_<StoreVerdict>(module, "StoreVerdict",
                          "The outcome of Index.store(). All but APPLIED change nothing.")
      .value("APPLIED", StoreVerdict::kApplied, "Stored; in a thread pool: accepted.")
      .value("EMPTY", StoreVerdict::kEmpty, "No blocks.")
      .value("UNKNOWN_TIER", StoreVerdict::kUnknownTier, "No such tier.")
      .value("UNKNOWN_PARENT", StoreVerdict::kUnknownParent,
             "The worker holds no block of the parent's name.")
      .value("WRONG_POSITION", StoreVerdict::kWrongPosition, "start_position does not follow the parent.")
      .value("NAME_IN_USE", StoreVerdict::kNameInUse, "A name occurs twice, or means other content.")
      .value("FULL", StoreVerdict::kFull, "A limit of the structure, or no memory now.");
  bind_answers(module);
  nb::class_<IndexRef>(
      module, "Index",
      "Which workers hold how much of a prefix.\n\n"
      "Workers report what they store and remove, by local hashes (the hash of a block's own\n"
      "tokens) and names of their own; find_matches() answers for a request, given as local\n"
      "hashes. Hashes and names are contiguous (n,) uint64 arrays. Every kind gives the same\n"
      "answers and may be called from any thread; calls for one worker must come in order.")
      .def(
          "__init__",
          [](IndexRef* self, const std::string& kind, std::size_t threads, std::uint32_t jump_size,
             std::size_t queue_capacity, std::string_view mid_chain) {
            new (self)
                IndexRef{end_in_its_process(new_index(kind, threads, jump_size, queue_capacity, mid_chain))};
          },
          "kind"_a = "flash", nb::kw_only(), "threads"_a = 0, "jump_size"_a = 32,
          "queue_capacity"_a = std::size_t{1} << 16, "mid_chain"_a = "retain",
          "kind: flash, positional, concurrent_radix_tree or radix_tree. threads above 0: stores go to that "
          "many threads and return before they are applied (see settle()). mid_chain: whether blocks behind "
          "a removed one are retained or forgotten (\"orphan\", flash only).")
      .def_prop_ro(
          "name", [](const IndexRef& self) { return std::string(self.index->name()); },
          "The structure, for logs.")
      .def("store", &store_blocks, "worker"_a, "locals"_a, "names"_a, nb::kw_only(), "rank"_a = 0,
           "tier"_a = "device", "parent"_a = nb::none(), "start_position"_a = nb::none(),
           "A run of consecutive blocks that a worker now holds in a tier; all or none are stored. parent: "
           "the name of the block before the first one, None at the start of a sequence.")
      .def("remove", &remove_blocks, "worker"_a, "names"_a, nb::kw_only(), "rank"_a = 0, "tier"_a = "device",
           "Removes names from one tier of a worker. Returns how many it held there.")
      .def(
          "clear",
          [](IndexRef& self, std::uint64_t worker, std::uint32_t rank) {
            without_gil([&] { self.index->clear({events::WorkerId(worker), rank}); });
          },
          "worker"_a, nb::kw_only(), "rank"_a = 0,
          "Removes all blocks of a worker's rank; it may store again.")
      .def(
          "remove_worker",
          [](IndexRef& self, std::uint64_t worker) {
            run_interruptibly([index = self.index, worker] {
              index->remove_worker(events::WorkerId(worker));
              return true;
            });
          },
          "worker"_a, "Removes all ranks of a worker.")
      .def("find_matches", &find_matches, "locals"_a, nb::kw_only(), "early_exit"_a = false,
           "The workers that hold the first block of the request, and how deep each reaches. early_exit: "
           "stops where at most one worker is left.")
      .def("find_batch", &find_batch, "locals"_a, "offsets"_a, nb::kw_only(), "early_exit"_a = false,
           "find_matches() for several requests in one call: request i is locals[offsets[i]:offsets[i + 1]].")
      .def("presence", &presence, "worker"_a, "names"_a, nb::kw_only(), "rank"_a = 0,
           "What a worker holds under each name: (n,) uint8, bit i for tier i (device, host, disk, external, "
           "remote); 0: nothing.")
      .def("dump", &dump, "The calls that rebuild an equal index from an empty one.")
      .def("load", &load, "calls"_a, "Applies the calls of a dump. Returns how many stores were refused.")
      .def(
          "settle",
          [](IndexRef& self) {
            run_interruptibly([index = self.index] {
              index->settle();
              return true;
            });
          },
          "Returns when everything accepted before is applied.")
      .def("sizes", &sizes, nb::sig("def sizes(self) -> dict[str, int]"),
           "What the index holds: workers, blocks, contents, nodes, bytes.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "What the index saw since the start.");
}

}  // namespace ashlar::python
