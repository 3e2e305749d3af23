// Event managers of several workers on one tree of subjects, heard by one listener, while the server dies and
// comes back.
#include <atomic>
#include <set>
#include <thread>

#include "ashlar/base/random.h"
#include "ashlar/events/event_manager.h"
#include "backend/nats/nats_fixture.h"
#include "feed/stream_listeners.h"

namespace ashlar::backend::nats {
namespace {

using Keys = std::set<feed::PresenceListener::Key>;

// Takes and drops handles by chance, on a thread of its own, as often as it is told to: who listens sets the
// pace, so that a busy machine is not buried in events. The handles of several may be of one block.
class Churn {
 public:
  Churn(events::EventManager& manager, std::uint64_t seed) : manager_(manager), random_(seed) {}

  void step() {
    if (random_.below(4) == 0) {
      events::Publisher scope = manager_.publisher();
      for (std::uint64_t i = random_.below(16); i > 0; --i) toggle(&scope);
    } else {
      toggle(nullptr);
    }
    steps_.fetch_add(1);
  }
  void start() {
    stop_.store(false);
    thread_ = std::thread([this] {
      while (!stop_.load()) {
        if (steps_.load() < granted_.load()) step();
        std::this_thread::sleep_for(std::chrono::microseconds(300));  // the rate of the events, no more
      }
    });
  }
  void stop() {
    stop_.store(true);
    thread_.join();
  }
  void grant(std::uint64_t more) { granted_.store(steps_.load() + more); }
  std::uint64_t steps() const { return steps_.load(); }
  // Requires: no thread.
  void add_held(Keys& to) const {
    for (const events::PublishHandle& handle : handles_)
      if (handle) to.emplace(handle.tier(), handle.sequence_hash());
  }

 private:
  void toggle(events::Publisher* scope) {
    const std::uint64_t slot = random_.below(handles_.size());
    events::PublishHandle& handle = handles_[slot];
    if (handle) return handle.reset();
    events::KvEvent block;
    block.hash = tokens::SequenceHash::root(slot / 2 + 1);
    block.tier = events::TierId(static_cast<std::uint8_t>(slot % 2));
    handle = scope != nullptr ? scope->publish(block) : manager_.publish(block);
  }

  events::EventManager& manager_;
  Random random_;
  std::vector<events::PublishHandle> handles_ = std::vector<events::PublishHandle>(200);
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> granted_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class TestWorker {
 public:
  TestWorker(std::uint64_t id, const NatsServer& server, NatsMode mode, std::size_t handle_capacity) {
    stream_.worker = {.id = events::WorkerId(id), .rank = static_cast<std::uint32_t>(id % 2)};
    stream_.incarnation = id;
    auto made = events::EventManager::create({.stream = stream_, .handle_capacity = handle_capacity});
    EXPECT_TRUE(made) << made.error();
    manager_ = *std::move(made);
    NatsSinkOptions options;
    options.connection = server.options();
    options.mode = mode;
    options.ack_timeout = seconds(10);
    options.snapshots.push_back({.worker = stream_.worker, .source = manager_.get()});
    sink_ = sink_of(std::move(options));
    const Result<void> added = manager_->add_sink(sink_, {.max_events = 16});
    EXPECT_TRUE(added) << added.error();
    for (std::uint64_t seed = 0; seed < 2; ++seed)
      churns_.push_back(std::make_unique<Churn>(*manager_, 10 * id + seed));
  }
  // The sink asks the manager for snapshots as long as it lives.
  ~TestWorker() {
    EXPECT_TRUE(manager_->remove_sink(sink_));
    sink_.reset();
  }

  void start() {
    for (const auto& churn : churns_) churn->start();
  }
  void stop() {
    for (const auto& churn : churns_) churn->stop();
  }
  void step() { churns_[0]->step(); }
  void grant(std::uint64_t steps) {
    for (const auto& churn : churns_) churn->grant(steps);
  }
  std::uint64_t steps() const { return std::min(churns_[0]->steps(), churns_[1]->steps()); }
  void flush() {
    const Result<void> handed = manager_->flush(Clock::real().now() + seconds(150));
    EXPECT_TRUE(handed) << handed.error();
    const Result<void> arrived = sink_->flush(seconds(150));
    EXPECT_TRUE(arrived) << arrived.error();
    manager_->check_invariants();
  }
  Keys held() const {
    Keys keys;
    for (const auto& churn : churns_) churn->add_held(keys);
    return keys;
  }
  const events::Worker& name() const { return stream_.worker; }
  events::EventCounters counters() const { return manager_->counters(); }

 private:
  events::StreamId stream_;
  std::unique_ptr<events::EventManager> manager_;
  std::shared_ptr<NatsSink> sink_;
  std::vector<std::unique_ptr<Churn>> churns_;
};

// A source, its receiver, and what they add up to.
class Hearing {
 public:
  explicit Hearing(NatsSourceOptions options)
      : source_(source_of(std::move(options))), receiver_(*source_, presence_) {}

  // False: not within minutes. `idle` is called when nothing came.
  bool poll_until(const std::function<bool()>& done, const std::function<void()>& idle = [] {}) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(150);
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      const Result<std::size_t> came = receiver_.poll(milliseconds(20));
      if (!came) {
        EXPECT_EQ(came.error().code(), ErrorCode::kUnavailable) << came.error();
      }
      if (came.value_or(0) == 0) idle();
    }
    return done();
  }
  // Until it knows what the workers hold, and nothing more comes.
  void expect_all(const std::vector<std::unique_ptr<TestWorker>>& workers) {
    const auto same = [&] {
      return std::ranges::all_of(workers, [&](const auto& worker) {
        return receiver_.is_complete(worker->name()) && presence_.of(worker->name()) == worker->held();
      });
    };
    EXPECT_TRUE(poll_until(same));
    for (int quiet = 0; quiet < 3;) quiet = receiver_.poll(milliseconds(50)).value_or(1) == 0 ? quiet + 1 : 0;
    for (const auto& worker : workers) {
      EXPECT_TRUE(receiver_.is_complete(worker->name()));
      EXPECT_EQ(presence_.of(worker->name()).size(), worker->held().size());
      EXPECT_TRUE(presence_.of(worker->name()) == worker->held());
    }
    EXPECT_EQ(presence_.problem(), "");
    receiver_.check_invariants();
    const feed::StreamReceiver::Counters& counters = receiver_.counters();
    EXPECT_EQ(counters.resyncs + counters.refused + counters.stale + counters.restarts, 0u);
  }
  const feed::StreamReceiver::Counters& counters() const { return receiver_.counters(); }

 private:
  std::unique_ptr<NatsSource> source_;
  feed::PresenceListener presence_;
  feed::StreamReceiver receiver_;
};

class NatsWorkers : public NatsTest {
 protected:
  void run(NatsMode mode, const std::string& durable = {}) {
    NatsServer server({}, mode == NatsMode::kJetStream);
    std::vector<std::unique_ptr<TestWorker>> workers;
    // The log of the third one overflows now and then.
    for (std::uint64_t id = 1; id <= 3; ++id)
      workers.push_back(std::make_unique<TestWorker>(id, server, mode, id == 3 ? 4 : 1 << 14));
    NatsSourceOptions options;
    options.connection = server.options();
    options.mode = mode;
    options.durable = durable;
    options.timeout = seconds(15);
    Hearing hearing(options);
    const auto all_stepped = [&](std::uint64_t more) {
      std::vector<std::uint64_t> from;
      for (const auto& worker : workers) from.push_back(worker->steps());
      return [&workers, from, more] {
        for (std::size_t i = 0; i < workers.size(); ++i)
          if (workers[i]->steps() < from[i] + more) return false;
        return true;
      };
    };
    const auto all_heard = [&] {
      return [&hearing, from = hearing.counters().events] { return hearing.counters().events > from + 2000; };
    };
    const auto go_on = [&] {
      for (const auto& worker : workers) worker->grant(50);
    };
    for (const auto& worker : workers) worker->start();
    for (int round = 0; round < 2; ++round) {
      EXPECT_TRUE(hearing.poll_until(all_heard(), go_on));
      server.kill();
      EXPECT_TRUE(hearing.poll_until(all_stepped(300), go_on));
      server.start();
      EXPECT_TRUE(hearing.poll_until(all_stepped(100), go_on));
      EXPECT_TRUE(hearing.poll_until(all_heard(), go_on));
    }
    for (const auto& worker : workers) worker->stop();
    for (const auto& worker : workers) worker->flush();
    hearing.expect_all(workers);
    EXPECT_GT(workers[2]->counters().repaired, 0u) << "its log did not overflow";
    // One that comes late knows the same, once the workers say something.
    if (!options.durable.empty()) options.durable += "_late";
    Hearing late(options);
    for (const auto& worker : workers) {
      const std::uint64_t before = worker->counters().events;
      while (worker->flush(), worker->counters().events == before) worker->step();
    }
    late.expect_all(workers);
    hearing.expect_all(workers);
    if (mode == NatsMode::kCore) {
      EXPECT_GE(late.counters().snapshots, workers.size());
    }
  }
};

TEST_F(NatsWorkers, AreHeardThroughTheDeathOfTheServer) {
  run(NatsMode::kCore);
}

TEST_F(NatsWorkers, AreHeardThroughTheDeathOfTheServerThatKeepsTheirEvents) {
  run(NatsMode::kJetStream);
}

TEST_F(NatsWorkers, AreHeardThroughTheDeathOfTheServerByADurableConsumer) {
  run(NatsMode::kJetStream, "listener");
}

}  // namespace
}  // namespace ashlar::backend::nats
