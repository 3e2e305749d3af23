#include "c/src/calls.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <string_view>

namespace ashlar::c_interface {
namespace {

// The message of the thread. Nothing destroys it: handlers of atexit() still call this library.
thread_local constinit char last_message[1024] = {};

// Keeps as much as there is room for, in whole characters of UTF-8.
void keep_message(std::string_view text) noexcept {
  std::size_t size = std::min(text.size(), sizeof last_message - 1);
  if (size < text.size()) {
    while (size != 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  }
  std::memcpy(last_message, text.data(), size);
  last_message[size] = 0;
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
  keep_message(refusal.message);
  return refusal.status;
}

ashlar_status report_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    keep_message("out of memory; release something, or ask for less");
    return ASHLAR_CAPACITY;
  } catch (const std::exception& error) {
    keep_message(error.what());
  } catch (...) {
    keep_message("an exception without a text");
  }
  return ASHLAR_INTERNAL;
}

const char* last_error() noexcept {
  return last_message;
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

Outcome<std::size_t> event_capacity_of(std::uint64_t events) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 22;
  if (events <= kMost) return static_cast<std::size_t>(events);
  return invalid_argument("event_capacity is %llu; at most %llu events wait: drain more often",
                          static_cast<unsigned long long>(events), static_cast<unsigned long long>(kMost));
}

Outcome<std::uint32_t> block_count_of(std::uint32_t blocks, const char* name) {
  constexpr std::uint32_t kMost = std::uint32_t{1} << 26;
  if (blocks <= kMost) return blocks;
  return invalid_argument("%s is %u; at most %u: use larger blocks, or several managers", name, blocks,
                          kMost);
}

Outcome<> check_size(std::size_t size, SizeRule rule, const char* name) {
  constexpr std::size_t kMost = 4096;
  // One that ends within a field would leave half a pointer.
  if (size == rule.least || (size > rule.least && size <= kMost && size % rule.alignment == 0)) return {};
  return invalid_argument(
      "struct_size of %s is %zu, not %zu or a larger multiple of %zu; initialise it with its ..._INIT macro",
      name, size, rule.least, rule.alignment);
}

Refusal newer_option(const char* name) {
  return Refusal(ASHLAR_UNSUPPORTED, std::string(name) +
                                         " has an option that this library, older than the "
                                         "header, does not know; leave it zero");
}

Outcome<> copy_options(const void* from, void* to, SizeRule rule, std::size_t known, const char* name) {
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof size);
  ASHLAR_RETURN_IF_ERROR(check_size(size, rule, name));
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] != 0) return newer_option(name);
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
