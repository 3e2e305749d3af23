// `ashlar inspect URL` asks over HTTP: a service with a token, without it, one that is not there, and answers
// in chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "serve/serve_process.h"

namespace ashlar::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kInspectToken = "TOKEN-OF-INSPECT-51";

// What it printed on both streams, and its exit status.
std::pair<std::string, int> inspect_at(int port, const std::string& more = {}) {
  const std::string command = std::string(ASHLAR_PROGRAM) + " inspect --json --timeout 120 " + more +
                              " http://127.0.0.1:" + std::to_string(port) + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string said;
  std::array<char, 4096> some{};
  while (const std::size_t got = std::fread(some.data(), 1, some.size(), pipe)) said.append(some.data(), got);
  const int status = ::pclose(pipe);
  return {said, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

// Says the same to `count` requests, each on a connection that it closes then.
class RepeatingServer {
 public:
  RepeatingServer(std::string words, int count)
      : words_(std::move(words)), thread_([this, count] {
          for (int i = 0; i < count; ++i)
            if (!answer_one()) return;
        }) {}
  ~RepeatingServer() { thread_.join(); }
  int port() const noexcept { return listener_.port(); }

 private:
  // False: nobody came within two minutes.
  bool answer_one() {
    pollfd waiting{.fd = listener_.listener(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, 120'000) <= 0) return false;
    const TestSocket client(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC));
    std::string request;
    std::array<char, 1024> some{};
    while (request.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = recv(client.get(), some.data(), some.size(), 0);
      if (got <= 0) return false;
      request.append(some.data(), static_cast<std::size_t>(got));
    }
    return send(client.get(), words_.data(), words_.size(), MSG_NOSIGNAL) >= 0;
  }

  SilentServer listener_;
  const std::string words_;
  std::thread thread_;
};

TEST(ServeInspect, NeedsTheTokenOfTheService) {
  const ScratchFolder folder;
  std::ofstream(folder.file("token")) << kInspectToken << "\n";
  std::ofstream(folder.file("wrong")) << "another\n";
  const ServeProcess serve({"--worker", "http://127.0.0.1:1,name=absent,model=tiny", "--token-file",
                            folder.file("token"), "--health-interval", "20ms"},
                           folder.file("log"), kInspectToken);

  const auto [right, done] = inspect_at(serve.port(), "--token-file " + folder.file("token"));
  ASSERT_EQ(done, 0) << right;
  const Json seen = Json::parse(right);
  EXPECT_EQ(seen["kind"].text, "running service");
  EXPECT_EQ(seen["path"].text, "http://127.0.0.1:" + std::to_string(serve.port()));
  EXPECT_GT(seen["metric_lines"].number, 0);
  EXPECT_EQ(right.find(kInspectToken), std::string::npos);

  for (const std::string& token : {std::string(), "--token-file " + folder.file("wrong")}) {
    const auto [said, status] = inspect_at(serve.port(), token);
    EXPECT_EQ(status, 1) << said;
    EXPECT_THAT(said, HasSubstr("the token is missing or wrong (status 401)"));
    EXPECT_THAT(said, HasSubstr("--token-file"));
    EXPECT_THAT(said, Not(HasSubstr("running service")));
  }
}

TEST(ServeInspect, SaysThatNothingListens) {
  // A port that is taken, and does not listen.
  const TestSocket taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(taken.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const auto [said, status] = inspect_at(ntohs(address.sin_port));
  EXPECT_EQ(status, 1) << said;
  EXPECT_THAT(said, HasSubstr("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + ": "));
  EXPECT_THAT(said, HasSubstr("refused"));
}

// A server between may send chunks; ashlar serve tells the length.
TEST(ServeInspect, PutsChunksTogether) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string first = "b\r\n{\"workers\":\r\n";
  {
    const RepeatingServer server(head + first + "3\r\n[]}\r\n0\r\n\r\n", 2);
    const auto [said, status] = inspect_at(server.port());
    EXPECT_EQ(status, 0) << said;
    EXPECT_EQ(Json::parse(said)["ranks"].number, 0);
  }
  const RepeatingServer server(head + first, 1);
  const auto [said, status] = inspect_at(server.port());
  EXPECT_EQ(status, 3) << said;
  EXPECT_THAT(said, HasSubstr("cut off"));
}

}  // namespace
}  // namespace ashlar::testing
