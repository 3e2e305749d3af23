// ServeProcess: `ashlar serve` in a process of its own, in front of tiny engines.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/http_client.h"
#include "support/scratch_folder.h"
#include "support/server.h"
#include "support/small_json.h"
#include "tiny_engine/engine_process.h"

namespace ashlar::testing {

using tiny_engine::testing::EngineProcess;

inline std::string worker_text(const EngineProcess& engine, const std::string& more = {}) {
  return engine.url() + ",events=" + engine.events() + ",replay=" + engine.replay() + more;
}

class ServeProcess {
 public:
  // With `log` its standard error goes to that file. Other requests than those of client() bring the token.
  explicit ServeProcess(const std::vector<std::string>& options, const std::string& log = {},
                        const std::string& token = {}) {
    std::vector<std::string> command;
    if (!log.empty()) command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>" + log};
    command.insert(command.end(), {ASHLAR_PROGRAM, "serve", "--port", "0"});
    if (log.empty()) command.insert(command.end(), {"--log-level", "error"});
    command.insert(command.end(), options.begin(), options.end());
    if (!token.empty()) headers_ = {{"x-ashlar-token", token}};
    process_ = std::make_unique<ServerProcess>(std::move(command));
    while (const auto line = process_->read_line()) {
      const std::size_t colon = line->find("://127.0.0.1:");
      if (line->find("listening on ") != 0 || colon == std::string::npos) continue;
      port_ = std::stoi(line->substr(colon + 13));
      break;
    }
    EXPECT_NE(port_, 0) << "ashlar serve does not start";
  }

  int port() const noexcept { return port_; }
  HttpClient client() const { return HttpClient(port_); }
  ServerProcess& process() noexcept { return *process_; }
  void signal(int number) { ::kill(process_->pid(), number); }

  Json get(const std::string& target) const {
    HttpClient asking(port_);
    const HttpAnswer answer = asking.request("GET", target, {}, headers_);
    EXPECT_EQ(answer.status, 200) << target << ": " << answer.body;
    return Json::parse(answer.body);
  }
  // Waits, as long as it takes, until the fleet is as `is_so` says.
  template <class IsSo>
  void wait_for_fleet(const IsSo& is_so) const {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    Json fleet;
    while (std::chrono::steady_clock::now() < last) {
      fleet = get("/fleet");
      if (is_so(fleet["workers"].list)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    HttpClient asking(port_);
    FAIL() << "the fleet never was so: " << asking.request("GET", "/fleet", {}, headers_).body;
  }
  // Until every rank of every worker is up and EXACT.
  void wait_until_exact() const {
    wait_for_fleet([](const std::vector<Json>& workers) {
      for (const Json& worker : workers) {
        if (worker["up"].number != 1) return false;
        for (const Json& rank : worker["ranks"].list)
          if (rank["state"].text != "EXACT") return false;
      }
      return !workers.empty();
    });
  }
  // The same, and every rank of these engines is heard: what is published before the engine's socket knows of
  // its listener shows only with the next message, and a claim may be wrong until then.
  void wait_until_heard(std::initializer_list<const EngineProcess*> engines) const {
    wait_until_exact();
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    const Json fleet = get("/fleet");
    for (const EngineProcess* engine : engines)
      for (const Json& worker : fleet["workers"].list)
        for (const Json& rank : worker["ranks"].list) {
          const std::string endpoint = rank["events"].text;
          const auto number = static_cast<int>(rank["dp_rank"].number);
          if (endpoint != engine->events(number)) continue;
          HttpClient direct(engine->port());
          int tries = 0;
          while (messages_of(endpoint) <= rank["messages"].number &&
                 std::chrono::steady_clock::now() < last) {
            std::string tokens = std::to_string(1 + tries++ % 200);  // of a block that is new
            for (int i = 0; i < 5; ++i) tokens += "," + tokens;
            const HttpAnswer answer = direct.request(
                "POST", "/v1/completions", R"({"model":"tiny","max_tokens":1,"prompt":[)" + tokens + "]}",
                {{"x-data-parallel-rank", std::to_string(number)}});
            EXPECT_EQ(answer.status, 200) << answer.body;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
          EXPECT_GT(messages_of(endpoint), rank["messages"].number) << endpoint;
        }
    wait_until_exact();
  }
  // The receipt of an answer, once the request is over: the client may see its end first.
  Json receipt(const HttpAnswer& answer) const {
    Json receipt;
    while (receipt["outcome"].kind != Json::Kind::kMap && !::testing::Test::HasFailure())
      receipt = get("/decisions/" + answer.header("x-ashlar-decision-id"));
    return receipt;
  }
  // Requests are counted a moment after their clients have the answer, and are over as late.
  void wait_for_metric(const std::string& name, double value) const {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    double seen = metric(name);
    for (; seen != value && std::chrono::steady_clock::now() < last; seen = metric(name))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(seen, value) << name;
  }
  double metric(const std::string& name) const {
    HttpClient asking(port_);
    const std::string text = "\n" + asking.request("GET", "/metrics", {}, headers_).body;
    const std::size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

 private:
  double messages_of(const std::string& endpoint) const {
    const Json fleet = get("/fleet");
    for (const Json& worker : fleet["workers"].list)
      for (const Json& rank : worker["ranks"].list)
        if (rank["events"].text == endpoint) return rank["messages"].number;
    return -1;
  }

  std::unique_ptr<ServerProcess> process_;
  int port_ = 0;
  HttpClient::Headers headers_;
};

}  // namespace ashlar::testing
