#include "index/common/call_batch.h"

namespace ashlar::index::detail {

namespace {

template <class T>
void clear_array(std::vector<T>& array, std::size_t room) noexcept {
  if (array.capacity() > room) {
    std::vector<T>().swap(array);
  } else {
    array.clear();
  }
}

}  // namespace

void CallBatch::apply(IndexSink& target) const {
  std::span<const StoredBlock> blocks = blocks_;
  std::span<const BlockName> names = names_;
  for (const CallHead& head : heads_) {
    switch (head.kind) {
      case CallHead::Kind::kStore:
        // The index counts what it refuses.
        (void)target.store({head.worker, head.tier,
                            head.has_parent ? std::optional(head.parent) : std::nullopt,
                            head.has_position ? std::optional(head.start_position) : std::nullopt,
                            blocks.first(head.count)});
        blocks = blocks.subspan(head.count);
        break;
      case CallHead::Kind::kRemove:
        (void)target.remove(head.worker, head.tier, names.first(head.count));
        names = names.subspan(head.count);
        break;
      case CallHead::Kind::kClear:
        target.clear(head.worker);
        break;
    }
  }
  ASHLAR_DCHECK(blocks.empty() && names.empty(), "%zu blocks and %zu names belong to no call", blocks.size(),
                names.size());
}

void CallBatch::clear(std::size_t room) noexcept {
  clear_array(heads_, room);
  clear_array(blocks_, room);
  clear_array(names_, room);
}

}  // namespace ashlar::index::detail
