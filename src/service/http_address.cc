#include <string>

#include "ashlar/service/passage.h"

namespace ashlar::service {

std::string HttpAddress::authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace ashlar::service
