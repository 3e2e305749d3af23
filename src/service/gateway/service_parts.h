// What the passages of a Service share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/base/metrics.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/service.h"
#include "base/seldom.h"
#include "service/gateway/chores.h"
#include "service/gateway/fleet.h"
#include "service/gateway/late_verdicts.h"
#include "service/gateway/past_page.h"
#include "service/gateway/receipts.h"
#include "service/gateway/recent_ends.h"
#include "service/gateway/response_homes.h"
#include "service/gateway/tree_cache.h"
#include "service/gateway/wait_line.h"
#include "service/request/prompt_tokens.h"
#include "service/request/trace_recorder.h"

namespace ashlar::service {

// Of answered requests: tokens of the prompt, that the best worker had, and that the chosen one had.
struct TokenCounters {
  Counter prompt;
  Counter available;
  Counter captured;
};

// Counted as requests end.
struct ServiceCounters {
  Counter requests;
  Counter refused;               // answered here with an error
  Counter retries;               // tried with another worker
  Counter unsent;                // for want of descriptors or memory here
  Counter queued;                // waited for room
  Counter hesitated;             // waited for events
  Counter tokenized;             // questions to workers
  Counter tokenize_failed;       // of these: not answered
  Counter snapshots;             // of another router, that were taken
  std::array<Counter, 4> ended;  // by PassageEnd
  TokenCounters tokens;          // of requests whose engine said what it found
  TokenCounters unknown_tokens;  // of the others
  Counter delivered_tokens;
  Counter delivered_unknown;      // requests whose engine reported nothing
  Counter delivered_implausible;  // of these: it reported more than the prompt has
  Counter predictions_right;      // requests
  // Blocks of answered requests that the chosen worker had reported, by their fastest tier.
  std::array<Counter, events::kStorageTiers> hit_blocks;
  std::array<Counter, kMissReasons> missed_blocks;  // of these requests, by reason
  std::array<Counter, kMisroutes> misroutes;
  std::array<Counter, 3> states;  // decisions by the state of the chosen worker
  Histogram route_time{Histogram::exponential_bounds(1000, 2, 16), 1'000'000'000};
  Histogram hesitation_time{Histogram::exponential_bounds(125'000, 2, 16), 1'000'000'000};  // up to 4 s

  // Of a request whose engine said what it found.
  void count(Misroute misroute) {
    (misroute == Misroute::kNone ? predictions_right : misroutes[static_cast<std::size_t>(misroute)]).add();
  }
};

// Who says what the bodies of requests take.
struct BodyMemoryReader {
  BodyMemory now() const {
    MutexLock lock(mu);
    return read ? read() : BodyMemory();
  }
  mutable Mutex mu;
  std::function<BodyMemory()> read ASHLAR_GUARDED_BY(mu);
};

struct ServiceParts {
  explicit ServiceParts(const ServeOptions& options);

  ServeOptions options;
  std::uint64_t run = 0;
  const Clock::TimePoint started = Clock::real().now();
  std::array<std::uint8_t, 16> session_key{};
  std::unique_ptr<JournalWriter> journal;  // before the router, which tells it everything
  std::unique_ptr<TraceRecorder> trace;
  BodyMemoryReader bodies;
  MetricRegistry metrics;
  ServiceCounters counters;
  std::unique_ptr<Router> router;
  std::unique_ptr<PromptTokens> prompts;
  Receipts receipts;
  LateVerdicts late_verdicts;
  Seldom shortages;  // lines about them
  WaitLines lines;
  RecentEnds recent;
  ResponseHomes homes;
  TreeCache trees;
  PastPage past;
  std::unique_ptr<Fleet> fleet;
  std::atomic<bool> is_draining{false};
  std::optional<HttpAddress> peer;  // to start from
  std::atomic<bool> has_asked_peer{false};
  std::atomic<bool> takes_snapshot{false};  // now: asks for it, reads it or expects what it says
  std::atomic<bool> is_tidying{false};      // a chore for it waits
  std::vector<MetricRegistration> registrations;
  std::unique_ptr<Chores> chores;  // last: it uses all of them
};

// Names the metrics of the service. They live as long as `parts`.
Result<void> register_metrics(ServiceParts& parts);
// The metrics of each worker, which come and go with it, as Prometheus text.
std::string worker_metrics_text(const ServiceParts& parts);

}  // namespace ashlar::service
