// What a proxy keeps of the bodies of requests: nothing of those it refuses by their head, and never more
// than its budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "backend/http/raw_client.h"
#include "backend/http/scripted_gateway.h"

namespace ashlar::backend::http {
namespace {

using std::chrono::milliseconds;
using Exchange = std::shared_ptr<HttpExchange>;

constexpr std::size_t kKiB = 1024;

// A proxy in front of one worker that says how long the body was.
class HttpBodies : public ::testing::Test {
 protected:
  void start(const HttpLimits& limits = {}) {
    worker_ = start_worker([](const Exchange& exchange) {
      if (exchange->target() == "/break") return exchange->abort();
      exchange->reply(200, "text/plain", std::to_string(exchange->body().size()));
    });
    gateway_.forward_all(worker_->port());
    HttpProxyOptions options;
    options.limits = limits;
    proxy_ = start_proxy(gateway_, options);
  }
  RawClient connect() { return RawClient(proxy_->port()); }
  std::size_t held() const { return proxy_->counters().body_bytes; }
  static std::string head_of(std::size_t bytes, const std::string& more = {}) {
    return "POST / HTTP/1.1\r\nHost: a\r\n" + more + "Content-Length: " + std::to_string(bytes) + "\r\n\r\n";
  }

  std::unique_ptr<HttpServer> worker_;
  ScriptedGateway gateway_;
  std::unique_ptr<HttpProxy> proxy_;
};

TEST_F(HttpBodies, AreNotReadOfRequestsRefusedByTheirHead) {
  gateway_.on_refuse_head = [](const ClientRequest& head) -> std::optional<Reply> {
    EXPECT_TRUE(head.body.empty());
    for (const service::HeaderView& header : head.headers)
      if (header.name == "X-Token") return std::nullopt;
    return Reply{401, {{"X-Why", "token"}}, "no " + std::string(head.target)};
  };
  start();
  // Not one byte of the body is sent, and the answer comes.
  RawClient silent = connect();
  RawAnswer answer = silent.ask(head_of(1000));
  EXPECT_EQ(answer.status, 401u);
  EXPECT_EQ(answer.header("x-why"), "token");
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_EQ(answer.body, "no /");
  // A client that asks first is not told to go on.
  RawClient asking = connect();
  asking.send(head_of(1000, "Expect: 100-continue\r\n"));
  EXPECT_EQ(asking.take_head(false).status, 401u);
  // What comes all the same is not kept.
  RawClient talking = connect();
  talking.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
               as_chunks(std::string(200 * kKiB, 'x'), 1000));
  EXPECT_EQ(talking.take_answer().status, 401u);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(gateway_.opened, 0);
  EXPECT_EQ(proxy_->counters().bad_requests, 0u);
  // Those without a body are answered by their passage.
  EXPECT_EQ(connect().ask(get("/")).body, "0");
  EXPECT_EQ(connect().ask(post("/", "body", "X-Token: 1\r\n")).body, "4");
}

TEST_F(HttpBodies, ShareABudget) {
  HttpLimits limits;
  limits.all_body_bytes = 256 * kKiB;
  start(limits);
  RawClient first = connect();
  first.send(head_of(200 * kKiB) + std::string(199 * kKiB, 'x'));
  ASSERT_TRUE(comes_true([&] { return held() >= 199 * kKiB; }));
  EXPECT_LE(held(), 200 * kKiB);
  RawClient second = connect();
  second.send(head_of(100 * kKiB) + std::string(100 * kKiB, 'y'));
  const RawAnswer refused = second.take_answer();
  EXPECT_EQ(refused.status, 503u);
  EXPECT_EQ(refused.header("retry-after"), "1");
  // Small ones have room of their own, which large ones do not get.
  RawClient third = connect();
  third.send(head_of(70 * kKiB) + std::string(16 * kKiB, 'l'));
  ASSERT_TRUE(comes_true([&] { return held() >= 216 * kKiB; }));
  third.send(std::string(16 * kKiB, 'l'));
  EXPECT_EQ(third.take_answer().status, 503u);
  // Others go on, and so does the one that was there first.
  EXPECT_EQ(connect().ask(post("/", std::string(20 * kKiB, 'z'))).body, std::to_string(20 * kKiB));
  first.send(std::string(kKiB, 'x'));
  EXPECT_EQ(first.take_answer().body, std::to_string(200 * kKiB));
  EXPECT_TRUE(comes_true([&] { return held() == 0; }));
  EXPECT_GE(proxy_->counters().refused_bodies, 1u);
  // One that could never fit is refused by its length.
  EXPECT_EQ(connect().ask(head_of(257 * kKiB)).status, 413u);
}

TEST_F(HttpBodies, HoldNoMoreThanTwiceWhatHasCome) {
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(connect());
    clients.back().send(head_of(64 * kKiB * kKiB) + "x");
  }
  ASSERT_TRUE(comes_true([&] { return held() > 0 && proxy_->counters().open_connections == 8; }));
  EXPECT_LE(held(), 8 * 16 * kKiB);
  clients.clear();
  EXPECT_TRUE(comes_true([&] { return held() == 0; }));
}

// However a request ends, its bytes are given back: on its connection, which may stay open, or with it.
TEST_F(HttpBodies, AreGivenBackHoweverARequestEnds) {
  HttpLimits limits;
  limits.body_bytes = 64 * kKiB;
  limits.all_body_bytes = 128 * kKiB;
  limits.body_timeout = milliseconds(20);
  start(limits);
  gateway_.on_refuse_head = [](const ClientRequest& head) -> std::optional<Reply> {
    if (head.target == "/refused") return Reply{401};
    return std::nullopt;
  };
  gateway_.on_begin = [&](const ClientRequest& request, const ScriptedGateway::Wake&) -> Step {
    if (request.target == "/reply") return Reply{200};
    return forward_to(worker_->port());
  };
  const std::string chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  Random random(3);
  std::set<unsigned> seen;
  std::vector<RawClient> open;
  for (int i = 0; i < 60 || seen.size() < 7; ++i) {
    const std::string body(random.below(40 * kKiB) + 1, 'b');
    RawClient client = connect();
    switch (i % 9) {
      case 0:
        seen.insert(client.ask(post("/", body)).status);
        break;
      case 1:
        seen.insert(client.ask(post("/reply", body)).status);
        break;
      case 2:  // leaves in the middle
        client.send(head_of(body.size() + 1) + body);
        client.close();
        continue;
      case 3:  // is too slow
        client.send(head_of(body.size() + 1) + body);
        seen.insert(client.take_answer().status);
        EXPECT_TRUE(client.at_end());
        break;
      case 4:  // chunks that are none, and too many of them
        seen.insert(client.ask(chunked + "5\r\nhello" + "world").status);
        break;
      case 5:
        seen.insert(client.ask(chunked + as_chunks(std::string(65 * kKiB, 'c'), 1000)).status);
        break;
      case 6:
        seen.insert(client.ask(post("/refused", body)).status);
        break;
      case 7:
        seen.insert(client.ask(post("/break", body)).status);
        break;
      case 8: {  // more than there is room for
        std::vector<RawClient> others;
        for (int n = 0; n < 4; ++n) {
          others.push_back(connect());
          others.back().send(head_of(60 * kKiB) + std::string(59 * kKiB, 'd'));
        }
        for (RawClient& other : others) seen.insert(other.take_answer().status);
        break;
      }
    }
    if (i % 2 == 0) open.push_back(std::move(client));  // keeps its connection
  }
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre(200, 400, 401, 408, 413, 502, 503))
      << "every end was seen";
  EXPECT_TRUE(comes_true([&] { return held() == 0; })) << held();
}

}  // namespace
}  // namespace ashlar::backend::http
