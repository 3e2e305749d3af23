// HostStore: G2 and below for an engine whose scheduler is Python and whose workers are other processes; and
// copy_pieces(), with which such a worker copies.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/base/random.h"
#include "ashlar/tiers/host_store.h"
#include "ashlar/tokens/engine_hash.h"
#include "errors.h"
#include "gil.h"
#include "guards.h"
#include "kv.h"
#include "module.h"
#include "tier_names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {
namespace {

using tiers::HostBlock;
using tiers::HostStore;

constexpr std::size_t kGroupBytes = 4;

std::uint64_t big_endian(const std::uint8_t* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return std::endian::native == std::endian::little ? __builtin_bswap64(word) : word;
}

// An engine's key: the digest of a block and all before it, 16 or 32 bytes, then the group of layers, big
// endian. All bits enter the name or the digest, but for a few. The name ends with the last 64 bits, by which
// engines and routers name a block where they have no room for more.
HostBlock block_of(const nb::bytes& key) {
  const auto* bytes = static_cast<const std::uint8_t*>(key.data());
  const std::size_t size = key.size();
  if (size != 16 + kGroupBytes && size != 32 + kGroupBytes)
    raise(Error(ErrorCode::kInvalidArgument,
                "a key has " + std::to_string(size) +
                    " bytes; it must be a digest of 16 or 32 bytes and a group of 4"));
  const bool is_long = size == 32 + kGroupBytes;
  const std::uint64_t hi = big_endian(bytes + (is_long ? 16 : 0));
  const std::uint64_t lo = big_endian(bytes + (is_long ? 24 : 8));
  std::uint32_t group = 0;
  for (std::size_t i = size - kGroupBytes; i < size; ++i) group = group << 8 | bytes[i];
  HostBlock block;
  block.hash = value_or_raise(tokens::SequenceHash::make_keyed(0, hi, lo)).in_group(group);
  block.prefix = tokens::PrefixDigest::known(is_long ? big_endian(bytes) : spread_bits(hi),
                                             is_long ? big_endian(bytes + 8) : spread_bits(lo));
  return block;
}

std::vector<HostBlock> blocks_of(const nb::sequence& keys) {
  std::vector<HostBlock> blocks;
  for (nb::handle key : keys) {
    if (!nb::isinstance<nb::bytes>(key)) throw nb::type_error("a key must be bytes");
    blocks.push_back(block_of(nb::borrow<nb::bytes>(key)));
  }
  return blocks;
}

// Both, for a call without the GIL: another thread may close the HostStore meanwhile. The store goes first.
struct HostStoreUse {
  KvPtr kv;
  std::shared_ptr<HostStore> store;
};

// The store and the manager that it uses.
struct HostStoreRef {
  HostStoreRef(KvPtr its_kv, std::unique_ptr<HostStore> its_store)
      : kv(std::move(its_kv)), store(std::move(its_store)) {}
  HostStoreRef(const HostStoreRef&) = delete;
  HostStoreRef& operator=(const HostStoreRef&) = delete;
  ~HostStoreRef() { close(); }

  HostStore& get() const {
    if (store == nullptr) raise_used("this HostStore");
    if (is_of_parent(kv)) raise_of_parent();
    return *store;
  }
  HostStoreUse use() const {
    get();
    return {kv, store};
  }
  // f(store). If it was closed meanwhile, it goes before the GIL is taken again: its end may wait.
  template <class F>
  auto run_without_gil(F&& f) const {
    HostStoreUse taken = use();
    const WithoutGil released;
    const HostStoreUse kept = std::move(taken);
    return std::forward<F>(f)(*kept.store);
  }
  void close() {
    if (store == nullptr) return;
    std::shared_ptr<HostStore> ending = std::move(store);
    KvPtr last = std::move(kv);
    if (is_of_parent(last)) return leave_behind(std::move(ending));
    without_gil_in_destructor([&] {
      ending.reset();
      last.reset();
    });
  }

  KvPtr kv;
  std::shared_ptr<HostStore> store;
};

nb::object slots_of(const std::vector<block::BlockId>& slots) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(slots.size());
  for (const block::BlockId slot : slots) numbers.push_back(slot.value());
  return nb::cast(numbers);
}

nb::tuple begin_store(const HostStoreRef& self, const nb::sequence& keys) {
  const std::vector<HostBlock> blocks = blocks_of(keys);
  const HostStore::Job job =
      value_or_raise(self.run_without_gil([&](HostStore& store) { return store.begin_store(blocks); }));
  return nb::make_tuple(job.job.value(), job.chosen, slots_of(job.slots));
}

nb::tuple begin_load(const HostStoreRef& self, std::uint64_t request, const nb::sequence& keys) {
  const std::vector<HostBlock> blocks = blocks_of(keys);
  const HostStore::Job job = value_or_raise(self.get().begin_load(HostStore::RequestId(request), blocks));
  return nb::make_tuple(job.job.value(), slots_of(job.slots), job.writers);
}

nb::dict store_counters_of(const HostStoreRef& self) {
  const tiers::HostStoreCounters seen = self.get().counters();
  nb::dict out;
  out["hits_host"] = seen.hits_host;
  out["hits_disk"] = seen.hits_disk;
  out["hits_volume"] = seen.hits_volume;
  out["hits_peer"] = seen.hits_peer;
  out["misses"] = seen.misses;
  out["late"] = seen.late;
  out["stored"] = seen.stored;
  out["loaded"] = seen.loaded;
  out["not_stored"] = seen.not_stored;
  out["collided"] = seen.collided;
  out["damaged"] = seen.damaged;
  out["abandoned"] = seen.abandoned;
  return out;
}

using Addresses = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// f(i) for every i below count, in this thread and, where there are megabytes for them, in others: each takes
// the next one that is left, for some may have to share their core.
template <class F>
void in_threads(std::size_t count, std::uint64_t bytes, std::size_t threads, F&& f) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;  // what costs more than a thread
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    // relaxed: a number alone; the threads' end publishes what they wrote.
    for (std::size_t i = 0; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i);
  };
  std::vector<std::jthread> others;
  for (std::uint64_t more = 1; more < threads && more < bytes / kLeast; ++more) {
    try {
      others.emplace_back(work);
    } catch (const std::exception&) {
      break;  // no thread, or no memory for one: those that are there do it all
    }
  }
  work();
}

void check_lengths(const Addresses& to, const Addresses& from, const Addresses& sizes) {
  if (to.shape(0) != from.shape(0) || to.shape(0) != sizes.shape(0))
    raise(Error(ErrorCode::kInvalidArgument, "to, from and sizes must be as long as each other"));
}

void copy_some(const Addresses& to, const Addresses& from, const Addresses& sizes, std::size_t first,
               std::size_t last) {
  for (std::size_t i = first; i < last; ++i)
    std::memcpy(std::bit_cast<void*>(static_cast<std::uintptr_t>(to.data()[i])),
                std::bit_cast<const void*>(static_cast<std::uintptr_t>(from.data()[i])),
                static_cast<std::size_t>(sizes.data()[i]));
}

void copy_pieces(Addresses to, Addresses from, Addresses sizes, std::size_t threads) {
  check_lengths(to, from, sizes);
  without_gil([&] {
    const std::span<const std::uint64_t> all(sizes.data(), sizes.shape(0));
    in_threads(to.shape(0), std::accumulate(all.begin(), all.end(), std::uint64_t{0}), threads,
               [&](std::size_t i) { copy_some(to, from, sizes, i, i + 1); });
  });
}

// The XXH3 of the library, which takes words of 32 bits.
std::uint64_t checksum(std::uint64_t from, std::uint64_t size) {
  const auto* words = std::bit_cast<const tokens::Token*>(static_cast<std::uintptr_t>(from));
  return tokens::router_local_hash(std::span(words, static_cast<std::size_t>(size) / sizeof(tokens::Token)),
                                   {}, tokens::Salt::kBaseSeed)
      .value();
}

void check_size(std::uint64_t size) {
  if (size % sizeof(tokens::Token) != 0)
    raise(Error(ErrorCode::kInvalidArgument, "pieces of whole 32-bit words have checksums"));
}

std::vector<std::uint64_t> checksums(Addresses from, std::uint64_t size) {
  check_size(size);
  std::vector<std::uint64_t> out(from.shape(0));
  without_gil([&] {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = checksum(from.data()[i], size);
  });
  return out;
}

// The checksum of each part, where its address is not 0, and right behind it, from the cache, the copies of
// its share of the pieces.
std::vector<std::uint64_t> copy_checked(Addresses parts, std::uint64_t size, Addresses to, Addresses from,
                                        Addresses sizes, std::size_t threads) {
  check_size(size);
  check_lengths(to, from, sizes);
  const std::size_t count = parts.shape(0);
  if (count == 0 || to.shape(0) % count != 0)
    raise(Error(ErrorCode::kInvalidArgument, "every part must have as many pieces as the others"));
  const std::size_t share = to.shape(0) / count;
  std::vector<std::uint64_t> out(count);
  without_gil([&] {
    in_threads(count, count * size, threads, [&](std::size_t i) {
      if (parts.data()[i] != 0) out[i] = checksum(parts.data()[i], size);
      copy_some(to, from, sizes, i * share, (i + 1) * share);
    });
  });
  return out;
}

}  // namespace

void bind_host_store(nb::module_& module) {
  nb::class_<HostStoreRef>(module, "HostStore",
                           R"(G2 and below, for an engine that keeps G1 itself in other processes.

A key is the engine's digest of a block and all before it (16 or 32 bytes), followed by its group of layers (4
bytes, big endian). lookup() answers "hit" only for a block that is complete in G2, has this very digest, and
is pinned until its request ends or loads it; slower tiers are "pending" or "unknown" while they bring it up,
once fetch_asked() was called. No call but forget_all() waits for a disk, and none for a volume or a
peer.)")
      .def(
          "__init__",
          [](HostStoreRef* self, const KvRef& kv, double fetch_limit,
             std::optional<double> compute_blocks_per_second, std::size_t max_jobs) {
            tiers::HostStoreOptions options;
            options.fetch_limit = seconds_of(fetch_limit);
            options.compute_blocks_per_second = compute_blocks_per_second;
            options.max_jobs = max_jobs;
            const KvPtr shared = kv.get();
            new (self) HostStoreRef(shared, value_or_raise(HostStore::create(*shared, options)));
          },
          "kv"_a, nb::kw_only(), "fetch_limit"_a = 30.0, "compute_blocks_per_second"_a = nb::none(),
          "max_jobs"_a = 16384,
          "kv: a manager with G2. fetch_limit: the seconds that a request waits for slower tiers. "
          "compute_blocks_per_second: blocks that take longer to bring up are misses. max_jobs: how many may "
          "be under way before further stores are refused.")
      .def(
          "begin_request", [](const HostStoreRef& self) { return self.get().begin_request().value(); },
          "A number for a request.")
      .def(
          "drop_pins",
          [](const HostStoreRef& self, std::uint64_t request) {
            self.get().drop_pins(HostStore::RequestId(request));
          },
          "request"_a, "Ends its pins, for a request that loads nothing more.")
      .def(
          "end_request",
          [](const HostStoreRef& self, std::uint64_t request) {
            self.get().end_request(HostStore::RequestId(request));
          },
          "request"_a, "Ends its pins; jobs go on. Does nothing the second time.")
      .def(
          "lookup",
          [](const HostStoreRef& self, std::uint64_t request, const nb::bytes& key) {
            return std::string(to_string(self.get().lookup(HostStore::RequestId(request), block_of(key))));
          },
          "request"_a, "key"_a,
          nb::sig("def lookup(self, request: int, key: bytes) -> typing.Literal['miss', 'hit', 'pending', "
                  "'unknown']"),
          "Whether a block can be loaded; \"pending\" and \"unknown\": ask again.")
      .def(
          "source",
          [](const HostStoreRef& self, std::uint64_t request,
             const nb::bytes& key) -> std::optional<std::string> {
            const auto tier = self.get().source(HostStore::RequestId(request), block_of(key).hash);
            return tier ? std::optional<std::string>(tier_name(*tier)) : std::nullopt;
          },
          "request"_a, "key"_a,
          "The tier that had a block when the request first asked for it; None: it was no hit.")
      .def(
          "fetch_asked", [](const HostStoreRef& self) { self.get().fetch_asked(); },
          "Begins to bring up what lookup() was asked for. Once per step of the engine.")
      .def_prop_ro(
          "fetching", [](const HostStoreRef& self) { return self.get().fetching(); },
          "Whether blocks are being brought up for a request.")
      .def(
          "touch",
          [](const HostStoreRef& self, const nb::sequence& keys) {
            std::vector<tokens::SequenceHash> hashes;
            for (const HostBlock& block : blocks_of(keys)) hashes.push_back(block.hash);
            self.get().touch(hashes);
          },
          "keys"_a, "Counts as a use of those that are in G2.")
      .def("begin_store", &begin_store, "keys"_a,
           nb::sig("def begin_store(self, keys: collections.abc.Sequence[bytes]) -> tuple[int, list[int], "
                   "list[int]]"),
           "The job, which of the keys to store, and the slots of G2 to write them to, as far as there is "
           "room and they are not there already. Without slots there is no job.")
      .def("begin_load", &begin_load, "request"_a, "keys"_a,
           nb::sig("def begin_load(self, request: int, keys: collections.abc.Sequence[bytes]) -> tuple[int, "
                   "list[int], list[int]]"),
           "The job, the slots of G2 to read, and for each a mark of the job and slot of its store. "
           "NotFound: a key was no hit.")
      .def(
          "end_job",
          [](const HostStoreRef& self, std::uint64_t job, bool done) {
            value_or_raise(self.run_without_gil(
                [&](HostStore& store) { return store.end_job(HostStore::JobId(job), done); }));
          },
          "job"_a, "done"_a = true,
          "The workers have ended: stored blocks are found from now on if `done`, loaded ones may be evicted "
          "again. A load that is not `done` found damage: G2 drops its blocks. NotFound: no such job.")
      .def_prop_ro(
          "jobs", [](const HostStoreRef& self) { return self.get().jobs(); }, "How many are under way.")
      .def(
          "forget_all",
          [](const HostStoreRef& self) {
            value_or_raise(run_interruptibly([use = self.use()] { return use.store->forget_all(); }));
          },
          "Forgets every block, wherever a copy of it is. Jobs under way need their end, and store nothing.")
      .def_prop_ro("counters", &store_counters_of, nb::sig("def counters(self) -> dict[str, int]"),
                   "What has happened so far, in blocks, by name.")
      .def("close", &HostStoreRef::close,
           "Gives back all slots: workers must have stopped. Does nothing the second time.")
      .def(
          "name",
          [](const HostStoreRef& self, const nb::bytes& key) { return self.get().name(block_of(key).hash); },
          "key"_a, "The name under which every tier has the block of a key; another one after forget_all().");
  module.def("_copy_pieces", &copy_pieces, "to"_a, "sources"_a, "sizes"_a, "threads"_a = 1,
             "Copies pieces of memory given by their addresses, without the GIL, in parts where there are "
             "megabytes for several threads. For workers that have checked every address.");
  module.def("_checksums", &checksums, "sources"_a, "size"_a, "XXH3 of pieces of one size, likewise.");
  module.def(
      "_slot_marks",
      [](std::uint64_t job, const std::vector<std::uint32_t>& slots) {
        std::vector<std::uint32_t> marks;
        marks.reserve(slots.size());
        for (const std::uint32_t slot : slots)
          marks.push_back(HostStore::mark(HostStore::JobId(job), block::BlockId(slot)));
        return marks;
      },
      "job"_a, "slots"_a, "What a load of blocks that this job stored has as their marks.");
  module.def("_copy_checked", &copy_checked, "parts"_a, "size"_a, "to"_a, "sources"_a, "sizes"_a,
             "threads"_a = 1,
             "_copy_pieces(), part by part, each with as many pieces as the others; returns the XXH3 of each "
             "part, 0 where its address is 0.");
}

}  // namespace ashlar::python
