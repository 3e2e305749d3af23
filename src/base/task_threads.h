// TaskThreads: up to so many threads that run tasks, started when they are needed. A task that waits keeps
// one of them, and no other task while there are more.
//
// Thread safety: thread-safe; stop() by the owner.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "base/start_thread.h"

namespace ashlar {

class TaskThreads {
 public:
  explicit TaskThreads(std::size_t most) : most_(most) {}
  ~TaskThreads() { stop(); }
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  // False: they have stopped, or none can be started; the task is not taken.
  bool post(std::function<void()>&& task) ASHLAR_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    if (stopped_) return false;
    if (idle_ <= tasks_.size() && threads_.size() < most_) {
      std::thread thread;
      if (start_thread(&thread, [this] { run(); })) threads_.push_back(std::move(thread));
      if (threads_.empty()) return false;
    }
    tasks_.push_back(std::move(task));
    work_.notify_one();
    return true;
  }
  // Runs what was posted, then ends the threads.
  void stop() ASHLAR_EXCLUDES(mu_) {
    ASHLAR_CHECK(!is_current(), "a task must not stop its own threads");
    std::vector<std::thread> threads;
    {
      const MutexLock lock(mu_);
      stopped_ = true;
      threads.swap(threads_);
      work_.notify_all();
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Whether a task of these runs on this thread.
  bool is_current() const ASHLAR_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    for (const std::thread& thread : threads_)
      if (thread.get_id() == std::this_thread::get_id()) return true;
    return false;
  }

 private:
  void run() ASHLAR_EXCLUDES(mu_) {
    for (;;) {
      std::function<void()> task;
      {
        const MutexLock lock(mu_);
        ++idle_;
        while (tasks_.empty() && !stopped_) work_.wait(mu_);
        --idle_;
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  const std::size_t most_;
  mutable Mutex mu_;
  CondVar work_;
  std::deque<std::function<void()>> tasks_ ASHLAR_GUARDED_BY(mu_);
  std::size_t idle_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool stopped_ ASHLAR_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar
