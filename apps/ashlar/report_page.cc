#include "apps/ashlar/report_page.h"

#include <string_view>
#include <utility>

#include "ashlar/base/check.h"

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

Reply ReportPage::answer(const service::ClientRequest& request) const {
  if (request.method != "GET" && request.method != "HEAD")
    return reply_of(405, "application/json", R"({"error":"a report is only read"})");
  const std::string_view path = request.target.substr(0, request.target.find('?'));
  const MutexLock lock(mu_);
  if (path == "/report.json") return reply_of(200, "application/json", json_);
  if (path != "/") return reply_of(404, "application/json", R"({"error":"a report has / and /report.json"})");
  Reply page = reply_of(200, "text/html; charset=utf-8", html_);
  page.headers.emplace_back("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'");
  if (!is_complete_) page.headers.emplace_back("refresh", "1");
  return page;
}

}  // namespace ashlar::apps
