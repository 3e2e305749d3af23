// Nodes in processes of their own, over the loopback transport; where there is UCX, over the transports of it
// that ASHLAR_NODE_TRANSPORTS names, which child processes inherit.
#include <cstdlib>

#include "tiers/remote/processes_scenario.h"
#ifdef ASHLAR_NODES_OVER_UCX
#include "ashlar/backend/ucx/ucx_transport.h"
#endif

namespace ashlar::tiers {

std::shared_ptr<transfer::RemoteTransport> node_transport() {
#ifdef ASHLAR_NODES_OVER_UCX
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets it
  if (const char* const named = std::getenv("ASHLAR_NODE_TRANSPORTS"))
    return backend::ucx::UcxTransport::create({.transports = named}).value();
#endif
  return nullptr;
}

}  // namespace ashlar::tiers

int main(int argc, char** argv) {
  return ashlar::tiers::play_scenarios(argc, argv);
}
