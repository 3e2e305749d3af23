// Where the build has no HTTP.
#include "apps/ashlar/page_server.h"

namespace ashlar::apps {

Result<std::unique_ptr<PageServer>> PageServer::start(service::Gateway&, std::uint16_t, std::FILE*) {
  return Error(ErrorCode::kUnsupported, "this build has no HTTP: install libboost1.81-dev and libssl-dev");
}

}  // namespace ashlar::apps
