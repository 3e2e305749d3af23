#include "transfer/remote/process_watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"

namespace ashlar::transfer {
namespace {

constexpr int kReleaseMilliseconds = 5;

bool watch(const OwnedFd& epoll, int fd, std::uint64_t id) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

Error no_watch() {
  return make_error(ErrorCode::kCapacity,
                    "a process cannot be watched (errno %d); raise the limit of open files", errno);
}

}  // namespace

ProcessWatch::ProcessWatch(std::shared_ptr<RegistrationTable> table, OwnedFd epoll, OwnedFd wake) noexcept
    : table_(std::move(table)), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

Result<std::shared_ptr<ProcessWatch>> ProcessWatch::create(std::shared_ptr<RegistrationTable> table) {
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid() || !watch(epoll, wake.get(), 0)) return no_watch();
  std::shared_ptr<ProcessWatch> made(new ProcessWatch(std::move(table), std::move(epoll), std::move(wake)));
  ASHLAR_RETURN_IF_ERROR(start_thread(&made->thread_, [raw = made.get()] { raw->run(); }));
  return made;
}

ProcessWatch::~ProcessWatch() {
  if (!thread_.joinable()) return;
  ASHLAR_CHECK(thread_.get_id() != std::this_thread::get_id(),
               "a transport is destroyed on its own thread: a callback held the last reference to it");
  {
    const MutexLock lock(mu_);
    stopping_ = true;
  }
  release_memory_soon();
  thread_.join();
}

Result<std::uint64_t> ProcessWatch::add(const OwnedFd& process, std::function<void()> ended) {
  const MutexLock lock(mu_);
  const std::uint64_t id = next_++;
  if (!watch(epoll_, process.get(), id)) return no_watch();
  watched_.emplace(id, Watched{process.get(), std::move(ended)});
  return id;
}

std::function<void()> ProcessWatch::take(std::uint64_t id) {
  const MutexLock lock(mu_);
  const auto found = watched_.find(id);
  if (found == watched_.end()) return {};
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.process, nullptr);
  std::function<void()> ended = std::move(found->second.ended);
  watched_.erase(found);
  return ended;
}

void ProcessWatch::remove(std::uint64_t id) {
  static_cast<void>(take(id));
}

void ProcessWatch::release_memory_soon() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof one));  // a full counter wakes as well
}

void ProcessWatch::run() {
  bool keeps_memory = false;
  for (;;) {
    std::array<epoll_event, 16> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 keeps_memory ? kReleaseMilliseconds : -1);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == 0) {
        std::uint64_t number = 0;
        static_cast<void>(!read(wake_.get(), &number, sizeof number));
        continue;
      }
      if (const std::function<void()> ended = take(id)) ended();
    }
    {
      const MutexLock lock(mu_);
      if (stopping_) return;
    }
    keeps_memory = table_->release_idle();
  }
}

}  // namespace ashlar::transfer
