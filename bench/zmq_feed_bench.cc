// Events over ZeroMQ: ZmqBatchSink to ZmqSource, beside plain PUB and SUB sockets that carry the same bytes
// without decoding them.
//
//   zmq_feed_bench        events per second with batches of 1, 10, 100 and 512 events, and what a call of
//                         publish() costs
//
// Both sides run interleaved, each with a publishing and a reading thread, over tcp on loopback, with
// unlimited queues; a run ends when the last event is read.
#include <zmq.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/backend/zmq/zmq_batch_sink.h"
#include "ashlar/backend/zmq/zmq_event_sink.h"
#include "ashlar/backend/zmq/zmq_source.h"
#include "ashlar/events/event_codec.h"
#include "ratio.h"

namespace {

using namespace std::chrono_literals;
using namespace ashlar;
using namespace ashlar::backend::zmq;

constexpr double kTarget = 0.8;  // of what the sockets alone carry, with batches of 100
constexpr std::size_t kEvents = 3'000'000;
constexpr std::size_t kMaxBatches = 50'000;
constexpr std::size_t kPairs = 11;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Prompts of 32 blocks stored, and as many removed.
std::vector<events::KvEvent> made_events(std::size_t count) {
  std::vector<events::KvEvent> out;
  std::vector<tokens::SequenceHash> chain;
  std::uint64_t name = 0x9E3779B97F4A7C15U;
  while (out.size() < count) {
    events::KvEvent event;
    name = name * 6364136223846793005U + 1442695040888963407U;
    if (out.size() % 64 < 32) {
      if (out.size() % 64 == 0) chain.clear();
      if (!chain.empty()) {
        event.has_parent = true;
        event.parent_bits = chain.back();
      }
      event.hash = chain.empty() ? tokens::SequenceHash::root(name) : chain.back().child(name).value();
      chain.push_back(event.hash);
    } else {
      event.kind = events::KvEventKind::kRemoved;
      event.hash = chain.back();
      chain.pop_back();
    }
    out.push_back(event);
  }
  return out;
}

struct FeedTimes {
  double seconds = 0;          // until the last event was read
  double publish_seconds = 0;  // in the calls alone
};

class ZmqBatchCounter final : public feed::BatchConsumer {
 public:
  void on_batch(const events::EventBatch& batch) override { count += batch.events.size(); }
  std::size_t count = 0;
};

EnginePublisherOptions without_limits() {
  return {.endpoint = "tcp://127.0.0.1:*",
          .replay_endpoint = "tcp://127.0.0.1:*",
          .hwm = 0,
          .queue_messages = kMaxBatches,
          .queue_bytes = std::size_t{4} << 30,
          .publish_wait = 60s};
}

FeedTimes run_ours(const std::vector<events::KvEvent>& all, std::size_t size, std::size_t batches) {
  auto sink = ZmqBatchSink::create({.publisher = without_limits()}).value();
  SubscriberOptions hear{.endpoint = sink->publisher().endpoint(), .hwm = 0};
  auto source = ZmqSource::create({.publishers = {hear}}).value();
  while (sink->publisher().stats().subscriptions == 0) std::this_thread::sleep_for(1ms);
  const auto start = std::chrono::steady_clock::now();
  std::thread reader([&] {
    ZmqBatchCounter counter;
    while (counter.count < size * batches) (void)source->poll(counter, 100ms);
  });
  events::EventBatch batch;
  batch.keys.block_size = 32;
  for (std::size_t i = 0; i < batches; ++i) {
    batch.first = i * size;
    batch.events = std::span(all).subspan(i * size % (all.size() - size + 1), size);
    if (!sink->publish(batch)) std::exit(1);
  }
  const double publishing = seconds_since(start);
  reader.join();
  return {.seconds = seconds_since(start), .publish_seconds = publishing};
}

FeedTimes run_plain(const std::vector<std::byte>& payload, std::size_t batches) {
  void* context = zmq_ctx_new();
  void* publisher = zmq_socket(context, ZMQ_XPUB);
  void* subscriber = zmq_socket(context, ZMQ_SUB);
  const int none = 0;
  zmq_setsockopt(publisher, ZMQ_SNDHWM, &none, sizeof none);
  zmq_setsockopt(subscriber, ZMQ_RCVHWM, &none, sizeof none);
  zmq_setsockopt(subscriber, ZMQ_SUBSCRIBE, "", 0);
  zmq_bind(publisher, "tcp://127.0.0.1:*");
  char name[256] = {};
  std::size_t length = sizeof name;
  zmq_getsockopt(publisher, ZMQ_LAST_ENDPOINT, name, &length);
  zmq_connect(subscriber, name);
  char subscription[16];
  zmq_recv(publisher, subscription, sizeof subscription, 0);
  const auto start = std::chrono::steady_clock::now();
  std::thread reader([&] {
    zmq_msg_t message;
    zmq_msg_init(&message);
    for (std::size_t frames = 0; frames < 3 * batches; ++frames) zmq_msg_recv(&message, subscriber, 0);
    zmq_msg_close(&message);
  });
  for (std::size_t i = 0; i < batches; ++i) {
    const std::uint64_t number = i;
    zmq_send(publisher, "ashlar", 6, ZMQ_SNDMORE);
    zmq_send(publisher, &number, sizeof number, ZMQ_SNDMORE);
    zmq_send(publisher, payload.data(), payload.size(), 0);
  }
  const double publishing = seconds_since(start);
  reader.join();
  const FeedTimes out{.seconds = seconds_since(start), .publish_seconds = publishing};
  zmq_close(publisher);
  zmq_close(subscriber);
  zmq_ctx_term(context);
  return out;
}

void compare_with_batches_of(std::size_t size) {
  const std::vector<events::KvEvent> all = made_events(64 * 1024);
  const std::size_t batches = std::min(kMaxBatches, kEvents / size);
  const double count = static_cast<double>(size * batches);
  std::vector<std::byte> payload;
  events::EventBatch batch;
  batch.events = std::span(all).first(size);
  events::encode_batch(batch, payload);
  std::vector<double> ours;
  std::vector<double> plain;
  std::vector<double> ratios;
  std::vector<double> publishing;
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    FeedTimes a;
    FeedTimes b;
    if (pair % 2 == 0) {
      a = run_ours(all, size, batches);
      b = run_plain(payload, batches);
    } else {
      b = run_plain(payload, batches);
      a = run_ours(all, size, batches);
    }
    ours.push_back(count / a.seconds / 1e6);
    plain.push_back(count / b.seconds / 1e6);
    ratios.push_back(b.seconds / a.seconds);
    publishing.push_back(a.publish_seconds / count * 1e9);
  }
  const bench::Spread ratio = bench::spread_of(ratios);
  std::printf(
      "batches of %4zu events, %6zu bytes: ours %6.2f M events/s, sockets alone %6.2f M, ratio %.2f "
      "(%.2f..%.2f)%s; "
      "publish() %.1f ns per event\n",
      size, payload.size(), bench::spread_of(ours).median, bench::spread_of(plain).median, ratio.median,
      ratio.min, ratio.max,
      size == 100 ? (ratio.median >= kTarget ? " (goal 0.8: met)" : " (goal 0.8: not met)") : "",
      bench::spread_of(publishing).median);
}

void measure_engine_format() {
  const std::vector<events::KvEvent> all = made_events(64 * 1024);
  const std::vector<tokens::Token> block(32, tokens::Token(70'000));
  std::shared_ptr<EnginePublisher> publisher = EnginePublisher::create(without_limits()).value();
  ZmqEventSink sink(publisher, {.topic = "kv", .tokens_of = [&](const tokens::SequenceHash&) {
                                  return std::optional(block);
                                }});
  events::EventBatch batch;
  batch.keys.block_size = 32;
  const auto start = std::chrono::steady_clock::now();
  std::size_t count = 0;
  for (std::size_t at = 0; at + 100 <= all.size(); at += 100, count += 100) {
    batch.first = at;
    batch.events = std::span(all).subspan(at, 100);
    if (!sink.publish(batch)) std::exit(1);
  }
  std::printf("in the engines' format, with 32 tokens per stored block: publish() %.1f ns per event\n",
              seconds_since(start) / static_cast<double>(count) * 1e9);
}

}  // namespace

int main() {
  for (const std::size_t size : {1, 10, 100, 512}) compare_with_batches_of(size);
  measure_engine_format();
  return 0;
}
