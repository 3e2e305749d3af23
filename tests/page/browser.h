// Browser: Chromium without a window, driven through its DevTools protocol over two pipes.
//
//   Browser browser;
//   browser.open(url);
//   browser.wait_for("document.querySelector('#x')");
//   browser.press("Tab");
//
// The pipes carry JSON that ends with a zero byte: no port, no socket, no package beside Debian's Chromium.
// Waits end when what they wait for is there, and fail after two minutes.
//
// Thread safety: thread-compatible. Start it on the thread that outlives it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/scratch_folder.h"
#include "support/server.h"
#include "support/small_json.h"

namespace ashlar::testing {

// A text as JSON, and as JavaScript.
inline std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Its program; empty: this machine has none.
inline std::string find_chromium() {
  for (const char* name : {"chromium-headless-shell", "chromium"})
    if (std::string path = find_program(name); !path.empty()) return path;
  return {};
}

class Browser {
 public:
  explicit Browser(const std::string& program) {
    start(program);
    const Json target = call("Target.createTarget", R"({"url":"about:blank"})");
    session_ = call("Target.attachToTarget",
                    R"({"flatten":true,"targetId":)" + in_quotes(target["targetId"].text) + "}")["sessionId"]
                   .text;
    for (const char* domain : {"Page", "Runtime", "Log"}) call(std::string(domain) + ".enable");
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;
  ~Browser() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  // A method of the protocol; its parameters as JSON. Null where it failed.
  Json call(const std::string& method, const std::string& parameters = "{}") {
    const std::string id = std::to_string(++last_id_);
    std::string message = R"({"id":)" + id + R"(,"method":")" + method + R"(","params":)" + parameters;
    if (!session_.empty()) message += R"(,"sessionId":)" + in_quotes(session_);
    message += "}";
    message += '\0';
    for (std::size_t at = 0; at < message.size();) {
      const ssize_t sent = ::write(input_.get(), message.data() + at, message.size() - at);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return fail(method + ": the browser is gone");
      at += static_cast<std::size_t>(sent);
    }
    while (true) {
      const std::string text = receive();
      if (text.empty()) return fail(method + ": no answer");
      const Json answer = Json::parse(text);
      if (answer["method"].kind == Json::Kind::kText) note(answer, text);
      if (answer["id"].number == static_cast<double>(last_id_)) return answer["result"];
    }
  }

  // The value of an expression; promises are awaited. Null where it threw.
  Json value(const std::string& expression) {
    const Json result =
        call("Runtime.evaluate",
             R"({"returnByValue":true,"awaitPromise":true,"expression":)" + in_quotes(expression) + "}");
    thrown_ = result["exceptionDetails"]["exception"]["description"].text;
    return result["result"]["value"];
  }
  double number(const std::string& expression) { return value(expression).number; }
  std::string text(const std::string& expression) { return value(expression).text; }
  // Until the expression is true; it may throw meanwhile.
  void wait_for(const std::string& expression) {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (std::chrono::steady_clock::now() < last) {
      if (number("(" + expression + ") ? 1 : 0") == 1) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "never true: " << expression << " " << thrown_;
  }

  void open(const std::string& url) {
    call("Page.navigate", R"({"url":)" + in_quotes(url) + "}");
    wait_for("location.href.startsWith(" + in_quotes(url) + ") && document.readyState === 'complete'");
  }
  void resize(int width, int height) {
    call("Emulation.setDeviceMetricsOverride", R"({"deviceScaleFactor":1,"mobile":false,"width":)" +
                                                   std::to_string(width) + R"(,"height":)" +
                                                   std::to_string(height) + "}");
    wait_for("innerWidth === " + std::to_string(width));
  }
  void prefer(const std::string& scheme) {
    call("Emulation.setEmulatedMedia", R"({"features":[{"name":"prefers-color-scheme","value":)" +
                                           in_quotes(scheme) +
                                           R"(},{"name":"prefers-reduced-motion","value":"reduce"}]})");
  }
  // A key by its name, as KeyboardEvent.key has it.
  void press(const std::string& key) {
    int code = 0;
    std::string words;
    const std::pair<const char*, int> codes[] = {
        {"Tab", 9},   {"Enter", 13},     {"Escape", 27},  {" ", 32},          {"End", 35},
        {"Home", 36}, {"ArrowLeft", 37}, {"ArrowUp", 38}, {"ArrowRight", 39}, {"ArrowDown", 40}};
    for (const auto& [name, number] : codes)
      if (key == name) code = number;
    ASSERT_NE(code, 0) << key;
    if (key == "Enter") words = R"(,"text":"\r")";
    if (key == " ") words = R"(,"text":" ")";
    const std::string what = R"("key":)" + in_quotes(key) + R"(,"code":)" +
                             in_quotes(key == " " ? "Space" : key) + R"(,"windowsVirtualKeyCode":)" +
                             std::to_string(code);
    call("Input.dispatchKeyEvent", R"({"type":"keyDown",)" + what + words + "}");
    call("Input.dispatchKeyEvent", R"({"type":"keyUp",)" + what + "}");
  }
  // Types into what has the focus.
  void type(const std::string& words) { call("Input.insertText", R"({"text":)" + in_quotes(words) + "}"); }
  // The window as PNG, in base64.
  std::string picture() { return call("Page.captureScreenshot", R"({"format":"png"})")["data"].text; }

  // What the page complained about since the last call.
  std::vector<std::string> take_complaints() {
    call("Runtime.evaluate", R"({"expression":"0"})");  // what was said before is here then
    return std::exchange(complaints_, {});
  }

 private:
  void start(const std::string& program) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    EXPECT_EQ(pipe2(to.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from.data(), O_CLOEXEC), 0);
    input_ = TestSocket(to[1]);
    output_ = TestSocket(from[0]);
    TestSocket theirs_in(to[0]);
    TestSocket theirs_out(from[1]);
    // The page is our own and on loopback; a sandbox needs rights that a test may not have.
    std::vector<std::string> command = {program,
                                        "--headless",
                                        "--remote-debugging-pipe",
                                        "--no-sandbox",
                                        "--disable-gpu",
                                        "--disable-dev-shm-usage",
                                        "--disable-background-networking",
                                        "--no-first-run",
                                        "--hide-scrollbars",
                                        "--force-color-profile=srgb",
                                        "--user-data-dir=" + profile_.path()};
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      // 3 and 4 are the protocol's. The pipes may have these numbers themselves: first out of the way.
      const int in = fcntl(theirs_in.get(), F_DUPFD, 10);
      const int out = fcntl(theirs_out.get(), F_DUPFD, 10);
      dup2(in, 3);
      dup2(out, 4);
      const int nowhere = ::open("/dev/null", O_RDWR);
      dup2(nowhere, STDERR_FILENO);
      execv(program.c_str(), arguments.data());
      _exit(127);
    }
    EXPECT_GT(pid_, 0) << "fork: errno " << errno;
  }

  // The next message; empty: none came.
  std::string receive() {
    std::size_t end = 0;
    while ((end = unread_.find('\0')) == std::string::npos) {
      pollfd about{.fd = output_.get(), .events = POLLIN, .revents = 0};
      if (poll(&about, 1, 120'000) <= 0) return {};
      std::array<char, 65'536> bytes{};
      const ssize_t got = ::read(output_.get(), bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return {};
      unread_.append(bytes.data(), static_cast<std::size_t>(got));
    }
    std::string message = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    return message;
  }
  void note(const Json& event, const std::string& text) {
    const std::string& method = event["method"].text;
    const Json& about = event["params"];
    const std::string& level = method == "Log.entryAdded" ? about["entry"]["level"].text : about["type"].text;
    const bool is_said = method == "Log.entryAdded" || method == "Runtime.consoleAPICalled";
    if (method == "Runtime.exceptionThrown" || (is_said && (level == "error" || level == "warning")))
      complaints_.push_back(text.substr(0, 1000));
  }
  static Json fail(const std::string& what) {
    ADD_FAILURE() << what;
    return {};
  }

  ScratchFolder profile_;
  TestSocket input_;
  TestSocket output_;
  pid_t pid_ = -1;
  std::string session_;
  std::string unread_;
  std::string thrown_;
  std::uint64_t last_id_ = 0;
  std::vector<std::string> complaints_;
};

}  // namespace ashlar::testing
