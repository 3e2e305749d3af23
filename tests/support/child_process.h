// ChildProcess: this test program once more, as another process that plays a role. TestChannel: what the two
// say to each other.
//
//   int main(int argc, char** argv) { return run_tests(argc, argv, {{"peer", play_peer}}); }
//   …
//   ChildProcess child("peer", {"words", "for", "it"});
//   child.channel().send(bytes);
//
// Nothing outlives the test: destructors kill and wait, and the kernel kills where the test itself is killed.
// Start a child on the thread that outlives it: the kernel kills it when that thread ends.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace ashlar::testing {

// Messages, whole and in order.
class TestChannel {
 public:
  explicit TestChannel(OwnedFd socket) noexcept : socket_(std::move(socket)) {}

  // False: the other process is gone.
  bool send(std::span<const std::byte> message) const {
    const auto size = static_cast<std::uint64_t>(message.size());
    return send_all(&size, sizeof size) && send_all(message.data(), message.size());
  }
  // None: the other process is gone, or says nothing for two minutes; -1: for ever.
  std::optional<std::vector<std::byte>> receive(int patience_ms = 120'000) const {
    std::uint64_t size = 0;
    if (!receive_all(&size, sizeof size, patience_ms)) return std::nullopt;
    std::vector<std::byte> message(size);
    if (!receive_all(message.data(), message.size(), patience_ms)) return std::nullopt;
    return message;
  }

 private:
  bool send_all(const void* bytes, std::size_t left) const {
    for (const char* at = static_cast<const char*>(bytes); left > 0;) {
      const ssize_t sent = ::send(socket_.get(), at, left, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      at += sent;
      left -= static_cast<std::size_t>(sent);
    }
    return true;
  }
  bool receive_all(void* bytes, std::size_t left, int patience_ms) const {
    for (char* at = static_cast<char*>(bytes); left > 0;) {
      pollfd about{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (const int ready = poll(&about, 1, patience_ms); ready <= 0) {
        if (ready < 0 && errno == EINTR) continue;
        return false;
      }
      const ssize_t got = recv(socket_.get(), at, left, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      left -= static_cast<std::size_t>(got);
    }
    return true;
  }

  OwnedFd socket_;
};

// What a child does; its exit status. It ends when the channel does.
using ChildRole = std::function<int(const TestChannel& channel, const std::vector<std::string>& words)>;

// For main(): plays a role where the program was started for one, or runs the tests.
inline int run_tests(int argc, char** argv, const std::map<std::string, ChildRole>& roles) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 3 && words[0] == "--child") {
    const auto role = roles.find(words[1]);
    if (role == roles.end()) return 126;
    return role->second(TestChannel(OwnedFd(std::atoi(words[2].c_str()))),
                        std::vector<std::string>(words.begin() + 3, words.end()));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

class ChildProcess {
 public:
  explicit ChildProcess(const std::string& role, const std::vector<std::string>& words = {})
      : channel_(OwnedFd()) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      ADD_FAILURE() << "socketpair: errno " << errno;
      return;
    }
    channel_ = TestChannel(OwnedFd(ends[0]));
    const OwnedFd theirs(ends[1]);
    std::vector<std::string> command = {"child", "--child", role, std::to_string(theirs.get())};
    command.insert(command.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      fcntl(theirs.get(), F_SETFD, 0);
      execv("/proc/self/exe", arguments.data());
      _exit(127);
    }
    EXPECT_GT(pid_, 0) << "fork: errno " << errno;
  }
  ChildProcess(ChildProcess&& other) noexcept
      : channel_(std::move(other.channel_)), pid_(std::exchange(other.pid_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() { kill(); }

  const TestChannel& channel() const noexcept { return channel_; }
  pid_t pid() const noexcept { return pid_; }
  // Asks for a stop, or lets it go on.
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  // Stops all of its threads, and returns when they stand.
  void stop() const {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGSTOP);
    while (waitpid(pid_, nullptr, WUNTRACED) < 0 && errno == EINTR) {
    }
  }
  // Ends it as a power cut would, and waits until it is gone.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  TestChannel channel_;
  pid_t pid_ = -1;
};

}  // namespace ashlar::testing
