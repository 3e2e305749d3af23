#include "backend/ucx/transports.h"

#include <algorithm>
#include <array>
#include <string>

namespace ashlar::backend::ucx {
namespace {

// The address of a worker has one byte for the length of the list.
constexpr std::size_t kMaxList = 255;

// Calls fn(name) for each; stops when it returns true, and returns that.
template <class F>
bool any_name(std::string_view list, F&& fn) {
  for (;;) {
    const std::size_t comma = list.find(',');
    if (fn(list.substr(0, comma))) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

bool is_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

std::vector<std::string> split_list(std::string_view list) {
  std::vector<std::string> out;
  any_name(list, [&](std::string_view name) {
    if (!name.empty()) out.emplace_back(name);
    return false;
  });
  return out;
}

Result<void> check_transports(std::string_view list) {
  const std::string text(list);
  if (list.size() > kMaxList || any_name(list, [](std::string_view name) { return !is_name(name); }))
    return make_error(ErrorCode::kInvalidArgument,
                      "transports is '%s'; it is a list of UCX transports, such as 'tcp' or 'tcp,shm'",
                      text.c_str());
  if (any_name(list, [](std::string_view name) { return name == "tcp"; })) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "transports is '%s', without tcp, which connects every two processes; write 'tcp,%s'",
                    text.c_str(), text.c_str());
}

bool shares_memory(std::string_view list) {
  constexpr std::array<std::string_view, 9> kShared = {"shm", "sm",    "mm",   "posix", "sysv",
                                                       "cma", "xpmem", "knem", "self"};
  return any_name(list,
                  [&](std::string_view name) { return std::ranges::find(kShared, name) != kShared.end(); });
}

}  // namespace ashlar::backend::ucx
