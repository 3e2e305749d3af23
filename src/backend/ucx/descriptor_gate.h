// DescriptorGate: workers that close descriptors keep others from opening any until they have caught up.
//
// UCX 1.13 names an event that it could not handle at once by its descriptor, and handles it at the end of
// the worker's next progress. If the descriptor was closed meanwhile and another worker was given the same
// number, UCX ends the process (async.c, `handler->async == async`; openucx/ucx pull request 9942 mends it).
// So calls that may close descriptors hold the gate together with the progress that follows them, and calls
// that open descriptors hold it alone. The gate is one for the process, as descriptors are.
//
// Connections that UCX's own thread accepts pass by the gate: a link whose path is idle is therefore
// destroyed without any further progress, and only one with operations in flight needs it.
//
// Thread safety: thread-safe. Not recursive. Taken after a link's worker_mu_; callbacks of UCX take the leaf
//                locks of docs/concurrency.md inside, whose holders never wait for the gate.
#pragma once

#include <pthread.h>

namespace ashlar::backend::ucx {

class DescriptorGate {
 public:
  // Progress, and what closes endpoints: many at once.
  class Closing {
   public:
    Closing() noexcept { pthread_rwlock_rdlock(&gate()); }
    ~Closing() { pthread_rwlock_unlock(&gate()); }
    Closing(const Closing&) = delete;
    Closing& operator=(const Closing&) = delete;
  };

  // What makes workers, endpoints and listeners: alone.
  class Opening {
   public:
    Opening() noexcept { pthread_rwlock_wrlock(&gate()); }
    ~Opening() { pthread_rwlock_unlock(&gate()); }
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
  };

 private:
  static pthread_rwlock_t& gate() noexcept {
    // Threads that progress their workers all the time must not starve the one that opens.
    static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    return lock;
  }
};

}  // namespace ashlar::backend::ucx
