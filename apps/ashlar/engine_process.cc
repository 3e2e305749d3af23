#include "apps/ashlar/engine_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/ashlar/stop_signal.h"

namespace ashlar::apps {
namespace {

// The number after a name in "listening http=8000 events=5557 replay=5657"; empty: none.
std::string number_behind(std::string_view line, std::string_view name) {
  const std::size_t at = line.find(name);
  if (at == std::string_view::npos) return "";
  const std::size_t begin = at + name.size();
  const std::size_t end = std::min(line.find_first_not_of("0123456789", begin), line.size());
  return std::string(line.substr(begin, end - begin));
}

// The first line that comes out of a pipe within two minutes; what came before the end if there is none.
std::string first_line(int descriptor) {
  std::string line;
  char letter = 0;
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (line.size() < 4096) {
    pollfd ready[] = {{.fd = descriptor, .events = POLLIN, .revents = 0},
                      {.fd = StopSignal::descriptor(), .events = POLLIN, .revents = 0}};
    poll(ready, 2, 1000);
    if (StopSignal::received() || std::chrono::steady_clock::now() >= last) break;
    if (ready[0].revents == 0) continue;
    const ssize_t count = read(descriptor, &letter, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || letter == '\n') break;
    line += letter;
  }
  return line;
}

void end_process(pid_t pid) {
  kill(pid, SIGKILL);  // it has nothing to keep
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace

Result<std::string> EngineProcess::find_program() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::filesystem::path beside = self.parent_path() / "tiny_server";
  const std::filesystem::path installed = self.parent_path().parent_path() / "libexec/ashlar/tiny_server";
  for (const auto& path : {beside, installed})
    if (access(path.c_str(), X_OK) == 0) return path.string();
  return make_error(ErrorCode::kNotFound,
                    "no tiny_server at %s or %s; build it (make program), or name it with --engine",
                    beside.c_str(), installed.c_str());
}

Result<EngineProcess> EngineProcess::start(const std::string& program, std::vector<std::string> arguments) {
  if (access(program.c_str(), X_OK) != 0)
    return make_error(ErrorCode::kNotFound, "the engine %s cannot be run: %s", program.c_str(),
                      std::generic_category().message(errno).c_str());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return make_error(ErrorCode::kUnavailable, "no pipe to an engine: %s",
                      std::generic_category().message(errno).c_str());
  std::vector<char*> words;
  std::string name = program;
  words.push_back(name.data());
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);  // Ctrl-C is for the program in front
    dup2(ends[1], STDOUT_FILENO);
    execv(program.c_str(), words.data());
    _exit(127);
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return make_error(ErrorCode::kUnavailable, "%s cannot be started: %s", program.c_str(),
                      std::generic_category().message(errno).c_str());
  }
  const std::string line = first_line(ends[0]);
  close(ends[0]);
  const std::string http = number_behind(line, "http=");
  const std::string events = number_behind(line, "events=");
  const std::string replay = number_behind(line, "replay=");
  if (http.empty() || events.empty() || replay.empty()) {
    end_process(pid);
    return make_error(ErrorCode::kUnavailable, "%s did not say where it listens", program.c_str());
  }
  return EngineProcess(pid, "http://127.0.0.1:" + http + ",events=tcp://127.0.0.1:" + events +
                                ",replay=tcp://127.0.0.1:" + replay);
}

EngineProcess::~EngineProcess() {
  if (pid_ > 0) end_process(pid_);
}

}  // namespace ashlar::apps
