// HostPort: where a feed of a network is, as far as its address says it.
//
// Thread safety: plain value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ashlar::apps {

struct HostPort {
  std::string host;  // small letters; "localhost" for every name of this machine that needs no look-up
  std::string port;

  // Of HOST:PORT, of an IPv6 address in brackets, or of tcp://HOST:PORT. What is neither is a host as a
  // whole.
  static HostPort parse(std::string_view place, std::uint32_t default_port);
  // Whether who connects here may meet who listens there.
  bool may_reach(const HostPort& listener) const;
};

}  // namespace ashlar::apps
