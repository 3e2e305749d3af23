#include "block/sequence_text.h"

#include <algorithm>
#include <array>
#include <string>

namespace ashlar::block::detail {

Result<SequenceText> SequenceText::create(std::vector<tokens::Token> tokens,
                                          std::vector<tokens::SequenceHash> hashes,
                                          std::shared_ptr<const TextRules> rules) {
  const std::size_t full = tokens.size() / rules->block_size;
  if (full > std::size_t{tokens::SequenceHash::kMaxPosition} + 1) {
    return make_error(ErrorCode::kInvalidArgument, "a sequence of %zu blocks; at most %zu have a position",
                      full, std::size_t{tokens::SequenceHash::kMaxPosition} + 1);
  }
  if (hashes.size() > full) {
    return make_error(ErrorCode::kInvalidArgument, "%zu hashes for %zu full blocks", hashes.size(), full);
  }
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i].position() != i || hashes[i].is_keyed() != rules->hasher.scheme().is_keyed()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "hash %zu is %s, which is not a name of scheme %s at position %zu", i,
                        hashes[i].to_string().c_str(), std::string(rules->hasher.scheme().name()).c_str(), i);
    }
  }
  return SequenceText{std::move(tokens), std::move(hashes), std::move(rules)};
}

std::span<const tokens::SequenceHash> SequenceText::names(std::size_t count) {
  const std::size_t size = rules->block_size;
  constexpr std::size_t kChunk = 64;
  count = std::min(count, std::size_t{tokens::SequenceHash::kMaxPosition} + 1);
  if (hashes.size() < count) hashes.reserve(count);
  while (hashes.size() < count) {
    const std::optional<tokens::SequenceHash> parent =
        hashes.empty() ? std::nullopt : std::optional(hashes.back());
    const std::size_t from = hashes.size();
    if (rules->runs.empty()) {
      std::array<tokens::BlockHashes, kChunk> out;
      const std::size_t n = std::min(kChunk, count - from);
      const auto hashed = rules->hasher.hash_blocks(parent, std::span(tokens).subspan(from * size, n * size),
                                                    rules->block_size, out);
      if (!hashed) break;
      hashes.resize(from + n);
      for (std::size_t i = 0; i < n; ++i) hashes[from + i] = out[i].sequence;
    } else {
      const auto hashed = rules->hasher.hash_block(parent, block(from), rules->runs);
      if (!hashed) break;
      hashes.push_back(hashed->sequence);
    }
  }
  return std::span(hashes).first(std::min(count, hashes.size()));
}

BlockIdentity SequenceText::identity(std::size_t i, std::uint32_t group) const {
  return {.hash = hashes[i].in_group(group),
          .parent = i == 0 ? std::nullopt : std::optional(hashes[i - 1].in_group(group)),
          .root = hashes[0].in_group(group),
          .local = rules->hasher.local_hash(block(i), std::uint64_t{i} * rules->block_size, rules->runs),
          .group = static_cast<std::uint16_t>(group)};
}

}  // namespace ashlar::block::detail
