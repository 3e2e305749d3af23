#include "ashlar/service/service.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
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
// Of one name.
constexpr unsigned kMostTraces = 9999;

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

RouterOptions router_options(const ServeOptions& options) {
  return {.prediction_ttl = options.prediction_ttl,
          .fallback_ttl = options.fallback_ttl,
          .seed = options.seed,
          .max_predicted_blocks = std::min(options.max_predicted_blocks, options.max_predictions),
          .max_predictions = options.max_predictions};
}

// Whether files can be made in a folder, which need not be there yet if it `may_be_made`.
Result<void> check_folder(const std::string& name, bool may_be_made, std::string_view what) {
  namespace fs = std::filesystem;
  const auto refuse = [&](const fs::path& at, const char* why) {
    return make_error(ErrorCode::kIo, "the folder %s of the %s cannot be written: %s%s",
                      printable(name).c_str(), std::string(what).c_str(),
                      at == name ? "" : (printable(at.string()) + ": ").c_str(), why);
  };
  std::error_code failed;
  fs::path at = name.empty() ? fs::path(".") : fs::path(name);
  while (may_be_made && !fs::exists(at, failed) && at.has_relative_path()) {
    at = at.parent_path();
    if (at.empty()) at = ".";
  }
  if (::access(at.c_str(), W_OK | X_OK) != 0)
    return refuse(at, std::generic_category().message(errno).c_str());
  if (!fs::is_directory(at, failed)) return refuse(at, "it is no folder");
  return {};
}

std::string journal_key_path(const ServeOptions& options) {
  return options.journal_key.empty() ? options.journal + "/key" : options.journal_key;
}

Result<void> check_journal(const ServeOptions& options) {
  ASHLAR_RETURN_IF_ERROR(check_folder(options.journal, true, "journal"));
  const std::string key = journal_key_path(options);
  std::error_code failed;
  // One that is missing in the folder is made.
  if (!options.journal_key.empty() || std::filesystem::exists(key, failed))
    ASHLAR_RETURN_IF_ERROR(load_journal_key(key, false));
  return {};
}

Result<std::unique_ptr<JournalWriter>> open_journal(const ServeOptions& options, std::uint64_t run,
                                                    const RouterOptions& router) {
  std::error_code failed;
  std::filesystem::create_directories(options.journal, failed);
  if (failed)
    return make_error(ErrorCode::kIo, "cannot make the folder %s of the journal: %s", options.journal.c_str(),
                      failed.message().c_str());
  ASHLAR_TRY(const JournalKey key, load_journal_key(journal_key_path(options), options.journal_key.empty()));
  char name[40];
  std::snprintf(name, sizeof name, "/%016llx.journal", static_cast<unsigned long long>(run));
  return JournalWriter::create({.path = options.journal + name,
                                .key = key,
                                .run = run,
                                .router = router,
                                .file_bytes = options.journal_file_bytes,
                                .kept_bytes = options.journal_kept_bytes});
}

// The first of FILE, FILE.1, FILE.2 and so on that is free: a restart begins another trace.
Result<std::unique_ptr<TraceRecorder>> open_trace(const std::string& path) {
  for (unsigned number = 0;; ++number) {
    const std::string name = number == 0 ? path : path + "." + std::to_string(number);
    auto made = TraceRecorder::create({.path = name});
    if (!made && made.error().code() == ErrorCode::kAlreadyExists && number < kMostTraces) continue;
    if (made && number != 0)
      ASHLAR_LOG(LogLevel::kInfo, "serve", "%s is there already: the trace is written to %s", path.c_str(),
                 name.c_str());
    return made;
  }
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

constexpr std::size_t kMostSnapshotBytes = std::size_t{8} << 30;

Result<Snapshot> read_snapshot_file(const std::string& path) {
  ASHLAR_TRY(const std::string text, read_whole_file(path, kMostSnapshotBytes));
  return read_snapshot(text);
}

bool is_peer(std::string_view snapshot) {
  return snapshot.starts_with("http");
}

// The one to start from, a file. Errors: of reading it.
Result<Snapshot> first_snapshot(const std::string& path) {
  Result<Snapshot> snapshot = read_snapshot_file(path);
  if (!snapshot) return Error(snapshot.error().code(), "snapshot: " + snapshot.error().message());
  return snapshot;
}

Result<Snapshot> read_peer(const Result<Answer>& answer) {
  if (!answer) return answer.error();
  if (answer->status != 200) return make_error(ErrorCode::kUnavailable, "it answers %u", answer->status);
  return read_snapshot(answer->body);
}

// A snapshot that cannot be had is no reason to wait: events tell everything in time.
void take_snapshot(ServiceParts& parts, Result<Snapshot> snapshot) {
  if (snapshot) {
    ASHLAR_LOG(LogLevel::kInfo, "serve", "expects what %s says of %zu workers",
               parts.options.snapshot.c_str(), snapshot->workers.size());
    parts.fleet->set_snapshot(*std::move(snapshot));
    parts.counters.snapshots.add();
  } else {
    ASHLAR_LOG(LogLevel::kWarn, "serve", "no state from %s: %s", parts.options.snapshot.c_str(),
               printable(snapshot.error().message()).c_str());
  }
}

// One snapshot is taken at a time. Its turn ends with the last copy of this, however that comes about.
using SnapshotTurn = std::shared_ptr<ServiceParts>;
SnapshotTurn begin_snapshot(ServiceParts& parts) {
  parts.takes_snapshot.store(true);
  return {&parts, [](ServiceParts* of) { of->takes_snapshot.store(false); }};
}

// Reading it and expecting what it says take long where there is much.
void take_snapshot_later(SnapshotTurn turn, std::function<Result<Snapshot>()> read) {
  ServiceParts& parts = *turn;
  const bool is_taken =
      parts.chores->add([turn = std::move(turn), read = std::move(read)] { take_snapshot(*turn, read()); });
  if (!is_taken) take_snapshot(parts, make_error(ErrorCode::kCapacity, "too much else was asked for"));
}

}  // namespace

ServiceParts::ServiceParts(const ServeOptions& serve_options)
    : options(serve_options),
      receipts({.decisions = serve_options.receipts, .bytes = serve_options.receipt_bytes}),
      late_verdicts(kMostLateVerdicts, serve_options.late_after),
      lines(serve_options.max_queued),
      recent(serve_options.event_patience) {}

Service::Service(std::unique_ptr<ServiceParts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Service>> Service::create(const ServeOptions& options,
                                                 EngineSourceFactory make_source) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto parts = std::make_unique<ServiceParts>(options);
  ASHLAR_TRY(parts->run, draw_number());
  ASHLAR_RETURN_IF_ERROR(draw(parts->session_key));
  RouterOptions router = router_options(options);
  if (router.seed == 0) {
    ASHLAR_TRY(router.seed, draw_number());
  }
  ASHLAR_RETURN_IF_ERROR(router.validate());
  if (!options.journal.empty()) {
    ASHLAR_TRY(parts->journal, open_journal(options, parts->run, router));
  }
  if (!options.record.empty()) {
    ASHLAR_TRY(parts->trace, open_trace(options.record));
  }
  parts->router = std::make_unique<Router>(router, parts->journal.get());
  parts->prompts = std::make_unique<PromptTokens>(PromptTokens::Options{
      .max_bytes = options.prompt_cache_bytes, .tails = true, .renders = options.token_source != "tokenize"});
  parts->fleet =
      std::make_unique<Fleet>(parts->options, *parts->router, std::move(make_source), Clock::real());
  ASHLAR_RETURN_IF_ERROR(register_metrics(*parts));
  if (is_peer(options.snapshot)) {
    ASHLAR_TRY(parts->peer, peer_address(options.snapshot));
  } else if (!options.snapshot.empty()) {
    ASHLAR_TRY(Snapshot snapshot, first_snapshot(options.snapshot));
    parts->fleet->set_snapshot(std::move(snapshot));
    parts->counters.snapshots.add();
  }
  ASHLAR_TRY(parts->chores, Chores::create());
  ASHLAR_RETURN_IF_ERROR(parts->fleet->set_workers(options.workers));
  return std::unique_ptr<Service>(new Service(std::move(parts)));
}

Result<void> Service::check(const ServeOptions& options, const EngineSourceFactory& make_source) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_RETURN_IF_ERROR(router_options(options).validate());
  ASHLAR_RETURN_IF_ERROR(check_workers(options.workers, make_source != nullptr));
  if (!options.journal.empty()) ASHLAR_RETURN_IF_ERROR(check_journal(options));
  if (!options.record.empty())
    ASHLAR_RETURN_IF_ERROR(
        check_folder(std::filesystem::path(options.record).parent_path().string(), false, "recording"));
  if (is_peer(options.snapshot)) {
    ASHLAR_RETURN_IF_ERROR(peer_address(options.snapshot));
  } else if (!options.snapshot.empty()) {
    ASHLAR_RETURN_IF_ERROR(first_snapshot(options.snapshot));
  }
  return {};
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
  const LateVerdicts::Questions ask = {
      .changes = [this](const events::Worker& worker) { return parts_->router->changes(worker); },
      .evidence = [this](const RouteVerdict& verdict) { return evidence_for(verdict, *parts_->router); }};
  for (const RouteVerdict& verdict : parts_->late_verdicts.settle(Clock::real().now(), ask)) {
    parts_->counters.count(verdict.outcome.misroute);
    parts_->receipts.set_outcome(verdict.id, verdict.outcome);
  }
  if (!parts_->is_tidying.exchange(true)) {
    const bool is_taken = parts_->chores->add([parts = parts_.get()] {
      parts->is_tidying.store(false);
      parts->router->tidy();
    });
    if (!is_taken) parts_->is_tidying.store(false);
  }
  std::optional<Errand> question = ask_for_snapshot();
  Due due = parts_->fleet->due();
  if (question) {
    due.errands.push_back(*std::move(question));
    parts_->has_asked_peer.store(true);
    parts_->takes_snapshot.store(true);  // until it is told
  }
  return due;
}

// At the start, and whenever events were lost that cannot be had again.
std::optional<Errand> Service::ask_for_snapshot() {
  if (parts_->options.snapshot.empty() || parts_->takes_snapshot.load()) return std::nullopt;
  const bool is_wanted = parts_->fleet->wants_snapshot();
  if (!parts_->peer) {
    if (is_wanted)
      take_snapshot_later(begin_snapshot(*parts_),
                          [path = parts_->options.snapshot] { return read_snapshot_file(path); });
    return std::nullopt;
  }
  if (!is_wanted && parts_->has_asked_peer.load()) return std::nullopt;
  Errand errand;
  errand.number = kPeerErrand;
  errand.ask.address = *parts_->peer;
  errand.ask.method = "GET";
  errand.ask.target = "/dump";
  if (!parts_->options.token.empty()) errand.ask.headers = {{"x-ashlar-token", parts_->options.token}};
  errand.ask.timeout = std::chrono::seconds(60);
  errand.ask.max_bytes = std::size_t{1} << 30;
  return errand;
}

void Service::told(std::uint64_t number, Result<Answer> answer) {
  if (number == kPeerErrand) {
    SnapshotTurn turn = begin_snapshot(*parts_);
    const auto told = std::make_shared<const Result<Answer>>(std::move(answer));
    take_snapshot_later(std::move(turn), [told] { return read_peer(*told); });
    return;
  }
  parts_->fleet->told(number, std::move(answer));
  // A worker may have come back.
  parts_->lines.for_each([](WaitLine& line) { line.wake_first(); });
}

void Service::drain() {
  parts_->is_draining.store(true, std::memory_order_relaxed);
  parts_->lines.for_each([](WaitLine& line) { line.wake_all(); });
}

Result<void> Service::set_workers(std::span<const WorkerOptions> workers) {
  return parts_->fleet->set_workers(workers);
}

void Service::set_body_memory(std::function<BodyMemory()> read) {
  MutexLock lock(parts_->bodies.mu);
  parts_->bodies.read = std::move(read);
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
