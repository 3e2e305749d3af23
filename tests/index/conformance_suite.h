// IndexTest: the fixture of all suites that run over every index (index_cases.h). It owns a fresh index and
// speaks to it in chains; structures that answer later are asked through their counters, so that no test sees
// the difference.
//
// Each *_test.cc derives a suite for one theme and instantiates it with ASHLAR_INDEX_SUITE.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/index/indexer.h"
#include "ashlar/index/make_index.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "index/chain.h"
#include "index/index_cases.h"
#include "index/index_printers.h"

namespace ashlar::index::conformance {

inline constexpr StorageTier kDevice = StorageTier::kDevice;
inline constexpr StorageTier kHost = StorageTier::kHost;
inline constexpr StorageTier kDisk = StorageTier::kDisk;
inline constexpr StorageTier kExternal = StorageTier::kExternal;

inline constexpr auto kApplied = StoreVerdict::kApplied;
inline constexpr auto kEmpty = StoreVerdict::kEmpty;
inline constexpr auto kUnknownParent = StoreVerdict::kUnknownParent;
inline constexpr auto kWrongPosition = StoreVerdict::kWrongPosition;
inline constexpr auto kNameInUse = StoreVerdict::kNameInUse;

constexpr Worker worker_of(std::uint64_t id, std::uint32_t rank = 0) {
  return {WorkerId(id), rank};
}

inline constexpr Worker kA = worker_of(1);
inline constexpr Worker kB = worker_of(2);
inline constexpr Worker kC = worker_of(3);

using Scores = std::map<Worker, Score>;
using Depths = std::map<Worker, std::uint32_t>;

// The matched workers. Fails the test where the answer contradicts itself.
Scores scores_of(const MatchScores& scores);

class IndexTest : public ::testing::TestWithParam<IndexCase> {
 protected:
  IndexTest() : index_(GetParam().make()), empty_sizes_(index_->sizes()) {}

  // For calls that the functions below do not wrap; what an index answers later needs settle().
  AnyIndex& index() { return *index_; }

  StoreVerdict store(const BlocksStored& event);
  // Blocks from .. from + count of the chain, after the block before them.
  StoreVerdict store(const Worker& worker, const Chain& chain, std::size_t from, std::size_t count,
                     StorageTier tier = kDevice);
  StoreVerdict store(const Worker& worker, const Chain& chain, StorageTier tier = kDevice) {
    return store(worker, chain, 0, chain.size(), tier);
  }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  // Blocks from .. from + count, the last one first.
  std::size_t remove(const Worker& worker, const Chain& chain, std::size_t from, std::size_t count,
                     StorageTier tier = kDevice) {
    return remove(worker, tier, chain.names_from_the_end(from, count));
  }
  std::size_t remove(const Worker& worker, const Chain& chain, StorageTier tier = kDevice) {
    return remove(worker, chain, 0, chain.size(), tier);
  }
  std::size_t remove_one(const Worker& worker, BlockName name, StorageTier tier = kDevice) {
    return remove(worker, tier, {&name, 1});
  }
  void clear(const Worker& worker) { index_->clear(worker); }
  void remove_worker(std::uint64_t id) { index_->remove_worker(WorkerId(id)); }

  Scores scores(std::span<const LocalHash> locals, bool early_exit = false);
  Scores scores(const Chain& chain, bool early_exit = false) { return scores(chain.locals, early_exit); }
  Depths depths(std::span<const LocalHash> locals, bool early_exit = false);
  Depths depths(const Chain& chain, bool early_exit = false) { return depths(chain.locals, early_exit); }
  // Of the last query.
  bool exact() const { return found_.exact(); }

  IndexSizes sizes();
  IndexCounters counters();
  // What the dump says that the index holds. Fails the test when a call of the dump does not apply.
  testing::IndexOracle held();
  // An index of the same kind with the dump of this one replayed into it.
  std::unique_ptr<AnyIndex> rebuilt();

  // Runs the body and expects that it changes nothing but counters and the room that tables keep.
  template <class Body>
  void expect_unchanged(Body&& body) {
    const IndexSizes sizes_before = sizes();
    const testing::IndexOracle held_before = held();
    body();
    IndexSizes sizes_after = sizes();
    sizes_after.bytes = sizes_before.bytes;
    EXPECT_EQ(sizes_after, sizes_before);
    EXPECT_EQ(difference(held_before, held()), "");
  }
  // Nothing is held, and nothing is kept that a new index does not have.
  void expect_empty();

 private:
  std::unique_ptr<AnyIndex> index_;
  IndexSizes empty_sizes_;
  MatchScores found_;
};

// Expects equal answers to all queries, with and without early_exit.
void expect_same_answers(const AnyIndex& left, const AnyIndex& right,
                         std::span<const std::vector<LocalHash>> queries);
// workers, blocks and contents, which do not depend on the structure.
IndexSizes counted(const IndexSizes& sizes);

inline std::string name_of_case(const ::testing::TestParamInfo<IndexCase>& tested) {
  return tested.param.name;
}

#define ASHLAR_INDEX_SUITE(suite, cases) \
  INSTANTIATE_TEST_SUITE_P(Indexes, suite, ::testing::ValuesIn(cases()), name_of_case)

}  // namespace ashlar::index::conformance
