// WithoutPredictions: forwards a dump without given names and the blocks behind them. No real block lies
// behind them, but an index may store unheld blocks to reach others, and remove them at the end.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/index/indexer.h"

namespace ashlar::index::detail {

using NamesByWorker = std::map<Worker, std::set<BlockName>>;

class WithoutPredictions final : public IndexSink {
 public:
  using IsLeftOut = std::function<bool(const Worker&, BlockName)>;

  // `sink` must outlive this.
  WithoutPredictions(IndexSink& sink, IsLeftOut is_left_out)
      : sink_(sink), is_left_out_(std::move(is_left_out)) {}

  StoreVerdict store(const BlocksStored& event) override {
    std::size_t kept = 0;
    if (!event.parent || !is_dropped(event.worker, *event.parent)) {
      while (kept < event.blocks.size() && !is_left_out_(event.worker, event.blocks[kept].name)) ++kept;
    }
    for (const StoredBlock& block : event.blocks.subspan(kept)) dropped_[event.worker].insert(block.name);
    if (kept == 0) return StoreVerdict::kApplied;
    BlocksStored passed = event;
    passed.blocks = event.blocks.first(kept);
    return sink_.store(passed);
  }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override {
    std::vector<BlockName> passed;
    std::ranges::copy_if(names, std::back_inserter(passed),
                         [&](BlockName name) { return !is_dropped(worker, name); });
    return passed.empty() ? 0 : sink_.remove(worker, tier, passed);
  }
  void clear(const Worker& worker) override { sink_.clear(worker); }
  void remove_worker(WorkerId worker) override { sink_.remove_worker(worker); }

 private:
  bool is_dropped(const Worker& worker, BlockName name) const {
    const auto of_worker = dropped_.find(worker);
    return of_worker != dropped_.end() && of_worker->second.contains(name);
  }

  IndexSink& sink_;
  IsLeftOut is_left_out_;
  NamesByWorker dropped_;
};

}  // namespace ashlar::index::detail
