#include "block/sequence/sequence_text.h"

#include <algorithm>
#include <array>
#include <string>

namespace ashlar::block::detail {

Result<tokens::SequenceHasher> bind_hasher(const tokens::SequenceHasher& hasher,
                                           const std::optional<tokens::PrefixKey>& key) {
  // Under a keyed scheme the scheme's key makes the digests.
  if (!key || hasher.scheme().is_keyed() || hasher.prefix_key() == *key) return hasher;
  if (hasher.prefix_key() == tokens::PrefixKey::of_process())
    return tokens::SequenceHasher(hasher.scheme(), hasher.salt(), *key);
  return make_error(ErrorCode::kInvalidArgument,
                    "the hasher has prefix key %016llx and the manager %016llx; leave the hasher's out",
                    static_cast<unsigned long long>(hasher.prefix_key().fingerprint()),
                    static_cast<unsigned long long>(key->fingerprint()));
}

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
  return SequenceText{std::move(tokens), std::move(hashes), {}, std::move(rules)};
}

void SequenceText::reserve(std::size_t token_count, std::size_t blocks) {
  tokens.reserve(token_count);
  hashes.reserve(blocks);
  prefixes.reserve(blocks);
}

void SequenceText::forget_names_from(std::size_t first) {
  hashes.resize(std::min(hashes.size(), first));
  prefixes.resize(std::min(prefixes.size(), first));
}

std::span<const tokens::SequenceHash> SequenceText::names(std::size_t count) {
  const std::size_t size = rules->block_size;
  constexpr std::size_t kChunk = 64;
  constexpr std::size_t kPositions = std::size_t{tokens::SequenceHash::kMaxPosition} + 1;
  const std::size_t named = std::min(count, kPositions);
  // At least doubled, so that growing block by block stays linear.
  if (hashes.capacity() < named) hashes.reserve(std::max(named, 2 * hashes.capacity()));
  if (prefixes.capacity() < named) prefixes.reserve(std::max(named, 2 * prefixes.capacity()));
  std::array<tokens::BlockHashes, kChunk> out;
  while (prefixes.size() < named) {
    const std::size_t from = prefixes.size();
    const tokens::BlockBefore before =
        from == 0 ? tokens::BlockBefore() : tokens::BlockBefore(hashes[from - 1], prefixes[from - 1]);
    // Computed names chain from the last given one: no chunk crosses that boundary.
    std::size_t n = std::min(kChunk, named - from);
    if (from < hashes.size()) n = std::min(n, hashes.size() - from);
    if (rules->runs.empty()) {
      const auto text = std::span(tokens).subspan(from * size, n * size);
      rules->hasher.hash_blocks(before, text, rules->block_size, out).value();
    } else {
      n = 1;
      out[0] = rules->hasher.hash_block(before, block(from), rules->runs).value();
    }
    for (std::size_t i = 0; i < n; ++i) prefixes.push_back(out[i].prefix);
    for (std::size_t i = hashes.size() - from; i < n; ++i) hashes.push_back(out[i].sequence);
  }
  return std::span(hashes).first(named);
}

BlockIdentity SequenceText::identity(std::size_t i, std::uint32_t group) const {
  return {.hash = hashes[i].in_group(group),
          .parent = i == 0 ? std::nullopt : std::optional(hashes[i - 1].in_group(group)),
          .root = hashes[0].in_group(group),
          .local = local_hash(i),
          .group = static_cast<std::uint16_t>(group),
          .metadata = rules->metadata,
          .prefix = prefixes[i],
          .salt = rules->salt};
}

}  // namespace ashlar::block::detail
