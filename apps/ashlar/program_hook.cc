#include "apps/ashlar/program_hook.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <system_error>

#include "apps/ashlar/stop_signal.h"

extern char** environ;

namespace ashlar::apps {
namespace {

using Moment = std::chrono::steady_clock::time_point;

constexpr std::chrono::seconds kGrace(2);  // from SIGTERM to SIGKILL

class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) noexcept : number_(number) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const noexcept { return number_; }
  void close() noexcept {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

int left_until(Moment until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

// Starts the command in its own process group, with `input` as its standard input.
Result<pid_t> start(const std::string& program, int input) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);  // we ignore it, and children would too
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  std::array<char*, 4> arguments = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                                    const_cast<char*>(program.c_str()), nullptr};
  pid_t child = -1;
  const int failed = posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    return make_error(ErrorCode::kIo, "cannot start '%s': %s", program.c_str(),
                      std::generic_category().message(failed).c_str());
  return child;
}

enum class Until { kEnded, kLate, kStopped };

// Writes the line as fast as the program reads it, and waits for the program to end.
Until follow(int ended, FileDescriptor& input, std::string_view line, Moment deadline, int stop) {
  for (;;) {
    if (line.empty()) input.close();
    // poll() skips a negative descriptor.
    std::array<pollfd, 3> waits = {pollfd{ended, POLLIN, 0}, pollfd{stop, POLLIN, 0},
                                   pollfd{input.get(), POLLOUT, 0}};
    const int came = poll(waits.data(), waits.size(), left_until(deadline));
    if (came < 0 && errno == EINTR) continue;
    if (waits[0].revents != 0) return Until::kEnded;
    if (waits[1].revents != 0) return Until::kStopped;
    if (waits[2].revents != 0) {
      const ssize_t wrote = write(input.get(), line.data(), line.size());
      if (wrote > 0) line.remove_prefix(static_cast<std::size_t>(wrote));
      if (wrote < 0 && errno != EAGAIN && errno != EINTR) line = {};  // it stopped reading: not an error
    }
    if (std::chrono::steady_clock::now() >= deadline) return Until::kLate;
  }
}

}  // namespace

Result<void> ProgramHook::on_advice(const feed::Advice& advice) {
  if (StopSignal::received())
    return make_error(ErrorCode::kCancelled, "'%s' was not started: told to end", program_.c_str());
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return make_error(ErrorCode::kIo, "no pipe for '%s': %s", program_.c_str(),
                      std::generic_category().message(errno).c_str());
  FileDescriptor output(ends[0]);
  FileDescriptor input(ends[1]);
  const Result<pid_t> child = start(program_, output.get());
  output.close();
  if (!child) return child.error();
  fcntl(input.get(), F_SETFL, O_NONBLOCK);
  const FileDescriptor ended(static_cast<int>(syscall(SYS_pidfd_open, *child, 0)));
  Until how = Until::kEnded;
  if (ended.get() >= 0) {
    const std::string line = advice.to_json() + "\n";
    how = follow(ended.get(), input, line, std::chrono::steady_clock::now() + patience_,
                 StopSignal::descriptor());
    if (how != Until::kEnded) {
      kill(-*child, SIGTERM);
      static_cast<void>(follow(ended.get(), input, {}, std::chrono::steady_clock::now() + kGrace, -1));
    }
  } else {
    how = Until::kLate;
  }
  if (how != Until::kEnded) kill(-*child, SIGKILL);
  int status = 0;
  while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (ended.get() < 0)
    return make_error(ErrorCode::kIo, "'%s' cannot be waited for: this kernel has no pidfd_open",
                      program_.c_str());
  if (how == Until::kStopped)
    return make_error(ErrorCode::kCancelled, "'%s' was ended: told to end", program_.c_str());
  if (how == Until::kLate)
    return make_error(ErrorCode::kTimeout, "'%s' was ended after %lld ms; give it more time (--exec-timeout)",
                      program_.c_str(), static_cast<long long>(patience_.count()));
  if (status != 0)
    return make_error(ErrorCode::kIo, "'%s' ended with %s %d", program_.c_str(),
                      WIFEXITED(status) ? "status" : "signal",
                      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  return {};
}

}  // namespace ashlar::apps
