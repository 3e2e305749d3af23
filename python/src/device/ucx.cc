#include "../remote.h"
#include "ashlar/backend/ucx/ucx_transport.h"

namespace ashlar::python {

Result<std::shared_ptr<transfer::RemoteTransport>> ucx_transport(const std::string& transports) {
  backend::ucx::UcxOptions options;
  options.transports = transports;
  ASHLAR_TRY(auto made, backend::ucx::UcxTransport::create(options));
  return std::shared_ptr<transfer::RemoteTransport>(std::move(made));
}

}  // namespace ashlar::python
