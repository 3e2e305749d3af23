#include "index/concurrent/concurrent_run.h"

#include <algorithm>
#include <chrono>
#include <latch>
#include <limits>
#include <thread>
#include <utility>

#include "support/sanitizers.h"

namespace ashlar::index::concurrent {
namespace {

constexpr bool kLooseStamps = testing::kThreadSanitizer;

// Calls of an index that applies later, from one barrier to the next.
constexpr std::size_t kCallsToSettle = 16;
constexpr std::size_t kQueriesAtOnce = 4;
constexpr int kLooks = 2;

std::string differing(const char* what, const IndexSizes& found, const IndexSizes& expected) {
  const auto text = [](const IndexSizes& s) {
    return std::to_string(s.workers) + " workers, " + std::to_string(s.blocks) + " blocks, " +
           std::to_string(s.contents) + " contents, " + std::to_string(s.nodes) + " nodes, " +
           std::to_string(s.bytes) + " bytes, " + std::to_string(s.waiting_bytes) + " waiting";
  };
  return std::string(what) + ": " + text(found) + " instead of " + text(expected);
}

}  // namespace

ConcurrentRun::ConcurrentRun(const IndexCase& tested, const Load& load, const RunOptions& options,
                             FindMany find_many)
    : tested_(tested),
      options_(options),
      load_(load),
      find_many_(std::move(find_many)),
      paths_(options.seed, load.paths),
      index_(tested.make()),
      empty_(index_->sizes()),
      readers_(options.readers) {
  Random random(options.seed + 1);
  std::vector<std::vector<RunWorker>> owned(options.writers);
  for (std::size_t id = 0; id < load.workers; ++id) {
    for (std::uint32_t rank = 0; rank < load.ranks; ++rank) {
      const Worker worker{WorkerId(id), rank};
      owned[id % options.writers].push_back({worker, static_cast<std::uint32_t>(workers_.size())});
      workers_.push_back(worker);
    }
  }
  writers_.reserve(options.writers);
  for (std::vector<RunWorker>& workers : owned) {
    writers_.push_back(
        {.plan = Plan(paths_, load_, std::move(workers), tested.mid_chain, options.calls, random.next())});
  }
}

ConcurrentRun::~ConcurrentRun() = default;

Stamp ConcurrentRun::stamp() noexcept {
  if constexpr (kLooseStamps) {
    // The instruction orders all the same where sanitizers run; the compiler must not.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const Stamp now = clock_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return now;
  } else {
    return clock_.fetch_add(1);
  }
}

std::string ConcurrentRun::problem() {
  run_threads();
  for (const Writer& writer : writers_)
    if (!writer.problem.empty()) return writer.problem;
  if (!watch_problem_.empty()) return watch_problem_;
  if (std::string problem = check_answers(); !problem.empty()) return problem;
  return check_end();
}

void ConcurrentRun::run_threads() {
  for (Writer& writer : writers_) write(writer, 0, writer.plan.round());
  writing_ = writers_.size();
  std::latch start(static_cast<std::ptrdiff_t>(writers_.size() + readers_.size()));
  std::vector<std::thread> threads;
  for (Writer& writer : writers_) {
    threads.emplace_back([this, &writer, &start] {
      start.arrive_and_wait();
      write_rounds(writer);
      writing_.fetch_sub(1);
    });
  }
  for (std::size_t r = 0; r < readers_.size(); ++r) {
    threads.emplace_back([this, r, &start] {
      start.arrive_and_wait();
      read(readers_[r], options_.seed * 1000 + r);
    });
  }
  threads.emplace_back([this] { watch(); });
  for (std::thread& thread : threads) thread.join();
}

void ConcurrentRun::write_rounds(Writer& writer) {
  const bool is_first = &writer == &writers_.front();
  const auto say = [&](int progress) {
    if (!is_first) return;
    progress_.store(progress);
    progress_.notify_all();
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.seconds);
  const auto goes_on = [&] {
    return writer.whole_rounds + 1 < options_.most_rounds && satisfied_.load() < readers_.size() &&
           std::chrono::steady_clock::now() < end;
  };
  for (;;) {
    write(writer, writer.plan.round(), writer.plan.back());
    if (!goes_on()) break;
    write(writer, writer.plan.back(), writer.plan.calls().size());
    say(static_cast<int>(++writer.whole_rounds));
  }
  say(std::numeric_limits<int>::max());
}

void ConcurrentRun::write(Writer& writer, std::size_t from, std::size_t to) {
  std::size_t unsettled = writer.done.size();
  for (std::size_t i = from; i < to; ++i) {
    const PlannedCall& planned = writer.plan.calls()[i];
    DoneCall done{i, {}};
    done.span.before = stamp();
    const testing::CallAnswer answer = testing::apply(planned.call, *index_);
    done.span.after = stamp();
    writer.done.push_back(done);
    if (tested_.answers_at_once) {
      if (answer == planned.answer || !writer.problem.empty()) continue;
      writer.problem = to_string(planned.call) + " was answered " + to_string(answer) + " instead of " +
                       to_string(planned.answer);
    } else if (i + 1 == to || writer.done.size() - unsettled == kCallsToSettle) {
      index_->settle();
      const Stamp settled = stamp();
      for (; unsettled < writer.done.size(); ++unsettled) writer.done[unsettled].span.after = settled;
    }
  }
}

void ConcurrentRun::read(Reader& reader, std::uint64_t seed) {
  Random random(seed);
  MatchScores scores;  // kept from query to query, as callers do
  std::vector<MatchScores> many(kQueriesAtOnce);
  std::size_t asked = 0;
  bool satisfied = false;
  while (asked < options_.least_queries || writing_.load(std::memory_order_relaxed) != 0) {
    if (find_many_ && random.chance(0.5)) {
      read_many(reader, random, many);
      asked += many.size();
    } else {
      const std::size_t query = random.below(paths_.queries().size());
      const bool early_exit = random.chance(0.2);
      Span when;
      when.before = stamp();
      index_->find_matches(paths_.queries()[query].locals, scores, {.early_exit = early_exit});
      when.after = stamp();
      if (is_kept(when, random) || asked < options_.least_queries)
        reader.answers.push_back(answer_of(when, query, early_exit, scores));
      ++asked;
    }
    if (satisfied || reader.answers.size() < options_.enough + options_.least_queries) continue;
    satisfied = true;
    satisfied_.fetch_add(1);
  }
}

void ConcurrentRun::read_many(Reader& reader, Random& random, std::vector<MatchScores>& scores) {
  std::vector<std::size_t> queries(scores.size());
  std::vector<std::span<const LocalHash>> locals;
  for (std::size_t& query : queries) {
    query = random.below(paths_.queries().size());
    locals.emplace_back(paths_.queries()[query].locals);
  }
  Span when;
  when.before = stamp();
  find_many_(*index_, locals, scores);
  when.after = stamp();
  if (!is_kept(when, random)) return;
  for (std::size_t i = 0; i < scores.size(); ++i)
    reader.answers.push_back(answer_of(when, queries[i], false, scores[i]));
}

Answer ConcurrentRun::answer_of(const Span& when, std::size_t query, bool early_exit,
                                const MatchScores& scores) const {
  Answer answer{when, static_cast<std::uint32_t>(query), early_exit, scores.exact(), {}};
  scores.for_each(
      [&](const Worker& worker, const Score& score) { answer.scores.emplace_back(worker, score); });
  return answer;
}

void ConcurrentRun::watch() {
  for (int look = 0; look < kLooks; ++look) {
    for (int seen = progress_.load(); seen <= look; seen = progress_.load()) progress_.wait(seen);
    (void)index_->sizes();
    (void)index_->counters();
    testing::RecordedCalls dumped;
    index_->dump(dumped);
    // Whatever instant the dump shows of each worker, it can be replayed.
    testing::IndexOracle replayed(tested_.mid_chain);
    const std::vector<testing::CallAnswer> answers = dumped.replay(replayed);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].verdict.value_or(StoreVerdict::kApplied) == StoreVerdict::kApplied) continue;
      watch_problem_ =
          "a dump beside writers has a call that does not apply: " + to_string(dumped.calls()[i]);
      return;
    }
  }
}

std::string ConcurrentRun::check_answers() {
  History history(paths_, workers_);
  std::vector<Stamp> writes;
  for (const Writer& writer : writers_) {
    for (const DoneCall& done : writer.done) {
      history.add(done.span, writer.plan.calls()[done.call].changes);
      writes.push_back(done.span.before);
      writes.push_back(done.span.after);
    }
  }
  std::ranges::sort(writes);
  for (const Reader& reader : readers_) {
    for (const Answer& answer : reader.answers) {
      if (std::string problem = history.check(answer); !problem.empty()) return problem;
      ++worth_.queries;
      const auto next = std::ranges::upper_bound(writes, answer.when.before);
      if (next != writes.end() && *next < answer.when.after) ++worth_.overlapping;
    }
  }
  worth_.required = history.required();
  return {};
}

std::string ConcurrentRun::check_end() {
  testing::IndexOracle oracle(tested_.mid_chain);
  for (const Writer& writer : writers_)
    for (std::size_t i = 0; i < writer.plan.back(); ++i) testing::apply(writer.plan.calls()[i].call, oracle);
  index_->settle();

  IndexSizes sizes = index_->sizes();
  IndexSizes expected = oracle.sizes();
  if (sizes.workers != expected.workers || sizes.blocks != expected.blocks ||
      sizes.contents != expected.contents)
    return differing("at the end the index holds", sizes, expected);
  IndexCounters counted;
  for (const Writer& writer : writers_) writer.plan.add_counters(writer.whole_rounds, counted);
  if (index_->counters() != counted) return "at the end the counters differ from the oracle's";
  testing::IndexOracle held(tested_.mid_chain);
  index_->dump(held);
  if (std::string found = difference(oracle, held); !found.empty()) return "at the end: " + found;

  MatchScores scores;
  MatchScores right;
  for (const Path& query : paths_.queries()) {
    index_->find_matches(query.locals, scores);
    oracle.find_matches(query.locals, right);
    for (const Worker& worker : workers_)
      if (scores.of(worker) != right.of(worker)) return "at the end an answer differs from the oracle's";
  }

  for (const Worker& worker : workers_) index_->clear(worker);
  index_->settle();
  sizes = index_->sizes();
  if (sizes != empty_) return differing("after clearing all workers the index holds", sizes, empty_);
  return {};
}

}  // namespace ashlar::index::concurrent
