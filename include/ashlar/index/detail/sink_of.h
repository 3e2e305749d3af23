// SinkOf<T>: the writing calls of any Indexer behind events::IndexSink, so that code which need not be a
// template can write to it.
//
// Thread safety: that of T. The T must outlive it.
#pragma once

#include <cstddef>
#include <span>

#include "ashlar/index/indexer.h"

namespace ashlar::index::detail {

template <Indexer T>
class SinkOf final : public IndexSink {
 public:
  explicit SinkOf(T& index) noexcept : index_(index) {}
  SinkOf(const SinkOf&) = delete;
  SinkOf& operator=(const SinkOf&) = delete;

  StoreVerdict store(const BlocksStored& event) override { return index_.store(event); }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override {
    return index_.remove(worker, tier, names);
  }
  void clear(const Worker& worker) override { index_.clear(worker); }
  void remove_worker(WorkerId worker) override { index_.remove_worker(worker); }

 private:
  T& index_;
};

}  // namespace ashlar::index::detail
