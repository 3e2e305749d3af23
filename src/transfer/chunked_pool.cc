#include "transfer/chunked_pool.h"

#include <algorithm>
#include <utility>

namespace ashlar::transfer {

ChunkedPool::ChunkedPool(const Options& options, Divide divide)
    : inline_bytes_(options.inline_bytes),
      divide_(std::move(divide)),
      admission_(options.limits, options.clock == nullptr ? Clock::real() : *options.clock) {
  for (std::uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
}

ChunkedPool::~ChunkedPool() {
  admission_.close();
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    for (const std::shared_ptr<Job>& job : jobs_) job->state->cancel();
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

Result<Transfer> ChunkedPool::submit(TransferRequest request) {
  Result<std::shared_ptr<TransferState>> state = TransferState::admit(std::move(request), admission_);
  if (!state) return state.error();
  const Transfer transfer(*state);
  auto job = std::make_shared<Job>();
  job->work = divide_((*state)->plan());
  job->state = *std::move(state);
  if (job->state->bytes_total() <= inline_bytes_) {
    job->state->start();
    if (job->work->units() != 0) job->work->move(*job->state, 0, job->work->units());
    job->work.reset();
    job->state->finish();
    return transfer;
  }
  const MutexLock lock(mu_);
  jobs_.push_back(std::move(job));
  work_.notify_all();
  return transfer;
}

void ChunkedPool::run() {
  for (;;) {
    std::shared_ptr<Job> job;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    {
      const MutexLock lock(mu_);
      while (jobs_.empty() && !stopping_) work_.wait(mu_);
      if (jobs_.empty()) return;
      job = jobs_.front();
      first = job->next;
      end = std::min(job->work->units(), first + job->work->units_per_chunk());
      if (!job->state->may_continue()) end = first = job->work->units();
      job->next = end;
      ++job->threads;
      if (job->next == job->work->units()) jobs_.pop_front();
    }
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
