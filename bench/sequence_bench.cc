// Sequence benchmarks: allocates and frees whole sequences, cold and cached, and runs decode steps over 1,000
// requests.
//
//   sequence_bench
//
// Pool of 65,536 blocks of 16 tokens, LRU, one thread; names are computed beforehand. Beside each figure
// stands the minimum that the block layer can do for the same blocks, or a naive manager; beside the last
// ones, which run over a G1 with a G2 below it, the same over a manager alone: what the tier costs the
// engine's thread while another thread copies.
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/base/check.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "naive_sequence_manager.h"
#include "ratio.h"
#include "sequence_setup.h"

namespace {

using namespace ashlar;
using bench::compare;
using bench::Comparison;
using bench::kBlockSize;
using bench::kPool;
using bench::make_manager;
using bench::names_of;
using block::BlockManager;
using block::ImmutableBlock;
using block::RegisterBlocks;
using block::RequestSequence;
using block::Sequence;
using block::SequenceBatch;
using block::SequenceManager;
using events::G1;
using tokens::SequenceHash;
using tokens::Token;

std::vector<Token> make_prompt(std::size_t tokens, std::uint32_t number) {
  std::vector<Token> prompt;
  prompt.reserve(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    prompt.emplace_back(static_cast<std::uint32_t>(i * 2654435761u + number * 40503u + 17u));
  }
  return prompt;
}

void head(const char* title) {
  std::printf("\n%-34s %8s %10s %10s   %s\n", title, "blocks", "ours", "rival", "ratio (min..max)");
}

// `at_least`: a target for rival / ours.
void line(const std::string& name, std::size_t blocks, const Comparison& c, double at_least = 0) {
  const auto n = static_cast<double>(blocks);
  std::printf("%-34s %8zu %10.1f %10.1f   %.2f (%.2f..%.2f)", name.c_str(), blocks, c.ours.median / n,
              c.rival.median / n, c.ratio.median, c.ratio.min, c.ratio.max);
  if (at_least > 0)
    std::printf("   target >= %.2f: %s", at_least, c.ratio.median >= at_least ? "ok" : "MISS");
  std::printf("\n");
}

// ---- whole sequences

// Fully cached: every block but the last is found.
void cached(std::size_t tokens) {
  auto manager = make_manager();
  const SequenceManager<G1> sequences(manager, {.register_blocks = RegisterBlocks::kAtOnce});
  const std::vector<Token> prompt = make_prompt(tokens, 1);
  const std::vector<SequenceHash> names = names_of(prompt);
  auto sequence = *sequences.make_sequence(prompt, names);
  const auto turn = [&] {
    ASHLAR_CHECK(sequences.allocate(sequence).has_value(), "room");
    ASHLAR_CHECK(sequences.deallocate(sequence).has_value(), "blocks");
  };
  turn();
  ASHLAR_CHECK(*sequences.allocate(sequence) == tokens - kBlockSize, "all but the last block is cached");
  ASHLAR_CHECK(sequences.deallocate(sequence).has_value(), "blocks");

  const std::span<const SequenceHash> found(names.data(), names.size() - 1);
  std::vector<ImmutableBlock<G1>> guards(found.size());
  const auto bare = [&] {
    ASHLAR_CHECK(manager.match_blocks(found, guards) == found.size(), "all are cached");
    ImmutableBlock<G1>::release(guards);
  };
  const std::string size = std::to_string(tokens) + " tokens";
  line("cached, beside match + drop, " + size, names.size(), compare(turn, bare),
       tokens < 32768 ? 0 : 1 / 1.3);

  bench::NaiveSequenceManager naive(kPool, kBlockSize);
  bench::NaiveSequence other{prompt, names, {}, 0};
  const auto naive_turn = [&] {
    ASHLAR_CHECK(naive.allocate(other), "room");
    naive.deallocate(other);
  };
  naive_turn();
  line("cached, beside a naive manager, " + size, names.size(), compare(turn, naive_turn));
}

// Never seen: every block is new, and evicts an old one.
void cold(std::size_t tokens) {
  auto manager = make_manager();
  const SequenceManager<G1> sequences(manager, {.register_blocks = RegisterBlocks::kAtOnce});
  const std::size_t count = std::max<std::size_t>(2 * kPool * kBlockSize / tokens, 4);
  std::vector<Sequence<G1>> ours;
  std::vector<bench::NaiveSequence> others;
  for (std::size_t i = 0; i < count; ++i) {
    auto prompt = make_prompt(tokens, static_cast<std::uint32_t>(i) + 1);
    auto names = names_of(prompt);
    ours.push_back(*sequences.make_sequence(prompt, names));
    others.push_back({std::move(prompt), std::move(names), {}, 0});
  }
  bench::NaiveSequenceManager naive(kPool, kBlockSize);
  std::size_t next = 0;
  const auto turn = [&] {
    Sequence<G1>& sequence = ours[next++ % count];
    ASHLAR_CHECK(*sequences.allocate(sequence) == 0, "nothing is cached");
    ASHLAR_CHECK(sequences.deallocate(sequence).has_value(), "blocks");
  };
  std::size_t other_next = 0;
  const auto naive_turn = [&] {
    bench::NaiveSequence& sequence = others[other_next++ % count];
    ASHLAR_CHECK(naive.allocate(sequence) && sequence.cached_tokens == 0, "nothing is cached");
    naive.deallocate(sequence);
  };
  for (std::size_t i = 0; i < count; ++i) turn(), naive_turn();
  line("cold, beside a naive manager, " + std::to_string(tokens) + " tokens", tokens / kBlockSize,
       compare(turn, naive_turn));
}

// ---- decode steps

void decode(std::size_t requests) {
  constexpr std::size_t kPrompt = 4 * kBlockSize;
  constexpr std::size_t kMaxTokens = 4096;
  auto manager = make_manager();
  std::vector<RequestSequence<G1>> running;
  std::vector<std::vector<Token>> arrays(requests);
  SequenceBatch<G1> batch;
  running.reserve(requests);
  for (std::size_t i = 0; i < requests; ++i) {
    auto prompt = make_prompt(kPrompt, static_cast<std::uint32_t>(i) + 1);
    arrays[i].reserve(kMaxTokens);
    arrays[i] = prompt;
    running.push_back(*RequestSequence<G1>::create(manager, std::move(prompt), {.max_tokens = kMaxTokens}));
    ASHLAR_CHECK(running[i].schedule_prefill(kPrompt).has_value(), "room");
    ASHLAR_CHECK(running[i].apply_prefill(Token(1)).has_value(), "prefill");
    arrays[i].push_back(Token(1));
    batch.add(running[i]);
  }
  std::vector<Token> tokens(requests, Token(7));
  const auto step = [&] {
    ASHLAR_CHECK(batch.schedule_decode().has_value(), "room");
    ASHLAR_CHECK(batch.apply_decode(tokens).has_value(), "a step");
  };
  const auto append = [&] {
    for (std::size_t i = 0; i < requests; ++i) arrays[i].push_back(tokens[i]);
  };
  // One round is a block: the first step takes it, the last registers it, those between only append.
  constexpr std::size_t kInside = kBlockSize - 2;
  std::vector<double> ours, rival, ratio, first, last;
  for (std::size_t round = 0; round < 51; ++round) {
    first.push_back(bench::time_calls(step, 1));
    const double mine = bench::time_calls(step, kInside);
    last.push_back(bench::time_calls(step, 1));
    append();
    const double theirs = bench::time_calls(append, kInside);
    append();
    ours.push_back(mine);
    rival.push_back(theirs);
    ratio.push_back(theirs / mine);
  }
  for (std::size_t i = 0; i < requests; ++i) {
    ASHLAR_CHECK(std::ranges::equal(running[i].tokens(), arrays[i]), "request %zu has other tokens", i);
  }
  const std::string size = std::to_string(requests) + " requests";
  line("decode inside a block, " + size, requests,
       {bench::spread_of(ours), bench::spread_of(rival), bench::spread_of(ratio)}, 1.0 / 3);
  std::printf("%-34s %8zu %10.1f\n", "decode that takes a block", requests,
              bench::spread_of(first).median / static_cast<double>(requests));
  std::printf("%-34s %8zu %10.1f\n", "decode that registers a block", requests,
              bench::spread_of(last).median / static_cast<double>(requests));
}

// ---- over tiers

// Half a kilobyte per block: the copies cost little beside the calls.
std::unique_ptr<tiers::KvBlockManager> make_tiers(tiers::Trigger trigger) {
  tiers::OffloadRoute to_g2;
  to_g2.trigger = trigger;
  auto made = tiers::KvBlockManager::create({.model = {.num_layers = 1,
                                                       .outer_dim = 2,
                                                       .block_size = kBlockSize,
                                                       .num_heads = 1,
                                                       .head_dim = 8,
                                                       .inner_dim = 8,
                                                       .dtype = layout::Dtype::kBF16},
                                             .block_size = kBlockSize,
                                             .keys = tokens::NamespaceFingerprint::from_bits(11, 12),
                                             .g1 = {.block_count = kPool},
                                             .g2 = tiers::TierShape{.block_count = kPool},
                                             .to_g2 = to_g2});
  ASHLAR_CHECK(made.has_value(), "tiers: %s", made.error().to_string().c_str());
  return *std::move(made);
}

// Prefills prompts that are not cached, and lets them go: from the second round on each evicts another.
class Prefills {
 public:
  explicit Prefills(BlockManager<G1>& manager) : manager_(manager) {
    for (std::uint32_t i = 0; i < kCount; ++i) {
      prompts_.push_back(make_prompt(kTokens, i + 1));
      names_.push_back(names_of(prompts_.back()));
    }
    for (std::size_t i = 0; i < kCount; ++i) turn();
  }
  void turn() {
    const std::size_t which = next_++ % kCount;
    auto request = *RequestSequence<G1>::create(manager_, prompts_[which], names_[which], {});
    ASHLAR_CHECK(request.schedule_prefill(kTokens).has_value(), "room");
    ASHLAR_CHECK(request.apply_prefill(Token(1)).has_value(), "prefill");
  }
  static constexpr std::size_t kTokens = 4096;

 private:
  static constexpr std::size_t kCount = 2 * kPool * kBlockSize / kTokens;

  BlockManager<G1>& manager_;
  std::vector<std::vector<Token>> prompts_;
  std::vector<std::vector<SequenceHash>> names_;
  std::size_t next_ = 0;
};

// Decodes a batch of requests in a pool that is full of what others left: each block evicts one.
class Decodes {
 public:
  explicit Decodes(BlockManager<G1>& manager) : tokens_(kRequests, Token(7)) {
    Prefills fills_the_pool(manager);
    running_.reserve(kRequests);
    for (std::size_t i = 0; i < kRequests; ++i) {
      running_.push_back(*RequestSequence<G1>::create(
          manager, make_prompt(kBlockSize, static_cast<std::uint32_t>(i) + 100'000), {.max_tokens = 2048}));
      ASHLAR_CHECK(running_[i].schedule_prefill(kBlockSize).has_value(), "room");
      ASHLAR_CHECK(running_[i].apply_prefill(Token(1)).has_value(), "prefill");
    }
    for (RequestSequence<G1>& request : running_) batch_.add(request);
  }
  // A block for each request.
  void round() {
    for (std::size_t i = 0; i < kBlockSize; ++i) {
      ASHLAR_CHECK(batch_.schedule_decode().has_value(), "room");
      ASHLAR_CHECK(batch_.apply_decode(tokens_).has_value(), "a step");
    }
  }
  static constexpr std::size_t kRequests = 1000;

 private:
  std::vector<RequestSequence<G1>> running_;
  SequenceBatch<G1> batch_;
  std::vector<Token> tokens_;
};

void over_tiers(const char* name, tiers::Trigger trigger) {
  {
    auto kv = make_tiers(trigger);
    auto alone = make_manager();
    Prefills ours(kv->g1());
    Prefills theirs(alone);
    line("prefill, beside a manager alone, " + std::string(name), Prefills::kTokens / kBlockSize,
         compare([&] { ours.turn(); }, [&] { theirs.turn(); }));
  }
  auto kv = make_tiers(trigger);
  auto alone = make_manager();
  Decodes ours(kv->g1());
  Decodes theirs(alone);
  std::vector<double> mine, others, ratio;
  for (std::size_t round = 0; round < 51; ++round) {
    mine.push_back(bench::time_calls([&] { ours.round(); }, 1));
    others.push_back(bench::time_calls([&] { theirs.round(); }, 1));
    ratio.push_back(others.back() / mine.back());
  }
  line("decode, beside a manager alone, " + std::string(name), Decodes::kRequests,
       {bench::spread_of(mine), bench::spread_of(others), bench::spread_of(ratio)});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    std::fprintf(stderr, "sequence_bench: unknown option %s; it takes none\n", argv[1]);
    return 2;
  }
  head("allocate + free, ns per block");
  for (const std::size_t tokens : {512u, 32768u}) cached(tokens);
  for (const std::size_t tokens : {512u, 32768u}) cold(tokens);
  head("decode step, ns per request");
  decode(1000);
  head("over a G2, ns per block");
  over_tiers("write-through", tiers::Trigger::kOnArrival);
  over_tiers("write-back", tiers::Trigger::kNearEviction);
  return 0;
}
