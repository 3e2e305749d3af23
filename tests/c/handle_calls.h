// Every function of the C interface that takes a handle, each with arguments that are otherwise good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ashlar_c.h"

namespace ashlar::testing {

enum class HandleOf : std::uint8_t {
  kHasher,
  kRegistry,
  kManager,
  kBlocks,
  kPin,
  kFence,
  kRequest,
  kTiers,
  kOffload,
  kOnboard,
  kIndex,
  kFeed,
  kClient,
  kAnswer,
  kSequences,
  kSequence,
};
inline constexpr std::size_t kHandleKinds = 16;

struct HandleCall {
  HandleOf kind;
  std::string_view name;
  ashlar_status (*run)(std::uint64_t id);
};

// Where the calls write; nobody reads it.
struct CallOutputs {
  std::uint32_t numbers[64];
  std::uint64_t wide[64];
  ashlar_hash hashes[64];
  ashlar_block_hashes block_hashes[64];
  std::uint8_t bytes[64];
  char text[64];
  std::size_t count;
  std::int32_t state;
  int flag;
  void* address;
};

std::vector<HandleCall> handle_calls();

}  // namespace ashlar::testing
