// Plan: the calls of one writer thread, made before the run so that the threads do nothing but call.
//
// First come calls that fill the index a little; then a round of calls, and calls that lead back to where the
// round began, so that it can be made again and again.
//
// A plan owns some workers (all ranks of each id), knows what each holds after every call, and keeps for each
// call the presences that it begins and ends and the answer that an index must give. A Load says which calls
// there are.
//
// Thread safety: immutable once made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "index/concurrent/holdings.h"

namespace ashlar::index::concurrent {

// How often each kind of call comes, against the others.
struct Load {
  std::string name;
  unsigned extend = 10;        // a path goes on behind what the worker holds of it, or a hole is filled
  unsigned evict = 10;         // the end of a path goes, the last block first
  unsigned cut = 0;            // blocks go from the middle
  unsigned move = 0;           // blocks are stored in another tier, then removed from theirs
  unsigned alias = 0;          // a block gets a second name
  unsigned clear = 0;          // of one rank
  unsigned remove_worker = 0;  // of all ranks; the worker comes back
  unsigned faulty = 1;
  double lower_tiers = 0;  // share of stores into the other tiers than the device
  std::size_t longest_store = 40;
  // Workers that are never cleared, and of these the blocks from the start of a path that are never removed,
  // at most: they are what a query must find whole.
  double anchored = 0.5;
  std::size_t anchor = 60;
  std::size_t workers = 6;  // ids, dealt to the writers
  std::uint32_t ranks = 2;  // of each
  PathOptions paths = {};
};

std::vector<Load> loads();
std::ostream& operator<<(std::ostream& out, const Load& load);

struct PlannedCall {
  testing::IndexCall call;
  std::vector<Change> changes;
  testing::CallAnswer answer;
};

// A worker of the run. Its number is its place in the list of all.
struct RunWorker {
  Worker worker;
  std::uint32_t number;
};

class Plan {
 public:
  // `workers` are all of this writer's, ranks of one id beside each other.
  Plan(const Paths& paths, const Load& load, std::vector<RunWorker> workers, MidChainRemoval mid_chain,
       std::size_t calls, std::uint64_t seed);

  // The calls, in three parts. A round begins at `round`; from `back` on it leads back to there.
  const std::vector<PlannedCall>& calls() const noexcept { return calls_; }
  std::size_t round() const noexcept { return round_; }
  std::size_t back() const noexcept { return back_; }
  // Adds what an index counts that is sent the first part, so many whole rounds, and one that is not led
  // back.
  void add_counters(std::uint64_t whole_rounds, IndexCounters& sum) const;

 private:
  struct FirstStore {
    std::size_t call;  // its place in calls_
    const Path* path;
    std::size_t from;
    std::size_t to;
  };
  struct Owned {
    RunWorker who;
    Holdings holdings;
    bool anchored;
    std::size_t anchor;
    std::uint64_t naming;  // 0: names that other workers use too
    // The stores of the first part, and the names that they store, all in the device.
    std::vector<FirstStore> first = {};
    std::set<BlockName> kept = {};
  };

  void add_first_stores();
  void add_way_back();
  void add_random_call();
  void add_extension(Owned& owned);
  void add_eviction(Owned& owned);
  void add_cut(Owned& owned);
  void add_move(Owned& owned);
  void add_alias(Owned& owned);
  void add_faulty_call(Owned& owned);
  void add_store(Owned& owned, const Path& path, std::size_t from, std::size_t count, StorageTier tier,
                 std::uint64_t alias = 0);
  void add_removal(Owned& owned, StorageTier tier, std::vector<BlockName> names);
  void add(testing::IndexCall call, std::vector<Change> changes);

  const Path& any_path();
  StorageTier any_tier();
  // A tier that holds the content.
  std::optional<StorageTier> tier_of(const Owned& owned, Content content);
  // Whether the run never removes this block of the worker.
  static bool is_anchor(const Owned& owned, std::size_t position) {
    return owned.anchored && position < owned.anchor;
  }
  static BlockName name_of(const Owned& owned, Content content, std::uint64_t alias = 0);

  const Paths& paths_;
  const Load& load_;
  Random random_;
  std::vector<Owned> owned_;
  testing::IndexOracle oracle_;
  std::vector<PlannedCall> calls_;
  std::size_t round_ = 0;
  std::size_t back_ = 0;
  std::array<IndexCounters, 3> counters_;  // after each part
};

}  // namespace ashlar::index::concurrent
