#include "index/lockstep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "index/index_printers.h"

namespace ashlar::index::conformance {

using testing::CallAnswer;
using testing::IndexCall;
using testing::IndexOracle;
using testing::RecordedCalls;

namespace {

template <class T>
std::string unequal(const std::string& what, const T& index, const T& oracle) {
  return what + ": the index says " + ::testing::PrintToString(index) + ", the oracle " +
         ::testing::PrintToString(oracle);
}

IndexSizes without_structure(IndexSizes sizes) {
  sizes.nodes = sizes.bytes = sizes.waiting_bytes = 0;
  return sizes;
}

// The matched workers, and what is wrong with the answer in itself.
std::string collect(const MatchScores& scores, std::map<Worker, Score>& by_worker) {
  std::string problem;
  scores.for_each([&](const Worker& worker, const Score& score) {
    if (!by_worker.emplace(worker, score).second)
      problem = "two slots for worker " + ::testing::PrintToString(worker);
  });
  for (std::size_t slot = 0; slot < scores.slots(); ++slot)
    if (scores.depths()[slot] == 0 && scores.score(slot) != Score{})
      problem = "slot " + std::to_string(slot) + " has blocks but no depth";
  return problem;
}

}  // namespace

Lockstep::Lockstep(const IndexCase& tested)
    : tested_(tested), index_(tested.make()), oracle_(tested.mid_chain), empty_sizes_(index_->sizes()) {}

std::string Lockstep::apply(const IndexCall& call) {
  const CallAnswer answer = testing::apply(call, *index_);
  const CallAnswer expected = testing::apply(call, oracle_);
  if (tested_.answers_at_once && answer != expected)
    return "the index answers " + to_string(answer) + ", the oracle " + to_string(expected);
  return compare_presence(call);
}

std::string Lockstep::compare_presence(const IndexCall& call) {
  std::vector<BlockName> names;
  Worker worker;
  if (const auto* store = std::get_if<testing::StoreCall>(&call)) {
    worker = store->worker;
    if (store->parent) names.push_back(*store->parent);
    for (const StoredBlock& block : store->blocks) names.push_back(block.name);
  } else if (const auto* remove = std::get_if<testing::RemoveCall>(&call)) {
    worker = remove->worker;
    names = remove->names;
  } else if (const auto* clear = std::get_if<testing::ClearCall>(&call)) {
    worker = clear->worker;
  } else {
    worker = {std::get<testing::RemoveWorkerCall>(call).worker, 0};
  }
  called_.insert(worker);
  return compare_presence(worker, names);
}

std::string Lockstep::compare_presence(const Worker& worker, std::span<const BlockName> names) {
  std::vector<BlockPresence> held(names.size());
  std::vector<BlockPresence> expected(names.size());
  oracle_.presence(worker, names, expected);
  if (!index_->presence(worker, names, held)) return "the index does not tell what a name means";
  return held == expected ? std::string() : unequal("presence", held, expected);
}

std::string Lockstep::compare_list(const Worker& worker) {
  std::vector<BlockPresence> held;
  std::vector<BlockPresence> expected;
  oracle_.list(worker, expected);
  if (!index_->list(worker, held)) return "the index does not tell what a worker holds";
  std::ranges::sort(held, {}, &BlockPresence::name);
  if (held != expected) return unequal("list", held, expected);
  std::vector<BlockName> names;
  for (const BlockPresence& block : expected) names.push_back(block.name);
  return compare_presence(worker, names);
}

std::string Lockstep::compare_state() {
  index_->settle();
  const IndexSizes sizes = without_structure(index_->sizes());
  if (sizes != oracle_.sizes()) return unequal("sizes", sizes, oracle_.sizes());
  if (index_->counters() != oracle_.counters())
    return unequal("counters", index_->counters(), oracle_.counters());
  for (const Worker& worker : std::exchange(called_, {}))
    if (std::string problem = compare_list(worker); !problem.empty()) return problem;
  return {};
}

std::string Lockstep::compare_answers(std::span<const LocalHash> query) {
  index_->settle();
  std::string problem = compare_answers(*index_, query, false);
  return problem.empty() ? compare_answers(*index_, query, true) : problem;
}

std::string Lockstep::compare_answers(const AnyIndex& index, std::span<const LocalHash> query,
                                      bool early_exit) {
  index.find_matches(query, found_, {.early_exit = early_exit});
  oracle_.find_matches(query, expected_, {.early_exit = early_exit});
  std::map<Worker, Score> found;
  std::map<Worker, Score> expected;
  std::string problem = collect(found_, found);
  collect(expected_, expected);
  if (problem.empty() && found != expected) problem = unequal("scores", found, expected);
  if (problem.empty() && found_.exact() != expected_.exact())
    problem = unequal("exact", found_.exact(), expected_.exact());
  if (problem.empty()) return {};
  std::string locals;
  for (std::size_t i = 0; i < query.size() && i < 40; ++i) locals += " " + std::to_string(query[i].value());
  return problem + "\n  for the query of " + std::to_string(query.size()) + " blocks" +
         (early_exit ? " with early_exit:" : ":") + locals;
}

std::string Lockstep::compare_dumps(std::span<const std::vector<LocalHash>> queries) {
  index_->settle();
  IndexOracle dumped(tested_.mid_chain);
  RecordedCalls calls;
  index_->dump(calls);
  for (const IndexCall& call : calls.calls()) {
    const CallAnswer answer = testing::apply(call, dumped);
    if (answer.verdict.value_or(StoreVerdict::kApplied) != StoreVerdict::kApplied)
      return "a call of the dump does not apply: " + to_string(call) + ": " + to_string(answer);
  }
  if (dumped.counters().unknown_removals != 0) return "the dump removes what it did not store";
  if (std::string problem = difference(dumped, oracle_); !problem.empty())
    return "the dump is on the left, the oracle on the right: " + problem;

  const std::unique_ptr<AnyIndex> other = tested_.make();
  calls.replay(*other);
  other->settle();
  const IndexSizes sizes = without_structure(other->sizes());
  if (sizes != oracle_.sizes()) return unequal("sizes of the rebuilt index", sizes, oracle_.sizes());
  for (const std::vector<LocalHash>& query : queries) {
    for (const bool early_exit : {false, true}) {
      std::string problem = compare_answers(*other, query, early_exit);
      if (!problem.empty()) return "the rebuilt index: " + problem;
    }
  }
  return {};
}

std::string Lockstep::remove_everything(bool name_by_name) {
  RecordedCalls stores;
  oracle_.dump(stores);
  // The dump names every block after those before it, so that its reverse removes from the ends.
  for (auto call = stores.calls().rbegin(); call != stores.calls().rend(); ++call) {
    const auto* store = std::get_if<testing::StoreCall>(&*call);
    if (store == nullptr) continue;
    const std::vector<BlockName> names = {store->blocks.front().name};
    std::string problem = name_by_name ? apply(testing::RemoveCall{store->worker, store->tier, names})
                                       : apply(testing::ClearCall{store->worker});
    if (!problem.empty()) return problem;
  }
  if (std::string problem = compare_state(); !problem.empty()) return problem;
  if (index_->sizes() != empty_sizes_)
    return "with nothing held the sizes are " + ::testing::PrintToString(index_->sizes()) + ", at first " +
           ::testing::PrintToString(empty_sizes_);
  return {};
}

std::vector<IndexCall> shrink(std::vector<IndexCall> calls,
                              const std::function<bool(std::span<const IndexCall>)>& fails, int most_tries) {
  for (std::size_t piece = calls.size() / 2; piece > 0;) {
    bool shorter = false;
    for (std::size_t from = 0; from < calls.size() && most_tries > 0;) {
      std::vector<IndexCall> without = calls;
      const auto begin = without.begin() + static_cast<std::ptrdiff_t>(from);
      without.erase(begin, begin + static_cast<std::ptrdiff_t>(std::min(piece, without.size() - from)));
      --most_tries;
      if (fails(without)) {
        calls = std::move(without);
        shorter = true;
      } else {
        from += piece;
      }
    }
    if (!shorter || piece > 1) piece /= 2;
    if (most_tries <= 0) break;
  }
  return calls;
}

}  // namespace ashlar::index::conformance
