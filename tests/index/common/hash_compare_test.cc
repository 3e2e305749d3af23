// Every kernel that this machine can run, against the portable one.
#include "index/common/hash_compare.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::index::detail {
namespace {

std::vector<std::pair<std::string, CommonPrefix>> prefix_kernels() {
  std::vector<std::pair<std::string, CommonPrefix>> kernels = {{"portable", common_prefix_portable},
                                                               {"chosen", common_prefix_kernel()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels.emplace_back("avx2", common_prefix_avx2);
  if (__builtin_cpu_supports("avx512f")) kernels.emplace_back("avx512", common_prefix_avx512);
#endif
  return kernels;
}

std::vector<std::pair<std::string, WriteMasked>> write_kernels() {
  std::vector<std::pair<std::string, WriteMasked>> kernels = {{"portable", write_masked_portable},
                                                              {"chosen", write_masked_kernel()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) kernels.emplace_back("avx2", write_masked_avx2);
  if (__builtin_cpu_supports("avx512f")) kernels.emplace_back("avx512", write_masked_avx512);
#endif
  return kernels;
}

// Lists of every length, at every alignment, that first differ at every place; they agree again behind it.
TEST(HashCompareTest, FindsTheFirstDifference) {
  Random random(1);
  std::array<std::uint64_t, 80> left;
  for (std::uint64_t& hash : left) hash = random.next();
  for (const auto& [name, kernel] : prefix_kernels())
    for (std::uint32_t start = 0; start < 8; ++start)
      for (std::uint32_t length = 0; length <= 64; ++length) {
        std::array<std::uint64_t, 80> right = left;
        ASSERT_EQ(kernel(left.data() + start, right.data() + start, length), length) << name;
        // What lies behind the end does not matter.
        right[start + length] ^= 1;
        ASSERT_EQ(kernel(left.data() + start, right.data() + start, length), length) << name;
        right[start + length] ^= 1;
        for (std::uint32_t at = 0; at < length; ++at) {
          right[start + at] ^= std::uint64_t{1} << (at % 64);
          ASSERT_EQ(kernel(left.data() + start, right.data() + start, length), at)
              << name << " of " << length;
          right[start + at] = left[start + at];
        }
      }
}

TEST(HashCompareTest, SeesADifferenceInAnyBit) {
  std::array<std::uint64_t, 64> left{};
  for (const auto& [name, kernel] : prefix_kernels())
    for (std::uint32_t bit = 0; bit < 64; ++bit) {
      std::array<std::uint64_t, 64> right{};
      right[37] = std::uint64_t{1} << bit;
      ASSERT_EQ(kernel(left.data(), right.data(), 64), 37u) << name << ", bit " << bit;
    }
}

TEST(HashCompareTest, WritesWhereTheMaskSays) {
  Random random(2);
  for (const auto& [name, kernel] : write_kernels())
    for (int round = 0; round < 200; ++round) {
      const std::uint64_t mask = round == 0   ? 0
                                 : round == 1 ? ~std::uint64_t{0}
                                              : random.next() & random.next();
      std::array<std::uint32_t, 66> numbers;
      numbers.fill(7);
      kernel(numbers.data() + 1, mask, 1'000u + static_cast<std::uint32_t>(round));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const bool written = i >= 1 && i <= 64 && (mask >> (i - 1) & 1) != 0;
        ASSERT_EQ(numbers[i], written ? 1'000u + static_cast<std::uint32_t>(round) : 7u)
            << name << " at " << i;
      }
    }
}

}  // namespace
}  // namespace ashlar::index::detail
