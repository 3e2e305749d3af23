#include "ashlar/backend/nats/nats_options.h"

#include <algorithm>
#include <string_view>

#include "backend/nats/subjects.h"

namespace ashlar::backend::nats {
namespace {

bool is_url(std::string_view url) {
  for (const std::string_view scheme : {"nats://", "tls://"}) {
    if (url.starts_with(scheme)) {
      url.remove_prefix(scheme.size());
      return !url.empty() && url.front() != ':' && std::ranges::all_of(url, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '-' || c == '_' || c == ':' || c == '[' || c == ']';
      });
    }
  }
  return false;
}

// A secret in place of a path: 58 letters and digits, as in SUA...
bool is_seed(std::string_view text) {
  return text.size() == 58 && text.front() == 'S' &&
         std::ranges::all_of(text, [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '2' && c <= '7'); });
}

constexpr std::chrono::hours kDay(24);

}  // namespace

Result<void> NatsConnectionOptions::validate() const {
  const char* problem = nullptr;
  const int ways =
      int{!user.empty()} + int{!token.empty()} + int{!credentials_file.empty()} + int{!nkey.empty()};
  if (urls.empty()) {
    problem = "no URL is given; use nats://host:4222";
  } else if (!std::ranges::all_of(urls, is_url)) {
    // Omits the value: it may hold a password.
    problem =
        "a URL is not nats://host:port or tls://host:port; credentials go into user and password, or token";
  } else if (ways > 1) {
    problem = "more than one of user, token, credentials_file and nkey is given; keep one";
  } else if (user.empty() != password.empty()) {
    problem = "user and password come together";
  } else if (nkey.empty() != nkey_seed_file.empty()) {
    problem = "nkey and nkey_seed_file come together";
  } else if (!nkey.empty() && !nkey.starts_with('U')) {
    // Omits the value: it may be the seed.
    problem =
        "nkey is not the public key of a user, which begins with U; seeds go into a file, nkey_seed_file";
  } else if (is_seed(nkey_seed_file) || is_seed(credentials_file)) {
    problem = "nkey_seed_file and credentials_file are paths of files, not their content";
  } else if (!tls.enabled && (tls.names_anything() || !tls.verify)) {
    // A login would be sent in clear text, with the certificate unused.
    problem = "tls is not enabled, but a file, a name or verify of it is set; enable it, or set none of them";
  } else if (tls.certificate_file.empty() != tls.key_file.empty()) {
    problem = "tls.certificate_file and tls.key_file come together";
  } else if (connect_timeout.count() < 1 || connect_timeout > kDay || write_timeout.count() < 1 ||
             write_timeout > kDay) {
    problem = "connect_timeout and write_timeout are from 1 ms to a day";
  } else if (connect_wait.count() < 0) {
    problem = "connect_wait is 0, a time, or kForever";
  } else if (reconnect_min.count() < 1 || reconnect_max < reconnect_min || reconnect_max > kDay) {
    problem = "reconnect_min is at least 1 ms, and reconnect_max not less and at most a day";
  } else if (!(jitter >= 0 && jitter <= 1)) {
    problem = "jitter is from 0 to 1";
  } else if (pending_bytes < 1 || pending_bytes > (std::size_t{1} << 30)) {
    problem = "pending_bytes is from 1 to 2^30";
  }
  if (problem != nullptr) return make_error(ErrorCode::kInvalidArgument, "connection to NATS: %s", problem);
  return {};
}

std::string NatsConnectionOptions::describe() const {
  std::string text;
  for (const std::string& url : urls) {
    if (!text.empty()) text += ',';
    text += is_url(url) ? url : "?";
  }
  return text;
}

Result<void> NatsStreamOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(check_name("stream", name));
  const char* problem = nullptr;
  if (max_age.count() < 0 || max_age > std::chrono::hours(24 * 3650)) {
    problem = "max_age is from 0 (forever) to ten years";
  } else if (max_bytes > (std::uint64_t{1} << 60)) {
    problem = "max_bytes is at most 2^60";
  } else if (replicas < 1 || replicas > 5) {
    problem = "replicas are 1 to 5";
  } else if (duplicate_window.count() < 1 || (max_age.count() > 0 && duplicate_window > max_age)) {
    problem = "duplicate_window is at least a second, and not longer than max_age";
  }
  if (problem != nullptr)
    return make_error(ErrorCode::kInvalidArgument, "stream '%s': %s", name.c_str(), problem);
  return {};
}

}  // namespace ashlar::backend::nats
