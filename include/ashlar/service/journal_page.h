// JournalPage: the live page over a journal: the decisions of a run by their time, and what its workers did
// and held then.
//
//   auto page = JournalPage::open(run.files, key).value();
//   auto proxy = HttpProxy::create({.port = 8090}, *page).value();
//
// The journal is replayed once. Of at most 2,000 moments the loads of all workers are kept, of every decision
// its candidates, as long as they fit into max_bytes: the oldest are left out, and the page says how many.
//
// Thread safety: thread-safe; immutable once it is open.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/passage.h"

namespace ashlar::service {

class JournalTimeline;

class JournalPage final : public Gateway {
 public:
  // Errors: those of replay_journal(); kNotFound: the run has no decisions.
  static Result<std::unique_ptr<JournalPage>> open(std::span<const std::string> files, const JournalKey& key,
                                                   std::size_t max_bytes = std::size_t{1} << 30);
  ~JournalPage() override;

  std::unique_ptr<Passage> open() override;
  Due due() override { return {}; }
  void told(std::uint64_t, Result<Answer>) override {}
  void drain() override {}

  const ReplayReport& report() const noexcept;

 private:
  explicit JournalPage(std::unique_ptr<const JournalTimeline> timeline);
  std::unique_ptr<const JournalTimeline> timeline_;
};

}  // namespace ashlar::service
