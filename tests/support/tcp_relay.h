// TcpRelay: stands between two programs that talk over TCP and makes the network between them slow, silent or
// broken.
//
//   TcpRelay relay;                       // listens on relay.address()
//   … a program listens on relay.target() and tells others relay.address() …
//   relay.set(TcpRelay::Mode::kSilent);   // bytes stay on the way until the mode changes
//
// One that is between stands in all connections of its process's network that redirect() sends to it, at
// ports that nobody chose, as those of UCX.
//
// Thread safety: thread-safe.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/owned_fd.h"

namespace ashlar::testing {

class TcpRelay {
 public:
  enum class Mode : std::uint8_t {
    kPass,
    kSlow,    // every piece waits for 5 ms
    kSilent,  // nothing passes, and nothing is lost
    kCut,     // every connection breaks, also new ones
  };
  enum class Place : std::uint8_t { kAtTarget, kBetween };

  explicit TcpRelay(Place place = Place::kAtTarget)
      : place_(place), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here = address_of("127.0.0.1", 0);
    socklen_t length = sizeof here;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&here), length), 0) << errno;
    EXPECT_EQ(::listen(listener_.get(), 64), 0) << errno;
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&here), &length), 0) << errno;
    port_ = ntohs(here.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~TcpRelay() {
    stopping_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    break_all();
    for (const auto& one : connections_)
      for (std::thread& pump : one->pumps) pump.join();
  }
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  std::uint16_t port() const noexcept { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // The rule of nftables by which all connections between addresses of loopback come here first: for a
  // network namespace.
  std::string redirect() const {
    return "add table ip relay; add chain ip relay out { type nat hook output priority -100; };"
           " add rule ip relay out meta mark != " +
           std::to_string(kMark) + " ip daddr 127.0.0.0/8 tcp dport != " + std::to_string(port_) +
           " redirect to :" + std::to_string(port_);
  }
  // Where connections go: this port of 127.0.0.2.
  std::string target() const { return "127.0.0.2:" + std::to_string(port_); }

  void set(Mode mode) {
    mode_ = mode;
    if (mode == Mode::kCut) break_all();
  }
  // How many bytes have passed.
  std::uint64_t passed() const { return passed_; }

 private:
  struct Connection {
    std::array<OwnedFd, 2> ends;
    std::array<std::thread, 2> pumps;
  };

  // Of connections of the relay itself, which are not redirected again.
  static constexpr int kMark = 9;

  static sockaddr_in address_of(const char* host, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &out.sin_addr);
    return out;
  }
  void accept_all() {
    while (!stopping_) {
      OwnedFd here(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!here.valid() || mode_ == Mode::kCut) continue;
      OwnedFd there(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in target = address_of("127.0.0.2", port_);
      if (place_ == Place::kBetween) {
        socklen_t length = sizeof target;
        constexpr int kOriginalDestination = 80;  // SO_ORIGINAL_DST, of the kernel's netfilter
        if (::getsockopt(here.get(), SOL_IP, kOriginalDestination, &target, &length) != 0 ||
            ::setsockopt(there.get(), SOL_SOCKET, SO_MARK, &kMark, sizeof kMark) != 0)
          continue;
      }
      if (::connect(there.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) continue;
      const int on = 1;
      for (const OwnedFd* const fd : {&here, &there})
        ::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      auto made = std::make_unique<Connection>();
      made->ends = {std::move(here), std::move(there)};
      const std::lock_guard lock(mu_);
      for (const std::size_t from : {0u, 1u})
        made->pumps[from] =
            std::thread([this, a = made->ends[from].get(), b = made->ends[1 - from].get()] { pump(a, b); });
      connections_.push_back(std::move(made));
    }
  }
  void pump(int from, int to) {
    std::array<std::byte, 4096> bytes{};
    for (;;) {
      const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
      if (got <= 0) break;
      while (mode_ == Mode::kSilent && !stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (mode_ == Mode::kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (mode_ == Mode::kCut || stopping_) break;
      ssize_t sent = 0;
      while (sent < got) {
        const ssize_t some =
            ::send(to, bytes.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
        if (some <= 0) break;
        sent += some;
      }
      if (sent < got) break;
      passed_ += static_cast<std::uint64_t>(sent);
    }
    ::shutdown(from, SHUT_RDWR);
    ::shutdown(to, SHUT_RDWR);
  }
  // Descriptors stay open until the end, so that no pump reads another connection's.
  void break_all() {
    const std::lock_guard lock(mu_);
    for (const auto& one : connections_)
      for (const OwnedFd& end : one->ends) ::shutdown(end.get(), SHUT_RDWR);
  }

  const Place place_;
  OwnedFd listener_;
  std::uint16_t port_ = 0;
  std::atomic<Mode> mode_{Mode::kPass};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> passed_{0};
  std::mutex mu_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::thread acceptor_;
};

}  // namespace ashlar::testing
