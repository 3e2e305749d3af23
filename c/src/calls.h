// What every function of the C interface is made of: a body that returns an Outcome, run where no exception
// leaves it; its failure becomes a status and the thread's message.
//
// Thread safety: free functions; the message belongs to its thread.
#pragma once

#include <pthread.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/sequence_error.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar_c.h"
#include "c/src/handle_table.h"
#include "c/src/struct_sizes.h"

namespace ashlar::c_interface {

// Why a call was refused: an Error, or a handle that is none.
struct Refusal {
  Refusal(ashlar_status its_status, std::string its_message)
      : status(its_status), message(std::move(its_message)) {}
  Refusal(Error error);                            // NOLINT(google-explicit-constructor)
  Refusal(const block::SequenceError& error);      // NOLINT(google-explicit-constructor)
  Refusal(const block::AllocationRefusal& error);  // NOLINT(google-explicit-constructor)

  ashlar_status status;
  std::string message;
};

template <class T = void>
using Outcome = Result<T, Refusal>;

ashlar_status status_of(ErrorCode code) noexcept;
// Sets the thread's message. Returns the status.
ashlar_status report(const Refusal& refusal) noexcept;
ashlar_status report_exception() noexcept;  // the one being handled
const char* last_error() noexcept;

Refusal invalid_handle(HandleKind kind, std::uint64_t handle);
Refusal invalid_argument(const char* format, ...) __attribute__((format(printf, 1, 2)));
Refusal not_ready(const char* format, ...) __attribute__((format(printf, 1, 2)));
Refusal null_pointer(const char* name);

template <class F>
ashlar_status call(F&& body) noexcept {
  try {
    Outcome<> done = std::forward<F>(body)();
    return done ? ASHLAR_OK : report(done.error());
  } catch (...) {
    return report_exception();
  }
}

// Holds back pthread_cancel() in its scope: the unwinding of a cancelled thread would end the process where
// it meets a function that may not throw.
class NoCancellation {
 public:
  NoCancellation() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = 0;
};

// For calls that wait, call back, or use files and the network. Others have no point at which a thread could
// be cancelled, and are spared what this costs.
template <class F>
ashlar_status waiting_call(F&& body) noexcept {
  const NoCancellation held;
  return call(std::forward<F>(body));
}

// The object of a handle, alive for as long as the reference.
template <class T>
Outcome<std::shared_ptr<T>> object_of(std::uint64_t handle) {
  std::shared_ptr<T> object = HandleTable::of_process().find<T>(handle);
  if (object == nullptr) return invalid_handle(T::kKind, handle);
  return object;
}
template <class T>
std::uint64_t open_handle(std::shared_ptr<T> object) {
  return HandleTable::of_process().add(T::kKind, std::move(object));
}
// Takes the handle away. The object dies with its last user.
template <class T>
Outcome<> close_handle(std::uint64_t handle) {
  if (HandleTable::of_process().remove(T::kKind, handle) == nullptr) return invalid_handle(T::kKind, handle);
  return {};
}

// The sizes that a struct can have in any header: that of its first version, and larger ones with padding.
struct SizeRule {
  std::size_t least;
  std::size_t alignment;
};
template <class T>
inline constexpr SizeRule kSizeRule = {kLeastSize<T>, alignof(T)};

// Errors: ASHLAR_INVALID_ARGUMENT: no size that this struct can have.
Outcome<> check_size(std::size_t size, SizeRule rule, const char* name);
// Whether a field is set that this library has no use for: a newer one may have.
template <class T>
bool sets_reserved(const T& options) noexcept {
  bool set = false;
  if constexpr (requires { options.reserved; }) set = options.reserved != 0;
  if constexpr (requires { options.reserved2; }) set = set || options.reserved2 != 0;
  if constexpr (requires { options.reserved3; }) set = set || options.reserved3 != 0;
  return set;
}
Refusal newer_option(const char* name);

// Options as this library knows them: fields that the caller's header lacks are zero. Errors:
// ASHLAR_INVALID_ARGUMENT: the size; ASHLAR_UNSUPPORTED: a newer field is set, or a reserved one.
Outcome<> copy_options(const void* from, void* to, SizeRule rule, std::size_t known, const char* name);
template <class T>
Outcome<T> options_of(const T* from, const char* name) {
  T options = {};
  options.struct_size = sizeof(T);
  if (from == nullptr) return options;
  ASHLAR_RETURN_IF_ERROR(copy_options(from, &options, kSizeRule<T>, sizeof(T), name));
  if (sets_reserved(options)) return newer_option(name);
  return options;
}
// Writes as much of an answer as the caller's struct has room for.
template <class T>
Outcome<> write_answer(const T& from, T* to, const char* name) {
  if (to == nullptr) return null_pointer(name);
  const std::size_t size = to->struct_size;
  ASHLAR_RETURN_IF_ERROR(check_size(size, kSizeRule<T>, name));
  std::memcpy(to, &from, size < sizeof(T) ? size : sizeof(T));
  to->struct_size = static_cast<std::uint32_t>(size);
  return {};
}

// `n` elements at `from`. Errors: ASHLAR_INVALID_ARGUMENT: null, or more than memory can hold.
template <class To, class From>
Outcome<std::span<To>> elements(From* from, std::size_t n, const char* name) {
  static_assert(sizeof(To) == sizeof(From) && alignof(To) <= alignof(From));
  if (n == 0) return std::span<To>();
  if (from == nullptr) return null_pointer(name);
  if (n > std::numeric_limits<std::size_t>::max() / 2 / sizeof(From))
    return invalid_argument("%zu elements of %s are more than memory can hold", n, name);
  // The types have the same bytes (asserted above and beside each type), and C wrote them elsewhere.
  return std::span<To>(reinterpret_cast<To*>(from), n);
}

// Errors: ASHLAR_INVALID_ARGUMENT: null, too many, or a reserved field that is set.
Outcome<std::vector<tokens::MultimodalRun>> runs_of(const ashlar_multimodal_run* runs, std::size_t n);

// For calls that wait before they write a list.
inline Outcome<> check_list(const void* out, std::size_t capacity, const std::size_t* count) {
  if (count == nullptr) return null_pointer("count");
  if (out == nullptr && capacity != 0) return null_pointer("out");
  return {};
}
// Copies a list into the caller's buffer. Errors: ASHLAR_CAPACITY, with `count` written.
template <class From, class To>
Outcome<> write_list(std::span<const From> list, To* out, std::size_t capacity, std::size_t* count) {
  static_assert(sizeof(To) == sizeof(From));
  ASHLAR_RETURN_IF_ERROR(check_list(out, capacity, count));
  *count = list.size();
  if (list.size() > capacity)
    return Refusal(ASHLAR_CAPACITY, "the buffer has room for " + std::to_string(capacity) +
                                        " elements; there are " + std::to_string(list.size()));
  if (!list.empty()) std::memcpy(static_cast<void*>(out), list.data(), list.size_bytes());
  return {};
}

// Options that name how much memory is taken at once. Errors: ASHLAR_INVALID_ARGUMENT with the field.
Outcome<std::size_t> event_capacity_of(std::uint64_t events);
Outcome<std::uint32_t> block_count_of(std::uint32_t blocks, const char* name);

// Text of the caller; null is "".
inline std::string text_of(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

// A time of the caller as one that no sum with now() overflows.
inline Clock::Duration duration_of(std::uint64_t nanoseconds) noexcept {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 61;  // 73 years
  return Clock::Duration(static_cast<std::int64_t>(nanoseconds < kMost ? nanoseconds : kMost));
}
// nullopt: no limit.
inline std::optional<Clock::TimePoint> deadline_of(std::uint64_t timeout_ns) {
  if (timeout_ns == ASHLAR_FOREVER) return std::nullopt;
  return Clock::real().now() + duration_of(timeout_ns);
}

}  // namespace ashlar::c_interface
