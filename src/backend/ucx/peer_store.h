// store_for_peer(): puts bytes that a peer sent into memory that it may write.
//
// The peer chooses when, as it would with an adapter that writes without asking the processor, and as it does
// over the loopback transport, where it writes by itself. What orders its writes with what this process does
// is what the two say to each other: a put has ended before its commit is sent. A peer that is late, or
// hostile, may write while this process reads. So nothing may depend on such bytes before they were copied
// and compared, and only memory that was registered for writing is touched at all.
//
// ThreadSanitizer knows neither the other process nor the sockets between, so it is not shown these stores,
// as it is not shown those of an adapter. It sees everything around them: the table, its lock, the request.
//
// Thread safety: free function.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace ashlar::backend::ucx {

#if defined(__SANITIZE_THREAD__)
#define ASHLAR_UCX_HIDES_STORES
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ASHLAR_UCX_HIDES_STORES
#endif
#endif

#ifdef ASHLAR_UCX_HIDES_STORES
// volatile: the compiler must not make a call of memcpy of it, which is shown to the sanitizer.
__attribute__((noinline, no_sanitize("thread"))) inline void store_for_peer(
    std::byte* to, std::span<const std::byte> bytes) noexcept {
  volatile std::byte* const target = to;
  for (std::size_t i = 0; i < bytes.size(); ++i) target[i] = bytes[i];
}
#undef ASHLAR_UCX_HIDES_STORES
#else
inline void store_for_peer(std::byte* to, std::span<const std::byte> bytes) noexcept {
  std::memcpy(to, bytes.data(), bytes.size());
}
#endif

}  // namespace ashlar::backend::ucx
