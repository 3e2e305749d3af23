// OwnerProcess: a process with registered memory, which tests read, write, stop and kill.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ashlar/storage/remote_storage.h"
#include "ashlar/transfer/remote_transport.h"

extern char** environ;

namespace ashlar::backend::ucx {

class OwnerProcess {
 public:
  OwnerProcess(const std::string& transports, std::uint64_t bytes, transfer::AgentIdentity identity)
      : bytes_(bytes), identity_(identity) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    EXPECT_EQ(pipe2(in.data(), O_CLOEXEC) | pipe2(out.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::string program = ASHLAR_UCX_OWNER;
    std::string list = transports;
    std::string size = std::to_string(bytes);
    std::array<char*, 4> arguments = {program.data(), list.data(), size.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
    std::istringstream line(read_line());
    std::string address;
    std::string key;
    line >> address >> key >> at_;
    address_ = unhex(address);
    key_ = unhex(key);
    EXPECT_FALSE(key_.empty()) << "the process did not start";
  }
  ~OwnerProcess() { kill(); }
  OwnerProcess(const OwnerProcess&) = delete;
  OwnerProcess& operator=(const OwnerProcess&) = delete;

  const transfer::AgentIdentity& identity() const { return identity_; }
  const std::vector<std::byte>& address() const { return address_; }
  storage::RemoteMemory memory() const {
    return {.address = at_,
            .bytes = bytes_,
            .agent = identity_.agent,
            .incarnation = identity_.incarnation,
            .key = key_};
  }
  void fill(std::uint64_t seed) { command("fill", seed); }
  // How many bytes are not those of `seed`.
  std::uint64_t check(std::uint64_t seed) { return std::stoull(command("check", seed)); }
  void send(int signal) const { ::kill(pid_, signal); }
  // Ends it, whatever state it is in.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    fclose(to_);
    fclose(from_);
  }

 private:
  static std::vector<std::byte> unhex(const std::string& text) {
    std::vector<std::byte> out;
    for (std::size_t i = 0; i + 1 < text.size(); i += 2)
      out.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
    return out;
  }
  std::string read_line() {
    std::string out;
    for (int c = fgetc(from_); c != EOF && c != '\n'; c = fgetc(from_)) out += static_cast<char>(c);
    return out;
  }
  std::string command(const char* verb, std::uint64_t seed) {
    fprintf(to_, "%s %llu\n", verb, static_cast<unsigned long long>(seed));
    fflush(to_);
    return read_line();
  }

  const std::uint64_t bytes_;
  const transfer::AgentIdentity identity_;
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
  std::uint64_t at_ = 0;
  std::vector<std::byte> address_;
  std::vector<std::byte> key_;
};

}  // namespace ashlar::backend::ucx
