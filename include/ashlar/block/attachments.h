// Attachments: values of any type attached to a registered hash, found again by their type.
//
// A type is attached uniquely (one value, replaced by the next) or many times (a growing list); the first
// attachment of a type decides, and the other form is then an error until the last value is detached. Values
// live until they are detached, or the last handle of the hash is gone.
//
//   handle.attach_unique(TenantWeight{7});
//   handle.get<TenantWeight>().with_unique([](const TenantWeight& weight) { … });
//
// Thread safety: thread-safe. A value is visited under a lock of its own type on its hash. Eviction backends
//                may visit under their store's lock, so a visitor must not touch a hash and must not call a
//                manager; it may look hashes up in the registry, and visit other types.
// Complexity:    O(types on the hash) to find a type, then O(1). Attaching allocates, visiting does not.
// Invariant:     all values of one type on one hash are attached in the same form.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"

namespace ashlar::block {
namespace detail {

// The values of one type on one hash, type-erased.
struct AttachmentBase {
  virtual ~AttachmentBase() = default;
};

// All values of one type on one hash.
template <class T>
struct Attachment final : AttachmentBase {
  // Space for the first value is reserved: a type with an attachment has a value, or had one.
  explicit Attachment(bool is_unique) : unique(is_unique) { values.reserve(1); }
  Mutex mu;
  bool unique ASHLAR_GUARDED_BY(mu);
  std::vector<T> values ASHLAR_GUARDED_BY(mu);
};

struct Entry;
// The attachment of `type`, created by `make` if missing; null when there is none and `make` is null.
std::shared_ptr<AttachmentBase> find_attachment(Entry& entry, std::type_index type,
                                                std::shared_ptr<AttachmentBase> (*make)());
// The error for using the other form.
Error attachment_mode_error(bool wants_unique);

}  // namespace detail

// The attachments of type T on one hash, as they are when a visit begins.
template <class T>
class TypedAttachments {
 public:
  explicit TypedAttachments(std::shared_ptr<detail::AttachmentBase> attachment)
      : attachment_(std::static_pointer_cast<detail::Attachment<T>>(std::move(attachment))) {}

  // True when no value of the type is attached.
  bool empty() const {
    if (!attachment_) return true;
    const MutexLock lock(attachment_->mu);
    return attachment_->values.empty();
  }

  // Calls visit(const T&) on the unique value. Returns false, without a call, when there is none.
  template <class F>
  bool with_unique(F&& visit) const {
    return visit_unique([&](T& value) { visit(std::as_const(value)); });
  }
  // The same with T&, to change the value in place.
  template <class F>
  bool with_unique_mut(F&& visit) {
    return visit_unique(std::forward<F>(visit));
  }
  // Calls visit(std::span<const T>) on the values attached many times. Returns false when there are none.
  template <class F>
  bool with_multiple(F&& visit) const {
    return visit_values([&](std::span<T> values) { visit(std::span<const T>(values)); }, /*unique=*/false);
  }
  // The same with std::span<T>.
  template <class F>
  bool with_multiple_mut(F&& visit) {
    return visit_values(std::forward<F>(visit), /*unique=*/false);
  }
  // Calls visit(std::span<const T>) on the values, unique or many. Returns false when there are none.
  template <class F>
  bool with_all(F&& visit) const {
    return visit_any([&](std::span<T> values) { visit(std::span<const T>(values)); });
  }
  // The same with std::span<T>.
  template <class F>
  bool with_all_mut(F&& visit) {
    return visit_any(std::forward<F>(visit));
  }

 private:
  template <class F>
  bool visit_any(F&& visit) const {
    if (!attachment_) return false;
    const MutexLock lock(attachment_->mu);
    if (attachment_->values.empty()) return false;
    std::forward<F>(visit)(std::span<T>(attachment_->values));
    return true;
  }
  template <class F>
  bool visit_values(F&& visit, bool unique) const {
    if (!attachment_) return false;
    const MutexLock lock(attachment_->mu);
    if (attachment_->values.empty() || attachment_->unique != unique) return false;
    std::forward<F>(visit)(std::span<T>(attachment_->values));
    return true;
  }
  template <class F>
  bool visit_unique(F&& visit) const {
    return visit_values([&](std::span<T> values) { visit(values.front()); }, /*unique=*/true);
  }

  std::shared_ptr<detail::Attachment<T>> attachment_;
};

namespace detail {

// Adds the value, or replaces the unique one. The replaced value is destroyed outside the lock.
template <class T, bool kUnique>
Result<void> attach(Entry& entry, T value) {
  static_assert(!std::is_same_v<T, bool>, "attach a type of your own, so that its meaning has a name");
  return unless_out_of_memory([&]() -> Result<void> {
    std::vector<T> replaced;  // destroyed after the lock
    if constexpr (kUnique) replaced.reserve(1);
    auto base = find_attachment(entry, typeid(T), []() -> std::shared_ptr<AttachmentBase> {
      return std::make_shared<Attachment<T>>(kUnique);
    });
    auto attachment = std::static_pointer_cast<Attachment<T>>(std::move(base));
    const MutexLock lock(attachment->mu);
    if (attachment->values.empty()) attachment->unique = kUnique;
    if (attachment->unique != kUnique) return attachment_mode_error(kUnique);
    if constexpr (kUnique) replaced.swap(attachment->values);
    attachment->values.push_back(std::move(value));
    return {};
  });
}

// Removes the values for which gone(const T&) is true; they are destroyed outside the lock.
template <class T, class F>
std::size_t detach_if(Entry& entry, F&& gone) {
  auto base = find_attachment(entry, typeid(T), nullptr);
  if (!base) return 0;
  const auto attachment = std::static_pointer_cast<Attachment<T>>(std::move(base));
  std::vector<T> removed;  // destroyed after the lock
  const MutexLock lock(attachment->mu);
  removed.reserve(attachment->values.size());
  std::vector<T>& values = attachment->values;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (gone(std::as_const(values[i]))) {
      removed.push_back(std::move(values[i]));
    } else {
      if (kept != i) values[kept] = std::move(values[i]);
      ++kept;
    }
  }
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(kept), values.end());
  return removed.size();
}

}  // namespace detail
}  // namespace ashlar::block
