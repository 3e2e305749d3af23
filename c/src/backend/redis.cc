#include "ashlar/backend/redis/redis_volume.h"

#include "c/src/backends.h"

namespace ashlar::c_interface {

void add_redis_volumes(tiers::VolumeRegistry& kinds) {
  kinds.add("redis", backend::redis::attach);
}

}  // namespace ashlar::c_interface
