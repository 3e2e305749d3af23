// ZeroMQ feeds: the engines' own format (engine:) and Ashlar's (zmq:).
#include <charconv>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "apps/ashlar/feed_kinds.h"
#include "ashlar/backend/zmq/zmq_batch_sink.h"
#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/backend/zmq/zmq_source.h"
#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"

namespace ashlar::apps {
namespace {

using backend::zmq::EnginePublisherOptions;
using backend::zmq::SubscriberOptions;
using backend::zmq::ZmqBatchSink;

constexpr std::uint64_t kLastPort = 65'535;

// A host and port, or a ZeroMQ address such as ipc:///tmp/x.
std::string endpoint_of(const std::string& place) {
  return place.empty() || place.find("://") != std::string::npos ? place : "tcp://" + place;
}

// The port of an address; nullopt if it has none. 0 and '*' mean any free port.
std::optional<std::uint64_t> port_of(const std::string& endpoint) {
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  if (port == "*") return 0;
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_plain = failed == std::errc() && end == port.data() + port.size() &&
                        (port.size() == 1 || port.front() != '0') && number <= kLastPort;
  return is_plain ? std::optional(number) : std::nullopt;
}

// Refuses logins and invalid ports.
Result<void> check_address_of_socket(const FeedAddress& address) {
  ASHLAR_RETURN_IF_ERROR(address.names_nobody());
  for (const std::string& endpoint : {endpoint_of(address.place()), endpoint_of(address.text("replay"))}) {
    if (!endpoint.starts_with("tcp://") || port_of(endpoint)) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "%s: %s has no port at its end; write one from 0 to %llu, in digits alone",
                      address.shown().c_str(), printable(endpoint).c_str(),
                      static_cast<unsigned long long>(kLastPort));
  }
  return {};
}

Result<SubscriberOptions> subscriber_of(const FeedAddress& address) {
  ASHLAR_RETURN_IF_ERROR(check_address_of_socket(address));
  SubscriberOptions options;
  options.endpoint = endpoint_of(address.place());
  options.replay_endpoint = endpoint_of(address.text("replay"));
  options.topic = address.text("topic");
  ASHLAR_TRY(const double silence,
             address.seconds("silence", std::chrono::duration<double>(options.silence).count()));
  options.silence = std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(silence));
  return options;
}

// Each rank has its own ports, as with engines: the given one plus the rank.
Result<std::string> for_rank(std::string endpoint, std::uint32_t rank) {
  const std::size_t colon = endpoint.rfind(':');
  if (rank == 0 || !endpoint.starts_with("tcp://")) return endpoint;
  const std::uint64_t port = port_of(endpoint).value_or(0);
  if (port == 0) return endpoint;
  if (port + rank > kLastPort)
    return make_error(
        ErrorCode::kCapacity,
        "rank %u has no port: it would be %s plus %u, and ports end at %llu; publish from a lower one", rank,
        endpoint.c_str(), rank, static_cast<unsigned long long>(kLastPort));
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

Result<EnginePublisherOptions> publisher_of(const FeedAddress& address, const events::StreamId& stream) {
  ASHLAR_RETURN_IF_ERROR(check_address_of_socket(address));
  EnginePublisherOptions options;
  ASHLAR_TRY(options.endpoint, for_rank(endpoint_of(address.place()), stream.worker.rank));
  ASHLAR_TRY(options.replay_endpoint, for_rank(endpoint_of(address.text("replay")), stream.worker.rank));
  options.attach = backend::zmq::Attach::kBind;
  return options;
}

// A publisher shared by the workers of one rank.
struct SharedPublisher {
  Mutex mu;
  std::unique_ptr<ZmqBatchSink> sink;
  std::string replay_endpoint;  // as requested
};

// One worker's share of it.
class WorkerSink final : public events::BatchSink {
 public:
  WorkerSink(std::shared_ptr<SharedPublisher> shared, events::SnapshotSource& state)
      : shared_(std::move(shared)), state_(state) {
    shared_->sink->add_snapshots(state_);
  }
  ~WorkerSink() override { shared_->sink->remove_snapshots(state_); }
  WorkerSink(const WorkerSink&) = delete;
  WorkerSink& operator=(const WorkerSink&) = delete;

  Result<void> publish(const events::EventBatch& batch) override {
    const MutexLock lock(shared_->mu);
    return shared_->sink->publish(batch);
  }
  std::string describe() const override { return shared_->sink->describe(); }

 private:
  const std::shared_ptr<SharedPublisher> shared_;
  events::SnapshotSource& state_;
};

// By endpoint; unused ones have expired.
using Publishers = std::map<std::string, std::weak_ptr<SharedPublisher>>;

Result<std::shared_ptr<events::BatchSink>> open_sink(Publishers& publishers, EnginePublisherOptions options,
                                                     events::SnapshotSource& state) {
  const std::string endpoint = options.endpoint;
  const std::string replay_endpoint = options.replay_endpoint;
  std::weak_ptr<SharedPublisher>& known = publishers[endpoint];
  std::shared_ptr<SharedPublisher> shared = known.lock();
  if (shared == nullptr) {
    ASHLAR_TRY(auto sink, ZmqBatchSink::create({.publisher = std::move(options)}));
    shared = std::make_shared<SharedPublisher>();
    shared->sink = std::move(sink);
    shared->replay_endpoint = replay_endpoint;
    known = shared;
  } else if (shared->replay_endpoint != replay_endpoint) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "%s is written with replay '%s' and with replay '%s'; a publisher has one: name the same, "
        "or publish elsewhere",
        endpoint.c_str(), shared->replay_endpoint.c_str(), replay_endpoint.c_str());
  }
  return std::shared_ptr<events::BatchSink>(std::make_shared<WorkerSink>(std::move(shared), state));
}

}  // namespace

void add_zmq_feeds(FeedKinds& kinds) {
  // Streams have no tokens, and listeners of engines identify blocks by tokens: there is no sink in that
  // format.
  kinds.add(
      "engine",
      "engine://HOST:PORT   an inference engine's ZeroMQ events (source only); ?replay=HOST:PORT ?topic=\n"
      "                       ?silence=SECONDS until a quiet engine is asked whether it runs",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        ASHLAR_TRY(SubscriberOptions options, subscriber_of(address));
        ASHLAR_TRY(auto source, backend::zmq::ZmqEngineSource::create(std::move(options)));
        return OpenedSource{.engine = std::move(source)};
      },
      {});
  kinds.add(
      "zmq",
      "zmq://HOST:PORT      Ashlar's own batches over ZeroMQ; ?replay=HOST:PORT; written for any\n"
      "                       number of workers; the rank of a worker is added to the ports",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        ASHLAR_TRY(SubscriberOptions options, subscriber_of(address));
        ASHLAR_TRY(auto source, backend::zmq::ZmqSource::create({.publishers = {std::move(options)}}));
        return OpenedSource{.stream = std::move(source)};
      },
      [publishers = std::make_shared<Publishers>()](
          const FeedAddress& address, const events::StreamId& stream,
          events::SnapshotSource& state) -> Result<std::shared_ptr<events::BatchSink>> {
        ASHLAR_TRY(EnginePublisherOptions options, publisher_of(address, stream));
        return open_sink(*publishers, std::move(options), state);
      },
      {.has_place_per_rank = true, .check = check_address_of_socket});
}

}  // namespace ashlar::apps
