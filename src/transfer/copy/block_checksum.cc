// Short runs are gathered in a buffer first: the hash is faster on long ones.
#include "ashlar/transfer/block_checksum.h"

#include <array>
#include <cstring>

#include "tokens/xxhash_inline.h"
#include "transfer/copy/canonical_runs.h"

namespace ashlar::transfer {
namespace {

using layout::LayoutConfig;

class Digest {
 public:
  Digest() { XXH3_64bits_reset(&state_); }

  void add(const void* bytes, std::uint64_t count) {
    if (count >= kLong) {
      flush();
      XXH3_64bits_update(&state_, bytes, count);
      return;
    }
    if (used_ + count > buffer_.size()) flush();
    std::memcpy(buffer_.data() + used_, bytes, count);
    used_ += count;
  }
  void add_number(std::uint64_t value) {
    std::array<std::uint8_t, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
    add(bytes.data(), bytes.size());
  }
  std::uint64_t value() {
    flush();
    return XXH3_64bits_digest(&state_);
  }

 private:
  static constexpr std::uint64_t kLong = 4096;

  void flush() {
    XXH3_64bits_update(&state_, buffer_.data(), used_);
    used_ = 0;
  }

  XXH3_state_t state_;
  std::array<std::uint8_t, 16384> buffer_;
  std::size_t used_ = 0;
};

void add_plane(Digest& digest, const BlockSet& set, std::size_t number, std::uint32_t block) {
  const Plane& plane = set.planes()[number];
  const LayoutConfig& config = plane.layout.config();
  for (const std::uint64_t value :
       {std::uint64_t{config.num_layers}, std::uint64_t{config.outer_dim}, std::uint64_t{config.block_size},
        std::uint64_t{config.num_heads}, config.head_bytes(), static_cast<std::uint64_t>(config.dtype),
        std::uint64_t{plane.shard.layers.first}, std::uint64_t{plane.shard.heads.first}})
    digest.add_number(value);

  for_each_run(set, number, block,
               [&](const std::byte* bytes, std::uint64_t count) { digest.add(bytes, count); });
}

Result<void> check_readable(const BlockSet& set, std::uint32_t block) {
  if (block >= set.block_count())
    return make_error(ErrorCode::kInvalidArgument, "block %u; the set has %u blocks", block,
                      set.block_count());
  if (!set.host_accessible())
    return make_error(ErrorCode::kUnsupported,
                      "the host cannot read %s storage; checksums are made in host memory",
                      std::string(to_string(set.kind())).c_str());
  return {};
}

void add_name(Digest& digest, const ChecksumKey& name) {
  const std::array<std::uint8_t, 16> hash = name.hash.to_bytes();
  const std::array<std::uint8_t, 16> keys = name.keys.to_bytes();
  digest.add(hash.data(), hash.size());
  digest.add(keys.data(), keys.size());
}

bool contains(const layout::Range& outer, const layout::Range& inner) noexcept {
  return inner.count != 0 && inner.first >= outer.first && inner.end() <= outer.end();
}

}  // namespace

Result<BlockChecksum> checksum_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name) {
  ASHLAR_RETURN_IF_ERROR(check_readable(set, block));
  Digest digest;
  digest.add_number(0x32'6b'6c'62'72'68'73'61);  // "ashrblk2"
  add_name(digest, name);
  digest.add_number(set.planes()[0].shard.rank);
  digest.add_number(set.planes()[0].shard.ranks);
  for (std::size_t plane = 0; plane < set.planes().size(); ++plane) add_plane(digest, set, plane, block);
  return BlockChecksum(digest.value());
}

Result<BlockChecksum> checksum_part(const BlockSet& set, std::uint32_t block, const ChecksumKey& name,
                                    const layout::Range& layers, const layout::Range& heads) {
  ASHLAR_RETURN_IF_ERROR(check_readable(set, block));
  const layout::Shard& shard = set.planes()[0].shard;
  if (!contains(shard.layers, layers) || !contains(shard.heads, heads))
    return make_error(ErrorCode::kInvalidArgument,
                      "layers %u to %llu and heads %u to %llu are not all in the set of %s", layers.first,
                      static_cast<unsigned long long>(layers.end()), heads.first,
                      static_cast<unsigned long long>(heads.end()), shard.to_string().c_str());
  Digest digest;
  digest.add_number(0x31'74'72'70'72'68'73'61);  // "ashrprt1"
  add_name(digest, name);
  for (const layout::Range& range : {layers, heads}) {
    digest.add_number(range.first);
    digest.add_number(range.count);
  }
  for (std::size_t number = 0; number < set.planes().size(); ++number) {
    const Plane& plane = set.planes()[number];
    const LayoutConfig& config = plane.layout.config();
    // One head for all others goes along whole.
    const bool for_all = number > 0 && config.num_heads == 1;
    const layout::Range its_heads =
        for_all ? layout::Range{0, 1} : layout::Range{heads.first - plane.shard.heads.first, heads.count};
    if (config.opaque && its_heads.count != config.num_heads)
      return make_error(ErrorCode::kUnsupported,
                        "the content of plane %zu is opaque; it cannot be cut by heads", number);
    for (const std::uint64_t value : {std::uint64_t{config.outer_dim}, std::uint64_t{config.block_size},
                                      config.head_bytes(), static_cast<std::uint64_t>(config.dtype)})
      digest.add_number(value);
    for_each_run(set, number, block, {layers.first - plane.shard.layers.first, layers.count}, its_heads,
                 [&](const std::byte* bytes, std::uint64_t count) { digest.add(bytes, count); });
  }
  return BlockChecksum(digest.value());
}

Result<void> verify_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name,
                          BlockChecksum expected, events::StorageTier tier) {
  ASHLAR_TRY(const BlockChecksum found, checksum_block(set, block, name));
  if (found == expected) return {};
  return make_error(ErrorCode::kCorruption,
                    "block %s from the %s tier is damaged: its checksum is %016llx and should be %016llx",
                    name.hash.to_string().c_str(), std::string(to_string(tier)).c_str(),
                    static_cast<unsigned long long>(found.value()),
                    static_cast<unsigned long long>(expected.value()));
}

}  // namespace ashlar::transfer
