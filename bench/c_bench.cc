// What a call through the C interface costs beside the same call in C++.
//
//   c_bench
//
// Small calls show the look-up of a handle; batches of 64 blocks show that a list is one handle. "ours" is C,
// "rival" C++; a ratio of 0.5 means twice the time.
#include <cstdio>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/base/check.h"
#include "ashlar/index/make_index.h"
#include "ashlar_c.h"
#include "ratio.h"

namespace {

using namespace ashlar;
using bench::compare;
using bench::Comparison;

constexpr std::uint32_t kPoolBlocks = 4096;
constexpr std::uint32_t kTokensPerBlock = 16;
constexpr std::size_t kBatch = 64;

void expect_ok(ashlar_status status) {
  ASHLAR_CHECK(status == ASHLAR_OK, "%s: %s", ashlar_status_name(status), ashlar_last_error());
}

void tell(const char* name, const Comparison& c) {
  std::printf("%-40s %10.1f %10.1f %9.1f   %.2f (%.2f..%.2f)\n", name, c.ours.median, c.rival.median,
              c.ours.median - c.rival.median, c.ratio.median, c.ratio.min, c.ratio.max);
}

struct BothManagers {
  BothManagers()
      : cpp(block::BlockManager<events::G1>::builder()
                .block_count(kPoolBlocks)
                .registry(block::BlockRegistry::create().value())
                .build()
                .value()) {
    ashlar_manager_options options = {};
    options.struct_size = sizeof options;
    options.block_count = kPoolBlocks;
    expect_ok(ashlar_manager_create(&options, &c));
    for (std::uint32_t i = 0; i < kBatch * kTokensPerBlock; ++i) tokens.push_back(i * 2654435761u);
    expect_ok(ashlar_hasher_create(nullptr, &hasher));
    hashes.resize(kBatch);
    std::size_t count = 0;
    expect_ok(ashlar_hash_blocks(hasher, nullptr, tokens.data(), tokens.size(), kTokensPerBlock,
                                 hashes.data(), kBatch, &count));
    for (const ashlar_block_hashes& one : hashes) {
      names.push_back(one.sequence);
      cpp_names.push_back(tokens::SequenceHash::from_bits(one.sequence.hi, one.sequence.lo));
    }
  }

  // The batch, registered in both and cached.
  void fill() {
    ashlar_blocks blocks = {};
    expect_ok(ashlar_manager_allocate(c, kBatch, &blocks));
    expect_ok(ashlar_blocks_stage(blocks, hashes.data(), kBatch, nullptr, nullptr, &blocks));
    expect_ok(ashlar_blocks_register(blocks, nullptr, &blocks));
    expect_ok(ashlar_blocks_release(blocks));
    auto empty = cpp.allocate_blocks(kBatch).value();
    for (std::size_t i = 0; i < kBatch; ++i) {
      auto staged = std::move(empty[i]).stage(cpp_names[i], block::KvReady::asserted_by_caller());
      (void)cpp.register_block(std::move(staged)).value();
    }
  }

  block::BlockManager<events::G1> cpp;
  ashlar_manager c = {};
  ashlar_hasher hasher = {};
  std::vector<std::uint32_t> tokens;
  std::vector<ashlar_block_hashes> hashes;
  std::vector<ashlar_hash> names;
  std::vector<tokens::SequenceHash> cpp_names;
};

void bench_managers(BothManagers& both) {
  tell("can_allocate(1)", compare([&] { expect_ok(ashlar_manager_can_allocate(both.c, 1)); },
                                  [&] { ASHLAR_CHECK(both.cpp.can_allocate(1).has_value(), "room"); }));
  for (const std::size_t n : {std::size_t{1}, kBatch}) {
    const Comparison c = compare(
        [&] {
          ashlar_blocks blocks = {};
          expect_ok(ashlar_manager_allocate(both.c, n, &blocks));
          expect_ok(ashlar_blocks_release(blocks));
        },
        [&] { (void)both.cpp.allocate_blocks(n).value(); });
    tell(n == 1 ? "allocate 1 block, release" : "allocate 64 blocks, release", c);
  }
  both.fill();
  for (const std::size_t n : {std::size_t{1}, kBatch}) {
    const Comparison c = compare(
        [&] {
          ashlar_blocks blocks = {};
          expect_ok(ashlar_manager_match(both.c, both.names.data(), nullptr, n, &blocks));
          expect_ok(ashlar_blocks_release(blocks));
        },
        [&] { (void)both.cpp.match_blocks(std::span(both.cpp_names).first(n)); });
    tell(n == 1 ? "match 1 block, release" : "match 64 blocks, release", c);
  }
}

void bench_hashing(BothManagers& both) {
  const tokens::SequenceHasher hasher;
  std::vector<tokens::Token> tokens(both.tokens.begin(), both.tokens.end());
  std::vector<tokens::BlockHashes> out(kBatch);
  tell("hash 64 blocks",
       compare(
           [&] {
             std::size_t count = 0;
             expect_ok(ashlar_hash_blocks(both.hasher, nullptr, both.tokens.data(), both.tokens.size(),
                                          kTokensPerBlock, both.hashes.data(), kBatch, &count));
           },
           [&] { (void)hasher.hash_blocks(std::nullopt, tokens, kTokensPerBlock, out).value(); }));
}

void bench_decode(BothManagers& both) {
  ashlar_request request = {};
  expect_ok(ashlar_request_create(both.c, both.tokens.data(), 32, nullptr, &request));
  expect_ok(ashlar_request_schedule_prefill(request, 32, nullptr));
  const std::uint32_t next = 1;
  expect_ok(ashlar_request_apply_prefill(request, &next, nullptr));
  std::vector<tokens::Token> prompt(both.tokens.begin(), both.tokens.begin() + 32);
  auto rival = block::RequestSequence<events::G1>::create(both.cpp, prompt).value();
  (void)rival.schedule_prefill(32).value();
  (void)rival.apply_prefill(tokens::Token(1)).value();
  // Both are drawn back before the pool is full.
  const auto restart = [&] {
    expect_ok(ashlar_request_preempt(request));
    expect_ok(ashlar_request_destroy(request));
    expect_ok(ashlar_request_create(both.c, both.tokens.data(), 32, nullptr, &request));
    expect_ok(ashlar_request_schedule_prefill(request, 32, nullptr));
    expect_ok(ashlar_request_apply_prefill(request, &next, nullptr));
  };
  std::size_t c_steps = 0;
  std::size_t cpp_steps = 0;
  constexpr std::size_t kMostSteps = 30'000;
  tell("decode: schedule, apply",
       compare(
           [&] {
             if (++c_steps % kMostSteps == 0) restart();
             expect_ok(ashlar_request_schedule_decode(request, nullptr));
             expect_ok(ashlar_request_apply_decode(request, 2, nullptr));
           },
           [&] {
             if (++cpp_steps % kMostSteps == 0) {
               rival = block::RequestSequence<events::G1>::create(both.cpp, prompt).value();
               (void)rival.schedule_prefill(32).value();
               (void)rival.apply_prefill(tokens::Token(1)).value();
             }
             (void)rival.schedule_decode().value();
             (void)rival.apply_decode(tokens::Token(2)).value();
           }));
  expect_ok(ashlar_request_destroy(request));
}

void bench_index(const BothManagers& both) {
  ashlar_index index = {};
  expect_ok(ashlar_index_create(nullptr, &index));
  auto rival = index::make_index({}).value();
  std::vector<ashlar_stored_block> stored;
  std::vector<std::uint64_t> locals;
  std::vector<index::StoredBlock> cpp_stored;
  std::vector<tokens::LocalHash> cpp_locals;
  for (std::uint64_t i = 0; i < kBatch; ++i) {
    stored.push_back({both.hashes[i].local, i + 1});
    locals.push_back(both.hashes[i].local);
    cpp_stored.push_back({tokens::LocalHash(locals[i]), index::BlockName(i + 1)});
    cpp_locals.emplace_back(locals[i]);
  }
  for (std::uint64_t worker = 1; worker <= 8; ++worker) {
    const ashlar_worker its = {worker, 0, 0};
    expect_ok(ashlar_index_store(index, &its, ASHLAR_TIER_G1, nullptr, stored.data(), stored.size()));
    index::BlocksStored event;
    event.worker = {index::WorkerId(worker), 0};
    event.blocks = cpp_stored;
    ASHLAR_CHECK(rival->store(event) == index::StoreVerdict::kApplied, "the store is whole");
  }
  index::MatchScores scores;
  std::vector<ashlar_match> matches(8);
  tell("index: find 64 blocks, 8 workers",
       compare(
           [&] {
             std::size_t count = 0;
             expect_ok(ashlar_index_find(index, locals.data(), locals.size(), matches.data(), 8, &count));
           },
           [&] { rival->find_matches(cpp_locals, scores); }));
  expect_ok(ashlar_index_destroy(index));
}

}  // namespace

int main() {
  std::printf("%-40s %10s %10s %9s   %s\n", "one call, ns", "C", "C++", "more", "ratio (min..max)");
  BothManagers both;
  bench_managers(both);
  bench_hashing(both);
  bench_decode(both);
  bench_index(both);
  expect_ok(ashlar_hasher_destroy(both.hasher));
  expect_ok(ashlar_manager_destroy(both.c));
  return 0;
}
