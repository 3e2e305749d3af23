// Receipts and decisions as JSON.
#include "service/gateway/api.h"
#include "service/gateway/live_json.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kMostDecisions = 1000;

std::string_view to_text(PassageEnd end) {
  switch (end) {
    case PassageEnd::kComplete:
      return "complete";
    case PassageEnd::kClientGone:
      return "client_gone";
    case PassageEnd::kWorkerBroke:
      return "worker_broke";
    case PassageEnd::kStopped:
      return "stopped";
  }
  return "unknown";
}

void write_optional(JsonText& out, std::string_view name, const std::optional<std::uint64_t>& value) {
  out.key(name);
  if (value) {
    out.value(*value);
  } else {
    out.null();
  }
}

void write_outcome(JsonText& out, const RequestOutcome& outcome) {
  out.field("outcome", [&] {
    if (!outcome.is_over) return out.null();
    out.object([&] {
      out.field("end", to_text(outcome.end));
      out.field("status", outcome.status);
      write_optional(out, "delivered_tokens", outcome.delivered_tokens);
      write_optional(out, "prompt_tokens", outcome.prompt_tokens);
      write_optional(out, "output_tokens", outcome.output_tokens);
      out.field("misroute", to_string(outcome.misroute));
    });
  });
}

void write_candidate(JsonText& out, const Candidate& candidate, const PlaceTeller& place_of) {
  const WorkerPlace place = place_of(candidate.worker.id);
  out.object([&] {
    out.field("worker", candidate.worker.id.value());
    if (!place.name.empty()) out.field("name", place.name);
    if (!place.address.empty()) out.field("address", place.address);
    out.field("dp_rank", candidate.worker.rank);
    out.field("state", to_string(candidate.state));
    if (candidate.exclusion != Exclusion::kNone) out.field("excluded", to_string(candidate.exclusion));
    out.field("blocks", [&] {
      out.object([&] {
        for (std::size_t tier = 0; tier < candidate.blocks.size(); ++tier)
          out.field(to_string(static_cast<events::StorageTier>(tier)), candidate.blocks[tier]);
      });
    });
    out.field("depth", candidate.depth);
    out.field("predicted_depth", candidate.predicted);
    out.field("requests", candidate.requests);
    out.field("prefill_tokens", candidate.prefill_tokens);
    out.field("decode_blocks", candidate.decode_blocks);
    out.field("cost", [&] {
      out.object([&] {
        out.field("prefill", candidate.prefill_cost);
        out.field("decode", candidate.decode_cost);
        out.field("requests", candidate.request_cost);
        out.field("session", candidate.session_cost);
        out.field("total", candidate.cost);
      });
    });
  });
}

}  // namespace

void write_receipt(JsonText& out, std::uint64_t run, const Receipt& receipt, const PlaceTeller& place_of,
                   std::string_view replayed, bool knows_misses) {
  const Decision& decision = receipt.decision;
  const Candidate& choice = decision.choice();
  out.object([&] {
    out.field("id", decision_name(run, decision.id));
    out.field("model", receipt.group);
    out.field("worker", receipt.worker_name);
    out.field("worker_id", choice.worker.id.value());
    out.field("dp_rank", choice.worker.rank);
    out.field("state", to_string(choice.state));
    if (!receipt.state_reason.empty()) out.field("state_reason", receipt.state_reason);
    out.field("policy", to_string(decision.policy));
    out.field("block_size", decision.block_size);
    out.field("prompt_tokens", decision.prompt_tokens);
    out.field("prompt_tokens_are_estimated", decision.is_estimate);
    if (!receipt.token_source.empty()) out.field("tokens", receipt.token_source);
    if (!receipt.claim_reason.empty()) out.field("claim_reason", receipt.claim_reason);
    out.field("cached_tokens", decision.cached_tokens);
    out.field("available_tokens", decision.available_tokens);
    write_missed(out, knows_misses,
                 [&](std::size_t reason) { return std::uint64_t{decision.missed[reason]}; });
    if (decision.draw != 0) out.field("draw", decision.draw);
    if (replayed.empty()) {
      write_outcome(out, receipt.outcome);
    } else {
      out.field("replayed", replayed);
    }
    out.field("candidates", [&] {
      out.array([&] {
        for (const Candidate& candidate : decision.candidates) write_candidate(out, candidate, place_of);
      });
    });
  });
}

std::string_view to_string(Misroute misroute) noexcept {
  switch (misroute) {
    case Misroute::kNone:
      return "none";
    case Misroute::kEvicted:
      return "evicted";
    case Misroute::kStoredMeanwhile:
      return "stored_meanwhile";
    case Misroute::kCleared:
      return "cleared";
    case Misroute::kNotExact:
      return "not_exact";
    case Misroute::kOtherTokens:
      return "other_tokens";
    case Misroute::kForgotten:
      return "forgotten";
    case Misroute::kUnexplained:
      return "unexplained";
  }
  return "unknown";
}

DecisionBrief brief_of(const Receipt& receipt) {
  const Decision& decision = receipt.decision;
  return {.id = decision.id,
          .time = decision.time,
          .model = receipt.group,
          .worker_name = receipt.worker_name,
          .worker = decision.choice().worker,
          .state = decision.choice().state,
          .prompt_tokens = decision.prompt_tokens,
          .is_estimate = decision.is_estimate,
          .cached_tokens = decision.cached_tokens,
          .available_tokens = decision.available_tokens,
          .candidates = decision.candidates.size(),
          .outcome = receipt.outcome};
}

void write_brief(JsonText& out, std::uint64_t run, const DecisionBrief& brief, Clock::TimePoint now) {
  out.object([&] {
    out.field("id", decision_name(run, brief.id));
    out.field("age_ms", milliseconds_between(brief.time, now));
    out.field("model", brief.model);
    out.field("worker", brief.worker_name);
    out.field("dp_rank", brief.worker.rank);
    out.field("state", to_string(brief.state));
    out.field("prompt_tokens", brief.prompt_tokens);
    out.field("prompt_tokens_are_estimated", brief.is_estimate);
    out.field("cached_tokens", brief.cached_tokens);
    out.field("available_tokens", brief.available_tokens);
    out.field("candidates", brief.candidates);
    if (brief.outcome) write_outcome(out, *brief.outcome);
  });
}

Reply answer_decision(ServiceParts& parts, std::string_view name) {
  const auto parsed = parse_decision_name(name);
  JsonText out;
  if (!parsed) {
    out.object([&] { out.field("error", parsed.error().message()); });
    return json_reply(400, out.take());
  }
  const std::optional<Receipt> receipt =
      parsed->run == parts.run ? parts.receipts.find(parsed->decision) : std::nullopt;
  if (!receipt) {
    out.object([&] {
      out.field("error",
                "this decision is not kept: it is of another run, or older than those in memory (receipts, "
                "receipt_bytes); a journal keeps all (ashlar explain)");
    });
    return json_reply(404, out.take());
  }
  write_receipt(out, parts.run, *receipt, [&](events::WorkerId id) { return parts.fleet->place_of(id); });
  return json_reply(200, out.take());
}

Reply answer_decisions(ServiceParts& parts, std::string_view query) {
  const Result<std::size_t> count = query_number(query, "limit", 100, kMostDecisions);
  if (!count) return json_reply(400, R"({"error":"limit is a number"})");
  JsonText out;
  out.array([&] {
    for (const Receipt& receipt : parts.receipts.last(*count))
      write_receipt(out, parts.run, receipt, [&](events::WorkerId id) { return parts.fleet->place_of(id); });
  });
  return json_reply(200, out.take());
}

}  // namespace ashlar::service
