#include "apps/ashlar/report_page.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "ashlar/base/check.h"
#include "service/gateway/api.h"
#include "service/gateway/json_text.h"

namespace ashlar::apps {
namespace {

using service::Reply;

// Everything is answered at once.
class ReportPassage final : public service::Passage {
 public:
  explicit ReportPassage(const ReportPage& page) : page_(page) {}

  service::Step begin(const service::ClientRequest& request, Wake) override { return page_.answer(request); }
  service::Step answered(Result<service::Answer>) override { return unexpected(); }
  service::Step resumed() override { return unexpected(); }
  service::Step failed(service::ForwardFailure, std::string_view) override { return unexpected(); }
  service::HeadVerdict head(unsigned, std::span<const service::HeaderView>) override {
    return {.instead = unexpected()};
  }
  void bytes(std::string_view) override {}
  void ended(service::PassageEnd) override {}

 private:
  static Reply unexpected() {
    ASHLAR_CHECK(false, "a report asks no worker");
    return {};
  }
  const ReportPage& page_;
};

Reply reply_of(unsigned status, const char* type, std::string body) {
  return {.status = status,
          .headers = {{"content-type", type}, {"cache-control", "no-store"}},
          .body = std::move(body)};
}

}  // namespace

void ReportPage::show(std::string html, std::string json, bool is_complete) {
  const MutexLock lock(mu_);
  html_ = std::move(html);
  json_ = std::move(json);
  is_complete_ = is_complete;
}

std::unique_ptr<service::Passage> ReportPage::open() {
  return std::make_unique<ReportPassage>(*this);
}

void ReportPage::add_run(std::string title, std::shared_ptr<service::JournalPage> page) {
  const MutexLock lock(mu_);
  runs_.push_back({.title = std::move(title), .page = std::move(page)});
}

Reply ReportPage::report() const {
  Reply page = reply_of(200, "text/html; charset=utf-8", html_);
  page.headers.emplace_back("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'");
  if (!is_complete_) page.headers.emplace_back("refresh", "1");
  return page;
}

std::string ReportPage::runs_json(const std::vector<Run>& runs, bool is_complete) {
  service::JsonText out;
  out.object([&] {
    out.field("complete", is_complete);
    out.field("runs", [&] {
      out.array([&] {
        for (const Run& run : runs) out.object([&] { out.field("name", run.title); });
      });
    });
  });
  return out.take();
}

Reply ReportPage::answer(const service::ClientRequest& request) const {
  if (request.method != "GET" && request.method != "HEAD")
    return reply_of(405, "application/json", R"({"error":"a report is only read"})");
  const std::size_t mark = std::min(request.target.find('?'), request.target.size());
  const std::string_view path = request.target.substr(0, mark);
  const auto number = service::query_number(request.target.substr(std::min(mark + 1, request.target.size())),
                                            "run", 1, UINT32_MAX);
  std::shared_ptr<service::JournalPage> page;
  {
    const MutexLock lock(mu_);
    if (path == "/report.json") return reply_of(200, "application/json", json_);
    if (path == "/report") return report();
    if (path == "/runs.json") return reply_of(200, "application/json", runs_json(runs_, is_complete_));
    const std::size_t run = number ? *number : 0;
    if (run >= 1 && run <= runs_.size()) page = runs_[run - 1].page;
    if (page == nullptr && path == "/") return report();
  }
  if (page == nullptr && service::is_page_path(path)) return service::answer_page(path, false);
  if (page == nullptr)
    return reply_of(404, "application/json", R"({"error":"there is no page of this run"})");
  // It asks no worker, so that its first step is its answer.
  return std::get<Reply>(page->open()->begin(request, {}));
}

}  // namespace ashlar::apps
