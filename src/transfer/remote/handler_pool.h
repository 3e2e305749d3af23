// HandlerPool: threads that answer the requests of peers, one request of a link at a time in turn, so that a
// peer with many requests does not keep those of others waiting behind all of them.
//
// Thread safety: thread-safe; start() and stop() by the owner.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "base/start_thread.h"
#include "transfer/remote/peer_link.h"

namespace ashlar::transfer {

class HandlerPool {
 public:
  using Handle = std::function<void(const std::shared_ptr<PeerLink>&, const PeerLink::Job&)>;

  HandlerPool() = default;
  ~HandlerPool() { stop(); }

  // Errors: kCapacity.
  Result<void> start(std::uint32_t threads, Handle handle) {
    handle_ = std::move(handle);
    threads_.resize(threads);
    for (std::thread& thread : threads_) ASHLAR_RETURN_IF_ERROR(start_thread(&thread, [this] { run(); }));
    return {};
  }
  // The link has requests. Requires: it is not scheduled already.
  void schedule(const std::shared_ptr<PeerLink>& link) ASHLAR_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (stopped_) return;
    links_.push_back(link);
    work_.notify_one();
  }
  // Waits for running handlers; what has not started is dropped.
  void stop() ASHLAR_EXCLUDES(mu_) {
    ASHLAR_CHECK(!is_current(), "a handler must not stop the threads of handlers");
    {
      MutexLock lock(mu_);
      stopped_ = true;
      links_.clear();
      work_.notify_all();
    }
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  bool is_current() const noexcept {
    for (const std::thread& thread : threads_)
      if (thread.get_id() == std::this_thread::get_id()) return true;
    return false;
  }

 private:
  void run() ASHLAR_EXCLUDES(mu_) {
    for (;;) {
      std::shared_ptr<PeerLink> link;
      {
        MutexLock lock(mu_);
        while (links_.empty() && !stopped_) work_.wait(mu_);
        if (stopped_) return;
        link = std::move(links_.front());
        links_.pop_front();
      }
      bool more = false;
      const std::optional<PeerLink::Job> job = link->take_job(&more);
      if (more) schedule(link);
      if (!job) continue;
      handle_(link, *job);
      link->end_job(job->frame);
    }
  }

  Handle handle_;
  Mutex mu_;
  CondVar work_;
  std::deque<std::shared_ptr<PeerLink>> links_ ASHLAR_GUARDED_BY(mu_);
  bool stopped_ ASHLAR_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace ashlar::transfer
