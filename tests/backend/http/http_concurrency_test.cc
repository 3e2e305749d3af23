// Many clients at once, on several threads of the proxy, while other threads wake what waits.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/http/raw_client.h"
#include "backend/http/scripted_gateway.h"

namespace ashlar::backend::http {
namespace {

using Exchange = std::shared_ptr<HttpExchange>;

// Calls what it is given, each twice, on a thread of its own.
class Waker {
 public:
  Waker() : thread_([this] { work(); }) {}
  ~Waker() {
    stop_ = true;
    thread_.join();
  }
  void add(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wakes_.push_back(std::move(wake));
  }

 private:
  void work() {
    while (!stop_) {
      std::vector<std::function<void()>> now;
      {
        const std::lock_guard lock(mutex_);
        now.swap(wakes_);
      }
      for (const auto& wake : now) {
        wake();
        wake();
      }
      if (now.empty()) std::this_thread::yield();
    }
  }
  std::mutex mutex_;
  std::vector<std::function<void()>> wakes_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(HttpConcurrency, EveryPassageOfManyClientsEndsOnce) {
  const auto worker = start_worker(
      [](const Exchange& exchange) {
        if (exchange->target() != "/stream") {
          exchange->reply(200, "text/plain", std::string(exchange->target()) + std::string(exchange->body()));
          return;
        }
        exchange->begin(200, "text/plain");
        exchange->write(exchange->target());
        exchange->write(exchange->body());
        exchange->end();
      },
      {.threads = 2});
  ScriptedGateway gateway;
  gateway.keeps_bytes = false;
  Waker waker;
  gateway.on_begin = [&](const ClientRequest& request, ScriptedGateway::Wake wake) -> Step {
    if (request.target == "/ask") {
      Ask ask;
      ask.address = worker_at(worker->port());
      ask.target = "/ask";
      ask.body = request.body;
      ask.timeout = std::chrono::seconds(100);
      return ask;
    }
    if (request.target != "/wait") return forward_to(worker->port());
    waker.add(std::move(wake));
    return Wait{Clock::real().now() + std::chrono::seconds(100)};
  };
  gateway.on_resumed = [&] { return forward_to(worker->port()); };
  gateway.on_answered = [](Result<Answer> answer) {
    return answer ? Reply{200, {}, answer->body} : Reply{500, {}, answer.error().message()};
  };
  HttpProxyOptions options;
  options.threads = 3;
  const auto proxy = start_proxy(gateway, options);

  const std::vector<std::string> targets = {"/sized", "/stream", "/ask", "/wait"};
  std::atomic<int> answered{0};
  std::atomic<int> left{0};
  std::vector<std::thread> clients;
  for (unsigned i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(i);
      RawClient client(proxy->port());
      for (int n = 0; n < 100; ++n) {
        const std::string& target = targets[random() % targets.size()];
        const std::string body = "/" + std::to_string(i) + "/" + std::to_string(n);
        client.send(post(target, body));
        if (random() % 5 == 0) {  // leaves
          ++left;
          client = RawClient(proxy->port());
          continue;
        }
        const RawAnswer answer = client.take_answer();
        ASSERT_EQ(answer.status, 200u);
        ASSERT_EQ(answer.body, target + body);
        ++answered;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered + left, 400);
  EXPECT_TRUE(comes_true([&] { return proxy->counters().open_connections == 0; }));
  EXPECT_EQ(proxy->counters().open_passages, 0);
  EXPECT_EQ(gateway.opened, gateway.destroyed);
  const int complete = gateway.ended(PassageEnd::kComplete);
  const int gone = gateway.ended(PassageEnd::kClientGone);
  EXPECT_EQ(complete + gone, gateway.opened);
  EXPECT_GE(complete, answered);
}

// A proxy that is destroyed under load ends everything, and wakes that come later touch nothing.
TEST(HttpConcurrency, StopsUnderLoad) {
  const auto worker =
      start_worker([](const Exchange& exchange) { exchange->reply(200, "text/plain", "fine"); });
  for (int round = 0; round < 5; ++round) {
    ScriptedGateway gateway;
    gateway.keeps_bytes = false;
    Waker waker;
    gateway.on_begin = [&](const ClientRequest& request, ScriptedGateway::Wake wake) -> Step {
      if (request.target == "/") return forward_to(worker->port());
      waker.add(std::move(wake));
      return Wait{Clock::real().now() + std::chrono::seconds(100)};
    };
    gateway.on_resumed = [&] { return forward_to(worker->port()); };
    auto proxy = start_proxy(gateway);
    const std::uint16_t port = proxy->port();
    std::atomic<int> answered{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 3; ++i) {
      clients.emplace_back([&, i, client = RawClient(port)]() mutable {
        while (client.ask(get(i == 0 ? "/" : "/wait")).complete) ++answered;
      });
    }
    EXPECT_TRUE(comes_true([&] { return answered >= 20; }));
    proxy.reset();
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(gateway.opened, gateway.destroyed);
  }
}

}  // namespace
}  // namespace ashlar::backend::http
