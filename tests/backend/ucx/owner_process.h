// OwnerProcess: a process with registered memory, which tests read, write, stop and kill. ReaderProcess: one
// that reads memory of the test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
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
#include "backend/ucx/hex_text.h"

extern char** environ;

namespace ashlar::backend::ucx {

// A program with pipes to its standard input and output. Nothing outlives the test.
class PipedProcess {
 public:
  explicit PipedProcess(std::vector<std::string> words) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    EXPECT_EQ(pipe2(in.data(), O_CLOEXEC) | pipe2(out.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }
  ~PipedProcess() { kill(); }
  PipedProcess(const PipedProcess&) = delete;
  PipedProcess& operator=(const PipedProcess&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  // Returns when it stands still, or has ended.
  void stop() const {
    send(SIGSTOP);
    siginfo_t how{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &how, WSTOPPED | WEXITED | WNOWAIT), 0);
  }
  // Whether it has, whatever it has written before.
  bool ended() const {
    pollfd end{fileno(from_), 0, 0};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
  }
  // Ends it, whatever state it is in.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    fclose(to_);
    fclose(from_);
  }

 protected:
  // Empty when the process has ended.
  std::string read_line() {
    std::string out;
    for (int c = fgetc(from_); c != EOF && c != '\n'; c = fgetc(from_)) out += static_cast<char>(c);
    return out;
  }
  void write_line(const std::string& line) {
    fprintf(to_, "%s\n", line.c_str());
    fflush(to_);
  }

 private:
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

class OwnerProcess : public PipedProcess {
 public:
  OwnerProcess(const std::string& transports, std::uint64_t bytes, transfer::AgentIdentity identity)
      : PipedProcess({ASHLAR_UCX_OWNER, transports, std::to_string(bytes)}),
        bytes_(bytes),
        identity_(identity) {
    std::istringstream line(read_line());
    std::string address;
    std::string key;
    line >> address >> key >> at_;
    address_ = from_hex(address);
    key_ = from_hex(key);
    EXPECT_FALSE(key_.empty()) << "the process did not start";
  }

  const transfer::AgentIdentity& identity() const { return identity_; }
  const std::vector<std::byte>& address() const { return address_; }
  storage::RemoteMemory memory() const {
    return {.address = at_,
            .bytes = bytes_,
            .agent = identity_.agent,
            .incarnation = identity_.incarnation,
            .key = key_,
            .mode = storage::AccessMode::kReadWrite};
  }
  void fill(std::uint64_t seed) { command("fill", seed); }
  // Whether it still obeys.
  bool alive() { return !command("check", 0).empty(); }
  // How many bytes are not those of `seed`.
  std::uint64_t check(std::uint64_t seed) { return std::stoull(command("check", seed)); }

 private:
  std::string command(const std::string& verb, std::uint64_t seed) {
    write_line(verb + " " + std::to_string(seed));
    return read_line();
  }

  const std::uint64_t bytes_;
  const transfer::AgentIdentity identity_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> address_;
  std::vector<std::byte> key_;
};

// Reads memory of the test, which has the bytes of seed 4, without end.
class ReaderProcess : public PipedProcess {
 public:
  ReaderProcess(const std::string& transports, std::span<const std::byte> address,
                std::span<const std::byte> key, std::uint64_t at, std::uint64_t bytes,
                std::int32_t device = storage::Storage::kNoDevice)
      : PipedProcess({ASHLAR_UCX_OWNER, transports, std::to_string(bytes), to_hex(address), to_hex(key),
                      std::to_string(at), std::to_string(device)}) {}

  // Waits for the next read; whether all its bytes were right.
  bool has_read() { return read_line() == "0"; }
};

}  // namespace ashlar::backend::ucx
