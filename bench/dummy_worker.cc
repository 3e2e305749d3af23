#include "dummy_worker.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dummy_cache.h"

namespace ashlar::bench {

namespace {

constexpr std::string_view kModels =
    R"({"object":"list","data":[{"id":"dummy","object":"model","created":1,"owned_by":"vllm","root":"dummy",)"
    R"("parent":null,"max_model_len":65536}]})";

std::string sized_answer(std::string_view status, std::string_view body) {
  return "HTTP/1.1 " + std::string(status) +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

std::string chunk_of(std::string_view data) {
  std::array<char, 16> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), data.size(), 16).ptr;
  return std::string(size.data(), end) + "\r\n" + std::string(data) + "\r\n";
}

std::string event_of(bool is_chat) {
  return is_chat
             ? R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"dummy",)"
               R"("choices":[{"index":0,"delta":{"content":" stone"},"logprobs":null,"finish_reason":null}]})"
               "\n\n"
             : R"(data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"dummy",)"
               R"("choices":[{"index":0,"text":" stone","logprobs":null,"finish_reason":null}]})"
               "\n\n";
}

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

constexpr std::uint32_t kMessageEnd = 2;
constexpr std::uint32_t kMessageStart = 10;  // and the first letter of its role

// The text of a key behind `at`, as it stands there; texts here have no escapes.
std::string_view text_at(std::string_view json, std::string_view key, std::size_t* at) {
  const std::size_t found = json.find(key, *at);
  if (found == std::string_view::npos) return {};
  const std::size_t begin = found + key.size();
  const std::size_t end = json.find('"', begin);
  if (end == std::string_view::npos) return {};
  *at = end;
  return json.substr(begin, end - begin);
}

using Tokens = std::vector<std::uint32_t>;

void append_text(Tokens& tokens, std::string_view text) {
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t token = 2166136261;
    for (const char c : text.substr(i, 4)) token = (token ^ static_cast<unsigned char>(c)) * 16777619;
    tokens.push_back(1000 + token % 127'000);
  }
}

// Of a prompt or of messages, with what stands before an answer.
void read_tokens(std::string_view body, Tokens& tokens) {
  tokens.clear();
  std::size_t at = 0;
  if (body.find(R"("messages":)") == std::string_view::npos)
    return append_text(tokens, text_at(body, R"("prompt":")", &at));
  for (;;) {
    const std::string_view role = text_at(body, R"("role":")", &at);
    if (role.empty()) break;
    tokens.push_back(kMessageStart + static_cast<unsigned char>(role.front()));
    append_text(tokens, text_at(body, R"("content":")", &at));
    tokens.push_back(kMessageEnd);
  }
  if (body.find(R"("add_generation_prompt":false)", at) == std::string_view::npos)
    tokens.push_back(kMessageStart + 'a');
}

std::string tokenized(const Tokens& tokens) {
  std::string out = R"({"count":)" + std::to_string(tokens.size()) + R"(,"max_model_len":65536,"tokens":[)";
  for (const std::uint32_t& token : tokens) {
    std::array<char, 12> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), token).ptr;
    if (&token != tokens.data()) out += ',';
    out.append(digits.data(), end);
  }
  return out + R"(],"token_strs":null})";
}

std::string completed(bool is_chat, std::size_t prompt_tokens, std::size_t cached_tokens) {
  const std::string text(DummyWorker::kReplyBytes, DummyWorker::kReplyByte);
  std::string out =
      (is_chat ? R"({"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"dummy","choices":[)"
                 R"({"index":0,"message":{"role":"assistant","content":")" +
                     text + "\"}"
               : R"({"id":"cmpl-1","object":"text_completion","created":1,"model":"dummy","choices":[)"
                 R"({"index":0,"text":")" +
                     text + '"') +
      R"(,"finish_reason":"length"}],"usage":{"prompt_tokens":)" + std::to_string(prompt_tokens) +
      R"(,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cached_tokens) +
      "}}";
  out.append(DummyWorker::kAnswerBytes - 1 - out.size(), ' ');
  return out + '}';
}

class WorkerLoop {
 public:
  WorkerLoop(int listener, std::unique_ptr<DummyCache> cache)
      : listener_(listener), epoll_(epoll_create1(EPOLL_CLOEXEC)), cache_(std::move(cache)) {
    watch(listener_);
    for (const bool is_chat : {false, true}) events_[is_chat] = chunk_of(event_of(is_chat));
    end_ = chunk_of(kStreamEnd) + "0\r\n\r\n";
  }

  [[noreturn]] void run() {
    std::array<epoll_event, 256> ready{};
    for (;;) {
      const int count = epoll_wait(epoll_, ready.data(), ready.size(), -1);
      for (int i = 0; i < count; ++i) {
        const int fd = ready[static_cast<std::size_t>(i)].data.fd;
        if (fd == listener_) {
          accept_all();
        } else if (!serve(fd)) {
          input_.erase(fd);
          close(fd);
        }
      }
    }
  }

 private:
  void watch(int fd) const {
    epoll_event about{};
    about.events = EPOLLIN;
    about.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &about);
  }
  void accept_all() const {
    for (;;) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      watch(fd);
    }
  }
  static void send_now(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // False: the connection is over.
  bool serve(int fd) {
    const ssize_t got = recv(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    // Most requests come in one piece, which is not copied.
    std::string_view bytes(buffer_.data(), static_cast<std::size_t>(got));
    const auto kept = input_.find(fd);
    if (kept != input_.end()) bytes = kept->second.append(bytes);
    std::size_t used = 0;
    while (used < bytes.size()) {
      const std::size_t length = answer_first(fd, bytes.substr(used));
      if (length == 0) break;
      used += length;
    }
    std::string rest(bytes.substr(used));
    if (!rest.empty()) {
      input_[fd] = std::move(rest);
    } else if (kept != input_.end()) {
      input_.erase(kept);
    }
    return true;
  }
  static std::size_t length_of(std::string_view head) {
    constexpr std::string_view kName = "content-length:";
    const auto at = std::search(head.begin(), head.end(), kName.begin(), kName.end(), [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) == b;
    });
    std::size_t length = 0;
    if (at == head.end()) return 0;
    const char* digits = &*at + kName.size();
    while (*digits == ' ') ++digits;
    std::from_chars(digits, head.data() + head.size(), length);
    return length;
  }
  // Answers the request at the beginning; its bytes, or 0 where it is not whole.
  std::size_t answer_first(int fd, std::string_view bytes) {
    const std::size_t end = bytes.find("\r\n\r\n");
    if (end == std::string_view::npos) return 0;
    const std::string_view head = bytes.substr(0, end + 2);
    const std::size_t length = end + 4 + length_of(head);
    if (bytes.size() < length) return 0;
    answer(fd, head, bytes.substr(end + 4, length - end - 4));
    return length;
  }
  void answer(int fd, std::string_view head, std::string_view body) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const bool is_chat = line.starts_with("POST /v1/chat/completions ");
    if (is_chat || line.starts_with("POST /v1/completions ")) {
      if (body.find(R"("stream":true)") != std::string_view::npos) return stream(fd, is_chat, body);
      read_tokens(body, tokens_);
      const std::size_t prompt_tokens = tokens_.size();
      return send_now(fd, sized_answer("200 OK", completed(is_chat, prompt_tokens, run_prompt())));
    }
    if (line.starts_with("POST /tokenize ")) {
      read_tokens(body, tokens_);
      return send_now(fd, sized_answer("200 OK", tokenized(tokens_)));
    }
    if (line.starts_with("GET /v1/models ")) return send_now(fd, sized_answer("200 OK", kModels));
    if (line.starts_with("GET /health ")) return send_now(fd, sized_answer("200 OK", ""));
    send_now(fd, sized_answer("404 Not Found", "{}"));
  }
  // Of tokens_: how many are cached. An engine knows that before it answers.
  std::size_t run_prompt() {
    if (cache_ == nullptr) return 0;
    const std::size_t prompt = tokens_.size();
    append_text(tokens_, std::string(DummyWorker::kReplyBytes, DummyWorker::kReplyByte));
    return cache_->run(tokens_, tokens_.size() - prompt);
  }
  void stream(int fd, bool is_chat, std::string_view body) const {
    static const std::string kSilent = std::to_string(DummyWorker::kSilentTokens);
    send_now(fd, std::string(kStreamHead) + events_[is_chat]);
    if (body.find(kSilent) != std::string_view::npos) return;
    for (std::size_t i = 1; i < DummyWorker::kStreamEvents; ++i) send_now(fd, events_[is_chat]);
    send_now(fd, end_);
  }

  const int listener_;
  const int epoll_;
  const std::unique_ptr<DummyCache> cache_;
  Tokens tokens_;                      // of a request
  std::array<std::string, 2> events_;  // by is_chat
  std::string end_;
  std::map<int, std::string> input_;  // of requests that are not whole
  std::vector<char> buffer_ = std::vector<char>(256 << 10);
};

}  // namespace

std::size_t DummyWorker::stream_bytes(bool is_chat) {
  return kStreamEvents * event_of(is_chat).size() + kStreamEnd.size();
}

DummyWorker DummyWorker::start(bool has_events) {
  DummyWorker worker;
  const auto [listener, port] = listen_on_loopback();
  worker.port_ = port;
  const std::uint16_t events = has_events ? free_port() : std::uint16_t{0};
  const std::uint16_t replay = has_events ? free_port() : std::uint16_t{0};
  if (has_events)
    worker.events_ = ",events=tcp://127.0.0.1:" + std::to_string(events) +
                     ",replay=tcp://127.0.0.1:" + std::to_string(replay);
  worker.program_ = Program::run([fd = listener, has_events, events, replay] {
    WorkerLoop(fd, has_events ? DummyCache::create(events, replay) : nullptr).run();
  });
  close(listener);
  return worker;
}

}  // namespace ashlar::bench
