// The routing tower alone: workers report what they hold, through an index by type and one by name.
#include <cstdint>
#include <vector>

#include "ashlar/index/flash_index.h"
#include "ashlar/index/make_index.h"

namespace {

using namespace ashlar;  // NOLINT(google-build-using-namespace)

// Two workers hold three and one blocks of one chain. Whether a query finds that.
template <class Index>
bool finds_what_was_stored(Index& router) {
  const std::vector<index::LocalHash> chain = {index::LocalHash(11), index::LocalHash(12),
                                               index::LocalHash(13)};
  for (std::uint32_t id : {1U, 2U}) {
    std::vector<index::StoredBlock> blocks;
    for (std::size_t i = 0; i < (id == 1 ? 3 : 1); ++i)
      blocks.push_back({chain[i], index::BlockName(100 * id + i)});
    index::BlocksStored event;
    event.worker = {index::WorkerId(id), 0};
    event.blocks = blocks;
    if (router.store(event) != index::StoreVerdict::kApplied) return false;
  }
  index::MatchScores scores;
  router.find_matches(chain, scores);
  std::size_t depths = 0;
  scores.for_each([&](const index::Worker& worker, const index::Score& score) {
    depths += score.depth == (worker.id == index::WorkerId(1) ? 3U : 1U) ? 1 : 10;
  });
  return depths == 2;
}

}  // namespace

int main() {
  index::FlashIndex flash;
  const auto positional = index::make_index({.kind = "positional"}).value();
  return finds_what_was_stored(flash) && finds_what_was_stored(*positional) ? 0 : 1;
}
