// Servers for tests: programs that are started on loopback and killed by their pid, and sockets that
// misbehave.
//
// Nothing outlives the test: destructors kill, and the kernel does where the test itself is killed.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ashlar {

// A descriptor that closes itself.
class TestSocket {
 public:
  explicit TestSocket(int fd = -1) noexcept : fd_(fd) {}
  TestSocket(TestSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TestSocket& operator=(TestSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~TestSocket() { close(); }
  int get() const noexcept { return fd_; }
  void close() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Listens on a port of its own and says nothing: the kernel accepts, nobody answers.
class SilentServer {
 public:
  explicit SilentServer(int backlog = 128) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    const bool good = bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                      listen(socket_.get(), backlog) == 0 &&
                      getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
    EXPECT_TRUE(good) << "no port on loopback: errno " << errno;
    port_ = ntohs(address.sin_port);
  }
  int port() const noexcept { return port_; }
  int listener() const noexcept { return socket_.get(); }

 private:
  TestSocket socket_;
  int port_ = 0;
};

// Takes connections and what they say, and never answers; or says `words` to the first thing that it hears,
// and no more.
class BlackholeServer {
 public:
  explicit BlackholeServer(std::string words = {}) : words_(std::move(words)), thread_([this] { run(); }) {}
  ~BlackholeServer() {
    stop_.store(true);
    thread_.join();
  }
  int port() const noexcept { return listener_.port(); }
  // How often somebody said something; those who wait on it are told.
  const std::atomic<std::size_t>& heard() const noexcept { return heard_; }

 private:
  void run() {
    std::vector<TestSocket> clients;
    std::vector<char> bytes(1 << 16);
    while (!stop_.load()) {
      std::vector<pollfd> watched{{.fd = listener_.listener(), .events = POLLIN, .revents = 0}};
      for (const TestSocket& client : clients)
        watched.push_back({.fd = client.get(), .events = POLLIN, .revents = 0});
      if (poll(watched.data(), watched.size(), 20) <= 0) continue;
      for (std::size_t i = 0; i < clients.size(); ++i) {
        if (watched[i + 1].revents == 0) continue;
        if (recv(clients[i].get(), bytes.data(), bytes.size(), 0) <= 0) {
          clients[i].close();
          continue;
        }
        const std::string words = std::exchange(words_, "");
        if (!words.empty()) (void)send(clients[i].get(), words.data(), words.size(), MSG_NOSIGNAL);
        heard_.fetch_add(1);
        heard_.notify_all();
      }
      if (watched[0].revents == 0) continue;
      clients.emplace_back(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC));
    }
  }

  SilentServer listener_;
  std::string words_;
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> heard_{0};
  std::thread thread_;
};

inline bool can_listen(int port) {
  const TestSocket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// One that nobody listens on just now. Below those that the kernel gives to whoever asks for any: no
// connection and no other test takes it while its server is away, and who connects to it in vain does not
// meet itself.
inline int free_port() {
  constexpr int kFirst = 10'000;
  int end = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> end;
  static std::minstd_rand random(std::random_device{}());
  for (int i = 0; i < 1000 && end > kFirst + 1000; ++i) {
    const int port = kFirst + static_cast<int>(random() % static_cast<unsigned>(end - kFirst));
    if (can_listen(port)) return port;
  }
  return SilentServer().port();
}

inline TestSocket connect_to(int port) {
  TestSocket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) socket.close();
  return socket;
}

// A program of the PATH; empty where there is none.
inline std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  std::string folders = path == nullptr ? "" : path;
  folders += ":/usr/bin:/usr/sbin:/usr/local/bin";
  for (std::size_t start = 0; start <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', start), folders.size());
    const std::string candidate = folders.substr(start, end - start) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    start = end + 1;
  }
  return {};
}

// Machines that were set up by hand may lack a server; others must have it.
inline bool servers_may_be_missing() {
  const char* bootstrap = std::getenv("ASHLAR_BOOTSTRAP");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  return bootstrap != nullptr && std::string(bootstrap) == "skip";
}

// For the body of a test or of SetUp(): fails, or skips where servers may be missing.
#define ASHLAR_NEEDS_SERVER(there, what)                                                                  \
  do {                                                                                                    \
    if (!(there)) {                                                                                       \
      if (::ashlar::servers_may_be_missing()) GTEST_SKIP() << (what);                                     \
      FAIL() << (what) << "; scripts/bootstrap test installs it (ASHLAR_BOOTSTRAP=skip skips this test)"; \
    }                                                                                                     \
  } while (false)

// A program, from start to kill. Start it on the thread that outlives it: the kernel kills it when that
// thread ends.
class ServerProcess {
 public:
  // `name` is the program's own idea of its name; the first word of the command where there is none.
  explicit ServerProcess(std::vector<std::string> command, std::string name = {}) {
    const std::string program = command.at(0);
    if (!name.empty()) command[0] = std::move(name);
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    output_ = TestSocket(ends[0]);
    TestSocket writer(ends[1]);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      dup2(writer.get(), STDOUT_FILENO);
      execv(program.c_str(), arguments.data());
      _exit(127);
    }
    EXPECT_GT(pid_, 0) << "fork: errno " << errno;
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { kill(); }

  pid_t pid() const noexcept { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }
  // Asks it to end. Its status; -1 where it did not end by itself within two minutes.
  int terminate() {
    if (pid_ <= 0) return -1;
    ::kill(pid_, SIGTERM);
    for (const auto start = now(); now() < start + kPatience;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return -1;
  }
  bool is_running() {
    if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    return pid_ > 0;
  }
  // Of its standard output; none when it ended, or said nothing for two minutes.
  std::optional<std::string> read_line() {
    std::string line;
    pollfd about{.fd = output_.get(), .events = POLLIN, .revents = 0};
    while (poll(&about, 1, kPatience.count()) > 0) {
      char c = 0;
      if (read(output_.get(), &c, 1) != 1) return std::nullopt;
      if (c == '\n') return line;
      line += c;
    }
    return std::nullopt;
  }
  // Whether a line of its standard output has that in it; those before are skipped.
  bool says(const std::string& text) {
    for (std::optional<std::string> line = read_line(); line; line = read_line())
      if (line->find(text) != std::string::npos) return true;
    return false;
  }
  // Whether somebody accepts on that port within two minutes.
  bool wait_for(int port) {
    for (const auto start = now(); now() < start + kPatience && is_running();) {
      if (connect_to(port).get() >= 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  static constexpr std::chrono::duration<int, std::milli> kPatience{120'000};
  static std::chrono::steady_clock::time_point now() { return std::chrono::steady_clock::now(); }

  pid_t pid_ = -1;
  TestSocket output_;
};

// Stands before a server, and calls back once when so many bytes have passed, in both directions together: to
// kill the server in the middle of a batch.
class Proxy {
 public:
  Proxy(int server, std::uint64_t bytes, std::function<void()> then)
      : server_(server), left_(bytes), then_(std::move(then)), thread_([this] { run(); }) {}
  ~Proxy() {
    stop_.store(true);
    thread_.join();
  }
  int port() const noexcept { return listener_.port(); }

 private:
  struct Pair {
    TestSocket client;
    TestSocket server;
  };

  void run() {
    std::vector<Pair> pairs;
    while (!stop_.load()) {
      std::vector<pollfd> watched{{.fd = listener_.listener(), .events = POLLIN, .revents = 0}};
      for (const Pair& pair : pairs) {
        watched.push_back({.fd = pair.client.get(), .events = POLLIN, .revents = 0});
        watched.push_back({.fd = pair.server.get(), .events = POLLIN, .revents = 0});
      }
      if (poll(watched.data(), watched.size(), 20) <= 0) continue;
      std::vector<Pair> kept;
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const bool good = (watched[1 + 2 * i].revents == 0 || pass(pairs[i].client, pairs[i].server)) &&
                          (watched[2 + 2 * i].revents == 0 || pass(pairs[i].server, pairs[i].client));
        if (good) kept.push_back(std::move(pairs[i]));
      }
      pairs = std::move(kept);
      if (watched[0].revents == 0) continue;
      TestSocket client(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC));
      TestSocket server = connect_to(server_);
      if (server.get() >= 0) pairs.push_back({.client = std::move(client), .server = std::move(server)});
    }
  }
  bool pass(const TestSocket& from, const TestSocket& to) {
    std::vector<char> bytes(64 * 1024);
    const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    if (then_) {
      left_ -= std::min<std::uint64_t>(left_, static_cast<std::uint64_t>(got));
      if (left_ == 0) std::exchange(then_, nullptr)();
    }
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t now =
          send(to.get(), bytes.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += now;
    }
    return true;
  }

  SilentServer listener_;
  const int server_;
  std::uint64_t left_;
  std::function<void()> then_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ashlar
