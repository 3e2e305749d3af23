// start_thread: starts a library thread. It blocks all signals of the program; running out of threads is an
// error.
//
// Thread safety: free function.
#pragma once

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include "ashlar/base/result.h"

namespace ashlar {

// Errors: kCapacity with the system's reason.
template <class F>
Result<void> start_thread(std::thread* out, F&& run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  Result<void> result;
  try {
    *out = std::thread(std::forward<F>(run));
  } catch (const std::system_error& error) {
    result = make_error(ErrorCode::kCapacity, "a thread cannot be started: %s", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace ashlar
