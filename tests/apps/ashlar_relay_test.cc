// `ashlar relay` between an engine that publishes over ZeroMQ and listeners of a NATS server.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "apps/held_blocks.h"
#include "ashlar/backend/nats/nats_sink.h"
#include "ashlar/backend/nats/nats_source.h"
#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/backend/zmq/zmq_source.h"
#include "ashlar/feed/feed_source.h"
#include "backend/nats/nats_server.h"
#include "support/kvrec.h"

namespace ashlar {
namespace {

using namespace std::chrono_literals;
using backend::nats::NatsServer;
using backend::nats::NatsSink;
using backend::nats::NatsSource;
using backend::zmq::EnginePublisher;
using Payloads = std::vector<std::vector<std::byte>>;

Payloads payloads_of(const std::string& name) {
  return testing::kvrec_payloads(std::string(ASHLAR_TEST_DATA) + "/vllm/" + name + ".kvrec");
}

// One life of an engine, on the same two ports each time.
class Engine {
 public:
  Engine(int port, int replay_port) {
    auto made = EnginePublisher::create({.endpoint = "tcp://127.0.0.1:" + std::to_string(port),
                                         .attach = backend::zmq::Attach::kBind,
                                         .replay_endpoint = "tcp://127.0.0.1:" + std::to_string(replay_port),
                                         .publish_wait = 60s});
    EXPECT_TRUE(made) << made.error();
    publisher_ = *std::move(made);
  }
  void publish(std::span<const std::vector<std::byte>> payloads) {
    for (const std::vector<std::byte>& payload : payloads) {
      const auto sent = publisher_->publish("kv-events", payload);
      EXPECT_TRUE(sent) << sent.error();
    }
    EXPECT_TRUE(publisher_->flush(100s));
  }

 private:
  std::unique_ptr<EnginePublisher> publisher_;
};

class Listening {
 public:
  explicit Listening(const NatsServer& server)
      : source_(NatsSource::create({.connection = server.options(), .timeout = 60s}).value()),
        receiver_(*source_, holder_) {}

  // Polls until it is so, or a minute has passed.
  bool hears(const std::function<bool(const Holder&)>& done) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!done(holder_) && std::chrono::steady_clock::now() < deadline) {
      const Result<std::size_t> came = receiver_.poll(20ms);
      EXPECT_TRUE(came) << came.error();
    }
    return done(holder_);
  }
  bool hears(const Held& held) {
    return hears([&](const Holder& holder) { return holder.held == held; });
  }
  const Holder& holder() const { return holder_; }
  const feed::StreamReceiver::Counters& counters() const { return receiver_.counters(); }

 private:
  std::unique_ptr<NatsSource> source_;
  Holder holder_;
  feed::StreamReceiver receiver_;
};

TEST(AshlarRelay, CarriesTheBlocksOfAnEngineThroughItsLives) {
  ASHLAR_NEEDS_SERVER(NatsServer::is_installed(), "there is no nats-server");
  const NatsServer server({}, false);
  const int port = free_port();
  const int replay_port = free_port();
  const Payloads first_life = payloads_of("evict");
  const Payloads second_life = payloads_of("dup");
  const std::size_t half = first_life.size() / 2;
  ASSERT_GT(half, 0u);
  const Held in_the_middle = held_after("evict", half);
  const Held at_the_end = held_by_engine("evict");
  const Held of_the_second = held_by_engine("dup");
  ASSERT_TRUE(in_the_middle != at_the_end && !at_the_end.empty());
  ASSERT_TRUE(of_the_second != at_the_end && !of_the_second.empty());

  // What the engine said before anybody listened comes from its replay socket.
  auto engine = std::make_unique<Engine>(port, replay_port);
  engine->publish(std::span(first_life).first(half));
  Listening early(server);
  ServerProcess relay(
      {ASHLAR_PROGRAM, "relay", "--from",
       "engine://127.0.0.1:" + std::to_string(port) + "?replay=127.0.0.1:" + std::to_string(replay_port),
       "--to", server.url(), "--worker", "7"});
  EXPECT_TRUE(early.hears(in_the_middle));

  // Who comes late misses the events so far, and asks the relay for what they add up to.
  Listening late(server);
  engine->publish(std::span(first_life).subspan(half));
  EXPECT_TRUE(early.hears(at_the_end));
  EXPECT_TRUE(late.hears(at_the_end));
  EXPECT_EQ(late.counters().snapshots, 1u);
  EXPECT_EQ(late.counters().resyncs, 0u);
  EXPECT_EQ(late.holder().stream.worker, (events::Worker{events::WorkerId(7), 0}));
  EXPECT_EQ(late.holder().keys.scheme, tokens::HashScheme().fingerprint());

  // A new life of the engine begins with nothing.
  engine.reset();
  engine = std::make_unique<Engine>(port, replay_port);
  engine->publish(second_life);
  EXPECT_TRUE(early.hears(of_the_second));
  EXPECT_TRUE(late.hears(of_the_second));
  EXPECT_EQ(early.counters().resyncs + late.counters().resyncs, 0u);

  ASSERT_TRUE(relay.is_running());
  EXPECT_EQ(relay.terminate(), 0);
}

// The program with its standard error where its standard output is.
std::vector<std::string> speaking(const std::string& arguments) {
  return {"/bin/sh", "-c", std::string("exec ") + ASHLAR_PROGRAM + " " + arguments + " 2>&1"};
}

TEST(AshlarRelay, WaitsForAServerThatComesLater) {
  ASHLAR_NEEDS_SERVER(NatsServer::is_installed(), "there is no nats-server");
  NatsServer server({}, false);
  server.kill();
  const int port = free_port();
  const int replay_port = free_port();
  Engine engine(port, replay_port);
  const Payloads payloads = payloads_of("evict");
  ASSERT_GT(payloads.size(), 3u);
  engine.publish(std::span(payloads).first(payloads.size() / 2));
  const std::string from =
      "engine://127.0.0.1:" + std::to_string(port) + "?replay=127.0.0.1:" + std::to_string(replay_port);
  ServerProcess relay(speaking("relay --from '" + from + "' --to '" + server.url() + "?wait=forever'"));
  ServerProcess stopped(speaking("relay --from '" + server.url() + "?wait=forever' --to file:/dev/null"));
  ServerProcess writing(speaking(std::string("relay --from kvrec:") + ASHLAR_TEST_DATA +
                                 "/vllm/default.kvrec --to '" + server.url() + "?wait=forever'"));
  for (ServerProcess* each : {&relay, &stopped, &writing}) EXPECT_TRUE(each->says("waiting for a server"));
  engine.publish(std::span(payloads).first(payloads.size() - 1).subspan(payloads.size() / 2));
  for (ServerProcess* each : {&stopped, &writing}) EXPECT_EQ(each->terminate(), 0);

  server.start();
  Listening listening(server);
  // The relay may have sent all of the above before anybody listened; what comes now shows that something was
  // missed.
  engine.publish(std::span(payloads).last(1));
  EXPECT_TRUE(listening.hears(held_by_engine("evict")));
  ASSERT_TRUE(relay.is_running());
  EXPECT_EQ(relay.terminate(), 0);
}

events::OwnedBatch stored_by(std::uint64_t worker, std::uint64_t incarnation, std::uint64_t number) {
  events::OwnedBatch batch;
  batch.head.stream = {.worker = {.id = events::WorkerId(worker), .rank = 0}, .incarnation = incarnation};
  batch.head.keys.block_size = 16;
  batch.head.first = number;
  batch.events.emplace_back().hash = tokens::SequenceHash::root(worker << 32 | number);
  return batch;
}

TEST(AshlarRelay, SaysThatTwoPublishersHaveOneWorkersNumber) {
  const ScratchFolder folder;
  ASHLAR_NEEDS_SERVER(NatsServer::is_installed(), "there is no nats-server");
  const NatsServer server({}, false);
  ServerProcess relay(speaking("relay --from '" + server.url() + "' --to file:" + folder.file("events") +
                               " --status-every 0.05"));
  const auto one = NatsSink::create({.connection = server.options()}).value();
  const auto two = NatsSink::create({.connection = server.options()}).value();
  // The program is there when it has heard something.
  std::uint64_t number = 0;
  for (bool heard = false; !heard; ++number) {
    ASSERT_TRUE(one->publish(stored_by(7, 4, number).view()));
    const std::optional<std::string> line = relay.read_line();
    ASSERT_TRUE(line);
    heard = line->find("nothing came") == std::string::npos && line->find("; 0 batches") == std::string::npos;
  }
  for (const std::uint64_t end = number + 3; number < end; ++number) {
    ASSERT_TRUE(one->publish(stored_by(7, 4, number).view()) && one->flush());
    ASSERT_TRUE(two->publish(stored_by(7, 5, number).view()) && two->flush());
  }
  EXPECT_TRUE(relay.says("warning: worker 7 rank 0 has two publishers, incarnations 4 and 5"));
}

TEST(AshlarRelay, APublisherHasOneReplaySocket) {
  const std::string to = " --to 'zmq://127.0.0.1:" + std::to_string(free_port()) + "?replay=127.0.0.1:";
  ServerProcess relay(speaking(std::string("relay --from kvrec:") + ASHLAR_TEST_DATA + "/vllm/default.kvrec" +
                               to + std::to_string(free_port()) + "'" + to + std::to_string(free_port()) +
                               "'"));
  EXPECT_TRUE(relay.says("a publisher has one"));
}

// A socket that holds a port, if it is free.
TestSocket hold(int port) {
  TestSocket held(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (bind(held.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) held.close();
  return held;
}

// Relays a stream of these ranks, in this order, to ports from the given one on. Returns all that the program
// says, and how it ended.
std::pair<int, std::string> relay_ranks(const std::vector<std::uint32_t>& ranks, int port,
                                        const std::string& options) {
  const ScratchFolder folder;
  {
    const auto sink = feed::FileSink::create({.path = folder.file("in")}).value();
    for (const std::uint32_t rank : ranks) {
      events::OwnedBatch batch = stored_by(7, 1, 0);
      batch.head.stream.worker.rank = rank;
      EXPECT_TRUE(sink->publish(batch.view()));
    }
  }
  const std::string state = "XDG_STATE_HOME=" + folder.path() + " ";
  ServerProcess relay({"/bin/sh", "-c",
                       state + ASHLAR_PROGRAM + " relay --from file:" + folder.file("in") +
                           " --to zmq://127.0.0.1:" + std::to_string(port) + options +
                           " 2>&1; echo status $?"});
  std::string said;
  for (std::optional<std::string> line = relay.read_line(); line; line = relay.read_line())
    said += *line + "\n";
  const std::size_t at = said.rfind("status ");
  return {at == said.npos ? -1 : std::stoi(said.substr(at + 7)), said};
}

TEST(AshlarRelay, ATakenPortCostsItsRankAlone) {
  int port = 0;
  TestSocket taken;
  while (taken.get() < 0) taken = hold((port = free_port()) + 1);
  for (const std::vector<std::uint32_t>& ranks : {std::vector<std::uint32_t>{1, 0}, {0, 1}}) {
    const auto [status, said] = relay_ranks(ranks, port, "");
    EXPECT_EQ(status, 3) << said;
    EXPECT_NE(said.find("relayed 1 events"), std::string::npos) << said;
    EXPECT_NE(said.find("worker 7, rank 1 is not relayed"), std::string::npos) << said;
    EXPECT_EQ(said.find("rank 0 is not relayed"), std::string::npos) << said;
  }
  // The first one too.
  const auto [status, said] = relay_ranks({0, 1}, port + 1, "");
  EXPECT_EQ(status, 3) << said;
  EXPECT_NE(said.find("worker 7, rank 0 is not relayed"), std::string::npos) << said;
  EXPECT_NE(said.find("warning: worker 7, rank 0"), std::string::npos) << said;
}

TEST(AshlarRelay, ARankWithoutAPortCostsItselfAlone) {
  int port = 65'500;
  while (hold(port).get() < 0) --port;
  const auto [status, said] = relay_ranks({600, 0}, port, " --ranks 1024");
  EXPECT_EQ(status, 3) << said;
  EXPECT_NE(said.find("relayed 1 events"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 600 has no port"), std::string::npos) << said;
}

TEST(AshlarRelay, ARankBeyondTheLimitOpensNoPort) {
  const int port = free_port();
  const auto [status, said] = relay_ranks({64, 0, 70'000}, port, "");
  EXPECT_EQ(status, 3) << said;
  EXPECT_NE(said.find("relayed 1 events"), std::string::npos) << said;
  EXPECT_NE(said.find("2 events are not relayed: rank 70000 of worker 7"), std::string::npos) << said;
}

// The target is the server that is read, by a name that has to be looked up.
TEST(AshlarRelay, WhatItPublishedItselfIsNotRelayedAgain) {
  const ScratchFolder folder;
  ASHLAR_NEEDS_SERVER(NatsServer::is_installed(), "there is no nats-server");
  const NatsServer server({}, false);
  std::string other = server.url();
  other.replace(other.find("127.0.0.1"), 9, "2130706433");
  ServerProcess relay(speaking("relay --from '" + server.url() + "' --to '" + other +
                               "' --status-every 0.05 --incarnation 1000"));
  const auto sink = NatsSink::create({.connection = server.options()}).value();
  std::uint64_t number = 0;
  std::string line;
  while (line.find("came back") == std::string::npos) {
    ASSERT_TRUE(sink->publish(stored_by(7, 4, number++).view()));
    const std::optional<std::string> next = relay.read_line();
    ASSERT_TRUE(next);
    line = *next;
  }
  EXPECT_TRUE(relay.is_running());
  // It hears the source as before.
  const auto relayed = [](const std::string& text) {
    return std::stoull(text.substr(text.find("relayed ") + 8));
  };
  const std::uint64_t so_far = relayed(line);
  EXPECT_LE(so_far, number);
  while (relayed(line) == so_far) {
    ASSERT_TRUE(sink->publish(stored_by(7, 4, number++).view()));
    const std::optional<std::string> next = relay.read_line();
    ASSERT_TRUE(next);
    if (next->find("relayed ") != std::string::npos) line = *next;
  }
  EXPECT_LE(relayed(line), number);
  EXPECT_EQ(line.find("stale"), std::string::npos) << line;
  // What was published before it listened is a gap.
  const int status = relay.terminate();
  EXPECT_TRUE(status == 0 || status == 3) << status;
}

TEST(AshlarProgram, SaysNoSecretsOfAnAddress) {
  const std::string at = "127.0.0.1:" + std::to_string(free_port());
  for (const std::string& address :
       {"nats://" + at + "?nkey=SUHIDDEN&seed=/nowhere", "nats://" + at + "?nkey=SUHIDDEN&HIDDEN",
        "nats://" + at + "?wait=x&nkey=SUHIDDEN&seed=/nowhere", "nats://" + at + "?password=HIDDEN",
        "nats://" + at + "?what=1&seed=HIDDEN", "nats://somebody:HIDDEN@" + at,
        "nats://somebody:HID?D&EN@" + at, "nat://somebody:HIDDEN@" + at, "nat://" + at + "?token=HIDDEN",
        "nat://" + at + "?token=A&HIDDEN=1"}) {
    for (const std::string& arguments :
         {"relay --from '" + address + "' --to file:/dev/null", "advisor --from '" + address + "'",
          std::string("relay --from kvrec:") + ASHLAR_TEST_DATA + "/vllm/default.kvrec --to '" + address +
              "'"}) {
      ServerProcess relay(speaking(arguments));
      std::string said;
      for (std::optional<std::string> line = relay.read_line(); line; line = relay.read_line()) said += *line;
      EXPECT_NE(said.find("ashlar " + arguments.substr(0, arguments.find(' ')) + ": "), std::string::npos)
          << said;
      EXPECT_EQ(said.find("HID"), std::string::npos) << arguments << "\n" << said;
    }
  }
}

TEST(AshlarRelay, CarriesSeveralWorkersOverOnePortOfZeroMq) {
  ASHLAR_NEEDS_SERVER(NatsServer::is_installed(), "there is no nats-server");
  const NatsServer server;
  const int port = free_port();
  const int replay_port = free_port();
  const auto sink =
      NatsSink::create({.connection = server.options(), .mode = backend::nats::NatsMode::kJetStream}).value();
  for (std::uint64_t number = 0; number < 5; ++number)
    for (const std::uint64_t worker : {3, 4, 5})
      ASSERT_TRUE(sink->publish(stored_by(worker, 1, number).view()));
  ASSERT_TRUE(sink->flush());
  ServerProcess relay(
      {ASHLAR_PROGRAM, "relay", "--from", server.url() + "?jetstream=1", "--to",
       "zmq://127.0.0.1:" + std::to_string(port) + "?replay=127.0.0.1:" + std::to_string(replay_port)});
  // Who hears nothing new asks for what was.
  backend::zmq::SubscriberOptions publisher;
  publisher.endpoint = "tcp://127.0.0.1:" + std::to_string(port);
  publisher.replay_endpoint = "tcp://127.0.0.1:" + std::to_string(replay_port);
  publisher.silence = 50ms;
  const auto source = backend::zmq::ZmqSource::create({.publishers = {publisher}}).value();
  std::map<std::uint64_t, std::set<tokens::SequenceHash>> held;
  struct Consumer final : feed::StreamListener {
    explicit Consumer(std::map<std::uint64_t, std::set<tokens::SequenceHash>>& into) : held(into) {}
    void on_reset(const events::StreamId& stream) override { held[stream.worker.id.value()].clear(); }
    void on_events(const events::EventBatch& batch) override {
      for (const events::KvEvent& event : batch.events)
        held[batch.stream.worker.id.value()].insert(event.hash);
    }
    std::map<std::uint64_t, std::set<tokens::SequenceHash>>& held;
  } listener(held);
  feed::StreamReceiver receiver(*source, listener);
  const auto all = [&] { return held[3].size() == 5 && held[4].size() == 5 && held[5].size() == 5; };
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!all() && std::chrono::steady_clock::now() < deadline) static_cast<void>(receiver.poll(20ms));
  EXPECT_TRUE(all());
  ASSERT_TRUE(relay.is_running());
  EXPECT_EQ(relay.terminate(), 0);
}

}  // namespace
}  // namespace ashlar
