// ReportPage: the report of a replay in a browser, while it comes about: `/` is the HTML, which asks for
// itself again until the last run is in it, and `/report.json` the numbers.
//
// Thread safety: thread-safe.
#pragma once

#include <memory>
#include <string>

#include "ashlar/base/mutex.h"
#include "ashlar/service/passage.h"

namespace ashlar::apps {

class ReportPage final : public service::Gateway {
 public:
  // What is shown from now on. `is_complete`: nothing will follow.
  void show(std::string html, std::string json, bool is_complete) ASHLAR_EXCLUDES(mu_);

  std::unique_ptr<service::Passage> open() override;
  Due due() override { return {}; }
  void told(std::uint64_t, Result<service::Answer>) override {}
  void drain() override {}

  service::Reply answer(const service::ClientRequest& request) const ASHLAR_EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::string html_ ASHLAR_GUARDED_BY(mu_) = "<!doctype html><title>ashlar replay</title>reading the trace";
  std::string json_ ASHLAR_GUARDED_BY(mu_) = "{}";
  bool is_complete_ ASHLAR_GUARDED_BY(mu_) = false;
};

}  // namespace ashlar::apps
