// The socket thread swaps the whole queue out, so that a burst costs one lock. A publishing thread writes to
// an event descriptor only while the socket thread sleeps.
#include "ashlar/backend/zmq/engine_publisher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "backend/zmq/replay_server.h"
#include "backend/zmq/socket.h"
#include "base/start_thread.h"

namespace ashlar::backend::zmq {
namespace {

// Retry interval of a reply that waits for room.
constexpr auto kReplyPause = std::chrono::milliseconds(2);
constexpr auto kBurstPause = std::chrono::microseconds(20);
constexpr std::int64_t kMaxRequestBytes = 4096;
constexpr int kMessagesAhead = 128;  // replies queued per reader in the library

bool binds(const EnginePublisherOptions& options) {
  const std::string& endpoint = options.endpoint;
  if (options.attach != Attach::kByEndpoint) return options.attach == Attach::kBind;
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

struct Waiting {
  Frame topic;
  Frame payload;
};

}  // namespace

Result<void> EnginePublisherOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(check_endpoint("endpoint", endpoint));
  if (!replay_endpoint.empty()) ASHLAR_RETURN_IF_ERROR(check_endpoint("replay_endpoint", replay_endpoint));
  if (hwm < 0) return make_error(ErrorCode::kInvalidArgument, "hwm is %d; 0 means no limit", hwm);
  if (queue_messages == 0 || queue_bytes == 0)
    return make_error(ErrorCode::kInvalidArgument, "queue_messages and queue_bytes must not be 0");
  if (!replay_endpoint.empty() && (buffer_steps == 0 || buffer_bytes == 0)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a replay_endpoint needs a buffer: buffer_steps and buffer_bytes must not be 0");
  }
  if (publish_wait < Clock::Duration::zero() || linger < Clock::Duration::zero() ||
      replay_patience <= Clock::Duration::zero()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "publish_wait and linger must not be negative, replay_patience must be more than 0");
  }
  return {};
}

class EnginePublisher::State {
 public:
  State(EnginePublisherOptions options, Socket publisher, int wake)
      : options_(std::move(options)), publisher_(std::move(publisher)), wake_(wake) {}
  ~State() {
    if (thread_.joinable()) {
      {
        const MutexLock lock(mutex_);
        stop_ = true;
      }
      signal();
      thread_.join();
    }
    if (is_bound_) publisher_.unbind(endpoint_);
    if (replay_) replay_->socket().unbind(replay_endpoint_);
    ::close(wake_);
  }

  Result<void> attach() {
    publisher_.set(ZMQ_SNDHWM, options_.hwm);
    publisher_.set(
        ZMQ_LINGER,
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(options_.linger).count()));
    publisher_.set(ZMQ_XPUB_VERBOSER, 1);
    endpoint_ = options_.endpoint;
    if (binds(options_)) {
      ASHLAR_TRY(std::string bound, publisher_.bind(options_.endpoint));
      endpoint_ = std::move(bound);
      is_bound_ = true;
    } else if (Result<void> connected = publisher_.connect(options_.endpoint); !connected) {
      return connected;
    }
    if (options_.replay_endpoint.empty()) return {};
    ASHLAR_TRY(Socket router, Socket::create(publisher_.context(), ZMQ_ROUTER));
    router.set(ZMQ_ROUTER_MANDATORY, 1);
    router.set(ZMQ_MAXMSGSIZE, kMaxRequestBytes);
    router.set(ZMQ_LINGER, 0);
    router.set(ZMQ_SNDHWM, kMessagesAhead);
    ASHLAR_TRY(std::string bound, router.bind(options_.replay_endpoint));
    replay_endpoint_ = std::move(bound);
    replay_.emplace(std::move(router), options_);
    return {};
  }
  Result<void> start() {
    return start_thread(&thread_, [this] { run(); });
  }

  Result<std::uint64_t> publish(std::string_view topic, std::span<const std::byte> payload) {
    Waiting message;
    try {
      message = {.topic = Frame::of(topic), .payload = Frame::of(payload)};
    } catch (const std::bad_alloc&) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return make_error(ErrorCode::kCapacity, "no memory for a message of %zu bytes", payload.size());
    }
    bool asleep = false;
    std::uint64_t number = 0;
    {
      const MutexLock lock(mutex_);
      if (!has_room_locked(payload.size())) {
        const Clock::TimePoint deadline = Clock::real().now() + options_.publish_wait;
        while (!has_room_locked(payload.size()) && Clock::real().now() < deadline)
          Clock::real().wait_until(room_, mutex_, deadline);
        if (!has_room_locked(payload.size())) {
          refused_.fetch_add(1, std::memory_order_relaxed);
          return make_error(ErrorCode::kCapacity,
                            "%zu messages of %zu bytes wait for the socket of %s; publish again later",
                            queue_.size(), queued_bytes_, endpoint_.c_str());
        }
      }
      queue_.push_back(std::move(message));
      queued_bytes_ += payload.size();
      ASHLAR_DCHECK(queue_.size() == 1 || queued_bytes_ <= options_.queue_bytes,
                    "%zu bytes wait, queue_bytes is %zu", queued_bytes_, options_.queue_bytes);
      number = next_++;
      asleep = std::exchange(asleep_, false);
    }
    if (asleep) signal();
    return number;
  }
  bool flush(Clock::Duration timeout) {
    const Clock::TimePoint deadline = Clock::real().now() + timeout;
    const MutexLock lock(mutex_);
    const std::uint64_t target = next_;
    while (sent_ < target && Clock::real().now() < deadline)
      Clock::real().wait_until(room_, mutex_, deadline);
    return sent_ >= target;
  }

  const std::string& endpoint() const noexcept { return endpoint_; }
  const std::string& replay_endpoint() const noexcept { return replay_endpoint_; }
  EnginePublisherStats stats() const noexcept {
    EnginePublisherStats out;
    {
      const MutexLock lock(mutex_);
      out.published = sent_;
    }
    out.refused = refused_.load(std::memory_order_relaxed);
    out.subscriptions = subscriptions_.load(std::memory_order_relaxed);
    if (replay_) {
      out.replays = replay_->replays.load();
      out.replayed = replay_->replayed.load();
      out.snapshots = replay_->snapshots.load();
      out.snapshot_bytes = replay_->snapshot_bytes();
      out.invalid_requests = replay_->invalid_requests.load();
      out.dropped_replays = replay_->dropped_replays.load();
    }
    return out;
  }

 private:
  // One message always fits into an empty queue.
  bool has_room_locked(std::size_t bytes) const ASHLAR_REQUIRES(mutex_) {
    return queue_.empty() ||
           (queue_.size() < options_.queue_messages && queued_bytes_ + bytes <= options_.queue_bytes);
  }
  void signal() noexcept {
    const std::uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  void run() {
    std::vector<Waiting> batch;
    std::uint64_t number = 0;
    bool was_busy = false;
    for (;;) {
      batch.clear();
      // Before the queue is read: an answer includes everything published before its request.
      if (replay_) replay_->take_requests();
      bool stop = false;
      bool sleeps = false;
      {
        const MutexLock lock(mutex_);
        sent_ = number;
        batch.swap(queue_);
        ASHLAR_CHECK(number + batch.size() == next_, "message %llu goes out under number %llu",
                     static_cast<unsigned long long>(next_ - batch.size()),
                     static_cast<unsigned long long>(number));
        queued_bytes_ = 0;
        stop = stop_ && batch.empty();
        sleeps = batch.empty() && !was_busy;
        asleep_ = sleeps;
      }
      room_.notify_all();
      if (stop) return;
      for (Waiting& message : batch) send(number++, message);
      if (replay_) replay_->send_replies(number);
      wait(sleeps);
      // Messages come in bursts: polling again soon costs less than a sleep and a wake-up for each.
      if (!sleeps) std::this_thread::sleep_for(kBurstPause);
      was_busy = !batch.empty();
    }
  }
  void send(std::uint64_t number, Waiting& message) {
    if (replay_) replay_->keep(number, message.topic, message.payload);
    if (options_.sends && !options_.sends(number)) return;
    // A PUB socket always accepts a message: it drops it where there is no room.
    publisher_.send(message.topic, ZMQ_SNDMORE);
    publisher_.send(Frame::of_number(number), ZMQ_SNDMORE);
    publisher_.send(message.payload, 0);
  }
  void wait(bool idle) {
    std::array<zmq_pollitem_t, 3> items = {
        zmq_pollitem_t{.socket = nullptr, .fd = wake_, .events = ZMQ_POLLIN, .revents = 0},
        publisher_.item(ZMQ_POLLIN), zmq_pollitem_t{}};
    std::size_t count = 2;
    if (replay_) items[count++] = replay_->socket().item(ZMQ_POLLIN);
    Clock::Duration timeout = Clock::Duration::zero();
    if (idle) timeout = replay_ && replay_->is_busy() ? Clock::Duration(kReplyPause) : std::chrono::hours(1);
    if (poll_items(std::span(items).first(count), timeout) == 0) return;
    if (items[0].revents != 0) {
      std::uint64_t ignored = 0;
      while (read(wake_, &ignored, sizeof ignored) < 0 && errno == EINTR) {
      }
    }
    if (items[1].revents != 0) count_subscriptions();
  }
  void count_subscriptions() {
    while (publisher_.receive(frames_, 1) > 0) {
      const std::span<const std::byte> bytes = frames_[0].bytes();
      if (bytes.empty()) continue;
      if (bytes[0] == std::byte{1}) subscriptions_.fetch_add(1, std::memory_order_relaxed);
      if (bytes[0] == std::byte{0} && subscriptions_.load(std::memory_order_relaxed) > 0)
        subscriptions_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  const EnginePublisherOptions options_;
  std::string endpoint_;
  std::string replay_endpoint_;
  bool is_bound_ = false;

  // Used by the thread once it runs.
  Socket publisher_;
  std::optional<ReplayServer> replay_;
  std::vector<Frame> frames_;

  const int wake_;
  std::thread thread_;
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> subscriptions_{0};
  mutable Mutex mutex_;
  CondVar room_;
  std::vector<Waiting> queue_ ASHLAR_GUARDED_BY(mutex_);
  std::size_t queued_bytes_ ASHLAR_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_ ASHLAR_GUARDED_BY(mutex_) = 0;
  std::uint64_t sent_ ASHLAR_GUARDED_BY(mutex_) = 0;
  bool asleep_ ASHLAR_GUARDED_BY(mutex_) = false;
  bool stop_ ASHLAR_GUARDED_BY(mutex_) = false;
};

EnginePublisher::EnginePublisher(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
EnginePublisher::~EnginePublisher() = default;

Result<std::unique_ptr<EnginePublisher>> EnginePublisher::create(EnginePublisherOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(const std::shared_ptr<Context> context, Context::shared());
  // XPUB is PUB that reports subscriptions.
  ASHLAR_TRY(Socket socket, Socket::create(context, ZMQ_XPUB));
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    return make_error(ErrorCode::kCapacity, "no descriptor for events: %s",
                      std::generic_category().message(errno).c_str());
  }
  auto state = std::make_unique<State>(std::move(options), std::move(socket), wake);
  ASHLAR_RETURN_IF_ERROR(state->attach());
  ASHLAR_RETURN_IF_ERROR(state->start());
  return std::unique_ptr<EnginePublisher>(new EnginePublisher(std::move(state)));
}

Result<std::uint64_t> EnginePublisher::publish(std::string_view topic, std::span<const std::byte> payload) {
  return state_->publish(topic, payload);
}
bool EnginePublisher::flush(Clock::Duration timeout) {
  return state_->flush(timeout);
}
const std::string& EnginePublisher::endpoint() const noexcept {
  return state_->endpoint();
}
const std::string& EnginePublisher::replay_endpoint() const noexcept {
  return state_->replay_endpoint();
}
EnginePublisherStats EnginePublisher::stats() const noexcept {
  return state_->stats();
}

}  // namespace ashlar::backend::zmq
