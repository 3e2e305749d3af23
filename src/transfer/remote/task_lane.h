// TaskLane: one thread that runs tasks in the order in which they are posted.
//
// Thread safety: thread-safe; start() and stop() by the owner.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "base/start_thread.h"

namespace ashlar::transfer {

class TaskLane {
 public:
  TaskLane() = default;
  ~TaskLane() { stop(); }

  // Errors: kCapacity.
  Result<void> start() {
    return start_thread(&thread_, [this] { run(); });
  }
  // False: the lane has stopped, and the task is not taken.
  bool post(std::function<void()>&& task) ASHLAR_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (stopped_) return false;
    tasks_.push_back(std::move(task));
    work_.notify_one();
    return true;
  }
  // Runs what was posted, then ends the thread.
  void stop() ASHLAR_EXCLUDES(mu_) {
    ASHLAR_CHECK(!is_current() || !thread_.joinable(), "a task must not stop its own thread");
    {
      MutexLock lock(mu_);
      stopped_ = true;
      work_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }
  bool is_current() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void run() ASHLAR_EXCLUDES(mu_) {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mu_);
        while (tasks_.empty() && !stopped_) work_.wait(mu_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mu_;
  CondVar work_;
  std::deque<std::function<void()>> tasks_ ASHLAR_GUARDED_BY(mu_);
  bool stopped_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ashlar::transfer
