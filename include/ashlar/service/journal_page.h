// JournalPage: the live page over a journal: the decisions of a run by their time, and what its workers did
// and held then.
//
//   auto page = JournalPage::open(run.files, key).value();
//   auto proxy = HttpProxy::create({.port = 8090}, *page).value();
//
// The journal is replayed once. Of at most 2,000 moments the loads of all workers are kept, of every decision
// its candidates, as long as they fit into max_bytes: the oldest are left out, and the page says how many.
// The prefix tree of a moment is made by replaying the files again until then; the last four are kept. The
// files must stay.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/passage.h"

namespace ashlar::service {

// A run of `ashlar replay`, whose page has a report and other runs beside it: the gateway around this one
// answers /report and /runs.json.
struct ReplayedRun {
  std::uint32_t number = 0;  // from 1; 0: the journal is of a service
  std::string title = {};
};

class JournalPage final : public Gateway {
 public:
  // Errors: those of replay_journal(); kNotFound: the run has no decisions.
  static Result<std::unique_ptr<JournalPage>> open(std::span<const std::string> files, const JournalKey& key,
                                                   std::size_t max_bytes = std::size_t{1} << 30,
                                                   ReplayedRun replayed = {});
  ~JournalPage() override;

  std::unique_ptr<Passage> open() override;
  Due due() override { return {}; }
  void told(std::uint64_t, Result<Answer>) override {}
  void drain() override {}

  const ReplayReport& report() const noexcept;

 private:
  class State;
  explicit JournalPage(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::service
