// Clients and workers that misbehave: only their own connection suffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/log.h"
#include "backend/http/raw_client.h"
#include "backend/http/scripted_gateway.h"
#include "support/sanitizers.h"

namespace ashlar::backend::http {
namespace {

using std::chrono::milliseconds;
using Exchange = std::shared_ptr<HttpExchange>;
using ::testing::HasSubstr;

// A proxy in front of one worker that answers "fine".
class HttpFaults : public ::testing::Test {
 protected:
  void start(const HttpProxyOptions& options = {}) {
    worker_ = start_worker([](const Exchange& exchange) { exchange->reply(200, "text/plain", "fine"); });
    gateway_.on_begin = [this](const ClientRequest& request, const ScriptedGateway::Wake&) {
      if (request.target != "/raw") return forward_to(worker_->port());
      Forward out = forward_to(raw_.port());
      out.connect_timeout = connect_timeout_;
      out.head_timeout = head_timeout_;
      out.idle_timeout = idle_timeout_;
      return out;
    };
    proxy_ = start_proxy(gateway_, options);
  }
  bool others_are_served() {
    RawClient client(proxy_->port());
    return client.ask(post("/", "body")).body == "fine";
  }
  RawClient connect() { return RawClient(proxy_->port()); }

  std::unique_ptr<HttpServer> worker_;
  RawWorker raw_;
  ScriptedGateway gateway_;
  Clock::Duration connect_timeout_ = std::chrono::seconds(60);
  Clock::Duration head_timeout_ = std::chrono::seconds(600);
  Clock::Duration idle_timeout_ = std::chrono::seconds(600);
  std::unique_ptr<HttpProxy> proxy_;
};

TEST_F(HttpFaults, RefusesRequestsThatBreakALimit) {
  HttpProxyOptions options;
  options.limits.head_bytes = 64 << 10;
  options.limits.body_bytes = 1 << 20;
  start(options);
  const auto status = [&](const std::string& text) {
    RawClient client = connect();
    std::thread sender([&] { client.send(text); });
    const unsigned out = client.take_answer().status;
    sender.join();
    return out;
  };
  EXPECT_EQ(status(get("/", "X: " + std::string(10 << 20, 'a') + "\r\n")), 431u);
  EXPECT_EQ(status(post("/", std::string((1 << 20) + 1, 'a'))), 413u);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                   as_chunks(std::string(3 << 20, 'a'), 4000)),
            413u);
  EXPECT_EQ(status("nonsense\r\n\r\n"), 400u);
  EXPECT_EQ(status(get("/", "Connection: upgrade\r\nUpgrade: websocket\r\n")), 501u);
  EXPECT_TRUE(others_are_served());
  EXPECT_EQ(proxy_->counters().bad_requests, 5u);
  EXPECT_EQ(gateway_.opened, 1);
}

TEST_F(HttpFaults, DoesNotAskForABodyThatIsTooLarge) {
  HttpProxyOptions options;
  options.limits.body_bytes = 100;
  start(options);
  RawClient client = connect();
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: ";
  client.send(head + "5\r\n\r\n");
  EXPECT_EQ(client.take_head(false).status, 100u);
  client.send("hello");
  EXPECT_EQ(client.take_head(false).status, 200u);
  client.take_bytes(4);
  client.send(head + "101\r\n\r\n");
  EXPECT_EQ(client.take_head(false).status, 413u);
}

// Slow-loris: a byte now and then does not help.
TEST_F(HttpFaults, EndsRequestsThatTrickle) {
  HttpProxyOptions options;
  options.limits.head_timeout = milliseconds(60);
  options.limits.body_timeout = milliseconds(60);
  start(options);
  for (const std::string begin :
       {"GET / HTTP/1.1\r\nX: ", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"}) {
    RawClient client = connect();
    client.send(begin);
    pollfd answer{.fd = client.fd(), .events = POLLIN, .revents = 0};
    while (poll(&answer, 1, 5) == 0) client.send("x");
    EXPECT_EQ(client.take_head().status, 408u);
    EXPECT_TRUE(others_are_served());
  }
  EXPECT_EQ(proxy_->counters().bad_requests, 2u);
}

TEST_F(HttpFaults, EndsIdleConnections) {
  HttpProxyOptions options;
  options.limits.idle_timeout = milliseconds(10);
  start(options);
  RawClient client = connect();
  EXPECT_TRUE(client.at_end());
  EXPECT_EQ(proxy_->counters().bad_requests, 0u);
}

TEST_F(HttpFaults, GivesUpWaitingForTheHeadOfAnAnswer) {
  head_timeout_ = milliseconds(10);
  start();
  RawClient client = connect();
  client.send(get("/raw"));
  RawClient side = raw_.accept();
  const RawAnswer answer = client.take_answer();
  EXPECT_EQ(answer.status, 502u);
  EXPECT_THAT(answer.body, HasSubstr("no answer in time"));
  EXPECT_EQ(gateway_.failures(), std::vector{ForwardFailure::kLate});
  side.take_until("\r\n\r\n");
  EXPECT_TRUE(side.at_end()) << "the worker is told";
}

TEST_F(HttpFaults, GivesUpWaitingForTheRestOfAnAnswer) {
  idle_timeout_ = milliseconds(10);
  start();
  for (const std::string begin :
       {"HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"}) {
    RawClient client = connect();
    client.send(get("/raw"));
    RawClient side = raw_.accept();
    side.take_until("\r\n\r\n");
    side.send(begin);
    const RawAnswer answer = client.take_answer();
    EXPECT_FALSE(answer.complete && answer.status == 200);
    EXPECT_TRUE(side.at_end());
  }
  EXPECT_EQ(gateway_.failures(), std::vector{ForwardFailure::kLate});
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kWorkerBroke));
}

// Answers 1xx say that the worker lives; they do not give it more time.
TEST_F(HttpFaults, GivesUpOnAWorkerThatOnlyPromises) {
  head_timeout_ = milliseconds(20);
  start();
  for (const std::string begin :
       {"HTTP/1.1 102 Processing\r\n\r\n", "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 O"}) {
    RawClient client = connect();
    client.send(get("/raw"));
    RawClient side = raw_.accept();
    side.take_until("\r\n\r\n");
    side.send(begin);
    EXPECT_EQ(client.take_answer().status, 502u);
    EXPECT_TRUE(side.at_end());
  }
  EXPECT_EQ(gateway_.failures(), (std::vector{ForwardFailure::kLate, ForwardFailure::kLate}));
}

TEST_F(HttpFaults, TakesSomeInterimAnswersButNotAnyNumber) {
  start();
  for (const bool is_endless : {false, true}) {
    RawClient client = connect();
    client.send(get("/raw"));
    RawClient side = raw_.accept();
    side.take_until("\r\n\r\n");
    if (is_endless) {
      while (side.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")) continue;
      EXPECT_EQ(client.take_answer().status, 502u);
      continue;
    }
    for (int i = 0; i < 10; ++i) side.send("HTTP/1.1 100 Continue\r\n\r\n");
    side.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    EXPECT_EQ(client.take_answer().body, "done");
    side.close();
  }
  EXPECT_EQ(gateway_.failures(), std::vector{ForwardFailure::kInvalid});
}

TEST_F(HttpFaults, GivesUpConnecting) {
  connect_timeout_ = milliseconds(10);
  // A listener whose queue is full lets no one in.
  const OwnedFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(full.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  getsockname(full.get(), reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<OwnedFd> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::connect(fillers.back().get(), reinterpret_cast<sockaddr*>(&address), size);
  }
  start();
  gateway_.on_begin = [&](const ClientRequest&, const ScriptedGateway::Wake&) {
    Forward out = forward_to(ntohs(address.sin_port));
    out.connect_timeout = connect_timeout_;
    return out;
  };
  RawClient client = connect();
  EXPECT_THAT(client.ask(get("/")).body, HasSubstr("in time"));
  EXPECT_EQ(gateway_.failures(), std::vector{ForwardFailure::kConnect});
}

TEST_F(HttpFaults, TakesTheLongestTimeForNever) {
  connect_timeout_ = head_timeout_ = idle_timeout_ = Clock::Duration::max();
  HttpProxyOptions options;
  options.limits.head_timeout = options.limits.body_timeout = Clock::Duration::max();
  options.limits.idle_timeout = options.limits.write_timeout = Clock::Duration::max();
  start(options);
  RawClient client = connect();
  client.send(get("/raw"));
  RawClient side = raw_.accept();
  side.take_until("\r\n\r\n");
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(client.take_answer().body, "ok");
}

TEST_F(HttpFaults, FindsWorkersByName) {
  start();
  gateway_.on_begin = [&](const ClientRequest& request, const ScriptedGateway::Wake&) {
    Forward out = forward_to(worker_->port());
    out.address.host = request.target == "/known" ? "localhost" : "no-such-host.invalid";
    return out;
  };
  RawClient client = connect();
  EXPECT_EQ(client.ask(get("/known")).body, "fine");
  EXPECT_EQ(client.ask(get("/unknown")).status, 502u);
  EXPECT_EQ(gateway_.failures(), std::vector{ForwardFailure::kConnect});
}

TEST_F(HttpFaults, OutlastsAWorkerThatStopsReading) {
  head_timeout_ = milliseconds(200);
  start();
  RawClient client = connect();
  const std::string request = post("/raw", std::string(32 << 20, 'x'));
  std::thread sender([&] { client.send(request); });
  RawClient side = raw_.accept();  // and reads nothing
  EXPECT_TRUE(others_are_served());
  sender.join();
  EXPECT_EQ(client.take_answer().status, 502u);
  EXPECT_EQ(gateway_.failures(), std::vector{ForwardFailure::kLate});
}

TEST_F(HttpFaults, PassesAnAnswerThatComesBeforeTheRequestIsRead) {
  start();
  RawClient client = connect();
  const std::string request = post("/raw", std::string(32 << 20, 'x'));
  std::thread sender([&] { client.send(request); });
  RawClient side = raw_.accept();
  side.send("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
  EXPECT_EQ(client.take_answer().status, 413u);
  sender.join();
  EXPECT_TRUE(others_are_served());
}

TEST_F(HttpFaults, PassesAnAnswerThatTrickles) {
  start();
  RawClient client = connect();
  client.send(get("/raw"));
  RawClient side = raw_.accept();
  side.take_until("\r\n\r\n");
  for (const char c : "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunks("all of it", 4))
    side.send({&c, 1});
  EXPECT_EQ(client.take_answer().body, "all of it");
}

TEST_F(HttpFaults, ReadsFromAWorkerNoFasterThanTheClientDoes) {
  HttpProxyOptions options = one_thread();
  options.limits.write_timeout = milliseconds(500);
  start(options);
  gateway_.keeps_bytes = false;
  RawClient client(proxy_->port(), 4096);
  client.send(get("/raw"));
  RawClient side = raw_.accept();
  side.take_until("\r\n\r\n");
  // Far more than the sockets hold; the client never reads.
  std::atomic<std::size_t> sent{0};
  std::thread writer([&] {
    side.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
    const std::string block(1 << 20, 'x');
    while (side.send(block)) sent += block.size();
  });
  EXPECT_TRUE(others_are_served());
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kClientGone));
  writer.join();
  EXPECT_LT(sent, std::size_t{100} << 20) << "memory is bounded by the sockets' buffers";
  EXPECT_TRUE(others_are_served());
}

TEST_F(HttpFaults, RefusesConnectionsBeyondTheLimit) {
  HttpProxyOptions options;
  options.limits.connections = 1;
  start(options);
  RawClient first = connect();
  EXPECT_EQ(first.ask(get("/")).body, "fine");
  EXPECT_TRUE(connect().at_end());
  EXPECT_EQ(proxy_->counters().refused, 1u);
  EXPECT_EQ(proxy_->counters().open_connections, 1);
}

// The system refuses a new descriptor; later there is one.
TEST_F(HttpFaults, AcceptsAgainAfterDescriptorsRanOut) {
  start();
  EXPECT_TRUE(others_are_served());
  const OwnedFd waiting(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::atomic<bool> is_refused{false};
  const ScopedLogSink sink([&](LogLevel, std::string_view, std::string_view message) {
    if (message.find("cannot be accepted") != std::string_view::npos) is_refused = true;
  });
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  {
    rlimit low = before;
    low.rlim_cur = 1024;
    setrlimit(RLIMIT_NOFILE, &low);
    std::vector<OwnedFd> taken;
    for (int fd = ::dup(waiting.get()); fd >= 0; fd = ::dup(waiting.get())) taken.emplace_back(fd);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(proxy_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(waiting.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_TRUE(comes_true([&] { return is_refused.load(); }));
  }
  setrlimit(RLIMIT_NOFILE, &before);
  RawClient client(OwnedFd(::dup(waiting.get())));
  EXPECT_EQ(client.ask(get("/")).body, "fine");
}

TEST_F(HttpFaults, StaysUpUnderHostileBytes) {
  start();
  gateway_.keeps_bytes = false;
  const std::string seeds[] = {
      post("/", "{\"prompt\":\"x\"}", "X-A: b\r\n"),
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunks("some text", 3),
      get("/") + get("/")};
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::string text = seeds[random() % std::size(seeds)];
    for (std::size_t i = random() % 5; i > 0; --i) text[random() % text.size()] = static_cast<char>(random());
    RawClient client = connect();
    const std::size_t cut = random() % text.size();
    if (!client.send(std::string_view(text).substr(0, cut))) continue;
    if (random() % 2 == 0) client.send(std::string_view(text).substr(cut));
    switch (random() % 3) {
      case 0:
        client.reset();
        break;
      case 1:
        client.shut();
        client.take_all();
        break;
      default:
        break;
    }
  }
  EXPECT_TRUE(others_are_served());
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().open_connections == 0; }));
  EXPECT_EQ(proxy_->counters().open_passages, 0);
}

// Answers of a worker, damaged at random: each request is answered or ended.
TEST_F(HttpFaults, StaysUpUnderHostileAnswers) {
  start();
  gateway_.keeps_bytes = false;
  const std::string seeds[] = {
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunks("some text", 3),
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nuntil the end"};
  std::mt19937 random(13);
  for (int round = 0; round < 300; ++round) {
    std::string text = seeds[random() % std::size(seeds)];
    for (std::size_t i = random() % 4; i > 0; --i) text[random() % text.size()] = static_cast<char>(random());
    if (random() % 4 == 0) text.resize(random() % text.size());
    RawClient client = connect();
    client.send(get("/raw", "Connection: close\r\n"));
    {
      RawClient side = raw_.accept();
      side.take_until("\r\n\r\n");
      side.send(text);
    }
    client.take_all();
  }
  EXPECT_TRUE(others_are_served());
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().open_passages == 0; }));
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

// 5,000 silent streams are to take less than 200 MiB: 40 KiB each. The sockets of client, proxy and worker
// are all in this process; those of client and worker have hardly any memory of their own.
TEST_F(HttpFaults, HoldsManyIdleStreams) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const std::size_t wanted = testing::kSanitized ? 200 : 2000;
  const std::size_t count = std::min<std::size_t>(wanted, (files.rlim_cur - 100) / 4);
  start();
  std::vector<RawClient> clients;
  std::vector<RawClient> sides;
  clients.reserve(count);
  sides.reserve(count);
  const std::size_t before = resident_bytes();
  const std::string request = post("/raw", std::string(2048, 'x'));
  const std::string first =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n";
  for (std::size_t i = 0; i < count; ++i) {
    clients.emplace_back(proxy_->port());
    clients.back().send(request);
    sides.push_back(raw_.accept());
    sides.back().send(first);
    ASSERT_EQ(clients.back().take_until("hi\r\n").substr(0, 15), "HTTP/1.1 200 OK");
  }
  const std::size_t after = std::max(before, resident_bytes());
  EXPECT_EQ(proxy_->counters().open_passages, static_cast<std::int64_t>(count));
  std::printf("%zu idle streams: %zu bytes each, with the 2 KiB body of each request\n", count,
              (after - before) / count);
  if (!testing::kSanitized) {
    EXPECT_LT((after - before) / count, std::size_t{40} << 10);
  }
  EXPECT_TRUE(others_are_served());
  clients.clear();
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kClientGone, static_cast<int>(count)));
}

// A worker cannot be reached for want of a descriptor of ours: that is not the worker's failure.
TEST_F(HttpFaults, TellsItsOwnShortageFromAWorkersFailure) {
  start(one_thread());
  RawClient client = connect();
  EXPECT_EQ(client.ask(get("/")).body, "fine");
  std::atomic<int> told{0};
  gateway_.on_answered = [&](const Result<Answer>& answer) {
    EXPECT_FALSE(answer);
    if (!answer && answer.error().code() == ErrorCode::kIo) ++told;
    return Reply{204};
  };
  gateway_.on_begin = [this](const ClientRequest& request, const ScriptedGateway::Wake&) -> Step {
    if (request.target == "/ask") {
      Ask ask;
      ask.address = worker_at(raw_.port());
      return ask;
    }
    return forward_to(raw_.port());
  };
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  {
    rlimit low = before;
    low.rlim_cur = 1024;
    setrlimit(RLIMIT_NOFILE, &low);
    const OwnedFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    std::vector<OwnedFd> taken;
    for (int fd = ::dup(one.get()); fd >= 0; fd = ::dup(one.get())) taken.emplace_back(fd);
    const RawAnswer answer = client.ask(get("/"));
    EXPECT_EQ(answer.status, 502u);
    EXPECT_EQ(client.ask(get("/ask")).status, 204u);
  }
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_EQ(gateway_.failures().size(), 1u);
  EXPECT_EQ(gateway_.failures()[0], ForwardFailure::kExhausted);
  EXPECT_EQ(told, 1);
}

// Clients ask for a large answer of the gateway's own, and do not read it.
TEST_F(HttpFaults, BoundsTheMemoryOfUnreadReplies) {
  constexpr std::size_t kLarge = std::size_t{32} << 20;
  HttpProxyOptions options = one_thread();
  options.limits.all_reply_bytes = kLarge + kLarge / 2;
  start(options);
  std::atomic<std::size_t> size{2 * kLarge};
  gateway_.on_begin = [&](const ClientRequest& request, const ScriptedGateway::Wake&) -> Step {
    return Reply{200, {}, std::string(request.target == "/small" ? 100 : size.load(), 'x')};
  };
  RawClient alone = connect();
  EXPECT_EQ(alone.ask(get("/")).body.size(), 2 * kLarge) << "one may always be larger";
  size = kLarge;
  std::vector<RawClient> silent;
  for (int i = 0; i < 8; ++i) {
    silent.emplace_back(proxy_->port(), 4096);
    silent.back().send(get("/"));
    ASSERT_TRUE(comes_true([&] { return proxy_->counters().requests == 2u + i; }));
  }
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().refused_replies == 7; }));
  EXPECT_EQ(proxy_->counters().reply_bytes, kLarge);
  EXPECT_EQ(alone.ask(get("/small")).status, 200u);
  const RawAnswer refused = silent.back().take_answer();
  EXPECT_EQ(refused.status, 503u);
  EXPECT_EQ(refused.header("retry-after"), "1");
  silent.front().close();
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().reply_bytes == 0; }));
  EXPECT_EQ(alone.ask(get("/")).body.size(), kLarge);
}

// Workers answer the gateway's questions with more than was asked for, and never end.
TEST_F(HttpFaults, BoundsTheMemoryOfAnswersToQuestions) {
  constexpr std::size_t kLimit = 256 << 10;
  HttpProxyOptions options = one_thread();
  options.limits.all_reply_bytes = kLimit;
  start(options);
  gateway_.on_begin = [this](const ClientRequest& request, const ScriptedGateway::Wake&) -> Step {
    Ask ask;
    ask.address = worker_at(raw_.port());
    ask.timeout = std::chrono::minutes(2);
    ask.max_bytes = request.target == "/little" ? 10'000 : std::size_t{64} << 20;
    return ask;
  };
  gateway_.on_answered = [](const Result<Answer>& answer) {
    return Reply{answer ? 200u : answer.error().code() == ErrorCode::kIo ? 503u : 502u};
  };
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n";
  RawClient first = connect();
  first.send(get("/"));
  RawClient liar = raw_.accept();
  liar.send(head + std::string(100'000, 'x'));
  ASSERT_TRUE(comes_true([&] { return proxy_->counters().answer_bytes >= 100'000; }));
  // What is held counts for all.
  RawClient second = connect();
  second.send(get("/"));
  RawClient other_liar = raw_.accept();
  other_liar.send(head + std::string(200'000, 'x'));
  EXPECT_EQ(second.take_answer().status, 503u);
  EXPECT_LE(proxy_->counters().answer_bytes, kLimit);
  // One that says too much alone has none of it kept.
  RawClient third = connect();
  third.send(get("/little"));
  RawClient last_liar = raw_.accept();
  last_liar.send(head + std::string(10'001, 'x'));
  EXPECT_EQ(third.take_answer().status, 502u);
  // Others go on.
  first.close();
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().answer_bytes == 0; }));
  RawClient fourth = connect();
  fourth.send(get("/"));
  RawClient honest = raw_.accept();
  honest.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + std::string(100'000, 'x'));
  EXPECT_EQ(fourth.take_answer().status, 200u);
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().answer_bytes == 0; }));
}

}  // namespace
}  // namespace ashlar::backend::http
