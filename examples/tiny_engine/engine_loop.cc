#include "tiny_engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "ashlar/base/log.h"

namespace tiny_engine {
namespace {

using namespace ashlar;

// A socket that takes this long is broken; clients do not wait for it for ever.
constexpr auto kEventsEnd = std::chrono::seconds(30);

}  // namespace

Result<std::unique_ptr<EngineLoop>> EngineLoop::create(EngineLoopOptions options) {
  if (options.engine.kv.event_capacity == 0) options.engine.kv.event_capacity = 1 << 16;
  ASHLAR_TRY(std::unique_ptr<Engine> engine, Engine::create(options.engine));
  ASHLAR_TRY(std::unique_ptr<VllmEvents> events,
             VllmEvents::create(*engine, std::move(options.sockets), options.events));
  return std::unique_ptr<EngineLoop>(new EngineLoop(std::move(engine), std::move(events)));
}

EngineLoop::EngineLoop(std::unique_ptr<Engine> engine, std::unique_ptr<VllmEvents> events)
    : engine_(std::move(engine)), events_(std::move(events)), thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  stop();
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  clients_.clear();
  const std::lock_guard lock(mu_);
  submitted_.clear();
  resets_.clear();
}

void EngineLoop::submit(Request request, std::shared_ptr<LoopClient> client) {
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return;
    ++load_;
    submitted_.push_back({std::move(request), std::move(client)});
    ++gauges_.waiting;
  }
  changed_.notify_one();
}

void EngineLoop::reset_prefix_cache(bool preempt, std::function<void(bool)> done) {
  {
    const std::lock_guard lock(mu_);
    resets_.push_back({preempt, std::move(done)});
  }
  changed_.notify_one();
}

LoopGauges EngineLoop::gauges() const {
  const std::lock_guard lock(mu_);
  return gauges_;
}

Result<std::vector<MetricRegistration>> EngineLoop::add_metrics(MetricRegistry& metrics,
                                                                const std::string& engine) const {
  std::vector<MetricRegistration> all;
  for (std::uint32_t rank = 0; rank < engine_->rank_count(); ++rank) {
    MetricLabels labels = {{"engine", engine}};
    if (engine_->rank_count() > 1) labels.emplace_back("rank", std::to_string(rank));
    ASHLAR_TRY(std::vector<MetricRegistration> some, engine_->kv(rank).add_metrics(metrics, labels));
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return all;
}

void EngineLoop::run() {
  std::vector<Submitted> submitted;
  std::vector<Reset> resets;
  while (take(submitted, resets)) {
    for (const Reset& reset : resets) {
      const auto cleared = events_->clear(Clock::real().now() + kEventsEnd,
                                          [&] { return engine_->reset_prefix_cache(reset.preempt); });
      publish_events();
      reset.done(cleared && *cleared);
    }
    for (Submitted& one : submitted) admit(one);
    drop_gone_clients();
    note_gauges();
    if (clients_.empty()) continue;
    engine_->step();
    publish_events();
    collect_replies();
    note_gauges();  // first: a client that has its answer does not find itself among the running
    deliver();
  }
}

bool EngineLoop::take(std::vector<Submitted>& submitted, std::vector<Reset>& resets) {
  submitted.clear();
  resets.clear();
  std::unique_lock lock(mu_);
  changed_.wait(lock,
                [&] { return stopping_ || !clients_.empty() || !submitted_.empty() || !resets_.empty(); });
  submitted.swap(submitted_);
  resets.swap(resets_);
  return !stopping_;
}

void EngineLoop::admit(Submitted& submitted) {
  prompt_tokens_ += submitted.request.prompt.size();
  const auto id = engine_->submit(submitted.request);
  if (id) {
    clients_.emplace(*id, std::move(submitted.client));
    return;
  }
  --load_;
  submitted.client->on_end({Reply{.tokens = {}, .error = id.error().to_string()}});
}

void EngineLoop::drop_gone_clients() {
  std::erase_if(clients_, [&](const auto& client) {
    if (!client.second->is_gone()) return false;
    engine_->abort(client.first);
    --load_;
    ++aborted_;
    return true;
  });
}

void EngineLoop::publish_events() {
  // With a delay the messages are still on their way when this returns.
  const Result<void> flushed = events_->flush(Clock::real().now() + kEventsEnd);
  if (!flushed || !events_->publisher().flush(kEventsEnd))
    ASHLAR_LOG(LogLevel::kWarn, "tiny_engine", "the KV events of a step are still not published");
}

void EngineLoop::deliver() {
  for (const NewToken& token : engine_->new_tokens())
    if (const auto client = clients_.find(token.request); client != clients_.end())
      client->second->on_token(token.sample, token.token, token.cached_tokens);
  for (auto& [id, replies] : ended_) {
    const auto client = clients_.extract(id);
    client.mapped()->on_end(std::move(replies));
  }
}

void EngineLoop::collect_replies() {
  ended_.clear();
  for (const auto& [id, client] : clients_) {
    std::vector<Reply> replies = engine_->take(id);
    if (!replies.empty()) ended_.emplace_back(id, std::move(replies));
  }
  load_ -= ended_.size();
  finished_ += ended_.size();
}

void EngineLoop::note_gauges() {
  const std::lock_guard lock(mu_);
  gauges_ = {.running = engine_->running(),
             .waiting = engine_->waiting() + submitted_.size(),
             .prompt_tokens = prompt_tokens_,
             .cached_tokens = engine_->counters().cached_tokens,
             .preemptions = engine_->counters().preemptions,
             .finished = finished_,
             .aborted = aborted_};
}

}  // namespace tiny_engine
