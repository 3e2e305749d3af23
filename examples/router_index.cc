// Finds the worker that holds most of a request's prefix: three workers report their blocks, a router asks.
//
// Every worker names its blocks as it likes. The index identifies contents by the local hashes of their
// tokens.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/token_sequence.h"

namespace {

using namespace ashlar;
using index::BlockName;
using index::LocalHash;
using index::StorageTier;
using index::Worker;
using index::WorkerId;

constexpr std::uint32_t kBlockSize = 16;

constexpr Worker kOne{WorkerId(1), 0};
constexpr Worker kTwo{WorkerId(2), 0};
constexpr Worker kThree{WorkerId(3), 0};

// Eight blocks: four that every request begins with, and four of its own question.
std::vector<LocalHash> request(std::uint32_t question) {
  std::vector<std::uint32_t> ids;
  ids.reserve(std::size_t{8} * kBlockSize);
  for (std::uint32_t i = 0; i < 4 * kBlockSize; ++i) ids.push_back(i);
  for (std::uint32_t i = 0; i < 4 * kBlockSize; ++i) ids.push_back(1000 * question + i);
  const auto sequence = tokens::TokenSequence::create(ids, kBlockSize);
  if (!sequence) std::abort();
  std::vector<LocalHash> locals;
  for (const tokens::TokenBlock& block : sequence->blocks()) locals.push_back(block.local_hash());
  return locals;
}

// The worker's name of its block at a position. Here each worker has one sequence, so that is enough.
BlockName name_of(const Worker& worker, std::size_t position) {
  return BlockName(1000 * worker.id.value() + position);
}

// The worker reports that it holds blocks [from, to) of the request in a tier.
void store(index::FlashIndex& router, const Worker& worker, StorageTier tier,
           const std::vector<LocalHash>& locals, std::size_t from, std::size_t to) {
  std::vector<index::StoredBlock> blocks;
  for (std::size_t i = from; i < to; ++i) blocks.push_back({locals[i], name_of(worker, i)});
  index::BlocksStored event;
  event.worker = worker;
  event.tier = tier;
  if (from > 0) event.parent = name_of(worker, from - 1);
  event.blocks = blocks;
  if (router.store(event) != index::StoreVerdict::kApplied) {
    std::fprintf(stderr, "router_index: a store was refused\n");
    std::abort();
  }
}

void ask(const index::FlashIndex& router, const char* when, const std::vector<LocalHash>& locals) {
  index::MatchScores scores;
  router.find_matches(locals, scores);
  std::printf("%s\n", when);
  scores.for_each([&](const Worker& worker, const index::Score& score) {
    std::printf("  worker %u: %u of %zu blocks (%u device, %u host), %u without leaving the device\n",
                static_cast<unsigned>(worker.id.value()), score.depth, locals.size(),
                score.blocks[static_cast<std::size_t>(StorageTier::kDevice)],
                score.blocks[static_cast<std::size_t>(StorageTier::kHost)], score.device_depth);
  });
}

}  // namespace

int main() {
  const std::vector<LocalHash> first = request(1);
  const std::vector<LocalHash> second = request(2);
  const std::vector<LocalHash> third = request(3);

  index::FlashIndex router;
  store(router, kOne, StorageTier::kDevice, first, 0, 8);
  store(router, kTwo, StorageTier::kDevice, second, 0, 8);
  store(router, kThree, StorageTier::kDevice, first, 0, 4);
  store(router, kThree, StorageTier::kHost, first, 4, 7);  // after its own fourth block
  ask(router, "the first request again", first);
  ask(router, "a third question: only the beginning is known", third);

  const BlockName evicted[] = {name_of(kOne, 2)};
  router.remove(kOne, StorageTier::kDevice, evicted);
  ask(router, "worker 1 has evicted its third block", first);

  store(router, kOne, StorageTier::kDevice, first, 2, 3);
  ask(router, "it is back, and so is what lies behind it", first);

  router.clear(kThree);
  ask(router, "worker 3 has started anew", first);
  return 0;
}
