// CopyJob: the work of one launch of the copy kernel, as its parameters.
//
// A job holds the shape of a CopyPlan (bytes of a piece, axes, strides) with the starts of some of its
// patterns and some of its block pairs; the kernel computes the address of each piece. All of it travels as
// kernel parameters, which CUDA copies at the launch: no list in memory has to outlive the kernel.
//
// Pieces are numbered by pair, then by pattern, then along the axes.
//
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define ASHLAR_HOST_DEVICE __host__ __device__
#else
#define ASHLAR_HOST_DEVICE
#endif

namespace ashlar::backend::cuda {

inline constexpr std::uint32_t kMaxJobNumber = 0x7fffffff;

// Division of numbers up to kMaxJobNumber by a constant, as a multiplication (Granlund and Montgomery).
struct Divisor {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 1;
  std::uint32_t shift = 0;

  Divisor() = default;
  // Requires: 0 < value <= kMaxJobNumber.
  explicit Divisor(std::uint32_t value) noexcept
      : divisor(value), shift(static_cast<std::uint32_t>(std::bit_width(value - 1))) {
    const std::uint64_t above = (std::uint64_t{1} << shift) - value;
    multiplier = static_cast<std::uint32_t>((above << 32) / value + 1);
  }
  ASHLAR_HOST_DEVICE std::uint32_t divide(std::uint32_t number) const noexcept {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{number} * multiplier) >> 32);
    return (high + number) >> shift;
  }
};

struct JobAxis {
  std::uint64_t from_stride = 0;
  std::uint64_t to_stride = 0;
  Divisor count;
};

inline constexpr std::size_t kMaxAxes = 5;

struct JobShape {
  std::uint64_t piece_bytes = 0;
  std::uint64_t from_block_stride = 0;
  std::uint64_t to_block_stride = 0;
  std::uint32_t first_piece = 0;
  std::uint32_t pieces = 0;
  std::uint32_t patterns = 0;
  std::uint32_t pairs = 0;
  std::uint32_t width = 1;  // bytes per load; divides every address, stride and length
  std::uint32_t axes = 0;
  Divisor block_pieces;    // of all patterns, for one pair
  Divisor pattern_pieces;  // of one pattern, for one pair
  JobAxis
      axis[kMaxAxes];  // innermost first; plain arrays, since device code may not call members of std::array
};

// Words: two for each pattern (address at the source, address at the destination), then one for each pair
// (block at the source, block at the destination in the upper half).
template <std::size_t kWords>
struct CopyJob {
  JobShape shape;
  std::uint64_t words[kWords];

  std::size_t used_words() const noexcept { return 2 * std::size_t{shape.patterns} + shape.pairs; }
};

// Two sizes: small jobs launch faster. Parameters are limited to 32764 bytes.
inline constexpr std::size_t kSmallWords = 256;
inline constexpr std::size_t kLargeWords = 4000;
using SmallCopyJob = CopyJob<kSmallWords>;
using LargeCopyJob = CopyJob<kLargeWords>;
static_assert(sizeof(LargeCopyJob) <= 32764, "a launch takes no more bytes of parameters");
static_assert(kSmallWords < kLargeWords && kLargeWords >= 2 + 1, "a job holds a pattern and a pair");

struct PieceAddresses {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
};

// The addresses of a piece of the job.
template <std::size_t kWords>
ASHLAR_HOST_DEVICE inline PieceAddresses locate(const CopyJob<kWords>& job, std::uint32_t piece) noexcept {
  const JobShape& shape = job.shape;
  const std::uint32_t pair = shape.block_pieces.divide(piece);
  std::uint32_t rest = piece - pair * shape.block_pieces.divisor;
  const std::uint32_t pattern = shape.pattern_pieces.divide(rest);
  rest -= pattern * shape.pattern_pieces.divisor;
  const std::uint64_t blocks = job.words[2 * shape.patterns + pair];
  PieceAddresses at{job.words[2 * pattern] + (blocks & 0xffffffffu) * shape.from_block_stride,
                    job.words[2 * pattern + 1] + (blocks >> 32) * shape.to_block_stride};
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (std::uint32_t i = 0; i < kMaxAxes; ++i) {
    if (i >= shape.axes) break;
    const JobAxis& axis = shape.axis[i];
    const std::uint32_t outer = axis.count.divide(rest);
    const std::uint32_t step = rest - outer * axis.count.divisor;
    at.from += step * axis.from_stride;
    at.to += step * axis.to_stride;
    rest = outer;
  }
  return at;
}

}  // namespace ashlar::backend::cuda
