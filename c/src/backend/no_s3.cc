#include "c/src/backends.h"

namespace ashlar::c_interface {

void add_s3_volumes(tiers::VolumeRegistry& kinds) {
  kinds.add("s3", [](const tiers::VolumeDescriptor& descriptor) -> Result<std::unique_ptr<tiers::Volume>> {
    return make_error(ErrorCode::kUnsupported,
                      "volume %s: kind \"s3\" is not built in; build the library where libcurl is",
                      descriptor.name.c_str());
  });
}

}  // namespace ashlar::c_interface
