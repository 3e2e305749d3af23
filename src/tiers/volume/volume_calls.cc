#include "tiers/volume/volume_calls.h"

#include <deque>
#include <exception>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "base/start_thread.h"

namespace ashlar::tiers {

// Shared with the threads, which may outlive the VolumeCalls.
struct VolumeCalls::Threads {
  struct One {
    std::thread thread;
    bool busy = true;
  };

  Mutex mu;
  CondVar queued;
  std::deque<std::shared_ptr<Call>> queue ASHLAR_GUARDED_BY(mu);
  std::list<One> all ASHLAR_GUARDED_BY(mu);
  std::size_t idle ASHLAR_GUARDED_BY(mu) = 0;
  bool closing ASHLAR_GUARDED_BY(mu) = false;

  void work(std::list<One>::iterator self);
};

void VolumeCalls::Threads::work(std::list<One>::iterator self) {
  for (;;) {
    std::shared_ptr<Call> call;
    {
      const MutexLock lock(mu);
      if (closing) return;
      if (queue.empty() && idle >= kIdle) {
        self->thread.detach();
        all.erase(self);
        return;
      }
      self->busy = false;
      ++idle;
      while (queue.empty() && !closing) queued.wait(mu);
      --idle;
      if (closing) return;
      self->busy = true;
      call = std::move(queue.front());
      queue.pop_front();
    }
    call->run();
  }
}

VolumeCalls::VolumeCalls() : threads_(std::make_shared<Threads>()) {}

VolumeCalls::~VolumeCalls() {
  std::list<Threads::One> gone;
  {
    const MutexLock lock(threads_->mu);
    threads_->closing = true;
    threads_->queued.notify_all();
    for (Threads::One& one : threads_->all)
      if (one.busy) one.thread.detach();
    gone.swap(threads_->all);
  }
  for (Threads::One& one : gone)
    if (one.thread.joinable()) one.thread.join();
}

Result<std::shared_ptr<VolumeCalls::Call>> VolumeCalls::start(
    Work work, std::shared_ptr<std::atomic<std::size_t>> left) {
  auto call = std::make_shared<Call>(std::move(work), std::move(left));
  const MutexLock lock(threads_->mu);
  threads_->queue.push_back(call);
  if (threads_->idle < threads_->queue.size()) {
    const auto self = threads_->all.emplace(threads_->all.end());
    const Result<void> started =
        start_thread(&self->thread, [threads = threads_, self] { threads->work(self); });
    if (!started) {
      threads_->all.erase(self);
      threads_->queue.pop_back();
      return started.error();
    }
  }
  threads_->queued.notify_one();
  return call;
}

void VolumeCalls::Call::run() {
  std::optional<std::string> thrown;
  try {
    work_(stop_.get_token());
  } catch (const std::exception& error) {
    thrown = error.what();
  } catch (...) {
    thrown = "an exception that is not a std::exception";
  }
  work_ = nullptr;  // waiters notified of the end find nothing held
  const MutexLock lock(mu_);
  ended_ = true;
  thrown_ = std::move(thrown);
  if (left_) {
    const std::size_t before = left_count_->fetch_sub(1);
    ASHLAR_CHECK(before != 0, "a volume call ends that was not counted as abandoned");
  }
  changed_.notify_all();
}

VolumeCalls::End VolumeCalls::wait(Call& call, const CallLimits& limits, const std::stop_token& also,
                                   Clock& clock) {
  const auto cancel = [&call] {
    const MutexLock lock(call.mu_);
    call.cancelled_ = true;
    call.changed_.notify_all();
  };
  const std::stop_callback by_caller(limits.stop, cancel);
  const std::stop_callback by_owner(also, cancel);
  End end = End::kEnded;
  {
    const MutexLock lock(call.mu_);
    for (;;) {
      if (call.ended_) return End::kEnded;
      if (call.cancelled_) {
        end = End::kCancelled;
      } else if (limits.deadline && clock.now() >= *limits.deadline) {
        end = End::kLate;
      }
      if (end != End::kEnded) break;
      if (limits.deadline) {
        clock.wait_until(call.changed_, call.mu_, *limits.deadline);
      } else {
        call.changed_.wait(call.mu_);
      }
    }
    ASHLAR_CHECK(!call.left_, "two callers wait for one volume call");
    call.left_ = true;
    call.left_count_->fetch_add(1);
  }
  call.stop_.request_stop();
  return end;
}

}  // namespace ashlar::tiers
