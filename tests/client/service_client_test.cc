// ServiceClient against servers that answer, hang, lie and die.
#include "ashlar/client/service_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/server.h"

namespace ashlar::client {
namespace {

using ::testing::HasSubstr;

// Answers each connection with `words`, after the head of a request; then closes it.
class WordsServer {
 public:
  explicit WordsServer(std::string words) : words_(std::move(words)), thread_([this] { run(); }) {}
  ~WordsServer() {
    shutdown(listener_.listener(), SHUT_RDWR);  // wakes accept()
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(listener_.port()); }
  // What the last request said; after the client has its answer.
  std::string heard() const {
    while (!said_.load()) std::this_thread::yield();
    return heard_;
  }

 private:
  void run() {
    for (;;) {
      const TestSocket client(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client.get() < 0) return;
      std::string request;
      char piece[4096];
      while (!is_whole(request)) {
        const ssize_t got = recv(client.get(), piece, sizeof piece, 0);
        if (got <= 0) break;
        request.append(piece, static_cast<std::size_t>(got));
      }
      heard_ = request;
      said_.store(true);
      (void)!send(client.get(), words_.data(), words_.size(), MSG_NOSIGNAL);
      shutdown(client.get(), SHUT_WR);
      while (recv(client.get(), piece, sizeof piece, 0) > 0) {
      }
    }
  }
  static bool is_whole(const std::string& request) {
    const std::size_t end = request.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const std::size_t length = request.find("content-length: ");
    return length == std::string::npos ||
           request.size() - end - 4 >= std::stoul(request.substr(length + 16, 8));
  }

  SilentServer listener_;
  std::string words_;
  std::string heard_;
  std::atomic<bool> said_{false};
  std::thread thread_;
};

ServiceClient client_of(const std::string& url, std::chrono::milliseconds timeout = std::chrono::minutes(2),
                        std::size_t max_bytes = std::size_t{1} << 20) {
  return ServiceClient::create({.url = url, .timeout = timeout, .max_bytes = max_bytes}).value();
}

std::string answer_of(const std::string& body, const std::string& status = "200 OK") {
  return "HTTP/1.1 " + status + "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(ServiceClient, RefusesAddressesThatAreNone) {
  for (const auto& [url, code, said] : std::vector<std::tuple<std::string, ErrorCode, std::string>>{
           {"https://h:1", ErrorCode::kUnsupported, "plain HTTP"},
           {"http://user:pass@h:1", ErrorCode::kInvalidArgument, "token"},
           {"http://h:1/path", ErrorCode::kInvalidArgument, "without a path"},
           {"", ErrorCode::kInvalidArgument, "HOST:PORT"},
           {"http://h:0", ErrorCode::kInvalidArgument, "port"},
           {"http://h:99999", ErrorCode::kInvalidArgument, "port"},
           {"http://a b:80", ErrorCode::kInvalidArgument, "host"}}) {
    const auto made = ServiceClient::create({.url = url});
    ASSERT_FALSE(made) << url;
    EXPECT_EQ(made.error().code(), code) << url;
    EXPECT_THAT(made.error().message(), HasSubstr(said)) << url;
  }
  EXPECT_FALSE(ServiceClient::create({.url = "http://h:1", .token = "a\r\nb"}));
  EXPECT_FALSE(ServiceClient::create({.url = "http://h:1", .timeout = std::chrono::milliseconds(0)}));
  EXPECT_FALSE(ServiceClient::create({.url = "http://h:1", .max_bytes = 0}));
  EXPECT_EQ(client_of("http://[::1]:80/").shown(), "http://[::1]:80");
}

TEST(ServiceClient, SendsWhatWasAskedAndReadsTheAnswer) {
  const WordsServer server(answer_of("well"));
  const auto client = ServiceClient::create({.url = server.url(), .token = "secret"}).value();
  const auto answer = client.request("POST", "/somewhere", "{}");
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "well");
  EXPECT_THAT(server.heard(), HasSubstr("POST /somewhere HTTP/1.1\r\n"));
  EXPECT_THAT(server.heard(), HasSubstr("x-ashlar-token: secret\r\n"));
  EXPECT_THAT(server.heard(), HasSubstr("content-length: 2\r\n"));
  EXPECT_TRUE(client.check_health());
  for (const auto& [method, target] : {std::pair("get", "/"), {"", "/"}, {"GET", "x"}, {"GET", "/a b"}})
    EXPECT_EQ(client.request(method, target).error().code(), ErrorCode::kInvalidArgument) << method << target;
}

TEST(ServiceClient, ReadsChunksAndAnswersBeforeTheAnswer) {
  const WordsServer server(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client_of(server.url()).get("/").value(), "abcde");
}

TEST(ServiceClient, ReadsToTheEndOfTheConnectionWithoutALength) {
  const WordsServer server("HTTP/1.0 200 OK\r\n\r\nall of it");
  EXPECT_EQ(client_of(server.url()).get("/").value(), "all of it");
}

TEST(ServiceClient, TellsStatusesApart) {
  for (const auto& [status, code] :
       std::vector<std::pair<std::string, ErrorCode>>{{"401 No", ErrorCode::kInvalidArgument},
                                                      {"404 No", ErrorCode::kNotFound},
                                                      {"400 No", ErrorCode::kInvalidArgument},
                                                      {"429 No", ErrorCode::kUnavailable},
                                                      {"503 No", ErrorCode::kUnavailable}}) {
    const WordsServer server(answer_of("because", status));
    EXPECT_EQ(client_of(server.url()).get("/x").error().code(), code) << status;
  }
  const WordsServer busy(answer_of("", "503 No worker"));
  EXPECT_EQ(client_of(busy.url()).is_ready().value(), false);
  const WordsServer up(answer_of("", "200 OK"));
  EXPECT_EQ(client_of(up.url()).is_ready().value(), true);
}

TEST(ServiceClient, RefusesAnswersThatAreNone) {
  for (const std::string& words :
       {std::string(""), std::string("SSH-2.0-x\r\n\r\n"), std::string("HTTP/1.1\r\n\r\n"),
        std::string("HTTP/1.1 abc OK\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"),
        std::string("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx"),
        std::string("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"),
        std::string("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n0\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nno end of head")}) {
    const WordsServer server(words);
    const auto answer = client_of(server.url()).request("GET", "/");
    ASSERT_FALSE(answer) << words;
    EXPECT_EQ(answer.error().code(), ErrorCode::kCorruption) << words << answer.error();
  }
}

TEST(ServiceClient, KeepsNoMoreBytesThanAllowed) {
  const std::string much(100'000, 'x');
  for (const std::string& words : {answer_of(much), "HTTP/1.1 200 OK\r\n\r\n" + much,
                                   std::string("HTTP/1.1 200 OK\r\ncontent-length: "
                                               "99999999999\r\n\r\n"),
                                   "HTTP/1.1 200 OK\r\nx: " + much + "\r\n\r\n"}) {
    const WordsServer server(words);
    const auto answer = client_of(server.url(), std::chrono::minutes(2), 10'000).request("GET", "/");
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::kCapacity) << answer.error();
  }
}

TEST(ServiceClient, EndsInTimeWhateverTheServerDoes) {
  const auto soon = std::chrono::milliseconds(30);
  const BlackholeServer silent;
  const BlackholeServer half("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
  const BlackholeServer no_head("HTTP/1.1 200");
  for (const int port : {silent.port(), half.port(), no_head.port()}) {
    const auto answer = client_of("http://127.0.0.1:" + std::to_string(port), soon).request("GET", "/");
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::kTimeout) << answer.error();
  }
}

TEST(ServiceClient, FindsNobody) {
  // A port that is taken, and where nobody listens.
  const TestSocket taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(taken.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const auto answer = client_of("http://127.0.0.1:" + port).request("GET", "/");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(answer.error().message(), HasSubstr("refused"));
}

// An answer without a length ends with the connection, unless that breaks.
TEST(ServiceClient, ABrokenConnectionIsNoEnd) {
  const SilentServer listener;
  std::thread breaks([&listener] {
    const TestSocket client(accept4(listener.listener(), nullptr, nullptr, SOCK_CLOEXEC));
    char byte = 0;
    EXPECT_EQ(recv(client.get(), &byte, 1, 0), 1);
    const std::string words = "HTTP/1.1 200 OK\r\n\r\nhalf of it";
    EXPECT_EQ(send(client.get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // close() resets the connection
    EXPECT_EQ(setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  });
  const auto answer = client_of("http://127.0.0.1:" + std::to_string(listener.port())).request("GET", "/");
  breaks.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kCorruption) << answer.error();
  EXPECT_THAT(answer.error().message(), HasSubstr("cut off"));
}

TEST(ServiceClient, AsksForAPrefix) {
  const WordsServer server(
      answer_of(R"({"scores":{"1":{"0":32}},"frequencies":[1,2],"instances":{)"
                R"("1":{"longest_matched":48,"gpu":32,"dp":{"0":32},"cpu":40,"disk":48},)"
                R"("4503599627370496":{"longest_matched":16,"gpu":16,"dp":{},"cpu":16,"disk":16}}})"));
  const std::vector<tokens::Token> prompt = {tokens::Token(1), tokens::Token(4'000'000'000)};
  const auto scores =
      client_of(server.url()).query({.model = "a \"model\"\n", .tokens = prompt, .cache_salt = "s"});
  ASSERT_TRUE(scores) << scores.error();
  EXPECT_EQ(*scores,
            (std::vector<RouteScore>{
                {.instance = 1, .longest = 48, .device = 32, .host = 40, .disk = 48},
                {.instance = std::uint64_t{1} << 52, .longest = 16, .device = 16, .host = 16, .disk = 16}}));
  EXPECT_THAT(server.heard(),
              HasSubstr(R"({"model_name":"a \"model\"\u000a","token_ids":[1,4000000000],"cache_salt":"s"})"));
}

TEST(ServiceClient, RefusesScoresInAnotherForm) {
  for (const char* const body :
       {"", "[]", "{}", R"({"instances":[]})", R"({"instances":{"one":{}}})", R"({"instances":{"1":3}})",
        R"({"instances":{"1":{"gpu":-1}}})", R"({"instances":{}} more)", R"({"instances":{"1":{"gpu":1)"}) {
    const WordsServer server(answer_of(body));
    const auto scores = client_of(server.url()).query({.model = "m", .tokens = {}});
    ASSERT_FALSE(scores) << body;
    EXPECT_EQ(scores.error().code(), ErrorCode::kCorruption) << body;
  }
}

TEST(ServiceClient, EscapesWhatItPutsIntoTargets) {
  const WordsServer server(answer_of("{}"));
  EXPECT_TRUE(client_of(server.url()).workers("a/b c&d"));
  EXPECT_THAT(server.heard(), HasSubstr("GET /workers?model_name=a%2Fb%20c%26d HTTP/1.1"));
  EXPECT_FALSE(client_of(server.url()).decision(""));
}

}  // namespace
}  // namespace ashlar::client
