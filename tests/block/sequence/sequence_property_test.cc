// A SequenceManager in lockstep with its naive model: random programs over few tokens and few blocks, so that
// prefixes meet and blocks run out; everything observable is compared after each step.
//
// A failure prints the seed and the program; the seeds 1 … kSeeds always run.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/time_box.h"
#include "block/property/trace.h"
#include "block/sequence/naive_sequences.h"
#include "support/rounds.h"

namespace ashlar::block::sequences {
namespace {

using events::G1;
using property::Trace;
using property::TraceOnAbort;
using tokens::SequenceHash;
using tokens::Token;

constexpr std::uint64_t kSeeds = 800;
constexpr std::size_t kSteps = 100;
constexpr std::size_t kMostSequences = 8;

std::vector<Token> to_tokens(const Tokens& numbers) {
  std::vector<Token> made;
  for (const std::uint32_t number : numbers) made.emplace_back(number);
  return made;
}

class Lockstep {
 public:
  Lockstep(const NaiveOptions& options, Random random, Trace& trace)
      : options_(options),
        random_(random),
        trace_(trace),
        log_(testing::make_event_log()),
        manager_(make_manager()),
        sequences_(manager_, {.hasher = {},
                              .register_blocks = options.register_blocks,
                              .reuse_last_token = options.reuse_last_token}),
        model_(options) {
    for (int i = 0; i < 2; ++i) stems_.push_back(random_tokens(random_.below(5 * options_.block_size + 2)));
  }

  void step() {
    if (pairs_.empty()) return make();
    Pair& pair = pairs_[random_.below(pairs_.size())];
    const std::string who = std::to_string(pair.number);
    // Most blocks should be in somebody's hands.
    if (pair.naive.table.empty() && random_.chance(0.5)) return allocate(pair, who);
    switch (random_.below(16)) {
      case 0:
      case 1:
        return make();
      case 2:
      case 3:
      case 4:
        return allocate(pair, who);
      case 5:
      case 6:
      case 7:
        return append(pair, who);
      case 8:
      case 9:
        return may_append(pair, who);
      case 10:
      case 11:
      case 12:
        return computed(pair, who);
      case 13:
        return deallocate(pair, who);
      case 14:
        return random_.chance(0.2) ? reset_cached() : ask(pair, who);
      default:
        return drop(pair, who);
    }
  }

  void compare() {
    manager_.check_invariants();
    for (const Pair& pair : pairs_) {
      std::vector<Id> table;
      for (const BlockId id : pair.real.block_table()) table.push_back(id.value());
      trace_.expect_equal(("table of " + std::to_string(pair.number)).c_str(), table, pair.naive.table);
      trace_.expect_equal("tokens", pair.real.size(), pair.naive.tokens.size());
      trace_.expect_equal("cached tokens", pair.real.cached_tokens(), pair.naive.cached);
      trace_.expect_equal("computed tokens", pair.real.computed_tokens(), pair.naive.computed);
    }
    expect_one_writer();
    const PoolStatus status = manager_.status();
    trace_.expect_equal("reset", status.reset, model_.empty());
    trace_.expect_equal("inactive", status.inactive, model_.cached());
    trace_.expect_equal("active", status.active, model_.in_use());
    trace_.expect_equal("owned", status.owned, model_.owned());

    std::vector<SequenceHash> victims;
    for (const Tokens& prefix : model_.victims()) victims.push_back(name_of(prefix));
    trace_.expect_equal("victims", manager_.eviction_candidates(manager_.total_blocks()), victims);

    std::map<SequenceHash, Id> found;
    manager_.for_each_registered([&](const SequenceHash& hash, BlockId id) { found[hash] = id.value(); });
    std::map<SequenceHash, Id> expected;
    for (const auto& [prefix, id] : model_.primaries()) expected[name_of(prefix)] = id;
    trace_.expect_equal("registered", found, expected);

    log_->drain(mirror_);
    if (!mirror_.problem().empty()) trace_.fail(mirror_.problem());
    std::set<SequenceHash> present;
    for (const auto& [hash, id] : expected) present.insert(hash);
    std::set<SequenceHash> published;
    for (const auto& [tier, hash] : mirror_.present()) published.insert(hash);
    trace_.expect_equal("published", published, present);
  }

  void drop_everything() {
    while (!pairs_.empty() && !trace_.failed()) {
      drop(pairs_.front(), std::to_string(pairs_.front().number));
      compare();
    }
    trace_.expect_equal("free at the end", manager_.available_blocks(), manager_.total_blocks());
  }

 private:
  struct Pair {
    std::size_t number;
    Sequence<G1> real;
    NaiveSequence naive;
  };

  // A sequence writes the blocks of the tokens that were neither cached nor computed. Nobody else does, and
  // unless blocks are registered at once nobody else has them.
  void expect_one_writer() {
    std::map<Id, std::size_t> tables;
    std::map<Id, std::size_t> writers;
    const auto first_written = [&](const Pair& pair) { return pair.naive.computed / options_.block_size; };
    for (const Pair& pair : pairs_) {
      const auto table = pair.real.block_table();
      for (const BlockId id : table) ++tables[id.value()];
      for (std::size_t i = first_written(pair); i < table.size(); ++i) ++writers[table[i].value()];
    }
    for (const auto& [id, count] : writers) {
      const bool at_once = options_.register_blocks == RegisterBlocks::kAtOnce;
      if (count > 1 || (!at_once && tables[id] > 1))
        trace_.fail("block " + std::to_string(id) + " is written by one sequence and is another's");
    }
  }

  BlockManager<G1> make_manager() {
    ManagerOptions manager = testing::manager_options(options_.block_count, options_.block_size);
    manager.duplicates = options_.duplicates;
    manager.events = log_;
    return testing::make_manager<G1>(manager);
  }

  Tokens random_tokens(std::size_t count) {
    Tokens made;
    while (made.size() < count) made.push_back(static_cast<std::uint32_t>(random_.below(2)));
    return made;
  }

  std::vector<SequenceHash> names_of(const Tokens& numbers) const {
    std::vector<tokens::BlockHashes> hashes(numbers.size() / options_.block_size);
    const auto hashed = hasher_.hash_blocks(std::nullopt, to_tokens(numbers), options_.block_size, hashes);
    EXPECT_TRUE(hashed.has_value());
    std::vector<SequenceHash> names;
    for (const tokens::BlockHashes& each : hashes) names.push_back(each.sequence);
    return names;
  }
  const SequenceHash& name_of(const Tokens& prefix) {
    const auto [known, is_new] = names_.try_emplace(prefix);
    if (is_new) known->second = names_of(prefix).back();
    return known->second;
  }

  static std::string text(const Tokens& numbers) {
    std::string text;
    for (const std::uint32_t number : numbers) text += std::to_string(number);
    return text.empty() ? "nothing" : text;
  }

  // The answers of the two sides to one call: both refuse for the same reason, or neither does.
  template <class T>
  bool agree(const Result<T, SequenceError>& real, const Result<T, NaiveSequences::Refused>& naive) {
    trace_.expect_equal("granted", real.has_value(), naive.has_value());
    if (!real || !naive) {
      trace_.note(" -> refused");
      if (!real && !naive) {
        trace_.expect_equal("reason", to_string(real.error().reason), to_string(naive.error().reason));
        const auto& refusal = real.error().refusal;
        trace_.expect_equal("refusal", refusal ? std::optional(refusal->reason) : std::nullopt,
                            naive.error().room);
      }
      return false;
    }
    return true;
  }
  void agree(const Result<void, AllocationRefusal>& real,
             const std::optional<AllocationRefusal::Reason>& naive) {
    trace_.expect_equal("refusal", real ? std::nullopt : std::optional(real.error().reason), naive);
  }

  void make() {
    if (pairs_.size() == kMostSequences) return drop(pairs_.front(), std::to_string(pairs_.front().number));
    Tokens prompt;
    if (!random_.chance(0.03)) {
      const Tokens& stem = stems_[random_.below(stems_.size())];
      const std::size_t kept = random_.chance(0.7) ? stem.size() : random_.below(stem.size() + 1);
      prompt.assign(stem.begin(), stem.begin() + static_cast<std::ptrdiff_t>(kept));
      const std::size_t more = random_.chance(0.4) ? 0 : random_.below(2 * options_.block_size + 1);
      const Tokens tail = random_tokens(random_.chance(0.05) ? options_.block_count + more : more);
      prompt.insert(prompt.end(), tail.begin(), tail.end());
    }
    std::vector<SequenceHash> names = names_of(prompt);
    if (random_.chance(0.7)) names.resize(random_.below(names.size() + 1));
    trace_.add(std::to_string(next_number_) + " = make_sequence(" + text(prompt) + ", " +
               std::to_string(names.size()) + " names)");
    auto made = sequences_.make_sequence(to_tokens(prompt), std::move(names));
    if (!made) return trace_.fail("make_sequence: " + made.error().to_string());
    pairs_.push_back({next_number_++, *std::move(made), {}});
    pairs_.back().naive.tokens = prompt;
  }

  void allocate(Pair& pair, const std::string& who) {
    trace_.add("allocate " + who);
    if (pair.naive.table.empty()) {
      agree(sequences_.can_allocate(pair.real), model_.why_not_allocate(pair.naive));
    }
    const auto real = sequences_.allocate(pair.real);
    const auto naive = model_.allocate(pair.naive);
    if (agree(real, naive)) trace_.expect_equal("cached tokens returned", *real, *naive);
  }

  void append(Pair& pair, const std::string& who) {
    const std::size_t count = random_.chance(0.8) ? 1 : 1 + random_.below(2 * options_.block_size);
    for (std::size_t i = 0; i < count; ++i) {
      const auto token = static_cast<std::uint32_t>(random_.below(2));
      trace_.add("append " + std::to_string(token) + " to " + who);
      pair.real.append(Token(token));
      pair.naive.tokens.push_back(token);
    }
    if (random_.chance(0.8)) may_append(pair, who);
  }

  void may_append(Pair& pair, const std::string& who) {
    trace_.add("may_append " + who);
    if (!pair.naive.table.empty()) {
      agree(sequences_.can_append(pair.real), model_.why_not_append(pair.naive));
    }
    const auto real = sequences_.may_append(pair.real);
    const auto naive = model_.may_append(pair.naive);
    if (!agree(real, naive)) return;
    trace_.expect_equal("new block", real->new_block, naive->new_block);
    trace_.expect_equal("block full", real->block_full, naive->block_full);
  }

  void computed(Pair& pair, const std::string& who) {
    const std::size_t size = pair.naive.tokens.size();
    const std::size_t upto = random_.chance(0.5) ? size : random_.below(size + 3);
    trace_.add("computed " + who + " to " + std::to_string(upto));
    const auto real = sequences_.computed(pair.real, upto);
    const auto naive = model_.computed(pair.naive, upto);
    if (agree(real, naive)) trace_.expect_equal("registered now", *real, *naive);
  }

  void deallocate(Pair& pair, const std::string& who) {
    trace_.add("deallocate " + who);
    agree(sequences_.deallocate(pair.real), model_.deallocate(pair.naive));
  }

  void ask(Pair& pair, const std::string& who) {
    trace_.add("can_allocate, can_append " + who);
    if (pair.naive.table.empty()) {
      trace_.expect_equal("can allocate", sequences_.can_allocate(pair.real).has_value(),
                          !model_.why_not_allocate(pair.naive).has_value());
    } else {
      trace_.expect_equal("can append", sequences_.can_append(pair.real).has_value(),
                          !model_.why_not_append(pair.naive).has_value());
    }
  }

  void reset_cached() {
    trace_.add("reset_inactive_pool");
    trace_.expect_equal("emptied", manager_.reset_inactive_pool(), model_.reset_cached());
  }

  void drop(Pair& pair, const std::string& who) {
    trace_.add("drop " + who);
    model_.drop(pair.naive);
    std::swap(pair, pairs_.back());
    pairs_.pop_back();
  }

  NaiveOptions options_;
  Random random_;
  Trace& trace_;
  tokens::SequenceHasher hasher_;
  std::shared_ptr<events::EventLog> log_;
  testing::PresenceMirror mirror_;
  BlockManager<G1> manager_;
  SequenceManager<G1> sequences_;
  NaiveSequences model_;
  std::vector<Tokens> stems_;  // what prompts begin with
  std::map<Tokens, SequenceHash> names_;
  std::vector<Pair> pairs_;
  std::size_t next_number_ = 0;
};

using Parameters = std::tuple<RegisterBlocks, DuplicatePolicy>;

class SequencePropertyTest : public ::testing::TestWithParam<Parameters> {
 protected:
  static bool run(std::uint64_t seed) {
    const auto& [register_blocks, duplicates] = GetParam();
    Random random(seed);
    NaiveOptions options;
    options.register_blocks = register_blocks;
    options.duplicates = duplicates;
    options.block_count = random.between(Id{4}, 24);
    options.block_size = 1u << random.below(3);
    options.reuse_last_token = random.chance(0.3);
    Trace trace("seed " + std::to_string(seed) + ", " + std::to_string(options.block_count) + " blocks of " +
                std::to_string(options.block_size) +
                (options.reuse_last_token ? ", the last token may be reused" : ""));
    const TraceOnAbort on_abort(trace);
    Lockstep lockstep(options, random.fork(), trace);
    for (std::size_t step = 0; step < kSteps && !trace.failed(); ++step) {
      lockstep.step();
      if (!trace.failed()) lockstep.compare();
    }
    lockstep.drop_everything();
    EXPECT_FALSE(trace.failed()) << trace.report();
    return !trace.failed();
  }
};

TEST_P(SequencePropertyTest, ManagerAndModelAgreeOnKnownSeeds) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(kSeeds); ++seed) ASSERT_TRUE(run(seed));
}

TEST_P(SequencePropertyTest, ManagerAndModelAgreeOnNewSeeds) {
  const testing::TimeBox box(1);
  std::uint64_t seed = kSeeds;
  while (!box.over()) ASSERT_TRUE(run(++seed));
  RecordProperty("seeds", std::to_string(seed));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SequencePropertyTest,
    ::testing::Combine(::testing::Values(RegisterBlocks::kWhenComputed, RegisterBlocks::kAtOnce),
                       ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject)),
    [](const auto& tested) {
      return std::string(std::get<0>(tested.param) == RegisterBlocks::kAtOnce ? "AtOnce" : "WhenComputed") +
             (std::get<1>(tested.param) == DuplicatePolicy::kAllow ? "_Allow" : "_Reject");
    });

}  // namespace
}  // namespace ashlar::block::sequences
