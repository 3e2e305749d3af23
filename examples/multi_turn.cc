// Hit rates of the eviction backends on a multi-turn chat workload: the same requests through a real manager,
// once per backend, in a pool much smaller than the working set.
//
// A request matches the longest cached prefix of its prompt, allocates the rest of the prompt and the answer,
// registers it, holds everything until its answer is complete, and drops it. The hit rate is the share of
// prompt blocks found in the cache.
//
// The ranking depends on the workload. The defaults of WorkloadOptions were chosen so that the backends
// differ: long system prompts, many long pauses, many documents. With 60 documents, 16 system prompts of 256
// to 1024 tokens and a long pause in 0.2 of the turns, lru has 63.7 %, hashmap_priority 64.5 % and multi_lru
// 56.3 %.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "ashlar/ashlar.h"
#include "multi_turn_workload.h"
#include "offline_optimum.h"

namespace {

using namespace ashlar;
using block::BlockManager;
using block::G1;
using block::KvReady;
using examples::MultiTurnWorkload;

constexpr std::uint32_t kPool = 3000;
constexpr std::uint8_t kSystemPriority = 80;

// A manager with one backend, as an engine uses it.
class Engine {
 public:
  using Held = block::BlockList<block::ImmutableBlock<G1>>;

  Engine(const MultiTurnWorkload& workload, const std::string& backend)
      : workload_(workload),
        manager_(
            BlockManager<G1>::builder()
                .block_count(kPool)
                .block_size(workload.options().block_size)
                .registry(block::BlockRegistry::create({.frequency = block::TinyLfuOptions::for_pool(kPool)})
                              .value())
                .with_backend(backend)
                .build()
                .value()) {}

  template <class MakeRoom>
  Held begin(const MultiTurnWorkload::Request& request, std::size_t& hits, MakeRoom&& make_room) {
    Held table = manager_.match_blocks(workload_.prompt_of(request));
    hits += table.size();
    const auto rest = workload_.blocks_of(request).subspan(table.size());
    while (manager_.available_blocks() < rest.size()) make_room();
    auto fresh = manager_.allocate_blocks(rest.size()).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      complete.push_back(std::move(fresh[i]).complete(rest[i], KvReady::asserted_by_caller()).value());
    }
    auto registered = manager_.register_blocks(std::move(complete)).value();
    for (auto& each : registered) table.push_back(std::move(each));
    // Blocks that many requests will reuse. Backends without retention ignore it.
    for (std::size_t i = 0; i < workload_.conversation_of(request).system_blocks; ++i) {
      (void)table[i].set_retention({.priority = kSystemPriority});
    }
    return table;
  }
  void end(Held held) { held.clear(); }  // from the last block to the first
  std::uint64_t evictions() const { return manager_.counters().evictions; }

 private:
  const MultiTurnWorkload& workload_;
  BlockManager<G1> manager_;
};

struct Outcome {
  std::size_t asked = 0;  // prompt blocks
  std::size_t hits = 0;
  std::uint64_t evictions = 0;
};

// All requests in start order; completed ones end before the next one begins.
template <class Cache>
Outcome replay(const MultiTurnWorkload& workload, Cache& cache) {
  Outcome outcome;
  std::multimap<std::uint64_t, typename Cache::Held> running;
  const auto end_first = [&] {
    if (running.empty()) {
      std::fprintf(stderr, "multi_turn: a request needs more than the pool\n");
      std::abort();
    }
    cache.end(std::move(running.extract(running.begin()).mapped()));
  };
  for (const MultiTurnWorkload::Request& request : workload.requests()) {
    while (!running.empty() && running.begin()->first <= request.begin_ms) end_first();
    outcome.asked += request.prompt_blocks;
    auto held = cache.begin(request, outcome.hits, end_first);
    running.emplace(request.end_ms, std::move(held));
  }
  while (!running.empty()) end_first();
  outcome.evictions = cache.evictions();
  return outcome;
}

void print(const std::string& name, const Outcome& outcome, const std::string& note) {
  std::printf("%-20s %7.1f %% %9zu %10llu  %s\n", name.c_str(),
              100.0 * static_cast<double>(outcome.hits) / static_cast<double>(outcome.asked), outcome.hits,
              static_cast<unsigned long long>(outcome.evictions), note.c_str());
}

std::string note_of(const std::string& backend) {
  static const std::map<std::string, std::string> notes = {
      {"hashmap_fifo", "released first, evicted first; as lru: every use ends with a release"},
      {"hashmap_lifo", "released last, evicted first"},
      {"hashmap_lru", "as lru"},
      {"fifo", "registered longest ago, evicted first"},
      {"lfu", "names used least often first, then as lru"},
      {"s3_fifo", "new blocks first, unless used again"},
      {"hashmap_priority", "system prompts have priority " + std::to_string(kSystemPriority)},
      {"lineage", "ends of sequences first; as lru: requests drop their blocks from the end"},
      {"lineage_round_robin", "ends of sequences first, of all sequences in turn"},
      {"lru", "released or touched longest ago, evicted first"},
      {"multi_lru", "rarely used first, then as lru"},
      {"retention",
       "system prompts have priority " + std::to_string(kSystemPriority) + ", for half of the pool at most"},
  };
  const auto found = notes.find(backend);
  return found == notes.end() ? "" : found->second;
}

}  // namespace

int main() {
  const MultiTurnWorkload workload = MultiTurnWorkload::make();
  std::printf(
      "%zu requests of %u conversations and %u documents name %zu blocks of %u tokens; pool of %u\n\n",
      workload.requests().size(), workload.options().conversations, workload.options().documents,
      workload.distinct_blocks(), workload.options().block_size, kPool);
  std::printf("%-20s %9s %9s %10s  %s\n", "backend", "hit rate", "hits", "evictions", "note");
  for (const std::string& backend : block::eviction_names()) {
    Engine engine(workload, backend);
    print(backend, replay(workload, engine), note_of(backend));
  }
  examples::OfflineOptimum optimum(workload, kPool);
  print("optimum (offline)", replay(workload, optimum), "knows the requests to come; no backend can");
  std::printf(
      "\nthe ranking is this workload's: with fewer documents, shorter system prompts and fewer long pauses, "
      "multi_lru\nfalls below lru\n");
  return 0;
}
