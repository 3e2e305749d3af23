// The requests of a journal. A decision that failed, or that was made again without the workers that were
// tried before, is no request of its own. The journal has no lengths of answers.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <utility>

#include "ashlar/service/journal.h"
#include "replay/trace/json_fields.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {
namespace {

class JournalTrace final : public TraceSource {
 public:
  JournalTrace(std::vector<TraceRequest> requests, TraceFacts facts)
      : requests_(std::move(requests)), facts_(std::move(facts)) {}

  Result<bool> next(TraceRequest& out) override {
    if (taken_ == requests_.size()) return false;
    out = std::exchange(requests_[taken_++], {});
    ++facts_.requests;
    if (out.blocks.empty()) ++facts_.without_blocks;
    return true;
  }
  const TraceFacts& facts() const noexcept override { return facts_; }

 private:
  std::vector<TraceRequest> requests_;
  TraceFacts facts_;
  std::size_t taken_ = 0;
};

TraceRequest request_of(const service::RouteRequest& from, Clock::TimePoint now) {
  TraceRequest request;
  request.arrival_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count()));
  request.session = from.session;
  request.input_tokens = from.prompt_tokens;
  request.block_size = from.block_size;
  // Blocks of two models are never the same.
  std::uint64_t name = hash_text(from.group);
  for (const tokens::LocalHash local : from.locals) {
    name = join_names(name, local.value());
    request.blocks.push_back(name);
  }
  return request;
}

// That of most requests with blocks: others may come from before a worker's size was known.
std::uint32_t usual_size(const std::vector<TraceRequest>& requests) {
  std::map<std::uint32_t, std::uint64_t> sizes;
  for (const TraceRequest& request : requests) sizes[request.block_size] += request.blocks.empty() ? 0 : 1;
  const auto most = std::ranges::max_element(sizes, {}, [](const auto& one) { return one.second; });
  return most == sizes.end() ? 0 : most->first;
}

}  // namespace

Result<std::unique_ptr<TraceSource>> open_journal(const std::string& path, const TraceOptions& options) {
  ASHLAR_TRY(const std::vector<service::JournalRun> runs, service::find_journals(path));
  std::string key_path = options.journal_key;
  if (key_path.empty())
    key_path = (std::filesystem::path(runs.front().files.front()).parent_path() / "key").string();
  ASHLAR_TRY(const service::JournalKey key, service::load_journal_key(key_path, false));
  std::vector<TraceRequest> requests;
  TraceFacts facts;
  facts.format = TraceFormat::kJournal;
  for (const service::JournalRun& run : runs) {
    ASHLAR_TRY(const service::ReplayReport report,
               service::read_journal_requests(
                   run.files, key, [&](const service::RouteRequest& request, Clock::TimePoint now) {
                     requests.push_back(request_of(request, now));
                   }));
    facts.unfinished_bytes += report.unfinished_bytes;
  }
  facts.block_size = usual_size(requests);
  for (TraceRequest& request : requests) {
    if (!request.blocks.empty() && request.block_size != facts.block_size) {
      request.blocks.clear();
      ++facts.other_size;
    }
    request.block_size = facts.block_size;
  }
  return std::unique_ptr<TraceSource>(std::make_unique<JournalTrace>(std::move(requests), std::move(facts)));
}

}  // namespace ashlar::replay
