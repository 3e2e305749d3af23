// What the tests of requests share: a manager, an engine, steps that run through both, and a way to say that
// nothing changed.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/block/sequence_error.h"
#include "block/sequence/simulated_engine.h"
#include "support/block_fixture.h"

namespace ashlar::block::support {

using Request = RequestSequence<G1>;
using Batch = SequenceBatch<G1>;
using Engine = SimulatedEngine<G1>;
using Refused = SequenceError::Reason;
using Ids = std::vector<std::uint32_t>;

inline constexpr std::uint32_t kNone = kNoBlock.value();

inline Ids table_of(const Request& request, std::size_t group = 0) {
  Ids ids;
  for (const BlockId id : request.block_table(group)) ids.push_back(id.value());
  return ids;
}
inline std::vector<Token> tokens_of(std::initializer_list<std::uint32_t> values) {
  std::vector<Token> tokens;
  for (const std::uint32_t value : values) tokens.emplace_back(value);
  return tokens;
}
inline std::vector<Token> tokens_of(const Request& request) {
  return {request.tokens().begin(), request.tokens().end()};
}

// Everything that can be seen of a request and of the pool.
struct Snapshot {
  RequestState state;
  std::vector<Token> tokens;
  std::size_t computed;
  std::size_t cached;
  std::vector<Ids> tables;
  std::vector<BlockCopy> copies;
  std::vector<SequenceHash> hashes;

  explicit Snapshot(const Request& request)
      : state(request.state()),
        tokens(tokens_of(request)),
        computed(request.computed_tokens()),
        cached(request.cached_tokens()),
        copies(request.copies().begin(), request.copies().end()),
        hashes(request.sequence_hashes().begin(), request.sequence_hashes().end()) {
    for (std::size_t g = 0; g < request.group_count(); ++g) tables.push_back(table_of(request, g));
  }

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Snapshot& snapshot) {
    return out << to_string(snapshot.state) << ", " << snapshot.tokens.size() << " tokens, "
               << snapshot.computed << " computed, " << snapshot.cached << " cached, tables "
               << ::testing::PrintToString(snapshot.tables) << ", " << snapshot.copies.size() << " copies";
  }
};

// The reason of a refusal; a test that meets a success here fails.
template <class T, class E>
E error_of(const Result<T, E>& result) {
  EXPECT_FALSE(result.has_value()) << "the operation was not refused";
  return result.error();
}
template <class T>
std::optional<Refused> reason_of(const Result<T, SequenceError>& result) {
  return result ? std::nullopt : std::optional(result.error().reason);
}

class RequestTest : public ::testing::Test {
 protected:
  explicit RequestTest(std::uint32_t blocks = 32, DuplicatePolicy duplicates = DuplicatePolicy::kAllow,
                       std::vector<CacheGroup> groups = {})
      : manager_(value_of(builder_of(blocks).duplicate_policy(duplicates).build())),
        engine_(blocks, kBlockSize, std::move(groups)) {}

  Request request_of(std::vector<Token> prompt, RequestOptions options = {}) {
    options.groups = engine_.groups();
    return value_of(Request::create(manager_, std::move(prompt), std::move(options)));
  }
  // A prompt of `count` rising tokens.
  Request request_of(std::uint32_t first, std::size_t count, RequestOptions options = {}) {
    return request_of(tokens_from(first, count), std::move(options));
  }

  // Whole steps: scheduled, computed, applied, looked at.
  StepOutcome prefill(Request& request, std::size_t tokens, std::optional<Token> next = std::nullopt) {
    const auto plan = request.schedule_prefill(tokens);
    EXPECT_TRUE(plan.has_value()) << "not scheduled: " << why(plan);
    if (!plan) return {};
    EXPECT_EQ(engine_.run(request, tokens), "");
    return done(request, request.apply_prefill(next));
  }
  // All that is left.
  StepOutcome prefill_all(Request& request, std::uint32_t next) {
    return prefill(request, request.tokens_to_compute(), Token(next));
  }
  StepOutcome decode(Request& request, std::uint32_t next) {
    const auto plan = request.schedule_decode();
    EXPECT_TRUE(plan.has_value()) << "not scheduled: " << why(plan);
    if (!plan) return {};
    EXPECT_EQ(engine_.run(request, 1), "");
    return done(request, request.apply_decode(Token(next)));
  }
  // The accepted tokens begin with drafts.
  StepOutcome speculate(Request& request, std::vector<Token> drafts, std::vector<Token> accepted) {
    const auto plan = request.schedule_speculative(drafts.size());
    EXPECT_TRUE(plan.has_value()) << "not scheduled: " << why(plan);
    if (!plan) return {};
    EXPECT_EQ(engine_.run_with_drafts(request, drafts), "");
    return done(request, request.apply_speculative(accepted));
  }
  // A request that was computed whole and released: its full blocks are in the cache. Returns them, per
  // group.
  std::vector<Ids> cache(std::vector<Token> prompt, std::uint32_t next = 9'999) {
    Request request = request_of(std::move(prompt));
    value_of(request.match_prefix());
    prefill_all(request, next);
    std::vector<Ids> tables;
    for (std::size_t g = 0; g < request.group_count(); ++g) tables.push_back(table_of(request, g));
    return tables;
  }

  // How many leading tokens of the prompt a new request would find.
  std::size_t cached_tokens_of(std::vector<Token> prompt, RequestOptions options = {}) {
    Request probe = request_of(std::move(prompt), std::move(options));
    const std::size_t found = value_of(probe.match_prefix());
    EXPECT_EQ(probe.cached_tokens(), found);
    EXPECT_EQ(probe.computed_tokens(), found);
    EXPECT_EQ(engine_.check(probe), "");
    return found;
  }
  // Others find all full blocks of the computed tokens, and nothing after them.
  void expect_visible(const Request& request) {
    EXPECT_EQ(cached_tokens_of(tokens_of(request)), request.computed_tokens() / kBlockSize * kBlockSize);
  }
  // Somebody else takes every block that is to be had, and writes to it.
  void overwrite_available_blocks() {
    const auto taken = value_of(manager_.allocate_blocks(available()));
    for (const Mutable& block : taken) engine_.scribble(block.block_id());
  }
  // Ids by name of all that others can find.
  std::map<SequenceHash, std::uint32_t> registered() const {
    std::map<SequenceHash, std::uint32_t> found;
    manager_.for_each_registered(
        [&](const SequenceHash& hash, BlockId id) { found.emplace(hash, id.value()); });
    return found;
  }
  Places at() const { return places(manager_); }
  std::size_t available() const { return manager_.available_blocks(); }

  template <class T>
  static std::string why(const Result<T, SequenceError>& result) {
    return result ? "" : result.error().to_error().to_string();
  }

  Manager manager_;
  Engine engine_;

 private:
  StepOutcome done(const Request& request, const Result<StepOutcome, SequenceError>& outcome) {
    EXPECT_TRUE(outcome.has_value()) << "not applied: " << why(outcome);
    EXPECT_EQ(engine_.check(request), "");
    EXPECT_TRUE(request.copies().empty());
    manager_.check_invariants();
    return outcome ? *outcome : StepOutcome{};
  }
};

}  // namespace ashlar::block::support
