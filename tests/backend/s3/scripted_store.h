// ScriptedStore: answers HTTP requests as a test says, for what a real store does only on its bad days.
#pragma once

#include <charconv>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "support/server.h"

namespace ashlar::backend::s3 {

class ScriptedStore {
 public:
  struct Seen {
    std::string line;  // "PUT /bucket/key HTTP/1.1"
    std::string head;  // with all headers
    std::string body = {};
  };
  // The bytes to send, or nothing: the connection is closed without a word. Called for request number `at`,
  // from 0 on.
  using Script = std::function<std::string(std::size_t at, const Seen& request)>;

  explicit ScriptedStore(Script script) : script_(std::move(script)), thread_([this] { run(); }) {}
  ~ScriptedStore() {
    stop_.store(true);
    thread_.join();
  }

  static std::string answer(const std::string& status, const std::string& body = "",
                            const std::string& headers = "") {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers +
           "\r\n" + body;
  }
  static std::string error(const std::string& status, const std::string& name) {
    return answer(status,
                  "<Error><Code>" + name + "</Code><AWSAccessKeyId>AKs3cr3t</AWSAccessKeyId></Error>");
  }

  int port() const { return listener_.port(); }
  int connections() const { return connections_.load(); }
  std::vector<Seen> seen() const {
    const MutexLock lock(mu_);
    return seen_;
  }

 private:
  struct Client {
    TestSocket socket;
    std::string unread = {};
  };

  void run() {
    std::vector<Client> clients;
    while (!stop_.load()) {
      std::vector<pollfd> watched{{.fd = listener_.listener(), .events = POLLIN, .revents = 0}};
      for (const Client& client : clients)
        watched.push_back({.fd = client.socket.get(), .events = POLLIN, .revents = 0});
      if (poll(watched.data(), watched.size(), 20) <= 0) continue;
      std::vector<Client> kept;
      for (std::size_t i = 0; i < clients.size(); ++i)
        if (watched[i + 1].revents == 0 || serve(clients[i])) kept.push_back(std::move(clients[i]));
      clients = std::move(kept);
      if (watched[0].revents == 0) continue;
      clients.push_back(
          {.socket = TestSocket(accept4(listener_.listener(), nullptr, nullptr, SOCK_CLOEXEC))});
      connections_.fetch_add(1);
    }
  }
  bool serve(Client& client) {
    std::vector<char> bytes(256 * 1024);
    const ssize_t got = recv(client.socket.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    client.unread.append(bytes.data(), static_cast<std::size_t>(got));
    while (true) {
      const std::size_t end = client.unread.find("\r\n\r\n");
      if (end == std::string::npos) return true;
      Seen request{.line = client.unread.substr(0, client.unread.find("\r\n")),
                   .head = client.unread.substr(0, end)};
      std::size_t length = 0;
      if (const std::size_t at = request.head.find("Content-Length: "); at != std::string::npos)
        std::from_chars(request.head.data() + at + 16, request.head.data() + end, length);
      if (client.unread.size() < end + 4 + length) {
        const bool waits =
            request.head.find("100-continue") != std::string::npos && client.unread.size() == end + 4;
        return !waits || say(client, "HTTP/1.1 100 Continue\r\n\r\n");
      }
      request.body = client.unread.substr(end + 4, length);
      client.unread.erase(0, end + 4 + length);
      std::size_t at = 0;
      {
        const MutexLock lock(mu_);
        at = seen_.size();
        seen_.push_back(request);
      }
      const std::string reply = script_(at, request);
      if (reply.empty() || !say(client, reply)) return false;
      // One that says more than it sends has died in the middle.
      if (reply.find("X-Cut: 1\r\n") != std::string::npos) return false;
    }
  }
  static bool say(const Client& client, const std::string& text) {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t now = send(client.socket.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<std::size_t>(now);
    }
    return true;
  }

  SilentServer listener_;
  const Script script_;
  mutable Mutex mu_;
  std::vector<Seen> seen_ ASHLAR_GUARDED_BY(mu_);
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

}  // namespace ashlar::backend::s3
