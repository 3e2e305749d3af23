// HttpAddress: where a worker listens.
//
// Thread safety: values.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace ashlar::service {

struct HttpAddress {
  std::string host;
  std::uint16_t port = 80;
  bool tls = false;

  // "host:port", with brackets around an IPv6 address.
  std::string authority() const;
  friend auto operator<=>(const HttpAddress&, const HttpAddress&) = default;
};

}  // namespace ashlar::service
