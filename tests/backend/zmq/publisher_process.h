// PublisherProcess: a process of its own that publishes, to be stopped and continued.
//
// It is forked while nothing of ZeroMQ is open in this one, and killed with it.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "ashlar/events/event_codec.h"
#include "backend/zmq/feed_support.h"
#include "support/server.h"

namespace ashlar::backend::zmq {

class PublisherProcess {
 public:
  PublisherProcess() {
    std::array<int, 2> commands{};
    std::array<int, 2> answers{};
    EXPECT_EQ(pipe2(commands.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(answers.data(), O_CLOEXEC), 0);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) {
        ::close(commands[1]);
        serve(commands[0], answers[1]);
      }
      _exit(1);
    }
    ::close(commands[0]);
    ::close(answers[1]);
    commands_ = TestSocket(commands[1]);
    answers_ = TestSocket(answers[0]);
    endpoint_ = read_line();
    replay_endpoint_ = read_line();
  }
  PublisherProcess(const PublisherProcess&) = delete;
  PublisherProcess& operator=(const PublisherProcess&) = delete;
  ~PublisherProcess() {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  // A batch of eight events under the topic "ashlar", or one that begins with another letter. It goes out
  // when the process runs.
  void publish(char topic = 'a') { EXPECT_EQ(write(commands_.get(), &topic, 1), 1); }
  // Returns when it is.
  void stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    while (waitpid(pid_, &status, WUNTRACED) < 0 && errno == EINTR) {
    }
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void go_on() { kill(pid_, SIGCONT); }

  SubscriberOptions to_hear(Clock::Duration silence) const {
    SubscriberOptions options;
    options.endpoint = endpoint_;
    options.replay_endpoint = replay_endpoint_;
    options.replay_timeout = std::chrono::milliseconds(300);
    options.silence = silence;
    return options;
  }

 private:
  static void serve(int commands, int answers) {
    auto publisher = EnginePublisher::create(
        {.endpoint = "tcp://127.0.0.1:*", .attach = Attach::kBind, .replay_endpoint = "tcp://127.0.0.1:*"});
    if (!publisher) return;
    const std::string text = (*publisher)->endpoint() + "\n" + (*publisher)->replay_endpoint() + "\n";
    if (write(answers, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return;
    TestStream stream(1);
    std::vector<std::byte> bytes;
    char topic = 0;
    while (read(commands, &topic, 1) == 1) {
      events::encode_batch(stream.next(8), bytes);
      if (!(*publisher)->publish(topic + std::string("shlar"), bytes)) return;
    }
  }
  std::string read_line() {
    std::string line;
    for (char c = 0; read(answers_.get(), &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }

  pid_t pid_ = -1;
  TestSocket commands_;
  TestSocket answers_;
  std::string endpoint_;
  std::string replay_endpoint_;
};

}  // namespace ashlar::backend::zmq
