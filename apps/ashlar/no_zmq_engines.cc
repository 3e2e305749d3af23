#include "apps/ashlar/engine_sources.h"

namespace ashlar::apps {

service::EngineSourceFactory engine_sources() {
  return {};
}

}  // namespace ashlar::apps
