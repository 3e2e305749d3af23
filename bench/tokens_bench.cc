// Hashing a prompt of 128k tokens: SequenceHasher::hash_blocks() beside a bare loop over xxHash.
//
//   tokens_bench            the ratios (median of interleaved runs, with the spread), after a check that the
//                           results are equal; those beside the bare loop have a target
//   tokens_bench --each     every case under Google Benchmark, whose flags then apply
//
// Rivals: one-shot XXH3_64bits_withSeed() per block and one for the chain, as in a straightforward
// implementation of the scheme; and XXH3's streaming speed over the whole prompt, the limit of the hash
// itself for long inputs (it computes one hash, not one per block).
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_sequence.h"
#include "ratio.h"
#include "tokens/xxh3_kernel.h"
#include "tokens/xxhash_inline.h"

namespace {

using ashlar::bench::Comparison;
using ashlar::tokens::BlockHashes;
using ashlar::tokens::HashScheme;
using ashlar::tokens::Salt;
using ashlar::tokens::SequenceHasher;
using ashlar::tokens::Token;
using ashlar::tokens::TokenSequence;

constexpr std::size_t kPromptTokens = 128 * 1024;
constexpr std::uint32_t kBlockSizes[] = {16, 64, 256};
// The least ratio beside the bare loop, for every block size: names alone reach 0.90 of it, and digests,
// which the bare loop does not make, may take 0.6 of that time more.
constexpr double kTarget = 0.90 / 1.6;

const std::vector<Token>& prompt() {
  static const std::vector<Token> tokens = [] {
    ashlar::Random random(1);
    std::vector<Token> drawn;
    for (std::size_t i = 0; i < kPromptTokens; ++i)
      drawn.emplace_back(static_cast<std::uint32_t>(random.below(152'000)));
    return drawn;
  }();
  return tokens;
}

struct BareHashes {
  std::uint64_t local;
  std::uint64_t chain;
};

void bare_loop(std::span<const Token> tokens, std::uint32_t block_size, std::span<BareHashes> out) {
  std::uint64_t previous = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t local =
        XXH3_64bits_withSeed(tokens.data() + i * block_size, block_size * sizeof(Token), Salt::kBaseSeed);
    const std::uint64_t pair[2] = {previous, local};
    const std::uint64_t chain = i == 0 ? local : XXH3_64bits_withSeed(pair, sizeof(pair), Salt::kBaseSeed);
    out[i] = {local, chain};
    previous = chain;
  }
}

std::uint64_t streaming(std::span<const Token> tokens) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset_withSeed(&state, Salt::kBaseSeed);
  XXH3_64bits_update(&state, tokens.data(), tokens.size_bytes());
  return XXH3_64bits_digest(&state);
}

// Room for the hashes of the prompt, ours and the rival's.
struct Outputs {
  explicit Outputs(std::uint32_t block_size)
      : ours(kPromptTokens / block_size), bare(kPromptTokens / block_size) {}
  std::vector<BlockHashes> ours;
  std::vector<BareHashes> bare;
};

bool results_equal(const SequenceHasher& hasher, std::uint32_t block_size, Outputs& out) {
  const std::size_t count = hasher.hash_blocks(std::nullopt, prompt(), block_size, out.ours).value();
  bare_loop(prompt(), block_size, out.bare);
  if (count != out.bare.size()) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (out.ours[i].local.value() != out.bare[i].local) return false;
    if (out.ours[i].sequence.chain() != out.bare[i].chain) return false;
  }
  return true;
}

// As ashlar::bench::print(), with the target beside the ratio.
void print_beside_target(const std::string& name, const Comparison& c) {
  std::printf("%s: ours %.1f ns, rival %.1f ns, ratio %.2f (%.2f..%.2f)   target %.2f: %s\n", name.c_str(),
              c.ours.median, c.rival.median, c.ratio.median, c.ratio.min, c.ratio.max, kTarget,
              c.ratio.median >= kTarget ? "ok" : "MISS");
}

int print_ratios() {
  const SequenceHasher hasher;
  std::printf("%zu tokens, kernel %s; ratio above 1: ours is faster\n", kPromptTokens,
              ashlar::tokens::xxh3_kernel().name);
  for (const std::uint32_t block_size : kBlockSizes) {
    Outputs out(block_size);
    if (!results_equal(hasher, block_size, out)) {
      std::fprintf(stderr, "block size %u: the hashes differ from the bare loop's\n", block_size);
      return 1;
    }
    const auto ours = [&] {
      benchmark::DoNotOptimize(hasher.hash_blocks(std::nullopt, prompt(), block_size, out.ours));
      benchmark::ClobberMemory();
    };
    const auto bare = [&] {
      bare_loop(prompt(), block_size, out.bare);
      benchmark::ClobberMemory();
    };
    const auto stream = [&] { benchmark::DoNotOptimize(streaming(prompt())); };
    const std::string name = "hash_blocks, block size " + std::to_string(block_size);
    print_beside_target(name + ", beside the bare loop", ashlar::bench::compare(ours, bare));
    print(name + ", beside streaming XXH3", ashlar::bench::compare(ours, stream));
  }
  return 0;
}

void report_tokens(benchmark::State& state) {
  const auto tokens = static_cast<std::int64_t>(kPromptTokens);
  state.SetItemsProcessed(state.iterations() * tokens);
  state.SetBytesProcessed(state.iterations() * tokens * static_cast<std::int64_t>(sizeof(Token)));
}

void BM_HashBlocks(benchmark::State& state) {
  const auto block_size = static_cast<std::uint32_t>(state.range(0));
  const SequenceHasher hasher;
  Outputs out(block_size);
  for (auto _ : state) {
    benchmark::DoNotOptimize(hasher.hash_blocks(std::nullopt, prompt(), block_size, out.ours));
    benchmark::ClobberMemory();
  }
  report_tokens(state);
}
BENCHMARK(BM_HashBlocks)->Arg(16)->Arg(64)->Arg(256);

void BM_HashBlocksKeyed(benchmark::State& state) {
  const auto block_size = static_cast<std::uint32_t>(state.range(0));
  const SequenceHasher hasher(HashScheme::keyed128({1, 2, 3}), Salt());
  Outputs out(block_size);
  for (auto _ : state) {
    benchmark::DoNotOptimize(hasher.hash_blocks(std::nullopt, prompt(), block_size, out.ours));
    benchmark::ClobberMemory();
  }
  report_tokens(state);
}
BENCHMARK(BM_HashBlocksKeyed)->Arg(16)->Arg(64)->Arg(256);

void BM_BareLoop(benchmark::State& state) {
  const auto block_size = static_cast<std::uint32_t>(state.range(0));
  Outputs out(block_size);
  for (auto _ : state) {
    bare_loop(prompt(), block_size, out.bare);
    benchmark::ClobberMemory();
  }
  report_tokens(state);
}
BENCHMARK(BM_BareLoop)->Arg(16)->Arg(64)->Arg(256);

void BM_StreamingXxh3(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(streaming(prompt()));
  report_tokens(state);
}
BENCHMARK(BM_StreamingXxh3);

void BM_SequenceFromPrompt(benchmark::State& state) {
  const auto block_size = static_cast<std::uint32_t>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(TokenSequence::create(prompt(), block_size).value());
  report_tokens(state);
}
BENCHMARK(BM_SequenceFromPrompt)->Arg(16)->Arg(64)->Arg(256);

void BM_SequenceAppend(benchmark::State& state) {
  const auto block_size = static_cast<std::uint32_t>(state.range(0));
  for (auto _ : state) {
    auto sequence = TokenSequence::create(block_size).value();
    for (const Token token : prompt()) benchmark::DoNotOptimize(sequence.append(token));
  }
  report_tokens(state);
}
BENCHMARK(BM_SequenceAppend)->Arg(16)->Arg(64)->Arg(256);

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return print_ratios();
  if (std::strcmp(argv[1], "--each") != 0) {
    std::fprintf(stderr, "usage: tokens_bench [--each [Google Benchmark flags]]\n");
    return 2;
  }
  argv[1] = argv[0];
  --argc;
  ++argv;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
