// The Python objects of guards: a guard and the manager that it keeps alive.
//
// A guard is used up by its transition and by release(); its object is then empty and raises UsedGuard. A
// refused transition puts the guard back. Work without the GIL happens on guards that were taken out of their
// objects first, so that another thread finds the object empty instead of racing.
//
// Thread safety: every call needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>
#include <utility>

#include "ashlar/block/block_list.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/block/fence.h"
#include "errors.h"
#include "fork.h"
#include "gil.h"
#include "managers.h"

namespace ashlar::python {

using block::G1;

template <class Guard>
inline constexpr const char* kGuardName = "this guard";
template <>
inline constexpr const char* kGuardName<block::MutableBlock<G1>> = "this MutableBlock";
template <>
inline constexpr const char* kGuardName<block::PartialBlock<G1>> = "this PartialBlock";
template <>
inline constexpr const char* kGuardName<block::ScheduledBlock<G1>> = "this ScheduledBlock";
template <>
inline constexpr const char* kGuardName<block::InflightBlock<G1>> = "this InflightBlock";
template <>
inline constexpr const char* kGuardName<block::CompleteBlock<G1>> = "this CompleteBlock";
template <>
inline constexpr const char* kGuardName<block::ImmutableBlock<G1>> = "this ImmutableBlock";

// Blocks whose handling is worth giving up the GIL.
inline constexpr std::size_t kLongList = 64;

template <class Content>
inline constexpr bool kIsList = false;
template <class Guard>
inline constexpr bool kIsList<block::BlockList<Guard>> = true;

// Content: a guard, or a BlockList of guards.
template <class Content>
class GuardObject {
 public:
  GuardObject(ManagerPtr manager, Content content)
      : manager_(std::move(manager)), content_(std::move(content)) {}
  GuardObject(GuardObject&& other) noexcept = default;
  GuardObject& operator=(GuardObject&&) = delete;
  ~GuardObject() {
    if (kIsList<Content> || is_of_parent(manager_)) release();
  }

  bool used() const { return manager_ == nullptr; }
  void check() const {
    if (used()) [[unlikely]]
      raise_used(kGuardName<Content>);
    if (is_of_parent(manager_)) raise_of_parent();
  }
  Content& get() {
    check();
    return content_;
  }
  const ManagerPtr& manager() const {
    check();
    return manager_;
  }
  // Leaves the object empty.
  GuardObject take() {
    check();
    return std::move(*this);
  }
  // Content that take() took and a transition refused.
  void put_back(ManagerPtr manager, Content content) {
    content_ = std::move(content);
    manager_ = std::move(manager);
  }
  void release() {
    if (used()) return;
    if (is_of_parent(manager_)) {
      leave_behind(std::exchange(content_, Content()));
      manager_.reset();
      return;
    }
    if constexpr (kIsList<Content>) {
      if (content_.size() > kLongList) {
        const ManagerPtr manager = std::move(manager_);
        Content content = std::exchange(content_, Content());
        without_gil_in_destructor([&] { content = Content(); });
        return;
      }
    }
    content_ = Content();
    manager_.reset();
  }

 private:
  ManagerPtr manager_;  // destroyed after the content
  Content content_;
};

template <class Guard>
inline constexpr const char* kGuardName<block::BlockList<Guard>> = "this list of blocks";

using MutableObject = GuardObject<block::MutableBlock<G1>>;
using PartialObject = GuardObject<block::PartialBlock<G1>>;
using ScheduledObject = GuardObject<block::ScheduledBlock<G1>>;
using InflightObject = GuardObject<block::InflightBlock<G1>>;
using CompleteObject = GuardObject<block::CompleteBlock<G1>>;
using ImmutableObject = GuardObject<block::ImmutableBlock<G1>>;
using MutableListObject = GuardObject<block::BlockList<block::MutableBlock<G1>>>;
using CompleteListObject = GuardObject<block::BlockList<block::CompleteBlock<G1>>>;
using ImmutableListObject = GuardObject<block::BlockList<block::ImmutableBlock<G1>>>;

// A span of Python floats in seconds. InvalidArgument for what is no number; clamped to about 30 years.
Clock::Duration seconds_of(double seconds);

// InvalidArgument for a priority outside 0 to 100. `seconds` from now on; nullopt: forever.
block::BlockRetention retention_of(int priority, std::optional<double> seconds);
// One more reference; CapacityError when there are too many.
block::ImmutableBlock<G1> copy_of(const block::ImmutableBlock<G1>& block);

// A Pin or a Hold, which may outlive its manager; nullopt when it has ended.
template <class T>
struct EndingObject {
  OptionalHere<T> kept;
};
using PinObject = EndingObject<block::Pin>;
using HoldObject = EndingObject<block::Hold>;

// What `with` and release() need.
template <class Object>
void bind_guard(nanobind::class_<Object>& type) {
  namespace nb = nanobind;
  type.def(
          "__enter__",
          [](nb::handle_t<Object> self) {
            nb::cast<Object&>(self).check();
            return nb::borrow<nb::object>(self);
          },
          nb::sig("def __enter__(self) -> typing.Self"), "For `with`: itself.")
      .def(
          "__exit__", [](Object& self, nb::args) { self.release(); },
          nb::sig("def __exit__(self, *args: object) -> None"), "For `with`: release().")
      .def("release", &Object::release, "Gives the blocks back. Does nothing when this was used up before.")
      .def_prop_ro("used", &Object::used, "True after its transition and after release().");
}

}  // namespace ashlar::python
