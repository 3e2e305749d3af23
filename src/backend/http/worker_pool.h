// WorkerPool: a loop's connections to workers: made, kept while idle, and used again.
//
// An idle connection is watched: it is dropped when the worker ends it or sends what nobody asked for. It is
// looked at once more when it is taken, so that no answer of an earlier request can be read as the next's.
//
// Thread safety: confined to the loop's thread.
// Complexity:    take() and put() are O(log workers).
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/service/passage.h"
#include "backend/http/io_loop.h"
#include "backend/http/io_stream.h"
#include "backend/http/task.h"

namespace ashlar::backend::http {

class WorkerPool {
 public:
  // One connection.
  class Link final : public ReadySink {
   public:
    Link(WorkerPool& pool, const service::HttpAddress& address, int fd)
        : stream(pool.loop_, fd), pool_(pool), address_(address) {}
    // It has become readable, or has ended, while idle.
    void fire(IoEvents events) override;
    // Whether an earlier request was answered on it.
    bool is_reused() const noexcept { return reused_; }

    IoStream stream;

   private:
    friend class WorkerPool;
    WorkerPool& pool_;
    const service::HttpAddress address_;
    bool reused_ = false;
  };

  // `tls` is for workers with TLS; `made` counts connections.
  WorkerPool(IoLoop& loop, std::size_t idle_connections, std::shared_ptr<WorkerTls> tls,
             std::atomic<std::uint64_t>& made);

  // An idle connection; null: there is none.
  std::unique_ptr<Link> take(const service::HttpAddress& address);
  // Requires: the last answer on it was read to its end.
  void put(std::unique_ptr<Link> link);
  // Drops the idle ones, and what is put from now on.
  void close();

  struct Connected {
    std::unique_ptr<Link> link;  // null: not connected
    std::string failure = {};
    bool is_interrupted = false;
    bool is_exhausted = false;  // this process has no descriptor, port or memory for it
  };
  // A new connection, whose events go to `waiter`. Those of `interrupts`, and a stop, end the attempt.
  Task<Connected> connect(const service::HttpAddress& address, EventWaiter& waiter, IoEvents interrupts,
                          Clock::TimePoint deadline);

 private:
  struct Endpoint {
    sockaddr_storage address = {};
    socklen_t size = 0;
  };
  struct Lookup;
  using Resolver =
      boost::asio::ip::basic_resolver<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;

  Task<std::shared_ptr<Lookup>> look_up(const service::HttpAddress& address, EventWaiter& waiter,
                                        IoEvents interrupts, Clock::TimePoint deadline);
  Task<Connected> connect_to(const Endpoint& endpoint, const service::HttpAddress& address,
                             EventWaiter& waiter, IoEvents interrupts, Clock::TimePoint deadline);
  void drop(Link& link);

  IoLoop& loop_;
  const std::size_t idle_connections_;
  const std::shared_ptr<WorkerTls> tls_;
  std::atomic<std::uint64_t>& made_;
  Resolver resolver_;
  std::map<service::HttpAddress, std::vector<std::unique_ptr<Link>>> idle_;  // the last used at the back
  bool closed_ = false;
};

}  // namespace ashlar::backend::http
