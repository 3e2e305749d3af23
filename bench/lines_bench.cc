// What bench/count_lines counts: each operation in a function of its own, beside a plain loop that does only
// what the operation cannot do without.
//
//   lines_bench [load]    shared25 (unless given), disjoint or broad; prints the functions and their blocks
//
// The index has 262,144 (sequence, block) entries on 128 workers, sized; events have 16 blocks. The block
// manager has 65,536 blocks, 400 chains of 128 resident. The chain takes messages of 16 blocks of 16 tokens.
// A query and a message are written just before, so they are in the first cache; events and names lie in
// arrays that no cache holds.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/base/check.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "chain_messages.h"
#include "index_floor.h"
#include "index_measure.h"
#include "index_workload.h"

// A function that is called as it stands.
#if defined(__GNUC__) && !defined(__clang__)
#define ASHLAR_COUNTED [[gnu::noipa]]
#else
#define ASHLAR_COUNTED [[gnu::noinline]]
#endif

namespace {

using namespace ashlar;
using namespace ashlar::bench;

using Held = block::BlockList<block::ImmutableBlock<events::G1>>;
using Manager = block::BlockManager<events::G1>;

constexpr std::uint32_t kSequences = 256;
constexpr std::uint32_t kEvent = 16;
constexpr std::size_t kBlocks = 131'072;  // of the chain
constexpr std::uint32_t kPool = 65'536;
constexpr std::uint32_t kChain = 128;
constexpr std::uint32_t kChains = 400;

void print(const char* function, const char* floor, std::size_t blocks) {
  std::printf("counted %s %s %zu\n", function, floor, blocks);
}

// The blocks of a manager without rules: a table from names to numbers, and a count and the links of a list
// in one cache line per block.
class MatchFloor {
 public:
  struct alignas(64) Record {
    tokens::SequenceHash name;
    std::uint32_t uses = 0;
    std::uint32_t before = 0;
    std::uint32_t behind = 0;
  };
  struct Handle {
    Record* record;
    std::uint32_t number;
  };

  explicit MatchFloor(std::span<const std::vector<tokens::SequenceHash>> chains)
      : table_(2 * kPool), records_(kPool) {
    std::uint32_t number = 0;
    for (const auto& chain : chains)
      for (const tokens::SequenceHash& name : chain) {
        ++number;
        records_[number] = {.name = name, .before = number - 1, .behind = number + 1};
        std::size_t at = home(name);
        while (table_[at] != 0) at = (at + 1) % table_.size();
        table_[at] = number;
      }
  }

  std::size_t match(std::span<const tokens::SequenceHash> names, bool inactive, std::vector<Handle>& out) {
    out.clear();
    for (const tokens::SequenceHash& name : names) {
      std::size_t at = home(name);
      while (table_[at] != 0 && records_[table_[at]].name != name) at = (at + 1) % table_.size();
      if (table_[at] == 0) break;
      Record& record = records_[table_[at]];
      ++record.uses;
      if (inactive) {
        records_[record.before].behind = record.behind;
        records_[record.behind].before = record.before;
      }
      out.push_back({&record, table_[at]});
    }
    return out.size();
  }

 private:
  std::size_t home(const tokens::SequenceHash& name) const noexcept {
    return static_cast<std::size_t>(name.chain()) % table_.size();
  }

  std::vector<std::uint32_t> table_;
  std::vector<Record> records_;
};

}  // namespace

// Named for bench/count_lines, which finds them by these names.
extern "C" {

ASHLAR_COUNTED void counted_find_hit(const index::FlashIndex& index, std::span<const index::LocalHash> query,
                                     index::MatchScores& scores) {
  index.find_matches(query, scores, {});
}
ASHLAR_COUNTED void counted_find_miss(const index::FlashIndex& index, std::span<const index::LocalHash> query,
                                      index::MatchScores& scores) {
  index.find_matches(query, scores, {});
}
ASHLAR_COUNTED void counted_find_floor(FindFloor& floor, const IndexQuery& query,
                                       std::span<const index::LocalHash> hashes) {
  floor.find(query, hashes);
}
ASHLAR_COUNTED void counted_store(index::FlashIndex& index, const IndexFeed& feed,
                                  std::span<const IndexEvent> events) {
  feed.apply(index, events);
}
ASHLAR_COUNTED std::size_t counted_store_floor(NameTableFloor& table, std::span<const std::uint64_t> names) {
  return table.insert(names);
}
ASHLAR_COUNTED void counted_remove(index::FlashIndex& index, const IndexFeed& feed,
                                   std::span<const IndexEvent> events) {
  feed.apply(index, events);
}
ASHLAR_COUNTED std::size_t counted_remove_floor(NameTableFloor& table, std::span<const std::uint64_t> names) {
  return table.look_up(names);
}
ASHLAR_COUNTED std::size_t counted_match_active(Manager& manager, std::span<const tokens::SequenceHash> names,
                                                Held& out) {
  return manager.match_blocks(names, out);
}
ASHLAR_COUNTED std::size_t counted_match_inactive(Manager& manager,
                                                  std::span<const tokens::SequenceHash> names, Held& out) {
  return manager.match_blocks(names, out);
}
ASHLAR_COUNTED std::size_t counted_match_active_floor(MatchFloor& floor,
                                                      std::span<const tokens::SequenceHash> names,
                                                      std::vector<MatchFloor::Handle>& out) {
  return floor.match(names, false, out);
}
ASHLAR_COUNTED std::size_t counted_match_inactive_floor(MatchFloor& floor,
                                                        std::span<const tokens::SequenceHash> names,
                                                        std::vector<MatchFloor::Handle>& out) {
  return floor.match(names, true, out);
}

ASHLAR_COUNTED bool counted_decode(const Message& message, events::EngineBatch& out) {
  return events::decode_engine_batch(message, out).has_value();
}
ASHLAR_COUNTED void counted_ingest(feed::EngineIngest& ingest, const events::EngineBatch& batch,
                                   feed::IndexChanges& out) {
  ingest.apply(batch, out);
}
ASHLAR_COUNTED void counted_feed(feed::IndexFeeder& feeder, const feed::IndexChanges& changes) {
  feeder.apply(changes);
}
ASHLAR_COUNTED bool counted_decode_removed(const Message& message, events::EngineBatch& out) {
  return events::decode_engine_batch(message, out).has_value();
}
ASHLAR_COUNTED void counted_ingest_removed(feed::EngineIngest& ingest, const events::EngineBatch& batch,
                                           feed::IndexChanges& out) {
  ingest.apply(batch, out);
}
ASHLAR_COUNTED void counted_feed_removed(feed::IndexFeeder& feeder, const feed::IndexChanges& changes) {
  feeder.apply(changes);
}

}  // extern "C"

namespace {

void count_index(const std::string& name) {
  IndexLoad load = IndexLoad::named(name).value();
  load.sequences = kSequences;
  load.added = 0;
  const std::uint32_t sizes[] = {kEvent};
  const IndexWorkload workload = IndexWorkload::generate(load, sizes);
  const IndexFeed feed(workload);
  const auto& stores = workload.events_of(kStores, kEvent);
  const auto& removals = workload.events_of(kTailRemovals, kEvent);
  index::FlashIndex index({.expected_blocks = workload.contents});
  counted_store(index, feed, stores);
  print("counted_store", "counted_store_floor", blocks_in(stores));
  NameTableFloor table(workload.contents);
  const std::vector<std::uint64_t> stored = names_in(feed, stores);
  ASHLAR_CHECK(counted_store_floor(table, stored) == workload.contents, "names of all contents");

  FindFloor floor(workload);
  index::MatchScores scores;
  std::vector<index::LocalHash> hashes(workload.depth);
  std::size_t found = 0;
  const auto& hits = workload.queries_of(kHits);
  for (const IndexQuery& query : std::span(hits).first(kSequences)) {
    workload.expand(query, hashes);
    counted_find_hit(index, hashes, scores);
    scores.for_each([&](const index::Worker&, const index::Score& score) { found += score.depth == 1024; });
    workload.expand(query, hashes);
    counted_find_floor(floor, query, hashes);
  }
  ASHLAR_CHECK(found >= kSequences, "every sequence is found whole");
  print("counted_find_hit", "counted_find_floor", std::size_t{kSequences} * workload.depth);
  const auto& misses = workload.queries_of(kMisses);
  for (const IndexQuery& query : std::span(misses).first(kSequences)) {
    workload.expand(query, hashes);
    counted_find_miss(index, hashes, scores);
  }
  print("counted_find_miss", "-", kSequences);

  counted_remove(index, feed, removals);
  ASHLAR_CHECK(index.sizes().blocks == 0, "nothing is left");
  print("counted_remove", "counted_remove_floor", blocks_in(removals));
  const std::vector<std::uint64_t> removed = names_in(feed, removals);
  ASHLAR_CHECK(counted_remove_floor(table, removed) == removed.size(), "names of all contents");
}

void count_manager() {
  const block::BlockRegistry registry = block::BlockRegistry::create({.frequency = {}}).value();
  Manager manager = Manager::builder()
                        .block_count(kPool)
                        .block_size(kTokens)
                        .registry(registry)
                        .with_lru_backend()
                        .build()
                        .value();
  std::vector<std::vector<tokens::SequenceHash>> chains;
  std::vector<Held> held;
  std::vector<block::CompleteBlock<events::G1>> complete(kChain);
  for (std::uint32_t c = 0; c < kChains; ++c) {
    std::vector<std::uint32_t> text(std::size_t{kChain} * kTokens);
    for (std::uint32_t i = 0; i < text.size(); ++i) text[i] = i * 2654435761u + c * 97u;
    const auto sequence = tokens::TokenSequence::create(text, kTokens).value();
    auto blocks = manager.allocate_blocks(kChain).value();
    for (std::size_t i = 0; i < kChain; ++i)
      complete[i] =
          std::move(blocks[i]).complete(sequence.blocks()[i], block::KvReady::asserted_by_caller()).value();
    manager.register_blocks(complete, held.emplace_back().extend(kChain)).value();
    chains.push_back(sequence.sequence_hashes());
  }
  MatchFloor floor(chains);
  std::vector<MatchFloor::Handle> handles;
  handles.reserve(kChain);
  Held found;
  found.reserve(kChain);
  for (const bool inactive : {false, true}) {
    if (inactive) held.clear();
    for (const auto& chain : chains) {
      found.clear();
      const std::size_t count = inactive ? counted_match_inactive(manager, chain, found)
                                         : counted_match_active(manager, chain, found);
      const std::size_t beside = inactive ? counted_match_inactive_floor(floor, chain, handles)
                                          : counted_match_active_floor(floor, chain, handles);
      ASHLAR_CHECK(count == kChain && beside == kChain, "a resident chain");
    }
  }
  print("counted_match_active", "counted_match_active_floor", std::size_t{kChains} * kChain);
  print("counted_match_inactive", "counted_match_inactive_floor", std::size_t{kChains} * kChain);
}

// From the bytes of an engine's messages to the index; counted_feed has the store in the index.
void count_chain() {
  index::FlashIndex index({.expected_blocks = kBlocks});
  index::SinkOf<index::FlashIndex> sink(index);
  feed::IndexFeeder feeder(sink, events::WorkerId(7));
  feed::EngineIngest ingest = feed::EngineIngest::create({.expected_blocks = kBlocks}).value();
  events::EngineBatch batch;
  feed::IndexChanges changes;
  for (std::size_t first = 0; first < kBlocks; first += kRun) {
    const Message message = engine_message(first);
    ASHLAR_CHECK(counted_decode(message, batch), "a message");
    changes.clear();
    counted_ingest(ingest, batch, changes);
    counted_feed(feeder, changes);
  }
  ASHLAR_CHECK(index.sizes().blocks == kBlocks, "all blocks");
  for (std::size_t first = 0; first < kBlocks; first += kRun) {
    const Message message = removal_message(first);
    ASHLAR_CHECK(counted_decode_removed(message, batch), "a message");
    changes.clear();
    counted_ingest_removed(ingest, batch, changes);
    counted_feed_removed(feeder, changes);
  }
  ASHLAR_CHECK(index.sizes().blocks == 0, "no block");
  for (const char* function : {"counted_decode", "counted_ingest", "counted_feed", "counted_decode_removed",
                               "counted_ingest_removed", "counted_feed_removed"})
    print(function, "-", kBlocks);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string load = count > 1 ? arguments[1] : "shared25";
  if (count > 2 || !IndexLoad::named(load)) {
    std::fprintf(stderr, "usage: lines_bench [shared25|disjoint|broad]\n");
    return 2;
  }
  count_index(load);
  count_manager();
  count_chain();
}
