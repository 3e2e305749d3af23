// PastPage: the page over the journal that the service writes itself, under /past/: the same page with time
// travel.
//
// The journal is read when the page is opened, and again when it is opened later than kKept: what is asked in
// between is about the journal as it was then. Of a long journal the youngest files are read: kMostBytes of
// them, and the file that they begin in.
//
// Thread safety: thread-safe; questions wait for a journal that is being read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/journal_page.h"

namespace ashlar::service {

class PastPage {
 public:
  static constexpr Clock::Duration kKept = std::chrono::seconds(2);
  static constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // of files
  static constexpr std::size_t kMostDecisions = std::size_t{64} << 20;   // bytes of them in memory

  // Of a run's files those that are read: from the youngest back until they have `most` bytes, each with at
  // most twice as many. Errors: kCapacity: the youngest has more; kNotFound: it is not there.
  static Result<std::span<const std::string>> youngest(std::span<const std::string> files,
                                                       std::uint64_t most);

  // Takes long: it may replay the journal. `target` begins behind /past.
  // 503: the journal cannot be read, or has no decision yet.
  Reply answer(JournalWriter& writer, const std::string& folder, const std::string& key_path,
               std::uint64_t run, const ClientRequest& request, std::string_view target);

 private:
  static Result<std::shared_ptr<JournalPage>> read(const std::string& folder, const std::string& key_path,
                                                   std::uint64_t run);

  Mutex mu_;
  std::shared_ptr<JournalPage> page_ ASHLAR_GUARDED_BY(mu_);
  Clock::TimePoint read_at_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::service
