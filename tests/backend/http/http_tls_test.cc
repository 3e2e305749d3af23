// TLS on both sides of a proxy. The client speaks plainly to a first proxy, which speaks TLS to a second one,
// which speaks TLS to a worker: so clients here need no TLS of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "backend/http/raw_client.h"
#include "backend/http/scripted_gateway.h"
#include "support/certificates.h"

namespace ashlar::backend::http {
namespace {

using ashlar::testing::Certificates;
using Exchange = std::shared_ptr<HttpExchange>;
using ::testing::HasSubstr;

TlsFiles files_of(const Certificates::Pair& pair) {
  return {.certificate = pair.certificate, .key = pair.key};
}

class HttpTls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { certificates_ = new Certificates(); }
  static void TearDownTestSuite() { delete certificates_; }

  static std::function<Step(const ClientRequest&, ScriptedGateway::Wake)> forward_tls(std::uint16_t port) {
    return [port](const ClientRequest&, const ScriptedGateway::Wake&) {
      Forward out;
      out.address = worker_at(port, true);
      return out;
    };
  }
  // client --plain--> first_ --TLS--> second_ --TLS--> the worker
  void start(std::uint16_t worker_port) {
    second_gateway_.on_begin = forward_tls(worker_port);
    HttpProxyOptions options = one_thread();
    options.tls = files_of(certificates_->here());
    options.worker_authorities = certificates_->authority();
    second_ = start_proxy(second_gateway_, options);
    first_gateway_.on_begin = forward_tls(second_->port());
    options.tls = {};
    first_ = start_proxy(first_gateway_, options);
  }
  static std::unique_ptr<HttpServer> start_tls_worker(
      HttpServer::Handler handler, const TlsFiles& files = files_of(certificates_->here())) {
    HttpServerOptions options;
    options.tls = files;
    return start_worker(std::move(handler), options);
  }

  static Certificates* certificates_;
  ScriptedGateway first_gateway_;
  ScriptedGateway second_gateway_;
  std::unique_ptr<HttpProxy> second_;
  std::unique_ptr<HttpProxy> first_;
};

Certificates* HttpTls::certificates_ = nullptr;

TEST_F(HttpTls, PassesBodiesBothWays) {
  const auto worker = start_tls_worker([](const Exchange& exchange) {
    if (exchange->target() == "/sized")
      return exchange->reply(200, "text/plain", std::string(exchange->body()));
    exchange->begin(200, "text/plain");
    exchange->write(exchange->body());
    exchange->end();
  });
  start(worker->port());
  RawClient client(first_->port());
  for (const std::size_t size : {0, 1, 16'384, 100'000, 5'000'000}) {
    for (const std::string target : {"/sized", "/chunked"}) {
      std::string body(size, 'x');
      for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<char>(i * i / 7);
      const std::string request = post(target, body);
      std::thread sender([&] { client.send(request); });
      const RawAnswer answer = client.take_answer();
      sender.join();
      ASSERT_EQ(answer.status, 200u) << answer.body;
      ASSERT_TRUE(answer.body == body) << size;
    }
  }
  EXPECT_EQ(first_->counters().worker_connections, 1u) << "connections are kept";
  EXPECT_EQ(second_->counters().worker_connections, 1u);
}

TEST_F(HttpTls, StreamsEventsAndNoticesThatTheClientLeaves) {
  std::mutex mutex;
  Exchange open;
  const auto worker = start_tls_worker([&](const Exchange& exchange) {
    {
      const std::lock_guard lock(mutex);
      open = exchange;
    }
    exchange->begin(200, "text/event-stream");
    exchange->write("data: 1\n\n");
  });
  start(worker->port());
  RawClient client(first_->port());
  client.send(get("/"));
  client.take_until("data: 1\n\n");
  const std::lock_guard lock(mutex);
  open->write("data: 2\n\n");
  client.take_until("data: 2\n\n");
  EXPECT_FALSE(open->is_gone());
  client.close();
  EXPECT_TRUE(comes_true([&] { return open->is_gone(); }));
  EXPECT_TRUE(second_gateway_.comes_to_end(PassageEnd::kClientGone));
}

TEST_F(HttpTls, NoticesThatTheWorkerDies) {
  const auto worker = start_tls_worker([&](const Exchange& exchange) {
    exchange->begin(200, "text/plain");
    exchange->write("half");
    exchange->abort();
  });
  start(worker->port());
  RawClient client(first_->port());
  EXPECT_FALSE(client.ask(get("/")).complete);
  EXPECT_TRUE(second_gateway_.comes_to_end(PassageEnd::kWorkerBroke));
  EXPECT_TRUE(first_gateway_.comes_to_end(PassageEnd::kWorkerBroke));
}

TEST_F(HttpTls, RefusesWorkersWithoutAProperCertificate) {
  const auto answer_ok = [](const Exchange& exchange) { exchange->reply(200, "text/plain", "secret"); };
  const auto elsewhere = start_tls_worker(answer_ok, files_of(certificates_->elsewhere()));
  const auto plain = start_worker(answer_ok);
  const auto here = start_tls_worker(answer_ok);
  HttpProxyOptions options;
  options.worker_authorities = certificates_->authority();
  const auto ask = [&](const HttpProxyOptions& with, std::uint16_t port) {
    ScriptedGateway gateway;
    gateway.on_begin = forward_tls(port);
    const auto proxy = start_proxy(gateway, with);
    return RawClient(proxy->port()).ask(get("/")).body;
  };
  EXPECT_EQ(ask(options, here->port()), "secret");
  EXPECT_THAT(ask(options, elsewhere->port()), HasSubstr("IP address mismatch"));
  EXPECT_THAT(ask(options, plain->port()), HasSubstr("no TLS"));
  EXPECT_THAT(ask({}, here->port()), HasSubstr("not accepted")) << "the system does not know the authority";
}

TEST_F(HttpTls, OutlastsClientsThatDoNotSpeakTls) {
  const auto worker =
      start_tls_worker([](const Exchange& exchange) { exchange->reply(200, "text/plain", "fine"); });
  start(worker->port());
  RawClient plain(second_->port());
  plain.send(get("/"));
  plain.take_all();
  RawClient partial(second_->port());
  partial.send("\x16\x03\x01\x02");
  EXPECT_EQ(RawClient(first_->port()).ask(get("/")).body, "fine");
}

TEST_F(HttpTls, SaysWhichFileIsWrong) {
  ScriptedGateway gateway;
  HttpProxyOptions options;
  options.port = 0;
  options.tls = {.certificate = certificates_->here().certificate, .key = certificates_->elsewhere().key};
  const auto mixed = HttpProxy::create(options, gateway);
  ASSERT_FALSE(mixed.has_value());
  EXPECT_EQ(mixed.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(mixed.error().message(), HasSubstr("elsewhere.key"));
  EXPECT_EQ(HttpProxy::check(options).error().message(), mixed.error().message()) << "without a proxy, too";
  options.tls = {};
  options.worker_authorities = "/no/such/file";
  const auto missing = HttpProxy::create(options, gateway);
  ASSERT_FALSE(missing.has_value());
  EXPECT_THAT(missing.error().message(), HasSubstr("/no/such/file"));
  EXPECT_EQ(HttpProxy::check(options).error().message(), missing.error().message());
  options.worker_authorities = {};
  options.tls = {.certificate = certificates_->here().certificate, .key = certificates_->here().key};
  EXPECT_TRUE(HttpProxy::check(options));
}

}  // namespace
}  // namespace ashlar::backend::http
