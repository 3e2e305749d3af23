#include "ashlar/tokens/token.h"

#include <cinttypes>

namespace ashlar::tokens {

Result<void> validate_block_size(std::uint64_t block_size) {
  if (block_size >= kMinBlockSize && block_size <= kMaxBlockSize) return {};
  return make_error(ErrorCode::kInvalidArgument, "block size is %" PRIu64 " tokens; it must be %u to %u",
                    block_size, kMinBlockSize, kMaxBlockSize);
}

}  // namespace ashlar::tokens
