// RunJournals: the journals of the runs of a replay, for its page, in a folder that goes with the object.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/replay/simulate.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/journal_page.h"
#include "base/temporary_folder.h"

namespace ashlar::apps {

class RunJournals {
 public:
  // Errors: no folder, or no key in it.
  static Result<RunJournals> create();

  // The next run. Errors: those of JournalWriter.
  Result<void> begin(const replay::ReplayConfig& config);
  service::RouteLog* log() noexcept { return writer_.get(); }
  // Waits while much is not written yet: a writer that falls behind gives up.
  void keep_up();
  // The page over the run, in at most so many bytes. Errors: the journal could not be written, or read again.
  Result<std::shared_ptr<service::JournalPage>> finish(const std::string& title, std::size_t max_bytes);

 private:
  RunJournals(TemporaryFolder folder, const service::JournalKey& key)
      : folder_(std::move(folder)), key_(key) {}
  TemporaryFolder folder_;
  service::JournalKey key_;
  std::uint32_t number_ = 0;
  std::string path_;
  std::unique_ptr<service::JournalWriter> writer_;
};

// "lru, prefix, 4 workers, G1 2000, G2 8000".
std::string title_of(const replay::ReplayConfig& config);

}  // namespace ashlar::apps
