#include "c/src/backends.h"

namespace ashlar::c_interface {

Result<std::shared_ptr<transfer::RemoteTransport>> ucx_transport(const char* transports) {
  return make_error(ErrorCode::kUnsupported,
                    "remote_ucx '%s': UCX is not built in; build the library where libucx-dev is, or leave "
                    "it null within one machine",
                    transports);
}

}  // namespace ashlar::c_interface
