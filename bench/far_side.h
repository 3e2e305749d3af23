// FarSide: this program once more, as a process that owns memory, and its memory as this process sees it.
//
//   if (argc > 1 && argv[1] == "--own"s) return own_memory(transport, memory);
//   FarSide far(transport, {"--own", kind}, bytes);
//
// Thread safety: thread-compatible.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/remote_transport.h"

extern char** environ;

namespace ashlar::bench {

// Of the process that owns.
inline constexpr transfer::AgentIdentity kFarOwner = {1, 1};

[[noreturn]] inline void give_up(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  std::exit(1);
}

// The other process: registers memory, says where it is, and waits for the end of its input.
inline int own_memory(transfer::RemoteTransport& transport, const std::shared_ptr<storage::Storage>& memory,
                      storage::AccessMode mode = storage::AccessMode::kReadWrite) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto registration = transport.register_memory(memory, mode);
  if (!registration) give_up(registration.error());
  const auto write_bytes = [](std::span<const std::byte> bytes) {
    const auto size = static_cast<std::uint64_t>(bytes.size());
    fwrite(&size, sizeof size, 1, stdout);
    fwrite(bytes.data(), 1, bytes.size(), stdout);
  };
  write_bytes(transport.address());
  write_bytes((*registration)->key());
  const auto place = reinterpret_cast<std::uintptr_t>(memory->address());
  fwrite(&place, sizeof place, 1, stdout);
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}

class FarSide {
 public:
  // `like` says kind, size and device of the memory; the other process says the rest, and registers it for
  // `mode`.
  FarSide(std::shared_ptr<transfer::RemoteTransport> transport, std::vector<std::string> arguments,
          storage::RemoteMemory like, storage::AccessMode mode = storage::AccessMode::kReadWrite)
      : transport_(std::move(transport)) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    if (posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    FILE* from = fdopen(out[0], "r");
    const std::vector<std::byte> address = read_bytes(from);
    like.key = read_bytes(from);
    std::uintptr_t place = 0;
    if (fread(&place, sizeof place, 1, from) != 1) std::abort();
    fclose(from);
    auto path = transport_->connect(kFarOwner, address, {});
    if (!path) give_up(path.error());
    path_ = *std::move(path);
    like.address = place;
    like.mode = mode;
    like.agent = kFarOwner.agent;
    like.incarnation = kFarOwner.incarnation;
    auto opened = path_->open(std::move(like));
    if (!opened) give_up(opened.error());
    memory_ = *std::move(opened);
  }
  ~FarSide() {
    close(input_);
    waitpid(pid_, nullptr, 0);
  }
  FarSide(const FarSide&) = delete;
  FarSide& operator=(const FarSide&) = delete;

  transfer::Executor& executor() { return transport_->executor(); }
  const std::shared_ptr<storage::Storage>& memory() const { return memory_; }

 private:
  static std::vector<std::byte> read_bytes(FILE* from) {
    std::uint64_t size = 0;
    if (fread(&size, sizeof size, 1, from) != 1 || size > 65536) return {};
    std::vector<std::byte> out(size);
    return fread(out.data(), 1, size, from) == size ? out : std::vector<std::byte>{};
  }

  std::shared_ptr<transfer::RemoteTransport> transport_;
  pid_t pid_ = -1;
  int input_ = -1;
  std::shared_ptr<transfer::RemotePath> path_;
  std::shared_ptr<storage::Storage> memory_;
};

// One plane, from the first byte of the memory on.
inline std::shared_ptr<const transfer::BlockSet> set_over(const layout::Layout& layout,
                                                          std::shared_ptr<storage::Storage> memory) {
  std::vector<transfer::Plane> planes;
  planes.push_back({layout, layout::Shard::whole(layout.config()), {{std::move(memory), 0}}});
  return transfer::BlockSet::create(std::move(planes)).value();
}

}  // namespace ashlar::bench
