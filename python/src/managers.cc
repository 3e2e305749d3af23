#include "managers.h"

#include <mutex>
#include <utility>
#include <vector>

#include "callbacks.h"

namespace ashlar::python {
namespace {

struct SetAside {
  std::mutex mutex;
  std::vector<std::function<bool()>> managers;
};

// Never destroyed: what is still there at the end has blocks that a device may write to.
SetAside& set_aside() {
  static auto* const kept = new SetAside;
  return *kept;
}

}  // namespace

bool is_idle(const block::PoolStatus& status) {
  return status.active + status.owned + status.quarantined + status.waiters == 0;
}

std::size_t destroy_idle_managers() {
  SetAside& aside = set_aside();
  std::vector<std::function<bool()>> tried;
  {
    const std::lock_guard lock(aside.mutex);
    tried.swap(aside.managers);
  }
  std::erase_if(tried, [](const std::function<bool()>& destroy_if_idle) { return destroy_if_idle(); });
  const std::lock_guard lock(aside.mutex);
  aside.managers.insert(aside.managers.end(), std::make_move_iterator(tried.begin()),
                        std::make_move_iterator(tried.end()));
  return aside.managers.size();
}

void destroy_when_idle(std::function<bool()> destroy_if_idle) {
  // Without the GIL: the end of a manager may wait for threads that are calling Python.
  without_gil_in_destructor([&] {
    destroy_idle_managers();
    if (destroy_if_idle()) return;
    const std::lock_guard lock(set_aside().mutex);
    set_aside().managers.push_back(std::move(destroy_if_idle));
  });
}

ManagerPtr share_manager(Manager manager) {
  destroy_idle_managers();
  return ManagerPtr(new Manager(std::move(manager)), [](Manager* shared) {
    destroy_when_idle([shared] {
      if (!is_idle(shared->status())) return false;
      delete shared;
      return true;
    });
  });
}

}  // namespace ashlar::python
