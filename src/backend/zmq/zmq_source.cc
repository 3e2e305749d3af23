#include "ashlar/backend/zmq/zmq_source.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/base/check.h"
#include "ashlar/events/event_codec.h"
#include "backend/zmq/subscriber.h"

namespace ashlar::backend::zmq {
namespace {

using events::BatchKind;
using events::EventBatch;
using events::StreamId;

// The replay of one stream from one event on: delivers nothing before a batch that begins early enough, or a
// snapshot.
class Recovery {
 public:
  Recovery(const StreamId& stream, std::uint64_t from, feed::BatchConsumer& consumer)
      : stream_(stream), from_(from), consumer_(consumer) {}

  void take(const EventBatch& batch) {
    if (batch.stream != stream_) return;
    newest_end_ = std::max(newest_end_.value_or(0), batch.end());
    if (batch.kind == BatchKind::kSnapshot) {
      if (batch.first < from_) return;
      if (batch.part == 0) is_covered_ = true;
    } else {
      if (batch.end() <= from_) return;
      if (batch.first <= from_) is_covered_ = true;
    }
    if (is_covered_) consumer_.on_batch(batch);
  }
  // Everything from the event on was delivered, or there is nothing.
  bool is_covered() const noexcept { return is_covered_ || newest_end_ == from_; }

 private:
  const StreamId& stream_;
  const std::uint64_t from_;
  feed::BatchConsumer& consumer_;
  std::optional<std::uint64_t> newest_end_;
  bool is_covered_ = false;
};

}  // namespace

Result<void> ZmqSource::Options::validate() const {
  if (publishers.empty())
    return make_error(ErrorCode::kInvalidArgument, "no publishers; name the endpoint of at least one");
  if (batches_per_poll == 0 || remembered == 0)
    return make_error(ErrorCode::kInvalidArgument, "batches_per_poll and remembered must not be 0");
  for (const SubscriberOptions& publisher : publishers) ASHLAR_RETURN_IF_ERROR(publisher.validate());
  return {};
}

class ZmqSource::State {
 public:
  State(Options options, std::vector<std::unique_ptr<Subscriber>> subscribers)
      : options_(std::move(options)), subscribers_(std::move(subscribers)), heard_(subscribers_.size()) {}

  Result<std::size_t> poll(feed::BatchConsumer& consumer, Clock::Duration timeout) {
    const Clock::TimePoint deadline = Clock::real().now() + timeout;
    for (;;) {
      std::size_t delivered = 0;
      bool is_connected = false;
      const Subscriber* silent = nullptr;
      // Round-robin, so that a busy publisher does not starve the others.
      for (std::size_t i = 0; i < subscribers_.size() && delivered < options_.batches_per_poll; ++i) {
        const std::size_t which = (turn_ + i) % subscribers_.size();
        subscribers_[which]->update();
        const std::size_t live = deliver(which, consumer, options_.batches_per_poll - delivered);
        delivered += live > 0 ? live : watch(which, consumer, options_.batches_per_poll - delivered);
        if (subscribers_[which]->is_silent()) {
          silent = subscribers_[which].get();
        } else {
          is_connected = is_connected || subscribers_[which]->is_connected();
        }
      }
      ASHLAR_DCHECK(delivered <= options_.batches_per_poll,
                    "a poll delivered %zu batches; batches_per_poll is %zu", delivered,
                    std::size_t{options_.batches_per_poll});
      turn_ = (turn_ + 1) % subscribers_.size();
      if (delivered > 0) return delivered;
      for (const auto& subscriber : subscribers_) subscriber->revive();
      const Clock::TimePoint now = Clock::real().now();
      if (now >= deadline) {
        if (is_connected) return std::size_t{0};
        if (silent != nullptr) return silent->silent_error();
        return make_error(ErrorCode::kUnavailable, "%s is not connected; it connects again by itself",
                          subscribers_.front()->options().endpoint.c_str());
      }
      items_.clear();
      Clock::TimePoint until = deadline;
      for (const auto& subscriber : subscribers_) {
        items_.push_back(subscriber->messages());
        items_.push_back(subscriber->changes());
        if (const auto answer = subscriber->answer()) items_.push_back(*answer);
        until = std::min(until, subscriber->watch_at());
      }
      poll_items(items_, until - now);
    }
  }

  Result<bool> recover(const StreamId& stream, std::uint64_t from, feed::BatchConsumer& consumer) {
    const auto known = streams_.find(stream);
    if (known != streams_.end()) return recover_from(known->second.publisher, stream, from, consumer);
    Result<bool> out = false;
    for (std::size_t which = 0; which < subscribers_.size(); ++which) {
      Result<bool> found = recover_from(which, stream, from, consumer);
      if (found && *found) return found;
      if (!found) out = std::move(found);
    }
    return out;
  }

  std::uint64_t damaged() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& subscriber : subscribers_) sum += subscriber->damaged();
    return sum;
  }
  std::string describe() const {
    std::string out = subscribers_.front()->describe();
    if (subscribers_.size() > 1) out += " and " + std::to_string(subscribers_.size() - 1) + " more";
    return out;
  }
  SubscriberStats stats(std::size_t publisher) const { return subscribers_.at(publisher)->stats(); }

 private:
  struct Seen {
    std::uint64_t end = 0;     // of a batch
    std::uint64_t number = 0;  // of its message
  };
  // State per publisher.
  struct Heard {
    std::uint64_t connects = 0;  // connects, up to the one known to use these numbers
    std::uint64_t next = 0;      // number of its next message
  };
  struct Stream {
    std::size_t publisher = 0;
    std::deque<Seen> seen = {};  // both numbers rise
  };

  std::size_t deliver(std::size_t which, feed::BatchConsumer& consumer, std::size_t limit) {
    Subscriber& subscriber = *subscribers_[which];
    std::uint64_t number = 0;
    std::size_t delivered = 0;
    while (delivered < limit && subscriber.receive(number, topic_, payload_))
      if (hand_on(which, number, payload_, consumer)) ++delivered;
    return delivered;
  }

  bool hand_on(std::size_t which, std::uint64_t number, const Frame& payload, feed::BatchConsumer& consumer) {
    heard_[which].next = number + 1;
    if (!events::decode_batch(payload.bytes(), batch_)) {
      subscribers_[which]->count_damaged();
      return false;
    }
    const EventBatch batch = batch_.view();
    if (batch.kind == BatchKind::kEvents) remember(which, number, batch);
    consumer.on_batch(batch);
    return true;
  }

  // Asks a publisher that was silent for long. After a reconnect it may be a new instance that counts from 0
  // again, while messages of the old one may still arrive: so the last message is requested too, and a
  // publisher that does not keep it is asked for everything.
  std::size_t watch(std::size_t which, feed::BatchConsumer& consumer, std::size_t limit) {
    Heard& heard = heard_[which];
    Subscriber& subscriber = *subscribers_[which];
    const std::uint64_t connects = subscriber.stats().connects;
    const bool is_sure = connects == heard.connects || connects <= 1;
    std::size_t delivered = 0;
    const auto take = [&](std::uint64_t number, Frame& /*topic*/, Frame& payload) {
      if (number >= heard.next && hand_on(which, number, payload, consumer)) ++delivered;
      return true;
    };
    const std::uint64_t next = is_sure || heard.next == 0 ? heard.next : heard.next - 1;
    const Subscriber::Answer answer = subscriber.watch(next, limit, take);
    if (answer == Subscriber::Answer::kNone) return delivered;
    if (answer == Subscriber::Answer::kEmpty && !is_sure && heard.next > 0) {
      heard.next = 0;
      subscriber.ask_at_once();
    }
    heard.connects = connects;
    return delivered;
  }

  void remember(std::size_t which, std::uint64_t number, const EventBatch& batch) {
    if (last_ == nullptr || last_id_ != batch.stream) {
      // Earlier incarnations of the worker have ended.
      StreamId first = batch.stream;
      first.incarnation = 0;
      streams_.erase(streams_.lower_bound(first), streams_.lower_bound(batch.stream));
      last_ = &streams_[batch.stream];
      last_id_ = batch.stream;
    }
    Stream& stream = *last_;
    if (stream.publisher != which) stream = {.publisher = which};
    std::deque<Seen>& seen = stream.seen;
    if (!seen.empty() && number < seen.back().number && batch.end() > seen.back().end)
      seen.clear();  // the publisher restarted its numbers
    if (!seen.empty() && (number <= seen.back().number || batch.end() <= seen.back().end)) return;
    ASHLAR_DCHECK(stream.publisher == which, "a message of publisher %zu is numbered as one of %zu",
                  std::size_t{which}, std::size_t{stream.publisher});
    seen.push_back({.end = batch.end(), .number = number});
    if (seen.size() > options_.remembered) seen.pop_front();
  }

  // The first message that may contain events after event `from`.
  std::uint64_t message_of(const StreamId& id, std::uint64_t from) const {
    const auto known = streams_.find(id);
    if (known == streams_.end()) return 0;
    const std::deque<Seen>& seen = known->second.seen;
    const auto after =
        std::upper_bound(seen.begin(), seen.end(), from,
                         [](std::uint64_t event, const Seen& entry) { return event < entry.end; });
    return after == seen.begin() ? 0 : std::prev(after)->number + 1;
  }

  Result<bool> recover_from(std::size_t which, const StreamId& stream, std::uint64_t from,
                            feed::BatchConsumer& consumer) {
    Subscriber& subscriber = *subscribers_[which];
    Recovery recovery(stream, from, consumer);
    std::size_t came = 0;
    const auto take = [&](std::uint64_t /*number*/, Frame& /*topic*/, Frame& payload) {
      ++came;
      if (events::decode_batch(payload.bytes(), recovered_)) {
        recovery.take(recovered_.view());
      } else {
        subscriber.count_damaged();
      }
      return true;
    };
    const std::uint64_t first = message_of(stream, from);
    Result<void> asked = subscriber.replay(first, take);
    // No answer: a publisher recreated for the same stream counts from 0 again.
    if (asked && came == 0 && first > 0) asked = subscriber.replay(0, take);
    if (asked && !recovery.is_covered()) asked = subscriber.replay(kSnapshotRequest, take);
    if (recovery.is_covered()) return true;
    if (!asked && asked.error().code() != ErrorCode::kUnsupported) return std::move(asked).error();
    return false;
  }

  const Options options_;
  const std::vector<std::unique_ptr<Subscriber>> subscribers_;
  std::vector<Heard> heard_;  // by publisher
  std::size_t turn_ = 0;
  std::map<StreamId, Stream> streams_;
  Stream* last_ = nullptr;  // of last_id_, in streams_
  StreamId last_id_ = {};
  std::vector<zmq_pollitem_t> items_;
  Frame topic_;
  Frame payload_;
  events::OwnedBatch batch_;
  events::OwnedBatch recovered_;  // a consumer of poll() may call recover()
};

ZmqSource::ZmqSource(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ZmqSource::~ZmqSource() = default;

Result<std::unique_ptr<ZmqSource>> ZmqSource::create(Options options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  std::vector<std::unique_ptr<Subscriber>> subscribers;
  for (const SubscriberOptions& publisher : options.publishers) {
    ASHLAR_TRY(auto subscriber, Subscriber::create(publisher));
    subscribers.push_back(std::move(subscriber));
  }
  return std::unique_ptr<ZmqSource>(
      new ZmqSource(std::make_unique<State>(std::move(options), std::move(subscribers))));
}

Result<std::size_t> ZmqSource::poll(feed::BatchConsumer& consumer, Clock::Duration timeout) {
  return state_->poll(consumer, timeout);
}
Result<bool> ZmqSource::recover(const StreamId& stream, std::uint64_t from, feed::BatchConsumer& consumer) {
  return state_->recover(stream, from, consumer);
}
std::uint64_t ZmqSource::damaged() const noexcept {
  return state_->damaged();
}
std::string ZmqSource::describe() const {
  return state_->describe();
}
SubscriberStats ZmqSource::stats(std::size_t publisher) const {
  return state_->stats(publisher);
}

}  // namespace ashlar::backend::zmq
