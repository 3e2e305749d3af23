// Batches are shared between the subscriptions and the replay ring. recover() picks from the ring the last
// whole snapshot and the batches after it, or the events from the requested number on.
#include "ashlar/feed/feed_source.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::feed {

using events::EventBatch;
using events::OwnedBatch;
using SharedBatch = std::shared_ptr<const OwnedBatch>;

namespace {

// From one stream's batches, in publication order, keeps those that bring a listener at event `from` up to
// date: the last whole snapshot of `from` or later and everything published since, else the events from there
// on. False when there is neither.
bool keep_what_helps(std::vector<SharedBatch>& batches, std::uint64_t from) {
  // From the end: the parts of the wanted snapshot.
  std::vector<bool> seen;
  std::uint32_t missing = 0;
  std::uint64_t first = 0;
  for (std::size_t i = batches.size(); i-- > 0;) {
    const EventBatch& head = batches[i]->head;
    if (head.kind != events::BatchKind::kSnapshot || head.first < from || head.part >= head.parts) continue;
    if (head.parts > batches.size()) continue;  // some parts are missing
    if (seen.size() != head.parts || first != head.first) {
      seen.assign(head.parts, false);
      missing = head.parts;
      first = head.first;
    }
    ASHLAR_DCHECK(seen[head.part] || missing != 0, "a part is missing until it is seen");
    if (!seen[head.part]) --missing;
    seen[head.part] = true;
    if (missing != 0) continue;
    batches.erase(batches.begin(), batches.begin() + static_cast<std::ptrdiff_t>(i));
    std::erase_if(batches, [&](const SharedBatch& batch) {
      const bool is_snapshot = batch->head.kind == events::BatchKind::kSnapshot;
      return is_snapshot ? batch->head.first != first : batch->view().end() <= first;
    });
    return true;
  }
  std::erase_if(batches, [from](const SharedBatch& batch) {
    return batch->head.kind == events::BatchKind::kSnapshot || batch->view().end() <= from;
  });
  return std::ranges::any_of(batches, [from](const SharedBatch& batch) { return batch->head.first <= from; });
}

}  // namespace

struct EventBus::State {
  explicit State(const Options& given)
      : options(given), clock(given.clock == nullptr ? &Clock::real() : given.clock) {}

  struct Queue {
    std::deque<SharedBatch> batches;
  };

  const Options options;
  Clock* const clock;

  Mutex mu;
  CondVar arrived;
  std::vector<Queue*> queues ASHLAR_GUARDED_BY(mu);
  std::deque<SharedBatch> kept ASHLAR_GUARDED_BY(mu);
  bool closed ASHLAR_GUARDED_BY(mu) = false;
  bool published ASHLAR_GUARDED_BY(mu) = false;  // any batch

  Mutex snapshot_mu;  // held while querying the source; never taken under mu
  events::SnapshotSource* snapshots ASHLAR_GUARDED_BY(snapshot_mu) = nullptr;
};

class EventBus::Sink final : public events::BatchSink {
 public:
  explicit Sink(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Result<void> publish(const EventBatch& batch) override {
    const auto shared = std::make_shared<const OwnedBatch>(OwnedBatch::of(batch));
    const MutexLock lock(state_->mu);
    if (state_->closed) return {};
    state_->published = true;
    for (State::Queue* queue : state_->queues) {
      queue->batches.push_back(shared);
      if (queue->batches.size() > state_->options.queue_batches) queue->batches.pop_front();
    }
    state_->kept.push_back(shared);
    if (state_->kept.size() > state_->options.replay_batches) state_->kept.pop_front();
    ASHLAR_DCHECK(state_->kept.size() <= state_->options.replay_batches,
                  "one batch is added and at most one dropped");
    state_->arrived.notify_all();
    return {};
  }
  std::string describe() const override { return "bus"; }

 private:
  const std::shared_ptr<State> state_;
};

class EventBus::Subscription final : public FeedSource {
 public:
  explicit Subscription(std::shared_ptr<State> state) : state_(std::move(state)) {
    const MutexLock lock(state_->mu);
    is_late_ = state_->published;
    state_->queues.push_back(&queue_);
  }
  ~Subscription() override {
    const MutexLock lock(state_->mu);
    std::erase(state_->queues, &queue_);
  }

  Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) override {
    if (std::exchange(is_late_, false) && begin_with_snapshot(consumer)) return 1;
    std::deque<SharedBatch> taken;
    {
      const MutexLock lock(state_->mu);
      const Clock::TimePoint now = state_->clock->now();
      const Clock::TimePoint until =
          timeout > Clock::TimePoint::max() - now ? Clock::TimePoint::max() : now + timeout;
      while (queue_.batches.empty() && !state_->closed && state_->clock->now() < until)
        state_->clock->wait_until(state_->arrived, state_->mu, until);
      if (queue_.batches.empty() && state_->closed)
        return make_error(ErrorCode::kNotFound, "the bus has been closed");
      taken.swap(queue_.batches);
    }
    for (const SharedBatch& batch : taken) consumer.on_batch(batch->view());
    return taken.size();
  }

  Result<bool> recover(const events::StreamId& stream, std::uint64_t from, BatchConsumer& consumer) override {
    std::vector<SharedBatch> found;
    {
      const MutexLock lock(state_->mu);
      for (const SharedBatch& batch : state_->kept)
        if (batch->head.stream == stream) found.push_back(batch);
    }
    if (keep_what_helps(found, from)) {
      for (const SharedBatch& batch : found) consumer.on_batch(batch->view());
      return true;
    }
    OwnedBatch snapshot;
    {
      const MutexLock lock(state_->snapshot_mu);
      if (state_->snapshots == nullptr) return false;
      snapshot = state_->snapshots->snapshot();
    }
    if (snapshot.head.stream != stream) return false;
    consumer.on_batch(snapshot.view());
    return true;
  }

  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "bus"; }

 private:
  // What was published before the subscription. Batches that are queued already repeat some of it, which the
  // receiver drops. False: the bus serves no snapshots.
  bool begin_with_snapshot(BatchConsumer& consumer) {
    OwnedBatch snapshot;
    {
      const MutexLock lock(state_->snapshot_mu);
      if (state_->snapshots == nullptr) return false;
      snapshot = state_->snapshots->snapshot();
    }
    consumer.on_batch(snapshot.view());
    return true;
  }

  const std::shared_ptr<State> state_;
  State::Queue queue_;    // guarded by state_->mu
  bool is_late_ = false;  // batches were published before it, and it has not polled
};

EventBus::EventBus(const Options& options) : state_(std::make_shared<State>(options)) {}

EventBus::~EventBus() {
  serve_snapshots(nullptr);
  const MutexLock lock(state_->mu);
  state_->closed = true;
  state_->arrived.notify_all();
}

std::shared_ptr<events::BatchSink> EventBus::sink() {
  return std::make_shared<Sink>(state_);
}

std::unique_ptr<FeedSource> EventBus::subscribe() {
  return std::make_unique<Subscription>(state_);
}

void EventBus::serve_snapshots(events::SnapshotSource* source) {
  const MutexLock lock(state_->snapshot_mu);
  state_->snapshots = source;
}

}  // namespace ashlar::feed
