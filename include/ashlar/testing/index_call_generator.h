// IndexCallGenerator: random calls for a routing index, and queries that probe the resulting state.
//
// The streams stress eviction and collisions: few local hashes, so that prefixes overlap and the same local
// hash occurs at many positions; the same content under several names; one name for different contents on
// different workers; blocks removed at the end, in the middle and from the front, and stored again; tiers;
// workers that come and go. A share of the calls is faulty on purpose. Values that a structure might reserve
// (0, all ones) are among the worker ids, ranks, names and local hashes.
//
// The generator tracks what it expects each worker to hold (removing a block leaves its successors in place),
// only to make its calls meaningful; it knows no index. One seed gives one stream, on every machine.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/index_calls.h"

namespace ashlar::testing {

struct CallGeneratorOptions {
  std::size_t worker_ids = 4;
  std::size_t ranks = 2;         // per worker id
  std::size_t alphabet = 3;      // distinct local hashes
  std::size_t chain_length = 8;  // most new chains are at most this long
  double long_chains = 0.02;  // share of new chains of 31 … 33, 63 … 65, 96, 127 … 129 or some hundred blocks
  double lower_tiers = 0.25;  // share of stores into the other tiers than the device
  double faults = 0.1;        // share of stores and removals that are made faulty
  std::size_t names_per_worker = 60;  // removals outweigh stores above it

  // Options that vary by seed: many small workers, few with long chains, one tier, and so on.
  static CallGeneratorOptions varied(std::uint64_t seed);
};

class IndexCallGenerator {
 public:
  explicit IndexCallGenerator(std::uint64_t seed, CallGeneratorOptions options = {});

  IndexCall next();
  // A path that was once stored, whole, truncated, extended or diverging; a path that never existed; an empty
  // path.
  std::vector<tokens::LocalHash> next_query();

 private:
  // A path of local hashes by the number of its last block; 0 is the empty path.
  using Path = std::uint32_t;
  struct Node {
    Path parent = 0;
    tokens::LocalHash last;
    std::uint32_t length = 0;
    std::uint64_t mixed = 0;  // of all local hashes
    std::map<tokens::LocalHash, Path> longer;
  };
  struct Known {
    events::BlockName name;
    Path path = 0;
    std::uint8_t tiers = 0;  // a bit each
  };
  // The blocks that a worker is expected to hold.
  struct Book {
    std::vector<Known> all;
    std::unordered_map<events::BlockName, std::size_t> place;  // index in `all`
    std::unordered_map<Path, std::vector<events::BlockName>> names_of;
    std::deque<std::pair<events::BlockName, Path>> lost;  // recently removed, for stores that restore them

    const Known* find(events::BlockName name) const;
    void add(events::BlockName name, Path path, events::StorageTier tier);
    void take(events::BlockName name, events::StorageTier tier);
  };
  enum class Naming : std::uint8_t { kByContent, kByWorker, kFresh, kFromFew };
  using Locals = std::vector<tokens::LocalHash>;

  StoreCall make_store(const events::Worker& worker);
  StoreCall store_towards(const events::Worker& worker, const Locals& goal);
  StoreCall restore(const events::Worker& worker);
  StoreCall copy_to_tier(const events::Worker& worker);
  void make_faulty(StoreCall& call);
  RemoveCall make_remove(const events::Worker& worker);
  void make_faulty(RemoveCall& call);
  void note(const IndexCall& call);
  void note_store(const StoreCall& call);

  events::Worker pick_worker();
  events::StorageTier pick_tier();
  events::StorageTier pick_tier_of(const Known& known);
  const Known& pick_known(const Book& book) { return book.all[random_.below(book.all.size())]; }
  // A path that some worker holds, or any that ever existed.
  Path pick_path();
  std::size_t pick_length();
  tokens::LocalHash pick_local();
  events::BlockName pick_name(Naming naming, Path path, const events::Worker& worker, const Book& book);
  // A name of another worker, an unused one, or one that this worker held.
  events::BlockName pick_strange_name(const Book& book);
  // A number near typical boundaries, at most `most`.
  std::size_t pick_boundary(std::size_t most);

  Path path_after(Path parent, tokens::LocalHash local);
  Locals locals_of(Path path) const;
  void extend(Locals& locals, std::size_t by);

  CallGeneratorOptions options_;
  Random random_;
  std::vector<Node> nodes_;
  std::vector<events::Worker> workers_;
  std::vector<tokens::LocalHash> locals_;
  std::map<events::Worker, Book> books_;
  std::deque<IndexCall> recent_;
  std::uint64_t fresh_ = 0;
};

}  // namespace ashlar::testing
