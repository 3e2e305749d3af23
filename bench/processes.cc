#include "processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

namespace ashlar::bench {

namespace {

std::string error_text() {
  return std::generic_category().message(errno);
}

// Clocks run only while the process lives.
CpuTime cpu_of(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

pid_t fork_child() {
  const pid_t parent = getpid();
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) fail("fork: " + error_text());
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
  }
  return pid;
}

}  // namespace

void fail(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::exit(1);
}

Program Program::start(std::vector<std::string> command, const std::string& log) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe: " + error_text());
  Program program;
  program.pid_ = fork_child();
  if (program.pid_ == 0) {
    const int errors = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    dup2(ends[1], STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execv(words[0], words.data());
    _exit(127);
  }
  close(ends[1]);
  program.output_ = ends[0];
  return program;
}

Program Program::run(const std::function<void()>& body) {
  Program program;
  program.pid_ = fork_child();
  if (program.pid_ == 0) {
    body();
    _exit(0);
  }
  return program;
}

bool Program::is_running() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

void Program::kill() {
  if (output_ >= 0) close(std::exchange(output_, -1));
  if (pid_ <= 0) return;
  for (const pid_t pid : family()) ::kill(pid, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

int Program::terminate() {
  if (pid_ <= 0) return -1;
  ::kill(pid_, SIGTERM);
  for (int i = 0; i < 6000; ++i) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

std::optional<std::string> Program::read_line() {
  std::string line;
  char c = 0;
  while (read(output_, &c, 1) == 1) {
    if (c == '\n') return line;
    line += c;
  }
  return std::nullopt;
}

std::vector<pid_t> Program::family() const {
  std::vector<pid_t> pids = {pid_};
  for (std::size_t i = 0; i < pids.size(); ++i) {
    std::error_code ended;
    const std::filesystem::path tasks = "/proc/" + std::to_string(pids[i]) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks, ended)) {
      std::ifstream children(task.path() / "children");
      for (pid_t child = 0; children >> child;) pids.push_back(child);
    }
  }
  return pids;
}

CpuTime Program::cpu() const {
  CpuTime sum{};
  if (pid_ > 0)
    for (const pid_t pid : family()) sum += cpu_of(pid);
  return sum;
}

std::uint64_t Program::rss_bytes() const {
  std::uint64_t pages = 0;
  for (const pid_t pid : family()) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/statm");
    std::uint64_t all = 0;
    std::uint64_t resident = 0;
    if (in >> all >> resident) pages += resident;
  }
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

CpuTime machine_cpu() {
  std::ifstream in("/proc/stat");
  std::string name;
  std::array<std::uint64_t, 8> ticks{};  // user nice system idle iowait irq softirq steal
  in >> name;
  for (std::uint64_t& tick : ticks) in >> tick;
  const std::uint64_t busy = ticks[0] + ticks[1] + ticks[2] + ticks[7];
  return std::chrono::nanoseconds(busy * (1'000'000'000 / static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK))));
}

CpuTime own_cpu() {
  return cpu_of(getpid());
}

void raise_file_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

std::string find_program(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (access(path.c_str(), X_OK) == 0) return path;
  return {};
}

std::pair<int, std::uint16_t> listen_on_loopback(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    fail("cannot listen on loopback: " + error_text());
  return {fd, ntohs(address.sin_port)};
}

std::uint16_t free_port() {
  const auto [fd, port] = listen_on_loopback();
  close(fd);
  return port;
}

}  // namespace ashlar::bench
