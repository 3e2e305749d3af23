// TraceTable: a whole trace in memory, in the order of arrival, with its blocks numbered from 0.
//
// Each block has a name that a manager can register: its position, and the block before it, are those of the
// request that names it first.
//
// Thread safety: immutable after load().
// Complexity:    load() is O(blocks), with a sort where requests are not in order. Memory: 4 bytes per block
//                that a request names, 40 per request, 24 per distinct block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/replay/trace.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::replay {

class TraceTable {
 public:
  struct Request {
    std::uint64_t arrival_ms = 0;  // since the first one
    std::uint64_t session = 0;     // 0: none
    std::uint64_t input_tokens = 0;
    std::uint64_t output_tokens = 0;
    std::uint64_t first = 0;  // of its blocks
    std::uint32_t count = 0;
    std::uint32_t block_size = 0;
  };

  // Called every 64 requests with the number so far; false stops, with kCancelled.
  using Progress = std::function<bool(std::uint64_t requests)>;
  // Reads everything that is left. Errors: those of the source; kInvalidArgument: there is no request;
  // kCapacity: more than 2^32 - 2 distinct blocks; kCancelled.
  static Result<TraceTable> load(TraceSource& source, const Progress& progress = {});

  std::span<const Request> requests() const noexcept { return requests_; }
  std::span<const std::uint32_t> blocks_of(const Request& request) const noexcept {
    return std::span(blocks_).subspan(request.first, request.count);
  }
  // Blocks that requests name, and different ones among them.
  std::size_t named() const noexcept { return blocks_.size(); }
  std::size_t distinct() const noexcept { return hashes_.size(); }
  // Most blocks of one request.
  std::size_t longest() const noexcept { return longest_; }
  std::uint64_t input_tokens() const noexcept { return input_tokens_; }
  // Requests with a block that stood elsewhere before: its name does not stand for everything before it.
  std::uint64_t misplaced() const noexcept { return misplaced_; }
  // The time of the last arrival.
  std::uint64_t span_ms() const noexcept { return requests_.empty() ? 0 : requests_.back().arrival_ms; }
  const TraceFacts& facts() const noexcept { return facts_; }

  const tokens::SequenceHash& hash_of(std::uint32_t block) const { return hashes_[block]; }
  static std::uint32_t block_of(const tokens::SequenceHash& hash) noexcept {
    return static_cast<std::uint32_t>(hash.chain() - 1);
  }

 private:
  TraceTable() = default;

  std::vector<Request> requests_;
  std::vector<std::uint32_t> blocks_;
  std::vector<tokens::SequenceHash> hashes_;
  TraceFacts facts_;
  std::size_t longest_ = 0;
  std::uint64_t input_tokens_ = 0;
  std::uint64_t misplaced_ = 0;
};

}  // namespace ashlar::replay
