#include "apps/ashlar/completion_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

#include "ashlar/client/service_client.h"

namespace ashlar::apps {
namespace {

using Moment = std::chrono::steady_clock::time_point;
constexpr std::string_view kPieceText = "\"text\":\"";

Error no_answer(std::string_view why) {
  return make_error(ErrorCode::kUnavailable, "no answer from the router: %.*s", static_cast<int>(why.size()),
                    why.data());
}

// A connection that closes itself.
class Connection {
 public:
  explicit Connection(std::uint16_t port) : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const int yes = 1;
    setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(descriptor_); }

  bool send_all(std::string_view bytes) const {
    while (is_open_ && !bytes.empty()) {
      const ssize_t count = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return is_open_;
  }
  // Appends what comes. False: the other side has ended, or says nothing for a minute.
  bool read_more(std::string& bytes) const {
    char buffer[16 << 10];
    ssize_t count = 0;
    do count = recv(descriptor_, buffer, sizeof(buffer), 0);
    while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    bytes.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

 private:
  int descriptor_;
  bool is_open_ = false;
};

std::uint64_t number_of(std::string_view json, std::string_view name) {
  const std::size_t at = json.rfind(name);
  return at == std::string_view::npos ? 0 : std::strtoull(json.data() + at + name.size(), nullptr, 10);
}

// The texts of all pieces, as JSON spells them: enough to compare two answers.
std::string text_of(std::string_view stream) {
  std::string text;
  for (std::size_t at = stream.find(kPieceText); at != std::string_view::npos;
       at = stream.find(kPieceText, at)) {
    at += kPieceText.size();
    std::size_t end = at;
    while (end < stream.size() && stream[end] != '"') end += stream[end] == '\\' ? 2 : 1;
    end = std::min(end, stream.size());
    text += stream.substr(at, end - at);
    at = end;
  }
  return text;
}

}  // namespace

Result<CompletionAnswer> complete(std::uint16_t port, const CompletionRequest& request) {
  const std::string body =
      R"({"model":"tiny","temperature":0,"stream":true,"stream_options":{"include_usage":true},)"
      R"("ignore_eos":true,"max_tokens":)" +
      std::to_string(request.new_tokens) + R"(,"prompt":")" + request.prompt + "\"}";
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n";
  const Moment start = std::chrono::steady_clock::now();
  const Connection connection(port);
  if (!connection.send_all(head + body)) return no_answer(std::generic_category().message(errno));
  std::string stream;
  std::optional<Moment> first;
  while (connection.read_more(stream))
    if (!first && stream.find(kPieceText) != std::string::npos) first = std::chrono::steady_clock::now();
  if (!stream.starts_with("HTTP/1.1 200")) return no_answer(stream.substr(0, stream.find('\r')));
  std::string events;
  const std::size_t body_at = stream.find("\r\n\r\n") + 4;
  if (!client::join_chunks(std::string_view(stream).substr(body_at), events) || !first ||
      events.find("data: [DONE]") == std::string::npos)
    return no_answer("the stream ended early");
  return CompletionAnswer{.text = text_of(events),
                          .first_token = *first - start,
                          .prompt_tokens = number_of(events, "\"prompt_tokens\":"),
                          .cached_tokens = number_of(events, "\"cached_tokens\":")};
}

}  // namespace ashlar::apps
