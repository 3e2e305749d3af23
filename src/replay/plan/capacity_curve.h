// CapacityCurve: hits of an LRU cache at every size, from one pass over a trace.
//
// Requests come in the order of their arrival. All blocks of a prompt are looked for at once, and are then
// used from the last to the first, as managers release them: the first is kept longest. So prefix_hits(n) is
// what simulate() finds with "lru" at one worker with n blocks. Two kinds of hits are told:
//   block    the block is there
//   prefix   it is there, and so is every block before it in the prompt: what a prefix cache can use
// Exact curves count every access. Sampled ones (SHARDS; Waldspurger et al., FAST 2015) follow the blocks
// whose hash falls below a threshold, and scale distances by the rate; `error` is three standard errors of
// the block curve, estimated from eight parts of the sample, and never below half a point. Where the name of
// a block stands for everything before it, prefix hits are block hits, and have their error: what is kept of
// a prompt is never without its beginning. Where a sampled block stands behind another one than before, the
// sampled prefix curve is an estimate without a stated error.
//
// Thread safety: thread-compatible; const after build().
// Complexity:    O(log blocks) per followed block; the curve has one entry per distinct distance. Memory
//                while it is built: 24 bytes per request, 24 per followed access, 50 per followed block and
//                100 more where it is sampled; blocks that are not followed are not kept.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/replay/trace_table.h"

namespace ashlar::replay {

class CapacityCurve {
 public:
  struct Options {
    double rate = 1;  // of blocks that are followed; 1: exact
  };
  // Reads everything that is left of the trace. Errors: those of the source; kInvalidArgument: a rate that is
  // not above 0 and at most 1, or a trace that names no blocks; kCancelled: `progress` returned false.
  static Result<CapacityCurve> build(TraceSource& source, const Options& options,
                                     const TraceTable::Progress& progress = {});
  static Result<CapacityCurve> build(TraceSource& source) { return build(source, Options()); }

  // error() is of prefix_hits() as well.
  bool has_prefix_error() const noexcept { return has_prefix_error_; }
  bool is_exact() const noexcept { return rate_ >= 1; }
  double rate() const noexcept { return rate_; }
  std::uint64_t requests() const noexcept { return requests_; }
  std::uint64_t accesses() const noexcept { return accesses_; }  // blocks that requests name
  double distinct() const noexcept { return distinct_; }         // estimated where sampled
  std::uint32_t block_size() const noexcept { return block_size_; }
  std::uint64_t span_ms() const noexcept { return span_ms_; }
  std::uint64_t input_tokens() const noexcept { return input_tokens_; }

  // Hits of a cache of so many blocks, as a share of all accesses. 0 blocks: none.
  double block_hits(double blocks) const { return share(block_, blocks); }
  double prefix_hits(double blocks) const { return share(prefix_, blocks); }
  // Of block_hits() at that size; 0 where exact.
  double error(double blocks) const;
  // The smallest cache that reaches this share of the prefix hits of an endless one.
  double blocks_for(double share_of_most) const;

 private:
  static constexpr std::size_t kParts = 8;  // of the sample, for the error
  // Distances, sorted, with the number of accesses up to each.
  struct Hits {
    std::vector<std::uint64_t> distances;
    std::vector<std::uint64_t> up_to;
    double scale = 1;  // from distances of the sample to blocks
    double total = 0;  // accesses that the counts are of
    double bonus = 0;  // accesses that the sample has too few of (negative: too many)
  };

  static Hits sorted(std::vector<std::uint64_t> distances, double rate, double total);
  static double share(const Hits& hits, double blocks);

  double rate_ = 1;
  bool has_prefix_error_ = true;
  std::uint64_t requests_ = 0;
  std::uint64_t accesses_ = 0;
  double distinct_ = 0;
  std::uint32_t block_size_ = 0;
  std::uint64_t span_ms_ = 0;
  std::uint64_t input_tokens_ = 0;
  Hits block_;
  Hits prefix_;
  std::array<Hits, kParts> parts_;
};

}  // namespace ashlar::replay
