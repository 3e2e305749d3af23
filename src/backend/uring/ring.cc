#include "backend/uring/ring.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <future>
#include <string>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"
#include "base/wide.h"

namespace ashlar::backend::uring {

using transfer::BlockSet;
using transfer::FileOperation;
using transfer::FileWork;
using transfer::Plane;
using transfer::RegionMemory;
using transfer::TransferState;

namespace {

// User data of the wake-up read; operations use the numbers of their slots.
constexpr std::uint64_t kWake = ~std::uint64_t{0};
// The kernel accepts no larger buffer.
constexpr std::uint64_t kMaxBuffer = std::uint64_t{1} << 30;

std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

void Ring::FreeMemory::operator()(std::byte* memory) const noexcept {
  std::free(memory);
}

Ring::Ring(const UringOptions& options, int wake) noexcept
    : options_(options),
      admission_(options.limits, options.clock == nullptr ? Clock::real() : *options.clock),
      wake_(wake),
      slots_(options.depth),
      stages_(options.staging_buffers),
      buffers_(options.registered_buffers) {
  for (std::uint32_t i = options.depth; i-- > 0;) free_slots_.push_back(i);
  for (std::uint32_t i = options.staging_buffers; i-- > 0;)
    free_stages_.push_back(static_cast<std::int32_t>(i));
  for (std::uint32_t i = options.registered_buffers; i-- > 0;) free_buffers_.push_back(i);
  for (std::uint32_t i = options.registered_files; i-- > 0;) free_files_.push_back(i);
}

// Called on the thread: with these flags the ring belongs to the thread that creates it, and completions do
// not interrupt it. Retries without them on a kernel that does not know them.
Result<void> Ring::open(const UringOptions& options, io_uring* ring) {
  int error = -EINVAL;
  for (const unsigned flags : {unsigned{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN}, 0u}) {
    io_uring_params params{};
    params.flags = flags;
    error = io_uring_queue_init_params(options.depth + 1, ring, &params);
    if (error == 0) return {};
    if (error != -EINVAL) break;
  }
  return make_error(ErrorCode::kUnsupported, "the kernel refuses io_uring: %s", reason(-error).c_str());
}

Result<std::shared_ptr<Ring>> Ring::create(const UringOptions& options) {
  const int wake = eventfd(0, EFD_CLOEXEC);
  if (wake < 0) return make_error(ErrorCode::kIo, "eventfd: %s", reason(errno).c_str());
  std::shared_ptr<Ring> ring(new Ring(options, wake));
  std::promise<Result<void>> opened;
  std::future<Result<void>> answer = opened.get_future();
  ASHLAR_RETURN_IF_ERROR(start_thread(&ring->thread_, [raw = ring.get(), &opened] {
    const Result<void> result = open(raw->options_, &raw->ring_);
    raw->opened_ = result.has_value();
    opened.set_value(result);
    if (result) raw->run();
  }));
  if (const Result<void> result = answer.get(); !result) {
    ring->thread_.join();
    return result.error();
  }
  return ring;
}

Ring::~Ring() {
  if (opened_) {
    stop();
    io_uring_queue_exit(&ring_);
  }
  close(wake_);
}

void Ring::wake() {
  const std::uint64_t one = 1;
  ASHLAR_CHECK(write(wake_, &one, sizeof one) == sizeof one, "the ring's eventfd refuses a write (errno %d)",
               errno);
}

void Ring::stop() {
  admission_.close();
  {
    const MutexLock lock(mu_);
    if (stopping_) return;
    ASHLAR_CHECK(thread_.get_id() != std::this_thread::get_id(),
                 "an executor is destroyed on its own thread: a callback held the last reference to it");
    stopping_ = true;
    wake();
  }
  thread_.join();
  admission_.wait_empty();  // callers that waited for room are still leaving
}

Result<transfer::Transfer> Ring::submit(transfer::TransferRequest request) {
  ASHLAR_TRY(std::shared_ptr<TransferState> state, TransferState::admit(std::move(request), admission_));
  const transfer::Transfer handle(state);
  auto job = std::make_shared<Job>();
  job->work = std::make_unique<FileWork>(state->plan(), options_.strip_bytes);
  job->cursor = std::make_unique<FileWork::Cursor>(*job->work, 0, job->work->units());
  job->state = std::move(state);
  const MutexLock lock(mu_);
  inbox_.push_back(std::move(job));
  wake();
  return handle;
}

bool Ring::on_thread(std::function<void()> task) {
  if (thread_.get_id() == std::this_thread::get_id()) {
    submit_prepared();
    task();
    return true;
  }
  std::uint64_t number = 0;
  {
    const MutexLock lock(mu_);
    if (stopping_) return false;
    tasks_.push_back(std::move(task));
    number = ++tasks_given_;
    wake();
  }
  const MutexLock lock(mu_);
  while (tasks_run_ < number) task_done_.wait(mu_);
  return true;
}

// --- the thread ---

void Ring::run() {
  // Both tables are optional.
  if (io_uring_register_buffers_sparse(&ring_, options_.registered_buffers) != 0) free_buffers_.clear();
  if (io_uring_register_files_sparse(&ring_, options_.registered_files) != 0) free_files_.clear();
  arm_wake();
  for (;;) {
    take_inbox();
    start_operations();
    // An admitted request may not have reached the inbox yet.
    if (stop_seen_ && admission_.counters().in_flight == 0) return;
    const int error = io_uring_submit_and_wait(&ring_, 1);
    ASHLAR_CHECK(error >= 0 || error == -EINTR || error == -EAGAIN || error == -EBUSY,
                 "io_uring_submit_and_wait: %s", reason(-error).c_str());
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      const std::uint64_t number = io_uring_cqe_get_data64(entry);
      const std::int32_t result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      if (number == kWake) {
        arm_wake();
      } else {
        completed(static_cast<std::uint32_t>(number), result);
      }
    }
  }
}

void Ring::arm_wake() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  ASHLAR_CHECK(entry != nullptr, "the ring of depth %u has no place for its wake-up read", options_.depth);
  io_uring_prep_read(entry, wake_, &woken_, sizeof woken_, 0);
  io_uring_sqe_set_data64(entry, kWake);
}

void Ring::take_inbox() {
  std::deque<std::function<void()>> tasks;
  {
    const MutexLock lock(mu_);
    tasks.swap(tasks_);
    for (std::shared_ptr<Job>& job : inbox_) {
      next_deadline_ = std::min(next_deadline_, job->state->deadline().value_or(Clock::TimePoint::max()));
      active_.push_back(std::move(job));
    }
    inbox_.clear();
    stop_seen_ = stopping_;
  }
  if (stop_seen_)
    for (const std::shared_ptr<Job>& job : active_) job->state->cancel();
  if (!tasks.empty()) submit_prepared();
  for (const std::function<void()>& task : tasks) task();
  if (tasks.empty()) return;
  const MutexLock lock(mu_);
  tasks_run_ += tasks.size();
  task_done_.notify_all();
}

void Ring::submit_prepared() {
  while (io_uring_sq_ready(&ring_) != 0) {
    const int error = io_uring_submit(&ring_);
    ASHLAR_CHECK(error >= 0 || error == -EINTR || error == -EAGAIN || error == -EBUSY, "io_uring_submit: %s",
                 reason(-error).c_str());
  }
}

void Ring::sweep() {
  const std::uint64_t cancels = admission_.cancels();
  const bool late = next_deadline_ != Clock::TimePoint::max() && admission_.clock().now() >= next_deadline_;
  if (cancels == cancels_seen_ && !late) return;
  cancels_seen_ = cancels;
  next_deadline_ = Clock::TimePoint::max();
  std::deque<std::shared_ptr<Job>> over;
  std::deque<std::shared_ptr<Job>> left;
  for (std::shared_ptr<Job>& job : active_) {
    const bool idle = job->in_flight == 0;
    job->exhausted = idle && !job->state->may_continue();
    if (idle && !job->exhausted)
      next_deadline_ = std::min(next_deadline_, job->state->deadline().value_or(Clock::TimePoint::max()));
    (job->exhausted ? over : left).push_back(std::move(job));
  }
  active_.swap(left);
  for (const std::shared_ptr<Job>& job : over) finish_if_over(job);
}

void Ring::start_operations() {
  sweep();
  while (!active_.empty()) {
    const std::shared_ptr<Job> job = active_.front();
    while (!job->exhausted && start_next(*job, job)) {
    }
    if (!job->exhausted) return;  // no slot or no buffer is free
    active_.pop_front();
    finish_if_over(job);
  }
}

// False when it must wait for an operation in flight.
bool Ring::start_next(Job& job, const std::shared_ptr<Job>& shared) {
  if (!job.state->may_continue()) {
    job.exhausted = true;
    return true;
  }
  if (free_slots_.empty() || (job.work->staging_bytes() != 0 && free_stages_.empty())) return false;
  const std::uint32_t number = free_slots_.back();
  Slot& slot = slots_[number];
  if (!job.cursor->next(&slot.operation)) {
    job.exhausted = true;
    return true;
  }
  free_slots_.pop_back();
  job.state->start();
  slot.job = shared;
  slot.done = 0;
  slot.stats = {};
  slot.stats.operations = 1;
  slot.direct_refused = false;
  slot.memory = slot.operation.memory;
  slot.stage = -1;
  if (slot.operation.staged) {
    slot.stage = free_stages_.back();
    free_stages_.pop_back();
    Stage& stage = stages_[static_cast<std::size_t>(slot.stage)];
    if (stage.bytes < slot.operation.bytes) {
      stage.bytes = (job.work->staging_bytes() + 4095) / 4096 * 4096;
      stage.memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, stage.bytes)));
      if (stage.memory == nullptr) {
        job.state->fail(
            make_error(ErrorCode::kCapacity, "no memory for a buffer of %llu bytes", wide(stage.bytes)));
        stage.bytes = 0;
        ++job.in_flight;
        end_operation(number);
        return true;
      }
    }
    slot.memory = stage.memory.get();
    if (job.work->direction() == storage::IoDirection::kWrite) job.work->collect(slot.operation, slot.memory);
  }
  ++job.in_flight;
  issue(number);
  return true;
}

void Ring::issue(std::uint32_t number) {
  Slot& slot = slots_[number];
  const FileOperation& operation = slot.operation;
  const storage::FileAccess& file = operation.file();
  const std::uint64_t offset = operation.offset + slot.done;
  std::uint64_t bytes = operation.bytes - slot.done;
  std::byte* memory = slot.memory + slot.done;
  int descriptor = transfer::choose_descriptor(file, offset, bytes, memory);
  if (slot.direct_refused) descriptor = file.buffered;
  slot.direct = descriptor == file.direct;
  if (file.faults != nullptr) {
    const storage::IoVerdict verdict = file.faults->judge(operation.direction, offset, bytes);
    if (verdict.error != 0) return completed(number, -verdict.error);
    bytes = std::min(bytes, verdict.at_most);
  }
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  ASHLAR_CHECK(entry != nullptr, "the ring of depth %u has no place for an operation", options_.depth);
  const bool writes = operation.direction == storage::IoDirection::kWrite;
  const std::int32_t buffer = slot.stage >= 0 ? -1 : find_buffer(memory, bytes);
  const auto known_file = file_places_.find(descriptor);
  const int target = known_file == file_places_.end() ? descriptor : static_cast<int>(known_file->second);
  if (buffer >= 0 && writes) {
    io_uring_prep_write_fixed(entry, target, memory, static_cast<unsigned>(bytes), offset, buffer);
  } else if (buffer >= 0) {
    io_uring_prep_read_fixed(entry, target, memory, static_cast<unsigned>(bytes), offset, buffer);
  } else if (writes) {
    io_uring_prep_write(entry, target, memory, static_cast<unsigned>(bytes), offset);
  } else {
    io_uring_prep_read(entry, target, memory, static_cast<unsigned>(bytes), offset);
  }
  if (known_file != file_places_.end()) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, number);
}

void Ring::completed(std::uint32_t number, std::int32_t result) {
  Slot& slot = slots_[number];
  if (result == -EINTR) return issue(number);
  if (result == -EINVAL && slot.direct) {
    slot.direct_refused = true;
    return issue(number);
  }
  if (result <= 0) {
    slot.job->state->fail(transfer::file_error(slot.operation, -result));
    return end_operation(number);
  }
  storage::IoFaults* faults = slot.operation.file().faults;
  if (faults != nullptr && slot.operation.direction == storage::IoDirection::kWrite)
    faults->written(slot.operation.offset + slot.done,
                    {slot.memory + slot.done, static_cast<std::size_t>(result)});
  ASHLAR_CHECK(static_cast<std::uint64_t>(result) <= slot.operation.bytes - slot.done,
               "the kernel moved %d bytes; %llu were asked for", result,
               wide(slot.operation.bytes - slot.done));
  slot.done += static_cast<std::uint64_t>(result);
  if (slot.direct) slot.stats.direct_bytes += static_cast<std::uint64_t>(result);
  if (slot.done < slot.operation.bytes) {
    ++slot.stats.continued;
    return issue(number);
  }
  if (slot.operation.staged && slot.operation.direction == storage::IoDirection::kRead)
    slot.job->work->spread(slot.operation, slot.memory);
  slot.stats.bytes = slot.operation.bytes;
  if (slot.operation.staged) slot.stats.staged_bytes = slot.operation.bytes;
  slot.job->state->moved(slot.stats);
  end_operation(number);
}

void Ring::end_operation(std::uint32_t number) {
  Slot& slot = slots_[number];
  ASHLAR_CHECK(slot.job != nullptr && slot.job->in_flight != 0, "slot %u ends an operation that never began",
               number);
  if (slot.stage >= 0) free_stages_.push_back(slot.stage);
  const std::shared_ptr<Job> job = std::move(slot.job);
  slot.job.reset();
  free_slots_.push_back(number);
  --job->in_flight;
  finish_if_over(job);
}

void Ring::finish_if_over(const std::shared_ptr<Job>& job) {
  if (!job->exhausted || job->in_flight != 0 || job->work == nullptr) return;
  job->cursor.reset();
  job->work.reset();
  job->state->finish();
}

std::int32_t Ring::find_buffer(const std::byte* memory, std::uint64_t bytes) const {
  for (const auto& [id, registered] : registered_)
    for (const std::uint32_t place : registered.buffers) {
      const KnownBuffer& known = buffers_[place];
      if (memory >= known.start && memory + bytes <= known.start + known.bytes)
        return static_cast<std::int32_t>(place);
    }
  return -1;
}

// --- registration ---

Result<void> Ring::place_memory(const BlockSet& set, Registered* out) {
  for (const Plane& plane : set.planes())
    for (const RegionMemory& region : plane.regions)
      for (std::uint64_t at = 0; at < plane.layout.region_bytes(); at += kMaxBuffer) {
        if (free_buffers_.empty())
          return make_error(ErrorCode::kCapacity, "all %u places for registered memory are taken",
                            options_.registered_buffers);
        std::byte* start = region.storage->address() + region.offset + at;
        const std::uint64_t bytes = std::min(kMaxBuffer, plane.layout.region_bytes() - at);
        const iovec vector{start, bytes};
        const std::uint32_t place = free_buffers_.back();
        const int error = io_uring_register_buffers_update_tag(&ring_, place, &vector, nullptr, 1);
        if (error < 0) {
          rlimit limit{};
          getrlimit(RLIMIT_MEMLOCK, &limit);
          return make_error(
              ErrorCode::kCapacity,
              "%llu bytes cannot be registered (%s); the process may lock %llu (RLIMIT_MEMLOCK)", wide(bytes),
              reason(-error).c_str(), wide(limit.rlim_cur));
        }
        free_buffers_.pop_back();
        buffers_[place] = {start, bytes};
        out->buffers.push_back(place);
      }
  return {};
}

Result<void> Ring::place_files(const BlockSet& set, Registered* out) {
  for (const Plane& plane : set.planes())
    for (const RegionMemory& region : plane.regions)
      for (const int descriptor : {region.storage->file()->buffered, region.storage->file()->direct}) {
        if (descriptor < 0 || file_places_.contains(descriptor)) continue;
        if (free_files_.empty())
          return make_error(ErrorCode::kCapacity, "all %u places for registered files are taken",
                            options_.registered_files);
        const std::uint32_t place = free_files_.back();
        const int error = io_uring_register_files_update(&ring_, place, &descriptor, 1);
        if (error < 0)
          return make_error(ErrorCode::kIo, "%s cannot be registered: %s", region.storage->describe().c_str(),
                            reason(-error).c_str());
        free_files_.pop_back();
        file_places_[descriptor] = place;
        out->files.push_back(place);
      }
  return {};
}

Result<std::uint64_t> Ring::register_set(std::shared_ptr<const BlockSet> set) {
  if (set == nullptr || (!set->host_accessible() && set->kind() != StorageKind::kDisk))
    return make_error(ErrorCode::kUnsupported, "only host memory and files can be registered");
  Result<std::uint64_t> out = make_error(ErrorCode::kCancelled, "the executor is shutting down");
  on_thread([&] {
    Registered registered{std::move(set), {}, {}};
    const Result<void> placed = registered.set->host_accessible() ? place_memory(*registered.set, &registered)
                                                                  : place_files(*registered.set, &registered);
    if (!placed) {
      forget(registered);
      out = placed.error();
      return;
    }
    out = next_id_;
    registered_.emplace(next_id_++, std::move(registered));
  });
  return out;
}

// A file shared by two sets stays registered by the first; the other then does without.
void Ring::forget(const Registered& registered) {
  for (const std::uint32_t place : registered.buffers) {
    const iovec none{nullptr, 0};
    io_uring_register_buffers_update_tag(&ring_, place, &none, nullptr, 1);
    buffers_[place] = {};
    free_buffers_.push_back(place);
  }
  for (const std::uint32_t place : registered.files) {
    const int none = -1;
    io_uring_register_files_update(&ring_, place, &none, 1);
    std::erase_if(file_places_, [place](const auto& entry) { return entry.second == place; });
    free_files_.push_back(place);
  }
}

void Ring::unregister_set(std::uint64_t id) {
  on_thread([&] {
    const auto found = registered_.find(id);
    if (found == registered_.end()) return;
    forget(found->second);
    registered_.erase(found);
  });
}

}  // namespace ashlar::backend::uring
