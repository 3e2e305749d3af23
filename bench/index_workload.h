// IndexWorkload: what a routing index is fed and asked in a benchmark; one file format for all programs
// (peers/index_workload.md).
//
// A workload has sequences of blocks, each on one worker. The resident ones are stored first; the added ones
// take turns with the first half of them in the churn. Events and queries are lists of references into the
// sequences, so that every program does exactly the same in the same order. All removals are leaf first: a
// block leaves a worker after the blocks behind it, and only when no other sequence of that worker needs it
// any more.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/base/result.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/tokens/token.h"

namespace ashlar::bench {

// SplitMix64: how workloads draw hashes and how fingerprints mix.
constexpr std::uint64_t mix(std::uint64_t z) noexcept {
  return spread_bits(z + 0x9E3779B97F4A7C15u);
}

// Parameters of a generated workload. Sequence s is on worker s mod workers; its first `prefix` blocks are
// one of `prompts` prompts, the others its own.
struct IndexLoad {
  std::string name = "shared25";
  std::uint32_t sequences = 976;
  std::uint32_t added = 488;
  std::uint32_t depth = 1024;
  std::uint32_t workers = 128;
  std::uint32_t prefix = 256;
  std::uint32_t prompts = 4;

  // shared25: a quarter of each sequence is one of 4 prompts. disjoint: nothing is shared. broad: every
  // sequence is one of 8 prompts. Errors: kInvalidArgument for another name.
  static Result<IndexLoad> named(std::string_view name);
};

inline constexpr std::uint32_t kEventSizes[] = {1024, 16};

// Blocks [begin, end) of a sequence are stored, or removed from the last to the first.
struct IndexEvent {
  enum Kind : std::uint32_t { kStore = 0, kRemove = 1 };
  Kind kind;
  std::uint32_t sequence;
  std::uint32_t begin;
  std::uint32_t end;

  std::size_t blocks() const noexcept { return end - begin; }
};

// The first `keep` hashes of a sequence, then hashes that nothing else has, up to the depth.
struct IndexQuery {
  std::uint32_t sequence;
  std::uint32_t keep;
  std::uint64_t salt;
};

// The lists of a workload. Those of events exist once per event size.
inline constexpr std::string_view kStores = "store";                  // the resident sequences, in order
inline constexpr std::string_view kTailRemovals = "remove_tail";      // sequence by sequence, from the back
inline constexpr std::string_view kRandomRemovals = "remove_random";  // always the end of a random sequence
inline constexpr std::string_view kChurn =
    "churn";  // store one sequence, remove another, until all is as at the start
inline constexpr std::string_view kHits = "hit";             // whole resident sequences
inline constexpr std::string_view kPartialHits = "partial";  // their first halves
inline constexpr std::string_view kMisses = "miss";          // nothing that is stored
// For readers beside the churn: half hits and a quarter partial hits of sequences that stay, a quarter of
// others.
inline constexpr std::string_view kMixed = "mixed";

struct IndexWorkload {
  std::uint32_t workers = 0;
  std::uint32_t depth = 0;
  std::uint32_t resident = 0;
  std::uint32_t added = 0;
  std::uint64_t pairs = 0;     // distinct (worker, block) of the resident sequences
  std::uint64_t contents = 0;  // distinct blocks of them
  std::vector<std::uint64_t> worker_of;
  // Sequence after sequence, `depth` each.
  std::vector<tokens::LocalHash> locals;
  std::vector<events::BlockName> names;
  std::map<std::string, std::vector<IndexEvent>, std::less<>> events;
  std::map<std::string, std::vector<IndexQuery>, std::less<>> queries;

  static IndexWorkload generate(const IndexLoad& load,
                                std::span<const std::uint32_t> event_sizes = kEventSizes);
  // Errors: kIo when the file cannot be written or read, kInvalidArgument when it breaks the rules of its
  // format.
  Result<void> write(const std::string& path) const;
  static Result<IndexWorkload> read(const std::string& path);

  std::size_t sequences() const noexcept { return worker_of.size(); }
  // Sequences below this number come and go in the churn; the other resident ones stay.
  std::uint32_t first_staying() const noexcept { return resident / 2; }
  bool stays(std::uint32_t sequence) const noexcept {
    return sequence >= first_staying() && sequence < resident;
  }
  // Requires: the list exists.
  const std::vector<IndexEvent>& events_of(std::string_view list, std::uint32_t event_size) const;
  const std::vector<IndexQuery>& queries_of(std::string_view list) const;
  std::span<const tokens::LocalHash> locals_of(std::uint32_t sequence) const noexcept {
    return std::span(locals).subspan(std::size_t{sequence} * depth, depth);
  }
  // Writes the hashes of a query. Requires: out has `depth` elements.
  void expand(const IndexQuery& query, std::span<tokens::LocalHash> out) const;
};

std::size_t blocks_in(std::span<const IndexEvent> events);

}  // namespace ashlar::bench
