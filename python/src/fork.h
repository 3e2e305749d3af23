// fork(): the child has every object of its parent, but none of the threads that work for them, and locks may
// be taken that nobody releases. So the child leaves what has threads or locks as it is: a call raises, and
// the end of an object does nothing. What the child makes itself is not concerned.
//
// Thread safety: thread-safe. begin_child() runs before the child has a second thread.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace ashlar::python {

namespace detail {
inline std::atomic<std::uint32_t> forks{0};
}
// How many forks led from the process that imported the package to this one.
inline std::uint32_t fork_count() noexcept {
  return detail::forks.load(std::memory_order_relaxed);  // relaxed: written before there are other threads
}
// For os.register_at_fork(): from now on all that was made before is the parent's.
void begin_child();

// Part of an object: tells whether that was made before the fork.
class Birth {
 public:
  bool is_of_parent() const noexcept { return forks_ != fork_count(); }

 private:
  std::uint32_t forks_ = fork_count();
};

// Keeps the object until the process ends.
void keep_for_good(void* object);
// Instead of the end of an object of the parent's.
template <class T>
void leave_behind(T&& object) {
  keep_for_good(new std::decay_t<T>(std::forward<T>(object)));
}

// What a process has once, and never destroys. A child begins with a new one.
void renew_in_child(void (*renew)());
template <class T>
T& once_per_process() {
  static T* kept = new T;
  static const bool renewed = (renew_in_child([] { keep_for_good(std::exchange(kept, new T)); }), true);
  static_cast<void>(renewed);
  return *kept;
}

// Becomes an InvalidArgument that says to use the object in the parent. The GIL may be held or not.
struct OfParent {};
[[noreturn]] void raise_of_parent();
void bind_fork();

// The deleter of shared objects that only their own process may end.
struct EndInItsProcess {
  Birth birth;
  std::function<void()> end;  // refers to the object

  void operator()(const void*) {
    if (birth.is_of_parent()) {
      leave_behind(std::move(end));
    } else {
      end();
    }
  }
};
// The same object with that deleter.
template <class T>
std::shared_ptr<T> end_in_its_process(std::shared_ptr<T> owned) {
  T* const object = owned.get();
  return std::shared_ptr<T>(object, EndInItsProcess{{}, [its = std::move(owned)]() mutable { its.reset(); }});
}

// Of a pointer with that deleter, or of one into its object.
template <class T>
bool is_of_parent(const std::shared_ptr<T>& shared) {
  if (fork_count() == 0) [[likely]]
    return false;
  const auto* deleter = std::get_deleter<EndInItsProcess>(shared);
  return deleter != nullptr && deleter->birth.is_of_parent();
}

// A shared pointer that raises where its object is the parent's.
template <class T>
class SharedHere {
 public:
  SharedHere(std::shared_ptr<T> shared) : shared_(std::move(shared)) {}  // NOLINT: as a plain pointer
  const std::shared_ptr<T>& get() const {
    if (ashlar::python::is_of_parent(shared_)) [[unlikely]]
      raise_of_parent();
    return shared_;
  }
  T* operator->() const { return get().get(); }
  T& operator*() const { return *get(); }
  operator const std::shared_ptr<T>&() const { return get(); }  // NOLINT: as a plain pointer

 private:
  std::shared_ptr<T> shared_;
};

// An optional whose content the child of its process leaves behind.
template <class T>
class OptionalHere : public std::optional<T> {
 public:
  using std::optional<T>::optional;
  OptionalHere(OptionalHere&&) noexcept = default;
  OptionalHere& operator=(OptionalHere&&) = delete;
  ~OptionalHere() { leave(); }
  // Hides that of std::optional.
  void reset() {
    leave();
    std::optional<T>::reset();
  }
  bool is_of_parent() const noexcept { return birth_.is_of_parent(); }
  // Raises where the content is the parent's. Returns this.
  const OptionalHere& here() const {
    if (this->has_value() && is_of_parent()) raise_of_parent();
    return *this;
  }

 private:
  void leave() {
    if (this->has_value() && birth_.is_of_parent()) leave_behind(*std::move(*this));
  }
  Birth birth_;
};

}  // namespace ashlar::python
