#include <cinttypes>
#include <cstdio>

#include "ashlar/transfer/remote_transport.h"

namespace ashlar::transfer {

std::string AgentIdentity::to_string() const {
  char text[40];
  std::snprintf(text, sizeof text, "%016" PRIx64 "/%016" PRIx64, agent, incarnation);
  return text;
}

}  // namespace ashlar::transfer
