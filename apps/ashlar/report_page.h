// ReportPage: a replay in a browser. `/` is the live page over a run, by its journal: `?run=2` is the second,
// and `/runs.json` names those that are done. `/report` is the report, which asks for itself again until the
// last run is in it, and `/report.json` its numbers. Before the first run is done `/` is the report too.
//
// Thread safety: thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/service/journal_page.h"
#include "ashlar/service/passage.h"

namespace ashlar::apps {

class ReportPage final : public service::Gateway {
 public:
  // What the report shows from now on. `is_complete`: nothing will follow.
  void show(std::string html, std::string json, bool is_complete) ASHLAR_EXCLUDES(mu_);
  // The next run. Null: it has no page, and its report is shown in its place.
  void add_run(std::string title, std::shared_ptr<service::JournalPage> page) ASHLAR_EXCLUDES(mu_);

  std::unique_ptr<service::Passage> open() override;
  Due due() override { return {}; }
  void told(std::uint64_t, Result<service::Answer>) override {}
  void drain() override {}

  service::Reply answer(const service::ClientRequest& request) const ASHLAR_EXCLUDES(mu_);

 private:
  struct Run {
    std::string title;
    std::shared_ptr<service::JournalPage> page;
  };
  service::Reply report() const ASHLAR_REQUIRES(mu_);
  static std::string runs_json(const std::vector<Run>& runs, bool is_complete);

  mutable Mutex mu_;
  std::vector<Run> runs_ ASHLAR_GUARDED_BY(mu_);
  std::string html_ ASHLAR_GUARDED_BY(mu_) = "<!doctype html><title>ashlar replay</title>reading the trace";
  std::string json_ ASHLAR_GUARDED_BY(mu_) = "{}";
  bool is_complete_ ASHLAR_GUARDED_BY(mu_) = false;
};

}  // namespace ashlar::apps
