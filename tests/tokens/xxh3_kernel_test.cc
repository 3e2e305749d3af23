#include "tokens/xxh3_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

std::vector<const Xxh3Kernel*> kernels_of_this_machine() {
  std::vector<const Xxh3Kernel*> kernels = {&kXxh3Portable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx2")) kernels.push_back(&kXxh3Avx2);
  if (__builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f")) kernels.push_back(&kXxh3Avx512);
#endif
  return kernels;
}

std::vector<std::uint8_t> random_bytes(Random& random, std::size_t count) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(random.next()));
  return bytes;
}

struct Secret {
  explicit Secret(std::uint64_t seed) { xxh3_derive_secret(seed, bytes.data()); }
  alignas(64) std::array<std::uint8_t, kXxh3SecretSize> bytes;
};

class Xxh3KernelTest : public ::testing::TestWithParam<const Xxh3Kernel*> {};

TEST_P(Xxh3KernelTest, CachedSecretGivesTheSeededHashAtEveryLength) {
  Random random(11);
  const auto bytes = random_bytes(random, 2048 * 4 + 3);
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1337}, ~std::uint64_t{0}, random.next()}) {
    const Secret secret(seed);
    for (std::size_t size = 0; size <= 300; ++size) {
      EXPECT_EQ(GetParam()->hash(bytes.data(), size, secret.bytes.data(), seed),
                XXH3_64bits_withSeed(bytes.data(), size, seed))
          << size << " bytes, seed " << seed;
    }
    for (std::size_t tokens = 1; tokens <= 2048; ++tokens) {
      const std::uint8_t* const unaligned = bytes.data() + tokens % 4;
      EXPECT_EQ(GetParam()->hash(unaligned, tokens * 4, secret.bytes.data(), seed),
                XXH3_64bits_withSeed(unaligned, tokens * 4, seed))
          << tokens << " tokens, seed " << seed;
    }
  }
}

TEST_P(Xxh3KernelTest, HashesTheTextVector) {
  constexpr std::string_view kText = "test data";
  const Secret secret(1337);
  EXPECT_EQ(GetParam()->hash(kText.data(), kText.size(), secret.bytes.data(), 1337), 13226331709069118873u);
}

TEST_P(Xxh3KernelTest, BlocksEqualOneShotHashesAndChainSteps) {
  Random random(12);
  for (const std::size_t tokens :
       {1u, 2u, 3u, 4u, 5u, 8u, 15u, 16u, 31u, 32u, 33u, 48u, 60u, 61u, 64u, 65u, 256u, 1024u}) {
    for (const std::size_t count : {0u, 1u, 2u, 3u, 20u}) {
      const std::size_t size = tokens * 4;
      const auto bytes = random_bytes(random, size * count);
      const std::uint64_t seed = random.next();
      const Secret secret(seed);
      for (const bool starts_sequence : {true, false}) {
        const std::uint64_t before = random.next();
        const std::uint32_t position = starts_sequence ? 0 : 100;
        std::vector<Xxh3BlockHashes> out(count);
        const PrefixSecret& prefix_secret = PrefixKey::of_process().secret();
        const std::uint64_t prefix_before[2] = {random.next() >> 2, random.next() >> 2};
        GetParam()->hash_blocks(bytes.data(), size, count, secret.bytes.data(), seed,
                                starts_sequence ? nullptr : &before, SequenceHash::make(position, 0, 0)->hi(),
                                54, prefix_secret, count == 3 ? nullptr : prefix_before, out.data());
        std::uint64_t prefix[2] = {prefix_before[0], prefix_before[1]};
        std::uint64_t previous = before;
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t local = XXH3_64bits_withSeed(bytes.data() + i * size, size, seed);
          const std::uint64_t pair[2] = {previous, local};
          const bool first = starts_sequence && i == 0;
          const std::uint64_t chain = first ? local : XXH3_64bits_withSeed(pair, sizeof(pair), 1337);
          const SequenceHash name = SequenceHash::make(position + i, chain, previous).value();
          EXPECT_EQ(out[i].local, local);
          EXPECT_EQ(SequenceHash::from_bits(out[i].name_hi, out[i].name_lo), name)
              << "block " << i << " of " << count;
          kXxh3Portable.absorb(bytes.data() + i * size, size, kPrefixText, prefix_secret, prefix);
          EXPECT_EQ(out[i].prefix_hi, count == 3 ? 0 : prefix[0]) << "without a digest before there is none";
          EXPECT_EQ(out[i].prefix_lo, count == 3 ? 0 : prefix[1]);
          previous = chain;
        }
      }
    }
  }
}

// The rule of prefix_kernel_body.h, word by word.
struct NaivePrefix {
  static constexpr std::uint64_t kModulus = (std::uint64_t{1} << 61) - 1;
  std::uint64_t a;
  std::uint64_t b;

  static std::uint64_t times(std::uint64_t x, std::uint64_t factor) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(Wide{x % kModulus} * (factor / 8) % kModulus);
  }
  static std::uint32_t word(const std::uint8_t* bytes, std::size_t size, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4 && at + i < size; ++i) value |= std::uint32_t{bytes[at + i]} << (8 * i);
    return value;
  }
  void absorb(const std::uint8_t* bytes, std::size_t size, std::uint64_t kind, const PrefixSecret& secret) {
    for (std::size_t from = 0; from == 0 || from < size; from += kPrefixChunk) {
      const std::size_t chunk = std::min(kPrefixChunk, size - from);
      const std::size_t stripes = std::max<std::size_t>((chunk + 63) / 64, 1);
      std::uint64_t sum_a = 0;
      std::uint64_t sum_b = 0;
      for (std::size_t at = 0; at < stripes * 64; at += 8) {
        const auto keyed = [&](std::size_t place) {
          const std::uint32_t key = word(secret.keys, sizeof(secret.keys), place);
          return place < stripes * 64 ? key + word(bytes + from, chunk, place) : key;
        };
        sum_a += std::uint64_t{keyed(at)} * keyed(at + 4);
        sum_b += std::uint64_t{keyed(at)} * keyed(at + 64 + 4);
      }
      a = (times(a, secret.factors[0]) + sum_a % kModulus + (kind | chunk)) % kModulus;
      b = (times(b, secret.factors[1]) + sum_b % kModulus) % kModulus;
    }
  }
};

TEST_P(Xxh3KernelTest, PrefixDigestsFollowTheirRuleAtEverySize) {
  Random random(14);
  const auto bytes = random_bytes(random, 2 * kPrefixChunk + 77);
  const PrefixKey key({1, 2, 3});
  const PrefixSecret& secret = key.secret();
  NaivePrefix naive{random.next() >> 2, random.next() >> 2};
  std::uint64_t words[2] = {naive.a, naive.b};
  for (std::size_t size = 0; size <= bytes.size(); size += size < 300 ? 1 : 13) {
    const std::uint64_t kind = size % 2 == 0 ? kPrefixText : kPrefixFrames;
    naive.absorb(bytes.data(), size, kind, secret);
    GetParam()->absorb(bytes.data(), size, kind, secret, words);
    ASSERT_NE(words[0] >> 63, 0u) << "known";
    ASSERT_EQ((words[0] & ~(std::uint64_t{1} << 63)) % NaivePrefix::kModulus, naive.a) << size << " bytes";
    ASSERT_EQ(words[1] % NaivePrefix::kModulus, naive.b) << size << " bytes";
    ASSERT_EQ(words[1] >> 63, 0u) << "halves stay below 2^63";
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Xxh3KernelTest, ::testing::ValuesIn(kernels_of_this_machine()),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

TEST(Xxh3ChainStepTest, IsTheSeededHashOfSixteenBytes) {
  Random random(13);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t pair[2] = {random.next(), random.next()};
    ASSERT_EQ(xxh3_chain_step(pair[0], pair[1]), XXH3_64bits_withSeed(pair, sizeof(pair), 1337));
  }
}

}  // namespace
}  // namespace ashlar::tokens
