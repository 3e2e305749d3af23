// ConcurrentRun: threads that write and threads that ask, at once, on one index; then the proof that the
// answers keep the rule of index/indexer.h and that the index holds in the end what the calls add up to.
//
// Stamps come from one counter, taken before and after every call. Under ThreadSanitizer they order nothing
// (relaxed), because otherwise they would hide races between calls that do not overlap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/index/make_index.h"
#include "index/concurrent/history.h"
#include "index/concurrent/plan.h"
#include "index/index_case.h"

namespace ashlar::index::concurrent {

using conformance::IndexCase;

struct RunOptions {
  std::uint64_t seed = 1;
  std::size_t writers = 2;
  std::size_t readers = 2;
  std::size_t calls = 600;  // in a round of each writer
  std::size_t most_rounds = 300;
  double seconds = 0.1;             // rounds begin until then, or until every reader has enough
  std::size_t enough = 500;         // answers beside which something happened
  std::size_t least_queries = 100;  // of each reader
};

class ConcurrentRun {
 public:
  // Asks an index several queries in one call, where it can.
  using FindMany = std::function<void(const AnyIndex&, std::span<const std::span<const LocalHash>>,
                                      std::span<MatchScores>)>;

  ConcurrentRun(const IndexCase& tested, const Load& load, const RunOptions& options,
                FindMany find_many = {});
  ~ConcurrentRun();
  ConcurrentRun(const ConcurrentRun&) = delete;
  ConcurrentRun& operator=(const ConcurrentRun&) = delete;

  // Nothing when all is well; else the first problem, in words.
  std::string problem();

  // What the run was worth, after problem().
  struct Worth {
    std::size_t queries = 0;      // that were checked
    std::size_t overlapping = 0;  // of these: a writer's call began or ended beside them
    std::size_t required = 0;     // blocks that the answers had to count
  };
  const Worth& worth() const noexcept { return worth_; }

 private:
  struct DoneCall {
    std::size_t call;  // its place in the plan
    Span span;
  };
  struct Writer {
    Plan plan;
    std::uint64_t whole_rounds = 0;
    std::vector<DoneCall> done = {};
    std::string problem = {};
  };
  struct Reader {
    std::vector<Answer> answers;
  };

  Stamp stamp() noexcept;
  void run_threads();
  // Makes rounds of calls, at least one.
  void write_rounds(Writer& writer);
  // Makes the calls from `from` to `to` of a writer's plan.
  void write(Writer& writer, std::size_t from, std::size_t to);
  void read(Reader& reader, std::uint64_t seed);
  // Asks several queries at once.
  void read_many(Reader& reader, Random& random, std::vector<MatchScores>& scores);
  // Whether an answer is worth checking: something happened beside it, or once in a while.
  static bool is_kept(const Span& when, Random& random) {
    return when.after - when.before > 1 || random.chance(0.03);
  }
  // Looks at the index as a whole from time to time.
  void watch();
  Answer answer_of(const Span& when, std::size_t query, bool early_exit, const MatchScores& scores) const;

  std::string check_answers();
  std::string check_end();

  IndexCase tested_;
  RunOptions options_;
  Load load_;
  FindMany find_many_;
  Paths paths_;
  std::vector<Worker> workers_;
  std::unique_ptr<AnyIndex> index_;
  IndexSizes empty_;
  std::vector<Writer> writers_;
  std::vector<Reader> readers_;
  std::atomic<Stamp> clock_{1};
  std::atomic<std::size_t> writing_{0};
  std::atomic<std::size_t> satisfied_{0};  // readers that have enough
  std::atomic<int> progress_{0};
  std::string watch_problem_;
  Worth worth_;
};

}  // namespace ashlar::index::concurrent
