// Chores: a thread for what takes longer than a thread that serves connections may: joining followers, dumps,
// snapshots. One after another, in the order in which they came.
//
// Thread safety: thread-safe.
// Complexity:    O(1) but for the chores themselves; at most kMostChores wait.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/service/passage.h"
#include "base/start_thread.h"

namespace ashlar::service {

class Chores {
 public:
  static constexpr std::size_t kMostChores = 64;

  // Errors: kCapacity: no thread.
  static Result<std::unique_ptr<Chores>> create() {
    std::unique_ptr<Chores> chores(new Chores);
    ASHLAR_RETURN_IF_ERROR(start_thread(&chores->thread_, [raw = chores.get()] { raw->run(); }));
    return chores;
  }
  // Ends the one that runs; those that wait are dropped.
  ~Chores() {
    {
      MutexLock lock(mu_);
      stops_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Chores(const Chores&) = delete;
  Chores& operator=(const Chores&) = delete;

  // False: too many wait.
  bool add(std::function<void()> chore) {
    {
      MutexLock lock(mu_);
      if (waiting_.size() >= kMostChores) return false;
      waiting_.push_back(std::move(chore));
    }
    changed_.notify_one();
    return true;
  }

 private:
  Chores() = default;

  void run() {
    for (;;) {
      std::function<void()> chore;
      {
        MutexLock lock(mu_);
        while (!stops_ && waiting_.empty()) changed_.wait(mu_);
        if (stops_) return;
        chore = std::move(waiting_.front());
        waiting_.pop_front();
      }
      try {
        chore();
      } catch (const std::exception& error) {  // who waits for it gives up in time
        ASHLAR_LOG(LogLevel::kError, "serve", "what was asked for is dropped: %s", error.what());
      }
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ASHLAR_GUARDED_BY(mu_);
  bool stops_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// The answer of a chore to a passage that may have gone meanwhile.
class ChoreReply {
 public:
  explicit ChoreReply(Passage::Wake wake) : wake_(std::move(wake)) {}

  void set(Reply reply) {
    Passage::Wake wake;
    {
      MutexLock lock(mu_);
      ASHLAR_DCHECK(!reply_, "a chore answers once");
      reply_ = std::move(reply);
      wake = wake_;
    }
    if (wake) wake();
  }
  std::optional<Reply> take() {
    MutexLock lock(mu_);
    return std::exchange(reply_, std::nullopt);
  }
  void leave() {
    MutexLock lock(mu_);
    wake_ = nullptr;
  }
  bool is_left() const {
    MutexLock lock(mu_);
    return !wake_;
  }

 private:
  mutable Mutex mu_;
  Passage::Wake wake_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Reply> reply_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::service
