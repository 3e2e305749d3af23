#include "apps/ashlar/host_port.h"

#include <algorithm>
#include <cctype>

namespace ashlar::apps {
namespace {

// All interfaces, as a listener writes it.
bool is_everywhere(std::string_view host) {
  return host == "*" || host == "0.0.0.0" || host == "[::]" || host == "::";
}

}  // namespace

HostPort HostPort::parse(std::string_view place, std::uint32_t default_port) {
  if (place.starts_with("tcp://")) place.remove_prefix(6);
  HostPort out;
  if (place.find("://") != std::string_view::npos) {
    out.host = place;
    return out;
  }
  while (place.ends_with('/')) place.remove_suffix(1);
  const std::size_t colon = place.rfind(':');
  const std::size_t bracket = place.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  out.port = has_port ? std::string(place.substr(colon + 1)) : std::to_string(default_port);
  out.port.erase(0, std::min(out.port.find_first_not_of('0'), out.port.size()));
  out.host = has_port ? place.substr(0, colon) : place;
  std::ranges::transform(out.host, out.host.begin(), [](unsigned char c) { return std::tolower(c); });
  if (out.host.ends_with('.') && out.host.size() > 1) out.host.pop_back();
  if (out.host == "[::1]" || out.host == "::1" || out.host == "ip6-localhost" || out.host.starts_with("127."))
    out.host = "localhost";
  return out;
}

bool HostPort::may_reach(const HostPort& listener) const {
  if (port != listener.port) return false;
  // A client connecting to 0.0.0.0 reaches this machine.
  const bool is_here = host == "localhost" || is_everywhere(host);
  return host == listener.host || (is_here && (listener.host == "localhost" || is_everywhere(listener.host)));
}

}  // namespace ashlar::apps
