// UcxLibrary: the functions of libucp, which is loaded when the first transport is made.
//
// Not linked: a program that has this leaf starts where UCX is not installed, and pays for UCX only when it
// uses it. libucs installs handlers of signals and patches the allocator's calls as soon as it is loaded.
//
// Thread safety: thread-safe.
#pragma once

#include <ucp/api/ucp.h>

#include "ashlar/base/result.h"

namespace ashlar::backend::ucx {

// Every function that is called, by its own name.
#define ASHLAR_UCX_FUNCTIONS(X)     \
  X(ucp_am_send_nbx)                \
  X(ucp_cleanup)                    \
  X(ucp_config_modify)              \
  X(ucp_config_read)                \
  X(ucp_config_release)             \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_create)                  \
  X(ucp_ep_rkey_unpack)             \
  X(ucp_get_version)                \
  X(ucp_init_version)               \
  X(ucp_listener_create)            \
  X(ucp_listener_destroy)           \
  X(ucp_listener_query)             \
  X(ucp_mem_map)                    \
  X(ucp_mem_query)                  \
  X(ucp_mem_unmap)                  \
  X(ucp_request_free)               \
  X(ucp_rkey_buffer_release)        \
  X(ucp_rkey_destroy)               \
  X(ucp_rkey_pack)                  \
  X(ucp_rkey_ptr)                   \
  X(ucp_worker_arm)                 \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_address)         \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_progress)            \
  X(ucp_worker_release_address)     \
  X(ucp_worker_set_am_recv_handler) \
  X(ucs_status_string)

struct UcxLibrary {
#define ASHLAR_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  ASHLAR_UCX_FUNCTIONS(ASHLAR_UCX_MEMBER)
#undef ASHLAR_UCX_MEMBER
};

// Loads it, once for the process. Errors: kUnsupported: it is not there, or lacks a function.
Result<void> load_ucx();
// Requires: load_ucx() has succeeded.
const UcxLibrary& ucx() noexcept;

}  // namespace ashlar::backend::ucx
