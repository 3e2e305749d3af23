#include "ashlar/backend/ucx/ucx_transport.h"

#include "c/src/backends.h"

namespace ashlar::c_interface {

Result<std::shared_ptr<transfer::RemoteTransport>> ucx_transport(const char* transports) {
  backend::ucx::UcxOptions options;
  options.transports = transports;
  ASHLAR_TRY(auto made, backend::ucx::UcxTransport::create(options));
  return std::shared_ptr<transfer::RemoteTransport>(std::move(made));
}

}  // namespace ashlar::c_interface
