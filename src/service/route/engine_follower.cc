#include "service/route/engine_follower.h"

#include <chrono>
#include <deque>
#include <utility>

#include "base/start_thread.h"

namespace ashlar::service {

using feed::EngineMessage;
using feed::EngineReplay;
using feed::EngineSession;

namespace {

constexpr events::TierId kDeviceTier{events::G1::kIndex};
constexpr std::string_view kUnread = "late: its events were not read for a while, and some may wait";

}  // namespace

std::string_view to_string(StateReason reason) noexcept {
  constexpr std::string_view kNames[] = {"none",        "no_events",  "starting",     "unreachable",
                                         "reconnected", "replaying",  "start_missed", "lost",
                                         "refused",     "block_size", "unread",       "late"};
  return kNames[static_cast<std::size_t>(reason)];
}

// Tells when a replay begins, which a step may take long for. A reconnect that nobody can look back over is
// told to the session as a restart: what was held may be gone, and numbers that follow on prove nothing.
//
// While the stream is incomplete it keeps the messages that came last, so that a snapshot can be joined to
// them where the engine keeps none.
class EngineFollower::WatchedSource final : public feed::EngineSource {
 public:
  WatchedSource(std::unique_ptr<feed::EngineSource> inner, const Options& options)
      : inner_(std::move(inner)), most_(options.most_kept), most_bytes_(options.most_kept_bytes) {}

  void on_replay(std::function<void()> begins) { on_replay_ = std::move(begins); }

  Result<std::optional<EngineMessage>> receive(Clock::Duration timeout) override {
    Result<std::optional<EngineMessage>> received = inner_->receive(timeout);
    if (restarts() != restarts_) forget();
    restarts_ = restarts();
    if (keeps_ && received && *received) keep(**received);
    return received;
  }
  Result<EngineReplay> replay(std::uint64_t from) override {
    if (on_replay_) on_replay_();
    Result<EngineReplay> replay = inner_->replay(from);
    if (!helps_ || kept_.empty() || from < kept_.front().sequence || from > kept_.back().sequence ||
        (replay && !replay->messages.empty() && replay->messages.front().sequence == from))
      return replay;
    const auto first = kept_.begin() + static_cast<std::ptrdiff_t>(from - kept_.front().sequence);
    return EngineReplay{.messages = {first, kept_.end()}};
  }
  // Answers replays that the engine cannot.
  void set_helps(bool helps) noexcept { helps_ = helps; }
  void set_keeps(bool keeps) {
    keeps_ = keeps && most_ != 0;
    if (!keeps_) forget();
  }
  std::uint64_t damaged() const noexcept override { return inner_->damaged(); }
  std::uint64_t unfinished_bytes() const noexcept override { return inner_->unfinished_bytes(); }
  std::uint64_t restarts() const noexcept override { return inner_->restarts() + inner_->blind_reconnects(); }
  std::uint64_t blind_reconnects() const noexcept override { return inner_->blind_reconnects(); }
  bool has_looked_back() const noexcept override { return inner_->has_looked_back(); }
  std::string describe() const override { return inner_->describe(); }

 private:
  void keep(const EngineMessage& message) {
    if (!kept_.empty() && message.sequence >= kept_.front().sequence &&
        message.sequence <= kept_.back().sequence &&
        kept_[message.sequence - kept_.front().sequence].payload == message.payload)
      return;
    if (!kept_.empty() && message.sequence != kept_.back().sequence + 1) forget();
    kept_.push_back(message);
    kept_bytes_ += message.bytes();
    while (kept_.size() > most_ || kept_bytes_ > most_bytes_) {
      kept_bytes_ -= kept_.front().bytes();
      kept_.pop_front();
    }
  }
  void forget() {
    kept_.clear();
    kept_bytes_ = 0;
  }

  std::unique_ptr<feed::EngineSource> inner_;
  std::function<void()> on_replay_;
  const std::size_t most_;
  const std::size_t most_bytes_;
  bool keeps_ = true;
  bool helps_ = false;
  std::uint64_t restarts_ = 0;
  std::deque<EngineMessage> kept_;  // without gaps
  std::size_t kept_bytes_ = 0;
};

namespace {

// Events after which it is not known what the engine holds.
std::uint64_t refused_events(const feed::EngineIngestCounters& counters) {
  return counters.unknown_events + counters.overflowed + counters.short_tokens + counters.long_salts +
         counters.collisions + counters.ambiguous_parents + counters.too_deep;
}

}  // namespace

Result<std::unique_ptr<EngineFollower>> EngineFollower::create(const Options& options, Router& router,
                                                               std::unique_ptr<feed::EngineSource> source,
                                                               Hearers hearers) {
  ASHLAR_CHECK(source != nullptr, "a follower needs a source");
  auto watched = std::make_unique<WatchedSource>(std::move(source), options);
  WatchedSource& reference = *watched;
  feed::EngineSessionOptions session_options;
  session_options.ingest.worker = options.worker.id;
  session_options.ingest.block_size = options.block_size;
  session_options.ingest.scheme = options.scheme;
  session_options.ingest.salt = options.salt;
  session_options.ingest.full_reports_asked = options.full_reports_asked;
  ASHLAR_TRY(EngineSession session, EngineSession::create(std::move(watched), session_options));
  std::unique_ptr<EngineFollower> follower(
      new EngineFollower(options, router, reference, std::move(session), std::move(hearers)));
  EngineFollower* self = follower.get();
  ASHLAR_RETURN_IF_ERROR(start_thread(&follower->thread_, [self] { self->run(); }));
  return follower;
}

EngineFollower::EngineFollower(const Options& options, Router& router, WatchedSource& watched,
                               EngineSession session, Hearers hearers)
    : options_(options),
      router_(router),
      watched_(watched),
      session_(std::move(session)),
      feeder_(router.sink(), options.worker.id),
      hearers_(std::move(hearers)) {
  set_model_block_size(options.model_block_size);
  watched_.on_replay([this] { set_state(StateReason::kReplaying, "missing messages are being replayed"); });
  watched_.set_keeps(true);
  set_state(StateReason::kStarting, "not connected to its events yet");
}

EngineFollower::~EngineFollower() {
  stops_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
  answer_saves();
}

void EngineFollower::run() {
  while (!stops_.load(std::memory_order_relaxed)) {
    if (!try_resume()) step();
    answer_saves();
  }
}

void EngineFollower::offer(SavedEngine saved) {
  MutexLock lock(mu_);
  offered_.emplace(std::move(saved));
}

std::future<SavedEngine> EngineFollower::save() {
  MutexLock lock(mu_);
  return saves_.emplace_back().get_future();
}

void EngineFollower::answer_saves() {
  std::vector<std::promise<SavedEngine>> saves;
  {
    MutexLock lock(mu_);
    saves.swap(saves_);
  }
  if (saves.empty()) return;
  const FollowerStatus now = status();
  const SavedEngine saved = now.state == WorkerState::kExact
                                ? session_.save()
                                : SavedEngine(Error(ErrorCode::kNotReady, "it is not EXACT: " + now.reason));
  for (std::promise<SavedEngine>& save : saves) save.set_value(saved);
}

bool EngineFollower::try_resume() {
  std::optional<SavedEngine> offered;
  {
    MutexLock lock(mu_);
    if (status_.state == WorkerState::kExact) offered_.reset();
    if (!is_incomplete() || is_doubtful_ || !session_.next()) return false;
    offered.swap(offered_);
  }
  if (!offered) return false;
  const feed::EngineSessionCounters before = session_.counters();
  const feed::EngineIngestCounters ingested = session_.ingest().counters();
  changes_.clear();
  watched_.set_helps(true);
  const Result<void> resumed =
      *offered ? session_.resume(**offered, changes_) : Result<void>(offered->error());
  watched_.set_helps(false);
  offer_reason_ = resumed ? std::string() : resumed.error().message();
  if (resumed) {
    for (const feed::IndexChanges::Change& change : changes_.changes)
      if (change.kind == events::KvEventKind::kStored) tiers_.set(change.tier.value());
    tiers_ |= TierSet(changes_.tracked_tiers);
    incomplete_.reset();
    apply_changes(ingested);
  }
  judge(before, ingested, nullptr);
  if (hearers_.on_news && resumed) hearers_.on_news();
  return true;
}

void EngineFollower::step() {
  constexpr Clock::Duration kPause = std::chrono::milliseconds(50);
  const feed::EngineSessionCounters before = session_.counters();
  const feed::EngineIngestCounters ingested = session_.ingest().counters();
  changes_.clear();
  const Result<std::size_t> applied = session_.step(is_behind_ ? Clock::Duration::zero() : kPause, changes_);
  // A new engine may have other tiers. After a blind reconnect it may be the same one.
  if (session_.counters().restarts != before.restarts && watched_.blind_reconnects() == blind_)
    tiers_ = TierSet{1};
  apply_changes(ingested);
  if (applied && session_.counters().received == before.received) is_behind_ = false;
  // Before the beat, after which status() believes what was said last.
  if (router_.is_late(options_.worker) && says_exact()) set_state(StateReason::kUnread, std::string(kUnread));
  if (!router_.beat(options_.worker, options_.unread_after)) is_behind_ = true;
  judge(before, ingested, applied ? nullptr : &applied.error());
  if (hearers_.on_news && session_.counters().applied != before.applied) hearers_.on_news();
  if (!applied && applied.error().code() == ErrorCode::kNotFound && !stops_.load(std::memory_order_relaxed))
    std::this_thread::sleep_for(kPause);  // a recording has ended
}

void EngineFollower::apply_changes(const feed::EngineIngestCounters& ingested) {
  const feed::EngineIngestCounters& ingested_now = session_.ingest().counters();
  for (std::size_t tier = 0; tier < ingested_now.tier_events.size(); ++tier)
    if (ingested_now.tier_events[tier] != ingested.tier_events[tier]) tiers_.set(tier);
  // A clear is of one tier, and comes as the end of each block. Where there is only the device, its clear is
  // told as one, so that it is not taken for evictions.
  constexpr std::size_t kDevice = kDeviceTier.value();
  if (ingested_now.tier_clears[kDevice] != ingested.tier_clears[kDevice] && tiers_.count() == 1) {
    feed::IndexChanges cleared;
    cleared.changes.push_back({.kind = events::KvEventKind::kCleared, .tier = events::kAllTiers});
    feeder_.apply(options_.worker.rank, cleared);
  }
  // All of one rank, whatever number the engine gives it.
  feeder_.apply(options_.worker.rank, changes_);
}

void EngineFollower::lose(StateReason why, std::string reason) {
  incomplete_.set();
  incomplete_why_ = why;
  incomplete_reason_ = std::move(reason);
}

void EngineFollower::judge(const feed::EngineSessionCounters& before,
                           const feed::EngineIngestCounters& ingested_before, const Error* failure) {
  const feed::EngineSessionCounters& now = session_.counters();
  const feed::EngineIngestCounters& ingested = session_.ingest().counters();
  ASHLAR_DCHECK(tiers_.test(kDeviceTier.value()), "every engine has device memory");
  if (now.restarts != before.restarts) {
    incomplete_.reset();
    offer_reason_.clear();
    odd_answer_.store(0, std::memory_order_relaxed);
    size_refusal_.clear();
  }
  if (ingested.wrong_block_sizes != ingested_before.wrong_block_sizes)
    size_refusal_ = session_.ingest().last_refusal();
  for (std::size_t tier = 0; tier < ingested.tier_clears.size(); ++tier)
    if (ingested.tier_clears[tier] != ingested_before.tier_clears[tier]) incomplete_.reset(tier);
  losses_ += now.resyncs != before.resyncs;
  if (now.incomplete_starts != before.incomplete_starts) {
    lose(StateReason::kStartMissed, "its stream began before this listener, and the start is not kept");
  } else if (now.resyncs != before.resyncs) {
    lose(StateReason::kLost, std::to_string(now.lost - before.lost) + " messages were lost for good");
  }
  if (const std::uint64_t refused = refused_events(ingested); refused != refused_) {
    refused_ = refused;
    lose(StateReason::kRefused, "events were refused: " + session_.ingest().last_refusal());
  }
  if (failure != nullptr && failure->code() != ErrorCode::kNotFound) {
    is_doubtful_ = true;
    return set_state(StateReason::kUnreachable, failure->message());
  }
  if (now.applied != before.applied || watched_.has_looked_back()) is_doubtful_ = false;
  // After that: what this step applied may have been sent before the connection broke.
  if (const std::uint64_t blind = watched_.blind_reconnects(); blind != blind_) {
    blind_ = blind;
    is_doubtful_ = true;
  }
  if (std::string complaint = size_complaint(); !complaint.empty())
    return set_state(StateReason::kBlockSize, std::move(complaint));
  if (is_doubtful_) {
    return set_state(session_.next() || blind_ != 0 ? StateReason::kReconnected : StateReason::kStarting,
                     session_.next() ? "connected again; messages may be missing until the next one"
                     : blind_ != 0   ? "connected again, and no replay tells what was missed"
                                     : "no message yet, and no replay tells what came before");
  }
  watched_.set_keeps(is_incomplete() || !session_.next());
  if (const TierSet open = incomplete_ & tiers_; open.any())
    return set_state(incomplete_why_,
                     incomplete_reason_ + (open.test(kDeviceTier.value()) ? "" : ", of lower tiers") +
                         (offer_reason_.empty() ? "" : "; the snapshot does not help: " + offer_reason_));
  if (is_behind_) return set_state(StateReason::kUnread, std::string(kUnread));
  if (is_late()) return set_state(StateReason::kLate, "late: a request was answered and no event of it came");
  set_state(StateReason::kNone, {});
}

void EngineFollower::set_state(StateReason why, std::string reason) {
  const WorkerState state = why == StateReason::kNone ? WorkerState::kExact : WorkerState::kDegraded;
  FollowerStatus told{.state = state,
                      .why = why,
                      .reason = std::move(reason),
                      .block_size = session_.ingest().block_size(),
                      .session = session_.counters(),
                      .ingest = session_.ingest().counters(),
                      .present = session_.ingest().present(),
                      .is_incomplete = is_incomplete(),
                      .losses = losses_};
  bool is_new = false;
  {
    MutexLock lock(mu_);
    is_new =
        status_.state != told.state || status_.reason != told.reason || status_.block_size != told.block_size;
    // The size first: of two followers whose engines change it at once, the later one's hearer must see both.
    status_.block_size = told.block_size;
  }
  // Before status() says so: who has seen EXACT may rely on what the router and the hearer know.
  if (is_new) {
    router_.set_state(options_.worker, state);
    if (hearers_.on_change) hearers_.on_change(told);
  }
  {
    MutexLock lock(mu_);
    status_ = std::move(told);
  }
  if (is_new && hearers_.on_news) hearers_.on_news();
}

bool EngineFollower::says_exact() const {
  MutexLock lock(mu_);
  return status_.state == WorkerState::kExact;
}

FollowerStatus EngineFollower::status() const {
  const bool is_unread = router_.is_late(options_.worker);
  MutexLock lock(mu_);
  FollowerStatus status = status_;
  if (is_unread && status.state == WorkerState::kExact) {
    status.state = WorkerState::kDegraded;
    status.why = StateReason::kUnread;
    status.reason = kUnread;
  }
  return status;
}

void EngineFollower::expect_event(const WorkerChanges& before) {
  if (router_.changes(options_.worker) != before) return;
  MutexLock lock(mu_);
  if (!owed_) owed_ = {.since = Clock::real().now(), .before = before};
}

void EngineFollower::set_model_block_size(std::uint32_t block_size) noexcept {
  if (model_block_size_.exchange(block_size, std::memory_order_relaxed) == block_size) return;
  odd_answer_.store(0, std::memory_order_relaxed);  // it was odd for the old size
}

void EngineFollower::note_odd_answer(std::uint64_t cached_tokens) noexcept {
  odd_answer_.store(cached_tokens, std::memory_order_relaxed);
}

std::string EngineFollower::size_complaint() const {
  if (!size_refusal_.empty()) return size_refusal_;
  const std::uint32_t models = model_block_size_.load(std::memory_order_relaxed);
  const std::uint32_t reported = session_.ingest().block_size();
  const std::uint32_t own = reported != 0 ? reported : options_.block_size;
  if (own != 0 && models != 0 && own != models)
    return "its blocks have " + std::to_string(own) + " tokens, those of the model's other workers " +
           std::to_string(models) + "; configure all alike";
  const std::uint64_t odd = odd_answer_.load(std::memory_order_relaxed);
  if (odd == 0) return {};
  return "it found " + std::to_string(odd) + " cached tokens, which is no number of whole blocks of " +
         std::to_string(own) + "; its blocks may have another size";
}

bool EngineFollower::is_late() {
  ASHLAR_DCHECK(options_.late_after >= Clock::Duration::zero(), "late before it is owed");
  std::optional<Owed> owed;
  {
    MutexLock lock(mu_);
    owed = owed_;
  }
  if (!owed) return false;
  // It may have come between the look and the promise.
  if (router_.changes(options_.worker) == owed->before)
    return Clock::real().now() - owed->since > options_.late_after;
  MutexLock lock(mu_);
  owed_.reset();
  return false;
}

}  // namespace ashlar::service
