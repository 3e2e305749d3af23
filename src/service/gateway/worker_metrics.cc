// State, reason and load of each worker of the router's own, as Prometheus text. docs/metrics.md explains
// them. Those of registered workers are left out: clients choose their names.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/check.h"
#include "service/gateway/service_parts.h"

namespace ashlar::service {

namespace {

// A value of a label. Names of workers have no quotes and backslashes (validate_worker()).
std::string quoted_label(std::string_view text) {
  return "\"" + std::string(text) + "\"";
}

// A family of gauges.
class WorkerGauges {
 public:
  WorkerGauges(std::string name, std::string_view help) : name_(std::move(name)) {
    text_ = "# HELP " + name_ + " " + std::string(help) + "\n# TYPE " + name_ + " gauge\n";
  }
  void add(const std::string& labels, std::uint64_t value) {
    text_ += name_ + "{" + labels + "} " + std::to_string(value) + "\n";
  }
  const std::string& text() const noexcept { return text_; }

 private:
  const std::string name_;
  std::string text_;
};

}  // namespace

std::string worker_metrics_text(const ServiceParts& parts) {
  WorkerGauges state("ashlar_serve_worker_state", "1: the state of a rank");
  WorkerGauges reason("ashlar_serve_worker_reason", "1: why a rank is not EXACT");
  WorkerGauges up("ashlar_serve_worker_up", "1: it takes requests");
  WorkerGauges requests("ashlar_serve_worker_requests", "Requests at a rank");
  const std::vector<WorkerLoad> loads = parts.router->loads();
  ASHLAR_DCHECK(std::ranges::is_sorted(loads, {}, &WorkerLoad::worker), "loads are found by their order");
  for (const MemberStatus& member : parts.fleet->status()) {
    if (member.is_registered) continue;
    const std::string worker = "worker=" + quoted_label(member.name);
    up.add(worker, member.is_up ? 1 : 0);
    for (const RankStatus& rank : member.ranks) {
      const std::string labels = worker + ",rank=\"" + std::to_string(rank.rank) + "\"";
      for (const WorkerState one : {WorkerState::kExact, WorkerState::kDegraded, WorkerState::kFallback})
        state.add(labels + ",state=" + quoted_label(to_string(one)), rank.follower.state == one ? 1 : 0);
      if (rank.follower.why != StateReason::kNone)
        reason.add(labels + ",reason=" + quoted_label(to_string(rank.follower.why)), 1);
      const events::Worker which{.id = member.id, .rank = rank.rank};
      const auto load = std::ranges::lower_bound(loads, which, {}, &WorkerLoad::worker);
      const bool is_known = load != loads.end() && load->worker == which;
      requests.add(labels, is_known ? load->requests : 0);
    }
  }
  return state.text() + reason.text() + up.text() + requests.text();
}

}  // namespace ashlar::service
