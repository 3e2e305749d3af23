#include "backend/s3/options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ashlar/tiers/volume.h"

namespace ashlar::backend::s3 {
namespace {

constexpr std::uint64_t kMiB = 1024ULL * 1024;
constexpr std::uint64_t kMaxUpload = 5 * 1024ULL * kMiB;  // S3's limit for one request

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Rejects line breaks in values used in headers or signatures: they would inject a second header.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

bool is_bucket(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && is_letter_or_digit(name.front()) &&
         is_letter_or_digit(name.back()) && std::ranges::all_of(name, [](char c) {
           return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_';
         });
}

bool is_endpoint(std::string_view url) {
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (!url.starts_with(scheme)) continue;
    const std::string_view host = url.substr(scheme.size());
    return !host.empty() && std::ranges::all_of(host, [](char c) {
      return is_letter_or_digit(c) || c == '-' || c == '.' || c == ':' || c == '[' || c == ']';
    });
  }
  return false;
}

const char* problem_of(const S3Options& options, const std::string& addressing) {
  if (!is_bucket(options.bucket)) return "its location is not a bucket, or a bucket, '/' and a prefix";
  if (!options.prefix.empty() && !tiers::check_key(options.prefix)) return "its prefix is not valid in a key";
  if (!is_endpoint(options.endpoint))
    return "option 'endpoint' is http:// or https:// and a host, perhaps with a port, and no path";
  if (addressing != "path" && addressing != "host") return "option 'addressing' is path or host";
  if (options.region.empty() || !is_plain(options.region) || options.region.find(':') != std::string::npos)
    return "option 'region' is empty or not the name of a region";
  if (options.access_key.empty() != options.secret_key.empty())
    return "options 'access_key' and 'secret_key' must be given together";
  if (!options.session_token.empty() && options.access_key.empty())
    return "option 'session_token' needs 'access_key' and 'secret_key'";
  if (!is_plain(options.access_key) || !is_plain(options.secret_key) || !is_plain(options.session_token))
    return "a credential has a space or a control character";
  return nullptr;
}

}  // namespace

Result<S3Options> S3Options::read(const tiers::VolumeDescriptor& descriptor) {
  tiers::VolumeOptions given(descriptor);
  const auto milliseconds = [&](const char* name, std::uint64_t otherwise) {
    return std::chrono::milliseconds(given.number(name, otherwise, 1, 24ULL * 3600 * 1000));
  };
  S3Options options;
  const std::size_t slash = std::min(descriptor.location.find('/'), descriptor.location.size());
  options.bucket = descriptor.location.substr(0, slash);
  if (slash < descriptor.location.size()) options.prefix = descriptor.location.substr(slash + 1);
  options.region = given.text("region", "us-east-1");
  options.endpoint = given.text("endpoint", "https://s3." + options.region + ".amazonaws.com");
  options.access_key = given.text("access_key");
  options.secret_key = given.text("secret_key");
  options.session_token = given.text("session_token");
  options.ca_file = given.text("ca_file");
  const std::string addressing = given.text("addressing", "path");
  options.host_style = addressing == "host";
  options.verify_tls = given.flag("verify_tls", true);
  options.if_none_match = given.flag("if_none_match", true);
  options.requests = given.number("requests", 16, 1, 1024);
  options.multipart_bytes = given.number("multipart_bytes", 32 * kMiB, 1, kMaxUpload);
  options.part_bytes = given.number("part_bytes", 16 * kMiB, 5 * kMiB, kMaxUpload);
  options.part_requests = given.number("part_requests", 4, 1, 1024);
  options.retries = given.number("retries", 4, 0, 100);
  options.backoff = milliseconds("backoff_ms", 50);
  options.connect_timeout = milliseconds("connect_timeout_ms", 3000);
  options.stall = std::chrono::seconds(given.number("stall_seconds", 10, 1, 24ULL * 3600));
  options.deadline = milliseconds("deadline_ms", 120'000);
  ASHLAR_RETURN_IF_ERROR(given.finish());
  if (const char* problem = problem_of(options, addressing))
    return make_error(ErrorCode::kInvalidArgument, "volume '%s': %s", descriptor.name.c_str(), problem);
  return options;
}

std::string S3Options::url(std::string_view key) const {
  std::string url;
  if (host_style) {
    const std::size_t host = endpoint.find("://") + 3;
    url = endpoint.substr(0, host) + bucket + "." + endpoint.substr(host) + "/";
  } else {
    url = endpoint + "/" + bucket + "/";
  }
  if (!prefix.empty()) url += prefix + "/";
  return url.append(key);
}

std::string S3Options::describe() const {
  return "s3 " + endpoint + " " + bucket + (prefix.empty() ? "" : "/" + prefix);
}

}  // namespace ashlar::backend::s3
