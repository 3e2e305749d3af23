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

Result<std::shared_ptr<JournalPage>> PastPage::read(JournalWriter& writer, const std::string& folder,
                                                    const std::string& key_path, std::uint64_t run) {
  ASHLAR_RETURN_IF_ERROR(writer.flush());
  ASHLAR_TRY(const JournalKey key, load_journal_key(key_path, false));
  ASHLAR_TRY(const std::vector<JournalRun> runs, find_journals(folder));
  const std::string name = decision_name(run, DecisionId(0)).substr(0, 16);
  const auto found = std::ranges::find(runs, name, &JournalRun::name);
  if (found == runs.end()) return Error(ErrorCode::kNotFound, "the journal is not in its folder any more");
  std::size_t first = found->files.size();
  for (std::uint64_t bytes = 0; first > 0; --first) {
    std::error_code failed;
    bytes += std::filesystem::file_size(found->files[first - 1], failed);
    if (first < found->files.size() && (failed || bytes > kMostBytes)) break;
  }
  ASHLAR_TRY(auto page, JournalPage::open(std::span<const std::string>(found->files).subspan(first), key,
                                          kMostDecisions));
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
      auto made = read(writer, folder, key_path, run);
      if (!made) {
        JsonText out;
        out.object([&] { out.field("error", made.error().message()); });
        return json_reply(made.error().code() == ErrorCode::kNotFound ? 404 : 503, out.take());
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
