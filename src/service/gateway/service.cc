#include "ashlar/service/service.h"

#include <sys/random.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "ashlar/base/log.h"
#include "service/gateway/proxy_passage.h"
#include "service/gateway/refusals.h"
#include "service/gateway/service_parts.h"

namespace ashlar::service {

namespace {

// No errand of the fleet has this number.
constexpr std::uint64_t kPeerErrand = 0;
// Beyond these a difference counts as unexplained at once.
constexpr std::size_t kMostLateVerdicts = 1024;

Result<void> draw(std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return make_error(ErrorCode::kIo, "the system gives no random numbers: %s",
                        std::generic_category().message(errno).c_str());
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Result<std::uint64_t> draw_number() {
  std::uint64_t number = 0;
  ASHLAR_RETURN_IF_ERROR(draw({reinterpret_cast<std::uint8_t*>(&number), sizeof number}));
  return number;
}

Result<std::unique_ptr<JournalWriter>> open_journal(const ServeOptions& options, std::uint64_t run,
                                                    const RouterOptions& router) {
  std::error_code failed;
  std::filesystem::create_directories(options.journal, failed);
  if (failed)
    return make_error(ErrorCode::kIo, "cannot make the folder %s of the journal: %s", options.journal.c_str(),
                      failed.message().c_str());
  const std::string key_path = options.journal_key.empty() ? options.journal + "/key" : options.journal_key;
  ASHLAR_TRY(const JournalKey key, load_journal_key(key_path, options.journal_key.empty()));
  char name[40];
  std::snprintf(name, sizeof name, "/%016llx.journal", static_cast<unsigned long long>(run));
  return JournalWriter::create({.path = options.journal + name,
                                .key = key,
                                .run = run,
                                .router = router,
                                .file_bytes = options.journal_file_bytes,
                                .kept_bytes = options.journal_kept_bytes});
}

// "http://host:port", with or without the path of the dump.
Result<HttpAddress> peer_address(std::string_view url) {
  if (url.ends_with("/dump")) url.remove_suffix(5);
  const auto peer = parse_worker(url);
  if (!peer)
    return Error(ErrorCode::kInvalidArgument, "snapshot: '" + std::string(url) +
                                                  "' is neither a file nor the address of a router, as in "
                                                  "http://host:8080/dump");
  return peer->address;
}

void take_snapshot(ServiceParts& parts, Result<Snapshot> snapshot) {
  if (snapshot) {
    ASHLAR_LOG(LogLevel::kInfo, "serve", "expects what %s says of %zu workers",
               parts.options.snapshot.c_str(), snapshot->workers.size());
    parts.fleet->set_snapshot(*std::move(snapshot));
  } else {
    ASHLAR_LOG(LogLevel::kWarn, "serve", "no state from %s: %s", parts.options.snapshot.c_str(),
               printable(snapshot.error().message()).c_str());
  }
}

void take_snapshot_file(ServiceParts& parts) {
  const Result<std::string> text = read_whole_file(parts.options.snapshot);
  take_snapshot(parts, text ? read_snapshot(*text) : Result<Snapshot>(text.error()));
}

}  // namespace

ServiceParts::ServiceParts(const ServeOptions& serve_options)
    : options(serve_options),
      receipts({.decisions = serve_options.receipts, .bytes = serve_options.receipt_bytes}),
      late_verdicts(kMostLateVerdicts),
      lines(serve_options.max_queued),
      recent(serve_options.event_patience) {}

Service::Service(std::unique_ptr<ServiceParts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Service>> Service::create(const ServeOptions& options,
                                                 EngineSourceFactory make_source) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto parts = std::make_unique<ServiceParts>(options);
  ASHLAR_TRY(parts->run, draw_number());
  ASHLAR_RETURN_IF_ERROR(draw(parts->session_key));
  RouterOptions router{
      .prediction_ttl = options.prediction_ttl, .fallback_ttl = options.fallback_ttl, .seed = options.seed};
  if (router.seed == 0) {
    ASHLAR_TRY(router.seed, draw_number());
  }
  ASHLAR_RETURN_IF_ERROR(router.validate());
  if (!options.journal.empty()) {
    ASHLAR_TRY(parts->journal, open_journal(options, parts->run, router));
  }
  if (!options.record.empty()) {
    ASHLAR_TRY(parts->trace, TraceRecorder::create({.path = options.record}));
  }
  parts->router = std::make_unique<Router>(router, parts->journal.get());
  parts->prompts = std::make_unique<PromptTokens>(PromptTokens::Options{
      .max_bytes = options.prompt_cache_bytes, .tails = true, .renders = options.token_source != "tokenize"});
  parts->fleet =
      std::make_unique<Fleet>(parts->options, *parts->router, std::move(make_source), Clock::real());
  ASHLAR_RETURN_IF_ERROR(register_metrics(*parts));
  if (options.snapshot.starts_with("http")) {
    ASHLAR_TRY(parts->peer, peer_address(options.snapshot));
  } else if (!options.snapshot.empty()) {
    const Result<std::string> text = read_whole_file(options.snapshot);
    if (!text) return Error(text.error().code(), "snapshot: " + text.error().message());
    ASHLAR_TRY(Snapshot snapshot, read_snapshot(*text));
    parts->fleet->set_snapshot(std::move(snapshot));
  }
  ASHLAR_TRY(parts->chores, Chores::create());
  ASHLAR_RETURN_IF_ERROR(parts->fleet->set_workers(options.workers));
  return std::unique_ptr<Service>(new Service(std::move(parts)));
}

// Followers end before what they feed.
Service::~Service() {
  parts_->chores.reset();
  parts_->registrations.clear();
  parts_->fleet.reset();
}

std::unique_ptr<Passage> Service::open() {
  return std::make_unique<ProxyPassage>(*parts_);
}

std::optional<Reply> Service::refuse_head(const ClientRequest& head) {
  return refuse_stranger(*parts_, head);
}

Gateway::Due Service::due() {
  const auto evidence = [this](const RouteVerdict& verdict) {
    return evidence_for(verdict, *parts_->router);
  };
  for (const RouteVerdict& verdict : parts_->late_verdicts.settle(Clock::real().now(), evidence)) {
    parts_->counters.count(verdict.outcome.misroute);
    parts_->receipts.set_outcome(verdict.id, verdict.outcome);
  }
  Due due = parts_->fleet->due();
  // At the start, and whenever events were lost that cannot be had again.
  const bool is_wanted = !parts_->options.snapshot.empty() && parts_->fleet->wants_snapshot();
  if (is_wanted && !parts_->peer) take_snapshot_file(*parts_);
  const bool asks_peer = parts_->peer && (is_wanted || !parts_->has_asked_peer.load());
  if (asks_peer && !parts_->asks_peer.exchange(true)) {
    parts_->has_asked_peer.store(true);
    Errand errand;
    errand.number = kPeerErrand;
    errand.ask.address = *parts_->peer;
    errand.ask.method = "GET";
    errand.ask.target = "/dump";
    if (!parts_->options.token.empty()) errand.ask.headers = {{"x-ashlar-token", parts_->options.token}};
    errand.ask.timeout = std::chrono::seconds(60);
    errand.ask.max_bytes = std::size_t{1} << 30;
    due.errands.push_back(std::move(errand));
  }
  return due;
}

void Service::told(std::uint64_t number, Result<Answer> answer) {
  if (number == kPeerErrand) {
    parts_->asks_peer.store(false);
    // Reading it takes long where there is much.
    const bool is_taken = parts_->chores->add(
        [this, peer = std::make_shared<Result<Answer>>(std::move(answer))] { take_peer(std::move(*peer)); });
    if (!is_taken) take_peer(make_error(ErrorCode::kCapacity, "too much else was asked for"));
    return;
  }
  parts_->fleet->told(number, std::move(answer));
  // A worker may have come back.
  parts_->lines.for_each([](WaitLine& line) { line.wake_first(); });
}

// A peer that does not answer is no reason to wait: events tell everything in time.
void Service::take_peer(Result<Answer> answer) {
  Result<Snapshot> snapshot =
      !answer ? Result<Snapshot>(answer.error())
      : answer->status != 200
          ? Result<Snapshot>(make_error(ErrorCode::kUnavailable, "it answers %u", answer->status))
          : read_snapshot(answer->body);
  take_snapshot(*parts_, std::move(snapshot));
}

void Service::drain() {
  parts_->is_draining.store(true, std::memory_order_relaxed);
  parts_->lines.for_each([](WaitLine& line) { line.wake_all(); });
}

Result<void> Service::set_workers(std::span<const WorkerOptions> workers) {
  return parts_->fleet->set_workers(workers);
}

MetricRegistry& Service::metrics() noexcept {
  return parts_->metrics;
}

Router& Service::router() noexcept {
  return *parts_->router;
}

std::uint64_t Service::run() const noexcept {
  return parts_->run;
}

}  // namespace ashlar::service
