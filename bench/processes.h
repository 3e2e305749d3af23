// Programs under measurement: started, awaited, and what they use of the machine.
//
//   Program nginx = Program::start({"/usr/sbin/nginx", "-c", conf});
//   const CpuTime before = nginx.cpu();
//
// Thread safety: thread-compatible. Start programs from the thread that outlives them: the kernel kills them
// when it ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ashlar::bench {

using CpuTime = std::chrono::nanoseconds;

class Program {
 public:
  Program() = default;
  Program(Program&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)) {}
  Program& operator=(Program&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(output_, other.output_);
    return *this;
  }
  ~Program() { kill(); }

  // Ends this program with a sentence where it cannot be started. Errors of the program go to `log`, or
  // nowhere.
  static Program start(std::vector<std::string> command, const std::string& log = "/dev/null");
  // A process that runs `body` and never returns from it.
  static Program run(const std::function<void()>& body);

  pid_t pid() const noexcept { return pid_; }
  bool is_running();
  void kill();
  // In order; its status. -1: it did not end within a minute.
  int terminate();
  // A line of its standard output; none: it ended.
  std::optional<std::string> read_line();

  // Of the process and all below it.
  CpuTime cpu() const;
  std::uint64_t rss_bytes() const;

 private:
  std::vector<pid_t> family() const;

  pid_t pid_ = -1;
  int output_ = -1;
};

// What all programs of the machine have used so far, without interrupts; with time that the hypervisor took.
CpuTime machine_cpu();
CpuTime own_cpu();
// Sockets: as many as the system allows. Inherited by programs started later.
void raise_file_limit();
// The folder of the running program.
std::string program_folder();
// The first of the paths that can be run; empty: none.
std::string find_program(const std::vector<std::string>& paths);
std::uint16_t free_port();
// A socket that listens on loopback, and its port.
std::pair<int, std::uint16_t> listen_on_loopback(std::uint16_t port = 0);
[[noreturn]] void fail(const std::string& sentence);

}  // namespace ashlar::bench
