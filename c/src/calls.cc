#include "c/src/calls.h"

#include <cstdarg>
#include <cstdio>
#include <exception>

namespace ashlar::c_interface {
namespace {

// The message of the thread. `fixed` stands in where there was no memory for one.
struct LastMessage {
  std::string text;
  const char* fixed = nullptr;
};
LastMessage& last_message() noexcept {
  thread_local LastMessage message;
  return message;
}

std::string formatted(const char* format, std::va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

}  // namespace

ashlar_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ASHLAR_INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return ASHLAR_NOT_FOUND;
    case ErrorCode::kAlreadyExists:
      return ASHLAR_ALREADY_EXISTS;
    case ErrorCode::kCapacity:
      return ASHLAR_CAPACITY;
    case ErrorCode::kNotReady:
      return ASHLAR_NOT_READY;
    case ErrorCode::kTimeout:
      return ASHLAR_TIMEOUT;
    case ErrorCode::kCancelled:
      return ASHLAR_CANCELLED;
    case ErrorCode::kCorruption:
      return ASHLAR_CORRUPTION;
    case ErrorCode::kIo:
      return ASHLAR_IO;
    case ErrorCode::kUnavailable:
      return ASHLAR_UNAVAILABLE;
    case ErrorCode::kUnsupported:
      return ASHLAR_UNSUPPORTED;
    case ErrorCode::kInternal:
      return ASHLAR_INTERNAL;
  }
  return ASHLAR_INTERNAL;
}

Refusal::Refusal(Error error) : status(status_of(error.code())), message(error.message()) {}
Refusal::Refusal(const block::SequenceError& error) : Refusal(error.to_error()) {}
Refusal::Refusal(const block::AllocationRefusal& error) : Refusal(error.to_error()) {}

ashlar_status report(const Refusal& refusal) noexcept {
  LastMessage& last = last_message();
  try {
    last.text = refusal.message;
    last.fixed = nullptr;
  } catch (...) {
    last.fixed = "out of memory";
  }
  return refusal.status;
}

ashlar_status report_exception() noexcept {
  LastMessage& last = last_message();
  try {
    throw;
  } catch (const std::bad_alloc&) {
    last.fixed = "out of memory; release something, or ask for less";
    return ASHLAR_CAPACITY;
  } catch (const std::exception& error) {
    try {
      return report(Refusal(ASHLAR_INTERNAL, error.what()));
    } catch (...) {
      last.fixed = "an exception, and no memory for its text";
    }
  } catch (...) {
    last.fixed = "an exception without a text";
  }
  return ASHLAR_INTERNAL;
}

const char* last_error() noexcept {
  const LastMessage& last = last_message();
  return last.fixed != nullptr ? last.fixed : last.text.c_str();
}

Refusal invalid_handle(HandleKind kind, std::uint64_t handle) {
  const std::string what = to_string(kind);
  if (handle == 0) return {ASHLAR_INVALID_HANDLE, "the handle of a " + what + " is zero; create one first"};
  return {ASHLAR_INVALID_HANDLE, "handle " + std::to_string(handle) + " is no open " + what +
                                     ": it was destroyed or consumed, or is of another kind"};
}

Refusal invalid_argument(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  Refusal refusal(ASHLAR_INVALID_ARGUMENT, formatted(format, arguments));
  va_end(arguments);
  return refusal;
}

Refusal not_ready(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  Refusal refusal(ASHLAR_NOT_READY, formatted(format, arguments));
  va_end(arguments);
  return refusal;
}

Refusal null_pointer(const char* name) {
  return invalid_argument("%s is a null pointer", name);
}

Outcome<> copy_options(const void* from, void* to, std::size_t known, const char* name) {
  constexpr std::uint32_t kMost = 4096;
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size < sizeof size || size > kMost)
    return invalid_argument("struct_size of %s is %u; initialise it with its ..._INIT macro", name, size);
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] != 0)
      return Refusal(ASHLAR_UNSUPPORTED, std::string(name) +
                                             " has an option that this library, older than the "
                                             "header, does not know; leave it zero");
  }
  std::memcpy(to, from, size < known ? size : known);
  return {};
}

}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

uint32_t ashlar_abi_version(void) {
  return ASHLAR_C_ABI_VERSION;
}

const char* ashlar_version(void) {
  return ASHLAR_VERSION;
}

const char* ashlar_status_name(ashlar_status status) {
  switch (status) {
    case ASHLAR_OK:
      return "ok";
    case ASHLAR_INVALID_HANDLE:
      return "invalid_handle";
    default:
      break;
  }
  for (unsigned code = 0; code <= static_cast<unsigned>(ashlar::ErrorCode::kInternal); ++code) {
    const auto known = static_cast<ashlar::ErrorCode>(code);
    if (status_of(known) == status) return ashlar::to_string(known).data();  // text of the program: ends in 0
  }
  return "unknown";
}

const char* ashlar_last_error(void) {
  return last_error();
}

ashlar_status ashlar_open_handles(size_t* count) {
  return call([&]() -> Outcome<> {
    if (count == nullptr) return null_pointer("count");
    *count = HandleTable::of_process().open();
    return {};
  });
}
