#include "service/gateway/past_page.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <variant>

#include "service/gateway/api.h"
#include "service/gateway/json_text.h"

namespace ashlar::service {

Result<std::span<const std::string>> PastPage::youngest(std::span<const std::string> files,
                                                        std::uint64_t most) {
  std::size_t first = files.size();
  for (std::uint64_t bytes = 0; first > 0 && bytes < most; --first) {
    std::error_code failed;
    const std::uint64_t size = std::filesystem::file_size(files[first - 1], failed);
    const bool is_read = !failed && size <= 2 * most;
    if (!is_read && first < files.size()) break;
    if (failed) return Error(ErrorCode::kNotFound, files.back() + " cannot be read: " + failed.message());
    if (!is_read)
      return Error(ErrorCode::kCapacity, files.back() + " has " + std::to_string(size) +
                                             " bytes, too many to read them beside the service: use ashlar "
                                             "explain, and smaller files (journal_file_bytes)");
    bytes += size;
  }
  return files.subspan(first);
}

Result<std::shared_ptr<JournalPage>> PastPage::read(const std::string& folder, const std::string& key_path,
                                                    std::uint64_t run) {
  ASHLAR_TRY(const JournalKey key, load_journal_key(key_path, false));
  ASHLAR_TRY(const std::vector<JournalRun> runs, find_journals(folder));
  const std::string name = decision_name(run, DecisionId(0)).substr(0, 16);
  const auto found = std::ranges::find(runs, name, &JournalRun::name);
  if (found == runs.end()) return Error(ErrorCode::kNotFound, "the journal is not in its folder any more");
  ASHLAR_TRY(const std::span<const std::string> files, youngest(found->files, kMostBytes));
  ASHLAR_TRY(auto page, JournalPage::open(files, key, kMostDecisions));
  return std::shared_ptr<JournalPage>(std::move(page));
}

Reply PastPage::answer(JournalWriter& writer, const std::string& folder, const std::string& key_path,
                       std::uint64_t run, const ClientRequest& request, std::string_view target) {
  std::shared_ptr<JournalPage> page;
  {
    const MutexLock lock(mu_);
    // A page that is opened asks for the end of the journal.
    const Clock::TimePoint now = Clock::real().now();
    if (page_ == nullptr || (target == "/live" && now >= read_at_ + kKept)) {
      page_.reset();  // two of them take twice the memory
      // One that has ended is read as far as it was written.
      (void)writer.flush();
      auto made = read(folder, key_path, run);
      // The writer may have removed its oldest file meanwhile.
      if (!made && made.error().code() == ErrorCode::kNotFound) made = read(folder, key_path, run);
      if (!made) {
        JsonText out;
        out.object([&] { out.field("error", made.error().message()); });
        return json_reply(503, out.take());
      }
      page_ = *std::move(made);
      read_at_ = Clock::real().now();
    }
    page = page_;
  }
  // It asks no worker, so that its first step is its answer.
  ClientRequest asked = request;
  asked.target = target;
  return std::get<Reply>(page->open()->begin(asked, {}));
}

}  // namespace ashlar::service
