// Lockstep: an index beside an oracle of the same policy. Every call goes to both; each comparison returns
// nothing when they agree and the first difference in words when they do not.
//
// shrink() makes a failing list of calls short.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ashlar/index/make_index.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "index/index_case.h"

namespace ashlar::index::conformance {

class Lockstep {
 public:
  explicit Lockstep(const IndexCase& tested);

  AnyIndex& index() { return *index_; }
  const testing::IndexOracle& oracle() const { return oracle_; }

  // Makes the call on both; compares the answers, where the index gives any, and the names of the call.
  std::string apply(const testing::IndexCall& call);
  // Sizes, counters and all that workers hold who were called since the last time.
  std::string compare_state();
  // The answer to one query, with and without early_exit.
  std::string compare_answers(std::span<const LocalHash> query);
  // What is held, by the dump; and a fresh index with the dump replayed.
  std::string compare_dumps(std::span<const std::vector<LocalHash>> queries);
  // Removes all that is held from both, name by name or by clearing, and looks for what is left.
  std::string remove_everything(bool name_by_name);

 private:
  std::string compare_presence(const testing::IndexCall& call);
  std::string compare_presence(const Worker& worker, std::span<const BlockName> names);
  std::string compare_list(const Worker& worker);
  std::string compare_answers(const AnyIndex& index, std::span<const LocalHash> query, bool early_exit);

  IndexCase tested_;
  std::unique_ptr<AnyIndex> index_;
  testing::IndexOracle oracle_;
  IndexSizes empty_sizes_;
  std::set<Worker> called_;  // since compare_state()
  MatchScores found_;        // kept from query to query, as callers do
  MatchScores expected_;
};

// A list without calls that the failure does not need. `fails` decides; it is asked at most `most_tries`
// times.
std::vector<testing::IndexCall> shrink(std::vector<testing::IndexCall> calls,
                                       const std::function<bool(std::span<const testing::IndexCall>)>& fails,
                                       int most_tries = 2000);

}  // namespace ashlar::index::conformance
