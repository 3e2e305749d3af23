#include "ashlar/backend/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/http/raw_client.h"

namespace ashlar::backend::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Exchange = std::shared_ptr<HttpExchange>;

std::unique_ptr<HttpServer> start_server(HttpServer::Handler handler, HttpServerOptions options = {}) {
  auto made = HttpServer::create(options, std::move(handler));
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}

// Says what it got.
void echo(const Exchange& exchange) {
  exchange->reply(200, "text/plain",
                  std::string(exchange->method()) + " " + std::string(exchange->target()) + " " +
                      std::string(exchange->body()));
}

// A handler that hands its exchanges to the test.
class Inbox {
 public:
  HttpServer::Handler handler() {
    return [this](Exchange exchange) {
      const std::lock_guard lock(mutex_);
      exchanges_.push_back(std::move(exchange));
    };
  }
  Exchange take() {
    Exchange out;
    EXPECT_TRUE(comes_true([&] {
      const std::lock_guard lock(mutex_);
      if (exchanges_.empty()) return false;
      out = std::move(exchanges_.front());
      exchanges_.erase(exchanges_.begin());
      return true;
    }));
    return out;
  }

 private:
  std::mutex mutex_;
  std::vector<Exchange> exchanges_;
};

TEST(HttpServer, AnswersRequestsOfOneConnectionInOrder) {
  const auto server = start_server(echo);
  RawClient client(server->port());
  EXPECT_EQ(client.ask(get("/a?b=c")).body, "GET /a?b=c ");
  EXPECT_EQ(client.ask(post("/d", "body")).body, "POST /d body");
  client.send(get("/1") + post("/2", "two") + get("/3"));
  EXPECT_EQ(client.take_answer().body, "GET /1 ");
  EXPECT_EQ(client.take_answer().body, "POST /2 two");
  EXPECT_EQ(client.take_answer().body, "GET /3 ");
}

TEST(HttpServer, ReadsRequestsInAnyPieces) {
  const auto server = start_server(echo);
  RawClient client(server->port());
  const std::string text = "POST /x HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" +
                           as_chunks("some body of a request", 5);
  for (const char c : text) client.send({&c, 1});
  EXPECT_EQ(client.take_answer().body, "POST /x some body of a request");
}

TEST(HttpServer, FindsHeadersByAnyCaseOfTheirName) {
  const auto server = start_server([](const Exchange& exchange) {
    exchange->reply(200, "text/plain",
                    std::string(exchange->header("x-Some")) + "|" + std::string(exchange->header("missing")));
  });
  EXPECT_EQ(RawClient(server->port()).ask(get("/", "X-SOME:  value \r\n")).body, "value|");
}

TEST(HttpServer, SendsHeadersOfTheAnswerWithoutControlCharacters) {
  const auto server = start_server([](const Exchange& exchange) {
    exchange->reply(429, "application/json", "{}",
                    {{"Retry-After", "7"}, {"X-Split", "a\r\nX-Evil: b"}, {"Bad Name", "x"}});
  });
  const RawAnswer answer = RawClient(server->port()).ask(get("/"));
  EXPECT_EQ(answer.status, 429u);
  EXPECT_EQ(answer.header("retry-after"), "7");
  EXPECT_EQ(answer.header("content-type"), "application/json");
  EXPECT_EQ(answer.header("x-split"), "a  X-Evil: b");
  EXPECT_FALSE(answer.headers.contains("x-evil"));
  EXPECT_FALSE(answer.headers.contains("bad name"));
}

TEST(HttpServer, StreamsEachWriteAtOnceFromAnotherThread) {
  Inbox inbox;
  const auto server = start_server(inbox.handler());
  RawClient client(server->port());
  client.send(get("/stream"));
  const Exchange exchange = inbox.take();
  exchange->begin(200, "text/event-stream");
  EXPECT_EQ(client.take_head().header("transfer-encoding"), "chunked");
  exchange->write("data: 1\n\n");
  EXPECT_EQ(client.take_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  exchange->write("");
  exchange->write("data: 2\n\n");
  EXPECT_EQ(client.take_until("\n\n\r\n"), "9\r\ndata: 2\n\n\r\n");
  exchange->end();
  EXPECT_EQ(client.take_until("0\r\n\r\n"), "0\r\n\r\n");
  client.send(get("/next"));
  inbox.take()->reply(200, "text/plain", "next");
  EXPECT_EQ(client.take_answer().body, "next");
}

TEST(HttpServer, StreamsToHttp10ByTheEndOfTheConnection) {
  const auto server = start_server([](const Exchange& exchange) {
    exchange->begin(200, "text/plain");
    exchange->write("one ");
    exchange->write("two");
    exchange->end();
  });
  RawClient client(server->port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  const RawAnswer answer = client.take_answer();
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.body, "one two");
  EXPECT_TRUE(answer.complete);
}

TEST(HttpServer, SendsNoBodyWhereThereMustBeNone) {
  const auto server = start_server([](const Exchange& exchange) {
    exchange->reply(exchange->target() == "/204" ? 204 : 200, "text/plain", "body");
  });
  RawClient client(server->port());
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.take_answer(false).header("content-length"), "4");
  client.send(get("/204"));
  EXPECT_FALSE(client.take_answer().headers.contains("content-length"));
  EXPECT_EQ(client.ask(get("/")).body, "body");
}

TEST(HttpServer, TellsTheHandlerThatTheClientHasLeft) {
  Inbox inbox;
  const auto server = start_server(inbox.handler());
  RawClient client(server->port());
  client.send(get("/stream"));
  const Exchange exchange = inbox.take();
  exchange->begin(200, "text/event-stream");
  client.take_head();
  EXPECT_FALSE(exchange->is_gone());
  client.close();
  EXPECT_TRUE(comes_true([&] { return exchange->is_gone(); }));
  exchange->write("dropped");
  exchange->end();
}

TEST(HttpServer, AbortsLikeAProcessThatDies) {
  Inbox inbox;
  const auto server = start_server(inbox.handler());
  RawClient client(server->port());
  client.send(get("/"));
  const Exchange exchange = inbox.take();
  exchange->begin(200, "text/plain");
  exchange->write("half");
  client.take_until("half\r\n");
  exchange->abort();
  EXPECT_TRUE(client.at_end());
  exchange->write("dropped");
}

TEST(HttpServer, AnswersTo100Continue) {
  const auto server = start_server(echo);
  RawClient client(server->port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.take_head(false).status, 100u);
  client.send("body");
  EXPECT_EQ(client.take_answer().body, "POST / body");
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: cake\r\n\r\n");
  EXPECT_EQ(client.take_answer().status, 417u);
}

TEST(HttpServer, RefusesWhatBreaksALimit) {
  HttpServerOptions options;
  options.limits.head_bytes = 1000;
  options.limits.body_bytes = 100;
  const auto server = start_server(echo, options);
  const auto status = [&](const std::string& text) {
    RawClient client(server->port());
    const RawAnswer answer = client.ask(text);
    EXPECT_EQ(answer.header("connection"), "close");
    EXPECT_TRUE(client.at_end());
    return answer.status;
  };
  EXPECT_EQ(status(get("/", "X: " + std::string(1000, 'a') + "\r\n")), 431u);
  EXPECT_EQ(status("GET /" + std::string(10'000, 'a')), 431u);
  EXPECT_EQ(status(post("/", std::string(101, 'a'))), 413u);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                   as_chunks(std::string(101, 'a'), 60)),
            413u);
  EXPECT_EQ(RawClient(server->port()).ask(post("/", std::string(100, 'a'))).status, 200u);
}

TEST(HttpServer, EndsConnectionsThatAreTooSlow) {
  HttpServerOptions hasty;
  hasty.limits.idle_timeout = milliseconds(1);
  const auto impatient = start_server(echo, hasty);
  RawClient idle(impatient->port());
  EXPECT_TRUE(idle.at_end());
  HttpServerOptions options;
  options.limits.head_timeout = milliseconds(1);
  options.limits.body_timeout = milliseconds(1);
  const auto server = start_server(echo, options);
  RawClient head(server->port());
  head.send("GET / HT");
  EXPECT_EQ(head.take_answer().status, 408u);
  RawClient body(server->port());
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
  EXPECT_EQ(body.take_answer().status, 408u);
}

TEST(HttpServer, GivesUpOnAClientThatDoesNotRead) {
  HttpServerOptions options;
  options.limits.write_timeout = milliseconds(100);
  Inbox inbox;
  const auto server = start_server(inbox.handler(), options);
  RawClient client(server->port(), 4096);
  client.send(get("/"));
  const Exchange exchange = inbox.take();
  exchange->reply(200, "text/plain", std::string(64 << 20, 'x'));
  EXPECT_TRUE(comes_true([&] { return exchange->is_gone(); }));
  RawClient other(server->port());
  other.send(get("/"));
  inbox.take()->reply(200, "text/plain", "fine");
  EXPECT_EQ(other.take_answer().body, "fine");
}

// The link of this thread's network goes up or down.
bool set_loopback(bool on) {
  const OwnedFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq link{};
  std::strcpy(link.ifr_name, "lo");
  if (ioctl(socket.get(), SIOCGIFFLAGS, &link) != 0) return false;
  link.ifr_flags = static_cast<short>(on ? link.ifr_flags | IFF_UP : link.ifr_flags & ~IFF_UP);
  return ioctl(socket.get(), SIOCSIFFLAGS, &link) == 0;
}

// Its packets are lost, and so is the end of its connection: nothing tells, but that nothing is acknowledged.
TEST(HttpServer, EndsAStreamWhoseClientHasVanished) {
  bool is_allowed = false;
  std::thread([&] {  // with a network of its own, as the threads that it starts
    is_allowed = unshare(CLONE_NEWNET) == 0 && set_loopback(true);
    if (!is_allowed) return;
    HttpServerOptions options;
    options.limits.write_timeout = milliseconds(300);
    Inbox inbox;
    const auto server = start_server(inbox.handler(), options);
    RawClient client(server->port());
    client.send(get("/"));
    const Exchange exchange = inbox.take();
    exchange->begin(200, "text/event-stream");
    exchange->write("data: 1\n\n");
    client.take_until("data: 1\n\n");
    EXPECT_TRUE(set_loopback(false));
    exchange->write("data: 2\n\n");
    EXPECT_TRUE(comes_true([&] { return exchange->is_gone(); }));
  })
      .join();
  if (!is_allowed) GTEST_SKIP() << "no network of its own here";
}

TEST(HttpServer, RefusesConnectionsBeyondTheLimit) {
  HttpServerOptions options;
  options.limits.connections = 2;
  const auto server = start_server(echo, options);
  RawClient first(server->port());
  RawClient second(server->port());
  EXPECT_EQ(first.ask(get("/1")).status, 200u);
  EXPECT_EQ(second.ask(get("/2")).status, 200u);
  RawClient third(server->port());
  EXPECT_TRUE(third.at_end());
  first.close();
  EXPECT_TRUE(comes_true([&] {
    RawClient again(server->port());
    return again.send(get("/3")) && again.take_head().status == 200;
  }));
}

TEST(HttpServer, DrainsByAnsweringWhatIsOpen) {
  Inbox inbox;
  const auto server = start_server(inbox.handler());
  RawClient idle(server->port());
  RawClient busy(server->port());
  busy.send(get("/"));
  const Exchange exchange = inbox.take();
  exchange->begin(200, "text/plain");
  std::thread drain([&] { server->drain(Clock::real().now() + seconds(100)); });
  EXPECT_TRUE(idle.at_end());
  exchange->write("end");
  exchange->end();
  drain.join();
  const RawAnswer answer = busy.take_answer();
  EXPECT_EQ(answer.body, "end");
  EXPECT_TRUE(busy.at_end());
}

TEST(HttpServer, OutlivedByAnExchange) {
  Inbox inbox;
  auto server = start_server(inbox.handler());
  RawClient client(server->port());
  client.send(post("/x", "kept"));
  const Exchange exchange = inbox.take();
  server.reset();
  EXPECT_TRUE(client.at_end());
  EXPECT_EQ(exchange->body(), "kept");
  exchange->reply(200, "text/plain", "nobody reads this");
}

TEST(HttpServer, SaysWhyItCannotStart) {
  const auto server = start_server(echo, {.threads = 2});
  const auto second = HttpServer::create({.port = server->port(), .threads = 2}, echo);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(HttpServer::create({.threads = 0}, echo).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::create({}, nullptr).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::create({.tls = {"/no/certificate", "/no/key"}}, echo).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(HttpServer::create({.address = "no such address"}, echo).error().code(), ErrorCode::kUnavailable);
}

// Writers of other threads race with clients that come, read or leave.
TEST(HttpServer, ServesManyClientsFromManyThreads) {
  Inbox inbox;
  const auto server = start_server(inbox.handler(), {.threads = 2});
  std::atomic<int> streams{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; ++i) {
    writers.emplace_back([&] {
      while (true) {
        const Exchange exchange = inbox.take();
        if (exchange == nullptr || exchange->target() == "/stop") {
          if (exchange != nullptr) exchange->reply(200, "text/plain", "");
          return;
        }
        exchange->begin(200, "text/plain");
        for (int n = 0; n < 20; ++n) exchange->write(std::to_string(n) + ",");
        exchange->end();
      }
    });
  }
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      for (int n = 0; n < 20; ++n) {
        RawClient client(server->port());
        client.send(get("/"));
        if ((n + i) % 3 == 0) continue;  // leaves
        const RawAnswer answer = client.take_answer();
        if (answer.complete && answer.body.ends_with("18,19,")) ++streams;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(RawClient(server->port()).ask(get("/stop")).status, 200u);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(streams, 53);
}

}  // namespace
}  // namespace ashlar::backend::http
