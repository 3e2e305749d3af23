#include "ucx_perftest.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

extern char** environ;

namespace ashlar::bench {
namespace {

constexpr const char* kProgram = "ucx_perftest";

// A port that nobody uses now.
int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0) std::abort();
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  close(descriptor);
  return ntohs(address.sin_port);
}

// Asks the kernel: a connection would be taken for the client.
bool is_listening(int port) {
  std::array<char, 16> wanted{};
  std::snprintf(wanted.data(), wanted.size(), ":%04X ", static_cast<unsigned>(port));
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line))
    if (line.find(wanted.data()) != std::string::npos && line.find(" 0A ") != std::string::npos) return true;
  return false;
}

pid_t start(std::vector<std::string> words, std::vector<std::string> settings, int output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (std::string& setting : settings) variables.push_back(setting.data());
  for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (output >= 0) {
    posix_spawn_file_actions_adddup2(&actions, output, 1);
  } else {
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  }
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, kProgram, &actions, nullptr, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

}  // namespace

UcxPerftest::UcxPerftest(std::string transports, std::uint32_t segment_bytes)
    : transports_(std::move(transports)), segment_(std::to_string(segment_bytes)) {}

bool UcxPerftest::present() {
  const pid_t pid = start({kProgram, "-h"}, {}, -1);
  if (pid < 0) return false;
  waitpid(pid, nullptr, 0);
  return true;
}

std::optional<PerftestResult> UcxPerftest::run(const std::string& test, std::uint64_t bytes,
                                               std::uint64_t messages, std::uint32_t window) const {
  const std::vector<std::string> settings = {"UCX_TLS=" + transports_, "UCX_TCP_TX_SEG_SIZE=" + segment_,
                                             "UCX_TCP_RX_SEG_SIZE=" + segment_, "UCX_LOG_LEVEL=error"};
  const std::string port = std::to_string(free_port());
  const pid_t server = start({kProgram, "-p", port}, settings, -1);
  if (server < 0) return std::nullopt;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!is_listening(std::stoi(port)) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::array<int, 2> output{};
  if (pipe2(output.data(), O_CLOEXEC) != 0) std::abort();
  const pid_t client =
      start({kProgram, "127.0.0.1", "-p", port, "-f", "-v", "-t", test, "-s", std::to_string(bytes), "-n",
             std::to_string(messages), "-w", std::to_string(messages / 10 + 8), "-O", std::to_string(window)},
            settings, output[1]);
  close(output[1]);
  FILE* lines = fdopen(output[0], "r");
  std::optional<PerftestResult> result;
  std::array<char, 512> line{};
  while (fgets(line.data(), static_cast<int>(line.size()), lines) != nullptr) {
    // iterations, median and mean and overall latency in us, mean and overall bandwidth in MiB/s, rates
    double values[6] = {};
    if (std::sscanf(line.data(), "%lf,%lf,%lf,%lf,%lf,%lf", &values[0], &values[1], &values[2], &values[3],
                    &values[4], &values[5]) == 6)
      result = PerftestResult{values[1], values[5] * 1048576 / 1e9};
  }
  fclose(lines);
  if (client > 0) waitpid(client, nullptr, 0);
  if (!result) {
    kill(server, SIGKILL);
    std::fprintf(stderr, "ucx_perftest %s of %llu bytes over %s printed no result\n", test.c_str(),
                 static_cast<unsigned long long>(bytes), transports_.c_str());
  }
  waitpid(server, nullptr, 0);
  return result;
}

}  // namespace ashlar::bench
