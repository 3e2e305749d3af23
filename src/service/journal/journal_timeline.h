// JournalTimeline: a journal in memory, by time.
//
// Decisions are kept with all candidates. Loads of workers are kept for moments: all of them as long as there
// are few, then those that are far enough apart.
//
// Thread safety: immutable after read().
// Complexity:    read() replays the journal; questions are O(log).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/service/journal.h"

namespace ashlar::service {

// Sums over the decisions so far. Tokens of prompts whose tokens are known.
struct JournalTotals {
  std::uint64_t decisions = 0;
  std::array<std::uint64_t, 3> states{};  // of the chosen worker
  std::uint64_t prompt_tokens = 0;
  std::uint64_t available_tokens = 0;
  std::uint64_t cached_tokens = 0;
  std::array<std::uint64_t, events::kStorageTiers> hit_blocks{};
  std::array<std::uint64_t, kMissReasons> missed_blocks{};  // of those that were replayed as written

  void count(const Decision& decision);
};

class JournalTimeline {
 public:
  static constexpr std::size_t kMostMoments = 2000;
  static constexpr std::size_t kMostLoads = 400'000;  // of workers, in all moments

  struct Made {
    Decision decision;
    std::string group;
    ReplayVerdict verdict = ReplayVerdict::kNotReplayed;
    JournalTotals totals;  // with this one
  };
  struct Moment {
    Clock::TimePoint time;
    JournalTotals totals;
    std::vector<WorkerLoad> loads;
  };

  // Errors: as JournalPage::open().
  static Result<std::unique_ptr<JournalTimeline>> read(std::span<const std::string> files,
                                                       const JournalKey& key, std::size_t max_bytes);

  const ReplayReport& report() const noexcept { return report_; }
  // In their order; the first ones may be left out.
  const std::deque<Made>& decisions() const noexcept { return decisions_; }
  std::uint64_t left_out() const noexcept { return left_out_; }
  // How many of decisions() were made until then.
  std::size_t made_until(Clock::TimePoint time) const;
  const Made* find(DecisionId id) const;
  // Empty where nothing could be replayed.
  const std::vector<Moment>& moments() const noexcept { return moments_; }
  // The last one until then; null: none.
  const Moment* moment_at(Clock::TimePoint time) const;
  Clock::TimePoint begin() const noexcept { return begin_; }
  Clock::TimePoint end() const noexcept { return end_; }

 private:
  void add(const Decision& decision, const std::string& group, ReplayVerdict verdict);
  void add_moment(Clock::TimePoint time, const std::function<std::vector<WorkerLoad>()>& loads);
  void thin_moments();

  std::size_t max_bytes_ = 0;
  std::size_t bytes_ = 0;
  ReplayReport report_;
  JournalTotals totals_;
  std::deque<Made> decisions_;
  std::uint64_t left_out_ = 0;
  std::vector<Moment> moments_;
  std::size_t loads_ = 0;                            // of them
  Clock::Duration apart_ = Clock::Duration::zero();  // moments, at least
  Clock::TimePoint begin_{};
  Clock::TimePoint end_{};
};

}  // namespace ashlar::service
