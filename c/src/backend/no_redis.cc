#include "c/src/backends.h"

namespace ashlar::c_interface {

void add_redis_volumes(tiers::VolumeRegistry& kinds) {
  kinds.add("redis", [](const tiers::VolumeDescriptor& descriptor) -> Result<std::unique_ptr<tiers::Volume>> {
    return make_error(ErrorCode::kUnsupported,
                      "volume %s: kind \"redis\" is not built in; build the library where hiredis is",
                      descriptor.name.c_str());
  });
}

}  // namespace ashlar::c_interface
