// HostPort: the host and port of a network feed, as far as its address gives them.
//
// Thread safety: plain value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ashlar::apps {

struct HostPort {
  std::string host;  // lower case; "localhost" for every name of this machine that needs no look-up
  std::string port;

  // Parses HOST:PORT, an IPv6 address in brackets, or tcp://HOST:PORT. Anything else is a host as a whole.
  static HostPort parse(std::string_view place, std::uint32_t default_port);
  // Whether a client connecting here may reach a listener there.
  bool may_reach(const HostPort& listener) const;
};

}  // namespace ashlar::apps
