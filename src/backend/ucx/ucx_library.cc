#include "backend/ucx/ucx_library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::backend::ucx {
namespace {

constexpr const char* kName = "libucp.so.0";

// The sanitizers have functions of their own where UCX would patch those of the C library.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ASHLAR_UCX_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ASHLAR_UCX_SANITIZED 1
#endif
#endif
void leave_memory_calls_alone() {
#ifdef ASHLAR_UCX_SANITIZED
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);  // NOLINT(concurrency-mt-unsafe): before UCX reads it
  setenv("UCX_MEM_EVENTS", "no", 0);            // NOLINT(concurrency-mt-unsafe)
#endif
}

Mutex loading;
std::atomic<const UcxLibrary*> loaded{nullptr};

std::string why() {
  const char* const text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

}  // namespace

Result<void> load_ucx() {
  if (loaded.load(std::memory_order_acquire) != nullptr) return {};  // acquire: pairs with the release below
  const MutexLock lock(loading);
  if (loaded.load(std::memory_order_relaxed) != nullptr) return {};  // relaxed: written under this lock
  leave_memory_calls_alone();
  // For good: its thread and its handlers of signals run code of it.
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    return make_error(ErrorCode::kUnsupported, "UCX cannot be loaded (%s); install it (Debian: libucx0)",
                      why().c_str());
  static UcxLibrary functions;
#define ASHLAR_UCX_FIND(name)                                                         \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(library, #name)); \
  if (functions.name == nullptr)                                                      \
    return make_error(ErrorCode::kUnsupported, "%s has no %s: UCX 1.13 or later is needed", kName, #name);
  ASHLAR_UCX_FUNCTIONS(ASHLAR_UCX_FIND)
#undef ASHLAR_UCX_FIND
  loaded.store(&functions, std::memory_order_release);  // release: pairs with the acquire of readers
  return {};
}

const UcxLibrary& ucx() noexcept {
  const UcxLibrary* const library = loaded.load(std::memory_order_acquire);  // acquire: as above
  ASHLAR_DCHECK(library != nullptr, "a function of UCX is called before it is loaded");
  return *library;
}

}  // namespace ashlar::backend::ucx
