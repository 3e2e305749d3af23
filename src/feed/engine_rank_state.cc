// What a rank of an engine holds, as bytes.
//
//   doubt (1), device stores carry extra keys (1: 0 unknown, 1 no, 2 yes)
//   groups:  count (4), per group number (4), block size (4), needs the whole prefix (1, as above)
//   salts:   count (4), per salt LoRA name (4 + bytes), seed (8)
//   roots:   count (4), hashes (16 each)
//   blocks:  count (4), parents before children: name (8), local hash (8), hash (16), root (4), salt (4),
//            group (4), flags (1), parent and its name (16 + 8, if it has one), tiers (1, a bit each), their
//            counts (4 each)
//
// Little-endian. A cache salt is a secret of its tenant: its seed stands for it.
#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "feed/engine_rank.h"

namespace ashlar::feed {

using events::KvEvent;

namespace {

enum BlockFlag : std::uint8_t { kHasParent = 1, kHasExtras = 2, kAmbiguous = 4, kIndexed = 8 };

std::uint8_t maybe_code(const std::optional<bool>& value) {
  return !value ? 0 : *value ? 2 : 1;
}
std::optional<bool> maybe_of(std::uint8_t code) {
  if (code == 0) return std::nullopt;
  return code == 2;
}

void put_hash(ByteWriter& out, const tokens::SequenceHash& hash) {
  out.put(hash.hi());
  out.put(hash.lo());
}
tokens::SequenceHash get_hash(ByteReader& in) {
  const auto hi = in.get<std::uint64_t>();
  return tokens::SequenceHash::from_bits(hi, in.get<std::uint64_t>());
}

using Held = std::pair<EngineKey, const EngineBlock*>;

void parents_first(std::vector<Held>& blocks) {
  std::ranges::sort(blocks, [](const Held& a, const Held& b) {
    if (const auto by = a.second->hash <=> b.second->hash; by != 0) return by < 0;
    return a.first < b.first;
  });
}

Error unreadable() {
  return {ErrorCode::kCorruption, "the state of an engine's blocks cannot be read"};
}

}  // namespace

Result<void> EngineRank::save(ByteWriter& state) const {
  if (!waiting_.empty())
    return make_error(ErrorCode::kNotReady, "%zu blocks wait for their parents or tokens", waiting_.size());
  std::vector<Held> blocks;
  std::map<std::pair<std::string, std::uint64_t>, std::uint32_t> salts;
  std::unordered_map<tokens::SequenceHash, std::uint32_t> roots;
  std::vector<tokens::SequenceHash> root_list;
  bool has_unknown_salt = false;
  blocks_.for_each([&](const EngineKey& key, const EngineBlock& block) {
    blocks.emplace_back(key, &block);
    const tokens::Salt& salt = blocks_.sequence(block.sequence).hasher.salt();
    salts.try_emplace({salt.lora(), salt.seed()}, 0);
    has_unknown_salt |= hasher_.scheme().kind() != tokens::HashScheme::Kind::kXxh3Chain &&
                        salt != tokens::Salt(salt.lora(), hasher_.base().tenant());
  });
  if (has_unknown_salt)
    return Error(ErrorCode::kUnsupported, "blocks have a cache salt of their own, which is told to nobody");
  parents_first(blocks);
  for (const auto& [key, block] : blocks)
    if (const tokens::SequenceHash& root = blocks_.sequence(block->sequence).root;
        roots.try_emplace(root, static_cast<std::uint32_t>(root_list.size())).second)
      root_list.push_back(root);

  state.put(static_cast<std::uint8_t>(doubt_));
  state.put(maybe_code(publishes_keys_));
  state.put(static_cast<std::uint32_t>(groups_.size()));
  for (const auto& [number, group] : std::map<std::uint32_t, Group>(groups_.begin(), groups_.end())) {
    state.put(number);
    state.put(group.block_size);
    state.put(maybe_code(group.whole_prefix));
  }
  state.put(static_cast<std::uint32_t>(salts.size()));
  std::uint32_t salt_number = 0;
  for (auto& [salt, number] : salts) {
    number = salt_number++;
    state.put(static_cast<std::uint32_t>(salt.first.size()));
    state.put_bytes(std::as_bytes(std::span(salt.first)));
    state.put(salt.second);
  }
  state.put(static_cast<std::uint32_t>(root_list.size()));
  for (const tokens::SequenceHash& root : root_list) put_hash(state, root);
  state.put(static_cast<std::uint32_t>(blocks.size()));
  for (const auto& [key, block] : blocks) {
    const EngineSequence& shared = blocks_.sequence(block->sequence);
    const tokens::Salt& salt = shared.hasher.salt();
    state.put(key.name.value());
    state.put(block->local.value());
    put_hash(state, block->hash);
    state.put(roots.at(shared.root));
    state.put(salts.at({salt.lora(), salt.seed()}));
    state.put(key.group);
    state.put(static_cast<std::uint8_t>(
        (block->has_parent ? kHasParent : 0) | (block->has_extras ? kHasExtras : 0) |
        (block->ambiguous ? kAmbiguous : 0) | (blocks_.sequence(block->sequence).indexed ? kIndexed : 0)));
    if (block->has_parent) {
      put_hash(state, block->parent);
      state.put(block->parent_name.value());
    }
    state.put(static_cast<std::uint8_t>(block->tiers));
    for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier)
      if (block->in_tier(tier)) state.put(tier == events::G1::kIndex ? std::uint32_t{block->copies} : 1u);
  }
  return {};
}

Result<void> EngineRank::load(ByteReader& state) {
  ASHLAR_CHECK(blocks_.empty() && groups_.empty(), "a rank is loaded before it applies anything");
  doubt_ = state.get<std::uint8_t>() != 0;
  publishes_keys_ = maybe_of(state.get<std::uint8_t>());
  const auto groups = state.get<std::uint32_t>();
  if (groups > max_groups_) return unreadable();
  for (std::uint32_t i = 0; i < groups && state.ok(); ++i) {
    const auto number = state.get<std::uint32_t>();
    const auto block_size = state.get<std::uint32_t>();
    if (block_size_ != 0 && block_size != 0 && block_size != block_size_)
      return make_error(ErrorCode::kInvalidArgument, "its blocks have %u tokens, %u are expected", block_size,
                        block_size_);
    groups_[number] = {.block_size = block_size, .whole_prefix = maybe_of(state.get<std::uint8_t>())};
  }
  std::vector<tokens::SequenceHasher> hashers;
  for (auto left = state.get<std::uint32_t>(); left > 0 && state.ok(); --left) {
    const auto length = state.get<std::uint32_t>();
    if (length > max_salt_bytes_) return unreadable();
    const std::span<const std::byte> lora = state.get_bytes(length);
    const std::string name(reinterpret_cast<const char*>(lora.data()), lora.size());
    const auto seed = state.get<std::uint64_t>();
    // The salt that is configured has its text, which the hashes of images may need.
    tokens::Salt salt(name, hasher_.base().tenant());
    if (salt.seed() != seed) salt = tokens::Salt::of_seed(name, seed);
    hashers.emplace_back(hasher_.scheme(), salt);
  }
  std::vector<tokens::SequenceHash> roots;
  for (auto left = state.get<std::uint32_t>(); left > 0 && state.ok(); --left)
    roots.push_back(get_hash(state));
  // By root, salt, group, and whether an index needs them.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool>, std::uint32_t> sequences;
  for (auto left = state.get<std::uint32_t>(); left > 0 && state.ok(); --left) {
    EngineBlock block;
    block.name = events::BlockName(state.get<std::uint64_t>());
    block.local = tokens::LocalHash(state.get<std::uint64_t>());
    block.hash = get_hash(state);
    const auto root = state.get<std::uint32_t>();
    const auto salt = state.get<std::uint32_t>();
    const auto group = state.get<std::uint32_t>();
    const auto flags = state.get<std::uint8_t>();
    block.has_parent = (flags & kHasParent) != 0;
    block.has_extras = (flags & kHasExtras) != 0;
    block.ambiguous = (flags & kAmbiguous) != 0;
    const bool is_indexed = (flags & kIndexed) != 0;
    if (block.has_parent) {
      block.parent = get_hash(state);
      block.parent_name = events::BlockName(state.get<std::uint64_t>());
    }
    const auto mask = state.get<std::uint8_t>();
    for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier) {
      if ((mask >> tier & 1) == 0) continue;
      const auto copies = state.get<std::uint32_t>();
      if (copies == 0) continue;
      block.set_tier(tier, true);
      if (tier == events::G1::kIndex)
        block.copies = static_cast<std::uint16_t>(std::min<std::uint32_t>(copies, EngineBlock::kMaxCopies));
    }
    if (!state.ok() || block.tiers == 0 || root >= roots.size() || salt >= hashers.size() ||
        group > kMaxGroup || !groups_.contains(group) || blocks_.find({group, block.name}) != nullptr)
      return unreadable();
    std::uint32_t& known = sequences[{root, salt, group, is_indexed}];
    known = blocks_.sequence(roots[root], hashers[salt], group, is_indexed, known);
    block.sequence = known;
    blocks_.add(block);
    present_ += static_cast<std::size_t>(std::popcount(block.tiers));
  }
  if (!state.ok()) return unreadable();
  return {};
}

void EngineRank::tell_all(const EngineRank* before, EngineIngestCounters& counters, ChangeOutput out) {
  if (before != nullptr) next_sequence_ = before->next_sequence_;
  std::vector<Held> blocks;
  blocks_.for_each([&](const EngineKey& key, const EngineBlock& block) { blocks.emplace_back(key, &block); });
  parents_first(blocks);
  counters.stored += present_;
  for (const auto& [key, block] : blocks)
    for (std::size_t tier = 0; tier < events::kStorageTiers; ++tier)
      if (block->in_tier(tier)) tell(events::KvEventKind::kStored, key, *block, tier, out);
}

}  // namespace ashlar::feed
