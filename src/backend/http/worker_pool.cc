#include "backend/http/worker_pool.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

namespace {

// Whether a failure is this machine's, and says nothing about the other side.
bool is_shortage(int reason) {
  return reason == EMFILE || reason == ENFILE || reason == ENOBUFS || reason == ENOMEM || reason == EAGAIN ||
         reason == EADDRNOTAVAIL;
}

// A name that is not found for want of descriptors is reported as any other.
bool lacks_descriptors() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return is_shortage(errno);
  ::close(fd);
  return false;
}

}  // namespace

// The addresses of a name. Shared with Asio, which may find them after the wait for them has ended.
struct WorkerPool::Lookup {
  std::vector<Endpoint> endpoints;
  std::string failure;
  EventWaiter* waiter = nullptr;
  bool is_interrupted = false;
  bool is_exhausted = false;
};

WorkerPool::WorkerPool(IoLoop& loop, std::size_t idle_connections, std::shared_ptr<WorkerTls> tls,
                       std::atomic<std::uint64_t>& made)
    : loop_(loop),
      idle_connections_(idle_connections),
      tls_(std::move(tls)),
      made_(made),
      resolver_(loop.context().get_executor()) {}

void WorkerPool::Link::fire(IoEvents) {
  char byte = 0;
  // TLS has messages of its own that are no data.
  if (stream.read({&byte, 1}).status == IoStatus::kBlocked) {
    stream.arm_read();
  } else {
    pool_.drop(*this);
  }
}

void WorkerPool::drop(Link& link) {
  const auto found = idle_.find(link.address_);
  if (found == idle_.end()) return;
  std::erase_if(found->second, [&](const std::unique_ptr<Link>& one) { return one.get() == &link; });
  if (found->second.empty()) idle_.erase(found);  // its worker may never come again
}

std::unique_ptr<WorkerPool::Link> WorkerPool::take(const service::HttpAddress& address) {
  const auto found = idle_.find(address);
  if (found == idle_.end()) return nullptr;
  std::unique_ptr<Link> good;
  while (good == nullptr && !found->second.empty()) {
    std::unique_ptr<Link> link = std::move(found->second.back());
    found->second.pop_back();
    char byte = 0;
    if (link->stream.read({&byte, 1}).status == IoStatus::kBlocked) good = std::move(link);
  }
  if (found->second.empty()) idle_.erase(found);
  return good;
}

void WorkerPool::put(std::unique_ptr<Link> link) {
  ASHLAR_DCHECK(link != nullptr, "a connection is put back once");
  if (closed_ || !link->stream.is_open()) return;
  std::vector<std::unique_ptr<Link>>& idle = idle_[link->address_];
  if (idle.size() >= idle_connections_) return;
  link->reused_ = true;
  link->stream.attach(link.get(), kWorkerReadable, kWorkerWritable);
  link->stream.arm_read();
  idle.push_back(std::move(link));
}

void WorkerPool::close() {
  closed_ = true;
  idle_.clear();
  resolver_.cancel();
}

Task<std::shared_ptr<WorkerPool::Lookup>> WorkerPool::look_up(const service::HttpAddress& address,
                                                              EventWaiter& waiter, IoEvents interrupts,
                                                              Clock::TimePoint deadline) {
  auto lookup = std::make_shared<Lookup>();
  Endpoint literal;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&literal.address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&literal.address);
  if (::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    literal.size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    literal.size = sizeof *v6;
  }
  if (literal.size != 0) {
    lookup->endpoints.push_back(literal);
    co_return lookup;
  }
  lookup->waiter = &waiter;
  waiter.clear(kResolved);
  resolver_.async_resolve(address.host, std::to_string(address.port),
                          [lookup](boost::system::error_code error, const Resolver::results_type& found) {
                            if (error) lookup->failure = error.message();
                            lookup->is_exhausted = error && lacks_descriptors();
                            for (const auto& entry : found) {
                              Endpoint one;
                              one.size = static_cast<socklen_t>(entry.endpoint().size());
                              std::memcpy(&one.address, entry.endpoint().data(), one.size);
                              lookup->endpoints.push_back(one);
                            }
                            if (lookup->waiter != nullptr) lookup->waiter->fire(kResolved);
                          });
  const IoEvents events = co_await waiter.wait(kResolved | interrupts, deadline);
  lookup->waiter = nullptr;
  if ((events & kResolved) == 0) {
    lookup->endpoints.clear();
    lookup->is_interrupted = (events & (interrupts | kStopped)) != 0;
    lookup->failure = "its name was not found in time";
  }
  co_return lookup;
}

Task<WorkerPool::Connected> WorkerPool::connect(const service::HttpAddress& address, EventWaiter& waiter,
                                                IoEvents interrupts, Clock::TimePoint deadline) {
  const std::shared_ptr<Lookup> lookup = co_await look_up(address, waiter, interrupts, deadline);
  Connected last;
  last.failure = lookup->failure;
  last.is_interrupted = lookup->is_interrupted;
  last.is_exhausted = lookup->is_exhausted;
  for (const Endpoint& endpoint : lookup->endpoints) {
    last = co_await connect_to(endpoint, address, waiter, interrupts, deadline);
    if (last.link != nullptr || last.is_interrupted) break;
  }
  co_return last;
}

Task<WorkerPool::Connected> WorkerPool::connect_to(const Endpoint& endpoint,
                                                   const service::HttpAddress& address, EventWaiter& waiter,
                                                   IoEvents interrupts, Clock::TimePoint deadline) {
  Connected out;
  const int fd = ::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    const int why = errno;
    out.failure = std::strerror(why);
    out.is_exhausted = is_shortage(why);
    co_return out;
  }
  tune_socket(fd);
  const int begun = ::connect(fd, reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.size);
  const int reason = begun == 0 ? 0 : errno;
  auto link = std::make_unique<Link>(*this, address, fd);
  if (reason != 0 && reason != EINPROGRESS) {
    out.failure = std::strerror(reason);
    out.is_exhausted = is_shortage(reason);
    co_return out;
  }
  waiter.clear(kWorkerReadable | kWorkerWritable);
  link->stream.attach(&waiter, kWorkerReadable, kWorkerWritable);
  if (reason == EINPROGRESS) {
    link->stream.arm_write();
    const IoEvents events = co_await waiter.wait(kWorkerWritable | interrupts, deadline);
    int failed = 0;
    socklen_t size = sizeof failed;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
    if ((events & kWorkerWritable) == 0 || failed != 0) {
      out.is_interrupted = (events & (interrupts | kStopped)) != 0;
      out.failure = failed != 0 ? std::strerror(failed) : "it did not accept in time";
      co_return out;
    }
    link->stream.forget_writing();
  }
  made_.fetch_add(1, std::memory_order_relaxed);
  if (address.tls) {
    const TlsContext* context = tls_->get();
    link->stream.use_tls(context == nullptr ? nullptr : TlsSession::connect(*context, fd, address.host));
    TlsSession* tls = link->stream.tls();
    IoResult result;
    while (tls != nullptr && (result = tls->handshake()).status == IoStatus::kBlocked) {
      if (tls->wants_write()) {
        link->stream.arm_write();
      } else {
        link->stream.arm_read();
      }
      const IoEvents events = co_await waiter.wait(kWorkerReadable | kWorkerWritable | interrupts, deadline);
      if ((events & (interrupts | kDeadline | kStopped)) == 0) continue;
      out.is_interrupted = (events & (interrupts | kStopped)) != 0;
      out.failure = "it did not agree on TLS in time";
      co_return out;
    }
    if (result.status != IoStatus::kDone) {
      out.is_exhausted = tls == nullptr;
      out.failure = "no TLS: " + (tls == nullptr ? "out of memory" : tls->error());
      co_return out;
    }
  }
  out.link = std::move(link);
  co_return out;
}

}  // namespace ashlar::backend::http
