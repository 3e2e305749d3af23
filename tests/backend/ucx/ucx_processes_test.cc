// The remote tier over UCX: nodes in processes of their own, over TCP, or over the transports that
// ASHLAR_NODE_TRANSPORTS names, which child processes inherit.
#include <cstdlib>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "tiers/remote/processes_scenario.h"

namespace ashlar::tiers {

std::shared_ptr<transfer::RemoteTransport> node_transport() {
  backend::ucx::UcxOptions options;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets it
  if (const char* const named = std::getenv("ASHLAR_NODE_TRANSPORTS")) options.transports = named;
  return backend::ucx::UcxTransport::create(options).value();
}

}  // namespace ashlar::tiers

int main(int argc, char** argv) {
  return ashlar::tiers::play_scenarios(argc, argv);
}
