#include "ashlar/replay/report.h"
#include "replay/report/number_text.h"
#include "service/gateway/json_text.h"

namespace ashlar::replay {
namespace {

using service::JsonText;

void put_real(JsonText& out, std::string_view name, double value) {
  out.key(name);
  out.raw(formatted("%.9g", value));
}

template <std::size_t N, class NameOf>
void put_each(JsonText& out, std::string_view name, const std::array<std::uint64_t, N>& values,
              NameOf name_of) {
  out.field(name, [&] {
    out.object([&] {
      for (std::size_t i = 0; i < N; ++i) out.field(name_of(i), values[i]);
    });
  });
}

std::string tier_name(std::size_t tier) {
  return "g" + std::to_string(tier + 1);
}
std::string reason_name(std::size_t reason) {
  return std::string(to_string(static_cast<MissReason>(reason)));
}

void put_counts(JsonText& out, const ReplayCounts& counts) {
  out.field("requests", counts.requests);
  out.field("blocks", counts.blocks);
  out.field("input_tokens", counts.input_tokens);
  out.field("hit_tokens", counts.hit_tokens);
  out.field("hit_blocks", counts.hit_blocks());
  put_real(out, "hit_rate", counts.hit_rate());
  put_each(out, "hits", counts.hits, tier_name);
  put_each(out, "misses", counts.misses, reason_name);
  put_each(out, "evictions", counts.evictions, tier_name);
  put_each(out, "written", counts.written, tier_name);
  put_real(out, "mean_ttft_ms",
           counts.requests == 0 ? 0 : counts.latency_ms / static_cast<double>(counts.requests));
}

void put_config(JsonText& out, const ReplayConfig& config) {
  out.object([&] {
    out.field("policy", config.policy);
    for (std::size_t i = 0; i < kReplayTiers; ++i)
      if (!config.tier_policy[i].empty())
        out.field("g" + std::to_string(i + 1) + "_policy", config.tier_policy[i]);
    out.field("router", to_string(config.routing));
    out.field("workers", std::uint64_t{config.workers});
    out.field("blocks", [&] {
      out.object([&] {
        for (std::size_t i = 0; i < kReplayTiers; ++i)
          out.field(tier_name(i), std::uint64_t{config.tier_blocks[i]});
      });
    });
    out.field("bytes_per_token", config.bytes_per_token);
    put_real(out, "prefill_tokens_per_second", config.prefill_tokens_per_second);
    put_real(out, "decode_ms_per_token", config.decode_ms_per_token);
    put_real(out, "g2_bytes_per_second", config.tier_bytes_per_second[1]);
    put_real(out, "g3_bytes_per_second", config.tier_bytes_per_second[2]);
  });
}

// `span_ms`: of the trace; of no time there is no share.
void put_run(JsonText& out, const ReplayOutcome& run, std::uint64_t span_ms) {
  out.object([&] {
    out.field("mode", run.is_real ? "real" : "simulated");
    out.key("config");
    out.raw([&] {
      JsonText config;
      put_config(config, run.config);
      return config.take();
    }());
    put_counts(out, run.total);
    if (run.config.has_bound) {
      out.field("bound_hit_blocks", run.bound_hits);
      put_real(out, "bound_hit_rate", run.bound_rate());
    }
    put_each(out, "hit_tokens_by_tier", run.hit_tokens, tier_name);
    put_real(out, "g3_bytes_written_per_hit_byte", run.written_per_hit());
    out.field("g3_bytes_written", run.total.written[2] * run.block_bytes);
    out.field("requests_cut", run.refused);
    if (run.is_real) out.field("verified_blocks", run.verified);
    out.field("ttft_ms", [&] {
      out.object([&] {
        put_real(out, "mean", run.latency.mean);
        put_real(out, "p50", run.latency.p50);
        put_real(out, "p90", run.latency.p90);
        put_real(out, "p99", run.latency.p99);
      });
    });
    if (span_ms > 0) {
      put_real(out, "busiest_worker", run.busiest());
    } else {
      out.key("busiest_worker");
      out.null();
    }
    put_real(out, "seconds", run.seconds);
    out.field("workers", [&] {
      out.array([&] {
        for (const WorkerTotals& one : run.workers)
          out.object([&] {
            out.field("requests", one.requests);
            out.field("input_tokens", one.input_tokens);
            out.field("hit_tokens", one.hit_tokens);
            put_real(out, "busy_ms", one.busy_ms);
          });
      });
    });
    put_real(out, "window_ms", run.window_ms);
    out.field("windows", [&] {
      out.array([&] {
        for (const ReplayCounts& window : run.windows)
          out.object([&] {
            put_counts(out, window);
            if (run.config.has_bound) out.field("bound_hit_blocks", window.bound_hits);
          });
      });
    });
  });
}

}  // namespace

std::string replay_json(const ReplaySubject& subject, std::span<const ReplayOutcome> runs) {
  JsonText out;
  out.object([&] {
    out.field("trace", [&] {
      out.object([&] {
        out.field("name", subject.name);
        out.field("format", to_string(subject.facts.format));
        out.field("has_reuse", subject.facts.has_reuse);
        out.field("block_size", std::uint64_t{subject.facts.block_size});
        out.field("requests", subject.requests);
        out.field("blocks", subject.named);
        out.field("distinct_blocks", subject.distinct);
        out.field("input_tokens", subject.input_tokens);
        out.field("span_ms", subject.span_ms);
        out.field("requests_with_session", subject.with_session);
        out.field("skipped_lines", subject.facts.skipped_lines);
        out.field("notes", [&] {
          out.array([&] {
            for (const std::string& note : notes_of(subject)) out.value(note);
          });
        });
      });
    });
    out.field("runs", [&] {
      out.array([&] {
        for (const ReplayOutcome& run : runs) put_run(out, run, subject.span_ms);
      });
    });
  });
  return out.take() + "\n";
}

}  // namespace ashlar::replay
