#include "tiers/offload/offload_metrics.h"

#include <cstdint>
#include <string>
#include <utility>

namespace ashlar::tiers {

Result<void> add_offload_metrics(const OffloadWorker& worker, const TierPool& from, MetricRegistry& metrics,
                                 const MetricLabels& labels, std::vector<MetricRegistration>& out) {
  MetricLabels route = labels;
  route.emplace_back("from", std::string(from.name()));
  route.emplace_back("to", std::string(worker.to().name()));
  const auto with = [&](const char* label, const char* value) {
    MetricLabels all = route;
    all.emplace_back(label, value);
    return all;
  };
  const auto keep = [&](Result<MetricRegistration> added) -> Result<void> {
    if (!added) return std::move(added).error();
    out.push_back(std::move(*added));
    return {};
  };
  const auto count = [&](const char* name, const char* help, MetricLabels its_labels,
                         auto value) -> Result<void> {
    return keep(metrics.add_counter({name, help, std::move(its_labels)},
                                    [&worker, value] { return value(worker.counters()); }));
  };
  struct Outcome {
    const char* name;
    std::uint64_t OffloadCounters::* member;
  };
  static constexpr Outcome kOutcomes[] = {
      {"arrived", &OffloadCounters::arrived},   {"present", &OffloadCounters::present},
      {"filtered", &OffloadCounters::filtered}, {"gone", &OffloadCounters::gone},
      {"damaged", &OffloadCounters::damaged},   {"failed", &OffloadCounters::failed},
      {"stopped", &OffloadCounters::stopped},
  };
  struct Queued {
    const char* name;
    const char* help;
    std::uint64_t OffloadQueueCounters::* member;
  };
  static constexpr Queued kQueued[] = {
      {"ashlar_offload_queue_offered_total", "Blocks offered to the route.", &OffloadQueueCounters::offered},
      {"ashlar_offload_queue_discarded_total", "Blocks evicted from the source tier before their turn.",
       &OffloadQueueCounters::discarded},
      {"ashlar_offload_queue_displaced_total",
       "Blocks dropped from a full queue in favour of a higher priority.", &OffloadQueueCounters::displaced},
      {"ashlar_offload_queue_refused_total", "Blocks refused by a queue full of higher priorities.",
       &OffloadQueueCounters::refused},
      {"ashlar_offload_queue_cancelled_total", "Blocks cancelled before they were copied.",
       &OffloadQueueCounters::cancelled},
      {"ashlar_offload_queue_taken_total", "Blocks taken into batches.", &OffloadQueueCounters::taken},
  };
  struct Stage {
    const char* name;
    std::size_t (*value)(const OffloadCounters&);
  };
  static constexpr Stage kStages[] = {
      {"blocked", [](const OffloadCounters& counters) { return counters.blocked; }},
      {"waiting", [](const OffloadCounters& counters) { return counters.queue.waiting; }},
      {"on_deck", [](const OffloadCounters& counters) { return counters.queue.on_deck; }},
      {"in_flight", [](const OffloadCounters& counters) { return counters.queue.in_flight; }},
  };

  ASHLAR_RETURN_IF_ERROR(count("ashlar_offload_batches_total", "Batches copied.", route,
                               [](const OffloadCounters& counters) { return counters.batches; }));
  ASHLAR_RETURN_IF_ERROR(count("ashlar_offload_bytes_total", "Bytes that arrived in the lower tier.", route,
                               [](const OffloadCounters& counters) { return counters.bytes; }));
  for (const Outcome& outcome : kOutcomes)
    ASHLAR_RETURN_IF_ERROR(
        count("ashlar_offload_blocks_total", "Blocks that ended, by outcome.", with("outcome", outcome.name),
              [member = outcome.member](const OffloadCounters& counters) { return counters.*member; }));
  for (const Queued& queued : kQueued)
    ASHLAR_RETURN_IF_ERROR(
        count(queued.name, queued.help, route,
              [member = queued.member](const OffloadCounters& counters) { return counters.queue.*member; }));
  for (const Stage& stage : kStages)
    ASHLAR_RETURN_IF_ERROR(keep(metrics.add(
        {"ashlar_offload_queue_blocks", "Blocks on their way down, by stage.", with("stage", stage.name)},
        [&worker, value = stage.value] { return static_cast<double>(value(worker.counters())); })));
  return {};
}

}  // namespace ashlar::tiers
