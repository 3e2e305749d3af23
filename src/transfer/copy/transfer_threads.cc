#include "transfer/copy/transfer_threads.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"

namespace ashlar::transfer {

TransferThreads::TransferThreads(const Options& options, Divide divide)
    : inline_bytes_(options.inline_bytes),
      divide_(std::move(divide)),
      admission_(options.limits, options.clock == nullptr ? Clock::real() : *options.clock) {}

Result<std::unique_ptr<TransferThreads>> TransferThreads::create(const Options& options, Divide divide) {
  std::unique_ptr<TransferThreads> pool(new TransferThreads(options, std::move(divide)));
  for (std::uint32_t i = 0; i < options.threads; ++i) {
    std::thread thread;
    ASHLAR_RETURN_IF_ERROR(start_thread(&thread, [raw = pool.get()] { raw->run(); }));
    pool->threads_.push_back(std::move(thread));
  }
  return pool;
}

TransferThreads::~TransferThreads() {
  for (const std::thread& thread : threads_)
    ASHLAR_CHECK(
        thread.get_id() != std::this_thread::get_id(),
        "an executor is destroyed on one of its own threads: a callback held the last reference to it");
  admission_.close();
  {
    const MutexLock lock(mu_);
    closing_ = true;
    for (const std::shared_ptr<Job>& job : jobs_) job->state->cancel();
    work_.notify_all();
  }
  if (!threads_.empty()) admission_.wait_empty();
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  const MutexLock lock(mu_);
  ASHLAR_CHECK(jobs_.empty(), "%zu transfers outlive the threads that run them", jobs_.size());
}

Result<Transfer> TransferThreads::submit(TransferRequest request) {
  ASHLAR_TRY(std::shared_ptr<TransferState> state, TransferState::admit(std::move(request), admission_));
  const Transfer transfer(state);
  auto job = std::make_shared<Job>();
  job->work = divide_(state->plan());
  job->state = std::move(state);
  if (job->state->bytes_total() <= inline_bytes_) {
    job->state->start();
    if (job->work->units() != 0) job->work->move(*job->state, 0, job->work->units());
    job->work.reset();
    job->state->finish();
    return transfer;
  }
  const MutexLock lock(mu_);
  if (closing_) job->state->cancel();
  next_deadline_ = std::min(next_deadline_, job->state->deadline().value_or(Clock::TimePoint::max()));
  jobs_.push_back(std::move(job));
  work_.notify_all();
  return transfer;
}

void TransferThreads::sweep_locked(Jobs* over) {
  const std::uint64_t cancels = admission_.cancels();
  const bool late = next_deadline_ != Clock::TimePoint::max() && admission_.clock().now() >= next_deadline_;
  if (cancels == cancels_seen_ && !late) return;
  cancels_seen_ = cancels;
  next_deadline_ = Clock::TimePoint::max();
  Jobs left;
  for (std::shared_ptr<Job>& job : jobs_) {
    if (job->next == 0 && !job->state->may_continue()) {
      over->push_back(std::move(job));
      continue;
    }
    if (job->next == 0)
      next_deadline_ = std::min(next_deadline_, job->state->deadline().value_or(Clock::TimePoint::max()));
    left.push_back(std::move(job));
  }
  jobs_.swap(left);
}

void TransferThreads::run() {
  for (;;) {
    Jobs over;
    std::shared_ptr<Job> job;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    {
      const MutexLock lock(mu_);
      while (jobs_.empty() && !stopping_) work_.wait(mu_);
      sweep_locked(&over);
      if (jobs_.empty() && over.empty()) return;
      if (!jobs_.empty()) {
        job = jobs_.front();
        const std::uint64_t units = job->work->units();
        const bool goes_on = job->next < units && job->state->may_continue();
        first = goes_on ? job->next : units;
        end = goes_on ? job->work->chunk_end(first) : units;
        ASHLAR_DCHECK(job->next <= end && end <= units && (first == units || first < end),
                      "a chunk of no units, or past the end: %llu to %llu of %llu",
                      static_cast<unsigned long long>(first), static_cast<unsigned long long>(end),
                      static_cast<unsigned long long>(units));
        job->next = end;
        ++job->threads;
        if (job->next == units) jobs_.pop_front();
      }
    }
    for (const std::shared_ptr<Job>& ended : over) {
      ended->work.reset();
      ended->state->finish();
    }
    if (job == nullptr) continue;
    if (first != end) {
      job->state->start();
      job->work->move(*job->state, first, end);
    }
    bool last = false;
    {
      const MutexLock lock(mu_);
      --job->threads;
      last = job->threads == 0 && job->next == job->work->units();
    }
    if (!last) continue;
    job->work.reset();
    job->state->finish();
  }
}

}  // namespace ashlar::transfer
