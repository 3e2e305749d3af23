// ScriptedGateway: a Gateway whose decisions are functions of the test, and which keeps what it was told.
//
// Thread safety: set the functions before the proxy starts; everything else is thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/backend/http/http_proxy.h"
#include "ashlar/backend/http/http_server.h"
#include "ashlar/service/passage.h"
#include "backend/http/raw_client.h"

namespace ashlar::backend::http {

using service::Answer;
using service::Ask;
using service::ClientRequest;
using service::Forward;
using service::ForwardFailure;
using service::HeadVerdict;
using service::HttpAddress;
using service::PassageEnd;
using service::Reply;
using service::Step;
using service::Wait;

inline HttpAddress worker_at(std::uint16_t port, bool tls = false) {
  return {.host = "127.0.0.1", .port = port, .tls = tls};
}
inline Forward forward_to(std::uint16_t port) {
  Forward out;
  out.address = worker_at(port);
  return out;
}

class ScriptedGateway final : public service::Gateway {
 public:
  using Wake = service::Passage::Wake;
  std::function<Step(const ClientRequest&, Wake)> on_begin;
  std::function<std::optional<Reply>(const ClientRequest&)> on_refuse_head =
      [](const ClientRequest&) -> std::optional<Reply> { return std::nullopt; };
  std::function<Step(Result<Answer>)> on_answered = [](const Result<Answer>&) { return Reply{500}; };
  std::function<Step()> on_resumed = [] { return Reply{503}; };
  std::function<Step(ForwardFailure, const std::string&)> on_failed = [](ForwardFailure failure,
                                                                         const std::string& detail) {
    return Reply{502, {}, std::to_string(static_cast<int>(failure)) + " " + detail};
  };
  std::function<HeadVerdict(unsigned, std::span<const service::HeaderView>)> on_head =
      [](unsigned, std::span<const service::HeaderView>) { return HeadVerdict(); };
  std::function<Due()> on_due = [] { return Due(); };
  std::function<void(std::uint64_t, Result<Answer>)> on_told = [](std::uint64_t, const Result<Answer>&) {};

  // Every request goes to this worker.
  void forward_all(std::uint16_t port) {
    on_begin = [port](const ClientRequest&, const Wake&) { return forward_to(port); };
  }

  std::unique_ptr<service::Passage> open() override { return std::make_unique<OnePassage>(*this); }
  std::optional<Reply> refuse_head(const ClientRequest& head) override { return on_refuse_head(head); }
  Due due() override { return on_due(); }
  void told(std::uint64_t number, Result<Answer> answer) override { on_told(number, std::move(answer)); }
  void drain() override { draining = true; }

  // How many passages ended so; of all, how many are open; the bytes of answers that passed.
  int ended(PassageEnd end) const {
    const std::lock_guard lock(mutex_);
    const auto found = ends_.find(end);
    return found == ends_.end() ? 0 : found->second;
  }
  bool comes_to_end(PassageEnd end, int count = 1) const {
    return comes_true([&] { return ended(end) >= count; });
  }
  std::string bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  std::vector<ForwardFailure> failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  std::atomic<bool> draining{false};
  std::atomic<int> opened{0};
  std::atomic<int> destroyed{0};
  std::atomic<bool> keeps_bytes{true};

 private:
  class OnePassage final : public service::Passage {
   public:
    explicit OnePassage(ScriptedGateway& gateway) : gateway_(gateway) { ++gateway_.opened; }
    ~OnePassage() override { ++gateway_.destroyed; }
    Step begin(const ClientRequest& request, Wake wake) override {
      EXPECT_EQ(std::exchange(begun_, true), false);
      return gateway_.on_begin(request, std::move(wake));
    }
    Step answered(Result<Answer> answer) override {
      check_open();
      return gateway_.on_answered(std::move(answer));
    }
    Step resumed() override {
      check_open();
      return gateway_.on_resumed();
    }
    Step failed(ForwardFailure failure, std::string_view detail) override {
      check_open();
      EXPECT_FALSE(has_head_);
      {
        const std::lock_guard lock(gateway_.mutex_);
        gateway_.failures_.push_back(failure);
      }
      return gateway_.on_failed(failure, std::string(detail));
    }
    HeadVerdict head(unsigned status, std::span<const service::HeaderView> headers) override {
      check_open();
      HeadVerdict verdict = gateway_.on_head(status, headers);
      has_head_ = !verdict.instead.has_value();
      return verdict;
    }
    void bytes(std::string_view part) override {
      check_open();
      EXPECT_TRUE(has_head_);
      if (!gateway_.keeps_bytes) return;
      const std::lock_guard lock(gateway_.mutex_);
      gateway_.bytes_.append(part);
    }
    void ended(PassageEnd end) override {
      check_open();
      ended_ = true;
      const std::lock_guard lock(gateway_.mutex_);
      ++gateway_.ends_[end];
    }

   private:
    void check_open() const {
      EXPECT_TRUE(begun_);
      EXPECT_FALSE(ended_);
    }
    ScriptedGateway& gateway_;
    bool begun_ = false;
    bool has_head_ = false;
    bool ended_ = false;
  };

  mutable std::mutex mutex_;
  std::map<PassageEnd, int> ends_;
  std::vector<ForwardFailure> failures_;
  std::string bytes_;
};

inline std::unique_ptr<HttpProxy> start_proxy(ScriptedGateway& gateway, HttpProxyOptions options = {}) {
  options.port = 0;
  auto made = HttpProxy::create(options, gateway);
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}
inline HttpProxyOptions one_thread() {
  HttpProxyOptions out;
  out.threads = 1;
  return out;
}
inline std::unique_ptr<HttpServer> start_worker(HttpServer::Handler handler, HttpServerOptions options = {}) {
  auto made = HttpServer::create(options, std::move(handler));
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}

}  // namespace ashlar::backend::http
