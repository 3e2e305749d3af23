// Blocks by the umbrella header alone: allocated, completed, registered, found by the next prompt, evicted.
#include "ashlar/ashlar.h"

namespace {

using ashlar::block::BlockManager;
using ashlar::block::BlockRegistry;
using ashlar::events::G1;
using ashlar::tokens::TokenSequence;

bool store(BlockManager<G1>& manager, const TokenSequence& prompt) {
  auto empty = manager.allocate_blocks(prompt.blocks().size());
  if (!empty) return false;
  ashlar::block::BlockList<ashlar::block::CompleteBlock<G1>> complete;
  for (std::size_t i = 0; i < empty->size(); ++i) {
    auto done =
        std::move((*empty)[i]).complete(prompt.blocks()[i], ashlar::block::KvReady::asserted_by_caller());
    if (!done) return false;
    complete.push_back(*std::move(done));
  }
  const auto registered = manager.register_blocks(std::move(complete));
  return registered && registered->size() == prompt.blocks().size() &&
         manager.status().active == prompt.blocks().size();
}

bool use_blocks() {
  const auto registry = BlockRegistry::create();
  if (!registry) return false;
  auto manager =
      BlockManager<G1>::builder().block_count(4).block_size(2).registry(*registry).with_lru_backend().build();
  if (!manager) return false;
  const std::vector<std::uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto prompt = TokenSequence::create(std::span(tokens).first(6), 2);
  const auto longer = TokenSequence::create(std::span(tokens), 2);
  if (!prompt || !longer || !store(*manager, *prompt)) return false;

  const auto names = longer->sequence_hashes();
  {
    const auto found = manager->match_blocks(names);
    if (found.size() != 3 || found[2].sequence_hash() != names[2] || registry->registered_count() != 3)
      return false;
    if (manager->match_blocks(longer->blocks()).size() != 3) return false;
    const auto refused = manager->allocate_blocks(2);
    if (refused || refused.error().reason != ashlar::block::AllocationRefusal::Reason::kNoRoom) return false;
  }
  if (manager->status().inactive != 3) return false;
  const auto evicting = manager->allocate_blocks_with_evictions(4);
  return evicting && evicting->evicted.size() == 3 && manager->match_blocks(names).empty() &&
         registry->registered_count() == 0;
}

}  // namespace

int main() {
  return use_blocks() ? 0 : 1;
}
