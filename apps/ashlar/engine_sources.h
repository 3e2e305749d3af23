// How `ashlar serve` hears engines: through ZeroMQ where it was built in.
#pragma once

#include "ashlar/service/service.h"

namespace ashlar::apps {

// Empty if this build cannot hear any. Defined in zmq_engines.cc, or in no_zmq_engines.cc.
service::EngineSourceFactory engine_sources();

}  // namespace ashlar::apps
