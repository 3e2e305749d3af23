// IndexOracle: the brute-force model of the Indexer contract (index/indexer.h). It follows the contract in
// the plainest way, and every structure must give the same answers.
//
// Contents are numbered: a path of local hashes has the number of its last block, 0 is the empty path. Per
// (worker, rank) it keeps the content of each name, and per content the names in each tier.
//
// Where an event has several faults, the verdict is the first that applies in the order of StoreVerdict.
//
// Thread safety: thread-compatible.
// Complexity:    store and remove cost O(log) per block; find_matches() O(workers x depth); sizes() and
//                dump() walk all held blocks. Content numbers are never reused, so memory grows with every
//                content ever seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ashlar/index/indexer.h"

namespace ashlar::testing {

class IndexOracle final : public events::IndexSink {
 public:
  explicit IndexOracle(index::MidChainRemoval mid_chain = index::MidChainRemoval::kRetain);

  events::StoreVerdict store(const events::BlocksStored& event) override;
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) override;
  void clear(const events::Worker& worker) override;
  void remove_worker(events::WorkerId worker) override;
  bool presence(const events::Worker& worker, std::span<const events::BlockName> names,
                std::span<events::BlockPresence> out) const override;
  // Sorted by name.
  bool list(const events::Worker& worker, std::vector<events::BlockPresence>& out) const override;

  void find_matches(std::span<const tokens::LocalHash> locals, index::MatchScores& scores,
                    const index::FindOptions& options = {}) const;
  // One call per (content, tier, name), prefixes first. Blocks before a retained block that are no longer
  // held are stored under names that the worker does not use, and removed at the end.
  void dump(events::IndexSink& sink) const;
  // nodes, bytes and waiting_bytes are 0.
  index::IndexSizes sizes() const;
  index::IndexCounters counters() const { return counters_; }

  // Empty when both hold the same contents under the same names in the same tiers; else a text with the
  // first difference. Counters and policies are ignored.
  friend std::string difference(const IndexOracle& left, const IndexOracle& right);

 private:
  using Content = std::uint32_t;
  static constexpr Content kStart = 0;

  struct Path {
    Content parent = kStart;
    tokens::LocalHash last;
    std::uint32_t length = 0;
    std::map<tokens::LocalHash, Content> longer;
  };
  // The names of one content on one worker, by tier.
  using Names = std::array<std::set<events::BlockName>, events::kStorageTiers>;
  struct Cache {
    std::unordered_map<events::BlockName, Content> meanings;
    std::unordered_map<Content, Names> held;
  };

  events::BlockPresence presence_of(const Cache& cache, events::BlockName name, Content content) const;
  Content content_after(Content parent, tokens::LocalHash local);
  std::optional<events::StoreVerdict> fault_of(const events::BlocksStored& event);
  // Removes a name from one tier; false when the worker does not hold it there.
  bool remove_name(Cache& cache, events::StorageTier tier, events::BlockName name);
  void forget_behind(Cache& cache, Content content);
  void dump_worker(const events::Worker& worker, const Cache& cache, events::IndexSink& sink) const;
  void renumber_slots();
  std::string describe(Content content) const;

  index::MidChainRemoval mid_chain_;
  std::vector<Path> paths_;
  std::map<events::Worker, Cache> workers_;  // those that hold blocks
  std::vector<events::Worker> slots_;        // the keys of workers_, in their order
  std::uint64_t assignment_ = 0;
  index::IndexCounters counters_;
};

static_assert(index::PresenceIndexer<IndexOracle>);

}  // namespace ashlar::testing
