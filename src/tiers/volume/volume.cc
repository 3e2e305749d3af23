#include "ashlar/tiers/volume.h"

#include <algorithm>

namespace ashlar::tiers {
namespace {

bool allowed(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

}  // namespace

Result<void> CallLimits::check(const Clock& clock) const {
  if (stop.stop_requested()) return make_error(ErrorCode::kCancelled, "the call was cancelled");
  if (deadline && clock.now() >= *deadline)
    return make_error(ErrorCode::kTimeout, "the deadline of the call has passed");
  return {};
}

Result<void> check_key(std::string_view key) {
  const auto bad = [&](const char* why) {
    return make_error(ErrorCode::kInvalidArgument, "the key '%s' %s", std::string(key.substr(0, 80)).c_str(),
                      why);
  };
  if (key.empty() || key.size() > Volume::kMaxKey) return bad("is empty or longer than 512 characters");
  std::size_t start = 0;
  while (start <= key.size()) {
    const std::size_t end = std::min(key.find('/', start), key.size());
    const std::string_view part = key.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return bad("has a part that is empty, '.' or '..'");
    if (!std::ranges::all_of(part, allowed)) return bad("has a character that is not in [A-Za-z0-9._-]");
    start = end + 1;
  }
  return {};
}

}  // namespace ashlar::tiers
