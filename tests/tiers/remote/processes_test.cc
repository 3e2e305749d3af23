// Nodes in processes of their own, over the loopback transport.
#include "tiers/remote/processes_scenario.h"

namespace ashlar::tiers {

std::shared_ptr<transfer::RemoteTransport> node_transport() {
  return nullptr;
}

}  // namespace ashlar::tiers

int main(int argc, char** argv) {
  return ashlar::tiers::play_scenarios(argc, argv);
}
