// PortForwarder: a port of 127.0.0.3 behind which is another port of 127.0.0.1, while the same port of
// 127.0.0.4 accepts connections and never says a word: the addresses of a peer of which one is dead.
//
// Thread safety: confined to the test's thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace ashlar::backend::ucx {

class PortForwarder {
 public:
  static constexpr const char* kLiving = "127.0.0.3";
  static constexpr const char* kSilent = "127.0.0.4";

  explicit PortForwarder(std::uint16_t target) : target_(target), stop_(eventfd(0, EFD_CLOEXEC)) {
    port_ = listen_at(living_, kLiving, 0);
    EXPECT_EQ(listen_at(silent_, kSilent, port_), port_);
    thread_ = std::thread([this] { forward(); });
  }
  ~PortForwarder() {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }
  PortForwarder(const PortForwarder&) = delete;
  PortForwarder& operator=(const PortForwarder&) = delete;

  std::uint16_t port() const noexcept { return port_; }

 private:
  static OwnedFd make_socket() { return OwnedFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  static sockaddr_in address_of(const char* host, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &out.sin_addr);
    return out;
  }
  static std::uint16_t listen_at(OwnedFd& fd, const char* host, std::uint16_t port) {
    fd = make_socket();
    sockaddr_in here = address_of(host, port);
    socklen_t length = sizeof here;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&here), length), 0) << errno;
    EXPECT_EQ(::listen(fd.get(), 64), 0) << errno;
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&here), &length), 0) << errno;
    return ntohs(here.sin_port);
  }
  // What it forwards are a few hundred bytes of a handshake, so it may wait for the receiver.
  static bool forward_some(int from, int to) {
    std::array<std::byte, 4096> bytes{};
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
    return got > 0 && ::send(to, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) == got;
  }
  void forward() {
    std::vector<OwnedFd> ends;  // of connections, two each
    for (;;) {
      std::vector<pollfd> waits = {{stop_.get(), POLLIN, 0}, {living_.get(), POLLIN, 0}};
      for (const OwnedFd& end : ends) waits.push_back({end.get(), POLLIN, 0});
      if (::poll(waits.data(), waits.size(), -1) < 0) continue;
      if (waits[0].revents != 0) return;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (waits[i + 2].revents == 0 || forward_some(ends[i].get(), ends[i ^ 1].get())) continue;
        ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i & ~std::size_t{1}),
                   ends.begin() + static_cast<std::ptrdiff_t>(i | 1) + 1);
        break;  // the others have moved
      }
      if (waits[1].revents == 0) continue;
      OwnedFd here(::accept4(living_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      OwnedFd there = make_socket();
      const sockaddr_in target = address_of("127.0.0.1", target_);
      if (::connect(there.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) continue;
      ends.push_back(std::move(here));
      ends.push_back(std::move(there));
    }
  }

  const std::uint16_t target_;
  OwnedFd stop_;
  OwnedFd living_;
  OwnedFd silent_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace ashlar::backend::ucx
