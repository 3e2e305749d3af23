#include "ashlar/index/radix_tree.h"

#include "index/radix/basic_radix_tree.h"

namespace ashlar::index {

template <bool kShared>
RadixIndex<kShared>::RadixIndex() : tree_(std::make_unique<BasicRadixTree<kShared>>()) {}
template <bool kShared>
RadixIndex<kShared>::~RadixIndex() = default;

template <bool kShared>
StoreVerdict RadixIndex<kShared>::store(const BlocksStored& event) {
  return tree_->store(event);
}
template <bool kShared>
std::size_t RadixIndex<kShared>::remove(const Worker& worker, StorageTier tier,
                                        std::span<const BlockName> names) {
  return tree_->remove(worker, tier, names);
}
template <bool kShared>
void RadixIndex<kShared>::clear(const Worker& worker) {
  tree_->clear(worker);
}
template <bool kShared>
void RadixIndex<kShared>::remove_worker(WorkerId worker) {
  tree_->remove_worker(worker);
}
template <bool kShared>
bool RadixIndex<kShared>::presence(const Worker& worker, std::span<const BlockName> names,
                                   std::span<BlockPresence> out) const {
  tree_->presence(worker, names, out);
  return true;
}
template <bool kShared>
bool RadixIndex<kShared>::list(const Worker& worker, std::vector<BlockPresence>& out) const {
  tree_->list(worker, out);
  return true;
}

template <bool kShared>
void RadixIndex<kShared>::find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                                       const FindOptions& options) const {
  tree_->find_matches(locals, scores, options);
}
template <bool kShared>
void RadixIndex<kShared>::dump(IndexSink& sink) const {
  tree_->dump(sink);
}
template <bool kShared>
IndexSizes RadixIndex<kShared>::sizes() const {
  return tree_->sizes();
}
template <bool kShared>
IndexCounters RadixIndex<kShared>::counters() const {
  return tree_->counters();
}

template class RadixIndex<false>;
template class RadixIndex<true>;

}  // namespace ashlar::index
