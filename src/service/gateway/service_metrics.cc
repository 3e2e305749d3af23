// The metrics of the service, by name. docs/metrics.md explains them.
#include <set>
#include <string>
#include <utility>

#include "service/gateway/service_parts.h"

namespace ashlar::service {

namespace {

using Labels = MetricLabels;

// Adds to the registrations of `parts`; remembers the first error.
class Names {
 public:
  explicit Names(ServiceParts& parts) : parts_(parts) {}

  void count(const char* name, const char* help, const Counter& counter, Labels labels = {}) {
    keep(parts_.metrics.add({.name = name, .help = help, .labels = std::move(labels)}, counter));
  }
  void time(const char* name, const char* help, const Histogram& histogram) {
    keep(parts_.metrics.add({.name = name, .help = help}, histogram));
  }
  void gauge(const char* name, const char* help, std::function<double()> read, Labels labels = {}) {
    keep(parts_.metrics.add({.name = name, .help = help, .labels = std::move(labels)}, std::move(read)));
  }
  void total(const char* name, const char* help, std::function<std::uint64_t()> read, Labels labels = {}) {
    keep(parts_.metrics.add_counter({.name = name, .help = help, .labels = std::move(labels)},
                                    std::move(read)));
  }
  void by_worker(const char* name, const char* help,
                 std::function<std::uint64_t(const FollowerStatus&)> read) {
    keep(parts_.metrics.add_counters({.name = name, .help = help}, "worker",
                                     [&parts = parts_, read = std::move(read)] {
                                       std::map<std::string, std::uint64_t> values;
                                       for (const MemberStatus& member : parts.fleet->status())
                                         if (!member.is_registered)
                                           for (const RankStatus& rank : member.ranks)
                                             values[member.name] += read(rank.follower);
                                       return values;
                                     }));
  }
  // By worker for each pair of tiers. Beside the usual pair, only workers that offloaded so have a value.
  void offloads() {
    for (std::size_t to = 1; to < events::kAllStorageTiers.size(); ++to)
      for (std::size_t from = 0; from < to; ++from) {
        const events::StorageTier source = events::kAllStorageTiers[from];
        const events::StorageTier target = events::kAllStorageTiers[to];
        keep(parts_.metrics.add_counters(
            {.name = "ashlar_serve_offloaded_blocks_total",
             .help = "Blocks stored in a tier while the next faster one that had them still held them",
             .labels = {{"from", std::string(to_string(source))}, {"to", std::string(to_string(target))}}},
            "worker", [&parts = parts_, source, target] {
              std::map<events::WorkerId, std::uint64_t> blocks;
              for (const WorkerLoad& load : parts.router->loads())
                if (const std::uint64_t some = load.tiers[static_cast<std::size_t>(target)]
                                                   .offloaded[static_cast<std::size_t>(source)])
                  blocks[load.worker.id] += some;
              const bool is_usual = target == events::StorageTier::kHost;
              std::map<std::string, std::uint64_t> values;
              if (blocks.empty() && !is_usual) return values;
              for (const MemberStatus& member : parts.fleet->status())
                if (const auto found = blocks.find(member.id); found != blocks.end() || is_usual)
                  values[member.name] += found != blocks.end() ? found->second : 0;
              return values;
            }));
      }
  }
  Result<void> result() const { return result_; }

 private:
  void keep(Result<MetricRegistration> registration) {
    if (registration) {
      parts_.registrations.push_back(*std::move(registration));
    } else if (result_) {
      result_ = registration.error();
    }
  }

  ServiceParts& parts_;
  Result<void> result_;
};

// (worker, rank)s in a state, or whatever else `counts` says of one.
double ranks_that(const ServiceParts& parts, bool (*counts)(const MemberStatus&, const RankStatus&)) {
  double count = 0;
  for (const MemberStatus& member : parts.fleet->status())
    for (const RankStatus& rank : member.ranks) count += counts(member, rank) ? 1 : 0;
  return count;
}

}  // namespace

Result<void> register_metrics(ServiceParts& parts) {
  Names names(parts);
  const ServiceCounters& counters = parts.counters;
  names.count("ashlar_serve_requests_total", "Requests for workers", counters.requests);
  names.count("ashlar_serve_refused_total", "Requests answered here with an error", counters.refused);
  names.count("ashlar_serve_retries_total", "Attempts with another worker", counters.retries);
  names.count("ashlar_serve_unsent_total", "Requests answered 503 for want of descriptors or memory here",
              counters.unsent);
  names.count("ashlar_serve_snapshots_total", "Snapshots of another router that were taken",
              counters.snapshots);
  names.count("ashlar_serve_queued_total", "Requests that waited for room", counters.queued);
  names.count("ashlar_serve_hesitated_total", "Requests that waited for events of their prefix",
              counters.hesitated);
  names.count("ashlar_serve_tokenize_total", "Questions to workers for tokens", counters.tokenized);
  names.count("ashlar_serve_tokenize_failed_total", "Of these: not answered, or by no such endpoint",
              counters.tokenize_failed);
  names.gauge(
      "ashlar_serve_tokenize_resting", "Workers, or endpoints of them, that are not asked for tokens now",
      [&parts] { return static_cast<double>(parts.fleet->token_workers().resting(Clock::real().now())); });
  const char* ends[] = {"complete", "client_gone", "worker_broke", "stopped"};
  for (std::size_t i = 0; i < std::size(ends); ++i)
    names.count("ashlar_serve_ended_total", "Requests by how they ended", counters.ended[i],
                {{"end", ends[i]}});
  names.count("ashlar_serve_prompt_tokens_total",
              "Prompt tokens of answered requests whose tokens are known and whose engine said what it found",
              counters.tokens.prompt);
  names.count("ashlar_serve_available_tokens_total", "Of these: cached at the best worker",
              counters.tokens.available);
  names.count("ashlar_serve_captured_tokens_total", "Of these: cached at the chosen worker",
              counters.tokens.captured);
  names.count("ashlar_serve_delivered_tokens_total", "Of these: found, as the engine says",
              counters.delivered_tokens);
  names.count("ashlar_serve_delivered_unknown_total", "Requests whose engine did not say what it found",
              counters.delivered_unknown);
  names.count("ashlar_serve_delivered_implausible_total",
              "Requests whose engine reported more tokens than the prompt has: nothing of it is used",
              counters.delivered_implausible);
  const std::pair<const char*, const Counter&> unknown[] = {{"prompt", counters.unknown_tokens.prompt},
                                                            {"available", counters.unknown_tokens.available},
                                                            {"captured", counters.unknown_tokens.captured}};
  for (const auto& [kind, counter] : unknown)
    names.count("ashlar_serve_unknown_tokens_total", "The same tokens of requests whose engine did not say",
                counter, {{"kind", kind}});
  names.count("ashlar_serve_predictions_right_total", "Requests whose engine found what was expected",
              counters.predictions_right);
  for (std::size_t i = 1; i < kMisroutes; ++i)
    names.count("ashlar_serve_misroute_total", "Requests whose engine found something else, by reason",
                counters.misroutes[i], {{"reason", std::string(to_string(static_cast<Misroute>(i)))}});
  for (std::size_t tier = 0; tier < counters.hit_blocks.size(); ++tier)
    names.count("ashlar_serve_hit_blocks_total",
                "Blocks of answered requests that the chosen worker had reported, by tier",
                counters.hit_blocks[tier],
                {{"tier", std::string(to_string(static_cast<events::StorageTier>(tier)))}});
  for (std::size_t reason = 0; reason < counters.missed_blocks.size(); ++reason)
    names.count("ashlar_serve_missed_blocks_total",
                "Blocks of answered requests behind those that the chosen worker had reported, by reason",
                counters.missed_blocks[reason],
                {{"reason", std::string(to_string(static_cast<MissReason>(reason)))}});
  for (const WorkerState state : {WorkerState::kExact, WorkerState::kDegraded, WorkerState::kFallback})
    names.count("ashlar_serve_decisions_total", "Choices by the state of the chosen worker",
                counters.states[static_cast<std::size_t>(state)], {{"state", std::string(to_string(state))}});
  names.time("ashlar_serve_route_seconds", "Time of a choice", counters.route_time);
  names.time("ashlar_serve_hesitation_seconds", "Time that requests waited for events of their prefix",
             counters.hesitation_time);

  const auto of_groups = [&parts](std::uint64_t Router::Sizes::* value) {
    return [&parts, value] {
      std::set<std::string> groups;
      for (const MemberStatus& member : parts.fleet->status()) groups.insert(member.group);
      std::uint64_t sum = 0;
      for (const std::string& group : groups) sum += parts.router->sizes(group).*value;
      return sum;
    };
  };
  const std::pair<const char*, std::uint64_t Router::Sizes::*> limits[] = {
      {"max_predicted_blocks", &Router::Sizes::predictions_cut},
      {"max_predictions", &Router::Sizes::predictions_evicted}};
  for (const auto& [limit, value] : limits)
    names.total("ashlar_serve_predictions_left_out_total",
                "Blocks that are not expected, or no longer, for a limit", of_groups(value),
                {{"limit", limit}});
  names.gauge("ashlar_serve_waiting", "Requests that wait for room",
              [&parts] { return static_cast<double>(parts.lines.size()); });
  names.gauge("ashlar_serve_running", "Requests at workers",
              [&parts] { return static_cast<double>(parts.router->running()); });
  names.gauge("ashlar_serve_workers", "Ranks of workers by state",
              [&parts] {
                return ranks_that(parts, [](const MemberStatus&, const RankStatus& rank) {
                  return rank.follower.state == WorkerState::kExact;
                });
              },
              {{"state", "EXACT"}});
  names.gauge("ashlar_serve_workers", "Ranks of workers by state",
              [&parts] {
                return ranks_that(parts, [](const MemberStatus&, const RankStatus& rank) {
                  return rank.follower.state == WorkerState::kDegraded;
                });
              },
              {{"state", "DEGRADED"}});
  names.gauge("ashlar_serve_workers", "Ranks of workers by state",
              [&parts] {
                return ranks_that(parts, [](const MemberStatus&, const RankStatus& rank) {
                  return rank.follower.state == WorkerState::kFallback;
                });
              },
              {{"state", "FALLBACK"}});
  names.gauge("ashlar_serve_workers_up", "Ranks of workers that take requests", [&parts] {
    return ranks_that(parts, [](const MemberStatus& member, const RankStatus&) { return member.is_up; });
  });

  names.by_worker("ashlar_serve_event_messages_total", "Messages of a worker's events that were applied",
                  [](const FollowerStatus& follower) { return follower.session.applied; });
  names.by_worker("ashlar_serve_event_lost_total", "Messages that were lost for good",
                  [](const FollowerStatus& follower) { return follower.session.lost; });
  names.by_worker("ashlar_serve_event_gaps_total", "Gaps in the numbers of messages",
                  [](const FollowerStatus& follower) { return follower.session.gaps; });
  names.by_worker("ashlar_serve_event_replays_total", "Replays that were asked for",
                  [](const FollowerStatus& follower) { return follower.session.replays; });
  names.by_worker("ashlar_serve_engine_restarts_total",
                  "Restarts that were seen, and reconnects that must count as one",
                  [](const FollowerStatus& follower) { return follower.session.restarts; });

  names.offloads();

  const auto prompts = [&parts](std::uint64_t PromptTokensCounters::* value) {
    return [&parts, value] { return parts.prompts->counters().*value; };
  };
  const std::pair<const char*, std::uint64_t PromptTokensCounters::*> sources[] = {
      {"given", &PromptTokensCounters::given},
      {"remembered", &PromptTokensCounters::remembered},
      {"asked", &PromptTokensCounters::asked},
      {"joined", &PromptTokensCounters::joined},
      {"rendered", &PromptTokensCounters::rendered}};
  for (const auto& [source, value] : sources)
    names.total("ashlar_serve_prompts_total", "Prompts by where their tokens came from", prompts(value),
                {{"source", source}});
  names.total("ashlar_serve_prompt_differences_total", "Joined prompts that an engine counted otherwise",
              prompts(&PromptTokensCounters::differences));
  names.gauge("ashlar_serve_prompt_cache_bytes", "Memory of remembered prompts",
              [&parts] { return static_cast<double>(parts.prompts->counters().bytes); });
  names.gauge("ashlar_serve_body_bytes", "Memory of the bodies of requests",
              [&parts] { return static_cast<double>(parts.bodies.now().bytes); });
  names.gauge("ashlar_serve_body_limit_bytes", "What they may take (max_all_body_bytes)",
              [&parts] { return static_cast<double>(parts.options.max_all_body_bytes); });
  names.total("ashlar_serve_bodies_refused_total", "Requests that were refused for want of it",
              [&parts] { return parts.bodies.now().refused; });
  names.gauge("ashlar_serve_reply_bytes", "Memory of large answers of the router's own, until they are read",
              [&parts] { return static_cast<double>(parts.bodies.now().reply_bytes); });
  names.total("ashlar_serve_replies_refused_total", "Answers that were refused for want of it",
              [&parts] { return parts.bodies.now().refused_replies; });
  names.gauge("ashlar_serve_receipt_bytes", "Memory of receipts",
              [&parts] { return static_cast<double>(parts.receipts.bytes()); });
  if (parts.journal) {
    names.total("ashlar_serve_journal_records_total", "Records of the journal",
                [&parts] { return parts.journal->status().records; });
    names.gauge("ashlar_serve_journal_failed", "1: the journal has ended",
                [&parts] { return parts.journal->status().failure.empty() ? 0.0 : 1.0; });
  }
  if (parts.trace) {
    names.total("ashlar_serve_trace_lines_total", "Lines of the recorded trace",
                [&parts] { return parts.trace->written(); });
    names.total("ashlar_serve_trace_dropped_total", "Lines that were dropped",
                [&parts] { return parts.trace->dropped(); });
  }
  return names.result();
}

}  // namespace ashlar::service
