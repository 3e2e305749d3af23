// Everything that the live page shows, in one answer: cheap enough to be asked every second.
#include <algorithm>
#include <chrono>
#include <vector>

#include "service/gateway/api.h"
#include "service/gateway/live_json.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kBriefs = 50;
constexpr std::size_t kMostBriefs = 200;

// The bound of the bucket with the quantile in it; 0: nothing was counted.
std::uint64_t quantile(const Histogram& histogram, const Histogram::Snapshot& counted, double share) {
  const double wanted = share * static_cast<double>(counted.count);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counted.buckets.size(); ++i) {
    seen += counted.buckets[i];
    if (seen > 0 && static_cast<double>(seen) >= wanted)
      return histogram.bounds()[std::min(i, histogram.bounds().size() - 1)];
  }
  return 0;
}

void write_route_time(JsonText& out, const Histogram& histogram) {
  const Histogram::Snapshot counted = histogram.snapshot();
  out.object([&] {
    out.field("count", counted.count);
    out.field("sum", counted.sum);
    out.field("p50", quantile(histogram, counted, 0.5));
    out.field("p99", quantile(histogram, counted, 0.99));
  });
}

void write_totals(JsonText& out, ServiceParts& parts) {
  const ServiceCounters& counters = parts.counters;
  const auto total = [&](std::string_view name, const Counter& counter) { out.field(name, counter.value()); };
  out.object([&] {
    total("requests", counters.requests);
    total("refused", counters.refused);
    total("retries", counters.retries);
    total("queued", counters.queued);
    total("hesitated", counters.hesitated);
    out.field("running", parts.router->running());
    out.field("waiting", parts.lines.size());
    out.field("decisions", [&] {
      out.object([&] {
        for (std::size_t i = 0; i < counters.states.size(); ++i)
          total(to_string(static_cast<WorkerState>(i)), counters.states[i]);
      });
    });
    total("prompt_tokens", counters.tokens.prompt);
    total("available_tokens", counters.tokens.available);
    total("captured_tokens", counters.tokens.captured);
    total("delivered_tokens", counters.delivered_tokens);
    total("delivered_unknown", counters.delivered_unknown);
    total("predictions_right", counters.predictions_right);
    out.field("misroutes", [&] {
      out.object([&] {
        for (std::size_t i = 1; i < kMisroutes; ++i)
          total(to_string(static_cast<Misroute>(i)), counters.misroutes[i]);
      });
    });
    out.field("hit_blocks", [&] {
      out.object([&] {
        for (std::size_t i = 0; i < counters.hit_blocks.size(); ++i)
          total(to_string(static_cast<events::StorageTier>(i)), counters.hit_blocks[i]);
      });
    });
    write_missed(out, true, [&](std::size_t reason) { return counters.missed_blocks[reason].value(); });
    out.field("route_ns", [&] { write_route_time(out, counters.route_time); });
  });
}

void write_rank(JsonText& out, const RankStatus& rank, const WorkerLoad* load, const TierSizes& sizes) {
  const FollowerStatus& follower = rank.follower;
  out.object([&] {
    out.field("dp_rank", rank.rank);
    out.field("state", to_string(follower.state));
    if (!follower.reason.empty()) out.field("reason", follower.reason);
    if (!rank.endpoint.empty()) out.field("events", rank.endpoint);
    out.field("block_size", follower.block_size);
    out.field("blocks", follower.present);
    out.field("messages", follower.session.applied);
    out.field("lost", follower.session.lost);
    out.field("gaps", follower.session.gaps);
    out.field("replays", follower.session.replays);
    out.field("restarts", follower.session.restarts);
    out.field("clears", follower.ingest.clears);
    if (load != nullptr) write_load(out, *load, sizes);
  });
}

void write_workers(JsonText& out, ServiceParts& parts) {
  const std::vector<WorkerLoad> loads = parts.router->loads();
  ASHLAR_DCHECK(std::ranges::is_sorted(loads, {}, &WorkerLoad::worker), "loads are found by their order");
  out.array([&] {
    for (const MemberStatus& member : parts.fleet->status()) {
      out.object([&] {
        out.field("id", member.id.value());
        out.field("name", member.name);
        out.field("model", member.group);
        if (!member.is_registered) out.field("address", member.address.authority());
        out.field("up", member.is_up);
        if (!member.problem.empty()) out.field("problem", member.problem);
        out.field("ranks", [&] {
          out.array([&] {
            for (const RankStatus& rank : member.ranks) {
              const events::Worker worker{.id = member.id, .rank = rank.rank};
              const auto load = std::ranges::lower_bound(loads, worker, {}, &WorkerLoad::worker);
              write_rank(out, rank, load != loads.end() && load->worker == worker ? &*load : nullptr,
                         member.tier_sizes);
            }
          });
        });
      });
    }
  });
}

}  // namespace

std::uint64_t milliseconds_between(Clock::TimePoint from, Clock::TimePoint to) {
  if (to < from) return 0;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count());
}

void write_missed(JsonText& out, bool is_known, const std::function<std::uint64_t(std::size_t)>& count_of) {
  out.field("missed_blocks", [&] {
    if (!is_known) return out.null();
    out.object([&] {
      for (std::size_t i = 0; i < kMissReasons; ++i)
        out.field(to_string(static_cast<MissReason>(i)), count_of(i));
    });
  });
}

void write_tiers(JsonText& out, const std::array<TierChanges, events::kStorageTiers>& tiers,
                 const TierSizes& sizes) {
  out.object([&] {
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      if (i != 0 && tiers[i].stored == 0) continue;
      out.field(to_string(static_cast<events::StorageTier>(i)), [&] {
        out.object([&] {
          out.field("held", tiers[i].held);
          out.field("most", tiers[i].most);
          if (sizes[i] != 0) out.field("size", sizes[i]);
          out.field("stored", tiers[i].stored);
          out.field("removed", tiers[i].removed);
          out.field("offloaded", tiers[i].all_offloaded());
          if (tiers[i].all_offloaded() == 0) return;
          out.field("offloaded_from", [&] {
            out.object([&] {
              for (std::size_t from = 0; from < tiers.size(); ++from)
                if (tiers[i].offloaded[from] != 0)
                  out.field(to_string(static_cast<events::StorageTier>(from)), tiers[i].offloaded[from]);
            });
          });
        });
      });
    }
  });
}

void write_load(JsonText& out, const WorkerLoad& load, const TierSizes& sizes) {
  out.field("requests", load.requests);
  out.field("prefill_tokens", load.prefill_tokens);
  out.field("decode_blocks", load.decode_blocks);
  out.field("chosen", load.chosen);
  out.field("tiers", [&] { write_tiers(out, load.tiers, sizes); });
}

Reply answer_fleet(ServiceParts& parts) {
  JsonText out;
  out.object([&] {
    out.field("draining", parts.is_draining.load(std::memory_order_relaxed));
    out.field("waiting", parts.lines.size());
    out.field("workers", [&] { write_workers(out, parts); });
  });
  return json_reply(200, out.take());
}

Reply answer_past(ServiceParts& parts, const ClientRequest& request) {
  if (!parts.journal)
    return json_reply(404, R"({"error":"this router writes no journal: ashlar serve --journal DIR does"})");
  const ServeOptions& options = parts.options;
  const std::string key = options.journal_key.empty() ? options.journal + "/key" : options.journal_key;
  return parts.past.answer(*parts.journal, options.journal, key, parts.run, request,
                           request.target.substr(std::string_view("/past").size()));
}

Reply answer_live(ServiceParts& parts, std::string_view query) {
  const Result<std::size_t> count = query_number(query, "decisions", kBriefs, kMostBriefs);
  if (!count) return json_reply(400, R"({"error":"decisions is a number"})");
  std::vector<DecisionBrief> briefs;
  parts.receipts.for_each_last(*count, [&](const Receipt& receipt) { briefs.push_back(brief_of(receipt)); });
  const Clock::TimePoint now = Clock::real().now();
  JsonText out;
  out.object([&] {
    out.field("source", "serve");
    out.field("run", decision_name(parts.run, DecisionId(0)).substr(0, 16));
    if (!parts.options.title.empty()) out.field("title", parts.options.title);
    out.field("has_journal", parts.journal != nullptr);
    out.field("time_ms", milliseconds_between(parts.started, now));
    out.field("draining", parts.is_draining.load(std::memory_order_relaxed));
    out.field("totals", [&] { write_totals(out, parts); });
    out.field("workers", [&] { write_workers(out, parts); });
    out.field("decisions", [&] {
      out.array([&] {
        for (const DecisionBrief& brief : briefs) write_brief(out, parts.run, brief, now);
      });
    });
  });
  return json_reply(200, out.take());
}

}  // namespace ashlar::service
