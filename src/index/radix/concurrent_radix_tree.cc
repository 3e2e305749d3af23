#include "ashlar/index/radix_tree.h"

#include "index/radix/basic_radix_tree.h"

namespace ashlar::index {

struct ConcurrentRadixTree::Impl : BasicRadixTree<true> {};

ConcurrentRadixTree::ConcurrentRadixTree() : impl_(std::make_unique<Impl>()) {}
ConcurrentRadixTree::~ConcurrentRadixTree() = default;

StoreVerdict ConcurrentRadixTree::store(const BlocksStored& event) {
  return impl_->store(event);
}
std::size_t ConcurrentRadixTree::remove(const Worker& worker, StorageTier tier,
                                        std::span<const BlockName> names) {
  return impl_->remove(worker, tier, names);
}
void ConcurrentRadixTree::clear(const Worker& worker) {
  impl_->clear(worker);
}
void ConcurrentRadixTree::remove_worker(WorkerId worker) {
  impl_->remove_worker(worker);
}

void ConcurrentRadixTree::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                                       const FindOptions& options) const {
  impl_->find_matches(locals, scores, options);
}
void ConcurrentRadixTree::dump(IndexSink& sink) const {
  impl_->dump(sink);
}
IndexSizes ConcurrentRadixTree::sizes() const {
  return impl_->sizes();
}
IndexCounters ConcurrentRadixTree::counters() const {
  return impl_->counters();
}

}  // namespace ashlar::index
