#include "fork.h"

#include <atomic>
#include <exception>

#include "errors.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

// A list without a lock: objects may end on any thread.
struct Kept {
  void* object;
  Kept* next;
};
std::atomic<Kept*> g_kept{nullptr};

struct Renewal {
  void (*renew)();
  Renewal* next;
};
std::atomic<Renewal*> g_renewals{nullptr};

template <class Node>
void push(std::atomic<Node*>& list, Node* node) {
  node->next = list.load(std::memory_order_relaxed);
  // release: pairs with the acquire in begin_child()
  while (!list.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed))
    continue;
}

}  // namespace

void begin_child() {
  detail::forks.fetch_add(1, std::memory_order_relaxed);  // relaxed: there is one thread
  // acquire: pairs with the release in push()
  for (const Renewal* one = g_renewals.load(std::memory_order_acquire); one != nullptr; one = one->next)
    one->renew();
  nanobind::set_leak_warnings(false);  // the parent's other threads referred to objects too
}

void renew_in_child(void (*renew)()) {
  push(g_renewals, new Renewal{renew, nullptr});
}

void keep_for_good(void* object) {
  push(g_kept, new Kept{object, nullptr});
}

void raise_of_parent() {
  throw OfParent();
}

void bind_fork() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const OfParent&) {
      set_error(
          Error(ErrorCode::kInvalidArgument,
                "this object was made before fork(), and only the parent process may use it; make one in "
                "this process"));
    }
  });
  nb::dict handlers;
  handlers["after_in_child"] = nb::cpp_function(&begin_child);
  nb::module_::import_("os").attr("register_at_fork")(**handlers);
}

}  // namespace ashlar::python
