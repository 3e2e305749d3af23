#include "ashlar/backend/http/http_proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/http/raw_client.h"
#include "backend/http/scripted_gateway.h"

namespace ashlar::backend::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Exchange = std::shared_ptr<HttpExchange>;
using ::testing::HasSubstr;
using ::testing::Not;

std::string random_bytes(std::size_t size, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string out(size + 8, '\0');
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.data() + at, &word, 8);
  }
  out.resize(size);
  return out;
}

// Answers with the request's body: sized, or in chunks of 1,000 bytes.
void echo_body(const Exchange& exchange) {
  if (exchange->target() != "/chunked") {
    exchange->reply(200, "application/octet-stream", std::string(exchange->body()));
    return;
  }
  exchange->begin(200, "application/octet-stream");
  const std::string_view body = exchange->body();
  for (std::size_t at = 0; at < body.size(); at += 1000) exchange->write(body.substr(at, 1000));
  exchange->end();
}

// A proxy in front of one worker. Where the steps are functions of a test, the proxy is a local of it, which
// ends before what they use.
class HttpProxyTest : public ::testing::Test {
 protected:
  // The worker is the test's to play.
  void start(const HttpProxyOptions& options = {}) {
    gateway_.forward_all(worker_.port());
    proxy_ = start_proxy(gateway_, options);
  }
  // The worker answers by itself.
  void start_with(HttpServer::Handler handler, const HttpProxyOptions& options = {}) {
    server_ = start_worker(std::move(handler));
    gateway_.forward_all(server_->port());
    proxy_ = start_proxy(gateway_, options);
  }
  RawClient connect() const { return RawClient(proxy_->port()); }

  RawWorker worker_;
  std::unique_ptr<HttpServer> server_;
  ScriptedGateway gateway_;
  std::unique_ptr<HttpProxy> proxy_;
};

TEST_F(HttpProxyTest, PassesBodiesOfAnySizeUnchangedBothWays) {
  start_with(echo_body);
  RawClient client = connect();
  std::uint32_t seed = 0;
  std::string all;
  for (const std::size_t size : {0, 1, 100, 4095, 65'536, 300'001, 5'000'000}) {
    for (const std::string target : {"/sized", "/chunked"}) {
      for (const bool chunked : {false, true}) {
        const std::string body = random_bytes(size, ++seed);
        const std::string request =
            chunked ? "POST " + target + " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                          as_chunks(body, 7777)
                    : post(target, body);
        std::thread sender([&] { client.send(request); });
        const RawAnswer answer = client.take_answer();
        sender.join();
        ASSERT_TRUE(answer.complete) << target << " " << size;
        ASSERT_EQ(answer.body.size(), size);
        ASSERT_TRUE(answer.body == body) << target << " " << size;
        all += body;
      }
    }
  }
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kComplete, 28));
  EXPECT_TRUE(gateway_.bytes() == all) << "the passage sees the bodies without their framing";
  const HttpProxyCounters counters = proxy_->counters();
  EXPECT_EQ(counters.requests, 28u);
  EXPECT_EQ(counters.accepted, 1u);
  EXPECT_EQ(counters.worker_connections, 1u) << "connections to workers are used again";
}

TEST_F(HttpProxyTest, WritesAuthorities) {
  EXPECT_EQ((HttpAddress{.host = "gpu1", .port = 8000}).authority(), "gpu1:8000");
  EXPECT_EQ((HttpAddress{.host = "fe80::1", .port = 80}).authority(), "[fe80::1]:80");
}

TEST_F(HttpProxyTest, PassesTheFramingOfChunksOnAsItIs) {
  start();
  RawClient client = connect();
  client.send(get("/"));
  RawClient side = worker_.accept();
  side.take_until("\r\n\r\n");
  const std::string framed = "005;name=\"x\"\r\nhello\r\n1\r\n!\r\n0\r\nX-Trailer: t\r\n\r\n";
  side.send(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
      "HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n" +
      framed);
  EXPECT_EQ(client.take_head(false).status, 200u) << "1xx is skipped";
  EXPECT_EQ(client.take_bytes(framed.size()), framed);
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kComplete));
  EXPECT_EQ(gateway_.bytes(), "hello!");
}

TEST_F(HttpProxyTest, SendsEventsOnBeforeTheNextIsWritten) {
  start();
  RawClient client = connect();
  client.send(post("/v1/chat/completions", "{}"));
  RawClient side = worker_.accept();
  side.take_until("{}");
  side.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(client.take_head().header("content-type"), "text/event-stream");
  for (int i = 0; i < 5; ++i) {
    const std::string event = "9\r\ndata: " + std::to_string(i) + "\n\n\r\n";
    side.send(event);
    EXPECT_EQ(client.take_bytes(event.size()), event);
  }
  side.send("3\r\nx");  // also within a chunk
  EXPECT_EQ(client.take_bytes(4), "3\r\nx");
  side.send("yz\r\n0\r\n\r\n");
  EXPECT_EQ(client.take_until("0\r\n\r\n"), "yz\r\n0\r\n\r\n");
}

TEST_F(HttpProxyTest, WritesHeadersOfItsOwnHop) {
  RawWorker worker;
  ScriptedGateway gateway;
  gateway.on_begin = [&](const ClientRequest& request, const ScriptedGateway::Wake&) {
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.target, "/path?query=1");
    EXPECT_EQ(request.body, "body");
    EXPECT_EQ(request.headers.size(), 11u);
    Forward out = forward_to(worker.port());
    out.added = {{"X-Request-Id", "7"}, {"X-Split", "a\r\nX-Evil: 1"}, {"X Bad", "1"}};
    out.dropped = {"x-secret"};
    return out;
  };
  gateway.on_head = [](unsigned status, std::span<const service::HeaderView> headers) {
    EXPECT_EQ(status, 201u);
    EXPECT_EQ(headers.size(), 6u);
    HeadVerdict out;
    out.added = {{"x-ashlar-worker", "w\n1"}};
    return out;
  };
  const auto proxy = start_proxy(gateway);
  RawClient client(proxy->port());
  client.send(
      post("/path?query=1", "body",
           "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: p\r\n"
           "TE: trailers\r\nTrailer: x\r\nX-SECRET: s\r\nAuthorization: Bearer b\r\nX-Kept: yes\r\n"));
  RawClient side = worker.accept();
  const std::string request = side.take_until("body");
  EXPECT_EQ(request, "POST /path?query=1 HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(worker.port()) +
                         "\r\nAuthorization: Bearer b\r\nX-Kept: yes\r\nX-Request-Id: 7\r\n"
                         "X-Split: a  X-Evil: 1\r\nContent-Length: 4\r\n\r\nbody");
  side.send(
      "HTTP/1.1 201 Made Up\r\nConnection: X-Own\r\nX-Own: 1\r\nKeep-Alive: 5\r\nX-Kept: yes\r\n"
      "X-Ashlar-State-Reason: not ours\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(client.take_until("ok"),
            "HTTP/1.1 201 Made Up\r\nX-Kept: yes\r\nx-ashlar-worker: w 1\r\nContent-Length: 2\r\n\r\nok");
}

TEST_F(HttpProxyTest, HasNoBodyWhereThereMustBeNone) {
  start(one_thread());
  RawClient client = connect();
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  RawClient side = worker_.accept();
  EXPECT_THAT(side.take_until("\r\n\r\n"), Not(HasSubstr("Content-Length")));
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_EQ(client.take_answer(false).header("content-length"), "1000");
  for (const std::string status : {"204", "304"}) {
    client.send(get("/"));
    side.take_until("\r\n\r\n");
    side.send("HTTP/1.1 " + status + " X\r\nETag: 1\r\n\r\n");
    EXPECT_EQ(client.take_answer().header("etag"), "1");
  }
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kComplete, 3));
}

TEST_F(HttpProxyTest, RepliesByItself) {
  ScriptedGateway gateway;
  gateway.on_begin = [](const ClientRequest& request, const ScriptedGateway::Wake&) {
    return Reply{429, {{"Retry-After", "3"}}, "no " + std::string(request.target)};
  };
  const auto proxy = start_proxy(gateway);
  RawClient client(proxy->port());
  const RawAnswer answer = client.ask(get("/x"));
  EXPECT_EQ(answer.status, 429u);
  EXPECT_EQ(answer.header("retry-after"), "3");
  EXPECT_EQ(answer.body, "no /x");
  EXPECT_EQ(client.ask(get("/y")).body, "no /y");
  client.send("HEAD /z HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.take_answer(false).header("content-length"), "5");
  EXPECT_EQ(client.ask(get("/w")).body, "no /w");
}

TEST_F(HttpProxyTest, AnswersPipelinedRequestsInOrder) {
  start_with(
      [](const Exchange& exchange) { exchange->reply(200, "text/plain", std::string(exchange->target())); });
  RawClient client = connect();
  std::string requests;
  for (int i = 0; i < 200; ++i) requests += get("/" + std::to_string(i));
  std::thread sender([&] { client.send(requests); });
  for (int i = 0; i < 200; ++i) ASSERT_EQ(client.take_answer().body, "/" + std::to_string(i));
  sender.join();
  client.send(get("/last", "Connection: close\r\n"));
  EXPECT_EQ(client.take_answer().header("connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpProxyTest, ServesHttp10) {
  start(one_thread());
  RawClient chunked = connect();
  chunked.send("GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  RawClient side = worker_.accept();
  side.take_until("\r\n\r\n");
  side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunks("some text", 4));
  const RawAnswer answer = chunked.take_answer();
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_EQ(answer.body, "some text");

  RawClient sized = connect();
  sized.send("GET /2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  side.take_until("\r\n\r\n");
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(sized.take_answer().header("connection"), "keep-alive");
  sized.send("GET /3 HTTP/1.0\r\n\r\n");
  side.take_until("\r\n\r\n");
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(sized.take_answer().body, "ok");
  EXPECT_TRUE(sized.at_end());
}

TEST_F(HttpProxyTest, PassesAnAnswerThatEndsWithItsConnection) {
  start();
  RawClient client = connect();
  client.send(get("/"));
  {
    RawClient side = worker_.accept();
    side.take_until("\r\n\r\n");
    side.send("HTTP/1.0 200 OK\r\n\r\nall of it");
  }
  const RawAnswer answer = client.take_answer();
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_EQ(answer.body, "all of it");
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kComplete));
}

TEST_F(HttpProxyTest, EndsTheRequestAtTheWorkerWhenTheClientLeaves) {
  start();
  // Before the answer, within it, and with an error; also with the next request already sent.
  for (const std::string kind : {"silent", "streaming", "reset", "pipelined"}) {
    RawClient client = connect();
    client.send(get("/"));
    RawClient side = worker_.accept();
    side.take_until("\r\n\r\n");
    if (kind != "silent") {
      side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
      client.take_until("x\r\n");
    }
    if (kind == "pipelined") client.send(get("/next"));
    if (kind == "reset") {
      client.reset();
    } else {
      client.close();
    }
    EXPECT_TRUE(side.at_end()) << kind;
  }
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kClientGone, 4));
  EXPECT_EQ(proxy_->counters().client_aborts, 4u);
  EXPECT_TRUE(comes_true([&] { return proxy_->counters().open_connections == 0; }));
  EXPECT_EQ(gateway_.opened, gateway_.destroyed);
}

TEST_F(HttpProxyTest, TriesAnotherWorkerBeforeTheFirstByte) {
  RawWorker refusing;
  const std::uint16_t dead_port = refusing.port();
  refusing.close();
  RawWorker broken;
  RawWorker talking;
  RawWorker good;
  const std::vector<std::uint16_t> ports = {dead_port, broken.port(), talking.port(), good.port()};
  ScriptedGateway gateway;
  std::atomic<std::size_t> attempt{0};
  gateway.on_begin = [&](const ClientRequest&, const ScriptedGateway::Wake&) {
    return forward_to(ports[attempt = 0]);
  };
  gateway.on_failed = [&](ForwardFailure, const std::string& detail) {
    EXPECT_FALSE(detail.empty());
    return forward_to(ports[++attempt]);
  };
  const auto proxy = start_proxy(gateway);
  RawClient client(proxy->port());
  client.send(post("/", "the same body each time"));
  broken.accept().take_until("time");  // and closes
  RawClient liar = talking.accept();
  liar.take_until("time");
  liar.send("SSH-2.0-OpenSSH\r\n");
  EXPECT_TRUE(liar.at_end());
  RawClient side = good.accept();
  side.take_until("the same body each time");
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
  EXPECT_EQ(client.take_answer().body, "good");
  EXPECT_EQ(gateway.failures(),
            (std::vector{ForwardFailure::kConnect, ForwardFailure::kBroken, ForwardFailure::kInvalid}));
}

TEST_F(HttpProxyTest, GoesOnWithAnotherStepInsteadOfAnAnswer) {
  RawWorker busy;
  RawWorker good;
  ScriptedGateway gateway;
  gateway.forward_all(busy.port());
  gateway.on_head = [&](unsigned status, std::span<const service::HeaderView>) {
    HeadVerdict out;
    if (status == 503) out.instead = forward_to(good.port());
    return out;
  };
  const auto proxy = start_proxy(gateway);
  RawClient client(proxy->port());
  client.send(post("/", "body"));
  RawClient first = busy.accept();
  first.take_until("body");
  first.send("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy");
  RawClient second = good.accept();
  second.take_until("body");
  second.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
  EXPECT_EQ(client.take_answer().body, "good");
  EXPECT_TRUE(first.at_end()) << "a dropped answer costs its connection";
  EXPECT_TRUE(gateway.comes_to_end(PassageEnd::kComplete));
  EXPECT_EQ(gateway.bytes(), "good");
}

TEST_F(HttpProxyTest, EndsAbnormallyWhenTheWorkerDies) {
  start();
  const std::string start = "HTTP/1.1 200 OK\r\n";
  int count = 0;
  for (const std::string& answer :
       {start + "Content-Length: 10\r\n\r\nhalf", start + "Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        start + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        start + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnot a chunk"}) {
    RawClient client = connect();
    client.send(get("/"));
    {
      RawClient side = worker_.accept();
      side.take_until("\r\n\r\n");
      side.send(answer);
      client.take_until("half");
    }
    client.take_all();
    EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kWorkerBroke, ++count));
  }
  // An HTTP/1.0 client that could not tell sees an error.
  RawClient old = connect();
  old.send("GET / HTTP/1.0\r\n\r\n");
  {
    RawClient side = worker_.accept();
    side.take_until("\r\n\r\n");
    side.send(start + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    old.take_until("half");
  }
  old.take_all();
  EXPECT_TRUE(old.is_reset());
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kWorkerBroke, ++count));
}

TEST_F(HttpProxyTest, SendsOnceMoreWhereAKeptConnectionHasEnded) {
  start(one_thread());
  RawClient client = connect();
  {
    client.send(get("/1"));
    RawClient side = worker_.accept();
    side.take_until("\r\n\r\n");
    side.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    EXPECT_EQ(client.take_answer().status, 200u);
    client.send(get("/2"));
    EXPECT_THAT(side.take_until("\r\n\r\n"), HasSubstr("/2")) << "the connection was kept";
    // It ends without an answer.
  }
  RawClient side = worker_.accept();
  EXPECT_THAT(side.take_until("\r\n\r\n"), HasSubstr("/2"));
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(client.take_answer().status, 200u);
  EXPECT_THAT(gateway_.failures(), ::testing::IsEmpty()) << "the passage was not told";
  EXPECT_EQ(proxy_->counters().worker_connections, 2u);
}

TEST_F(HttpProxyTest, NeverTakesBytesThatNobodyAskedForAsAnAnswer) {
  start(one_thread());
  RawClient client = connect();
  client.send(get("/1"));
  RawClient side = worker_.accept();
  side.take_until("\r\n\r\n");
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
  side.send(answer + "good" + answer + "evil");
  EXPECT_EQ(client.take_answer().body, "good");
  EXPECT_TRUE(side.at_end());
  client.send(get("/2"));
  RawClient next = worker_.accept();
  next.take_until("\r\n\r\n");
  next.send(answer + "fine");
  EXPECT_EQ(client.take_answer().body, "fine");
}

TEST_F(HttpProxyTest, AsksAWorkerBeforeItForwards) {
  RawWorker worker;
  ScriptedGateway gateway;
  gateway.on_begin = [&](const ClientRequest&, const ScriptedGateway::Wake&) {
    Ask out;
    out.address = worker_at(worker.port());
    out.target = "/tokenize";
    out.headers = {{"Content-Type", "application/json"}};
    out.body = "{\"prompt\":1}";
    out.timeout = std::chrono::minutes(2);
    return out;
  };
  gateway.on_answered = [&](Result<Answer> answer) -> Step {
    if (!answer) return Reply{500, {}, answer.error().message()};
    if (answer->body == "abc") return forward_to(worker.port());
    return Reply{answer->status, {}, answer->body};
  };
  const auto proxy = start_proxy(gateway, one_thread());
  RawClient client(proxy->port());
  client.send(get("/"));
  RawClient side = worker.accept();
  EXPECT_EQ(side.take_until("1}"),
            "POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(worker.port()) +
                "\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
                "{\"prompt\":1}");
  side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunks("abc", 2));
  EXPECT_THAT(side.take_until("\r\n\r\n"), HasSubstr("GET / "));
  side.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall");
  EXPECT_EQ(client.take_answer().body, "all");
  // The client leaves while the worker thinks.
  client.send(get("/"));
  side.take_until("1}");
  client.close();
  EXPECT_TRUE(side.at_end());
  EXPECT_TRUE(gateway.comes_to_end(PassageEnd::kClientGone));
}

TEST_F(HttpProxyTest, WaitsUntilWokenByAnyThreadOrTheTimeComes) {
  ScriptedGateway gateway;
  std::atomic<int> resumed{0};
  std::mutex mutex;
  std::vector<ScriptedGateway::Wake> wakes;
  gateway.on_begin = [&](const ClientRequest& request, ScriptedGateway::Wake wake) -> Step {
    if (request.target == "/at_once") wake();
    const std::lock_guard lock(mutex);
    wakes.push_back(std::move(wake));
    return Wait{request.target == "/late" ? Clock::real().now() + milliseconds(1)
                                          : Clock::real().now() + seconds(1000)};
  };
  gateway.on_resumed = [&] {
    ++resumed;
    return Reply{200, {}, "resumed"};
  };
  const auto proxy = start_proxy(gateway);
  RawClient client(proxy->port());
  EXPECT_EQ(client.ask(get("/late")).body, "resumed");
  EXPECT_EQ(client.ask(get("/at_once")).body, "resumed");
  client.send(get("/"));
  EXPECT_TRUE(comes_true([&] {
    const std::lock_guard lock(mutex);
    return wakes.size() == 3;
  }));
  EXPECT_EQ(resumed, 2);
  wakes[2]();
  EXPECT_EQ(client.take_answer().body, "resumed");
  client.send(get("/"));
  EXPECT_TRUE(comes_true([&] {
    const std::lock_guard lock(mutex);
    return wakes.size() == 4;
  }));
  client.close();
  EXPECT_TRUE(gateway.comes_to_end(PassageEnd::kClientGone));
  for (const ScriptedGateway::Wake& wake : wakes) wake();  // of those that are gone: nothing happens
  EXPECT_EQ(resumed, 3);
}

TEST_F(HttpProxyTest, RunsErrands) {
  const auto worker = start_worker([](const Exchange& exchange) {
    if (exchange->target() == "/health") exchange->reply(200, "text/plain", "well");
  });
  RawWorker closed;
  const std::uint16_t dead_port = closed.port();
  closed.close();
  ScriptedGateway gateway;
  std::atomic<int> rounds{0};
  std::mutex mutex;
  std::map<std::uint64_t, std::string> told;
  gateway.on_due = [&] {
    service::Gateway::Due out;
    out.pause = milliseconds(1);
    if (rounds++ > 0) return out;
    for (std::uint64_t i = 1; i <= 3; ++i) {
      service::Errand errand;
      errand.number = i;
      errand.ask.address = worker_at(i == 2 ? dead_port : worker->port());
      errand.ask.method = "GET";
      errand.ask.target = i == 3 ? "/silent" : "/health";
      errand.ask.timeout = i == 3 ? milliseconds(1) : milliseconds(60'000);
      out.errands.push_back(std::move(errand));
    }
    return out;
  };
  std::map<std::uint64_t, int> times;
  gateway.on_told = [&](std::uint64_t number, const Result<Answer>& answer) {
    const std::lock_guard lock(mutex);
    told[number] = answer ? answer->body : std::string(to_string(answer.error().code()));
    ++times[number];
    throw std::bad_alloc();  // as a gateway without memory would; others go on
  };
  const auto proxy = start_proxy(gateway);
  EXPECT_TRUE(comes_true([&] {
    const std::lock_guard lock(mutex);
    return told.size() == 3 && rounds > 2;
  }));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(told[1], "well");
  EXPECT_EQ(told[2], "unavailable");
  EXPECT_EQ(told[3], "timeout");
  for (const auto& [number, count] : times) EXPECT_EQ(count, 1) << number;
}

TEST_F(HttpProxyTest, DrainsAndThenEndsWhatIsLeft) {
  start();
  RawClient idle = connect();
  RawClient first = connect();
  first.send(get("/"));
  RawClient first_side = worker_.accept();
  first_side.take_until("\r\n\r\n");
  RawClient second = connect();
  second.send(get("/"));
  RawClient second_side = worker_.accept();
  second_side.take_until("\r\n\r\n");
  std::thread drain([&] { proxy_->drain(Clock::real().now() + milliseconds(300)); });
  EXPECT_TRUE(idle.at_end());
  EXPECT_TRUE(gateway_.draining);
  first_side.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  drain.join();
  EXPECT_TRUE(second_side.at_end());
  EXPECT_TRUE(second.at_end());
  EXPECT_EQ(gateway_.ended(PassageEnd::kStopped) + gateway_.ended(PassageEnd::kComplete), 2);
  EXPECT_GE(gateway_.ended(PassageEnd::kStopped), 1);
  EXPECT_EQ(proxy_->counters().open_passages, 0);
  EXPECT_EQ(gateway_.opened, gateway_.destroyed);
}

// A worker may answer as it reads: both ways go on at once.
TEST_F(HttpProxyTest, SendsTheRestOfABodyWhileTheAnswerPasses) {
  start(one_thread());
  const std::string body = random_bytes(24 << 20, 7);
  RawClient client = connect();
  client.send(post("/", body));
  RawClient side = worker_.accept();
  side.take_until("\r\n\r\n");
  side.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
  EXPECT_EQ(client.take_head().status, 200u);
  EXPECT_EQ(client.take_until("hello\r\n"), "5\r\nhello\r\n");
  EXPECT_TRUE(side.take_bytes(body.size()) == body);
  side.send("0\r\n\r\n");
  EXPECT_EQ(client.take_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_TRUE(gateway_.comes_to_end(PassageEnd::kComplete));
  // Both are used again.
  client.send(get("/again"));
  EXPECT_THAT(side.take_until("\r\n\r\n"), HasSubstr("GET /again "));
  // A worker that refuses a body and closes is not sent the rest of it.
  side.send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(client.take_head().status, 204u);
  client.send(post("/", body));
  side.take_until("\r\n\r\n");
  side.send("HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig");
  EXPECT_EQ(client.take_answer().body, "big");
  EXPECT_LT(side.take_all().size(), body.size());
}

TEST_F(HttpProxyTest, SpeaksInItsOwnNameAlone) {
  start(one_thread());
  RawClient client = connect();
  client.send(
      "GET http://some.where?x=1 HTTP/1.1\r\nHost: test\r\nX-Ashlar-Anything: 1\r\nx-ashlar-: 2\r\n"
      "X-Ashla: stays\r\n\r\n");
  RawClient side = worker_.accept();
  const std::string head = side.take_until("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("GET /?x=1 HTTP/1.1\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("shlar")));
  EXPECT_THAT(head, HasSubstr("X-Ashla: stays"));
  side.send("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n");
  const RawAnswer answer = client.take_answer();
  EXPECT_EQ(answer.status, 204u);
  EXPECT_FALSE(answer.headers.contains("content-length"));
}

}  // namespace
}  // namespace ashlar::backend::http
