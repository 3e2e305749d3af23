// Clients and workers that misbehave, all at once, with the whole program between them: a good client does
// not notice, and memory stays bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "backend/http/raw_client.h"
#include "backend/http/scripted_gateway.h"
#include "serve/serve_process.h"
#include "support/certificates.h"
#include "support/sanitizers.h"

namespace ashlar::testing {
namespace {

using backend::http::as_chunks;
using backend::http::post;
using backend::http::RawAnswer;
using backend::http::RawClient;
using backend::http::RawWorker;
using ::testing::HasSubstr;

const std::string kOk = "HTTP/1.1 200 OK\r\n";

struct Lie {
  std::string answer;
  unsigned status;          // that the client gets
  bool is_complete;         // and whether its answer ends well
  bool is_endless = false;  // the same again until nobody listens
};

const std::vector<Lie>& lies() {
  static const std::vector<Lie> all = {
      {kOk + "Content-Length: 100\r\n\r\nshort", 200, false},
      {kOk + "Content-Length: 2\r\n\r\nlonger than it says", 200, true},
      {"SSH-2.0-OpenSSH_9.2\r\n\r\n", 502, true},
      {kOk + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 200, false},
      {kOk + "Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello", 502, true},
      {kOk + "X: " + std::string(1 << 20, 'a'), 502, true},
      {"", 502, true},
      {"HTTP/1.1 102 Processing\r\n\r\n", 502, true, true},
      {kOk + "Transfer-Encoding: chunked\r\n\r\n" +
           as_chunks(R"({"usage":{"prompt_tokens":-1,"completion_tokens":1e999,
        "prompt_tokens_details":{"cached_tokens":99999999999999999999}}})",
                     7),
       200, true},
  };
  return all;
}

// A worker of the model "liar" that is well, and tells one lie after another. A request for /silent is
// neither read nor answered.
class LyingWorker {
 public:
  LyingWorker() : thread_([this] { run(); }) {}
  ~LyingWorker() {
    stops_ = true;
    RawClient(listener_.port()).close();
    thread_.join();
  }
  std::string text() const {
    return "http://127.0.0.1:" + std::to_string(listener_.port()) + ",name=liar,model=liar";
  }
  const std::atomic<int>& silences() const { return silences_; }

 private:
  void run() {
    std::vector<RawClient> unread;
    std::size_t next = 0;
    for (;;) {
      RawClient side = listener_.accept();
      if (stops_) return;
      const std::string head = side.take_until("\r\n\r\n");
      if (head.starts_with("GET /health") || head.starts_with("GET /v1/models")) {
        const std::string body = R"({"data":[{"id":"liar"}]})";
        side.send(kOk + "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                  body);
      } else if (head.find(" /silent ") != std::string::npos) {
        unread.push_back(std::move(side));
        ++silences_;
      } else {
        const Lie& lie = lies()[next++ % lies().size()];
        while (side.send(lie.answer) && lie.is_endless) continue;
        side.shut();
        side.take_all();  // so that what was sent arrives
      }
    }
  }

  RawWorker listener_;
  std::atomic<bool> stops_{false};
  std::atomic<int> silences_{0};
  std::thread thread_;
};

std::string head_of(const std::string& more) {
  return "POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + more + "\r\n";
}

// Sends until the other side has answered or left.
void send_without_end(RawClient& client, const std::string& piece) {
  pollfd answer{.fd = client.fd(), .events = POLLIN, .revents = 0};
  while (poll(&answer, 1, 0) == 0 && client.send(piece)) continue;
}

std::size_t peak_bytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  std::size_t kib = 0;
  while (status >> word)
    if (word == "VmHWM:") status >> kib;
  return kib * 1024;
}

class ServeFaults : public ::testing::Test {
 public:
  RawClient connect() { return RawClient(static_cast<std::uint16_t>(serve_.port())); }

  // ---- Hostile clients. Connections in `kept_` stay open to the end.

  void send_heads_slowly() {
    for (int i = 0; i < 64; ++i) {
      kept_heads_.push_back(connect());
      if (i % 2 == 0) kept_heads_.back().send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    }
  }
  void send_bodies_slowly() {
    for (int i = 0; i < 20; ++i) {  // more than all bodies may have
      kept_bodies_.push_back(connect());
      kept_bodies_.back().send(head_of("Content-Length: 1000000\r\n") + std::string(900'000, 'x'));
    }
  }
  void send_too_much() {
    for (int i = 0; i < 2; ++i) {
      RawClient head = connect();
      head.send("GET / HTTP/1.1\r\nX: ");
      const std::string piece(64 << 10, 'a');
      for (int n = 0; n < 160 && head.send(piece); ++n) continue;  // 10 MiB
      EXPECT_EQ(head.take_answer().status, 431u);
      RawClient body = connect();
      body.send(head_of("Transfer-Encoding: chunked\r\n"));
      send_without_end(body, "10000\r\n" + std::string(1 << 16, 'b') + "\r\n");
      EXPECT_THAT(body.take_answer().status, ::testing::AnyOf(413u, 503u));
      EXPECT_EQ(connect().ask(head_of("Content-Length: 99999999999\r\n")).status, 413u);
    }
  }
  void send_hostile_json() {
    const std::string deep(60'000, '[');  // as long as a small body may be
    const std::vector<std::string> bodies = {
        "",
        "{",
        "null",
        "\xff\xfe\x00",
        deep,
        R"({"model":"tiny","messages":)" + deep,
        R"({"model":"tiny","prompt":[-1,4294967296,1e999]})",
        R"({"model":"tiny","prompt":")" + std::string(60'000, '\\'),
        R"({"model":"tiny","model":"tiny","prompt":{"a":[{"b":null}]},"max_tokens":-5})",
        R"({"model":"\ud800","instance_id":1e99,"token_ids":["x"],"block_hashes":[18446744073709551616]})"};
    for (const std::string& body : bodies)
      for (const char* target : {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/query",
                                 "/query_by_hash", "/register", "/unregister"}) {
        const unsigned status = connect().ask(post(target, body)).status;
        EXPECT_GE(status, 200u) << target << " " << body.substr(0, 60);
        EXPECT_LT(status, 500u) << target << " " << body.substr(0, 60);
      }
  }
  void leave_streams() {
    for (int i = 0; i < 6; ++i) {
      RawClient client(static_cast<std::uint16_t>(serve_.port()), 4096);
      client.send(
          post("/v1/completions", R"({"model":"tiny","prompt":[1,2,3],"max_tokens":200,"stream":true})"));
      client.take_head();
      if (i % 2 == 0) client.reset();
    }
  }
  void hear_lies() {
    const std::string request = post("/v1/completions", R"({"model":"liar","prompt":[1]})");
    for (const Lie& lie : lies()) {
      const RawAnswer answer = connect().ask(request);
      EXPECT_EQ(answer.status, lie.status) << lie.answer.substr(0, 200);
      EXPECT_EQ(answer.complete, lie.is_complete) << lie.answer.substr(0, 200);
    }
    // The worker stops reading: the body stays here until the client leaves.
    kept_silent_.push_back(connect());
    kept_silent_.back().send(
        post("/silent", R"({"model":"liar","prompt":")" + std::string(60'000, 'z') + "\"}"));
  }
  void watch_engines_fail() {
    const auto stream = [&](const std::string& model) {
      RawClient client = connect();
      client.send(post("/v1/completions",
                       R"({"model":")" + model + R"(","prompt":[1,2,3],"max_tokens":64,"stream":true})"));
      return client;
    };
    EXPECT_FALSE(stream("mortal").take_answer().complete) << "it died in the middle";
    kept_stalled_.push_back(stream("stalled"));
    EXPECT_EQ(kept_stalled_.back().take_head().status, 200u);
  }

  EngineProcess first_{};
  EngineProcess second_{};
  EngineProcess mortal_{{"--model", "mortal", "--die-after", "1"}};
  EngineProcess stalled_{{"--model", "stalled", "--stall-after", "1"}};
  LyingWorker liar_;
  ServeProcess serve_{{"--worker", worker_text(first_, ",name=a"), "--worker",
                       worker_text(second_, ",name=b"), "--worker", worker_text(mortal_, ",name=mortal"),
                       "--worker", worker_text(stalled_, ",name=stalled"), "--worker", liar_.text(),
                       "--max-body-bytes", "1MiB", "--max-all-body-bytes", "8MiB", "--breaker-failures",
                       "1000000"}};
  std::vector<RawClient> kept_heads_;
  std::vector<RawClient> kept_bodies_;
  std::vector<RawClient> kept_silent_;
  std::vector<RawClient> kept_stalled_;
};

TEST(ServeBodies, WhatTheirMemoryHoldsAndRefusesIsShown) {
  const EngineProcess engine;
  ServeProcess serve(
      {"--worker", worker_text(engine), "--max-body-bytes", "1MiB", "--max-all-body-bytes", "256KiB"});
  EXPECT_EQ(serve.metric("ashlar_serve_body_limit_bytes"), 256 * 1024);
  EXPECT_EQ(serve.metric("ashlar_serve_body_bytes"), 0);
  constexpr int kHeld = 200 * 1024;
  RawClient first(static_cast<std::uint16_t>(serve.port()));
  first.send(head_of("Content-Length: " + std::to_string(kHeld) + "\r\n") + std::string(kHeld - 1, 'x'));
  serve.wait_for_metric("ashlar_serve_body_bytes", kHeld);
  RawClient second(static_cast<std::uint16_t>(serve.port()));
  second.send(head_of("Content-Length: 102400\r\n") + std::string(102'400, 'y'));
  EXPECT_EQ(second.take_head().status, 503u);
  EXPECT_EQ(serve.metric("ashlar_serve_bodies_refused_total"), 1);
  first.close();
  serve.wait_for_metric("ashlar_serve_body_bytes", 0);
}

TEST_F(ServeFaults, AGoodClientDoesNotNotice) {
  serve_.wait_for_fleet([](const std::vector<Json>& workers) {
    for (const Json& worker : workers)
      if (worker["up"].number != 1 || worker["ranks"].list.empty() ||
          worker["ranks"].list[0]["state"].text != (worker["name"].text == "liar" ? "FALLBACK" : "EXACT"))
        return false;
    return workers.size() == 5;
  });
  // The memory of a run in which nobody misbehaves.
  HttpClient good = serve_.client();
  int asked = 0;
  const auto ask = [&] {
    const std::string number = std::to_string(++asked % 20);
    const bool streams = asked % 3 == 0;
    const HttpAnswer answer =
        good.post("/v1/chat/completions",
                  R"({"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"Question )" +
                      number + R"( about stone."}])" + (streams ? R"(,"stream":true})" : "}"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_TRUE(answer.is_complete);
    EXPECT_THAT(answer.body, HasSubstr(streams ? "data: [DONE]" : "\"choices\""));
  };
  for (int i = 0; i < 40; ++i) ask();
  const std::size_t before = peak_bytes(serve_.process().pid());

  std::atomic<int> running{0};
  std::vector<std::thread> hostile;
  for (void (ServeFaults::*role)() :
       {&ServeFaults::send_heads_slowly, &ServeFaults::send_bodies_slowly, &ServeFaults::send_too_much,
        &ServeFaults::send_hostile_json, &ServeFaults::leave_streams, &ServeFaults::hear_lies,
        &ServeFaults::watch_engines_fail}) {
    ++running;
    hostile.emplace_back([this, role, &running] {
      (this->*role)();
      --running;
    });
  }
  while (running > 0 && !HasFailure()) ask();
  for (std::thread& one : hostile) one.join();
  // Those that wait still do.
  for (int i = 0; i < 20; ++i) ask();
  while (liar_.silences() == 0) std::this_thread::yield();
  EXPECT_TRUE(serve_.process().is_running());
  const std::size_t after = peak_bytes(serve_.process().pid());
  std::printf("%d good requests; at most %zu MiB, %zu MiB before\n", asked, after >> 20, before >> 20);
  if (!kSanitized) {
    EXPECT_LT(after, before + (std::size_t{48} << 20));
  }
  // Everything of theirs is gone with them.
  for (auto* kept : {&kept_heads_, &kept_bodies_, &kept_silent_, &kept_stalled_}) kept->clear();
  serve_.wait_for_metric("ashlar_serve_running", 0);
  EXPECT_EQ(serve_.process().terminate(), 0);
}

// client --plain--> a router --TLS--> a router --TLS--> an engine
TEST(ServeTls, BothWays) {
  const Certificates certificates;
  EngineProcess engine;
  // The engine's own face in TLS, with a good certificate and with one for another host.
  backend::http::ScriptedGateway gateway;
  gateway.forward_all(static_cast<std::uint16_t>(engine.port()));
  const auto face = [&](const Certificates::Pair& pair) {
    backend::http::HttpProxyOptions options = backend::http::one_thread();
    options.tls = {.certificate = pair.certificate, .key = pair.key};
    return backend::http::start_proxy(gateway, options);
  };
  const auto good = face(certificates.here());
  const auto bad = face(certificates.elsewhere());
  const auto https = [](int port, const std::string& more) {
    return "https://127.0.0.1:" + std::to_string(port) + more;
  };
  const ServeProcess back(
      {"--tls-certificate", certificates.here().certificate, "--tls-key", certificates.here().key,
       "--worker-authorities", certificates.authority(), "--worker",
       https(good->port(), ",name=engine,events=" + engine.events() + ",replay=" + engine.replay())});
  const ServeProcess front({"--worker-authorities", certificates.authority(), "--worker",
                            https(back.port(), ",name=back,model=tiny"), "--worker",
                            https(bad->port(), ",name=bad,model=other"), "--breaker-failures", "1000000",
                            "--health-interval", "20ms"});
  front.wait_for_fleet([](const std::vector<Json>& workers) {
    return workers.size() == 2 && workers[0]["up"].number == 1 && !workers[0]["ranks"].list.empty() &&
           workers[1]["problem"].text.find("not asked") == std::string::npos;
  });
  HttpClient client = front.client();
  // Until the second router knows its engine.
  HttpAnswer answer;
  EXPECT_TRUE(backend::http::comes_true([&] {
    answer = client.post("/v1/completions", R"({"model":"tiny","prompt":"some stone","max_tokens":3})");
    return answer.status == 200;
  })) << answer.body;
  EXPECT_EQ(answer.header("x-ashlar-worker"), "back") << "the nearest router says where it went";
  const HttpAnswer stream = client.post(
      "/v1/completions", R"({"model":"tiny","prompt":"some stone","max_tokens":3,"stream":true})");
  EXPECT_THAT(stream.body, HasSubstr("data: [DONE]"));
  EXPECT_EQ(client.post("/v1/completions", R"({"model":"other","prompt":"x"})").status, 503)
      << "a certificate for another host is not trusted";
  // Whoever speaks plainly to a port of TLS gets nothing.
  HttpClient plain(back.port());
  EXPECT_EQ(plain.get("/health").status, 0);
}

TEST(ServeFiles, ItTakesAsManyAsItMay) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 512;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const ScratchFolder folder;
  ServeProcess serve({"--max-connections", "1000000"}, folder.path() + "/log");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit files{};
  ASSERT_EQ(prlimit(serve.process().pid(), RLIMIT_NOFILE, nullptr, &files), 0);
  EXPECT_EQ(files.rlim_cur, before.rlim_max);
  EXPECT_EQ(serve.process().terminate(), 0);
  std::ifstream log(folder.path() + "/log");
  const std::string text((std::istreambuf_iterator<char>(log)), {});
  const bool is_enough = before.rlim_max == RLIM_INFINITY || before.rlim_max >= 2'000'256;
  EXPECT_EQ(text.find("max_connections = 1000000 needs 2000256") == std::string::npos, is_enough) << text;
}

}  // namespace
}  // namespace ashlar::testing
