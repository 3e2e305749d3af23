#include "ashlar/backend/s3/s3_volume.h"

#include "c/src/backends.h"

namespace ashlar::c_interface {

void add_s3_volumes(tiers::VolumeRegistry& kinds) {
  kinds.add("s3", backend::s3::attach);
}

}  // namespace ashlar::c_interface
