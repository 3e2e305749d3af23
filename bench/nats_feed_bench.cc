// Events through NATS: NatsSink to NatsSource, beside plain cnats with the same bytes, through one
// nats-server.
//
//   nats_feed_bench            starts a nats-server of its own (of the PATH, or below build/)
//   nats_feed_bench URL        uses that one; JetStream streams BENCH* are made there and deleted
//
// A batch is a chain of 100 stored blocks. Ours encodes, publishes, receives, decodes and reads every event;
// the rival publishes pre-encoded bytes, and receives them. Publisher and receiver are threads of this
// process with a connection each; the time is from the first batch to the arrival of the last. JetStream
// keeps its stream in files, as by default; the rival publishes asynchronously without ids, waits for all
// acknowledgements, fetches 256 and acknowledges each. Runs are interleaved pair by pair, and alternate in
// which goes first.
#include <nats/nats.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/backend/nats/nats_sink.h"
#include "ashlar/backend/nats/nats_source.h"
#include "ashlar/base/check.h"
#include "ashlar/events/event_codec.h"
#include "ratio.h"

namespace {

using namespace ashlar;                 // NOLINT(google-build-using-namespace)
using namespace ashlar::backend::nats;  // NOLINT(google-build-using-namespace)
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kEvents = 100;
constexpr std::size_t kBatches = 64;
constexpr std::size_t kPairs = 9;
constexpr double kGoal = 0.8;
constexpr std::string_view kSubject = "kv.1.0.g1";

double now() {
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_time() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void check_status(natsStatus status, const char* what) {
  ASHLAR_CHECK(status == NATS_OK, "%s", what);
}

// A nats-server that ends with this process.
class Server {
 public:
  explicit Server(const std::string& program) {
    std::string folder = (std::filesystem::temp_directory_path() / "ashlar_bench_XXXXXX").string();
    folder_ = mkdtemp(folder.data());
    port_ = free_port();
    std::vector<std::string> words{program, "-a",  "127.0.0.1", "-p", std::to_string(port_),
                                   "-js",   "-sd", folder_,     "-l", folder_ + "/log"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string url() const { return "nats://127.0.0.1:" + std::to_string(port_); }

 private:
  static int free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const bool good = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    ASHLAR_CHECK(good, "no port on loopback");
    close(fd);
    return ntohs(address.sin_port);
  }
  pid_t pid_ = -1;
  int port_ = 0;
  std::string folder_;
};

// They are used again and again, under other numbers: a manager's batches are in the cache when they are
// published.
std::vector<events::OwnedBatch> make_batches() {
  std::vector<events::OwnedBatch> batches(kBatches);
  std::uint64_t number = 0;
  for (events::OwnedBatch& batch : batches) {
    batch.head.stream = {.worker = {.id = events::WorkerId(1), .rank = 0}, .incarnation = 1};
    batch.head.keys.block_size = 16;
    batch.head.first = number;
    tokens::SequenceHash last;
    for (std::size_t i = 0; i < kEvents; ++i, ++number) {
      const std::uint64_t chain = (number + 1) * 0x9E3779B97F4A7C15U;
      events::KvEvent event;
      event.hash = i == 0 ? tokens::SequenceHash::root(chain) : *last.child(chain);
      event.has_parent = i > 0;
      event.parent_bits = i > 0 ? last : tokens::SequenceHash();
      event.has_local = true;
      event.local_bits = chain * 31;
      event.block = static_cast<std::uint32_t>(number);
      last = event.hash;
      batch.events.push_back(event);
    }
  }
  return batches;
}

struct Run {
  double seconds = 0;     // from the first batch to the arrival of the last
  double publishing = 0;  // in publish()
  double processor = 0;   // seconds of this process, all threads
};

class NatsBatchCounter final : public feed::BatchConsumer {
 public:
  void on_batch(const events::EventBatch& batch) override {
    for (const events::KvEvent& event : batch.events) sum += event.local_bits;
    seen += batch.events.size();
  }
  std::uint64_t seen = 0;
  std::uint64_t sum = 0;
};

Run run_ours(const std::string& url, NatsMode mode, const std::string& stream,
             const std::vector<events::OwnedBatch>& batches, std::size_t count) {
  NatsSourceOptions source_options;
  source_options.connection.urls = {url};
  source_options.prefix = "kv";
  source_options.mode = mode;
  source_options.stream.name = stream;
  NatsSinkOptions sink_options;
  sink_options.connection.urls = {url};
  sink_options.prefix = "kv";
  sink_options.mode = mode;
  sink_options.stream.name = stream;
  const auto source = NatsSource::create(source_options).value();
  const auto sink = NatsSink::create(sink_options).value();
  const std::uint64_t wanted = count * kEvents;
  NatsBatchCounter counter;
  std::thread receiver([&] {
    while (counter.seen < wanted) source->poll(counter, std::chrono::seconds(5)).value();
  });
  Run run;
  const double processor = processor_time();
  const double start = now();
  for (std::size_t i = 0; i < count; ++i) {
    events::EventBatch batch = batches[i % kBatches].view();
    batch.first = i * kEvents;
    if (const Result<void> sent = sink->publish(batch); !sent) {
      std::fprintf(stderr, "nats_feed_bench: %s\n", sent.error().to_string().c_str());
      std::exit(1);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  run.publishing = now() - start;
  ASHLAR_CHECK(sink->flush(std::chrono::seconds(60)).has_value(), "flush");
  receiver.join();
  run.seconds = now() - start;
  run.processor = processor_time() - processor;
  return run;
}

// Nanoseconds per event in publish() when the connection has room: bursts that fit its buffer, with a flush
// between them.
double publish_cost(const std::string& url, NatsMode mode, const std::vector<events::OwnedBatch>& batches) {
  constexpr std::size_t kBurst = 8;
  NatsSinkOptions options;
  options.connection.urls = {url};
  options.prefix = "kv";
  options.mode = mode;
  options.stream.name = "BENCHC";
  const auto sink = NatsSink::create(options).value();
  std::vector<double> bursts;
  for (std::size_t i = 0; i < 4000; i += kBurst) {
    const double start = now();
    for (std::size_t j = i; j < i + kBurst; ++j) {
      events::EventBatch batch = batches[j % kBatches].view();
      batch.first = j * kEvents;
      ASHLAR_CHECK(sink->publish(batch).has_value(), "publish");
    }
    bursts.push_back((now() - start) * 1e9 / static_cast<double>(kBurst * kEvents));
    ASHLAR_CHECK(sink->flush(std::chrono::seconds(60)).has_value(), "flush");
  }
  return bench::spread_of(bursts).median;
}

Run run_core(const std::string& url, const std::vector<std::vector<std::byte>>& messages, std::size_t count) {
  natsConnection* to = nullptr;
  natsConnection* from = nullptr;
  natsSubscription* subscription = nullptr;
  check_status(natsConnection_ConnectTo(&to, url.c_str()), "connect");
  check_status(natsConnection_ConnectTo(&from, url.c_str()), "connect");
  check_status(natsConnection_SubscribeSync(&subscription, from, "kv.*.*.*"), "subscribe");
  check_status(natsSubscription_SetPendingLimits(subscription, -1, -1), "limits");
  check_status(natsConnection_Flush(from), "flush");
  std::thread receiver([&] {
    for (std::size_t i = 0; i < count; ++i) {
      natsMsg* message = nullptr;
      check_status(natsSubscription_NextMsg(&message, subscription, 10'000), "receive");
      natsMsg_Destroy(message);
    }
  });
  Run run;
  const double processor = processor_time();
  const double start = now();
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::byte>& message = messages[i % kBatches];
    check_status(
        natsConnection_Publish(to, kSubject.data(), message.data(), static_cast<int>(message.size())),
        "publish");
  }
  run.publishing = now() - start;
  check_status(natsConnection_Flush(to), "flush");
  receiver.join();
  run.seconds = now() - start;
  run.processor = processor_time() - processor;
  natsSubscription_Destroy(subscription);
  natsConnection_Destroy(from);
  natsConnection_Destroy(to);
  return run;
}

Run run_jet_stream(const std::string& url, const std::string& stream,
                   const std::vector<std::vector<std::byte>>& messages, std::size_t count) {
  std::array<natsConnection*, 2> connections{};
  std::array<jsCtx*, 2> contexts{};
  for (std::size_t i = 0; i < 2; ++i) {
    check_status(natsConnection_ConnectTo(&connections[i], url.c_str()), "connect");
    check_status(natsConnection_JetStream(&contexts[i], connections[i], nullptr), "JetStream");
  }
  jsStreamConfig config;
  jsStreamConfig_Init(&config);
  const char* subjects = "kv.*.*.*";
  config.Name = stream.c_str();
  config.Subjects = &subjects;
  config.SubjectsLen = 1;
  check_status(js_AddStream(nullptr, contexts[0], &config, nullptr, nullptr), "stream");
  natsSubscription* subscription = nullptr;
  check_status(js_PullSubscribe(&subscription, contexts[1], "kv.*.*.*", "bench", nullptr, nullptr, nullptr),
               "consumer");
  std::thread receiver([&] {
    for (std::size_t got = 0; got < count;) {
      natsMsgList list{};
      // It waits for all that it asks for: no more than there will be.
      const auto ask = static_cast<int>(std::min<std::size_t>(256, count - got));
      const natsStatus status = natsSubscription_Fetch(&list, subscription, ask, 10'000, nullptr);
      check_status(status, "fetch");
      for (int i = 0; i < list.Count; ++i) natsMsg_Ack(list.Msgs[i], nullptr);
      got += static_cast<std::size_t>(list.Count);
      natsMsgList_Destroy(&list);
    }
  });
  Run run;
  const double processor = processor_time();
  const double start = now();
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::byte>& message = messages[i % kBatches];
    check_status(js_PublishAsync(contexts[0], kSubject.data(), message.data(),
                                 static_cast<int>(message.size()), nullptr),
                 "publish");
  }
  run.publishing = now() - start;
  check_status(js_PublishAsyncComplete(contexts[0], nullptr), "acknowledgements");
  receiver.join();
  run.seconds = now() - start;
  run.processor = processor_time() - processor;
  natsSubscription_Destroy(subscription);
  for (std::size_t i = 0; i < 2; ++i) {
    jsCtx_Destroy(contexts[i]);
    natsConnection_Destroy(connections[i]);
  }
  return run;
}

void delete_stream(const std::string& url, const std::string& stream) {
  natsConnection* connection = nullptr;
  jsCtx* context = nullptr;
  check_status(natsConnection_ConnectTo(&connection, url.c_str()), "connect");
  check_status(natsConnection_JetStream(&context, connection, nullptr), "JetStream");
  check_status(js_DeleteStream(context, stream.c_str(), nullptr, nullptr), "delete the stream");
  jsCtx_Destroy(context);
  natsConnection_Destroy(connection);
}

void compare_mode(const std::string& url, NatsMode mode, std::size_t count) {
  const std::vector<events::OwnedBatch> batches = make_batches();
  std::vector<std::vector<std::byte>> messages(kBatches);
  for (std::size_t i = 0; i < kBatches; ++i) events::encode_batch(batches[i].view(), messages[i]);
  const bool is_core = mode == NatsMode::kCore;
  std::vector<double> ours;
  std::vector<double> rival;
  std::vector<double> ratio;
  std::vector<double> publishing;
  std::vector<double> rival_publishing;
  std::vector<double> processor;
  std::vector<double> rival_processor;
  const double total = static_cast<double>(count * kEvents);
  for (std::size_t i = 0; i < kPairs; ++i) {
    Run a;
    Run b;
    const auto run_one = [&](bool is_ours) {
      const std::string stream = "BENCH" + std::to_string(i) + (is_ours ? "O" : "R");
      if (is_ours) {
        a = run_ours(url, mode, stream, batches, count);
      } else {
        b = is_core ? run_core(url, messages, count) : run_jet_stream(url, stream, messages, count);
      }
      if (!is_core) delete_stream(url, stream);
    };
    run_one(i % 2 == 0);
    run_one(i % 2 != 0);
    ours.push_back(total / a.seconds / 1e6);
    rival.push_back(total / b.seconds / 1e6);
    ratio.push_back(b.seconds / a.seconds);
    publishing.push_back(a.publishing * 1e9 / total);
    rival_publishing.push_back(b.publishing * 1e9 / total);
    processor.push_back(a.processor * 1e9 / total);
    rival_processor.push_back(b.processor * 1e9 / total);
  }
  const double cost = publish_cost(url, mode, batches);
  if (!is_core) delete_stream(url, "BENCHC");
  const bench::Spread spread = bench::spread_of(ratio);
  std::printf(
      "%-10s %8zu B  ours %6.2f M events/s  cnats %6.2f M events/s  ratio %.2f (%.2f..%.2f)  goal %.1f  %s\n",
      is_core ? "core" : "jetstream", messages[0].size(), bench::spread_of(ours).median,
      bench::spread_of(rival).median, spread.median, spread.min, spread.max, kGoal,
      spread.median >= kGoal ? "met" : "missed");
  std::printf(
      "%-10s %10s  in publish(), per event: ours %.1f ns in bursts, %.1f ns at full speed; cnats %.1f ns\n",
      "", "", cost, bench::spread_of(publishing).median, bench::spread_of(rival_publishing).median);
  std::printf(
      "%-10s %10s  of the processor, per event, publisher and receiver: ours %.1f ns; cnats %.1f ns\n", "",
      "", bench::spread_of(processor).median, bench::spread_of(rival_processor).median);
}

std::string find_server() {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  std::string folders =
      std::string(ASHLAR_NATS_SERVER_FOLDER) + ":" + (path == nullptr ? "" : path) + ":/usr/sbin";
  for (std::size_t start = 0; start <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', start), folders.size());
    std::string candidate = folders.substr(start, end - start) + "/nats-server";
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    start = end + 1;
  }
  return {};
}

bool answers(const std::string& url) {
  for (int i = 0; i < 200; ++i) {
    natsConnection* connection = nullptr;
    if (natsConnection_ConnectTo(&connection, url.c_str()) == NATS_OK) {
      natsConnection_Destroy(connection);
      return true;
    }
    nats_Sleep(25);
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<Server> server;
  std::string url = argc > 1 ? argv[1] : "";
  if (url.empty()) {
    const std::string program = find_server();
    if (program.empty()) {
      std::fprintf(stderr, "nats_feed_bench: there is no nats-server; scripts/bootstrap bench brings one\n");
      return 1;
    }
    server = std::make_unique<Server>(program);
    url = server->url();
  }
  if (!answers(url)) {
    std::fprintf(stderr, "nats_feed_bench: no nats-server answers at %s\n", url.c_str());
    return 1;
  }
  std::printf(
      "batches of %zu events, end to end; median of %zu interleaved pairs; ratio = cnats' time / ours\n",
      kEvents, kPairs);
  compare_mode(url, NatsMode::kCore, 20'000);
  compare_mode(url, NatsMode::kJetStream, 10'000);
  return 0;
}
