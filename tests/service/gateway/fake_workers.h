// ServiceUnderTest: a Service whose sockets are the test: it answers the service's own errands, and moves
// passages step by step.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/feed/engine_source.h"
#include "ashlar/service/service.h"

namespace ashlar::service {

inline constexpr HeaderView kJsonHead[] = {{.name = "Content-Type", .value = "application/json"}};

class ServiceUnderTest {
 public:
  explicit ServiceUnderTest(ServeOptions options, std::string models_of_workers = {},
                            EngineSourceFactory sources = {},
                            std::map<std::uint16_t, std::string> models_of_ports = {})
      : models(std::move(models_of_workers)), models_by_port(std::move(models_of_ports)) {
    auto made = Service::create(options, std::move(sources));
    EXPECT_TRUE(made) << made.error();
    service_ = *std::move(made);
    answer_errands();
  }

  // Workers without events, of the model "m", at ports 9001 and up.
  static ServeOptions options_of(std::size_t workers) {
    ServeOptions options;
    for (std::size_t i = 0; i < workers; ++i) {
      WorkerOptions worker;
      worker.name = "w" + std::to_string(i);
      worker.address = {.host = "127.0.0.1", .port = static_cast<std::uint16_t>(9001 + i)};
      worker.model = "m";
      options.workers.push_back(worker);
    }
    options.seed = 1;
    return options;
  }

  // Tells the service that its workers are well, except those in `down`, and what models they have.
  void answer_errands() {
    for (int round = 0; round < 3; ++round) {
      const Gateway::Due due = service_->due();
      for (const Errand& errand : due.errands) {
        if (down.contains(errand.ask.address.port)) {
          service_->told(errand.number, Error(ErrorCode::kUnavailable, "refused"));
        } else if (errand.ask.target == "/health") {
          service_->told(errand.number, Answer{.status = 200, .body = {}});
        } else {
          const auto own = models_by_port.find(errand.ask.address.port);
          service_->told(errand.number, Answer{.status = 200,
                                               .body = own != models_by_port.end() ? own->second
                                                       : models.empty() ? R"({"data":[{"id":"m"}]})"
                                                                        : models});
        }
      }
    }
  }

  // A passage with its request, which must live as long.
  struct Open {
    std::unique_ptr<Passage> passage;
    std::string body;
    std::string target;
    std::vector<std::pair<std::string, std::string>> headers;
    std::shared_ptr<std::atomic<int>> wakes = std::make_shared<std::atomic<int>>(0);
    Step step;
    bool has_head = false;  // of an answer was passed on: nothing else can be tried
  };
  std::unique_ptr<Open> begin(std::string target, std::string body,
                              std::vector<std::pair<std::string, std::string>> headers = {},
                              std::string_view method = "POST") {
    auto open = std::make_unique<Open>();
    open->passage = service_->open();
    open->body = std::move(body);
    open->target = std::move(target);
    open->headers = std::move(headers);
    std::vector<HeaderView> views;
    for (const auto& [name, value] : open->headers) views.push_back({.name = name, .value = value});
    open->step =
        open->passage->begin({.method = method, .target = open->target, .headers = views, .body = open->body},
                             [wakes = open->wakes] { ++*wakes; });
    return open;
  }
  // Goes on with a request that another thread of the service answers.
  void finish(Open& open) {
    while (std::holds_alternative<Wait>(open.step)) {
      while (open.wakes->exchange(0) == 0) std::this_thread::yield();
      open.step = open.passage->resumed();
    }
  }
  Reply get(std::string target) { return reply_to(begin(std::move(target), {}, {}, "GET")); }
  Reply post(std::string target, std::string body) {
    return reply_to(begin(std::move(target), std::move(body)));
  }
  // The answer to a request for the service itself.
  Reply reply_to(std::unique_ptr<Open> open) {
    finish(*open);
    const auto* reply = std::get_if<Reply>(&open->step);
    EXPECT_NE(reply, nullptr) << "it went to a worker";
    return reply == nullptr ? Reply{} : *reply;
  }
  // The value of a metric, with its labels as written on the page; -1: it is not there.
  double metric(const std::string& name) {
    const std::string text = "\n" + service_->metrics().prometheus_text();
    const std::size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  Service& operator*() noexcept { return *service_; }
  Service* operator->() noexcept { return service_.get(); }
  void reset() { service_.reset(); }

  std::map<std::uint16_t, bool> down;                   // ports
  std::string models;                                   // of all workers
  std::map<std::uint16_t, std::string> models_by_port;  // of some

 private:
  std::unique_ptr<Service> service_;
};

inline std::string tokens_body(std::size_t count, int first = 1, std::string_view extra = {}) {
  std::string body = R"({"model":"m","prompt":[)";
  for (std::size_t i = 0; i < count; ++i)
    body += (i == 0 ? "" : ",") + std::to_string(first * 1000 + static_cast<int>(i));
  return body + "]" + std::string(extra) + "}";
}

inline std::string usage_answer(std::uint64_t prompt, std::uint64_t cached) {
  return R"({"id":"x","usage":{"prompt_tokens":)" + std::to_string(prompt) +
         R"(,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cached) +
         "}}}";
}

}  // namespace ashlar::service
