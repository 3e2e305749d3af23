#include "ashlar/index/radix_tree.h"

#include "index/radix/basic_radix_tree.h"

namespace ashlar::index {

struct RadixTree::Impl : BasicRadixTree<false> {};

RadixTree::RadixTree() : impl_(std::make_unique<Impl>()) {}
RadixTree::~RadixTree() = default;

StoreVerdict RadixTree::store(const BlocksStored& event) {
  return impl_->store(event);
}
std::size_t RadixTree::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  return impl_->remove(worker, tier, names);
}
void RadixTree::clear(const Worker& worker) {
  impl_->clear(worker);
}
void RadixTree::remove_worker(WorkerId worker) {
  impl_->remove_worker(worker);
}

void RadixTree::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                             const FindOptions& options) const {
  impl_->find_matches(locals, scores, options);
}
void RadixTree::dump(IndexSink& sink) const {
  impl_->dump(sink);
}
IndexSizes RadixTree::sizes() const {
  return impl_->sizes();
}
IndexCounters RadixTree::counters() const {
  return impl_->counters();
}

}  // namespace ashlar::index
