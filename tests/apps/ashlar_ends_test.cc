// How commands that only read end: at their deadline, by a signal, and where nobody takes what they print.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "apps/run_program.h"
#include "ashlar/service/journal.h"
#include "base/owned_fd.h"
#include "support/scratch_folder.h"

namespace ashlar {
namespace {

// Takes connections on loopback, one after the other, and does something with each.
class OneServer {
 public:
  explicit OneServer(std::function<void(int connection)> each) : each_(std::move(each)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), at, size), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    EXPECT_EQ(getsockname(listener_.get(), at, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (;;) {
        const OwnedFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (connection.get() < 0) return;
        each_(connection.get());
      }
    });
  }
  ~OneServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  const std::function<void(int)> each_;
  const OwnedFd listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port_ = 0;
  std::thread thread_;
};

// The program, without waiting for it.
class Started {
 public:
  explicit Started(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ASHLAR_PROGRAM);
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      execv(words[0], words.data());
      _exit(127);
    }
  }
  void interrupt() const { kill(pid_, SIGINT); }
  // The signal that ended it; 0: none did.
  int wait() const {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  pid_t pid_ = -1;
};

TEST(AshlarEnds, ATimeoutIsForTheWholeAnswer) {
  // A byte now and then: it never ends, and never rests for long.
  const OneServer drips([](int connection) {
    const std::string head = "HTTP/1.1 200 OK\r\n\r\n";
    for (std::size_t i = 0; i < 1'000'000; ++i) {
      const char byte = i < head.size() ? head[i] : 'x';
      if (send(connection, &byte, 1, MSG_NOSIGNAL) != 1) return;
      pollfd rest{.fd = connection, .events = POLLRDHUP, .revents = 0};
      if (poll(&rest, 1, 20) > 0) return;
    }
  });
  const Ended ended = run("inspect --timeout 0.3 " + drips.url());
  EXPECT_EQ(ended.status, 1) << ended.output;
  // On a busy machine the time may be over earlier.
  EXPECT_TRUE(says(ended, "no whole answer in time") || says(ended, "no connection in time") ||
              says(ended, "not taken in time"))
      << ended.output;
}

TEST(AshlarEnds, CtrlCEndsAnInspectionThatWaits) {
  std::promise<void> asked;
  const OneServer silent([&](int connection) {
    char byte = 0;
    EXPECT_EQ(recv(connection, &byte, 1, 0), 1);
    asked.set_value();
    while (recv(connection, &byte, 1, 0) > 0) {
    }
  });
  const Started inspect({"inspect", "--timeout", "3600", silent.url()});
  asked.get_future().wait();
  inspect.interrupt();
  EXPECT_EQ(inspect.wait(), SIGINT);
}

TEST(AshlarEnds, CtrlCEndsAReplayOfAJournalThatWaits) {
  const ScratchFolder folder;
  std::ofstream(folder.file("key")) << "0123456789abcdef";
  const std::string journal = folder.file("a.journal");
  ASSERT_EQ(mkfifo(journal.c_str(), 0600), 0);
  for (const char* more : {"--json", "--page"}) {
    const Started explain({"explain", journal, more});
    const OwnedFd writer(open(journal.c_str(), O_WRONLY | O_CLOEXEC));  // once it reads
    ASSERT_GE(writer.get(), 0);
    explain.interrupt();
    EXPECT_EQ(explain.wait(), SIGINT) << more;
  }
}

TEST(AshlarEnds, AnUnfinishedJournalIsToldAlike) {
  const ScratchFolder folder;
  const service::JournalKey key = service::load_journal_key(folder.file("key"), true).value();
  const std::string path = folder.file("a.journal");
  {
    auto journal = service::JournalWriter::create({.path = path, .key = key}).value();
    service::Router router({}, journal.get());
    router.add_worker({.id = events::WorkerId(1), .group = "m"});
    for (int i = 0; i < 3; ++i)
      router.release(router.choose({.group = "m", .prompt_tokens = 8, .block_size = 4}).value().id);
    ASSERT_TRUE(journal->flush());
  }
  for (const char* command : {"explain", "replay"}) EXPECT_EQ(run(command + (" " + path)).status, 0);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  for (const char* command : {"explain", "explain --json", "replay", "replay --json"}) {
    const Ended ended = run(command + (" " + path));
    EXPECT_EQ(ended.status, 3) << command << ": " << ended.output;
    EXPECT_TRUE(says(ended, "The journal ends with ")) << command << ": " << ended.output;
    EXPECT_TRUE(says(ended, " bytes of a record that was not finished.")) << command << ": " << ended.output;
  }
  EXPECT_GE(run("explain " + path + " --page --port 70000").status, 100);
}

TEST(AshlarEnds, OutputThatNobodyTakesIsAFailure) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("events"), "fast", "slow"));
  auto journal = service::JournalWriter::create({.path = folder.file("a.journal"), .key = {}}).value();
  ASSERT_TRUE(journal->flush());
  journal.reset();
  std::ofstream(folder.file("key")) << std::string(16, '\0');
  for (const std::string& command :
       {std::string("replay --generate chat,requests=20 --quiet"),
        std::string("replay --generate "
                    "chat,requests=20 --quiet --json"),
        std::string("plan --models"), std::string("plan --model Llama-3.1-8B --gpu-mem 80"),
        std::string("bench --list"), "inspect '" + folder.file("events") + "'",
        "explain '" + folder.file("a.journal") + "'", std::string("completion bash"), std::string("--help"),
        std::string("--version")}) {
    EXPECT_EQ(run(command).status, 0) << command << ": " << run(command).output;
    for (const char* nowhere : {">/dev/full", ">&-"}) {
      const Ended ended = run("2>&1 " + command + " " + nowhere + " #");
      EXPECT_EQ(ended.status, 1) << command << nowhere << ": " << ended.output;
      EXPECT_EQ(ended.output, "ashlar: cannot write to standard output\n") << command << nowhere;
    }
  }
}

}  // namespace
}  // namespace ashlar
