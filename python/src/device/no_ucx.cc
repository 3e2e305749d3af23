#include "../remote.h"

namespace ashlar::python {

Result<std::shared_ptr<transfer::RemoteTransport>> ucx_transport(const std::string&) {
  return make_error(ErrorCode::kUnsupported,
                    "transport ucx: this package was built without UCX; build it where libucx-dev is, or use "
                    "loopback within one machine");
}

}  // namespace ashlar::python
