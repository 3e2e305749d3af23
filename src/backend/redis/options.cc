#include "backend/redis/options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace ashlar::backend::redis {
namespace {

constexpr int kDefaultPort = 6379;
constexpr std::uint64_t kMaxObject = 512ULL * 1024 * 1024;
constexpr std::size_t kMaxPrefix = 128;

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

// False on error. Credentials in the location, as in URLs, are one.
bool read_location(std::string_view location, RedisOptions& options) {
  constexpr std::string_view kUnix = "unix:";
  if (location.starts_with(kUnix)) {
    options.socket = location.substr(kUnix.size());
    return options.socket.size() > 1 && options.socket.size() < 108 && options.socket.front() == '/';
  }
  std::string_view port;
  if (location.starts_with('[')) {
    const std::size_t end = location.find(']');
    if (end == std::string_view::npos) return false;
    options.host = location.substr(1, end - 1);
    port = location.substr(end + 1);
  } else {
    const std::size_t colon = std::min(location.find(':'), location.size());
    options.host = location.substr(0, colon);
    port = location.substr(colon);
  }
  options.port = kDefaultPort;
  if (!port.empty()) {
    if (port.front() != ':') return false;
    port.remove_prefix(1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), options.port);
    if (error != std::errc() || end != port.data() + port.size() || options.port < 1 || options.port > 65535)
      return false;
  }
  return !options.host.empty() && std::ranges::all_of(options.host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == ':' || c == '%';
  });
}

}  // namespace

Result<RedisOptions> RedisOptions::read(const tiers::VolumeDescriptor& descriptor) {
  tiers::VolumeOptions given(descriptor);
  const auto milliseconds = [&](const char* name, std::uint64_t otherwise) {
    return std::chrono::milliseconds(given.number(name, otherwise, 1, 24ULL * 3600 * 1000));
  };
  RedisOptions options;
  options.username = given.text("username");
  options.password = given.text("password");
  options.prefix = given.text("prefix");
  options.db = given.number("db", 0, 0, 1'000'000);
  options.ttl_seconds = given.number("ttl_seconds", 0, 0, 10ULL * 365 * 24 * 3600);
  options.max_object_bytes = given.number("max_object_bytes", kMaxObject, 1, kMaxObject);
  options.pipeline = given.number("pipeline", 64, 1, 65536);
  options.idle_connections = given.number("idle_connections", 8, 0, 1024);
  options.retries = given.number("retries", 3, 0, 100);
  options.backoff = milliseconds("backoff_ms", 50);
  options.connect_timeout = milliseconds("connect_timeout_ms", 3000);
  options.timeout = milliseconds("timeout_ms", 5000);
  options.deadline = milliseconds("deadline_ms", 60'000);
  ASHLAR_RETURN_IF_ERROR(given.finish());
  const char* problem = nullptr;
  if (!read_location(descriptor.location, options)) {
    problem = "its location is not host, host:port, [address]:port or unix:PATH";
  } else if (!options.username.empty() && options.password.empty()) {
    problem = "option 'username' needs 'password'";
  } else if (options.prefix.size() > kMaxPrefix || !is_plain(options.prefix)) {
    problem = "option 'prefix' has more than 128 characters, a space or a control character";
  }
  if (problem != nullptr)
    return make_error(ErrorCode::kInvalidArgument, "volume '%s': %s", descriptor.name.c_str(), problem);
  return options;
}

std::string RedisOptions::describe() const {
  std::string text = "redis ";
  if (!socket.empty()) {
    text += "unix:" + socket;
  } else {
    text += (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  }
  text += " db " + std::to_string(db);
  return prefix.empty() ? text : text + " " + prefix;
}

}  // namespace ashlar::backend::redis
