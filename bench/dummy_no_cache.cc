#include "dummy_cache.h"
#include "processes.h"

namespace ashlar::bench {

bool DummyCache::is_there() noexcept {
  return false;
}

std::unique_ptr<DummyCache> DummyCache::create(std::uint16_t, std::uint16_t) {
  fail("this build has no ZeroMQ to publish events with");
}

}  // namespace ashlar::bench
