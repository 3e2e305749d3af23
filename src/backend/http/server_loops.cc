#include "backend/http/server_loops.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/seldom.h"

namespace ashlar::backend::http {

namespace {

constexpr int kBacklog = 4096;
constexpr int kAcceptsPerTurn = 64;
constexpr unsigned kMaxThreads = 1024;

Error bind_error(const std::string& address, std::uint16_t port, const char* reason) {
  return make_error(ErrorCode::kUnavailable,
                    "the address %s port %u cannot be bound: %s; choose another address or port",
                    address.c_str(), port, reason);
}

// Bound and listening. `shared`: several sockets have this port.
Result<int> open_socket(const ServerLoops::Options& options, const addrinfo& at, bool shared) {
  const int socket = ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return bind_error(options.address, options.port, std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  tune_socket(socket);
  limit_unacknowledged(socket, options.write_timeout);
  if (shared) ::setsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  if (::bind(socket, at.ai_addr, at.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0) return socket;
  const int reason = errno;
  ::close(socket);
  return bind_error(options.address, options.port, std::strerror(reason));
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  // The port is at the same place in addresses of both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void set_port(addrinfo& at, std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(at.ai_addr)->sin_port = htons(port);
}

}  // namespace

class ServerLoops::Acceptor final : public ReadySink {
 public:
  Acceptor(ServerLoops& owner, unsigned number, int socket)
      : owner_(owner),
        number_(number),
        stream_(owner.loop(number), socket),
        pause_(owner.loop(number).context()) {
    stream_.attach(this, kClientReadable, kClientWritable);
    stream_.arm_read();
  }

  void close() {
    stream_.close();
    pause_.cancel();
  }

  void fire(IoEvents) override {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      const int fd = ::accept4(stream_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN) return rest();
        break;
      }
      if (!owner_.connection_opened()) {
        ::close(fd);
        continue;
      }
      try {
        owner_.accepted_call_(number_, fd);
      } catch (const std::bad_alloc&) {  // no coroutine was made
        ::close(fd);
        owner_.connection_closed();
      }
    }
    stream_.arm_read();
  }

 private:
  // No descriptors or memory: the system would report the same connection again and again.
  void rest() {
    const int why = errno;
    if (const auto left_out = refusals_.next(Clock::real().now()))
      ASHLAR_LOG(LogLevel::kWarn, "http",
                 "connections cannot be accepted: %s (%llu such lines were left out)", std::strerror(why),
                 static_cast<unsigned long long>(*left_out));
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait([this](boost::system::error_code error) {
      if (!error) stream_.arm_read();
    });
  }

  ServerLoops& owner_;
  const unsigned number_;
  IoStream stream_;
  boost::asio::steady_timer pause_;
  Seldom refusals_;
};

Result<std::unique_ptr<ServerLoops>> ServerLoops::create(const Options& options) {
  if (options.threads == 0 || options.threads > kMaxThreads)
    return make_error(ErrorCode::kInvalidArgument, "%u threads were asked for; 1 to %u are possible",
                      options.threads, kMaxThreads);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int failed =
          ::getaddrinfo(options.address.c_str(), std::to_string(options.port).c_str(), &hints, &found);
      failed != 0)
    return bind_error(options.address, options.port, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);

  std::unique_ptr<ServerLoops> made(new ServerLoops());
  made->options_ = options;
  const bool shared = options.threads > 1;
  if (shared && options.port != 0) {
    // A port that another program shares with SO_REUSEPORT would be taken half.
    ASHLAR_TRY(const int probe, open_socket(options, *found, false));
    ::close(probe);
  }
  for (unsigned i = 0; i < options.threads; ++i) {
    ASHLAR_TRY(const int socket, open_socket(options, *found, shared));
    made->sockets_.push_back(socket);
    if (i == 0) {
      made->port_ = port_of(socket);
      set_port(*found, made->port_);
    }
    made->loops_.push_back(std::make_unique<IoLoop>());
  }
  return made;
}

ServerLoops::~ServerLoops() {
  stop();
  for (const int socket : sockets_) ::close(socket);
}

Result<void> ServerLoops::start(Accepted accepted) {
  ASHLAR_CHECK(!started_, "a server is started once");
  accepted_call_ = std::move(accepted);
  started_ = true;
  for (unsigned i = 0; i < size(); ++i)
    acceptors_.push_back(std::make_unique<Acceptor>(*this, i, sockets_[i]));
  sockets_.clear();
  for (const auto& loop : loops_) ASHLAR_RETURN_IF_ERROR(loop->start());
  return {};
}

void ServerLoops::close_acceptors() {
  for (unsigned i = 0; i < size(); ++i) {
    loops_[i]->post([this, i] {
      acceptors_[i]->close();
      loops_[i]->drain();
    });
  }
}

void ServerLoops::stop_accepting() {
  if (!started_ || draining_.exchange(true)) return;
  close_acceptors();
}

void ServerLoops::wait_idle(Clock::TimePoint until) {
  MutexLock lock(mu_);
  while (answers_.load() != 0) {
    if (!idle_.wait_until(mu_, until)) return;
  }
}

void ServerLoops::stop(const std::function<void(unsigned loop)>& last) {
  {
    MutexLock lock(mu_);
    if (!started_ || stopped_) return;
    stopped_ = true;
  }
  for (unsigned i = 0; i < size(); ++i) {
    loops_[i]->post([this, i, &last] {
      acceptors_[i]->close();
      if (last) last(i);
      loops_[i]->stop();
    });
  }
  for (const auto& loop : loops_) loop->join();
}

void ServerLoops::answer_began() noexcept {
  answers_.fetch_add(1, std::memory_order_relaxed);
}

void ServerLoops::answer_ended() {
  const std::int64_t before = answers_.fetch_sub(1);
  ASHLAR_DCHECK(before > 0, "more answers ended than began");
  if (before != 1 || !draining_.load()) return;
  MutexLock lock(mu_);
  idle_.notify_all();
}

bool ServerLoops::connection_opened() noexcept {
  if (connections_.fetch_add(1, std::memory_order_relaxed) >= options_.connections) {
    connections_.fetch_sub(1, std::memory_order_relaxed);
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  accepted_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void ServerLoops::connection_closed() noexcept {
  [[maybe_unused]] const std::size_t before = connections_.fetch_sub(1, std::memory_order_relaxed);
  ASHLAR_DCHECK(before > 0, "more connections closed than opened");
}

}  // namespace ashlar::backend::http
