// The routing tower alone: workers report what they hold, through indexes by type and by name, as calls and
// as events on the wire.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/events/rolling_events.h"
#include "ashlar/events/router_event_json.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/approximate_index.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/make_index.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/index/use_window.h"
#include "ashlar/tokens/engine_hash.h"

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

// A router's JSON becomes events, and the events calls of an index that several threads may share.
bool feeds_an_index_from_json() {
  std::string json;
  events::append_router_event({.worker = {events::WorkerId(7), 0},
                               .tier = events::TierId(0),
                               .start_position = 0,
                               .blocks = {{index::LocalHash(11), index::BlockName(101)}}},
                              json);
  events::RouterEvent read;
  std::vector<events::KvEvent> stored;
  if (!events::decode_router_event(json, read) || !events::append_kv_events(read, stored)) return false;
  index::LockedIndex<index::RadixTree> shared;
  index::SinkOf<index::LockedIndex<index::RadixTree>> sink(shared);
  feed::IndexFeeder feeder(sink, events::WorkerId(7));
  feeder.apply(0, stored);
  index::MatchScores scores;
  shared.find_matches(std::vector{index::LocalHash(11)}, scores);
  return scores.longest() == 1;
}

// A routing decision counts before the worker reports anything, and its use is counted.
bool predicts_and_counts_uses() {
  const std::vector<index::LocalHash> chain = {index::LocalHash(21), index::LocalHash(22)};
  auto router = index::ApproximateIndex<index::FlashIndex>::create({}).value();
  if (router.predict({index::WorkerId(3), 0}, chain) != index::StoreVerdict::kApplied) return false;
  index::MatchScores scores;
  router.find_matches(chain, scores);
  const auto window = index::UseWindow::create().value();
  index::UseWindow::Recorder uses = window->recorder();
  if (!uses.record(chain, scores.longest())) return false;
  window->collect(Clock::real().now());
  std::vector<std::uint32_t> counts(chain.size());
  return window->recent_uses(chain, counts) == 2 && counts[1] == 1;
}

// The names that engines and other caches give to the same tokens.
bool names_blocks_as_others_do() {
  const std::vector<tokens::Token> prompt(32, tokens::Token(5));
  const auto rolling = events::rolling_hashes(prompt, 16).value();
  const auto hasher = tokens::VllmHasher::create({.hash_seed = "0"}).value();
  const auto first = hasher.hash_block({}, std::span(prompt).first(16)).value();
  const auto second = hasher.hash_block(first, std::span(prompt).last(16)).value();
  return rolling.size() == 2 && rolling[0] != rolling[1] &&
         tokens::external_name(first) != tokens::external_name(second);
}

}  // namespace

int main() {
  index::FlashIndex flash;
  const auto positional = index::make_index({.kind = "positional"}).value();
  if (!finds_what_was_stored(flash) || !finds_what_was_stored(*positional)) return 1;
  return feeds_an_index_from_json() && predicts_and_counts_uses() && names_blocks_as_others_do() ? 0 : 1;
}
