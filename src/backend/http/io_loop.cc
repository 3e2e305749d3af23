#include "backend/http/io_loop.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/start_thread.h"

namespace ashlar::backend::http {

namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(50);
constexpr std::size_t kBufferBytes = 64 << 10;

}  // namespace

EventWaiter::EventWaiter(IoLoop& loop) : loop_(loop) {
  loop_.add(*this);
  if (loop_.stopping_) ready_ = kStopped;
}

EventWaiter::~EventWaiter() {
  ASHLAR_DCHECK(!waiting_, "a coroutine still waits here");
  loop_.remove(*this);
}

void EventWaiter::fire(IoEvents events) {
  ready_ |= events;
  if (!waiting_ || (ready_ & (interest_ | kDeadline | kStopped)) == 0) return;
  std::exchange(waiting_, nullptr).resume();
}

void EventWaiter::Awaiter::await_suspend(std::coroutine_handle<> handle) noexcept {
  ASHLAR_DCHECK(!self.waiting_, "one coroutine waits at a time");
  self.waiting_ = handle;
  self.interest_ = interest;
  self.deadline_ = deadline;
  self.loop_.next_deadline_ = std::min(self.loop_.next_deadline_, deadline);
  // Only waits that are shorter than a check is far away come here.
  if (deadline < self.loop_.check_at_) self.loop_.schedule_check(deadline);
}

IoEvents EventWaiter::Awaiter::await_resume() noexcept {
  const IoEvents got = self.ready_ & (interest | kDeadline | kStopped);
  self.ready_ &= ~(interest | kDeadline);
  self.deadline_ = kNoDeadline;
  return got;
}

IoLoop::IoLoop() : work_(context_.get_executor()), timer_(context_), buffer_(kBufferBytes) {}

IoLoop::~IoLoop() = default;

Result<void> IoLoop::start() {
  schedule_check(now() + kCheckInterval);
  return start_thread(&thread_, [this] {
    for (;;) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {  // out of memory, between coroutines
        ASHLAR_LOG(LogLevel::kError, "http", "an event is dropped: %s", error.what());
      }
    }
  });
}

void IoLoop::join() {
  if (thread_.joinable()) thread_.join();
}

void IoLoop::add(EventWaiter& waiter) noexcept {
  ASHLAR_DCHECK(waiter.next_ == nullptr && waiter.previous_ == nullptr, "a waiter is added once");
  waiter.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &waiter;
  first_ = &waiter;
}

void IoLoop::remove(EventWaiter& waiter) noexcept {
  if (cursor_ == &waiter) cursor_ = waiter.next_;
  if (waiter.next_ != nullptr) waiter.next_->previous_ = waiter.previous_;
  (waiter.previous_ != nullptr ? waiter.previous_->next_ : first_) = waiter.next_;
  // A name that is being looked up must not keep the thread.
  if (stopping_ && first_ == nullptr) context_.stop();
}

void IoLoop::fire_all(IoEvents events) {
  cursor_ = first_;
  while (cursor_ != nullptr) {
    EventWaiter* waiter = cursor_;
    cursor_ = waiter->next_;
    waiter->fire(events);
  }
}

void IoLoop::drain() {
  draining_ = true;
  fire_all(kDraining);
}

void IoLoop::stop() {
  draining_ = true;
  stopping_ = true;
  work_.reset();
  timer_.cancel();
  fire_all(kStopped);
  if (first_ == nullptr) context_.stop();
}

void IoLoop::schedule_check(Clock::TimePoint at) {
  check_at_ = at;
  timer_.expires_at(at);
  timer_.async_wait([this](boost::system::error_code replaced) {
    if (replaced || stopping_) return;
    check_deadlines();
    schedule_check(now() + kCheckInterval);
  });
}

void IoLoop::check_deadlines() {
  const Clock::TimePoint now = IoLoop::now();
  if (now < next_deadline_) return;
  next_deadline_ = kNoDeadline;
  cursor_ = first_;
  while (cursor_ != nullptr) {
    EventWaiter* waiter = cursor_;
    cursor_ = waiter->next_;
    if (!waiter->waiting_) continue;
    if (waiter->deadline_ <= now) {
      waiter->fire(kDeadline);
    } else {
      next_deadline_ = std::min(next_deadline_, waiter->deadline_);
    }
  }
}

}  // namespace ashlar::backend::http
