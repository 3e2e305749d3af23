// State holds what a scheme and a salt need, computed once: the XXH3 secret for the seed (XXH3 otherwise
// derives it anew for every input above 240 bytes), the SipHash state after the key and the salt, and the
// prefix digest of the salt, with which every sequence begins. SequenceHasher checks positions, then asks
// State for the hashes of one block; whole prompts under the xxh3 chain go through the kernel's loop
// (xxh3_kernel_body.h).
#include "ashlar/tokens/sequence_hasher.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <string_view>
#include <utility>

#include "ashlar/base/check.h"
#include "tokens/block_encoding.h"
#include "tokens/siphash128.h"
#include "tokens/xxh3_kernel.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

// The tokens of a block and the runs that touch it; `runs` is empty for plain text.
struct BlockInput {
  std::span<const Token> tokens;
  std::uint64_t offset = 0;
  std::span<const MultimodalRun> runs;
};

// A string with its length, padded to whole words.
void update_padded(SipHash128& state, std::string_view text) noexcept {
  static constexpr std::array<std::uint8_t, 8> kZeros{};
  state.update_u64(text.size());
  state.update(text.data(), text.size());
  state.update(kZeros.data(), (8 - text.size() % 8) % 8);
}

PrefixDigest known_digest(const SipHash128::Digest& digest) noexcept {
  return PrefixDigest::known(digest.hi, digest.lo);
}

// The prefix digest before the first block: that of the salt's strings. Its halves are below 2^62, as the
// chain of prefix_kernel_body.h requires. The first word is larger than any counter of the key expansion.
PrefixDigest digest_of_salt(const PrefixKey& key, const Salt& salt) noexcept {
  SipHash128 state(key.bytes());
  state.update_u64(~std::uint64_t{0});
  update_padded(state, salt.lora());
  update_padded(state, salt.tenant());
  const SipHash128::Digest digest = state.digest();
  return PrefixDigest::known(digest.hi >> 2, digest.lo >> 2);
}

// Advances a prefix digest by one block. Frames go through a buffer of one chunk.
PrefixDigest absorb(const Xxh3Kernel& kernel, const PrefixSecret& secret, const PrefixDigest& before,
                    const BlockInput& block) noexcept {
  std::array<std::uint64_t, 2> words = {before.hi(), before.lo()};
  if (block.runs.empty()) {
    kernel.absorb(block.tokens.data(), block.tokens.size_bytes(), kPrefixText, secret, words.data());
  } else {
    std::array<std::uint8_t, kPrefixChunk> chunk;
    std::size_t filled = 0;
    const auto flush = [&] {
      kernel.absorb(chunk.data(), std::exchange(filled, 0), kPrefixFrames, secret, words.data());
    };
    encode_frames(block.tokens, block.offset, block.runs, [&](const void* bytes, std::size_t size) {
      const auto* from = static_cast<const std::uint8_t*>(bytes);
      while (size != 0) {
        if (filled == chunk.size()) flush();
        const std::size_t part = std::min(size, chunk.size() - filled);
        std::copy_n(from, part, chunk.data() + filled);
        filled += part;
        from += part;
        size -= part;
      }
    });
    flush();
  }
  return PrefixDigest::from_bits(words[0], words[1]);
}

// SipHash state after a salt. Blocks continue it with a kind word, so that no two kinds of message meet:
//   u64 kind | 16 bytes of the parent's name (kChild only) | tokens or frames
// where kind is the low byte, and bit 8 is set when the rest is frames.
class KeyedPrefix {
 public:
  KeyedPrefix(const HashScheme& scheme, const Salt& salt) noexcept : state_(scheme.key()) {
    update_padded(state_, salt.lora());
    update_padded(state_, salt.tenant());
  }

  std::uint64_t local(const BlockInput& block) const noexcept {
    return hash(Kind::kLocal, nullptr, block).lo;
  }
  SipHash128::Digest digest(const SequenceHash* parent, const BlockInput& block) const noexcept {
    return hash(parent == nullptr ? Kind::kRoot : Kind::kChild, parent, block);
  }

 private:
  enum class Kind : std::uint8_t { kLocal = 1, kRoot = 2, kChild = 3 };

  SipHash128::Digest hash(Kind kind, const SequenceHash* parent, const BlockInput& block) const noexcept {
    SipHash128 state = state_;
    state.update_u64(static_cast<std::uint64_t>(kind) | (block.runs.empty() ? 0 : 0x100));
    if (parent != nullptr) {
      const std::array<std::uint8_t, 16> name = parent->to_bytes();
      state.update(name.data(), name.size());
    }
    if (block.runs.empty()) {
      state.update(block.tokens.data(), block.tokens.size_bytes());
    } else {
      encode_frames(block.tokens, block.offset, block.runs,
                    [&state](const void* bytes, std::size_t size) { state.update(bytes, size); });
    }
    return state.digest();
  }

  SipHash128 state_;
};

// XXH64, seed 0, of `previous` (where there is one) and the block.
std::uint64_t xxh64_block(const std::uint64_t* previous, const BlockInput& block) noexcept {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  const auto sink = [&state](const void* bytes, std::size_t size) { XXH64_update(&state, bytes, size); };
  if (previous != nullptr) sink(previous, sizeof(*previous));
  if (block.runs.empty()) {
    encode_int64(block.tokens, sink);
  } else {
    encode_frames(block.tokens, block.offset, block.runs, sink);
  }
  return XXH64_digest(&state);
}

}  // namespace

struct SequenceHasher::State {
  State(const HashScheme& hash_scheme, const Salt& hash_salt, const PrefixKey& key)
      : scheme(hash_scheme),
        salt(hash_salt),
        prefix_key(key),
        prefix_start(digest_of_salt(key, salt)),
        seed(salt.seed()),
        kernel(xxh3_kernel()),
        keyed(scheme, salt),
        secret(derive_secret(salt.seed())) {}

  std::uint64_t local(const BlockInput& block) const noexcept {
    switch (scheme.kind()) {
      case HashScheme::Kind::kXxh3Chain:
        return xxh3_local(block);
      case HashScheme::Kind::kXxh64Int64:
        return xxh64_block(salt.empty() ? nullptr : &seed, block);
      case HashScheme::Kind::kKeyed128:
        break;
    }
    return keyed.local(block);
  }

  // The digest of the prefix before a block.
  PrefixDigest prefix_of(const BlockBefore& before) const noexcept {
    return before.name ? before.prefix : prefix_start;
  }

  // Requires: a position that a name can hold, and a parent of the same scheme.
  BlockHashes hash(std::uint32_t position, const BlockBefore& before, const BlockInput& block) const {
    const std::optional<SequenceHash>& parent = before.name;
    const std::uint64_t local_hash = local(block);
    const std::uint64_t previous = parent ? parent->chain() : 0;
    std::uint64_t chain = local_hash;
    switch (scheme.kind()) {
      case HashScheme::Kind::kXxh3Chain:
        if (parent) chain = xxh3_chain_step(previous, local_hash);
        break;
      case HashScheme::Kind::kXxh64Int64:
        if (parent) chain = xxh64_block(&previous, block);
        break;
      case HashScheme::Kind::kKeyed128: {
        const SipHash128::Digest digest = keyed.digest(parent ? &*parent : nullptr, block);
        return {LocalHash(local_hash), SequenceHash::make_keyed(position, digest.hi, digest.lo).value(),
                keyed_prefix(before, block, digest)};
      }
    }
    const PrefixDigest prefix = prefix_of(before);
    return {LocalHash(local_hash), SequenceHash::make(position, chain, previous).value(),
            prefix.is_known() ? absorb(kernel, prefix_key.secret(), prefix, block) : prefix};
  }

  // Under keyed128 a name has the bits of its digest. A block's prefix digest is the one its name is made
  // of, unless the name before it does not belong to its tokens, for example one given by a caller.
  PrefixDigest keyed_prefix(const BlockBefore& before, const BlockInput& block,
                            const SipHash128::Digest& digest) const noexcept {
    if (!before.name) return known_digest(digest);
    if (!before.prefix.is_known()) return {};
    const SequenceHash true_name =
        SequenceHash::make_keyed(before.name->position(), before.prefix.hi(), before.prefix.lo()).value();
    return known_digest(true_name == *before.name ? digest : keyed.digest(&true_name, block));
  }

  // The same for many blocks under the xxh3 chain.
  void hash_xxh3_blocks(std::uint32_t first, const std::optional<SequenceHash>& before, PrefixDigest prefix,
                        std::span<const Token> tokens, std::size_t block_size,
                        std::span<BlockHashes> out) const {
    // The kernel writes objects of this shape.
    static_assert(sizeof(BlockHashes) == sizeof(Xxh3BlockHashes) &&
                  std::is_trivially_copyable_v<BlockHashes>);
    const std::size_t count = tokens.size() / block_size;
    std::uint64_t previous = before ? before->chain() : 0;
    for (std::size_t done = 0; done < count;) {
      const std::uint64_t position = first + done;
      const SequenceHash name = SequenceHash::make(position, 0, 0).value();
      const unsigned position_bits = 8 * (name.mode() + 1);
      const std::size_t part =
          std::min<std::size_t>(count - done, (std::size_t{1} << position_bits) - position);
      const std::array<std::uint64_t, 2> words = {prefix.hi(), prefix.lo()};
      kernel.hash_blocks(tokens.data() + done * block_size, block_size * sizeof(Token), part, secret.data(),
                         seed, position == 0 ? nullptr : &previous, name.hi(), 62 - position_bits,
                         prefix_key.secret(), prefix.is_known() ? words.data() : nullptr, out.data() + done);
      done += part;
      previous = out[done - 1].sequence.chain();
      prefix = out[done - 1].prefix;
    }
  }

  const HashScheme scheme;
  const Salt salt;
  const PrefixKey prefix_key;
  const PrefixDigest prefix_start;
  const std::uint64_t seed;
  const Xxh3Kernel& kernel;
  const KeyedPrefix keyed;
  alignas(64) const std::array<std::uint8_t, kXxh3SecretSize> secret;

 private:
  static std::array<std::uint8_t, kXxh3SecretSize> derive_secret(std::uint64_t seed) noexcept {
    std::array<std::uint8_t, kXxh3SecretSize> secret;
    xxh3_derive_secret(seed, secret.data());
    return secret;
  }

  std::uint64_t xxh3_local(const BlockInput& block) const noexcept {
    if (block.runs.empty()) {
      return kernel.hash(block.tokens.data(), block.tokens.size_bytes(), secret.data(), seed);
    }
    XXH3_state_t stream;
    XXH3_INITSTATE(&stream);
    XXH3_64bits_reset_withSeed(&stream, seed);
    encode_frames(block.tokens, block.offset, block.runs, [&stream](const void* bytes, std::size_t size) {
      XXH3_64bits_update(&stream, bytes, size);
    });
    return XXH3_64bits_digest(&stream);
  }
};

SequenceHasher::SequenceHasher() {
  static const std::shared_ptr<const State> shared =
      std::make_shared<const State>(HashScheme(), Salt(), PrefixKey::of_process());
  state_ = shared;
}

SequenceHasher::SequenceHasher(const Salt& salt) : SequenceHasher(HashScheme(), salt) {}

SequenceHasher::SequenceHasher(const HashScheme& scheme, const Salt& salt, const PrefixKey& prefix_key)
    : state_(std::make_shared<const State>(scheme, salt, prefix_key)) {}

const HashScheme& SequenceHasher::scheme() const noexcept {
  return state_->scheme;
}

const Salt& SequenceHasher::salt() const noexcept {
  return state_->salt;
}

const PrefixKey& SequenceHasher::prefix_key() const noexcept {
  return state_->prefix_key;
}

Result<std::uint32_t> SequenceHasher::first_position(const std::optional<SequenceHash>& parent,
                                                     std::size_t blocks) const {
  if (parent && parent->is_keyed() != state_->scheme.is_keyed()) {
    return make_error(ErrorCode::kInvalidArgument, "the parent %s was not named by hash scheme %.*s",
                      parent->to_string().c_str(), static_cast<int>(state_->scheme.name().size()),
                      state_->scheme.name().data());
  }
  const std::uint64_t first = parent ? std::uint64_t{parent->position()} + 1 : 0;
  if (blocks > 0 && (first > SequenceHash::kMaxPosition || blocks - 1 > SequenceHash::kMaxPosition - first)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%zu blocks from position %" PRIu64 " on go past the last position a name can hold, %u",
                      blocks, first, SequenceHash::kMaxPosition);
  }
  return static_cast<std::uint32_t>(first);
}

LocalHash SequenceHasher::local_hash(std::span<const Token> tokens) const noexcept {
  return LocalHash(state_->local({tokens, 0, {}}));
}

LocalHash SequenceHasher::local_hash(std::span<const Token> tokens, std::uint64_t offset,
                                     std::span<const MultimodalRun> runs) const noexcept {
  return LocalHash(state_->local({tokens, offset, runs_touching(runs, offset, offset + tokens.size())}));
}

Result<BlockHashes> SequenceHasher::hash_block(const BlockBefore& parent,
                                               std::span<const Token> tokens) const {
  return hash_block(parent, tokens, {});
}

Result<BlockHashes> SequenceHasher::hash_block(const BlockBefore& parent, std::span<const Token> tokens,
                                               std::span<const MultimodalRun> runs) const {
  ASHLAR_TRY(const std::uint32_t position, first_position(parent.name, 1));
  const std::uint64_t offset = std::uint64_t{position} * tokens.size();
  return state_->hash(position, parent,
                      {tokens, offset, runs_touching(runs, offset, offset + tokens.size())});
}

Result<std::size_t> SequenceHasher::hash_blocks(const BlockBefore& parent, std::span<const Token> tokens,
                                                std::uint32_t block_size, std::span<BlockHashes> out) const {
  return hash_blocks(parent, state_->prefix_of(parent), tokens, block_size, out);
}

Result<std::size_t> SequenceHasher::hash_names(const std::optional<SequenceHash>& parent,
                                               std::span<const Token> tokens, std::uint32_t block_size,
                                               std::span<BlockHashes> out) const {
  return hash_blocks(parent, PrefixDigest(), tokens, block_size, out);
}

Result<std::size_t> SequenceHasher::hash_blocks(const BlockBefore& parent, const PrefixDigest& prefix,
                                                std::span<const Token> tokens, std::uint32_t block_size,
                                                std::span<BlockHashes> out) const {
  ASHLAR_RETURN_IF_ERROR(validate_block_size(block_size));
  const std::size_t count = tokens.size() / block_size;
  ASHLAR_CHECK(out.size() >= count, "%zu blocks do not fit into %zu places", count, out.size());
  ASHLAR_TRY(const std::uint32_t first, first_position(parent.name, count));

  if (state_->scheme.kind() != HashScheme::Kind::kXxh3Chain) {
    BlockBefore previous = parent;
    for (std::size_t i = 0; i < count; ++i) {
      const auto position = static_cast<std::uint32_t>(first + i);
      out[i] = state_->hash(position, previous, {tokens.subspan(i * block_size, block_size), 0, {}});
      previous = out[i];
    }
    return count;
  }

  state_->hash_xxh3_blocks(first, parent.name, prefix, tokens.first(count * block_size), block_size, out);
  return count;
}

bool operator==(const SequenceHasher& a, const SequenceHasher& b) noexcept {
  return a.state_ == b.state_ ||
         (a.scheme() == b.scheme() && a.salt() == b.salt() && a.prefix_key() == b.prefix_key());
}

}  // namespace ashlar::tokens
