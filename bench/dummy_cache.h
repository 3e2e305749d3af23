// DummyCache: the blocks of a dummy worker's prompts, published as KV events of vLLM are. It holds so many at
// a time; beyond that the least recently used ones are removed.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ashlar::bench {

class DummyCache {
 public:
  static constexpr std::uint32_t kBlockSize = 16;
  static constexpr std::size_t kMostBlocks = 200'000;

  // Whether this build can publish.
  static bool is_there() noexcept;
  // Publishes on these ports of loopback.
  static std::unique_ptr<DummyCache> create(std::uint16_t events, std::uint16_t replay);
  virtual ~DummyCache() = default;

  // A request with these tokens ran, and so many at their end were its answer: the whole blocks of all but
  // the last token are stored. Returns how many tokens of the prompt were there before.
  virtual std::size_t run(std::span<const std::uint32_t> tokens, std::size_t answer) = 0;
};

}  // namespace ashlar::bench
