// Runs one index of Ashlar on an index workload and prints one JSON line per figure.
//
// README.md defines each operation, its timing and `check`; router/src/main.rs does the same to the rivals,
// step by step. The structure "floor" stands for the loops of index_floor.h.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "counting_allocator.h"
#include "index_floor.h"
#include "index_measure.h"
#include "index_structures.h"
#include "index_workload.h"

namespace ashlar::peers {
namespace {

using namespace ashlar::bench;

constexpr const char* kUsage =
    "usage: ashlar_index_peer --workload FILE --structure "
    "radix_tree|concurrent_radix_tree|positional|flash|flash_sized|floor "
    "--event-size N [--ops speed|memory]";

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "ashlar_index_peer: %s\n", message.c_str());
  std::exit(2);
}

struct IndexArguments {
  std::string workload;
  std::string structure;
  std::uint32_t event_size = 0;
  bool memory = false;

  static IndexArguments parse(std::span<char*> args) {
    IndexArguments out;
    for (std::size_t i = 0; i < args.size(); i += 2) {
      const std::string_view option = args[i];
      if (i + 1 == args.size()) fail(std::string(option) + " needs a value\n" + kUsage);
      const std::string_view value = args[i + 1];
      if (option == "--workload") {
        out.workload = value;
      } else if (option == "--structure") {
        out.structure = value;
      } else if (option == "--event-size") {
        if (std::from_chars(value.data(), value.data() + value.size(), out.event_size).ptr != value.end()) {
          fail("--event-size takes a number, not " + std::string(value));
        }
      } else if (option == "--ops" && (value == "speed" || value == "memory")) {
        out.memory = value == "memory";
      } else {
        fail("unknown option " + std::string(option) + " " + std::string(value) + "\n" + kUsage);
      }
    }
    if (out.workload.empty() || out.structure.empty() || out.event_size == 0) fail(kUsage);
    return out;
  }
};

class Peer {
 public:
  Peer(const IndexArguments& arguments, const IndexWorkload& workload)
      : arguments_(arguments), workload_(workload), feed_(workload) {}

  template <class Make>
  void speed(Make&& make) const;
  template <class Make>
  void memory(Make&& make) const;
  void floor() const;

 private:
  std::span<const IndexEvent> events(std::string_view list) const {
    return workload_.events_of(list, arguments_.event_size);
  }
  void print(std::string_view op, double value, std::size_t units, const std::string& check) const {
    std::printf("{\"peer\":\"Ashlar " ASHLAR_VERSION
                "\",\"structure\":\"%s\",\"event_size\":%u,\"op\":\"%s\",\"value\":%.3f,\"units\":%zu,"
                "\"check\":\"%s\"}\n",
                arguments_.structure.c_str(), arguments_.event_size, std::string(op).c_str(), value, units,
                check.c_str());
  }
  void print_per_block(std::string_view list, double nanoseconds, const std::string& check) const {
    const std::size_t blocks = blocks_in(events(list));
    print(list, nanoseconds / static_cast<double>(blocks), blocks, check);
  }

  // A new index with the resident sequences; its time goes to `fills`.
  template <class Make>
  auto filled(Make&& make, std::vector<double>& fills) const {
    auto index = make();
    fills.push_back(feed_.timed_apply(*index, events(kStores)));
    return index;
  }
  // Applies a list in two halves, with a look at the answers between them.
  template <class Index>
  void remove(Index& index, std::string_view list) const {
    const auto all = events(list);
    double elapsed = feed_.timed_apply(index, all.first(all.size() / 2));
    const std::string half = fingerprint(index, workload_);
    elapsed += feed_.timed_apply(index, all.subspan(all.size() / 2));
    print_per_block(list, elapsed, "half=" + half + " end=" + fingerprint(index, workload_));
  }
  // One thread applies the churn, another one queries until it is done.
  template <class Index>
  void mixed(Index& index) const {
    const MixedResult result = run_mixed(index, feed_, events(kChurn), 1);
    print_mixed(result,
                "cut_short=" + std::to_string(result.cut_short) + " found=" + fingerprint(index, workload_));
  }
  void print_mixed(const MixedResult& result, const std::string& check) const {
    print("mixed_write", result.write_ns, blocks_in(events(kChurn)), check);
    print("mixed_find_p50", result.find_p50, result.finds, "");
    print("mixed_find_p99", result.find_p99, result.finds, "");
  }

  const IndexArguments& arguments_;
  const IndexWorkload& workload_;
  IndexFeed feed_;
};

template <class Make>
void Peer::speed(Make&& make) const {
  std::vector<double> fills;
  auto index = filled(make, fills);
  const std::string found = fingerprint(*index, workload_);
  for (const std::string_view list : {kHits, kPartialHits, kMisses}) {
    print("find_" + std::string(list), time_finds(*index, workload_, list), workload_.queries_of(list).size(),
          "found=" + fingerprint(*index, workload_, {list}));
  }
  remove(*index, kTailRemovals);
  index.reset();
  index = filled(make, fills);
  remove(*index, kRandomRemovals);
  index.reset();
  index = filled(make, fills);
  print_per_block(kStores, percentile(fills, 0.5), "found=" + found);
  if (is_concurrent(arguments_.structure)) mixed(*index);
}

// What operator new counts, or what the index says of itself where that is more: large tables may be mapped.
template <class Make>
void Peer::memory(Make&& make) const {
  start_counting_bytes();
  const std::int64_t before = live_bytes();
  auto index = make();
  feed_.apply(*index, events(kStores));
  const std::int64_t counted = live_bytes() - before;
  const auto stated = static_cast<std::int64_t>(index->sizes().bytes);
  std::fprintf(stderr, "counted %lld bytes, stated %lld\n", static_cast<long long>(counted),
               static_cast<long long>(stated));
  print("memory", static_cast<double>(std::max(counted, stated)) / static_cast<double>(workload_.pairs),
        workload_.pairs, "found=" + fingerprint(*index, workload_));
}

void Peer::floor() const {
  FindFloor floor(workload_);
  for (const std::string_view list : {kHits, kPartialHits}) {
    const auto& queries = workload_.queries_of(list);
    const double time = time_finds(workload_, queries,
                                   [&](const IndexQuery& query, std::span<const index::LocalHash> hashes) {
                                     floor.find(query, hashes);
                                   });
    print("find_" + std::string(list), time, queries.size(), "");
  }
  NameTableFloor table(workload_.contents);
  std::vector<std::uint64_t> names = names_in(feed_, events(kStores));
  auto start = BenchClock::now();
  const std::size_t fresh = table.insert(names);
  const double stored = nanoseconds_since(start);
  ASHLAR_CHECK(fresh == workload_.contents, "%zu names, not %zu", fresh, std::size_t{workload_.contents});
  print_per_block(kStores, stored, "");
  for (const std::string_view list : {kTailRemovals, kRandomRemovals}) {
    names = names_in(feed_, events(list));
    start = BenchClock::now();
    const std::size_t found = table.look_up(names);
    const double looked_up = nanoseconds_since(start);
    ASHLAR_CHECK(found == names.size(), "%zu of %zu names found", found, names.size());
    print_per_block(list, looked_up, "");
  }
  print_mixed(run_mixed_floor(feed_, events(kChurn)), "");
}

}  // namespace

int run(std::span<char*> args) {
  const IndexArguments arguments = IndexArguments::parse(args);
  auto workload = IndexWorkload::read(arguments.workload);
  if (!workload) fail(workload.error().to_string());
  const Peer peer(arguments, *workload);
  if (arguments.structure == "floor") {
    peer.floor();
    return 0;
  }
  const bool known = with_structure(
      arguments.structure,
      [&](auto make) {
        if (arguments.memory) {
          peer.memory(make);
        } else {
          peer.speed(make);
        }
      },
      workload->contents);
  if (!known) fail("unknown structure " + arguments.structure + "\n" + kUsage);
  return 0;
}

}  // namespace ashlar::peers

int main(int argc, char** argv) {
  return ashlar::peers::run(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
}
