// Workload: the file that all peer programs read (workload.md), hashed into token blocks; and the fingerprint
// by which two programs compare what they found.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::peers {

// Numbers of chains, [begin, end).
struct ChainRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const noexcept { return end - begin; }
};

struct Workload {
  std::uint32_t block_size = 0;
  std::size_t chain_length = 0;
  std::size_t pool = 0;
  // The blocks of each chain, and their hashes.
  std::vector<std::vector<tokens::TokenBlock>> chains;
  std::vector<std::vector<tokens::SequenceHash>> hashes;

  // Errors: kIo when the file cannot be read, kInvalidArgument when it breaks the rules of workload.md.
  static Result<Workload> read(const std::string& path);

  std::size_t chains_in_pool() const noexcept { return pool / chain_length; }
  ChainRange all() const noexcept { return {0, chains.size()}; }
  ChainRange resident() const noexcept;
  ChainRange churn() const noexcept { return {resident().end, absent().begin}; }
  ChainRange absent() const noexcept;
};

// A fingerprint of hashes and their order.
class Fingerprint {
 public:
  // Adds the hash that stands at `index` of a list.
  void add(std::size_t index, const tokens::SequenceHash& hash) noexcept {
    const std::uint64_t folded = hash.hi() * 0x9E3779B97F4A7C15u ^ hash.lo();
    ++count_;
    sum_ += folded * (2 * std::uint64_t{index} + 1);
  }
  // "count:sum", the sum in hex.
  std::string to_string() const;

 private:
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
};

}  // namespace ashlar::peers
