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

}  // namespace

Result<BlockChecksum> checksum_block(const BlockSet& set, std::uint32_t block, const ChecksumKey& name) {
  if (block >= set.block_count())
    return make_error(ErrorCode::kInvalidArgument, "block %u; the set has %u blocks", block,
                      set.block_count());
  if (!set.host_accessible())
    return make_error(ErrorCode::kUnsupported,
                      "the host cannot read %s storage; checksums are made in host memory",
                      std::string(to_string(set.kind())).c_str());
  Digest digest;
  digest.add_number(0x32'6b'6c'62'72'68'73'61);  // "ashrblk2"
  const std::array<std::uint8_t, 16> hash = name.hash.to_bytes();
  const std::array<std::uint8_t, 16> keys = name.keys.to_bytes();
  digest.add(hash.data(), hash.size());
  digest.add(keys.data(), keys.size());
  digest.add_number(set.planes()[0].shard.rank);
  digest.add_number(set.planes()[0].shard.ranks);
  for (std::size_t plane = 0; plane < set.planes().size(); ++plane) add_plane(digest, set, plane, block);
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
