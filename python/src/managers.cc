#include "managers.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "errors.h"
#include "gil.h"

namespace ashlar::python {
namespace {

struct SetAside {
  std::mutex mutex;
  std::vector<std::function<bool()>> managers;
  std::condition_variable destroyed;
  std::size_t destroying = 0;  // threads that do it for others
};

// Never destroyed: what is still there at the end has blocks that a device may write to.
SetAside& set_aside() {
  return once_per_process<SetAside>();
}

}  // namespace

bool is_idle(const block::PoolStatus& status) {
  return status.active + status.owned + status.quarantined + status.waiters == 0;
}

namespace {

// Call without the GIL.
void try_set_aside() {
  SetAside& aside = set_aside();
  std::vector<std::function<bool()>> tried;
  {
    const std::lock_guard lock(aside.mutex);
    tried.swap(aside.managers);
  }
  if (tried.empty()) return;
  std::erase_if(tried, [](const std::function<bool()>& destroy_if_idle) { return destroy_if_idle(); });
  const std::lock_guard lock(aside.mutex);
  aside.managers.insert(aside.managers.end(), std::make_move_iterator(tried.begin()),
                        std::make_move_iterator(tried.end()));
}

void keep_aside(std::function<bool()> destroy_if_idle) {
  const std::lock_guard lock(set_aside().mutex);
  set_aside().managers.push_back(std::move(destroy_if_idle));
}

void destroy_or_keep(std::function<bool()> destroy_if_idle) {
  try_set_aside();
  if (!destroy_if_idle()) keep_aside(std::move(destroy_if_idle));
}

}  // namespace

void destroy_idle_managers() {
  if (on_library_thread()) return;
  without_gil_in_destructor([] { try_set_aside(); });
}

void destroy_when_idle(std::function<bool()> destroy_if_idle) {
  if (!on_library_thread()) {
    // Without the GIL: the end of a manager may wait for threads that are calling Python.
    without_gil_in_destructor([&] { destroy_or_keep(std::move(destroy_if_idle)); });
    return;
  }
  SetAside& aside = set_aside();
  keep_aside(std::move(destroy_if_idle));
  {
    const std::lock_guard lock(aside.mutex);
    ++aside.destroying;
  }
  const auto ended = [&aside] {
    const std::lock_guard lock(aside.mutex);
    --aside.destroying;
    aside.destroyed.notify_all();
  };
  try {
    std::thread([ended] {
      try_set_aside();
      ended();
    }).detach();
  } catch (const std::system_error&) {
    ended();  // it stays aside until another manager is made or given up
  }
}

void wait_for_destruction(Clock::Duration patience) {
  SetAside& aside = set_aside();
  std::unique_lock lock(aside.mutex);
  aside.destroyed.wait_for(lock, patience, [&] { return aside.destroying == 0; });
}

tokens::SequenceHasher ManagerObject::hasher_or(const std::optional<tokens::SequenceHasher>& given) const {
  if (!given) return scheme ? tokens::SequenceHasher(*scheme, tokens::Salt()) : tokens::SequenceHasher();
  if (scheme && given->scheme() != *scheme)
    refuse("the blocks of these tiers are named by " + std::string(scheme->name()) +
           (scheme->is_keyed() ? " and its key" : "") + ", not by " + std::string(given->scheme().name()) +
           "; give the scheme to KvBlockManager");
  return *given;
}

ManagerPtr share_manager(Manager manager) {
  destroy_idle_managers();
  auto* const shared = new Manager(std::move(manager));
  return ManagerPtr(shared, EndInItsProcess{{}, [shared] {
                                              destroy_when_idle([shared] {
                                                if (!is_idle(shared->status())) return false;
                                                delete shared;
                                                return true;
                                              });
                                            }});
}

}  // namespace ashlar::python
