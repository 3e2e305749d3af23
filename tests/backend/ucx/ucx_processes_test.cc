// The remote tier over UCX: nodes in processes of their own, over TCP.
#include "ashlar/backend/ucx/ucx_transport.h"
#include "tiers/remote/processes_scenario.h"

namespace ashlar::tiers {

std::shared_ptr<transfer::RemoteTransport> node_transport() {
  return backend::ucx::UcxTransport::create().value();
}

}  // namespace ashlar::tiers

int main(int argc, char** argv) {
  return ashlar::tiers::play_scenarios(argc, argv);
}
